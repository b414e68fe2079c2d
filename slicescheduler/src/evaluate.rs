//! Policies beside each other on many workloads, in a way that can be checked.
//!
//! A [`Suite`] names experiments: scenarios under conditions, at several rates, with several seeds, under
//! every policy. [`evaluate`] makes the runs, on several threads, and keeps the result of each in a file
//! that is named after a hash of everything that it depends on; an evaluation that was interrupted goes on
//! where it was. What comes out is an [`Evaluation`]: figures with intervals over the seeds, ratios to
//! static containers seed by seed, capacities, targets, and the places where another policy is better.
//!
//! Baselines get settings that were found on other seeds than those reported, with the same effort for
//! each. The policy of this project has one setting everywhere.
//!
//! | module | what it holds |
//! |---|---|
//! | [`suite`] | what is run |
//! | `conditions`, `handicap`, `skewed`, `whole_requests` | what an experiment changes |
//! | `run`, `store`, `outcome` | one run and its result |
//! | `tune`, `capacity` | searches |
//! | `optimum` | policies beside the best schedule of small cases |
//! | `results`, `targets`, `statistics` | what is said about the runs |
//! | [`table`], [`page`] | how it is shown |

mod capacity;
mod conditions;
mod error;
mod handicap;
mod optimum;
mod outcome;
pub mod page;
mod plots;
mod results;
mod run;
mod skewed;
pub mod statistics;
mod store;
pub mod suite;
pub mod table;
mod targets;
mod tune;
mod whole_requests;
mod workers;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use slicescheduler_gmg::tenant::Class;
use slicescheduler_simulator::world::WorldCost;

use crate::bound::linear::{LinearBound, LinearOptions};
use crate::scenario::Scenario;

pub use capacity::Capacity;
pub use conditions::{Conditions, Drifting, Lending, Slow};
pub use error::EvaluateError;
pub use handicap::Ability;
pub use optimum::Optimum;
pub use outcome::{Outcome, OutcomeError, SliceFigures};
pub use results::{Capacities, Cost, Evaluation, Loss, Measured, OURS, Point, Policy, Ratios};
pub use run::{Case, Runner, Watcher, fingerprint};
pub use statistics::Interval;
pub use store::Store;
pub use suite::{Folder, Scenarios, Suite};
pub use targets::Row;
pub use tune::{Options, Tuned};

use run::Base;
use suite::{Experiment, Group, Tuning};

/// What is evaluated, and with what.
pub struct Inputs<'a> {
    /// The name of the suite.
    pub name: &'a str,
    /// The suite.
    pub suite: &'a Suite,
    /// Its scenarios.
    pub scenarios: &'a dyn Scenarios,
    /// Folder with the traces that they name; where one is missing, its generator stands in.
    pub data: Option<&'a Path>,
}

/// Evaluates a suite. The threads that it starts end before it returns.
///
/// # Errors
/// The first thing that cannot be read, run or written. Results that were there by then stay.
pub fn evaluate(inputs: &Inputs<'_>, runner: &Runner<'_>) -> Result<(Evaluation, Measured), EvaluateError> {
    let mut stand_ins = Vec::new();
    // Better refused now than after an hour of tuning.
    let bases = experiment_bases(inputs, &mut stand_ins)?;
    let tuned = match &inputs.suite.tuning {
        Some(tuning) => tune::tune(runner, tuning, &tuning_bases(inputs, tuning, &mut stand_ins)?)?,
        None => Vec::new(),
    };
    let settings: BTreeMap<String, Options> =
        tuned.iter().map(|tuned| (tuned.policy.clone(), tuned.options.clone())).collect();
    let (mut points, mut costs) = (Vec::new(), Vec::new());
    let grid = Grid::new(inputs.suite, &bases, &settings);
    let mut outcomes = runner.all(&grid.cases)?.into_iter();
    for cell in &grid.cells {
        let mut runs: Vec<(String, Vec<Outcome>)> = Vec::new();
        for policy in &cell.policies {
            runs.push((policy.clone(), outcomes.by_ref().take(cell.seeds).collect()));
        }
        let mut point = cell.point(&runs);
        point.bound = cell.bound();
        costs.extend(runs.iter().map(|(policy, runs)| Cost::of(&point, policy, runs)));
        points.push(point);
    }
    let capacities = capacities(inputs.suite, &bases, &settings, runner)?;
    let optima = optima(inputs, &settings, runner.threads, &mut stand_ins)?;
    stand_ins.sort();
    stand_ins.dedup();
    let mut evaluation = Evaluation {
        schema: outcome::SCHEMA,
        suite: inputs.name.to_owned(),
        stand_ins,
        tuned,
        points,
        capacities,
        optima,
        targets: Vec::new(),
        unsupported: inputs.suite.unsupported.clone(),
    };
    evaluation.targets = targets::rows(&evaluation);
    let (made, kept) = runner.counts();
    Ok((evaluation, Measured { made, kept, threads: runner.threads, policies: costs }))
}

