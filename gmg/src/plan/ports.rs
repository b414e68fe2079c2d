//! The ports: traits between the crates of the family.

use std::fmt::Debug;

use crate::delta::Applied;
use crate::id::{DeviceId, LaneId, ModelId, TenantId, Version};
use crate::job::JobSpec;
use crate::plan::{Action, Command, Event, Forecast};
use crate::units::Nanos;
use crate::view::View;

/// The time of a run. Injected, so that no library crate reads the machine's clock.
pub trait Clock: Debug + Send + Sync {
    /// Time since the start of the run; never goes back.
    fn now(&self) -> Nanos;
}

/// What really runs: an executor, a host's engine, or in a replay a simulation with durations of
/// its own.
///
/// The caller hands over commands in the order in which the graph accepted them and polls for what
/// happened. The implementer keeps lanes in order except for right of way, reports every launched
/// operator exactly once (finished, recalled or failed), and never blocks in
/// [`enqueue`](Self::enqueue). A recall that comes too late for any operator is reported as
/// [`Event::Finished`], since only that says which requests ended.
pub trait World {
    /// Takes a command. `view` is the graph right after the command was accepted; copy what is
    /// needed later.
    ///
    /// # Errors
    /// When the command names something that this world does not have. Nothing was started then.
    fn enqueue(&mut self, command: &Command, view: View<'_>) -> Result<(), WorldError>;

    /// Waits until something happened or `until` is reached, appends the events of one instant or
    /// more to `events` in graph order, and returns the time.
    ///
    /// # Errors
    /// When the world as a whole is broken. Failures of single jobs and devices are events.
    fn poll(&mut self, until: Nanos, events: &mut Vec<Event>) -> Result<Nanos, WorldError>;

    /// True if nothing was enqueued that is not reported.
    fn is_idle(&self) -> bool;
}

/// Why a world could not do what it was told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// No such lane here.
    #[error("this world has no {0}")]
    NoSuchLane(LaneId),
    /// No such device here.
    #[error("this world has no {0}")]
    NoSuchDevice(DeviceId),
    /// A model without an implementation here.
    #[error("this world has no implementation of {0}")]
    NoSuchModel(ModelId),
    /// An error of the implementation.
    #[error("{message}")]
    Other {
        /// What went wrong, where, and what would be right.
        message: String,
        /// The error behind it.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

/// What a tenant will submit when a job ends: its next iteration, with the growth of its KV cache.
///
/// Pure: the next job depends on the state and the job that ended only, never on a clock. Forecasts
/// work on forks and leave the original alone.
pub trait Continuation: Debug + Send + Sync {
    /// `finished` ended at `at`; the job that follows, or [`None`] if there is nothing to do.
    fn next(&mut self, finished: &JobSpec, at: Nanos) -> Option<JobSpec>;

    /// A copy with a life of its own.
    fn fork(&self) -> Box<dyn Continuation>;

    /// A number that is equal for two states only if both go on alike, whatever ends when; or
    /// [`None`] if that is not known. A forecast that comes to a state which it knows already, at the
    /// same time and with the same work in flight, need not unroll it again. Whoever implements it
    /// hashes everything that [`next`](Self::next) reads.
    fn state_hash(&self) -> Option<u64> {
        None
    }

    /// Remembers the state, to come back to it with [`rollback`](Self::rollback); [`None`] if this
    /// continuation keeps no journal, and must be forked instead.
    fn mark(&mut self) -> Option<u64> {
        None
    }

    /// Goes back to a state that [`mark`](Self::mark) remembered, and forgets later marks. False,
    /// with nothing changed, if there is no such mark.
    fn rollback(&mut self, _mark: u64) -> bool {
        false
    }
}

/// What to forecast.
#[derive(Debug)]
pub struct Question<'a> {
    /// What would be done now, in this order.
    pub actions: &'a [Action],
    /// What follows on a lane when its last work ends. Consumed by the forecast: pass forks.
    pub continuations: &'a mut [(LaneId, Box<dyn Continuation>)],
    /// Nothing that starts at or after this time is simulated.
    pub horizon: Nanos,
}

/// Answers what-if questions about the graph that it follows.
///
/// The implementer answers without side effects: the same question on the same version gives the
/// same forecast. The caller keeps it up to date with [`observe`](Self::observe), one call per
/// applied delta, without gaps.
pub trait WhatIf {
    /// The version it has seen.
    fn version(&self) -> Version;

    /// Follows a delta that was applied to the graph; `view` is the graph right after it.
    ///
    /// # Errors
    /// [`WhatIfError::Gap`] if deltas are missing; it must be rebuilt from a snapshot then.
    fn observe(&mut self, applied: &Applied, view: View<'_>) -> Result<(), WhatIfError>;

    /// Forecasts what would happen from `now` on.
    ///
    /// # Errors
    /// When an action names something that does not exist.
    fn what_if(&mut self, now: Nanos, question: Question<'_>, answer: &mut Forecast) -> Result<(), WhatIfError>;

    /// A number of output tokens that a request of `tenant` which has produced `produced` exceeds with a probability of at
    /// most `alpha_percent`, if its length is like those of the requests that ended before; [`None`] if too little was
    /// observed to say, as always by default. With its time between tokens, it bounds what its KV cache will take.
    fn output_bound(&self, _tenant: TenantId, _produced: u32, _alpha_percent: u32) -> Option<u32> {
        None
    }
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WhatIfError {
    /// Deltas are missing.
    #[error("the forecast has seen {seen}, the next delta makes {next}: {} deltas are missing", next.0.saturating_sub(seen.0 + 1))]
    Gap {
        /// The last version seen.
        seen: Version,
        /// The version that the delta made.
        next: Version,
    },
    /// A future that was computed before rests on durations that are not in force any more.
    #[error("the future rests on durations that have changed since; fold it in first")]
    StaleDurations,
    /// An action names something that does not exist.
    #[error("action {index}: {reason}")]
    Action {
        /// Which action.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
}

/// Is told what happens, for logs, metrics and traces. Called on the driver's thread: return soon.
pub trait Observer {
    /// An event was applied to the graph, which is now as `view`.
    fn on_event(&mut self, event: &Event, view: View<'_>);

    /// Commands were handed to the world at `now`.
    fn on_command(&mut self, now: Nanos, command: &Command, view: View<'_>);
}
