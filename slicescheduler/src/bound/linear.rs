//! A bound on the token throughput of any run, by a linear program.
//!
//! # Formulation
//!
//! Over a run of length `H` with devices in groups `g` of equal ones and tenants `t` whose requests come in bins
//! `k` of about equal sizes ([`Bin`]), the variables are the requests `f[t,k]` that complete, and what their tenants
//! compute on the devices of a group: iterations `I[t,g]`, tokens `N`, output tokens `S`, context read `C`,
//! query-key pairs `P`, and the time `z[t,g,o]` of every kind of operators `o`.
//!
//! ```text
//! maximize    sum f[t,k] (prompt + output) / window
//! subject to  f[t,k] <= requests that arrive (a backlog has no end)
//!             sum over g of N[t,g] >= sum over k of f[t,k] tokens[k]          and S, C, P alike
//!             N <= I token budget      S <= I most sequences      C <= I (KV tokens beside the weights of t)
//!             z[t,g,o] >= c + e m + overhead I
//!             z[t,g,o] >= m + e c + overhead I
//!             ranks x sum over o of z[t,g,o] <= sum over devices of (H - time to load the weights of t)
//!             sum over t and o of ranks x z[t,g,o] <= devices H
//! ```
//!
//! where `c` and `m` are the times of arithmetic and of memory traffic, linear in `I, N, S, C, P`, and `e` is the
//! share of the shorter of the two that does not overlap.
//!
//! # Why nobody exceeds it
//!
//! The time of an iteration is convex and homogeneous in its sums, so the sums of all iterations take at most as long
//! as the iterations. Every completed request needs at least its [`Needs`]. In an
//! iteration every row reads the cache of its sequence, which lies on the device at that moment, so the context read
//! is at most what the device holds. Weights of guests are not there before a link has brought them. All else
//! is left out, to the bound's advantage: arrivals during the run, due times, memory of those that wait for their next
//! iteration, cuts, recomputation, launch gaps, tiles.
//!
//! It is a bound of the mean: bins of several requests stand for any of them, and the world's noise, whose mean is one,
//! may favour a short run. With a bin for each request and a world without noise it holds exactly; then a
//! backlog has to be given as [the requests that anybody could have taken](LinearOptions::backlog).

use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};
use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::cluster::{Cluster, Endpoint};
use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::tenant::Layout;
use slicescheduler_gmg::units::{Bandwidth, Bytes};
use slicescheduler_scheduler::StaticContainers;
use slicescheduler_simulator::cost::CostModel;

use crate::bound::needs::{Bin, Needs, Sizes};
use crate::bound::work::{NoRoofline, SUMS, Work, work};
use crate::scenario::{Scenario, Source};
use crate::setup::{Setup, SetupError};
use crate::workload::WorkloadError;

/// Why there is no bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BoundError {
    /// The scenario cannot be set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A trace is damaged.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The cost model is not made of rooflines.
    #[error(transparent)]
    NoRoofline(#[from] NoRoofline),
    /// The solver gave up.
    #[error("the linear program of {rows} rows and {columns} columns has no solution: {reason}")]
    Unsolved {
        /// Constraints.
        rows: usize,
        /// Variables.
        columns: usize,
        /// What the solver says.
        reason: String,
    },
}

/// How exact the bound is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearOptions {
    /// Most bins per tenant.
    pub bins: usize,
    /// So many requests of each backlog count, from the first; [`None`]: without end, like the mean of the first
    /// thousands.
    pub backlog: Option<usize>,
}

impl Default for LinearOptions {
    fn default() -> Self {
        Self { bins: 64, backlog: None }
    }
}

/// Requests of a backlog whose mean stands for all of it.
const BACKLOG_SAMPLE: usize = 4096;

/// What no policy exceeds.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearBound {
    /// Input and output tokens of completed requests per second of the measuring window.
    pub token_throughput: f64,
    /// Those of each tenant, where the sum is the greatest.
    pub tenants: Vec<f64>,
    /// Constraints of the program.
    pub rows: usize,
    /// Variables of the program.
    pub columns: usize,
}

/// A tenant as the program sees it.
struct Load {
    bins: Vec<Bin>,
    weights: Bytes,
    kv_per_token: Bytes,
    ranks: f64,
    token_budget: f64,
    max_sequences: f64,
    home: Vec<DeviceId>,
}

/// Equal devices.
struct Group {
    devices: Vec<DeviceId>,
    usable: Bytes,
}

