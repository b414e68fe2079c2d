//! Atomics, locks and shared ownership of what several threads work on at a time: the standard
//! library's, or those of shuttle, under which `interleavings` tries schedules of it
//! (`RUSTFLAGS="--cfg shuttle" cargo test -p slicescheduler-executor --lib interleavings`).

#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

pub(crate) use std::sync::PoisonError;
pub(crate) use std::sync::atomic::Ordering;

#[cfg(not(shuttle))]
pub(crate) use crossbeam::deque::{Steal, Stealer, Worker as Deque};
#[cfg(shuttle)]
pub(crate) use deque::{Deque, Steal, Stealer};

/// The part of crossbeam's deque that is used here, behind a lock that shuttle knows: the deque itself
/// is tried by its authors, what is around it here.
#[cfg(shuttle)]
mod deque {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use super::{Mutex, MutexGuard, PoisonError};

    #[derive(Debug)]
    pub(crate) struct Deque<T>(Stealer<T>);

    #[derive(Debug)]
    pub(crate) struct Stealer<T>(Arc<Mutex<VecDeque<T>>>);

    #[derive(Debug)]
    #[allow(dead_code, reason = "crossbeam's may ask to be tried again")]
    pub(crate) enum Steal<T> {
        Empty,
        Success(T),
        Retry,
    }

    impl<T> Stealer<T> {
        fn items(&self) -> MutexGuard<'_, VecDeque<T>> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn steal(&self) -> Steal<T> {
            self.items().pop_front().map_or(Steal::Empty, Steal::Success)
        }

        pub(crate) fn steal_batch_and_pop(&self, into: &Deque<T>) -> Steal<T> {
            let mut batch: VecDeque<T> = {
                let mut items = self.items();
                let half = items.len().div_ceil(2);
                items.drain(..half).collect()
            };
            let Some(first) = batch.pop_front() else { return Steal::Empty };
            into.0.items().extend(batch);
            Steal::Success(first)
        }
    }

    impl<T> Deque<T> {
        pub(crate) fn new_lifo() -> Self {
            Self(Stealer(Arc::default()))
        }

        pub(crate) fn stealer(&self) -> Stealer<T> {
            Stealer(self.0.0.clone())
        }

        pub(crate) fn push(&self, item: T) {
            self.0.items().push_back(item);
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.0.items().pop_back()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.0.items().is_empty()
        }
    }
}