/// An experiment in one way.
struct Way<'a> {
    experiment: &'a Experiment,
    base: Base,
}

fn experiment_bases<'a>(inputs: &Inputs<'a>, stand_ins: &mut Vec<String>) -> Result<Vec<Way<'a>>, EvaluateError> {
    let mut ways = Vec::new();
    for experiment in &inputs.suite.experiments {
        let (scenario, replaced) = suite::scenario(inputs.scenarios, &experiment.scenario, inputs.data)?;
        stand_ins.extend(replaced);
        for conditions in &experiment.variants {
            let name = results::title(&experiment.name, &conditions.name);
            if let Some(message) = conditions.objection_of(&scenario) {
                return Err(EvaluateError::Conditions { run: name, message });
            }
            let mut base = Base::new(name, scenario.clone(), conditions.clone());
            base.last(experiment.duration.as_deref(), experiment.warm_up.as_deref())?;
            ways.push(Way { experiment, base });
        }
    }
    Ok(ways)
}

fn tuning_bases(inputs: &Inputs<'_>, tuning: &Tuning, stand_ins: &mut Vec<String>) -> Result<Vec<Base>, EvaluateError> {
    let mut bases = Vec::new();
    for name in &tuning.scenarios {
        let (scenario, replaced) = suite::scenario(inputs.scenarios, name, inputs.data)?;
        stand_ins.extend(replaced);
        let mut base = Base::new(format!("tuning on {name}"), scenario, Conditions::default());
        base.last(Some(&tuning.duration), None)?;
        bases.push(base);
    }
    Ok(bases)
}

/// One point of the evaluation, before it is run.
struct Cell<'a> {
    way: &'a Way<'a>,
    rate: f64,
    seeds: usize,
    scenarios: Vec<Arc<Scenario>>,
    policies: Vec<String>,
}

/// Every run of every point: by cell, policy and seed.
struct Grid<'a> {
    cells: Vec<Cell<'a>>,
    cases: Vec<Case>,
}

impl<'a> Grid<'a> {
    fn new(suite: &Suite, ways: &'a [Way<'a>], settings: &BTreeMap<String, Options>) -> Self {
        let (mut cells, mut cases) = (Vec::new(), Vec::new());
        for way in ways {
            let policies = way.experiment.policies();
            let seeds = way.experiment.seeds_of(&suite.seeds);
            for &rate in &way.experiment.rates {
                let points: Vec<_> = seeds.iter().map(|&seed| way.base.at(rate, seed)).collect();
                for policy in &policies {
                    let options = settings.get(policy).cloned().unwrap_or_default();
                    cases.extend(points.iter().map(|point| point.case(policy, &options)));
                }
                let scenarios = points.iter().map(|point| point.scenario.clone()).collect();
                cells.push(Cell { way, rate, seeds: seeds.len(), scenarios, policies: policies.clone() });
            }
        }
        Self { cells, cases }
    }
}

