//! Applying one change.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use slicescheduler_gmg::Delta;
use slicescheduler_gmg::plan::{Event, Fate};
use slicescheduler_gmg::units::Nanos;

use crate::loaded::Loaded;
use crate::lowest;

/// A transition in the life of an iteration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transition {
    Dispatched,
    Started,
    TakenBack,
    Finished,
}

/// One transition of a whole iteration, with its batch of 16. The publisher records every delta and
/// publishes, outside of the time, every few hundred.
pub(crate) fn transition(criterion: &mut Criterion, loaded: &mut Loaded, name: &str, measured: Transition) -> f64 {
    let devices = loaded.devices as usize;
    let mut from = 0;
    lowest(criterion, name, |iterations| {
        let mut took = Duration::ZERO;
        let mut left = iterations as usize;
        while left > 0 {
            let jobs: Vec<_> = (from..from + left.min(100)).map(|nth| nth * 401 % devices).collect();
            from += jobs.len();
            left -= jobs.len();
            let mut phase = |loaded: &mut Loaded, now: Transition, delta: fn(&Loaded, usize) -> Delta| {
                let begun = Instant::now();
                for &job in &jobs {
                    let delta = delta(loaded, job);
                    black_box(loaded.gmg.apply(delta).is_ok());
                }
                if now == measured {
                    took += begun.elapsed();
                }
            };
            let started = |loaded: &Loaded, job| Event::Started { job: loaded.jobs[job], at: Nanos(1) }.into();
            phase(loaded, Transition::Started, started);
            phase(loaded, Transition::TakenBack, |loaded, job| loaded.recalled(job).into());
            phase(loaded, Transition::Dispatched, |loaded, job| loaded.dispatch(job).into());
            if measured == Transition::Finished {
                phase(loaded, Transition::Finished, |loaded, job| loaded.finished(job, loaded.whole()).into());
                for &job in &jobs {
                    if let Err(error) = loaded.succeed(job) {
                        eprintln!("no successor: {error}");
                    }
                }
            }
            loaded.gmg.publish();
        }
        took
    })
}

/// An iteration that finishes operator by operator, so that its segment is cut at every one.
pub(crate) fn single_operators(criterion: &mut Criterion, loaded: &mut Loaded) -> f64 {
    let (mut job, mut op) = (0, 0);
    let count = loaded.template.op_count();
    lowest(criterion, "one operator finished", |iterations| {
        let mut took = Duration::ZERO;
        for _ in 0..iterations {
            if op + 1 == count {
                let end = loaded.template.op_count();
                let recalled = Event::Recalled {
                    job: loaded.jobs[job],
                    lane: loaded.lane(job),
                    done: op..op,
                    end,
                    fate: Fate::Drop,
                    started: Nanos(1),
                    at: Nanos(2),
                };
                let dispatch = loaded.dispatch(job);
                black_box(loaded.gmg.apply(recalled).is_ok() && loaded.gmg.apply(dispatch).is_ok());
                loaded.gmg.publish();
                job = (job + 401) % loaded.devices as usize;
                op = 0;
            }
            let event = loaded.finished(job, op..op + 1);
            let begun = Instant::now();
            black_box(loaded.gmg.apply(event).is_ok());
            took += begun.elapsed();
            op += 1;
        }
        took
    })
}
