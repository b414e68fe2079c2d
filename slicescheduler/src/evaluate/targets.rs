//! What is to be reached, as rows: a name that stays, a figure, and its bound.

use serde::{Deserialize, Serialize};

use crate::bound::efficiency;
use crate::evaluate::results::{Capacities, Evaluation, OURS, Point, Policy, title};
use crate::evaluate::statistics::geometric_mean;
use crate::evaluate::suite::Group;
use crate::report::TenantSummary;

/// A figure beside what it should be.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Row {
    /// Which; stable.
    pub name: String,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// What is to be reached.
    pub bound: f64,
    /// True if more is better.
    pub more_is_better: bool,
    /// Where it is, and against whom, for a figure that is an extreme; empty otherwise.
    pub note: String,
}

impl Row {
    /// True if the bound is reached.
    pub fn is_met(&self) -> bool {
        self.is_met_by(self.value)
    }

    fn is_met_by(&self, value: f64) -> bool {
        if self.more_is_better { value >= self.bound } else { value <= self.bound }
    }

    /// The figure with three decimals, and more where it would look to be on the other side of its bound.
    pub(super) fn figure(&self) -> String {
        let mut shown = (3..17).map(|decimals| format!("{:.decimals$}", self.value));
        let agrees = |text: &String| text.parse().is_ok_and(|shown| self.is_met_by(shown) == self.is_met());
        shown.find(agrees).unwrap_or_else(|| self.value.to_string())
    }
}

/// Slices exist where owners leave at least this share of device time idle.
const SLICES: f64 = 0.2;

/// A latency may grow by this, in milliseconds, whatever it is: the time of the guest's operator that is
/// beyond recall.
const GUEST_OPERATOR_MS: f64 = 0.3;

/// The rate of a workload itself.
const OWN_RATE: f64 = 1.0;

/// The rows that can be computed from what was run. Rows of experiments that were not run are absent.
pub(super) fn rows(evaluation: &Evaluation) -> Vec<Row> {
    let mut rows = Rows(Vec::new());
    for (mode, strict) in [("slo_slack", false), ("strict", true)] {
        let ratios = workloads(evaluation).filter(|point| point.strict == strict && has_slices(point));
        let ratios: Vec<f64> = ratios.filter_map(|point| Some(over_static(point)?.0)).collect();
        rows.at_least(
            format!("{mode}: tokens over static, geometric mean"),
            geometric_mean(ratios.iter().copied()),
            1.8,
        );
        rows.at_least(format!("{mode}: tokens over static, best case"), greatest(ratios), 2.29);
    }
    let parts: Vec<[f64; 3]> = workloads(evaluation).filter_map(|point| Some(over_static(point)?.1)).collect();
    for (index, part) in ["input", "output", "FLOP-weighted"].into_iter().enumerate() {
        rows.at_least(format!("{part} tokens over static, least"), least(parts.iter().map(|part| part[index])), 0.98);
    }
    let saturated = evaluation.points.iter().filter(|point| point.experiment == "saturated");
    rows.at_least(
        "every tenant saturated: tokens over static, least".into(),
        least(saturated.filter_map(|point| Some(over_static(point)?.0))),
        0.98,
    );
    let slack = workloads(evaluation).filter(|point| !point.strict && has_slices(point));
    rows.at_least(
        "slo_slack: gained over static, of what the bound leaves, geometric mean".into(),
        geometric_mean(slack.filter_map(gained_of_bound)),
        0.85,
    );
    over_baselines(evaluation, &mut rows);
    service_levels(evaluation, &mut rows);
    let everywhere = evaluation.points.iter().filter_map(|point| point.of(OURS));
    let violations: u64 = everywhere.map(|ours| ours.memory_violations).sum();
    rows.at_most("memory violations, in all runs".into(), Some(violations as f64), 0.0, "violations");
    rows.at_least(
        "strict: best-effort tokens over (idle device time x best-effort rate of its own devices)".into(),
        geometric_mean(workloads(evaluation).filter(|point| point.strict).filter_map(strict_efficiency)),
        0.92,
    );
    let shares = evaluation.optima.iter().filter_map(|optimum| {
        let note = format!("{}, seed {}", optimum.case, optimum.seed);
        Some((optimum.share(OURS)?, note))
    });
    let shares: Vec<_> = shares.collect();
    rows.at_least(
        "small cases: tokens over those of the oracle, geometric mean".into(),
        geometric_mean(shares.iter().map(|(share, _)| *share)),
        0.9,
    );
    rows.least_of("small cases: tokens over those of the oracle, least".into(), shares, 0.9);
    rows.0
}

