//! What happened.

use std::ops::Range;

use crate::id::{DeviceId, JobId, LaneId, ModelId, RequestId};
use crate::plan::Fate;
use crate::units::Nanos;

/// Why work failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A kernel reported an error.
    #[error("operator {op} failed: {message}")]
    Kernel {
        /// The operator's number in its template.
        op: u32,
        /// What the kernel said.
        message: String,
    },
    /// The device is gone.
    #[error("{0} is lost")]
    DeviceLost(DeviceId),
}

/// A request that got its last token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The request.
    pub request: RequestId,
    /// Output tokens in all.
    pub produced: u32,
}

/// Something that happened in the world, in the order in which the graph may take it: an event
/// comes after the events that it depends on, whatever their times say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A request was submitted; the graph has it already.
    Arrived {
        /// The request.
        request: RequestId,
        /// When.
        at: Nanos,
    },
    /// Operators started. Worlds may leave this out: [`Event::Finished`] says it again.
    Started {
        /// Their job.
        job: JobId,
        /// When.
        at: Nanos,
    },
    /// Operators finished.
    Finished {
        /// Their job.
        job: JobId,
        /// Which.
        ops: Range<u32>,
        /// Where.
        lane: LaneId,
        /// When the first of them started.
        started: Nanos,
        /// When the last of them finished.
        at: Nanos,
        /// Output tokens, for worlds that compute real ones.
        tokens: Vec<(RequestId, u32)>,
        /// Requests of the batch for which this was the last token.
        ended: Vec<Ended>,
    },
    /// Operators were taken back at a boundary.
    Recalled {
        /// Their job.
        job: JobId,
        /// Where they were.
        lane: LaneId,
        /// The operators that did run.
        done: Range<u32>,
        /// One past the last operator that was taken back.
        end: u32,
        /// What becomes of the activations.
        fate: Fate,
        /// When the first that did run started.
        started: Nanos,
        /// When the lane became free.
        at: Nanos,
    },
    /// A job failed.
    Failed {
        /// The job.
        job: JobId,
        /// Where it was.
        lane: LaneId,
        /// When.
        at: Nanos,
        /// Why.
        failure: Failure,
    },
    /// Weights arrived.
    WeightsLoaded {
        /// The model.
        model: ModelId,
        /// Where.
        device: DeviceId,
        /// When.
        at: Nanos,
    },
    /// A device is gone, with everything on it.
    DeviceLost {
        /// The device.
        device: DeviceId,
        /// When.
        at: Nanos,
    },
    /// The time that a plan asked to be woken at.
    Timer {
        /// When.
        at: Nanos,
    },
}

impl Event {
    /// When it happened.
    pub fn at(&self) -> Nanos {
        match *self {
            Self::Arrived { at, .. }
            | Self::Started { at, .. }
            | Self::Finished { at, .. }
            | Self::Recalled { at, .. }
            | Self::Failed { at, .. }
            | Self::WeightsLoaded { at, .. }
            | Self::DeviceLost { at, .. }
            | Self::Timer { at } => at,
        }
    }
}
