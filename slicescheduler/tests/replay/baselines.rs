//! Every baseline of the registry serves a whole replay by the rules.

use slicescheduler_gmg::units::Nanos;
use slicescheduler_scheduler::baseline::BASELINES;

use crate::rig::{Faults, ROOMY, TIGHT, as_they_are, replayed, small};

#[test]
fn every_baseline_keeps_the_rules_and_starves_nobody() {
    for baseline in BASELINES {
        for (usable, seed) in [(TIGHT, 1), (ROOMY, 2)] {
            let scenario = small(usable, Nanos::secs(4), seed);
            let (record, seen) = replayed(&scenario, baseline.name, &Faults::default(), as_they_are());
            assert!(seen.complaints.is_empty(), "{}, seed {seed}: {:#?}", baseline.name, seen.complaints);
            for tenant in &record.summary.tenants {
                assert!(tenant.completed > 0, "{}, seed {seed}: nothing of {} ended", baseline.name, tenant.name);
            }
        }
    }
}
