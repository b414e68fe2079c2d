//! Counted: what changes the state of operators takes nothing from the heap, on the live graph, while a
//! publisher listens, and on a branch whose tables were used before.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use allocation_counter::measure;
use slicescheduler_gmg::id::JobId;
use slicescheduler_gmg::job::Segments;
use slicescheduler_gmg::plan::{Event, Fate, Rank};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{Delta, Gmg, GmgView, Intent};
use support::{CHAIN, CHAT, OPS, batch, finished, gmg, lane, recalled, request};

/// Every kind of transition of a run of operators: dispatched, started, cut and taken back, dispatched
/// again, finished in two parts.
fn life(job: JobId) -> Vec<Delta> {
    let on = lane(0, 0);
    let dispatch = |ops| Intent::Dispatch { job, ops, lane: on, rank: Rank::OwnerLatency };
    vec![
        dispatch(0..OPS).into(),
        Event::Started { job, at: Nanos(1) }.into(),
        recalled(job, on, 0..2, OPS, Fate::Keep).into(),
        dispatch(2..OPS).into(),
        recalled(job, on, 2..2, OPS, Fate::Drop).into(),
        dispatch(0..OPS).into(),
        finished(job, 0..3, on, 3).into(),
        finished(job, 3..OPS, on, 4).into(),
    ]
}

/// An iteration whose sequences were begun by the one before.
fn next_iteration(gmg: &mut Gmg) -> JobId {
    let requests: Vec<_> = (0..3).map(|_| request(gmg, CHAT)).collect();
    let first = gmg.submit(batch(CHAIN, &requests, 0)).unwrap();
    for delta in life(first) {
        gmg.apply(delta).unwrap();
    }
    gmg.submit(batch(CHAIN, &requests, 0)).unwrap()
}

#[test]
fn runs_of_operators_change_state_without_the_heap() {
    let mut gmg = gmg();
    let job = next_iteration(&mut gmg);
    let deltas = life(job);
    let counted = measure(|| {
        for delta in deltas {
            gmg.apply(delta).unwrap();
        }
    });
    assert!(gmg.view().job(job).unwrap().segments.all_done());
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

#[test]
fn neither_does_a_publisher_that_listens_once_it_has_seen_as_much() {
    let mut gmg = gmg();
    let mut held = vec![gmg.publish()];
    for _ in 0..4 {
        next_iteration(&mut gmg);
        held.push(gmg.publish());
        held.remove(0);
    }
    let job = next_iteration(&mut gmg);
    // Both copies see the new jobs.
    for at in 0..2 {
        gmg.apply(Event::Timer { at: Nanos(at) }).unwrap();
        held.push(gmg.publish());
        held.remove(0);
    }
    let deltas = life(job);
    let counted = measure(|| {
        for delta in deltas {
            gmg.apply(delta).unwrap();
        }
        held.push(gmg.publish());
    });
    assert_eq!(held[1].view().version(), gmg.version());
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

#[test]
fn a_branch_in_tables_that_another_left_behind_does_not_allocate_either() {
    let mut gmg = gmg();
    let job = next_iteration(&mut gmg);
    let snapshot = gmg.publish();
    let run = || {
        let mut deltas = [life(job), life(job)].into_iter();
        let (first, second) = (deltas.next().unwrap(), deltas.next().unwrap());
        measure(|| {
            let mut branch = snapshot.branch();
            let mark = branch.mark();
            for delta in first {
                branch.apply(delta).unwrap();
            }
            branch.rollback(mark).unwrap();
            for delta in second {
                branch.apply(delta).unwrap();
            }
        })
    };
    run();
    assert_eq!(run().count_total, 0);
}

/// Each operator on its own: no more than two arrays in the life of a job, of 28 bytes per operator.
#[test]
fn a_job_cut_into_all_its_operators_allocates_twice_at_most() {
    let mut gmg = gmg();
    let job = next_iteration(&mut gmg);
    let on = lane(0, 0);
    gmg.apply(Intent::Dispatch { job, ops: 0..OPS, lane: on, rank: Rank::OwnerLatency }).unwrap();
    let events: Vec<_> = (0..OPS).map(|op| finished(job, op..op + 1, on, u64::from(op))).collect();
    let counted = measure(|| {
        for event in events {
            gmg.apply(event).unwrap();
        }
    });
    let segments = &gmg.state().job(job).unwrap().segments;
    assert_eq!(segments.iter().len(), OPS as usize);
    assert!(counted.count_total <= 2, "{counted:?}");
    assert!(segments.heap_bytes() <= Segments::SEGMENT_BYTES * OPS as usize);
    assert!(counted.bytes_total <= 2 * 28 * u64::from(OPS), "{counted:?}");
}