fn workloads(evaluation: &Evaluation) -> impl Iterator<Item = &Point> {
    evaluation.points.iter().filter(|point| point.group == Group::Workload)
}

/// The share of what could be gained over static containers that is gained.
fn gained_of_bound(point: &Point) -> Option<f64> {
    efficiency(point.of(OURS)?.tokens.mean, point.of("static")?.tokens.mean, point.bound?)
}

/// A better policy is possible where the bound leaves it at least this, against the best baseline.
const ROOM: f64 = 1.1;

fn has_slices(point: &Point) -> bool {
    point.of("static").is_some_and(|fixed| fixed.idle >= SLICES)
}

/// Tokens, and input, output and FLOP-weighted tokens, of ours over static containers.
fn over_static(point: &Point) -> Option<(f64, [f64; 3])> {
    let ratios = point.of(OURS)?.over_static?;
    Some((ratios.tokens.mean, [ratios.input, ratios.output, ratios.flop_weighted]))
}

/// True if `policy` keeps the service level of every tenant: at most 9 % late, or a point more than static
/// containers where they have more; and, where tenants lend strictly, latencies as if they were alone.
pub(super) fn keeps_service_level(point: &Point, policy: &Policy) -> bool {
    let Some(fixed) = point.of("static") else { return policy.violations <= 0.09 };
    let alone = || LATENCIES.iter().all(|(_, of)| growth(policy, fixed, *of).is_none_or(|growth| growth <= 2.0));
    policy.violations <= 0.09_f64.max(fixed.violations + 0.01) && (!point.strict || alone())
}

fn over_baselines(evaluation: &Evaluation, rows: &mut Rows) {
    let over = |point: &Point, keeps: fn(&Point, &Policy) -> bool| -> Option<(f64, String, bool)> {
        let others = point.policies.iter().filter(|theirs| theirs.policy != OURS && keeps(point, theirs));
        let best = others.max_by(|one, other| one.tokens.mean.total_cmp(&other.tokens.mean))?;
        let note = format!("{}, rate {}, {}", point.title(), point.rate, best.policy);
        let has_room = point.bound.is_none_or(|bound| bound >= ROOM * best.tokens.mean);
        Some((point.of(OURS)?.tokens.mean / best.tokens.mean, note, has_room))
    };
    // Where no tuned baseline ran, the best of the others is none.
    let is_tuned = |policy: &str| policy != OURS && evaluation.tuned.iter().any(|tuned| tuned.policy == policy);
    let has_tuned = |point: &&Point| point.policies.iter().any(|policy| is_tuned(&policy.policy));
    let slack = workloads(evaluation).filter(|point| !point.strict).filter(has_tuned);
    let any: Vec<_> = slack.filter_map(|point| over(point, |_, _| true)).collect();
    let kept: Vec<_> = workloads(evaluation).filter_map(|point| over(point, keeps_service_level)).collect();
    for (of, ratios) in [("the best tuned baseline", any), ("the best that keeps the service level", kept)] {
        let roomy = ratios.iter().filter(|(_, _, has_room)| *has_room);
        rows.at_least(
            format!("tokens over {of} where the bound leaves 10 %, geometric mean"),
            geometric_mean(roomy.map(|(ratio, ..)| *ratio)),
            1.1,
        );
        let ratios = ratios.into_iter().map(|(ratio, note, _)| (ratio, note)).collect();
        rows.least_of(format!("tokens over {of}, least"), ratios, 1.0);
    }
    for (limit, of) in [("9 %", false), ("1 %", true)] {
        let tuned = evaluation.capacities.iter().filter(|all| all.policies.iter().any(|one| is_tuned(&one.policy)));
        let ratios: Vec<_> = tuned.filter_map(|all| capacity_ratio(all, of)).collect();
        rows.at_least(
            format!("capacity at {limit} over the best tuned baseline, geometric mean"),
            geometric_mean(ratios.iter().map(|(ratio, _)| *ratio)),
            1.2,
        );
        rows.least_of(format!("capacity at {limit} over the best tuned baseline, least"), ratios, 1.0);
    }
}

