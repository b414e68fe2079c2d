//! The clock of a real run.

use std::time::Instant;

use slicescheduler_gmg::plan::Clock;
use slicescheduler_gmg::units::Nanos;

/// The monotonic clock of this machine, from zero.
///
/// No crate of the family reads a clock that it was not given. This is the one that the facade gives
/// where a host does not bring its own.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock that shows zero now.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Nanos {
        self.0.elapsed().into()
    }
}
