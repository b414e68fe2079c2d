//! Settings of baselines, found with the same effort for each.
//!
//! A baseline has parameters with a short list of values each. The same number of settings is tried for
//! every one, its usual one first, then points of the grid in an order that a seed decides, so that the
//! search favours nobody's parameter. A setting is judged on scenarios and seeds that are not reported:
//! by the geometric mean of its token throughput over that of static containers, among those that keep
//! the service level if there are any, else by the least rate of violations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::evaluate::EvaluateError;
use crate::evaluate::run::{Base, Case, Runner};
use crate::evaluate::statistics::geometric_mean;
use crate::evaluate::suite::Tuning;
use crate::replay::{Parameter, parameters, policy_names};
use crate::scenario::OptionValue;
use crate::workload::rng::Seed;

/// A setting of a policy.
pub type Options = BTreeMap<String, OptionValue>;

/// What tuning gave for one policy.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Tuned {
    /// The policy.
    pub policy: String,
    /// The best setting found; empty is the usual one.
    pub options: Options,
    /// Settings that were tried.
    pub tried: usize,
    /// Token throughput of the best over that of static containers, geometric mean.
    pub ratio: f64,
    /// The same of the usual setting.
    pub usual_ratio: f64,
    /// Violations of the worst tenant under the best, over all tuning runs.
    pub violations: f64,
}

/// The share of late requests up to which a setting keeps the service level, or a point more than static
/// containers if they are above that.
const TOLERANCE: f64 = 0.09;

/// What is tried for one policy.
struct Candidates {
    policy: &'static str,
    settings: Vec<Options>,
}

/// Tunes every policy that has parameters on `bases`.
pub(super) fn tune(runner: &Runner<'_>, tuning: &Tuning, bases: &[Base]) -> Result<Vec<Tuned>, EvaluateError> {
    let points: Vec<_> =
        bases.iter().flat_map(|base| tuning.seeds.iter().map(|&seed| base.at(tuning.rate, seed))).collect();
    let candidates: Vec<Candidates> = policy_names()
        .iter()
        .map(|policy| Candidates { policy, settings: settings(&parameters(policy), tuning.evaluations) })
        .filter(|candidates| candidates.settings.len() > 1)
        .collect();
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    let reference: Vec<Case> = points.iter().map(|point| point.case("static", &Options::new())).collect();
    let each = candidates.iter().flat_map(|of| of.settings.iter().map(move |setting| (of.policy, setting)));
    let cases = each.flat_map(|(policy, setting)| points.iter().map(move |point| point.case(policy, setting)));
    let cases: Vec<Case> = reference.into_iter().chain(cases).collect();
    let outcomes = runner.all(&cases)?;
    let (reference, mut rest) = outcomes.split_at(points.len());
    let mut tuned = Vec::new();
    for Candidates { policy, settings } in candidates {
        let mut scores = Vec::new();
        for _ in &settings {
            let (of_setting, others) = rest.split_at(points.len().min(rest.len()));
            rest = others;
            let pairs = || of_setting.iter().zip(reference);
            let ratios =
                pairs().map(|(run, fixed)| run.summary.token_throughput / fixed.summary.token_throughput.max(1e-9));
            let worst = of_setting.iter().map(|run| run.summary.sla_violation_rate).fold(0.0, f64::max);
            let keeps = pairs().all(|(run, fixed)| {
                run.summary.sla_violation_rate <= TOLERANCE.max(fixed.summary.sla_violation_rate + 0.01)
            });
            scores.push(Score { keeps, ratio: geometric_mean(ratios).unwrap_or(0.0), violations: worst });
        }
        let Some(best) =
            (0..scores.len()).reduce(|best, next| if scores[next].beats(&scores[best]) { next } else { best })
        else {
            continue;
        };
        tuned.push(Tuned {
            policy: policy.to_owned(),
            options: settings[best].clone(),
            tried: settings.len(),
            ratio: scores[best].ratio,
            usual_ratio: scores[0].ratio,
            violations: scores[best].violations,
        });
    }
    Ok(tuned)
}

#[derive(Clone, Copy, Debug)]
struct Score {
    keeps: bool,
    ratio: f64,
    violations: f64,
}

impl Score {
    fn beats(&self, other: &Self) -> bool {
        match (self.keeps, other.keeps) {
            (true, true) => self.ratio > other.ratio,
            (false, false) => self.violations < other.violations,
            (keeps, _) => keeps,
        }
    }
}

/// The usual setting and points of the grid, `count` in all, or the whole grid if it has fewer.
fn settings(parameters: &[Parameter], count: usize) -> Vec<Options> {
    let size = parameters.iter().map(|parameter| parameter.values.len().max(1)).fold(1, usize::saturating_mul);
    let point = |mut index: usize| {
        let mut options = Options::new();
        for Parameter { name, values } in parameters {
            let radix = values.len().max(1);
            if let Some(value) = values.get(index % radix) {
                options.insert((*name).to_owned(), value.clone());
            }
            index /= radix;
        }
        options
    };
    let mut settings = vec![Options::new()];
    if parameters.is_empty() {
        return settings;
    }
    let mut order: Vec<usize> = (0..size.min(1 << 16)).collect();
    order.sort_by_key(|&index| Seed(0).number(index as u64));
    settings.extend(order.into_iter().map(point).take(count.saturating_sub(1)));
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_the_usual_one_and_different_points_of_the_grid() {
        let values = |values: &[i64]| values.iter().map(|value| OptionValue::Integer(*value)).collect();
        let parameters =
            [Parameter { name: "a", values: values(&[1, 2, 3]) }, Parameter { name: "b", values: values(&[1, 2]) }];
        let all = settings(&parameters, 100);
        assert_eq!((all.len(), all[0].len()), (7, 0));
        let unique: std::collections::BTreeSet<String> = all.iter().map(|options| format!("{options:?}")).collect();
        assert_eq!(unique.len(), 7);
        assert_eq!(settings(&parameters, 4), all[..4]);
        assert_eq!(settings(&[], 4).len(), 1);
    }

    #[test]
    fn keeping_the_service_level_goes_before_throughput() {
        let score = |keeps, ratio, violations| Score { keeps, ratio, violations };
        assert!(score(true, 1.0, 0.05).beats(&score(false, 3.0, 0.5)));
        assert!(score(true, 1.2, 0.05).beats(&score(true, 1.1, 0.0)));
        assert!(score(false, 1.0, 0.2).beats(&score(false, 2.0, 0.3)));
    }
}
