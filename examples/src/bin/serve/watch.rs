//! What ran where.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slicescheduler::gmg::View;
use slicescheduler::gmg::id::JobId;
use slicescheduler::gmg::plan::{Command, Event, Observer, Rank};
use slicescheduler::gmg::units::Nanos;

/// Shared by the program and the scheduler that it watches.
#[derive(Clone, Default)]
pub(crate) struct Watch(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// Jobs under way; true for those in slices of others.
    launches: HashMap<JobId, bool>,
    at_home: Used,
    as_guest: Used,
    recalled: u64,
}

/// Lane time that was used.
#[derive(Default)]
struct Used {
    stretches: u64,
    operators: u64,
    time: Nanos,
}

impl Watch {
    /// What the scheduler tells.
    pub(crate) fn observer(&self) -> impl Observer + Send + 'static {
        self.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Watch {
    fn on_event(&mut self, event: &Event, _view: View<'_>) {
        match event {
            Event::Finished { job, ops, started, at, .. } => {
                let mut seen = self.seen();
                seen.ran(*job, ops.clone(), *at - *started);
                seen.launches.remove(job);
            }
            Event::Recalled { job, done, started, at, .. } => {
                let mut seen = self.seen();
                seen.recalled += 1;
                seen.ran(*job, done.clone(), *at - *started);
            }
            _ => {}
        }
    }

    fn on_command(&mut self, _now: Nanos, command: &Command, _view: View<'_>) {
        if let Command::Launch(launch) = command {
            let guest = matches!(launch.rank, Rank::GuestBestEffort | Rank::GuestLatency);
            self.seen().launches.insert(launch.job, guest);
        }
    }
}

impl Seen {
    fn ran(&mut self, job: JobId, ops: Range<u32>, took: Nanos) {
        let Some(&guest) = self.launches.get(&job) else { return };
        let used = if guest { &mut self.as_guest } else { &mut self.at_home };
        used.stretches += 1;
        used.operators += u64::from(ops.end - ops.start);
        used.time += took;
    }
}

impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = self.seen();
        for (what, used) in [("at home", &seen.at_home), ("in slices of others", &seen.as_guest)] {
            let Used { stretches, operators, time } = used;
            let time = time.as_secs_f64();
            writeln!(f, "{what}: {operators} operators in {stretches} stretches, {time:.2} s of lanes")?;
        }
        writeln!(f, "recalled {} times", seen.recalled)
    }
}
