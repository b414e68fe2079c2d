//! Where the pieces of one answer wait for whoever asked: tokens, or a single vector.
//!
//! A mailbox holds at most as many pieces as the answer may have, so whoever fills it never waits.
//! What must stay true: an end is set once, and nothing comes after it; whoever waits is told of
//! every piece and of the end.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use slicescheduler_gmg::id::RequestId;

use crate::driver::RequestError;
use crate::serve::{Embedding, Token};

/// The next piece, an error, or the end.
pub(super) type Next<T> = Option<Result<T, RequestError>>;

/// A request's name in the graph, once the loop has entered it.
pub(super) type Name = Arc<OnceLock<RequestId>>;

/// Where the answer to a request goes.
#[derive(Clone, Debug)]
pub(super) enum Recipient {
    Tokens(Arc<Mailbox<Token>>),
    Embedding(Arc<Mailbox<Embedding>>),
}

impl Recipient {
    pub(super) fn name(&self) -> &Name {
        match self {
            Self::Tokens(mailbox) => &mailbox.name,
            Self::Embedding(mailbox) => &mailbox.name,
        }
    }

    pub(super) fn end(&self, end: Result<(), RequestError>) {
        match self {
            Self::Tokens(mailbox) => mailbox.end(end),
            Self::Embedding(mailbox) => mailbox.end(end),
        }
    }
}

#[derive(Debug)]
pub(super) struct Mailbox<T> {
    pub(super) name: Name,
    contents: Mutex<Contents<T>>,
    changed: Condvar,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        let contents = Contents { pieces: VecDeque::new(), produced: 0, end: None, abandoned: false, waker: None };
        Self { name: Name::default(), contents: Mutex::new(contents), changed: Condvar::new() }
    }
}

#[derive(Debug)]
struct Contents<T> {
    pieces: VecDeque<T>,
    produced: u32,
    end: Option<Result<(), RequestError>>,
    /// Nobody will look any more.
    abandoned: bool,
    waker: Option<Waker>,
}

impl<T> Contents<T> {
    fn next(&mut self) -> Poll<Next<T>> {
        if let Some(piece) = self.pieces.pop_front() {
            return Poll::Ready(Some(Ok(piece)));
        }
        match &mut self.end {
            None => Poll::Pending,
            Some(end) => Poll::Ready(std::mem::replace(end, Ok(())).err().map(Err)),
        }
    }
}

impl<T> Mailbox<T> {
    fn lock(&self) -> MutexGuard<'_, Contents<T>> {
        // Nothing panics while it is held, and every change leaves it whole.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Contents<T>)) {
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

    /// Adds the piece that `make` makes of its place in the answer.
    pub(super) fn push(&self, make: impl FnOnce(u32) -> T) {
        self.change(|contents| {
            let index = contents.produced;
            contents.produced += 1;
            if !contents.abandoned {
                contents.pieces.push_back(make(index));
            }
        });
    }

    pub(super) fn end(&self, end: Result<(), RequestError>) {
        self.change(|contents| contents.end = Some(end));
    }

    /// True if there is something to take.
    pub(super) fn has_next(&self) -> bool {
        let contents = self.lock();
        !contents.pieces.is_empty() || contents.end.is_some()
    }

    /// What is there, without waiting.
    pub(super) fn try_next(&self) -> Poll<Next<T>> {
        self.lock().next()
    }

    /// What comes next.
    pub(super) fn wait(&self) -> Next<T> {
        let mut contents = self.lock();
        loop {
            match contents.next() {
                Poll::Ready(next) => return next,
                Poll::Pending => contents = self.changed.wait(contents).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// What is there, or a promise to wake.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Next<T>> {
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
        contents.pieces = VecDeque::new();
        contents.end.is_none()
    }
}

#[cfg(test)]
mod tests {
    use slicescheduler_gmg::units::Nanos;

    use super::*;

    fn push(mailbox: &Mailbox<Token>, id: u32) {
        mailbox.push(|index| Token { id, index, at: Nanos::ZERO });
    }

    fn id(next: Poll<Next<Token>>) -> Option<u32> {
        match next {
            Poll::Ready(Some(Ok(token))) => Some(token.id),
            _ => None,
        }
    }

    #[test]
    fn tokens_come_in_order_then_the_error_once_then_nothing() {
        let mailbox = Mailbox::<Token>::default();
        assert!(mailbox.try_next().is_pending());
        push(&mailbox, 7);
        push(&mailbox, 9);
        mailbox.end(Err(RequestError::ShutDown));
        mailbox.end(Ok(()));
        push(&mailbox, 11);
        assert_eq!((id(mailbox.try_next()), id(mailbox.try_next())), (Some(7), Some(9)));
        assert_eq!(mailbox.try_next(), Poll::Ready(Some(Err(RequestError::ShutDown))));
        assert_eq!(mailbox.try_next(), Poll::Ready(None));
        assert_eq!(mailbox.wait(), None);
        assert!(!mailbox.abandon());
    }

    #[test]
    fn a_waiting_task_is_woken_once_per_promise() {
        use std::sync::atomic::{AtomicU32, Ordering};

        #[derive(Default)]
        struct Count(AtomicU32);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        let (mailbox, count) = (Mailbox::<Token>::default(), Arc::new(Count::default()));
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        assert!(mailbox.poll(&mut context).is_pending());
        push(&mailbox, 1);
        push(&mailbox, 2);
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
        let mailbox = Mailbox::<Token>::default();
        push(&mailbox, 1);
        assert!(mailbox.abandon());
        push(&mailbox, 2);
        assert!(mailbox.try_next().is_pending());
    }
}
