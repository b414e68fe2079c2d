//! Branches and publications.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use slicescheduler_gmg::id::JobId;
use slicescheduler_gmg::{Applied, Branch, Delta, Effect, GmgView};

use crate::loaded::Loaded;
use crate::{lowest, timed};

pub(crate) fn branch(criterion: &mut Criterion, loaded: &mut Loaded, name: &str) -> f64 {
    let snapshot = loaded.gmg.publish();
    lowest(criterion, name, |iterations| timed(iterations, || drop(black_box(snapshot.branch()))))
}

/// Where a what-if changes and reads the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Four lanes.
    Local,
    /// Fifty lanes far from each other.
    Scattered,
}

impl Reach {
    /// The `nth` iteration that is changed.
    pub(crate) fn job(self, nth: usize, devices: u32) -> usize {
        match self {
            Self::Local => nth % 4,
            Self::Scattered => nth * 401 % devices as usize,
        }
    }

    /// 1,000 operators: which iteration, and which operator of it.
    pub(crate) fn operators(self, devices: u32) -> Vec<(usize, u32)> {
        let jobs = match self {
            Self::Local => 4,
            Self::Scattered => 50,
        };
        let each = 1000 / jobs as u32;
        (0..jobs).flat_map(|nth| (0..each).map(move |op| (self.job(nth, devices), op))).collect()
    }
}

/// 50 iterations recalled and dispatched again, then 1,000 operators finished, as runs; and whose operators
/// are read then, and how many.
fn what_if(loaded: &Loaded, reach: Reach) -> (Vec<Delta>, Vec<(JobId, u32)>) {
    let operators = reach.operators(loaded.devices);
    let mut deltas = Vec::new();
    for job in (0..50).map(|nth| reach.job(nth, loaded.devices)) {
        deltas.extend([Delta::from(loaded.recalled(job)), Delta::from(loaded.dispatch(job))]);
    }
    let mut read = Vec::new();
    for run in operators.chunk_by(|(one, _), (other, _)| one == other) {
        deltas.push(loaded.finished(run[0].0, 0..run.len() as u32).into());
        read.push((loaded.jobs[run[0].0], run.len() as u32));
    }
    (deltas, read)
}

fn change_and_read(branch: &mut Branch, deltas: &[Delta], read: &[(JobId, u32)]) -> u64 {
    for delta in deltas {
        black_box(branch.apply(delta.clone()).is_ok());
    }
    let states = |&(job, count): &(JobId, u32)| {
        let segments = &branch.job(job)?.segments;
        let state = |op| segments.at(op).map_or(0, |segment| segment.start.get() ^ segment.state as u64);
        Some((0..count).map(state).sum::<u64>())
    };
    read.iter().filter_map(states).sum()
}

/// A branch, 100 changes, 1,000 operators finished and read, and the branch dropped.
pub(crate) fn branch_changed_and_read(criterion: &mut Criterion, loaded: &mut Loaded, reach: Reach) -> f64 {
    let snapshot = loaded.gmg.publish();
    let (deltas, read) = what_if(loaded, reach);
    let mut checked = snapshot.branch();
    let absorbed = |applied: Applied| !matches!(applied.effect, Effect::Diverged(_));
    let fine = |delta: &Delta| checked.apply(delta.clone()).is_ok_and(absorbed);
    assert!(deltas.iter().all(fine), "a change of the bench was refused");
    let name = format!("branch, 100 changes, 1,000 operators, drop ({reach:?})");
    lowest(criterion, &name, |iterations| {
        timed(iterations, || {
            let mut branch = snapshot.branch();
            black_box(change_and_read(&mut branch, &deltas, &read));
        })
    })
}

/// The same inside one branch, from a mark back to the mark.
pub(crate) fn marked_and_rolled_back(criterion: &mut Criterion, loaded: &mut Loaded, reach: Reach) -> f64 {
    let snapshot = loaded.gmg.publish();
    let (deltas, read) = what_if(loaded, reach);
    let mut branch = snapshot.branch();
    change_and_read(&mut branch, &deltas, &read);
    let name = format!("mark, 100 changes, 1,000 operators, roll back ({reach:?})");
    lowest(criterion, &name, |iterations| {
        timed(iterations, || {
            let mark = branch.mark();
            black_box(change_and_read(&mut branch, &deltas, &read));
            assert!(branch.rollback(mark).is_ok(), "the mark is the branch's own");
        })
    })
}

/// Publications after a pass, of which a reader keeps the last `kept`.
fn publish_beside_readers(criterion: &mut Criterion, loaded: &mut Loaded, name: &str, kept: usize) -> f64 {
    let mut number = 0;
    let mut held: Vec<_> = (0..kept).map(|_| loaded.gmg.publish()).collect();
    lowest(criterion, name, |iterations| {
        let mut took = Duration::ZERO;
        for _ in 0..iterations {
            number += 1;
            if let Err(error) = loaded.pass(number) {
                eprintln!("the pass failed: {error}");
            }
            let begun = Instant::now();
            let snapshot = loaded.gmg.publish();
            took += begun.elapsed();
            held[number % kept] = snapshot;
        }
        took
    })
}

/// A reader keeps the last publication: two copies take turns.
pub(crate) fn publish(criterion: &mut Criterion, loaded: &mut Loaded) -> f64 {
    publish_beside_readers(criterion, loaded, "publish after 100 deltas", 1)
}

/// A reader keeps the last two publications: three copies take turns.
pub(crate) fn publish_to_laggards(criterion: &mut Criterion, loaded: &mut Loaded) -> f64 {
    publish_beside_readers(criterion, loaded, "publish after 100 deltas, a reader lags", 2)
}
