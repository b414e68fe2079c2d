//! Every change of the graph.
//!
//! An *intent* is somebody's wish: it is checked, and refused with a typed error that leaves the
//! graph as it was. An *observation* is what happened: it is always absorbed, and one that
//! contradicts the graph is reported as a [`Divergence`].

use std::ops::Range;
use std::sync::Arc;

use crate::id::{ContainerId, DeviceId, JobId, LaneId, LinkId, ModelId, RequestId, TenantId, TransferId, Version};
use crate::job::JobSpec;
use crate::memory::{DeviceLayout, Owned};
use crate::plan::{Event, Rank, Source};
use crate::tenant::{Container, Model, Slo, Tenant};
use crate::units::{Bytes, Nanos};

/// A request that is to be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NewRequest {
    /// Who asks.
    pub tenant: TenantId,
    /// When it arrived.
    pub arrival: Nanos,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// The most tokens that may be produced.
    pub max_output: u32,
}

/// A wish.
///
/// The order of the variants is part of the serialized form. Those with models come last, since they
/// are written in a form of their own.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Intent {
    /// Divide the memory of a device. Only before anything is reserved on it.
    LayOut {
        /// The device.
        device: DeviceId,
        /// How.
        layout: DeviceLayout,
    },
    /// Enter a tenant.
    AddTenant(Arc<Tenant>),
    /// Enter a request.
    Submit(NewRequest),
    /// Enter a job. Refused if one of [`JobSpec::after`] will never be done.
    SubmitJob(Arc<JobSpec>),
    /// Enter the jobs of one iteration on several ranks, by rank; see [`gang`](crate::gang).
    SubmitGang(Arc<[Arc<JobSpec>]>),
    /// Hand pending operators to a lane. The first dispatch of a job reserves its activations and
    /// the KV blocks of [`JobSpec::growth`].
    Dispatch {
        /// The job.
        job: JobId,
        /// Which operators.
        ops: Range<u32>,
        /// Where.
        lane: LaneId,
        /// With what right of way.
        rank: Rank,
    },
    /// Cancel every operator of a job that is not on a lane, and free its activations. The jobs of
    /// its gang, and jobs that come after it, are cancelled with it: a job that comes after one that
    /// failed, was cancelled or is lost could only read what was never computed.
    Cancel {
        /// The job.
        job: JobId,
    },
    /// Remove a job none of whose operators may still run.
    Retire {
        /// The job.
        job: JobId,
    },
    /// Remove a request and free what it holds.
    RetireRequest {
        /// The request.
        request: RequestId,
    },
    /// Refuse a request that holds nothing.
    Reject {
        /// The request.
        request: RequestId,
    },
    /// Free the KV sequence of a request, which goes back to waiting. Refused while a job that uses it is on a lane of
    /// the device, or of another that holds a part of it.
    ReleaseKv {
        /// The request.
        request: RequestId,
        /// Where the sequence lies.
        device: DeviceId,
    },
    /// Reserve a slot for weights that are about to be copied.
    LoadWeights {
        /// The model.
        model: ModelId,
        /// Where to.
        device: DeviceId,
        /// Where from.
        source: Source,
    },
    /// Free the weights of a model on a device.
    EvictWeights {
        /// The model.
        model: ModelId,
        /// Where.
        device: DeviceId,
    },
    /// Let the weights of a model go as soon as what uses them has ended; nothing new may use them.
    /// The world says when they are gone: [`Event::WeightsEvicted`].
    DrainWeights {
        /// The model.
        model: ModelId,
        /// Where.
        device: DeviceId,
    },
    /// Reserve a slot for the weights of some operators of a model, which are about to be copied.
    LoadOps {
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
        /// The operators, as they were loaded.
        ops: Range<u32>,
        /// Where.
        device: DeviceId,
    },
    /// Reserve a buffer on a device for a transfer that is about to begin.
    ReserveStaging {
        /// The transfer.
        transfer: TransferId,
        /// Where.
        device: DeviceId,
        /// How large.
        bytes: Bytes,
    },
    /// Free the buffer of a transfer that has ended.
    ReleaseStaging {
        /// The transfer.
        transfer: TransferId,
        /// Where.
        device: DeviceId,
    },
    /// Count bytes of the host on a device.
    ReserveExternal {
        /// Where.
        device: DeviceId,
        /// How many.
        bytes: Bytes,
    },
    /// Bytes of the host are gone.
    ReleaseExternal {
        /// Where.
        device: DeviceId,
        /// How many.
        bytes: Bytes,
    },
    /// A lost device is back, empty.
    ReturnDevice {
        /// The device.
        device: DeviceId,
    },
    /// Begin the sequence of a waiting request with the blocks of the longest beginning that is present;
    /// [`Effect::Shared`] says how many. It stays waiting if there is none. See
    /// [`KvPool::share`](crate::memory::KvPool::share).
    SharePrefix {
        /// The request.
        request: RequestId,
        /// Where.
        device: DeviceId,
        /// The chained hashes of its full blocks, from the first.
        hashes: Arc<[u64]>,
    },
    /// Let blocks of a sequence be found by what they hold, while it lasts and after, until they are
    /// needed. From the moment on at which they are to be computed, if whoever shares them runs later on the
    /// same lane; otherwise from when they are.
    PublishBlocks {
        /// The request.
        request: RequestId,
        /// Where.
        device: DeviceId,
        /// The first of them, counted from the beginning of the sequence.
        first: u32,
        /// Their chained hashes.
        hashes: Arc<[u64]>,
    },
    /// Begin the sequence of a waiting request as a copy of that of another of its tenant, all its parts:
    /// both hold the same blocks until one is written.
    ForkSequence {
        /// Whose sequence there is.
        of: RequestId,
        /// The request.
        request: RequestId,
    },
    /// Make a block of a sequence one that can be written, by a copy if others hold it;
    /// [`Effect::Owned`] says which.
    OwnBlock {
        /// The request.
        request: RequestId,
        /// Where.
        device: DeviceId,
        /// The block, counted from the beginning of the sequence.
        block: u32,
    },
    /// Forget what a tenant's ended sequences left in KV blocks:
    /// [`Lent::Prefixes`](crate::memory::Lent::Prefixes).
    DropPrefixes {
        /// The tenant.
        tenant: TenantId,
        /// Where.
        device: DeviceId,
    },
    /// Let the KV pool of a device have so many blocks in the part for weights, from its end; those that
    /// it has there beyond that go back, and what they hold moves: [`Effect::Moved`] says where to. Refused while
    /// weights lie there, while sequences have more blocks than would remain, and, if blocks go back, while
    /// anything is on the device's lanes.
    BorrowSlots {
        /// Where.
        device: DeviceId,
        /// KV blocks in the part for weights, in all.
        blocks: u32,
    },
    /// Give a request that has not ended a service level of its own, in place of its tenant's. Refused for tenants
    /// without one.
    SetSlo {
        /// The request.
        request: RequestId,
        /// When its tokens are due.
        slo: Slo,
    },
    /// Enter a model of a tenant and the container that holds it, weights resident.
    #[cfg_attr(feature = "serde", serde(skip))]
    AddModel {
        /// The tenant.
        tenant: TenantId,
        /// The model.
        model: Arc<Model>,
        /// Its devices.
        container: Arc<Container>,
    },
    /// Enter the stages of a model of a tenant, each a model, and the container that holds them.
    #[cfg_attr(feature = "serde", serde(skip))]
    AddPipeline {
        /// The tenant.
        tenant: TenantId,
        /// The stages, in order.
        stages: Arc<[Arc<Model>]>,
        /// Its devices, in a [`Layout::Pipeline`](crate::tenant::Layout::Pipeline) of as many stages.
        container: Arc<Container>,
    },
    /// Enter a further model, of any tenant, into a container that is there: from then on its tenant
    /// is at home on the container's devices.
    #[cfg_attr(feature = "serde", serde(skip))]
    ShareContainer {
        /// The tenant.
        tenant: TenantId,
        /// The model.
        model: Arc<Model>,
        /// The container, not a pipeline.
        container: ContainerId,
    },
}