/// Our capacity over the greatest of the others.
fn capacity_ratio(all: &Capacities, one_percent: bool) -> Option<(f64, String)> {
    let of = |policy: &crate::evaluate::Capacity| if one_percent { policy.at_1_percent } else { policy.at_9_percent };
    let ours = of(all.policies.iter().find(|policy| policy.policy == OURS)?)?;
    let others = all.policies.iter().filter(|policy| policy.policy != OURS);
    let (rate, best) =
        others.filter_map(|policy| Some((of(policy)?, policy))).max_by(|one, other| one.0.total_cmp(&other.0))?;
    Some((ours / rate, format!("{}, {}", title(&all.experiment, &all.variant), best.policy)))
}

fn service_levels(evaluation: &Evaluation, rows: &mut Rows) {
    let own = || workloads(evaluation).filter(|point| point.rate == OWN_RATE);
    let pairs = || own().filter_map(|point| Some((point.of(OURS)?, point.of("static")?)));
    rows.at_most(
        "violations of the worst tenant at the workload's own rate".into(),
        greatest(pairs().map(|(ours, _)| 100.0 * ours.violations)),
        9.0,
        "%",
    );
    rows.at_most(
        "violations of the worst tenant above static, at the workload's own rate".into(),
        greatest(pairs().map(|(ours, fixed)| 100.0 * (ours.violations - fixed.violations))),
        1.0,
        "points",
    );
    for (name, of) in LATENCIES {
        let strict = own().filter(|point| point.strict);
        let grown = strict.filter_map(|point| growth(point.of(OURS)?, point.of("static")?, of));
        rows.at_most(
            format!("strict: {name} of an owner above running alone, beyond one guest operator, greatest"),
            greatest(grown),
            2.0,
            "%",
        );
    }
}

/// A latency of a tenant, in milliseconds.
type Latency = fn(&TenantSummary) -> f64;

const LATENCIES: [(&str, Latency); 4] = [
    ("TTFT p50", |tenant| tenant.ttft_ms.p50),
    ("TTFT p99", |tenant| tenant.ttft_ms.p99),
    ("TPOT p50", |tenant| tenant.tpot_ms.p50),
    ("TPOT p99", |tenant| tenant.tpot_ms.p99),
];

/// By how much a latency of the worst latency-sensitive tenant is above that under static containers, in
/// percent; nothing where it is less than a guest's operator.
fn growth(policy: &Policy, fixed: &Policy, of: Latency) -> Option<f64> {
    let sensitive = policy.tenants.iter().filter(|tenant| tenant.class == "latency-sensitive");
    greatest(sensitive.filter_map(|tenant| {
        let alone = of(fixed.tenants.iter().find(|other| other.name == tenant.name)?);
        let longer = of(tenant) - alone;
        Some(if longer <= GUEST_OPERATOR_MS { 0.0 } else { 100.0 * longer / alone })
    }))
}

/// What best-effort tenants gained over static containers, over what their own devices would have done
/// in the time that owners left idle.
fn strict_efficiency(point: &Point) -> Option<f64> {
    let (ours, fixed) = (point.of(OURS)?, point.of("static")?);
    let best_effort = |policy: &Policy| -> f64 {
        policy.tenants.iter().filter(|tenant| tenant.class == "best-effort").map(|tenant| tenant.token_throughput).sum()
    };
    let rate = best_effort(fixed) / f64::from(point.best_effort_devices);
    let possible = f64::from(point.devices) * fixed.idle * rate;
    let gained = best_effort(ours) - best_effort(fixed);
    (possible.is_finite() && possible > 0.0 && gained > 0.0).then(|| gained / possible)
}

fn least(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    values.into_iter().reduce(f64::min)
}

fn greatest(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    values.into_iter().reduce(f64::max)
}

struct Rows(Vec<Row>);

impl Rows {
    fn push(&mut self, name: String, value: Option<f64>, unit: &str, bound: f64, more_is_better: bool) {
        if let Some(value) = value {
            self.0.push(Row { name, value, unit: unit.to_owned(), bound, more_is_better, note: String::new() });
        }
    }

    fn at_least(&mut self, name: String, value: Option<f64>, bound: f64) {
        self.push(name, value, "x", bound, true);
    }

