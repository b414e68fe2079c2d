//! What waits on a lane, and who goes first.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::progress::{Progress, Recall};
use super::{Entry, Program, QUEUE, Rank, Refused, Ticket};
use crate::error::ExecutorError;
use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// An entry that was taken in.
pub(super) struct Queued {
    pub(super) ticket: Ticket,
    pub(super) rank: Rank,
    pub(super) tag: u64,
    pub(super) first: u32,
    pub(super) program: Box<dyn Program>,
}

struct Running {
    ticket: Ticket,
    rank: Rank,
}

#[derive(Default)]
struct State {
    /// By rank, highest first; in order of arrival within a rank.
    waiting: VecDeque<Queued>,
    running: Option<Running>,
    arrivals: u64,
    ended: bool,
    parked: bool,
}

/// The queue between a lane and those who feed it.
///
/// The lock is held for the length of a queue operation, never while an operator runs: programs
/// that are dropped leave it first.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code of others runs under the lock, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an entry in, before all of lower rank, and recalls the running one if it has to yield.
    /// Gives the entry back when the lane has ended, or as many of its rank or above wait as may.
    pub(super) fn push(&self, entry: Entry, ops: Range<u32>) -> Result<Ticket, Box<Refused>> {
        let mut state = self.state();
        let place = state.waiting.partition_point(|waiting| waiting.rank >= entry.rank);
        let refused = match place {
            _ if state.ended => Some(ExecutorError::LaneEnded),
            waiting if waiting >= QUEUE => Some(ExecutorError::LaneFull { waiting }),
            _ => None,
        };
        if let Some(reason) = refused {
            return Err(Box::new(Refused { entry, reason }));
        }
        let Entry { program, rank, tag, .. } = entry;
        let first = ops.start;
        let ticket = Ticket { number: state.arrivals, progress: Arc::new(Progress::new(ops)) };
        state.arrivals += 1;
        state.waiting.insert(place, Queued { ticket: ticket.clone(), rank, tag, first, program });
        if let Some(running) = &state.running
            && running.rank < rank
        {
            running.ticket.progress.recall();
        }
        let wake = state.parked;
        drop(state);
        if wake {
            self.arrived.notify_one();
        }
        Ok(ticket)
    }

    /// Waits for an entry and makes it the running one; `None` when the lane has to end.
    pub(super) fn pop(&self) -> Option<Queued> {
        let mut state = self.state();
        state.running = None;
        loop {
            if state.ended {
                return None;
            }
            if let Some(entry) = state.waiting.pop_front() {
                state.running = Some(Running { ticket: entry.ticket.clone(), rank: entry.rank });
                return Some(entry);
            }
            state.parked = true;
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.parked = false;
        }
    }

    /// Recalls an entry; one that still waits is taken out and given back.
    pub(super) fn recall(&self, ticket: &Ticket) -> (Recall, Option<Queued>) {
        let mut state = self.state();
        let same = |waiting: &Queued| Arc::ptr_eq(&waiting.ticket.progress, &ticket.progress);
        let place = state.waiting.iter().position(same);
        let removed = place.and_then(|place| state.waiting.remove(place));
        (ticket.progress.recall(), removed)
    }

    /// Ends the lane: the running entry stops at the next boundary, nothing is taken in any more.
    /// Gives back what waits, once.
    pub(super) fn end(&self) -> VecDeque<Queued> {
        let mut state = self.state();
        state.ended = true;
        if let Some(running) = &state.running {
            running.ticket.progress.recall();
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.arrived.notify_one();
        waiting
    }

    /// Entries that wait.
    pub(super) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }
}
