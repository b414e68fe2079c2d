//! Differential: the graph and a plain model of its rules take the same random deltas and say the
//! same after each.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use slicescheduler_gmg::id::JobId;
use slicescheduler_gmg::job::StoredState;
use slicescheduler_gmg::{Effect, GmgView};
use support::digest::digest;
use support::reference::{Reference, Verdict, is_legal};
use support::stream::{Stream, steps};

fn op_states(view: &impl GmgView) -> BTreeMap<(JobId, u32), StoredState> {
    let mut jobs = Vec::new();
    view.jobs(&mut jobs);
    let segments = jobs.iter().flat_map(|&id| view.job(id).into_iter().map(move |job| (id, job)));
    segments
        .flat_map(|(id, job)| {
            job.segments.iter().flat_map(move |s| (s.first..s.end).map(move |op| ((id, op), s.state)))
        })
        .collect()
}

proptest! {
    #![proptest_config(support::cases(400))]

    #[test]
    fn every_delta_does_what_the_model_says_and_a_refused_one_nothing(steps in steps(1..250)) {
        let mut gmg = support::gmg();
        let mut reference = Reference::of(gmg.state());
        let mut stream = Stream::default();
        reference.assert_equals(gmg.state());
        for step in steps {
            let delta = stream.next(step, gmg.state());
            let (before, states) = (digest(gmg.state()), op_states(gmg.state()));
            let expected = reference.apply(&delta);
            let verdict = match gmg.apply(delta.clone()) {
                Ok(applied) => {
                    prop_assert_eq!(applied.version, gmg.version());
                    stream.note(&applied.effect);
                    if let Effect::Diverged(_) = applied.effect { Verdict::Diverged } else { Verdict::Applied }
                }
                Err(_) => Verdict::Refused,
            };
            prop_assert_eq!(verdict, expected, "{:?}", delta);
            if verdict == Verdict::Refused {
                prop_assert_eq!(&digest(gmg.state()), &before, "{:?}", delta);
            }
            reference.assert_equals(gmg.state());
            for (op, state) in op_states(gmg.state()) {
                let from = states.get(&op).copied().unwrap_or(StoredState::Pending);
                prop_assert!(is_legal(from, state), "{:?}: {:?} -> {:?} by {:?}", op, from, state, delta);
            }
        }
    }
}
