//! What whoever asked holds until the answer is there.

use std::sync::Arc;
use std::task::Poll;

use slicescheduler_gmg::id::RequestId;

use crate::serve::inbox::{Inbox, Message};
use crate::serve::mailbox::{Mailbox, Next};
use crate::serve::stepped::Stepped;

/// A mailbox, and the way to the loop that fills it. Dropping it cancels the request.
pub(super) struct Waiting<T> {
    mailbox: Arc<Mailbox<T>>,
    inbox: Arc<Inbox>,
    /// Whose passes to make while waiting.
    stepped: Option<Arc<Stepped>>,
}

impl<T> Waiting<T> {
    pub(super) fn new(mailbox: Arc<Mailbox<T>>, inbox: Arc<Inbox>, stepped: Option<Arc<Stepped>>) -> Self {
        Self { mailbox, inbox, stepped }
    }

    pub(super) fn request(&self) -> Option<RequestId> {
        self.mailbox.name.get().copied()
    }

    pub(super) fn mailbox(&self) -> &Mailbox<T> {
        &self.mailbox
    }

    /// What comes next; makes the passes of a stepped scheduler that it waits for.
    pub(super) fn next(&self) -> Next<T> {
        let Some(stepped) = &self.stepped else { return self.mailbox.wait() };
        loop {
            match self.mailbox.try_next() {
                Poll::Ready(next) => return next,
                Poll::Pending => stepped.pass_for(&self.mailbox),
            }
        }
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        if self.mailbox.abandon() {
            // A loop that has ended has no use for it.
            let _ = self.inbox.tell(Message::Cancel(self.mailbox.name.clone()));
        }
    }
}
