//! Lanes: in-order queues that run operators on a thread of their own.
//!
//! An [`Entry`] is a run of consecutive operators of a [`Program`]. The lane takes entries by
//! [`Rank`], and in order of arrival within a rank. Between two operators it looks once at the
//! entry's [progress word](Recall), so an entry can be recalled there:
//!
//! - **right of way**: when an entry of higher rank arrives, the running one is recalled by the
//!   lane itself, without a round trip to whoever plans, and the new one goes first;
//! - **explicitly**, by [`Lane::recall`], whose answer is final: these operators will never run, or
//!   too late.
//!
//! Every entry ends in exactly one [`LaneEvent`], which gives the program back. An operator that
//! panics fails its entry; the lane lives on. A lane without work is parked.

#[cfg(all(test, shuttle))]
mod interleavings;
mod progress;
mod queue;
mod spawn;
mod worker;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender, bounded};
use slicescheduler_gmg::id::LaneId;
use slicescheduler_gmg::units::Nanos;

pub use progress::Recall;
pub use spawn::{StdThreads, ThreadSpawner};

use crate::error::{ExecutorError, Result};
use progress::Progress;
use queue::{Queue, Queued};

/// Operators that a lane can run, bound to their operands.
pub trait Program: Send {
    /// How many operators there are.
    fn len(&self) -> u32;

    /// True without an operator.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs operator `op`, which is below [`len`](Self::len). A lane calls it in ascending order,
    /// each operator at most once per entry. Should not block: the lane, and a recall, wait for it.
    ///
    /// # Errors
    /// Whatever keeps the operator from its result; the rest of the entry does not run. With
    /// [`ExecutorError::LanePoisoned`] the lane ends, too: what waits on it is reported as cancelled, and it takes nothing in.
    fn step(&mut self, op: u32) -> Result<()>;

    /// As [`step`](Self::step), of an operator that can stop in the middle: once the lane is
    /// [`wanted`](Wanted::now) by somebody else it may return [`Step::Stopped`], keeping what it needs to go on there.
    /// The entry is reported as recalled then, from this operator on. Unless overridden, operators are not
    /// stopped.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    fn step_until(&mut self, op: u32, wanted: &Wanted<'_>) -> Result<Step> {
        let _ = wanted;
        self.step(op).map(|()| Step::Done)
    }
}

/// How far an operator has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To its end.
    Done,
    /// To somewhere in the middle.
    Stopped,
}

/// Says whether somebody else waits for a lane.
#[derive(Debug)]
pub struct Wanted<'a>(&'a Progress);

impl Wanted<'_> {
    /// True once the entry that runs has been recalled or has to yield. One load, so it may be asked often.
    pub fn now(&self) -> bool {
        self.0.is_recalled()
    }
}

/// Right of way: an entry yields to those of higher rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u8);

/// What a lane is asked to run.
pub struct Entry {
    /// The operators.
    pub program: Box<dyn Program>,
    /// Which of them, or all if `None`.
    pub ops: Option<Range<u32>>,
    /// Its right of way.
    pub rank: Rank,
    /// The caller's own mark, returned with the event.
    pub tag: u64,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program: _, ops, rank, tag } = self;
        f.debug_struct("Entry").field("ops", ops).field("rank", rank).field("tag", tag).finish_non_exhaustive()
    }
}

/// Entries that may wait on a lane before one of the same rank or a lower one. What is handed down ahead is a short
/// queue; a caller that outruns a lane by this many is to wait for its events. Those of lower rank do not count, so
/// they keep nobody out; in all, no more than this many wait for each rank that is in use.
pub const QUEUE: usize = 1024;

/// An entry that was not taken, to be offered again.
#[derive(Debug)]
pub struct Refused {
    /// The entry.
    pub entry: Entry,
    /// Why: [`ExecutorError::LaneFull`], [`ExecutorError::LaneEnded`] or [`ExecutorError::OperatorRange`].
    pub reason: ExecutorError,
}

/// Names an entry of a lane.
#[derive(Clone, Debug)]
pub struct Ticket {
    number: u64,
    progress: Arc<Progress>,
}

impl Ticket {
    /// Its place in the lane's order of arrivals.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The first operator that has not been started (yet, or ever).
    pub fn next_op(&self) -> u32 {
        self.progress.next()
    }
}

/// How an entry ended.
#[derive(Debug)]
pub enum Outcome {
    /// All its operators ran.
    Finished,
    /// It yielded, or was recalled: operators from [`LaneEvent::next_op`] on have not run.
    Recalled,
    /// Operator [`LaneEvent::next_op`] failed; the ones behind it have not run.
    Failed(ExecutorError),
    /// The lane ended before it.
    Cancelled,
}

/// The end of an entry.
pub struct LaneEvent {
    /// The lane it was on.
    pub lane: LaneId,
    /// The number of its [`Ticket`].
    pub ticket: u64,
    /// The caller's mark.
    pub tag: u64,
    /// The first of its operators that has not run to its end.
    pub next_op: u32,
    /// When its first operator started, by the lane's clock; its end if none did.
    pub started: Nanos,
    /// When it ended.
    pub finished: Nanos,
    /// How it ended.
    pub outcome: Outcome,
    /// The program, to be run on or again; `None` after a panic.
    pub program: Option<Box<dyn Program>>,
}

