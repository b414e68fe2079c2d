//! Every baseline of the registry serves a whole replay by the rules.

use slicescheduler_gmg::units::Nanos;
use slicescheduler_scheduler::baseline::BASELINES;

use crate::rig::{Faults, ROOMY, TIGHT, as_they_are, replayed, small};

#[test]
fn every_baseline_keeps_the_rules_and_starves_nobody() {
    for (usable, seed) in [(TIGHT, 1), (ROOMY, 2)] {
        let scenario = small(usable, Nanos::secs(4), seed);
        let mut alone: Option<Vec<u64>> = None;
        for baseline in BASELINES {
            let (record, seen) = replayed(&scenario, baseline.name, &Faults::default(), as_they_are());
            assert!(seen.complaints.is_empty(), "{}, seed {seed}: {:#?}", baseline.name, seen.complaints);
            let completed: Vec<u64> = record.summary.tenants.iter().map(|tenant| tenant.completed).collect();
            let alone = alone.get_or_insert_with(|| completed.clone());
            for (tenant, (&completed, &alone)) in record.summary.tenants.iter().zip(completed.iter().zip(&*alone)) {
                assert!(completed > 0 || alone == 0, "{}, seed {seed}: nothing of {}", baseline.name, tenant.name);
            }
        }
    }
}
