//! Lending mode `strict`: owners run as if they were alone.

use slicescheduler::report::{LatencyFigures, PolicySummary};
use slicescheduler::replay::{ReplayOptions, Silent, replay};
use slicescheduler::scenario::{LendingMode, Scenario};

/// The longest operator of a guest's iteration and the window in which it can not be recalled.
const ONE_GUEST_OPERATOR_MS: f64 = 1.0;

fn within(alone: LatencyFigures, lent: LatencyFigures) -> Result<(), String> {
    for (what, alone, lent) in [("p50", alone.p50, lent.p50), ("p99", alone.p99, lent.p99)] {
        if lent > alone + (0.02 * alone).max(ONE_GUEST_OPERATOR_MS) {
            return Err(format!("{what} {alone} ms alone, {lent} ms"));
        }
    }
    Ok(())
}

#[test]
fn strict_owners_are_as_fast_as_alone() {
    let mut scenario = Scenario::embedded().unwrap();
    scenario.set_duration("4m").unwrap();
    scenario.set_policies(["static", "slice-fill"]).unwrap();
    scenario.tenants.iter_mut().for_each(|tenant| tenant.lending = LendingMode::Strict);
    for seed in [7, 8] {
        scenario.seed = seed;
        let (summary, _) = replay(&scenario, "strict", &ReplayOptions::default(), &mut Silent).unwrap();
        let [alone, lent]: &[PolicySummary; 2] = summary.policies.as_slice().try_into().unwrap();
        let mut harmed = Vec::new();
        for (alone, lent) in alone.tenants.iter().zip(&lent.tenants).filter(|(alone, _)| alone.class != "best-effort") {
            assert!(alone.arrived > 100, "{}", alone.name);
            for (what, outcome) in
                [("TTFT", within(alone.ttft_ms, lent.ttft_ms)), ("TPOT", within(alone.tpot_ms, lent.tpot_ms))]
            {
                harmed.extend(outcome.err().map(|figures| format!("seed {seed}, {}: {what} {figures}", alone.name)));
            }
        }
        assert!(harmed.is_empty(), "{harmed:#?}");
        assert!(lent.token_throughput > 1.5 * alone.token_throughput, "slices are lent all the same");
    }
}
