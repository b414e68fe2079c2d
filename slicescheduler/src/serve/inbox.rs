//! How requests reach the loop from other threads.
//!
//! The inbox is bounded: a request is refused while as many as allowed are under way, and each of
//! these can be cancelled once. It has one end, after which nothing is taken; what was in it then
//! is given back to be answered, so no request is ever left without an end.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam::channel::Sender;
use slicescheduler_executor::cpu_world::Waker;
use slicescheduler_gmg::id::TenantId;
use slicescheduler_gmg::units::Nanos;

use crate::driver::RequestError;
use crate::serve::mailbox::{Name, Recipient};
use crate::serve::{Request, ServeError, Status};

/// What other threads tell the loop.
#[derive(Debug)]
pub(super) enum Message {
    Submit(Submission),
    Cancel(Name),
    Report(Sender<Status>),
}

/// A request that was checked.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) tenant: TenantId,
    pub(super) arrival: Nanos,
    pub(super) request: Request,
    pub(super) recipient: Recipient,
}

#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<State>,
    waker: Waker,
    limit: usize,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Message>,
    /// Requests that were taken and have not ended.
    under_way: usize,
    /// The loop should end.
    closing: bool,
    /// The loop has ended, and why.
    closed: Option<RequestError>,
}

impl Inbox {
    pub(super) fn new(waker: Waker, limit: usize) -> Self {
        Self { state: Mutex::default(), waker, limit }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a request to the loop.
    pub(super) fn submit(&self, submission: Submission) -> Result<(), ServeError> {
        let mut state = self.lock();
        if let Some(reason) = &state.closed {
            return Err(ServeError::Ended(reason.clone()));
        }
        if state.under_way >= self.limit {
            return Err(ServeError::Overloaded { limit: self.limit });
        }
        state.under_way += 1;
        state.messages.push_back(Message::Submit(submission));
        drop(state);
        self.waker.wake();
        Ok(())
    }

    /// Tells the loop something that is not a request.
    pub(super) fn tell(&self, message: Message) -> Result<(), RequestError> {
        let mut state = self.lock();
        if let Some(reason) = &state.closed {
            return Err(reason.clone());
        }
        state.messages.push_back(message);
        drop(state);
        self.waker.wake();
        Ok(())
    }

    /// Moves all messages to `into`.
    pub(super) fn take(&self, into: &mut VecDeque<Message>) {
        into.append(&mut self.lock().messages);
    }

    /// A request has ended.
    pub(super) fn ended(&self) {
        let mut state = self.lock();
        state.under_way = state.under_way.saturating_sub(1);
    }

    /// Requests that were taken and have not ended.
    pub(super) fn under_way(&self) -> usize {
        self.lock().under_way
    }

    /// Ends a wait of the loop.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Asks the loop to end.
    pub(super) fn ask_to_close(&self) {
        self.lock().closing = true;
        self.waker.wake();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.lock().closing
    }

    /// Takes nothing any more, for this reason. Returns what was not taken out.
    pub(super) fn close(&self, reason: RequestError) -> VecDeque<Message> {
        let mut state = self.lock();
        state.closed.get_or_insert(reason);
        state.under_way = 0;
        std::mem::take(&mut state.messages)
    }

    /// Why nothing is taken any more, once that is so.
    pub(super) fn closed(&self) -> Option<RequestError> {
        self.lock().closed.clone()
    }
}