impl LinearBound {
    /// The bound of a scenario in a world with the durations of `model`. O(requests) to read the workload, then a
    /// program of about 15 rows and columns per tenant and kind of device.
    ///
    /// # Errors
    /// If the scenario is impossible, `model` is not made of rooflines, or the solver gives up.
    pub fn of(scenario: &Scenario, model: &dyn CostModel, options: LinearOptions) -> Result<Self, BoundError> {
        let setup = Setup::new(scenario, &StaticContainers::default())?;
        let view = setup.gmg.view();
        let cluster = view.cluster();
        let usable = |device| view.memory(device).map_or(Bytes::ZERO, |memory| memory.layout().usable);
        let mut groups: Vec<Group> = Vec::new();
        for device in cluster.devices() {
            let usable = usable(device.id);
            let equal = |group: &&mut Group| {
                let first = group.devices.first().and_then(|&first| cluster.device(first));
                group.usable == usable && first.is_some_and(|first| first.spec == device.spec)
            };
            match groups.iter_mut().find(equal) {
                Some(group) => group.devices.push(device.id),
                None => groups.push(Group { devices: vec![device.id], usable }),
            }
        }
        let mut loads = Vec::new();
        for (index, batcher) in setup.batching.iter().enumerate() {
            let tenant = TenantId(index as u32);
            let models = || view.models().iter().filter(|model| model.tenant() == tenant);
            let container = view.containers().iter().find(|container| container.is_home_of(tenant));
            let layout = container.map_or(Layout::Replicas, |container| container.layout);
            loads.push(Load {
                bins: bins(scenario, index, options)?,
                weights: models().map(|model| model.weights).max().unwrap_or(Bytes::ZERO),
                kv_per_token: models().map(|model| model.kv_bytes_per_token).max().unwrap_or(Bytes::ZERO),
                ranks: if let Layout::Tensor(ranks) = layout { f64::from(ranks) } else { 1.0 },
                token_budget: f64::from(batcher.options().token_budget),
                max_sequences: f64::from(batcher.options().max_sequences),
                home: container.map_or_else(Vec::new, |container| container.devices.clone()),
            });
        }
        let mut program = Program::new(scenario);
        let mut times: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); groups.len()];
        let mut complete = Vec::new();
        for (index, load) in loads.iter().enumerate() {
            let mut sums: Vec<[Variable; SUMS]> = Vec::new();
            for (group, times) in groups.iter().zip(&mut times) {
                let Some(device) = group.devices.first().and_then(|&first| cluster.device(first)) else { continue };
                let mut works = Vec::new();
                for model_of in view.models().iter().filter(|model| model.tenant().index() == index) {
                    works.extend(work(model, &model_of.template, &device.spec)?);
                }
                let free = available(cluster, group, load, program.span);
                let (of_group, time) = program.compute(load, &works, group.usable, free);
                sums.push(of_group);
                times.extend(time);
            }
            complete.push(program.requests(load, &sums));
        }
        for (group, time) in groups.iter().zip(times) {
            program.at_most(time, group.devices.len() as f64 * program.span);
        }
        program.solve(&loads, &complete)
    }
}

fn bins(scenario: &Scenario, tenant: usize, options: LinearOptions) -> Result<Vec<Bin>, BoundError> {
    let sizes = |(prompt, output)| Sizes { prompt, output };
    Ok(match scenario.requests(tenant)? {
        Some(Source::Arrivals(stream)) => {
            let mut requests = Vec::new();
            for record in stream {
                let record = record?;
                requests.push(sizes((record.prompt, record.output)));
            }
            Bin::group(requests, options.bins)
        }
        Some(Source::Backlog { requests, .. }) => match options.backlog {
            Some(first) => Bin::group(requests.take(first).map(sizes).collect(), options.bins),
            None => {
                let sample: Vec<Sizes> = requests.take(BACKLOG_SAMPLE).map(sizes).collect();
                Bin::mean(&sample, f64::INFINITY).into_iter().collect()
            }
        },
        None => Vec::new(),
    })
}

/// Device-seconds that the tenant could use of a group: all of its own devices, and of others what is left of the run
/// once the fastest link has brought its weights.
fn available(cluster: &Cluster, group: &Group, load: &Load, span: f64) -> f64 {
    let seconds = |&device: &DeviceId| {
        if load.home.contains(&device) {
            return span;
        }
        let host = cluster.device(device).map(|device| Endpoint::Host(device.node));
        let sources = load.home.iter().map(|&home| Endpoint::Device(home)).chain(host);
        let bandwidth = |from| cluster.route(from, Endpoint::Device(device)).map(|route| route.bandwidth(cluster));
        let fastest = sources.filter_map(bandwidth).max().unwrap_or(Bandwidth::ZERO);
        (span - fastest.time_for(load.weights).as_secs_f64()).max(0.0)
    };
    group.devices.iter().map(seconds).sum()
}

/// Units of the variables, so that coefficients are of one order of magnitude: a thousand iterations, a million
/// tokens and output tokens, 10^9 tokens of context and pairs.
const UNITS: [f64; SUMS] = [1e3, 1e6, 1e6, 1e9, 1e9];
/// Requests are counted in thousands.
const REQUESTS: f64 = 1e3;

struct Program {
    problem: Problem,
    rows: usize,
    columns: usize,
    /// Seconds that the run lasts.
    span: f64,
    /// Seconds that are measured.
    window: f64,
}

