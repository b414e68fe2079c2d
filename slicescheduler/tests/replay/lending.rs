//! Lending mode `strict`: owners run as if they were alone.
//!
//! Quantiles are of several runs together. In one run of five minutes they are of too few requests:
//! under `static` itself, arrivals that are later by up to 1 ms move the 95th and 99th percentiles
//! by more than 2 % either way, since other iterations are formed.

use slicescheduler::scenario::{Class, LendingMode, Scenario};
use slicescheduler_gmg::units::Nanos;

use crate::rig::{Faults, driven};

const RUNS: std::ops::RangeInclusive<u64> = 1..=6;

/// The window in which a guest can not be recalled, and one operator of its iteration.
const ONE_GUEST_OPERATOR: Nanos = Nanos::ms(1);

/// TTFT and TPOT of every request of one tenant.
#[derive(Clone, Debug, Default)]
struct Latencies {
    ttft: Vec<Nanos>,
    tpot: Vec<Nanos>,
}

/// By tenant, over all [`RUNS`].
fn latencies(scenario: &Scenario, policy: &str) -> Vec<Latencies> {
    let mut latencies = vec![Latencies::default(); scenario.tenants.len()];
    for seed in RUNS {
        let scenario = Scenario { seed, ..scenario.clone() };
        let run = driven(&scenario, policy, &Faults::default(), Nanos::secs(10), |_| {});
        for done in &run.completed {
            let of = &mut latencies[done.tenant.index()];
            of.ttft.push(done.first_token - done.arrival);
            if done.produced > 1 {
                of.tpot.push((done.last_token - done.first_token).scale(1, u64::from(done.produced - 1)));
            }
        }
    }
    for of in &mut latencies {
        of.ttft.sort_unstable();
        of.tpot.sort_unstable();
    }
    latencies
}

#[test]
fn strict_owners_are_as_fast_as_alone() {
    let mut scenario = Scenario::embedded().unwrap();
    scenario.set_duration("5m").unwrap();
    scenario.tenants.iter_mut().for_each(|tenant| tenant.lending = LendingMode::Strict);
    let (alone, lent) = (latencies(&scenario, "static"), latencies(&scenario, "slice-fill"));
    let mut harm = Vec::new();
    for (tenant, (alone, lent)) in scenario.tenants.iter().zip(alone.iter().zip(&lent)) {
        if tenant.class == Class::BestEffort {
            let (few, many) = (alone.ttft.len(), lent.ttft.len());
            assert!(many > 2 * few, "slices are lent all the same: {few} requests alone, {many} with them");
            continue;
        }
        assert!(alone.tpot.len() > 1000, "{}: {}", tenant.name, alone.tpot.len());
        for (what, alone, lent) in [("TTFT", &alone.ttft, &lent.ttft), ("TPOT", &alone.tpot, &lent.tpot)] {
            for percent in [50, 99] {
                let at = |sorted: &[Nanos]| sorted[(sorted.len() * percent).div_ceil(100) - 1];
                let (alone, lent) = (at(alone), at(lent));
                if lent > alone + alone.scale(2, 100).max(ONE_GUEST_OPERATOR) {
                    harm.push(format!("{}: {what} p{percent} {alone} alone, {lent}", tenant.name));
                }
            }
        }
    }
    assert!(harm.is_empty(), "{harm:#?}");
}
