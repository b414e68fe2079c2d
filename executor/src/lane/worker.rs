//! The thread side of a lane.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam::channel::Sender;

use super::queue::{Queue, Queued};
use super::{LaneEvent, Outcome, Reporter, Step, Wanted};
use crate::error::ExecutorError;

/// Runs entries until the lane ends. When it is dropped, run or not, nothing can wait for it any
/// more: the queue has ended, what waited is cancelled, and the handle is told.
pub(super) struct Worker {
    queue: Arc<Queue>,
    reporter: Reporter,
    /// Held for its drop, which the lane's handle waits for; the last field, so that all else is
    /// gone by then.
    _alive: Sender<()>,
}

impl Worker {
    pub(super) const fn new(queue: Arc<Queue>, reporter: Reporter, alive: Sender<()>) -> Self {
        Self { queue, reporter, _alive: alive }
    }

    pub(super) fn run(self) {
        while let Some(entry) = self.queue.pop() {
            if !self.run_entry(entry) {
                break;
            }
        }
    }

    /// Runs an entry; false if the lane can not go on behind it.
    fn run_entry(&self, entry: Queued) -> bool {
        let Queued { ticket, tag, mut program, first, .. } = entry;
        let started = (self.reporter.clock)();
        let mut next_op = first;
        let mut failure = None;
        let mut panicked = false;
        while let Some(op) = ticket.progress.start() {
            let wanted = Wanted(&ticket.progress);
            match catch_unwind(AssertUnwindSafe(|| program.step_until(op, &wanted))) {
                Ok(Ok(Step::Done)) => next_op = op + 1,
                Ok(Ok(Step::Stopped)) => break,
                Ok(Err(error)) => failure = Some(error),
                Err(payload) => {
                    panicked = true;
                    failure = Some(ExecutorError::OperatorPanicked { op, message: message(payload) });
                }
            }
            if failure.is_some() {
                break;
            }
        }
        let lives = !matches!(failure, Some(ExecutorError::LanePoisoned));
        let outcome = match failure {
            Some(error) => Outcome::Failed(error),
            None if next_op == ticket.progress.end() => Outcome::Finished,
            None => Outcome::Recalled,
        };
        let program = if panicked {
            // A program that panicked may do so again when it is dropped.
            discard(program);
            None
        } else {
            Some(program)
        };
        let finished = (self.reporter.clock)();
        self.reporter.send(LaneEvent {
            lane: self.reporter.lane,
            ticket: ticket.number,
            tag,
            next_op,
            started,
            finished,
            outcome,
            program,
        });
        lives
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        for entry in self.queue.end() {
            self.reporter.report_unstarted(entry, Outcome::Cancelled);
        }
    }
}

/// The text of a panic.
fn message(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    discard(payload);
    text.unwrap_or_else(|| "no message".to_owned())
}

/// Drops a value that may panic when it is dropped.
fn discard<T>(value: T) {
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(value)));
    if let Err(payload) = dropped {
        // A payload whose own drop panics is left alone.
        std::mem::forget(payload);
    }
}
