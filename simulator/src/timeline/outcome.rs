//! Answers that one can keep.

use std::fmt;

use slicescheduler_gmg::id::{DeviceId, JobId};
use slicescheduler_gmg::plan::{Forecast, Shortage};
use slicescheduler_gmg::units::{Bytes, Nanos};

/// What would happen after some actions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub(super) forecast: Forecast,
}

impl Outcome {
    /// When the last work of `job` would finish; [`Nanos::MAX`], which reads "never", if it would
    /// not run before the horizon.
    pub fn finish(&self, job: JobId) -> Nanos {
        self.forecast.finish_of_job(job).unwrap_or(Nanos::MAX)
    }

    /// When the work of action `index` would finish; [`Nanos::MAX`] if it would not run before the
    /// horizon.
    pub fn finish_of_action(&self, index: usize) -> Nanos {
        self.forecast.finish_of_action(index).unwrap_or(Nanos::MAX)
    }

    /// The most bytes in use on `device` at one time.
    pub fn peak(&self, device: DeviceId) -> Bytes {
        self.forecast.peak(device)
    }

    /// The first shortage of memory anywhere.
    pub fn shortage(&self) -> Option<(DeviceId, Shortage)> {
        self.forecast.first_shortage()
    }

    /// All of it.
    pub fn forecast(&self) -> &Forecast {
        &self.forecast
    }
}

/// How long before its due time something is forecast to happen; negative if it comes too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slack(i64);

impl Slack {
    pub(super) fn between(finish: Nanos, due: Nanos) -> Self {
        let early = i64::try_from((due - finish).get()).unwrap_or(i64::MAX);
        let late = i64::try_from((finish - due).get()).unwrap_or(i64::MAX);
        Self(early - late)
    }

    /// In nanoseconds.
    pub fn nanos(self) -> i64 {
        self.0
    }

    /// True if it comes after its due time.
    pub fn is_late(self) -> bool {
        self.0 < 0
    }
}

impl fmt::Display for Slack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = Nanos(self.0.unsigned_abs());
        if self.is_late() { write!(f, "{size} late") } else { write!(f, "{size} early") }
    }
}
