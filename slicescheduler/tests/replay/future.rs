//! No policy sees the future: two runs that differ after a moment only decide alike before it.

use proptest::prelude::*;
use slicescheduler_gmg::units::Nanos;

use crate::rig::{Faults, Lengths, POLICIES, ROOMY, TIGHT, as_they_are, replayed, small};
use crate::witness::{Decided, Witness};

const LENGTH: Nanos = Nanos::secs(6);

/// Output lengths of a world that was like the one that `seen` saw until `time`: requests that had
/// ended keep theirs, all others produce at least one token more than they had.
fn another_future(seen: &Witness, time: Nanos, change: u64) -> Lengths {
    let produced = seen.produced_before(time);
    Box::new(move |request, output| {
        let other = (request.0.wrapping_add(change).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % 300;
        match produced.get(&request) {
            Some((_, true)) => output,
            Some((tokens, false)) => tokens + 1 + other,
            None => 1 + other,
        }
    })
}

type Decision = (Nanos, Decided);

/// Where two sequences of decisions part.
fn difference<'a>(one: &'a [Decision], other: &'a [Decision]) -> Option<(Option<&'a Decision>, Option<&'a Decision>)> {
    let at = (0..one.len().max(other.len())).find(|&at| one.get(at) != other.get(at))?;
    Some((one.get(at), other.get(at)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn arrivals_after_a_moment_change_no_decision_before_it(
        seed in 0u64..1000,
        millis in 1000u64..5000,
        usable in prop::sample::select(vec![TIGHT, ROOMY]),
    ) {
        let time = Nanos::ms(millis);
        for policy in POLICIES {
            let (_, whole) = replayed(&small(usable, LENGTH, seed), policy, &Faults::default(), as_they_are());
            let (_, cut) = replayed(&small(usable, time, seed), policy, &Faults::default(), as_they_are());
            let apart = difference(whole.decided_before(time), cut.decided_before(time));
            prop_assert!(apart.is_none(), "{policy}: {apart:?}");
        }
    }

    #[test]
    fn lengths_of_unfinished_answers_change_no_decision_before_the_moment(
        seed in 0u64..1000,
        millis in 1000u64..5000,
        change in any::<u64>(),
        usable in prop::sample::select(vec![TIGHT, ROOMY]),
    ) {
        let (scenario, time) = (small(usable, LENGTH, seed), Nanos::ms(millis));
        for policy in POLICIES {
            let (_, first) = replayed(&scenario, policy, &Faults::default(), as_they_are());
            let (_, second) = replayed(&scenario, policy, &Faults::default(), another_future(&first, time, change));
            let apart = difference(first.decided_before(time), second.decided_before(time));
            prop_assert!(apart.is_none(), "{policy}: {apart:?}");
        }
    }
}

#[test]
fn what_is_changed_does_matter_afterwards() {
    let time = Nanos::secs(3);
    for policy in POLICIES {
        let (_, first) = replayed(&small(ROOMY, LENGTH, 1), policy, &Faults::default(), as_they_are());
        let (_, longer) =
            replayed(&small(ROOMY, LENGTH, 1), policy, &Faults::default(), another_future(&first, time, 7));
        let (_, cut) = replayed(&small(ROOMY, time, 1), policy, &Faults::default(), as_they_are());
        assert!(first.decided_before(time).len() > 500, "{policy}: {}", first.decided_before(time).len());
        assert_ne!(first.decided, longer.decided, "{policy}");
        assert_ne!(first.decided, cut.decided, "{policy}");
    }
}