impl Cell<'_> {
    /// Tokens per second that no policy exceeds in a world without noise: mean over the seeds. [`None`] where the
    /// linear program has no answer, and of what is no workload.
    fn bound(&self) -> Option<f64> {
        if self.way.experiment.group != Group::Workload {
            return None;
        }
        let world = WorldCost::default();
        let bounds = self.scenarios.iter().map(|scenario| LinearBound::of(scenario, &world, LinearOptions::default()));
        let bounds: Vec<f64> = bounds.map(|bound| Some(bound.ok()?.token_throughput)).collect::<Option<_>>()?;
        (!bounds.is_empty()).then(|| bounds.iter().sum::<f64>() / bounds.len() as f64)
    }

    fn point(&self, runs: &[(String, Vec<Outcome>)]) -> Point {
        let Way { experiment, base } = self.way;
        let scenario = &base.scenario;
        let fixed = runs.iter().find(|(policy, _)| policy == "static").map(|(_, runs)| runs.as_slice());
        let best_effort = scenario.tenants.iter().filter(|tenant| tenant.class == Class::BestEffort);
        let strict = base.conditions.lending == Some(Lending::Strict);
        Point {
            experiment: experiment.name.clone(),
            group: experiment.group,
            variant: base.conditions.name.clone(),
            strict,
            rate: self.rate,
            devices: scenario.cluster.devices().count() as u32,
            best_effort_devices: best_effort.map(|tenant| tenant.container.devices.len() as u32).sum(),
            window_s: (scenario.duration - scenario.warm_up).as_secs_f64(),
            bound: None,
            policies: runs.iter().filter_map(|(policy, runs)| Policy::of(policy, runs, fixed)).collect(),
        }
    }
}

/// The best schedules of all small cases, several at a time.
fn optima(
    inputs: &Inputs<'_>,
    settings: &BTreeMap<String, Options>,
    threads: usize,
    stand_ins: &mut Vec<String>,
) -> Result<Vec<Optimum>, EvaluateError> {
    let mut cases = Vec::new();
    for small in &inputs.suite.small_cases {
        let (scenario, replaced) = suite::scenario(inputs.scenarios, &small.scenario, inputs.data)?;
        stand_ins.extend(replaced);
        let mut base = Base::new(small.name.clone(), scenario, small.conditions());
        base.last(Some(&small.duration), None)?;
        cases.extend(inputs.suite.seeds.iter().map(|&seed| (small, base.clone(), seed)));
    }
    workers::for_each(threads, &cases, |(small, base, seed)| Optimum::of(small, base, *seed, settings))
}

/// Searches every capacity that the suite asks for, several policies at a time.
fn capacities(
    suite: &Suite,
    ways: &[Way<'_>],
    settings: &BTreeMap<String, Options>,
    runner: &Runner<'_>,
) -> Result<Vec<Capacities>, EvaluateError> {
    let asked = ways.iter().filter_map(|way| Some((way, way.experiment.capacity?)));
    let searches: Vec<_> = asked
        .clone()
        .flat_map(|(way, span)| way.experiment.policies().into_iter().map(move |policy| (way, span, policy)))
        .collect();
    let mut found = workers::for_each(runner.threads, &searches, |(way, span, policy)| {
        let options = settings.get(policy).cloned().unwrap_or_default();
        let seeds = way.experiment.seeds_of(&suite.seeds);
        capacity::search(runner, &way.base, *span, seeds, policy, &options)
    })?
    .into_iter();
    let of = |(way, span): (&Way<'_>, suite::Span)| Capacities {
        experiment: way.experiment.name.clone(),
        variant: way.base.conditions.name.clone(),
        least: span.least,
        most: span.most,
        policies: found.by_ref().take(way.experiment.policies().len()).collect(),
    };
    Ok(asked.map(of).collect())
}
