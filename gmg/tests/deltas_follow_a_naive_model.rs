//! Differential: the graph and a plain model of its rules take the same random deltas and say the
//! same after each; a graph that is told of runs of operators and one that is told of single ones agree.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;
use slicescheduler_gmg::id::{JobId, LaneId};
use slicescheduler_gmg::job::StoredState;
use slicescheduler_gmg::plan::{Ended, Event};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{Delta, Effect, GmgView, Intent};
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

/// What a delta about a run of operators says, operator by operator, the `nth` of which takes from
/// `started + nth * step` on; without a step, all of them take the whole time.
fn expanded(delta: &Delta, step: Option<u64>) -> Vec<Delta> {
    let each =
        |ops: &Range<u32>| if ops.is_empty() { vec![ops.clone()] } else { ops.clone().map(|op| op..op + 1).collect() };
    let time = |ops: &Range<u32>, op: u32, started: Nanos, at: Nanos| match step {
        None => (started, at),
        Some(step) => {
            let from = |op: u32| Nanos(started.get() + step * u64::from(op - ops.start));
            (from(op), if op + 1 == ops.end { at } else { from(op + 1) })
        }
    };
    let finished = |job: JobId, lane: LaneId, ops: &Range<u32>, whole: (Nanos, Nanos), ended: &[Ended]| {
        let one = |op: Range<u32>| {
            let last = op.end >= ops.end;
            let (started, at) = if op.is_empty() { whole } else { time(ops, op.start, whole.0, whole.1) };
            let ended = if last { ended.to_vec() } else { vec![] };
            Delta::from(Event::Finished { job, ops: op, lane, started, at, tokens: vec![], ended })
        };
        each(ops).into_iter().map(one).collect::<Vec<_>>()
    };
    match delta {
        Delta::Intent(Intent::Dispatch { job, ops, lane, rank }) => {
            let one = |ops| Intent::Dispatch { job: *job, ops, lane: *lane, rank: *rank }.into();
            each(ops).into_iter().map(one).collect()
        }
        Delta::Observed(Event::Finished { job, ops, lane, started, at, ended, .. }) => {
            finished(*job, *lane, ops, (*started, *at), ended)
        }
        // What is done is reported as finished; the rest comes back one by one, the last one first.
        Delta::Observed(Event::Recalled { job, lane, done, end, fate, started, at })
            if done.start < done.end && done.end < *end =>
        {
            let mut all = finished(*job, *lane, done, (*started, *at), &[]);
            all.extend((done.end..*end).rev().map(|op| {
                let (job, lane, fate, started, at) = (*job, *lane, *fate, *started, *at);
                Event::Recalled { job, lane, done: op..op, end: op + 1, fate, started, at }.into()
            }));
            all
        }
        other => vec![other.clone()],
    }
}

/// A delta whose times leave room for those of single operators between them.
fn spread(mut delta: Delta) -> Delta {
    if let Delta::Observed(Event::Finished { started, at, .. } | Event::Recalled { started, at, .. }) = &mut delta {
        (*started, *at) = (started.times(100), at.times(100));
    }
    delta
}

/// First start and last finish of every run of operators that are done in `whole` are those of its first
/// and last operator in `single`; states and lanes are equal throughout.
fn assert_runs_equal(whole: &impl GmgView, single: &impl GmgView) {
    let mut jobs = Vec::new();
    whole.jobs(&mut jobs);
    for id in jobs {
        let [left, right] = [whole.job(id).unwrap(), single.job(id).unwrap()];
        for run in left.segments.iter() {
            let at = |op| right.segments.at(op).unwrap();
            let same = |op: u32| (at(op).state, at(op).lane) == (run.state, run.lane);
            assert!((run.first..run.end).all(same), "{id}: {:?} and {:?}", left.segments, right.segments);
            if run.state == StoredState::Done {
                assert_eq!((at(run.first).start, at(run.end - 1).finish), (run.start, run.finish), "{id}");
            }
        }
    }
}

proptest! {
    #![proptest_config(support::cases(300))]

    /// Told operator by operator or run by run, a history gives the same states, bytes, offsets, blocks,
    /// high-water marks and requests after every delta; and where all operators of a run take the same time, the
    /// same runs.
    #[test]
    fn a_macro_operator_equals_its_expansion(steps in steps(1..200), step in prop::option::of(1u64..3)) {
        let (mut whole, mut single) = (support::gmg(), support::gmg());
        let mut stream = Stream::default();
        for each in steps {
            let delta = spread(stream.next(each, whole.state()));
            let applied = whole.apply(delta.clone());
            let Ok(done) = applied else { continue };
            stream.note(&done.effect);
            // What a report contradicts is not told in time, and a recall of what is not there has no parts.
            let diverged = matches!(done.effect, Effect::Diverged(_));
            let parts = match &delta {
                Delta::Observed(Event::Recalled { .. }) if diverged => vec![delta.clone()],
                _ => expanded(&delta, step.filter(|_| !diverged)),
            };
            for delta in parts {
                prop_assert!(single.apply(delta.clone()).is_ok(), "{:?}", delta);
            }
            let [left, right] = [&whole, &single].map(|gmg| digest(gmg.state()).per_operator(step.is_none()));
            prop_assert_eq!(left, right, "{:?}", delta);
            assert_runs_equal(whole.state(), single.state());
        }
    }
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
