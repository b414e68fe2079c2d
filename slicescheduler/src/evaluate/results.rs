//! What an evaluation found: the form of `results.json`.
//!
//! Everything in it is simulated and depends on nothing but suite, scenarios, traces and program: two
//! machines write the same file. What was measured is in `measured.json` ([`Measured`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::evaluate::capacity::{Capacity, worst_tenant};
use crate::evaluate::optimum::Optimum;
use crate::evaluate::outcome::{Outcome, SliceFigures};
use crate::evaluate::statistics::Interval;
use crate::evaluate::suite::{Group, Unsupported};
use crate::evaluate::targets::{Row, keeps_service_level};
use crate::evaluate::tune::Tuned;
use crate::report::{LatencyFigures, TenantSummary};

/// An evaluation.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Evaluation {
    /// Version of this form.
    pub schema: u32,
    /// The suite.
    pub suite: String,
    /// Traces that were not there: generators stood in for them.
    pub stand_ins: Vec<String>,
    /// Settings of the policies that have any, found on other seeds than those of the points.
    pub tuned: Vec<Tuned>,
    /// Every scenario at every rate, under every policy.
    pub points: Vec<Point>,
    /// The greatest rates that policies serve.
    pub capacities: Vec<Capacities>,
    /// Policies beside the best schedules of small cases.
    #[serde(default)]
    pub optima: Vec<Optimum>,
    /// What is to be reached, and what was.
    pub targets: Vec<Row>,
    /// What targets ask for and could not be shown.
    pub unsupported: Vec<Unsupported>,
}

/// One scenario in one way at one rate.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Point {
    /// The experiment.
    pub experiment: String,
    /// What the experiment is for.
    pub group: Group,
    /// The way it was run; empty if there is one only.
    pub variant: String,
    /// True if tenants lend strictly.
    pub strict: bool,
    /// Factor on the arrival rates.
    pub rate: f64,
    /// Devices.
    pub devices: u32,
    /// Devices of best-effort tenants among them.
    pub best_effort_devices: u32,
    /// Seconds that were measured, of each seed.
    pub window_s: f64,
    /// Tokens per second that no policy exceeds: the linear program's, mean of the seeds. Of workloads only.
    #[serde(default)]
    pub bound: Option<f64>,
    /// The policies, in the order in which they ran.
    pub policies: Vec<Policy>,
}

/// One policy at one point, over all seeds.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Policy {
    /// Its name.
    pub policy: String,
    /// Input and output tokens per second of requests that completed in the window.
    pub tokens: Interval,
    /// Tokens over those of static containers with the same seed: geometric mean. Absent where they
    /// did not run.
    pub over_static: Option<Ratios>,
    /// Share of late requests of the worst latency-sensitive tenant, its requests of all seeds together.
    pub violations: f64,
    /// Reservations that failed because of guests, and owners preempted or delayed by them.
    pub memory_violations: u64,
    /// Share of the device time that owners left idle in which guests ran.
    pub recovered: f64,
    /// Share of device time in which owners ran nothing.
    pub idle: f64,
    /// Input and output tokens per second of requests that kept their service level.
    pub goodput: f64,
    /// Jobs that were cut at an operator boundary, per second.
    pub recalls_per_s: f64,
    /// Every tenant, means over the seeds.
    pub tenants: Vec<TenantSummary>,
    /// Idle slices by length, of all seeds.
    pub slices: Vec<SliceFigures>,
}

/// Tokens of a policy over those of static containers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct Ratios {
    /// Input and output.
    pub tokens: Interval,
    /// Input.
    pub input: f64,
    /// Output.
    pub output: f64,
    /// Weighted by the arithmetic that they take.
    pub flop_weighted: f64,
}

/// The capacities of all policies on one scenario.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Capacities {
    /// The experiment.
    pub experiment: String,
    /// The way it was run.
    pub variant: String,
    /// What was tried.
    pub least: f64,
    /// What was tried.
    pub most: f64,
    /// One entry per policy.
    pub policies: Vec<Capacity>,
}

/// What was measured while an evaluation was made: the form of `measured.json`. It differs from run to
/// run.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Measured {
    /// Runs that were made now.
    pub made: usize,
    /// Runs whose results were there.
    pub kept: usize,
    /// Threads that ran at a time.
    pub threads: usize,
    /// One entry per policy and point.
    pub policies: Vec<Cost>,
}