impl Program {
    fn new(scenario: &Scenario) -> Self {
        Self {
            problem: Problem::new(OptimizationDirection::Maximize),
            rows: 0,
            columns: 0,
            span: scenario.duration.as_secs_f64(),
            window: (scenario.duration - scenario.warm_up).as_secs_f64(),
        }
    }

    fn variable(&mut self, gain: f64, most: f64) -> Variable {
        self.columns += 1;
        self.problem.add_var(gain, (0.0, most))
    }

    fn at_most(&mut self, terms: Vec<(Variable, f64)>, most: f64) {
        self.rows += 1;
        self.problem.add_constraint(terms, ComparisonOp::Le, most);
    }

    /// What a tenant computes on the devices of a group; the sums, and its share of the group's time.
    fn compute(
        &mut self,
        load: &Load,
        works: &[Work],
        usable: Bytes,
        available: f64,
    ) -> ([Variable; SUMS], Vec<(Variable, f64)>) {
        let fits = usable > load.weights && available > 0.0;
        let sums: [Variable; SUMS] =
            std::array::from_fn(|_| self.variable(0.0, if fits { f64::INFINITY } else { 0.0 }));
        let [iterations, tokens, outputs, context, _] = sums;
        let per_iteration = |most: f64, unit: f64| -most * UNITS[0] / unit;
        self.at_most(vec![(tokens, 1.0), (iterations, per_iteration(load.token_budget, UNITS[1]))], 0.0);
        self.at_most(vec![(outputs, 1.0), (iterations, per_iteration(load.max_sequences, UNITS[2]))], 0.0);
        if load.kv_per_token > Bytes::ZERO {
            let cache = (usable - load.weights).get() as f64 / load.kv_per_token.get() as f64;
            self.at_most(vec![(context, 1.0), (iterations, per_iteration(cache, UNITS[3]))], 0.0);
        }
        let mut times = Vec::new();
        for work in works {
            let time = self.variable(0.0, f64::INFINITY);
            times.push((time, load.ranks));
            for (longer, shorter) in [(&work.compute, &work.memory), (&work.memory, &work.compute)] {
                let overhead = |sum: usize| if sum == 0 { work.overhead } else { 0.0 };
                let seconds = |sum: usize| UNITS[sum] * (longer[sum] + work.exposed * shorter[sum] + overhead(sum));
                let mut terms: Vec<(Variable, f64)> = (0..SUMS).map(|sum| (sums[sum], seconds(sum))).collect();
                terms.retain(|&(_, seconds)| seconds > 0.0);
                terms.push((time, -1.0));
                self.at_most(terms, 0.0);
            }
        }
        self.at_most(times.clone(), available);
        (sums, times)
    }

    /// The requests of a tenant that complete, and what they need of all groups together.
    fn requests(&mut self, load: &Load, sums: &[[Variable; SUMS]]) -> Vec<Variable> {
        let gain = |bin: &Bin| REQUESTS * (bin.prompt + bin.output) / self.window;
        let gains: Vec<f64> = load.bins.iter().map(gain).collect();
        let complete: Vec<Variable> =
            load.bins.iter().zip(gains).map(|(bin, gain)| self.variable(gain, bin.count / REQUESTS)).collect();
        let needs: [fn(&Needs) -> f64; SUMS - 1] =
            [|needs| needs.tokens, |needs| needs.outputs, |needs| needs.context, |needs| needs.pairs];
        for (need, sum) in needs.into_iter().zip(1..) {
            let needed = load.bins.iter().map(|bin| REQUESTS * need(&bin.needs) / UNITS[sum]);
            let mut terms: Vec<(Variable, f64)> = complete.iter().copied().zip(needed).collect();
            terms.extend(sums.iter().map(|of_group| (of_group[sum], -1.0)));
            self.at_most(terms, 0.0);
        }
        complete
    }

    fn solve(self, loads: &[Load], complete: &[Vec<Variable>]) -> Result<LinearBound, BoundError> {
        let Self { problem, rows, columns, window, .. } = self;
        let unsolved = |reason: String| BoundError::Unsolved { rows, columns, reason };
        let outcome = problem.solve().map_err(|error| unsolved(error.to_string()))?;
        let Some(solution) = outcome.solution() else {
            return Err(unsolved(format!("{:?}", outcome.termination_reason())));
        };
        let tokens = |(load, complete): (&Load, &Vec<Variable>)| -> f64 {
            let of = |(bin, &variable): (&Bin, &Variable)| solution.var_value(variable) * (bin.prompt + bin.output);
            load.bins.iter().zip(complete).map(of).sum::<f64>() * REQUESTS / window
        };
        let tenants = loads.iter().zip(complete).map(tokens).collect();
        Ok(LinearBound { token_throughput: solution.objective(), tenants, rows, columns })
    }
}