impl fmt::Debug for LaneEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneEvent")
            .field("lane", &self.lane)
            .field("ticket", &self.ticket)
            .field("tag", &self.tag)
            .field("next_op", &self.next_op)
            .field("started", &self.started)
            .field("finished", &self.finished)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}

/// A lane's time: nanoseconds since the start of the run.
pub type LaneClock = Arc<dyn Fn() -> Nanos + Send + Sync>;

/// Sends a lane's events. They may go to several places, and nobody needs to listen.
#[derive(Clone)]
struct Reporter {
    lane: LaneId,
    clock: LaneClock,
    events: Sender<LaneEvent>,
}

impl Reporter {
    /// Reports an entry that never reached its turn.
    fn report_unstarted(&self, entry: Queued, outcome: Outcome) {
        let now = (self.clock)();
        self.send(LaneEvent {
            lane: self.lane,
            ticket: entry.ticket.number,
            tag: entry.tag,
            next_op: entry.first,
            started: now,
            finished: now,
            outcome,
            program: Some(entry.program),
        });
    }

    fn send(&self, event: LaneEvent) {
        // A host that has dropped its receiver does not want to know.
        let _ = self.events.send(event);
    }
}

/// The handle of a lane. Dropping it ends the lane: the running operator ends, or stops if it
/// [can](Program::step_until), then whatever has not run to its end is reported as recalled (if it was running) or
/// cancelled (if it waited), and the thread is gone when the drop returns. It must not be dropped from within one
/// of its own operators, which would wait for itself.
pub struct Lane {
    queue: Arc<Queue>,
    reporter: Reporter,
    exited: Receiver<()>,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("lane", &self.reporter.lane).finish_non_exhaustive()
    }
}

impl Lane {
    /// Starts a lane on a thread from `threads`, called after `lane`. Its events go to `events`.
    ///
    /// # Errors
    /// [`ExecutorError::Spawn`] when there is no thread.
    pub fn start(
        lane: LaneId,
        threads: &dyn ThreadSpawner,
        clock: LaneClock,
        events: Sender<LaneEvent>,
    ) -> Result<Self> {
        let queue = Arc::new(Queue::default());
        let reporter = Reporter { lane, clock, events };
        let (alive, exited) = bounded(0);
        let worker = worker::Worker::new(queue.clone(), reporter.clone(), alive);
        let name = lane.to_string();
        match threads.spawn(name.clone(), Box::new(move || worker.run())) {
            Ok(()) => Ok(Self { queue, reporter, exited }),
            Err(source) => Err(ExecutorError::Spawn { name, source }),
        }
    }

    /// Which lane it is.
    pub const fn id(&self) -> LaneId {
        self.reporter.lane
    }

    /// Queues an entry behind those of its rank and above. If the running one has a lower rank, it
    /// is recalled. Never waits.
    ///
    /// # Errors
    /// [`ExecutorError::OperatorRange`] when the entry has no operator or one that its program does
    /// not have, [`ExecutorError::LaneEnded`] when the lane's thread is gone, [`ExecutorError::LaneFull`] when
    /// [`QUEUE`] entries of its rank or above wait. The entry is dropped then; [`offer`](Self::offer) gives it back.
    pub fn enqueue(&self, entry: Entry) -> Result<Ticket> {
        self.offer(entry).map_err(|refused| refused.reason)
    }

    /// As [`enqueue`](Self::enqueue), but an entry that is not taken is given back.
    ///
    /// # Errors
    /// As there, with the entry. There is room after the lane's second event from now at the latest: the first may be
    /// of the entry that runs, before the next one is taken.
    pub fn offer(&self, entry: Entry) -> Result<Ticket, Box<Refused>> {
        let len = entry.program.len();
        let ops = entry.ops.clone().unwrap_or(0..len);
        if ops.is_empty() || ops.end > len {
            let reason = ExecutorError::OperatorRange { start: ops.start, end: ops.end, len };
            return Err(Box::new(Refused { entry, reason }));
        }
        self.queue.push(entry, ops)
    }

    /// Recalls what an entry of this lane has not started, and stops the operator that runs if it
    /// [can be](Program::step_until). An entry that still waits is reported
    /// before this returns, a running one once its operator ends. Recalling twice gives the same
    /// answer.
    pub fn recall(&self, ticket: &Ticket) -> Recall {
        let (recall, waiting) = self.queue.recall(ticket);
        if let Some(entry) = waiting {
            self.reporter.report_unstarted(entry, Outcome::Recalled);
        }
        recall
    }

    /// Entries that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.queue.waiting()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        for entry in self.queue.end() {
            self.reporter.report_unstarted(entry, Outcome::Cancelled);
        }
        // Nothing is ever sent: this returns when the worker drops its end.
        let _ = self.exited.recv();
    }
}
