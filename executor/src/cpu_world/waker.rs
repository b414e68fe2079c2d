//! Ending a wait from another thread.

use crossbeam::channel::{Receiver, Sender, bounded};

/// Ends a wait in [`World::poll`](slicescheduler_gmg::plan::World::poll) of a
/// [`CpuWorld`](super::CpuWorld), for instance because somebody has work for its driver.
///
/// A wake is never lost: one that comes while nobody waits ends the next wait before it begins.
/// Several that come before a wait count as one. Cheap to clone; may outlive its world, and does
/// nothing then.
#[derive(Clone, Debug)]
pub struct Waker(Sender<()>);

impl Waker {
    /// A waker, and the end that a wait listens to.
    pub(super) fn new() -> (Self, Receiver<()>) {
        let (sender, receiver) = bounded(1);
        (Self(sender), receiver)
    }

    /// Makes the wait in progress, or else the next one, return. Never blocks.
    pub fn wake(&self) {
        // Full means that a wake is pending already; disconnected, that nobody will wait again.
        let _ = self.0.try_send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakes_before_a_wait_count_as_one_and_none_is_lost() {
        let (waker, wakes) = Waker::new();
        waker.wake();
        waker.clone().wake();
        assert!(wakes.try_recv().is_ok());
        assert!(wakes.try_recv().is_err());
        waker.wake();
        assert!(wakes.try_recv().is_ok());
        drop(wakes);
        waker.wake();
    }
}
