//! A branch does what a graph restored from the same snapshot does, forgets exactly what it is told
//! to forget, and changes nothing but itself.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use proptest::prelude::*;
use slicescheduler_gmg::snapshot::{Mark, StaleMark};
use slicescheduler_gmg::{Delta, Gmg, GmgView, Snapshot};
use support::digest::{Digest, digest};
use support::stream::{Step, Stream, steps};
use support::{CHAIN, iteration, lane};

/// A snapshot in the middle of a stream.
fn base(steps: &[Step]) -> (Snapshot, Stream) {
    let mut gmg = support::gmg();
    let mut stream = Stream::default();
    for &step in steps {
        let delta = stream.next(step, gmg.state());
        if let Ok(applied) = gmg.apply(delta) {
            stream.note(&applied.effect);
        }
    }
    (gmg.publish(), stream)
}

proptest! {
    #![proptest_config(support::cases(200))]

    #[test]
    fn a_branch_equals_a_graph_restored_from_its_base(before in steps(0..100), steps in steps(1..150)) {
        let (snapshot, mut stream) = base(&before);
        let published = digest(&snapshot.view());
        let mut branch = snapshot.branch();
        let mut restored = Gmg::restore(&snapshot);
        prop_assert_eq!(&digest(&branch.view()), &published);
        for step in steps {
            let delta = stream.next(step, &branch);
            let on_branch = branch.apply(delta.clone()).map(|applied| (applied.version, applied.effect));
            let live = restored.apply(delta).map(|applied| (applied.version, applied.effect));
            prop_assert_eq!(&on_branch, &live);
            if let Ok((_, effect)) = &live {
                stream.note(effect);
            }
            prop_assert_eq!(digest(&branch.view()), digest(restored.state()));
        }
        prop_assert_eq!(digest(&snapshot.view()), published);
    }

    /// What is left at the end equals a fresh branch that took only the deltas that were not rolled
    /// back: nothing lingers that no query shows, such as which slot the next job gets.
    #[test]
    fn rolling_back_restores_the_branch_as_it_was(
        before in steps(0..60),
        steps in steps(1..200),
        moves in prop::collection::vec((0u8..10, any::<prop::sample::Index>()), 200),
    ) {
        let (snapshot, mut stream) = base(&before);
        let published = digest(&snapshot.view());
        let mut branch = snapshot.branch();
        let mut kept: Vec<Delta> = Vec::new();
        let mut marks: Vec<(Mark, Digest, Stream, usize)> = Vec::new();
        for (step, (action, which)) in steps.into_iter().zip(moves) {
            match action {
                0 | 1 => marks.push((branch.mark(), digest(&branch), stream.clone(), kept.len())),
                2 if !marks.is_empty() => {
                    marks.truncate(which.index(marks.len()) + 1);
                    let (mark, was, earlier, deltas) = marks.pop().unwrap();
                    branch.rollback(mark).unwrap();
                    prop_assert_eq!(&digest(&branch), &was);
                    stream = earlier;
                    kept.truncate(deltas);
                }
                _ => {
                    let delta = stream.next(step, &branch);
                    if let Ok(applied) = branch.apply(delta) {
                        stream.note(&applied.effect);
                        kept.push(applied.delta);
                    }
                }
            }
        }
        let mut fresh = snapshot.branch();
        for delta in kept {
            prop_assert!(fresh.apply(delta.clone()).is_ok(), "{:?}", delta);
        }
        prop_assert_eq!(digest(&branch), digest(&fresh));
        prop_assert_eq!(branch.apply(next_job()).unwrap().effect, fresh.apply(next_job()).unwrap().effect);
        prop_assert_eq!(digest(&snapshot.view()), published);
    }

    #[test]
    fn branches_side_by_side_do_not_see_each_other(before in steps(0..60), one in steps(1..60), other in steps(1..60)) {
        let (snapshot, stream) = base(&before);
        let run = |steps: &[Step], others: &mut dyn FnMut()| {
            let (mut branch, mut stream) = (snapshot.branch(), stream.clone());
            for &step in steps {
                let delta = stream.next(step, &branch);
                if let Ok(applied) = branch.apply(delta) {
                    stream.note(&applied.effect);
                }
                others();
            }
            digest(&branch)
        };
        let alone = run(&one, &mut || ());
        let mut neighbour = snapshot.branch();
        let (mut theirs, mut next) = (stream.clone(), 0);
        let beside = run(&one, &mut || {
            if let Some(&step) = other.get(next) {
                let delta = theirs.next(step, &neighbour);
                if let Ok(applied) = neighbour.apply(delta) {
                    theirs.note(&applied.effect);
                }
                next += 1;
            }
        });
        prop_assert_eq!(alone, beside);
    }
}

fn next_job() -> slicescheduler_gmg::Intent {
    slicescheduler_gmg::Intent::SubmitJob(std::sync::Arc::new(iteration(CHAIN, 1)))
}

#[test]
fn a_branch_goes_on_when_the_graph_it_came_from_is_gone() {
    let mut gmg = support::gmg();
    let job = gmg.submit(iteration(CHAIN, 1)).unwrap();
    let mut branch = gmg.publish().branch();
    drop(gmg);
    let dispatch = slicescheduler_gmg::Intent::Dispatch {
        job,
        ops: 0..support::OPS,
        lane: lane(0, 0),
        rank: slicescheduler_gmg::plan::Rank::OwnerLatency,
    };
    branch.apply(dispatch).unwrap();
    assert_eq!(branch.lane(lane(0, 0)).unwrap().queue().len(), 1);
}

#[test]
fn a_job_of_a_branch_gets_the_id_that_the_graph_would_give_it() {
    let mut gmg = support::gmg();
    let jobs: Vec<_> = (0..3).map(|_| gmg.submit(iteration(CHAIN, 1)).unwrap()).collect();
    for &job in &jobs[..2] {
        gmg.apply(slicescheduler_gmg::Intent::Cancel { job }).unwrap();
        gmg.apply(slicescheduler_gmg::Intent::Retire { job }).unwrap();
    }
    let mut branch = gmg.publish().branch();
    for _ in 0..4 {
        let expected = gmg.submit(iteration(CHAIN, 1)).unwrap();
        assert_eq!(branch.apply(next_job()).unwrap().effect.job(), Some(expected));
    }
}

#[test]
fn a_mark_of_another_branch_or_one_gone_back_over_is_refused() {
    let mut gmg = support::gmg();
    gmg.submit(iteration(CHAIN, 1)).unwrap();
    let snapshot = gmg.publish();
    let (mut one, mut other) = (snapshot.branch(), snapshot.branch());
    let foreign = one.mark();
    assert_eq!(other.rollback(foreign), Err(StaleMark));
    let (outer, inner) = (other.mark(), other.mark());
    other.apply(next_job()).unwrap();
    let before = digest(&other);
    let foreign = one.mark();
    assert_eq!(other.rollback(foreign), Err(StaleMark));
    assert_eq!(digest(&other), before);
    other.rollback(outer).unwrap();
    assert_eq!(other.rollback(inner), Err(StaleMark));
    assert_eq!(digest(&other), digest(&snapshot.view()));
}