/// What the decisions of a policy cost, over the seeds of a point.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Cost {
    /// The experiment.
    pub experiment: String,
    /// The way it was run.
    pub variant: String,
    /// Factor on the arrival rates.
    pub rate: f64,
    /// The policy.
    pub policy: String,
    /// Mean time of a decision, in microseconds.
    pub mean_us: f64,
    /// The greatest 99th percentile of the runs, in microseconds.
    pub p99_us: f64,
    /// Share of one core that decisions took.
    pub share_of_core: f64,
    /// Wall-clock seconds of the longest run.
    pub wall_s: f64,
}

impl Point {
    /// What `policy` did here.
    pub fn of(&self, policy: &str) -> Option<&Policy> {
        self.policies.iter().find(|of| of.policy == policy)
    }

    /// The experiment, and the way it was run if there are several.
    pub fn title(&self) -> String {
        title(&self.experiment, &self.variant)
    }
}

/// An experiment and the way it was run.
pub(super) fn title(experiment: &str, variant: &str) -> String {
    if variant.is_empty() { experiment.to_owned() } else { format!("{experiment}, {variant}") }
}

impl Policy {
    /// The figures of `runs`, one per seed, beside those of static containers with the same seeds.
    pub(super) fn of(policy: &str, runs: &[Outcome], fixed: Option<&[Outcome]>) -> Option<Self> {
        let first = runs.first()?;
        let mean = |of: fn(&Outcome) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        let samples: Vec<f64> = runs.iter().map(|run| run.summary.token_throughput).collect();
        let device_time = f64::from(first.devices) * first.window_s;
        Some(Self {
            policy: policy.to_owned(),
            tokens: Interval::of(&samples)?,
            over_static: fixed.and_then(|fixed| Ratios::of(runs, fixed)),
            violations: worst_tenant(runs),
            memory_violations: runs.iter().map(|run| run.summary.memory_violations).sum(),
            recovered: mean(|run| run.summary.idle_slice_recovery),
            idle: mean(Outcome::idle_s) / device_time.max(f64::MIN_POSITIVE),
            goodput: mean(|run| run.summary.goodput),
            recalls_per_s: mean(|run| run.summary.recalls as f64) / first.window_s.max(f64::MIN_POSITIVE),
            tenants: tenants(runs),
            slices: slices(runs),
        })
    }
}

impl Ratios {
    fn of(runs: &[Outcome], fixed: &[Outcome]) -> Option<Self> {
        let ratio = |of: fn(&Outcome) -> f64| -> Vec<f64> {
            runs.iter().zip(fixed).map(|(run, fixed)| of(run) / of(fixed)).filter(|ratio| ratio.is_finite()).collect()
        };
        Some(Self {
            tokens: Interval::of_ratios(&ratio(|run| run.summary.token_throughput))?,
            input: Interval::of_ratios(&ratio(|run| run.summary.input_token_throughput))?.mean,
            output: Interval::of_ratios(&ratio(|run| run.summary.output_token_throughput))?.mean,
            flop_weighted: Interval::of_ratios(&ratio(|run| run.summary.flop_weighted_throughput))?.mean,
        })
    }
}

/// Tenants with the means of their figures; counts are summed, violations weighted by arrivals.
fn tenants(runs: &[Outcome]) -> Vec<TenantSummary> {
    let mut merged: Vec<TenantSummary> = Vec::new();
    for tenant in runs.iter().flat_map(|run| &run.summary.tenants) {
        match merged.iter_mut().find(|known| known.name == tenant.name) {
            None => merged.push(tenant.clone()),
            Some(known) => {
                let (before, now) = (known.arrived as f64, tenant.arrived as f64);
                let weighted = known.sla_violation_rate * before + tenant.sla_violation_rate * now;
                known.sla_violation_rate = weighted / (before + now).max(1.0);
                add(&mut known.ttft_ms, tenant.ttft_ms);
                add(&mut known.tpot_ms, tenant.tpot_ms);
                known.token_throughput += tenant.token_throughput;
                known.arrived += tenant.arrived;
                known.completed += tenant.completed;
                known.preemptions += tenant.preemptions;
            }
        }
    }
    let count = runs.len().max(1) as f64;
    for tenant in &mut merged {
        tenant.token_throughput /= count;
        for latency in [&mut tenant.ttft_ms, &mut tenant.tpot_ms] {
            latency.p50 /= count;
            latency.p99 /= count;
        }
    }
    merged
}

