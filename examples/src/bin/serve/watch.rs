//! What ran where, and how long it was expected to take.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slicescheduler::gmg::id::{JobId, ModelId};
use slicescheduler::gmg::plan::{Command, Event, Launch, Observer, Rank};
use slicescheduler::gmg::units::Nanos;
use slicescheduler::gmg::{GmgView, View};
use slicescheduler::simulator::cost::{JobCost, Roofline};

/// Weight of the latest iteration in what is known of a model's speed.
const LEARNING: f64 = 0.2;

/// Shared by the program and the scheduler that it watches.
#[derive(Clone, Default)]
pub(crate) struct Watch(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    launches: HashMap<JobId, Expected>,
    /// Per model: measured over modelled time, of the iterations so far.
    speeds: HashMap<ModelId, f64>,
    at_home: Used,
    as_guest: Used,
    recalled: u64,
    predicted: f64,
    measured: f64,
    off: f64,
    jobs: u64,
}

/// Lane time that was used.
#[derive(Default)]
struct Used {
    stretches: u64,
    operators: u64,
    time: Nanos,
}

struct Expected {
    model: ModelId,
    guest: bool,
    cost: JobCost,
    /// What the modelled time was multiplied by when the job was launched.
    speed: Option<f64>,
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
            Event::Finished { job, ops, started, at, .. } => self.seen().ran(*job, ops.clone(), *at - *started, true),
            Event::Recalled { job, done, started, at, .. } => {
                let mut seen = self.seen();
                seen.recalled += 1;
                seen.ran(*job, done.clone(), *at - *started, false);
            }
            _ => {}
        }
    }

    fn on_command(&mut self, _now: Nanos, command: &Command, view: View<'_>) {
        if let Command::Launch(launch) = command {
            self.seen().launched(launch, view);
        }
    }
}

impl Seen {
    fn launched(&mut self, launch: &Launch, view: View<'_>) {
        let Some(device) = view.cluster().device(launch.lane.device) else { return };
        let cost = JobCost::bind(&Roofline::default(), &launch.template, &launch.spec.binding, &device.spec);
        let guest = matches!(launch.rank, Rank::GuestBestEffort | Rank::GuestLatency);
        let (model, speed) = (launch.spec.model, self.speeds.get(&launch.spec.model).copied());
        self.launches.insert(launch.job, Expected { model, guest, cost, speed });
    }

    fn ran(&mut self, job: JobId, ops: std::ops::Range<u32>, took: Nanos, ended: bool) {
        let Some(expected) = self.launches.get(&job) else { return };
        let modelled = expected.cost.total(ops.clone()).as_secs_f64();
        let took_secs = took.as_secs_f64();
        // The first iteration of a model teaches its speed and is not judged.
        if let Some(speed) = expected.speed {
            self.predicted += modelled * speed;
            self.measured += took_secs;
            self.off += (modelled * speed - took_secs).abs();
            self.jobs += 1;
        }
        if modelled > 0.0 {
            let ratio = took_secs / modelled;
            let known = self.speeds.entry(expected.model).or_insert(ratio);
            *known += LEARNING * (ratio - *known);
        }
        let used = if expected.guest { &mut self.as_guest } else { &mut self.at_home };
        used.stretches += 1;
        used.operators += u64::from(ops.end - ops.start);
        used.time += took;
        if ended {
            self.launches.remove(&job);
        }
    }
}

impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = self.seen();
        for (what, used) in [("at home", &seen.at_home), ("in slices of others", &seen.as_guest)] {
            let Used { stretches, operators, time } = used;
            writeln!(
                f,
                "{what}: {operators} operators in {stretches} stretches, {:.2} s of lanes",
                time.as_secs_f64()
            )?;
        }
        let Seen { predicted, measured, off, jobs, .. } = &*seen;
        if *jobs == 0 {
            return writeln!(f, "recalled {} times; no makespan was predicted", seen.recalled);
        }
        writeln!(
            f,
            "recalled {} times; makespans of {jobs} stretches: predicted {predicted:.2} s, measured {measured:.2} s \
             ({:+.1} %), off by {:.1} % each",
            seen.recalled,
            (predicted / measured - 1.0) * 100.0,
            off / measured * 100.0,
        )
    }
}
