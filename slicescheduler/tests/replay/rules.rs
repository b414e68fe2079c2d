//! The rules hold in every run, under every policy, for every seed, and they are put to the test.

use crate::rig::{Faults, POLICIES, ROOMY, TIGHT, as_they_are, replayed, small};
use crate::witness::Counts;
use slicescheduler_gmg::units::Nanos;

#[test]
fn commands_and_events_keep_the_rules_under_every_policy() {
    for (usable, seed) in [(TIGHT, 1), (TIGHT, 2), (ROOMY, 3), (ROOMY, 4), (ROOMY, 5)] {
        for policy in POLICIES {
            let (_, seen) = replayed(&small(usable, Nanos::secs(20), seed), policy, &Faults::default(), as_they_are());
            assert!(seen.complaints.is_empty(), "{policy}, seed {seed}: {:#?}", seen.complaints);
            let Counts { launches, recalls, guest_spans, overflow_spans, yields, ended, .. } = seen.counts;
            assert!(launches > 1000 && ended > 100, "{policy}: {:?}", seen.counts);
            match policy {
                "static" => assert_eq!((recalls, guest_spans, yields), (0, 0, 0)),
                "idle-priority" => assert_eq!((recalls, overflow_spans, yields), (0, 0, 0)),
                _ => assert!(recalls > 10 && guest_spans > 100 && yields > 10, "{:?}", seen.counts),
            }
        }
    }
}
