//! Lending mode `strict`: owners run as if they were alone.
//!
//! Quantiles are of several runs together, and those alone are taken at the upper end of their
//! interval of confidence: under `static` itself, arrivals that are later by up to 1 ms move the 99th
//! percentile by more than 2 % either way, since other iterations are formed. What is done to the same
//! request in both runs has no such noise.

use std::ops::RangeInclusive;

use slicescheduler::scenario::{Class, LendingMode, Scenario};
use slicescheduler_gmg::id::DeviceId;
use slicescheduler_gmg::plan::Rank;
use slicescheduler_gmg::units::Nanos;

use crate::rig::{Faults, ROOMY, as_they_are, driven, replayed, simulated, small};
use crate::witness::Decided;

const RUNS: RangeInclusive<u64> = 1..=4;

/// The window in which a guest can not be recalled, and one operator of its iteration.
const ONE_GUEST_OPERATOR: Nanos = Nanos::ms(1);

/// TTFT and TPOT of every request of one tenant, by run and arrival. TPOT is zero for one token.
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
        let mut run = driven(&scenario, policy, |setup| simulated(&scenario, setup), Nanos::secs(10), |_| {});
        run.completed.sort_by_key(|done| (done.arrival, done.request));
        for done in &run.completed {
            let of = &mut latencies[done.tenant.index()];
            of.ttft.push(done.first_token - done.arrival);
            let steps = u64::from(done.produced - 1);
            of.tpot.push(if steps == 0 { Nanos::ZERO } else { (done.last_token - done.first_token).scale(1, steps) });
        }
    }
    latencies
}

/// A quantile by nearest rank, `deviations` above it: the rank of a quantile `q` among `n` has a
/// deviation of `sqrt(n q (1 - q))`.
fn quantile(values: &[Nanos], percent: usize, deviations: f64) -> Nanos {
    let mut sorted: Vec<_> = values.iter().copied().filter(|value| !value.is_zero()).collect();
    sorted.sort_unstable();
    let deviation = ((sorted.len() * percent * (100 - percent)) as f64).sqrt() / 100.0;
    let rank = (sorted.len() * percent).div_ceil(100) + (deviations * deviation) as usize;
    sorted[rank.min(sorted.len()) - 1]
}

/// The median of what each request lost, in nanoseconds.
fn median_loss(alone: &[Nanos], lent: &[Nanos]) -> i64 {
    let mut losses: Vec<_> =
        alone.iter().zip(lent).map(|(alone, lent)| lent.get() as i64 - alone.get() as i64).collect();
    losses.sort_unstable();
    losses[losses.len() / 2]
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
        assert!(alone.ttft.len() == lent.ttft.len() && alone.ttft.len() > 1000, "{}", tenant.name);
        for (what, alone, lent) in [("TTFT", &alone.ttft, &lent.ttft), ("TPOT", &alone.tpot, &lent.tpot)] {
            let loss = median_loss(alone, lent);
            if loss > ONE_GUEST_OPERATOR.get() as i64 {
                harm.push(format!("{}: {what} of the median request is {loss} ns longer", tenant.name));
            }
            for percent in [50, 99] {
                let (alone, lent) = (quantile(alone, percent, 2.0), quantile(lent, percent, 0.0));
                if lent > alone + alone.scale(2, 100).max(ONE_GUEST_OPERATOR) {
                    harm.push(format!("{}: {what} p{percent} {alone} at most alone, {lent}", tenant.name));
                }
            }
        }
    }
    assert!(harm.is_empty(), "{harm:#?}");
}

/// An owner that does not lend its slack waits for one operator of a guest: those of prompts from elsewhere are as
/// short there as best-effort ones (`guest_tokens`, 512). Owners that lend theirs take whole prompts.
#[test]
fn prompts_from_elsewhere_are_cut_on_devices_of_strict_owners() {
    const STRICT: DeviceId = DeviceId(1);
    let (mut cut, mut whole) = (0, 0);
    for seed in RUNS {
        let scenario = small(ROOMY, Nanos::secs(20), seed);
        let (_, seen) = replayed(&scenario, "slice-fill", &Faults::default(), as_they_are());
        for (at, decided) in &seen.decided {
            let Decided::Launch { spec, lane, rank: Rank::GuestLatency, .. } = decided else { continue };
            let tokens: u32 = spec.rows.iter().map(|row| row.tokens).sum();
            if lane.device == STRICT {
                assert!(tokens <= 512, "seed {seed}, at {at}: {tokens} tokens of a guest");
                cut += u32::from(tokens == 512);
            } else {
                whole += u32::from(tokens > 512);
            }
        }
    }
    assert!(cut > 10 && whole > 10, "{cut} prompts were cut, {whole} were not");
}
