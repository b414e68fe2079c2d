//! What happened.

use std::ops::Range;

use crate::id::{DeviceId, JobId, LaneId, LinkId, ModelId, RequestId};
use crate::plan::Fate;
use crate::units::{Bytes, Nanos};

/// Why work failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Ended {
    /// The request.
    pub request: RequestId,
    /// Output tokens in all.
    pub produced: u32,
}

/// All that a device holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceReport {
    /// The device.
    pub device: DeviceId,
    /// Operators on its lanes: lane, job, which.
    pub queued: Vec<(LaneId, JobId, Range<u32>)>,
    /// Jobs whose activations are there.
    pub jobs: Vec<JobId>,
    /// Models whose weights are there or on their way, whole or in part.
    pub models: Vec<ModelId>,
    /// Requests whose sequences are there.
    pub sequences: Vec<RequestId>,
}

/// Something that happened in the world, in the order in which the graph may take it: an event
/// comes after the events that it depends on, whatever their times say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    /// Some of the weights that are loading have arrived: of a whole model, or of operators that were
    /// loaded together.
    WeightsProgress {
        /// The model.
        model: ModelId,
        /// The operators; all of them for a whole model.
        ops: Range<u32>,
        /// Where.
        device: DeviceId,
        /// How much is there, in all.
        loaded: Bytes,
        /// When.
        at: Nanos,
    },
    /// The weights of operators that were loaded together have arrived.
    OpsLoaded {
        /// The model.
        model: ModelId,
        /// The operators.
        ops: Range<u32>,
        /// Where.
        device: DeviceId,
        /// When.
        at: Nanos,
    },
    /// Weights that were to go are gone.
    WeightsEvicted {
        /// The model.
        model: ModelId,
        /// Where.
        device: DeviceId,
        /// When.
        at: Nanos,
    },
    /// A link carries nothing any more.
    LinkFailed {
        /// The link.
        link: LinkId,
        /// When.
        at: Nanos,
    },
    /// A failed link carries data again.
    LinkReturned {
        /// The link.
        link: LinkId,
        /// When.
        at: Nanos,
    },
    /// Whoever runs some devices says all that they hold. What the graph has there beyond that is no
    /// more: operators go back to pending, jobs without activations start over, sequences are to be
    /// recomputed, weights are absent.
    Resync {
        /// What the devices hold.
        devices: Vec<DeviceReport>,
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
            | Self::WeightsProgress { at, .. }
            | Self::OpsLoaded { at, .. }
            | Self::WeightsEvicted { at, .. }
            | Self::LinkFailed { at, .. }
            | Self::LinkReturned { at, .. }
            | Self::Resync { at, .. }
            | Self::DeviceLost { at, .. }
            | Self::Timer { at } => at,
        }
    }
}
