//! What a policy wants, and what became of it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::delta::Applied;
use crate::error::GmgError;
use crate::graph::OpGraph;
use crate::id::{DeviceId, JobId, LaneId, ModelId, ReplicaId, RequestId, Version};
use crate::job::JobSpec;
use crate::memory::Region;
use crate::units::Nanos;

/// Who goes first on a lane. A running entry yields, at the next operator boundary, to any entry
/// of a strictly higher rank that is waiting on its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Rank {
    /// Best-effort work on somebody else's device.
    GuestBestEffort,
    /// Best-effort work on its own device.
    OwnerBestEffort,
    /// Latency-sensitive work on somebody else's device.
    GuestLatency,
    /// Latency-sensitive work on its own device.
    OwnerLatency,
}

/// What becomes of the activations of work that is recalled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Fate {
    /// They stay; the job continues from where it was cut.
    #[default]
    Keep,
    /// They go; the job starts over.
    Drop,
}

/// Where weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Source {
    /// Another device that has them.
    Device(DeviceId),
    /// The memory of the device's machine.
    Host,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => device.fmt(f),
            Self::Host => f.pad("host memory"),
        }
    }
}

/// How large an iteration may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchLimits {
    /// Most tokens computed in the iteration.
    pub tokens: u32,
    /// Most sequences in the iteration.
    pub sequences: u32,
    /// Most KV blocks that it may reserve.
    pub new_blocks: u32,
    /// KV blocks of these that must stay free when a waiting sequence is admitted; sequences that
    /// run already may grow into them.
    pub keep_free: u32,
    /// Waiting sequences whose next token was due before this time are passed over: they are late
    /// already, and the iteration is for those that are not. Zero passes over nobody.
    pub not_due_before: Nanos,
}

/// What to run.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A job that does not exist yet.
    New(Box<JobSpec>),
    /// Operators of a job of the graph.
    Existing {
        /// The job.
        job: JobId,
        /// Its operators.
        ops: Range<u32>,
    },
}

/// One thing that a policy wants.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Action {
    /// Let a replica form its next iteration and run it. Batching turns this into
    /// [`Action::Run`]; [`Gmg::accept`](crate::Gmg::accept) drops one that it is given.
    FormBatch {
        /// Whose iteration.
        replica: ReplicaId,
        /// Where.
        lane: LaneId,
        /// How large.
        limits: BatchLimits,
        /// With what right of way.
        rank: Rank,
    },
    /// Run operators on a lane, behind what is queued there with the same or a higher rank.
    Run {
        /// What.
        work: Work,
        /// Where.
        lane: LaneId,
        /// With what right of way.
        rank: Rank,
    },
    /// Run the jobs of a gang that does not exist yet, one lane each, by rank, each on a device of its
    /// own: all of them, or none.
    RunGang {
        /// The jobs and their lanes.
        members: Vec<(JobSpec, LaneId)>,
        /// With what right of way, all of them.
        rank: Rank,
    },
    /// Take a dispatched job back at its next operator boundary; of a gang, all of its jobs, at the same operator.
    Recall {
        /// The job.
        job: JobId,
        /// What becomes of its activations.
        fate: Fate,
    },
    /// Give up a job that is not on a lane, with what it computed; of a gang, all of its jobs.
    Cancel {
        /// The job.
        job: JobId,
    },
    /// Bring the weights of a model to a device.
    Prefetch {
        /// The model.
        model: ModelId,
        /// Where to.
        device: DeviceId,
        /// Where from.
        source: Source,
    },
    /// Bring the weights of some operators of a model to a device.
    PrefetchOps {
        /// The model.
        model: ModelId,
        /// The operators.
        ops: Range<u32>,
        /// Where to.
        device: DeviceId,
        /// Where from.
        source: Source,
    },
    /// Free the weights of operators that were loaded together.
    EvictOps {
        /// The model.
        model: ModelId,
        /// The operators.
        ops: Range<u32>,
        /// Where.
        device: DeviceId,
    },
    /// Free the weights of a model on a device.
    EvictWeights {
        /// The model.
        model: ModelId,
        /// Where.
        device: DeviceId,
    },
    /// Let the KV pool of a device have so many blocks in the part for weights, in all.
    BorrowSlots {
        /// Where.
        device: DeviceId,
        /// KV blocks there.
        blocks: u32,
    },
    /// Free KV blocks by preempting sequences of a replica, the youngest first. Batching carries
    /// it out; [`Gmg::accept`](crate::Gmg::accept) drops one that it is given.
    EvictSequences {
        /// Whose sequences.
        replica: ReplicaId,
        /// At least this many blocks.
        blocks: u32,
    },
    /// Free the KV sequence of a request; its tokens will be recomputed.
    ReleaseKv {
        /// The request.
        request: RequestId,
        /// Where its sequence lies.
        device: DeviceId,
    },
    /// Refuse a request.
    Reject {
        /// The request.
        request: RequestId,
        /// Why, for the user.
        reason: &'static str,
    },
}

