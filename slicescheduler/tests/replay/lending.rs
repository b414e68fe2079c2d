//! Lending mode `strict`: owners run as if they were alone.
//!
//! Quantiles are of several runs together, and the 99th percentile alone is taken at the upper end
//! of its interval of confidence: it is that of a dozen requests in bursts. Under `static` itself,
//! arrivals that are later by up to 1 ms move it by more than 2 % either way, since other iterations
//! are formed.

use slicescheduler::scenario::{Class, LendingMode, Scenario};
use slicescheduler_gmg::units::Nanos;

use crate::rig::{driven, simulated};

const RUNS: std::ops::RangeInclusive<u64> = 1..=4;

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
        let run = driven(&scenario, policy, |setup| simulated(&scenario, setup), Nanos::secs(10), |_| {});
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

/// A quantile by nearest rank, or the largest value that it may well have in truth: the rank of a
/// quantile `q` among `n` has a deviation of `sqrt(n q (1 - q))`, of which two are added.
fn quantile(sorted: &[Nanos], percent: usize, at_most: bool) -> Nanos {
    let deviation = ((sorted.len() * percent * (100 - percent)) as f64).sqrt() / 100.0;
    let rank = (sorted.len() * percent).div_ceil(100) + if at_most { (2.0 * deviation) as usize } else { 0 };
    sorted[rank.min(sorted.len()) - 1]
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
            for percent in [50, 90, 99] {
                let (alone, lent) = (quantile(alone, percent, percent == 99), quantile(lent, percent, false));
                if lent > alone + alone.scale(2, 100).max(ONE_GUEST_OPERATOR) {
                    harm.push(format!("{}: {what} p{percent} {alone} alone, {lent}", tenant.name));
                }
            }
        }
    }
    assert!(harm.is_empty(), "{harm:#?}");
}