/// A change.
#[derive(Clone, Debug)]
pub enum Delta {
    /// A wish.
    Intent(Intent),
    /// What happened.
    Observed(Event),
}

/// What is left of a change when the machine that planned it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// It is logged and replicated: tenants, models, requests, and who owns which memory.
    Durable,
    /// Whoever runs the work says it again: states of operators, times, progress.
    Soft,
}

impl Delta {
    /// Whether the change must outlive the machine that planned it.
    ///
    /// The durable deltas of a log, replayed alone, give a graph with the same tenants, models,
    /// containers, layouts and links, the same weights on the same devices, and every request that was
    /// not retired or rejected, waiting. A [`Resync`](Event::Resync) from each agent then brings it to
    /// what is really held.
    pub fn durability(&self) -> Durability {
        use Durability::{Durable, Soft};
        match self {
            Self::Intent(intent) => match intent {
                Intent::LayOut { .. }
                | Intent::AddTenant(_)
                | Intent::AddModel { .. }
                | Intent::AddPipeline { .. }
                | Intent::ShareContainer { .. }
                | Intent::Submit(_)
                | Intent::SetSlo { .. }
                | Intent::RetireRequest { .. }
                | Intent::Reject { .. }
                | Intent::LoadWeights { .. }
                | Intent::EvictWeights { .. }
                | Intent::DrainWeights { .. }
                | Intent::LoadOps { .. }
                | Intent::EvictOps { .. }
                | Intent::ReturnDevice { .. }
                | Intent::BorrowSlots { .. } => Durable,
                Intent::SubmitJob(_)
                | Intent::SubmitGang(_)
                | Intent::Dispatch { .. }
                | Intent::Cancel { .. }
                | Intent::Retire { .. }
                | Intent::ReleaseKv { .. }
                | Intent::ReserveStaging { .. }
                | Intent::ReleaseStaging { .. }
                | Intent::ReserveExternal { .. }
                | Intent::ReleaseExternal { .. }
                | Intent::SharePrefix { .. }
                | Intent::PublishBlocks { .. }
                | Intent::ForkSequence { .. }
                | Intent::OwnBlock { .. }
                | Intent::DropPrefixes { .. } => Soft,
            },
            Self::Observed(event) => match event {
                Event::WeightsLoaded { .. }
                | Event::OpsLoaded { .. }
                | Event::WeightsEvicted { .. }
                | Event::DeviceLost { .. }
                // It may take weights away.
                | Event::Resync { .. }
                | Event::LinkFailed { .. }
                | Event::LinkReturned { .. } => Durable,
                Event::Arrived { .. }
                | Event::Started { .. }
                | Event::Finished { .. }
                | Event::Recalled { .. }
                | Event::Failed { .. }
                | Event::WeightsProgress { .. }
                | Event::Timer { .. } => Soft,
            },
        }
    }
}