/// What a policy wants at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The version of the graph that the plan was made for.
    pub based_on: Version,
    /// In the order in which they are to be accepted.
    pub actions: SmallVec<[Action; 2]>,
    /// When the policy wants to be asked again, whatever happens.
    pub wake_at: Option<Nanos>,
}

impl Plan {
    /// A plan without actions.
    pub fn nothing(based_on: Version) -> Self {
        Self { based_on, ..Self::default() }
    }

    /// Asks for a wake-up at `at` unless an earlier one is planned.
    pub fn wake(&mut self, at: Nanos) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }
}

/// Operators on their way to a lane.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Their job.
    pub job: JobId,
    /// What the job is.
    pub spec: Arc<JobSpec>,
    /// The job's operators.
    pub template: Arc<OpGraph>,
    /// Which of them.
    pub ops: Range<u32>,
    /// Where they run.
    pub lane: LaneId,
    /// Their right of way.
    pub rank: Rank,
    /// Where the job's activations lie.
    pub arena: Region,
}

/// What a world is told to do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Command {
    /// Run operators.
    Launch(Launch),
    /// Stop a job at its next operator boundary.
    Recall {
        /// The job.
        job: JobId,
        /// The lane it was handed to.
        lane: LaneId,
        /// What becomes of its activations.
        fate: Fate,
    },
    /// Copy the weights of a model to a device.
    Prefetch {
        /// The model.
        model: ModelId,
        /// Where to.
        device: DeviceId,
        /// Where from.
        source: Source,
        /// Where they will lie.
        region: Region,
    },
    /// Copy the weights of some operators of a model to a device.
    PrefetchOps {
        /// The model.
        model: ModelId,
        /// The operators.
        ops: Range<u32>,
        /// Where to.
        device: DeviceId,
        /// Where from.
        source: Source,
        /// Where they will lie.
        region: Region,
    },
    /// The weights of these operators are no longer needed on a device.
    EvictOps {
        /// The model.
        model: ModelId,
        /// The operators.
        ops: Range<u32>,
        /// Where.
        device: DeviceId,
    },
    /// The weights of a model are no longer needed on a device.
    EvictWeights {
        /// The model.
        model: ModelId,
        /// Where.
        device: DeviceId,
    },
    /// Copy what KV blocks of a device hold, from the first to the second of each pair, before anything
    /// that is launched there later. Nothing is on its lanes.
    MoveBlocks {
        /// The device.
        device: DeviceId,
        /// From where to where. No block is in two pairs.
        moves: Arc<[(u32, u32)]>,
    },
}

/// An action that was not carried out.
#[derive(Clone, Debug)]
pub struct Dropped {
    /// Which action of the plan.
    pub index: usize,
    /// The action, given back.
    pub action: Action,
    /// Why.
    pub reason: GmgError,
}

/// What became of a plan.
#[derive(Clone, Debug, Default)]
pub struct Accepted {
    /// What the world is to do, in order.
    pub commands: SmallVec<[Command; 2]>,
    /// The deltas that this made, in order, for whoever follows the graph.
    pub applied: SmallVec<[Applied; 2]>,
    /// Actions that were not carried out. The graph is as if they had not been asked for.
    pub dropped: SmallVec<[Dropped; 1]>,
}

impl Action {
    /// Runs operators of a job on a lane, giving way to everything else there. Change the right of
    /// way with [`with_rank`](Self::with_rank).
    pub fn run(job: JobId, ops: Range<u32>, lane: LaneId) -> Self {
        Self::Run { work: Work::Existing { job, ops }, lane, rank: Rank::GuestBestEffort }
    }

    /// Runs a job that does not exist yet on a lane, giving way to everything else there.
    pub fn run_new(spec: JobSpec, lane: LaneId) -> Self {
        Self::Run { work: Work::New(Box::new(spec)), lane, rank: Rank::GuestBestEffort }
    }

    /// Sets the right of way. Actions without one stay as they are.
    #[must_use]
    pub fn with_rank(mut self, right_of_way: Rank) -> Self {
        if let Self::Run { rank, .. } | Self::RunGang { rank, .. } | Self::FormBatch { rank, .. } = &mut self {
            *rank = right_of_way;
        }
        self
    }

    /// Brings the weights of a model to a device.
    pub fn prefetch(model: ModelId, device: DeviceId, source: Source) -> Self {
        Self::Prefetch { model, device, source }
    }
}