fn add(sum: &mut LatencyFigures, more: LatencyFigures) {
    sum.p50 += more.p50;
    sum.p99 += more.p99;
}

/// Slices of all runs, by length.
fn slices(runs: &[Outcome]) -> Vec<SliceFigures> {
    let mut merged: Vec<SliceFigures> = Vec::new();
    for run in runs {
        for (index, slice) in run.slices.iter().enumerate() {
            match merged.get_mut(index) {
                None => merged.push(*slice),
                Some(known) => {
                    known.slices += slice.slices;
                    known.idle_s += slice.idle_s;
                    known.recovered_s += slice.recovered_s;
                }
            }
        }
    }
    merged
}

impl Cost {
    pub(super) fn of(point: &Point, policy: &str, runs: &[Outcome]) -> Self {
        let count = runs.len().max(1) as f64;
        let most = |of: fn(&Outcome) -> f64| runs.iter().map(of).fold(0.0, f64::max);
        Self {
            experiment: point.experiment.clone(),
            variant: point.variant.clone(),
            rate: point.rate,
            policy: policy.to_owned(),
            mean_us: runs.iter().map(|run| run.summary.decision_us.mean).sum::<f64>() / count,
            p99_us: most(|run| run.summary.decision_us.p99),
            share_of_core: runs.iter().map(Outcome::deciding_share).sum::<f64>() / count,
            wall_s: most(|run| run.summary.wall_s),
        }
    }
}

/// Where this project's policy is worse than another one.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// Where.
    pub title: String,
    /// Factor on the arrival rates; zero for a capacity.
    pub rate: f64,
    /// Who is better.
    pub policy: String,
    /// Ours over theirs.
    pub ratio: f64,
    /// Violations of the worst tenant, theirs and ours.
    pub violations: (f64, f64),
    /// True if the other one keeps the service level of every tenant.
    pub keeps: bool,
}

/// The policy that everything is about.
pub const OURS: &str = "slice-fill";

impl Evaluation {
    /// Every point at which another policy has more tokens than ours, and every capacity that is
    /// greater than ours, worst first.
    pub fn losses(&self) -> Vec<Loss> {
        let mut losses = Vec::new();
        for point in &self.points {
            let Some(ours) = point.of(OURS) else { continue };
            let better = |theirs: &&Policy| theirs.tokens.mean > ours.tokens.mean;
            for theirs in point.policies.iter().filter(better) {
                losses.push(Loss {
                    title: point.title(),
                    rate: point.rate,
                    policy: theirs.policy.clone(),
                    ratio: ours.tokens.mean / theirs.tokens.mean,
                    violations: (theirs.violations, ours.violations),
                    keeps: keeps_service_level(point, theirs),
                });
            }
        }
        for of in &self.capacities {
            let Some(ours) = of.policies.iter().find(|capacity| capacity.policy == OURS) else { continue };
            let mine = ours.at_9_percent.unwrap_or(0.0);
            for theirs in &of.policies {
                let rate = theirs.at_9_percent.unwrap_or(0.0);
                if rate > mine {
                    losses.push(Loss {
                        title: format!("{} (at 9 %)", title(&of.experiment, &of.variant)),
                        rate: 0.0,
                        policy: theirs.policy.clone(),
                        ratio: mine / rate,
                        violations: (0.09, 0.09),
                        keeps: true,
                    });
                }
            }
        }
        losses.sort_by(|one, other| one.ratio.total_cmp(&other.ratio));
        losses
    }

    /// The policies that ran, in the order in which points name them first.
    pub fn policies(&self) -> Vec<&str> {
        let mut seen = BTreeMap::new();
        for (index, policy) in self.points.iter().flat_map(|point| &point.policies).enumerate() {
            seen.entry(policy.policy.as_str()).or_insert(index);
        }
        let mut names: Vec<_> = seen.into_iter().collect();
        names.sort_by_key(|&(_, index)| index);
        names.into_iter().map(|(name, _)| name).collect()
    }
}