    /// The least of figures that say where they are.
    fn least_of(&mut self, name: String, values: Vec<(f64, String)>, bound: f64) {
        if let Some((value, note)) = values.into_iter().min_by(|one, other| one.0.total_cmp(&other.0)) {
            self.at_least(name, Some(value), bound);
            if let Some(row) = self.0.last_mut() {
                row.note = note;
            }
        }
    }

    fn at_most(&mut self, name: String, value: Option<f64>, bound: f64, unit: &str) {
        self.push(name, value, unit, bound, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::{Capacity, Interval, Options, Ratios, Tuned};
    use crate::report::LatencyFigures;

    fn tenant(name: &str, class: &str, tokens: f64, ttft_ms: f64) -> TenantSummary {
        TenantSummary {
            name: name.into(),
            class: class.into(),
            sla_violation_rate: 0.0,
            ttft_ms: LatencyFigures { p50: ttft_ms, p99: 4.0 * ttft_ms },
            tpot_ms: LatencyFigures { p50: 10.0, p99: 10.0 },
            token_throughput: tokens,
            arrived: 10,
            completed: 10,
            preemptions: 0,
            prefix_cache: None,
        }
    }

    /// A policy whose best-effort tenant has all tokens but 100.
    fn policy(name: &str, tokens: f64, violations: f64, ttft_ms: f64) -> Policy {
        let one = |mean| Interval { mean, low: mean, high: mean, samples: 1 };
        let ratio = tokens / 500.0;
        Policy {
            policy: name.into(),
            tokens: one(tokens),
            over_static: Some(Ratios { tokens: one(ratio), input: ratio, output: 0.9, flop_weighted: ratio }),
            violations,
            memory_violations: 0,
            recovered: 0.5,
            idle: 0.5,
            goodput: tokens,
            recalls_per_s: 0.0,
            tenants: vec![
                tenant("chat", "latency-sensitive", 100.0, ttft_ms),
                tenant("batch", "best-effort", tokens - 100.0, 0.0),
            ],
            slices: Vec::new(),
        }
    }

    /// Four devices, one of them of the backlog, half of the time idle.
    fn point(strict: bool, policies: Vec<Policy>) -> Point {
        Point {
            experiment: "small".into(),
            group: Group::Workload,
            variant: String::new(),
            strict,
            rate: 1.0,
            devices: 4,
            best_effort_devices: 1,
            window_s: 60.0,
            bound: Some(2000.0),
            policies,
        }
    }

    fn evaluation(points: Vec<Point>) -> Evaluation {
        let capacity = |policy: &str, nine, one| Capacity {
            policy: policy.into(),
            at_9_percent: nine,
            at_1_percent: one,
            tried: Vec::new(),
        };
        Evaluation {
            schema: 1,
            suite: "small".into(),
            stand_ins: Vec::new(),
            tuned: vec![Tuned {
                policy: "other".into(),
                options: Options::new(),
                tried: 1,
                ratio: 1.0,
                usual_ratio: 1.0,
                violations: 0.0,
            }],
            points,
            capacities: vec![Capacities {
                experiment: "small".into(),
                variant: String::new(),
                least: 1.0,
                most: 8.0,
                policies: vec![
                    capacity("static", Some(1.0), None),
                    capacity("other", Some(2.0), Some(1.0)),
                    capacity(OURS, Some(3.0), None),
                ],
            }],
            optima: Vec::new(),
            targets: Vec::new(),
            unsupported: Vec::new(),
        }
    }

    fn row(rows: &[Row], name: &str) -> Row {
        rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no row {name}")).clone()
    }

    #[test]
    fn ratios_are_to_static_and_to_the_best_of_the_others() {
        let policies = vec![
            policy("static", 500.0, 0.0, 100.0),
            policy("fast-and-late", 2000.0, 0.5, 100.0),
            policy("other", 800.0, 0.05, 100.0),
            policy(OURS, 1000.0, 0.02, 100.0),
        ];
        let evaluation = evaluation(vec![point(false, policies)]);
        let rows = rows(&evaluation);
        assert!((row(&rows, "slo_slack: tokens over static, geometric mean").value - 2.0).abs() < 1e-12);
        assert_eq!(row(&rows, "output tokens over static, least").value, 0.9);
        assert!(!row(&rows, "output tokens over static, least").is_met());
        assert_eq!(row(&rows, "tokens over the best tuned baseline, least").value, 0.5);
        let kept = row(&rows, "tokens over the best that keeps the service level, least");
        assert_eq!((kept.value, kept.note.as_str()), (1.25, "small, rate 1, other"));
        let gained = row(&rows, "slo_slack: gained over static, of what the bound leaves, geometric mean");
        assert!((gained.value - 1.0 / 3.0).abs() < 1e-12, "500 of 1500");
        let roomy = "where the bound leaves 10 %, geometric mean";
        assert_eq!(row(&rows, &format!("tokens over the best that keeps the service level {roomy}")).value, 1.25);
        let none = format!("tokens over the best tuned baseline {roomy}");
        assert!(rows.iter().all(|row| row.name != none), "the best reaches the bound");
        let capacity = row(&rows, "capacity at 9 % over the best tuned baseline, least");
        assert_eq!((capacity.value, capacity.note.as_str()), (1.5, "small, other"));
        assert!(rows.iter().all(|row| !row.name.starts_with("capacity at 1 %")), "ours has none at 1 %");
        let late = row(&rows, "violations of the worst tenant above static, at the workload's own rate");
        assert!((late.value - 2.0).abs() < 1e-12 && !late.is_met());
        let losses = evaluation.losses();
        assert_eq!(
            losses.iter().map(|loss| (loss.policy.as_str(), loss.keeps)).collect::<Vec<_>>(),
            [("fast-and-late", false)]
        );
    }

    // One device of the backlog does 400 tokens/s, so four that are idle half of the time could do 800; 600 more
    // than static are three quarters of that.
    #[test]
    fn strict_lending_is_held_against_the_idle_time_and_against_being_alone() {
        let policies = |ttft_ms| {
            vec![
                policy("static", 500.0, 0.0, 100.0),
                policy("nosy", 1200.0, 0.0, 103.0),
                policy(OURS, 1100.0, 0.0, ttft_ms),
            ]
        };
        let alone = rows(&evaluation(vec![point(true, policies(100.2))]));
        let efficiency = "strict: best-effort tokens over (idle device time x best-effort rate of its own devices)";
        assert!((row(&alone, efficiency).value - 0.75).abs() < 1e-12);
        let median = "strict: TTFT p50 of an owner above running alone, beyond one guest operator, greatest";
        assert_eq!(row(&alone, median).value, 0.0, "less than a guest's operator");
        // Somebody who delays owners by 3 % has not lent strictly.
        assert!((row(&alone, "tokens over the best that keeps the service level, least").value - 2.2).abs() < 1e-12);
        let late = rows(&evaluation(vec![point(true, policies(103.0))]));
        assert!((row(&late, median).value - 3.0).abs() < 1e-9 && !row(&late, median).is_met());
    }

    #[test]
    fn a_baseline_that_was_not_tuned_is_not_called_so() {
        let all = ["static", "other", OURS].map(|name| policy(name, 500.0, 0.0, 100.0)).to_vec();
        let untuned = Evaluation { tuned: Vec::new(), ..evaluation(vec![point(false, all.clone())]) };
        let without = vec![all[0].clone(), all[2].clone()];
        let not_run = Evaluation { capacities: Vec::new(), ..evaluation(vec![point(false, without)]) };
        for evaluation in [untuned, not_run] {
            let rows = rows(&evaluation);
            assert!(rows.iter().all(|row| !row.name.contains("tuned")), "{rows:?}");
            assert_eq!(row(&rows, "tokens over the best that keeps the service level, least").value, 1.0);
        }
    }

    #[test]
    fn a_figure_close_to_its_bound_is_shown_on_its_side_of_it() {
        let figure = |value, more_is_better| {
            let row =
                Row { name: "x".into(), value, unit: "x".into(), bound: 1.1, more_is_better, note: String::new() };
            row.figure()
        };
        assert_eq!([1.0997, 1.09997, 1.1].map(|value| figure(value, true)), ["1.0997", "1.09997", "1.100"]);
        assert_eq!([1.1003, 1.10003].map(|value| figure(value, false)), ["1.1003", "1.10003"]);
    }

    #[test]
    fn what_was_not_run_has_no_row() {
        let empty = Evaluation { capacities: Vec::new(), ..evaluation(Vec::new()) };
        let names: Vec<String> = rows(&empty).into_iter().map(|row| row.name).collect();
        assert_eq!(names, ["memory violations, in all runs"]);
    }
}
