//! Where the tokens of one answer wait for whoever asked.
//!
//! A mailbox holds at most as many tokens as the answer may have, so whoever fills it never waits.
//! What must stay true: an end is set once, and nothing comes after it; whoever waits is told of
//! every token and of the end.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use slicescheduler_gmg::id::RequestId;
use slicescheduler_gmg::units::Nanos;

use crate::driver::RequestError;
use crate::serve::Token;

/// The next token, an error, or the end.
pub(super) type Next = Option<Result<Token, RequestError>>;

#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// Set by the loop when it enters the request.
    pub(super) request: OnceLock<RequestId>,
    contents: Mutex<Contents>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Contents {
    tokens: VecDeque<Token>,
    produced: u32,
    end: Option<Result<(), RequestError>>,
    /// Nobody will look any more.
    abandoned: bool,
    waker: Option<Waker>,
}

impl Contents {
    fn next(&mut self) -> Poll<Next> {
        if let Some(token) = self.tokens.pop_front() {
            return Poll::Ready(Some(Ok(token)));
        }
        match &mut self.end {
            None => Poll::Pending,
            Some(end) => Poll::Ready(std::mem::replace(end, Ok(())).err().map(Err)),
        }
    }
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Contents> {
        // Nothing panics while it is held, and every change leaves it whole.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Contents)) {
        let mut contents = self.lock();
        if contents.end.is_some() {
            return;
        }
        change(&mut contents);
        let waker = contents.waker.take();
        drop(contents);
        self.changed.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn push(&self, id: u32, at: Nanos) {
        self.change(|contents| {
            let index = contents.produced;
            contents.produced += 1;
            if !contents.abandoned {
                contents.tokens.push_back(Token { id, index, at });
            }
        });
    }

    pub(super) fn end(&self, end: Result<(), RequestError>) {
        self.change(|contents| contents.end = Some(end));
    }

    /// True if there is something to take.
    pub(super) fn has_next(&self) -> bool {
        let contents = self.lock();
        !contents.tokens.is_empty() || contents.end.is_some()
    }

    /// What is there, without waiting.
    pub(super) fn try_next(&self) -> Poll<Next> {
        self.lock().next()
    }

    /// What comes next.
    pub(super) fn wait(&self) -> Next {
        let mut contents = self.lock();
        loop {
            match contents.next() {
                Poll::Ready(next) => return next,
                Poll::Pending => contents = self.changed.wait(contents).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// What is there, or a promise to wake.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Next> {
        let mut contents = self.lock();
        let next = contents.next();
        if next.is_pending() {
            contents.waker = Some(context.waker().clone());
        }
        next
    }

    /// Nobody will look any more. True if the answer was still to come.
    pub(super) fn abandon(&self) -> bool {
        let mut contents = self.lock();
        contents.abandoned = true;
        contents.waker = None;
        contents.tokens = VecDeque::new();
        contents.end.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(next: Poll<Next>) -> Option<u32> {
        match next {
            Poll::Ready(Some(Ok(token))) => Some(token.id),
            _ => None,
        }
    }

    #[test]
    fn tokens_come_in_order_then_the_error_once_then_nothing() {
        let mailbox = Mailbox::default();
        assert!(mailbox.try_next().is_pending());
        mailbox.push(7, Nanos(1));
        mailbox.push(9, Nanos(2));
        mailbox.end(Err(RequestError::ShutDown));
        mailbox.end(Ok(()));
        mailbox.push(11, Nanos(3));
        assert_eq!((id(mailbox.try_next()), id(mailbox.try_next())), (Some(7), Some(9)));
        assert_eq!(mailbox.try_next(), Poll::Ready(Some(Err(RequestError::ShutDown))));
        assert_eq!(mailbox.try_next(), Poll::Ready(None));
        assert_eq!(mailbox.wait(), None);
        assert!(!mailbox.abandon());
    }

    #[test]
    fn a_waiting_task_is_woken_once_per_promise() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU32, Ordering};

        #[derive(Default)]
        struct Count(AtomicU32);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        let (mailbox, count) = (Mailbox::default(), Arc::new(Count::default()));
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        assert!(mailbox.poll(&mut context).is_pending());
        mailbox.push(1, Nanos::ZERO);
        mailbox.push(2, Nanos::ZERO);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(id(mailbox.poll(&mut context)), Some(1));
        assert_eq!(id(mailbox.poll(&mut context)), Some(2));
        assert!(mailbox.poll(&mut context).is_pending());
        mailbox.end(Ok(()));
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        assert_eq!(mailbox.poll(&mut context), Poll::Ready(None));
    }

    #[test]
    fn an_abandoned_mailbox_keeps_nothing() {
        let mailbox = Mailbox::default();
        mailbox.push(1, Nanos::ZERO);
        assert!(mailbox.abandon());
        mailbox.push(2, Nanos::ZERO);
        assert!(mailbox.try_next().is_pending());
    }
}
