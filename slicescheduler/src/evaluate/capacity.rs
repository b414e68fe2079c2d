//! The greatest rate at which every latency-sensitive tenant keeps its service level.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::evaluate::EvaluateError;
use crate::evaluate::outcome::Outcome;
use crate::evaluate::run::{Base, Runner};
use crate::evaluate::suite::Span;
use crate::evaluate::tune::Options;

/// Rates per doubling that are tried: neighbours differ by 9 %.
const STEPS_PER_OCTAVE: f64 = 8.0;

/// What a policy can serve.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Capacity {
    /// The policy.
    pub policy: String,
    /// The greatest rate at which the worst tenant violates at most 9 % of its requests; absent if that
    /// is not so at the least rate tried.
    pub at_9_percent: Option<f64>,
    /// The same for 1 %.
    pub at_1_percent: Option<f64>,
    /// Violations of the worst tenant at the rates that were tried, ascending by rate.
    pub tried: Vec<(f64, f64)>,
}

/// Violations of the worst latency-sensitive tenant, its requests of all runs together.
pub(super) fn worst_tenant(outcomes: &[Outcome]) -> f64 {
    let mut of: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    let tenants = outcomes.iter().flat_map(|outcome| &outcome.summary.tenants);
    for tenant in tenants.filter(|tenant| tenant.class == "latency-sensitive") {
        let (violated, arrived) = of.entry(&tenant.name).or_default();
        *violated += tenant.sla_violation_rate * tenant.arrived as f64;
        *arrived += tenant.arrived as f64;
    }
    of.values().map(|(violated, arrived)| violated / arrived.max(1.0)).fold(0.0, f64::max)
}

/// Searches both capacities of a policy between the ends of `span`, by halving: violations are taken to
/// grow with the rate.
pub(super) fn search(
    runner: &Runner<'_>,
    base: &Base,
    span: Span,
    seeds: &[u64],
    policy: &str,
    options: &Options,
) -> Result<Capacity, EvaluateError> {
    let last = (STEPS_PER_OCTAVE * libm::log2(span.most / span.least) + 1e-9) as usize;
    let rate = |step: usize| span.least * libm::exp2(step as f64 / STEPS_PER_OCTAVE);
    let mut known = BTreeMap::new();
    let mut violations = |step: usize| -> Result<f64, EvaluateError> {
        if let Some(&violations) = known.get(&step) {
            return Ok(violations);
        }
        let runs = seeds.iter().map(|&seed| runner.one(&base.at(rate(step), seed).case(policy, options)));
        let worst = worst_tenant(&runs.collect::<Result<Vec<_>, _>>()?);
        known.insert(step, worst);
        Ok(worst)
    };
    let nine = greatest(last, |step| violations(step).map(|worst| worst <= 0.09))?;
    // What keeps 1 % keeps 9 %.
    let one = match nine {
        Some(step) => greatest(step, |step| violations(step).map(|worst| worst <= 0.01))?,
        None => None,
    };
    Ok(Capacity {
        policy: policy.to_owned(),
        at_9_percent: nine.map(rate),
        at_1_percent: one.map(rate),
        tried: known.into_iter().map(|(step, violations)| (rate(step), violations)).collect(),
    })
}

/// The greatest step from 0 to `last` that `holds`, if all below it do and none above.
fn greatest<E>(last: usize, mut holds: impl FnMut(usize) -> Result<bool, E>) -> Result<Option<usize>, E> {
    let (mut below, mut above) = (0, last + 1);
    // Every step before `below` holds, none from `above` on.
    while below < above {
        let middle = below + (above - below) / 2;
        if holds(middle)? {
            below = middle + 1;
        } else {
            above = middle;
        }
    }
    Ok(below.checked_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halving_finds_the_last_step_that_holds() {
        for last in 0..20 {
            for end in 0..=last + 1 {
                let mut asked = 0;
                let found = greatest::<()>(last, |step| {
                    asked += 1;
                    Ok(step < end)
                });
                assert_eq!(found, Ok(end.checked_sub(1)), "{end} of {last}");
                assert!(asked <= 5);
            }
        }
    }
}