impl From<Intent> for Delta {
    fn from(intent: Intent) -> Self {
        Self::Intent(intent)
    }
}

impl From<Event> for Delta {
    fn from(event: Event) -> Self {
        Self::Observed(event)
    }
}

/// What a delta did beyond what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing more.
    None,
    /// A tenant was entered.
    Tenant(TenantId),
    /// A model and its container were entered.
    Model(ModelId, ContainerId),
    /// The stages of a model, one model each, and their container were entered.
    Stages(Range<u32>, ContainerId),
    /// A request was entered.
    Request(RequestId),
    /// A job was entered.
    Job(JobId),
    /// The jobs of a gang were entered, by rank.
    Gang(Arc<[JobId]>),
    /// So many blocks were found.
    Shared {
        /// Blocks with which the sequence begins; none: it did not begin.
        blocks: u32,
    },
    /// The block is the sequence's own.
    Owned(Owned),
    /// What these KV blocks hold moves, from the first to the second of each pair.
    Moved(Arc<[(u32, u32)]>),
    /// The observation contradicts the graph.
    Diverged(Divergence),
}

/// An observation that the graph did not expect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Divergence {
    /// It is about a job that does not exist.
    #[error("{0} was reported, but does not exist")]
    UnknownJob(JobId),
    /// It is about operators in another state.
    #[error("operators {}..{} of {job} were reported {what}, which they could not become", ops.start, ops.end)]
    Unexpected {
        /// The job.
        job: JobId,
        /// The operators.
        ops: Range<u32>,
        /// What was reported.
        what: &'static str,
    },
    /// Weights arrived that nobody asked for.
    #[error("weights of {model} arrived on {device}, where none were expected")]
    UnexpectedWeights {
        /// The model.
        model: ModelId,
        /// Where.
        device: DeviceId,
    },
    /// A request ended that does not exist or has ended.
    #[error("{0} was reported as ended, but is not running")]
    UnknownRequest(RequestId),
    /// A device that does not exist.
    #[error("{0} was reported lost, but does not exist")]
    UnknownDevice(DeviceId),
    /// A link that does not exist, or was in that state already.
    #[error("{link} was reported {what}, which it could not become")]
    UnexpectedLink {
        /// The link.
        link: LinkId,
        /// What was reported.
        what: &'static str,
    },
    /// The graph said something else about a device than whoever runs it. It says the same now.
    #[error(
        "{device} was out of date: {recalled} operators were not on its lanes, {jobs} jobs had no activations, {models} \
         models no weights and {sequences} sequences no blocks there; {unknown} reported things were not known"
    )]
    OutOfDate {
        /// The first device of which that is so.
        device: DeviceId,
        /// Operators that went back to pending.
        recalled: u32,
        /// Jobs that start over.
        jobs: u32,
        /// Models, or parts of them, that are absent now.
        models: u32,
        /// Sequences that are gone.
        sequences: u32,
        /// Things that were reported and are not in the graph.
        unknown: u32,
    },
}

/// A delta that was applied.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The version that it made.
    pub version: Version,
    /// The delta.
    pub delta: Delta,
    /// What else it did.
    pub effect: Effect,
}
