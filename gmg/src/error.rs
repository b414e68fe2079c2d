//! Everything that can be wrong with what a caller asks for.

use std::ops::Range;
use std::sync::Arc;

use crate::id::{ContainerId, DeviceId, JobId, LaneId, ModelId, RequestId, TenantId, TransferId};
use crate::plan::Source;
use crate::units::Bytes;

/// Why the graph refused. It is then as if nothing had been asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GmgError {
    /// The job is gone.
    #[error("{0} does not exist (any more)")]
    NoSuchJob(JobId),
    /// The model is unknown.
    #[error("{0} does not exist")]
    NoSuchModel(ModelId),
    /// The tenant is unknown.
    #[error("{0} does not exist")]
    NoSuchTenant(TenantId),
    /// The tenant's requests have no due times, so none of them has a service level of its own.
    #[error("{0} has no service level, so its requests have none of their own")]
    NoDueTimes(TenantId),
    /// The request is gone or ended.
    #[error("{0} does not exist or has ended")]
    NoSuchRequest(RequestId),
    /// The lane does not exist.
    #[error("{0} does not exist")]
    NoSuchLane(LaneId),
    /// The device does not exist.
    #[error("{0} does not exist, the cluster has {1}")]
    NoSuchDevice(DeviceId, usize),
    /// The device failed.
    #[error("{0} is lost")]
    DeviceLost(DeviceId),
    /// The device did not fail, so it cannot return.
    #[error("{0} is not lost; only a lost device returns")]
    NotLost(DeviceId),
    /// More bytes of the host are released than are reserved.
    #[error("{bytes} of the host are to be released on {device}, where {reserved} are reserved")]
    NotReserved {
        /// Where.
        device: DeviceId,
        /// How many.
        bytes: Bytes,
        /// How many there are.
        reserved: Bytes,
    },
    /// A second tenant of the same name.
    #[error("tenant {0:?} exists already; names are unique")]
    DuplicateTenant(Arc<str>),
    /// A container without devices.
    #[error("the container of tenant {0:?} has no devices; it needs at least one")]
    EmptyContainer(Arc<str>),
    /// A container whose devices are not in order.
    #[error("the container of tenant {tenant:?} names {device} behind {before}: expected ascending devices")]
    UnsortedContainer {
        /// Whose container.
        tenant: Arc<str>,
        /// The first device out of order.
        device: DeviceId,
        /// The one named before it.
        before: DeviceId,
    },
    /// A device in two containers.
    #[error("{device} belongs to {container} already; a device is in one container")]
    DeviceTaken {
        /// The device.
        device: DeviceId,
        /// Whose it is.
        container: ContainerId,
    },
    /// A container whose devices do not make whole replicas.
    #[error(
        "the container of tenant {tenant:?} has {devices} devices: expected a multiple of {ranks}, the ranks of a replica"
    )]
    UnevenContainer {
        /// Whose container.
        tenant: Arc<str>,
        /// How many devices it has.
        devices: usize,
        /// How many a replica takes.
        ranks: u32,
    },
    /// The container is not laid out for what it is to hold.
    #[error("the container of tenant {tenant:?} is laid out as {found:?}: expected {expected}")]
    WrongLayout {
        /// Whose container.
        tenant: Arc<str>,
        /// Its layout.
        found: crate::tenant::Layout,
        /// What would be right.
        expected: &'static str,
    },
    /// The container is unknown.
    #[error("{0} does not exist")]
    NoSuchContainer(ContainerId),
    /// A model that its container cannot hold.
    #[error(
        "tenant {tenant:?}: model {model} needs {weights} of weights on {device}, which has {available} for weights \
         left in one piece, of {total} laid out for them"
    )]
    ModelDoesNotFit {
        /// Whose model.
        tenant: Arc<str>,
        /// Its name.
        model: Arc<str>,
        /// Bytes of its weights.
        weights: Bytes,
        /// Where.
        device: DeviceId,
        /// What is left.
        available: Bytes,
        /// What the layout has for weights.
        total: Bytes,
    },
    /// A layout for a device that is in use.
    #[error("{0} has memory in use ({1}); lay it out before anything is reserved")]
    DeviceInUse(DeviceId, Bytes),
    /// A layout whose parts are larger than the device.
    #[error("the layout of {device} needs {wanted} before KV blocks, {usable} are usable of {memory}")]
    LayoutTooLarge {
        /// The device.
        device: DeviceId,
        /// Weights, arena and staging.
        wanted: Bytes,
        /// What the layout calls usable.
        usable: Bytes,
        /// What the device has.
        memory: Bytes,
    },
    /// A part of a layout that no allocator can hand out.
    #[error("the layout of {device} has {bytes} for {what}: a part has {} at most", crate::memory::BestFit::LARGEST)]
    PartTooLarge {
        /// The device.
        device: DeviceId,
        /// Which part.
        what: &'static str,
        /// Its size.
        bytes: Bytes,
    },
    /// A layout in more KV blocks than a pool has.
    #[error(
        "the layout of {device} makes {blocks} KV blocks of {kv_block} of what is usable: expected {} at most",
        crate::memory::DeviceLayout::MOST_BLOCKS
    )]
    TooManyBlocks {
        /// The device.
        device: DeviceId,
        /// Blocks that what is usable would have room for.
        blocks: u64,
        /// Bytes of one.
        kv_block: Bytes,
    },
    /// The operators are not in a state from which they can be dispatched.
    #[error("operators {}..{} of {job} are not all pending", ops.start, ops.end)]
    NotPending {
        /// The job.
        job: JobId,
        /// The operators asked for.
        ops: Range<u32>,
    },
    /// The job does not have these operators.
    #[error("operators {}..{} of {job} do not exist, it has {count}", ops.start, ops.end)]
    NoSuchOps {
        /// The job.
        job: JobId,
        /// The operators asked for.
        ops: Range<u32>,
        /// How many it has.
        count: u32,
    },
    /// The job waits for others.
    #[error("{job} waits for {count} other jobs")]
    NotReady {
        /// The job.
        job: JobId,
        /// How many.
        count: u32,
    },
    /// The job is not dispatched, so it cannot be recalled.
    #[error("{0} is not on a lane")]
    NotDispatched(JobId),
    /// The job has operators on a lane.
    #[error("{0} has operators on a lane")]
    StillDispatched(JobId),
    /// A continued job must stay where its activations are.
    #[error("{job} has activations on {on}, it cannot continue on {to}")]
    ActivationsElsewhere {
        /// The job.
        job: JobId,
        /// Where they are.
        on: DeviceId,
        /// Where it was to go.
        to: DeviceId,
    },
    /// The model's weights are not there.
    #[error("the weights of {model} are not on {device}")]
    WeightsAbsent {
        /// The model.
        model: ModelId,
        /// Where they are needed.
        device: DeviceId,
    },
    /// The model's weights are there already, or on their way.
    #[error("the weights of {model} are on {device} already")]
    WeightsPresent {
        /// The model.
        model: ModelId,
        /// Where.
        device: DeviceId,
    },
    /// The weights of these operators are not there.
    #[error("the weights of operators {}..{} of {model} are not on {device}: {state:?}", ops.start, ops.end)]
    OpsAbsent {
        /// The model.
        model: ModelId,
        /// The operators.
        ops: Range<u32>,
        /// Where they are needed.
        device: DeviceId,
        /// What is there.
        state: crate::memory::Residency,
    },
    /// The model does not have these operators.
    #[error("operators {}..{} of {model} do not exist, it has {count}", ops.start, ops.end)]
    NoSuchModelOps {
        /// The model.
        model: ModelId,
        /// The operators asked for.
        ops: Range<u32>,
        /// How many it has.
        count: u32,
    },
    /// The weights are in use by a dispatched job.
    #[error("the weights of {model} on {device} are in use by {job}")]
    WeightsInUse {
        /// The model.
        model: ModelId,
        /// Where.
        device: DeviceId,
        /// Who uses them.
        job: JobId,
    },
    /// The source has no such weights.
    #[error("{0} has no weights of {1} to copy")]
    NoSource(Source, ModelId),
    /// Not enough memory.
    #[error("{device} has {available} of {what} left, {wanted} are wanted")]
    NoMemory {
        /// Where.
        device: DeviceId,
        /// Which part of the memory.
        what: &'static str,
        /// How much is needed.
        wanted: Bytes,
        /// How much there is, in one piece.
        available: Bytes,
    },
    /// The transfer has a buffer there already.
    #[error("{transfer} has a buffer on {device} already; a transfer has one on each device")]
    DuplicateTransfer {
        /// The transfer.
        transfer: TransferId,
        /// Where.
        device: DeviceId,
    },
    /// The transfer has no buffer there.
    #[error("{transfer} has no buffer on {device}")]
    NoSuchTransfer {
        /// The transfer.
        transfer: TransferId,
        /// Where.
        device: DeviceId,
    },
    /// Batching has to carry the action out before the plan is accepted.
    #[error("{0} is for batching to carry out before the plan is accepted")]
    NotMaterialized(&'static str),
    /// The request has no sequence there.
    #[error("{request} has no sequence on {device}")]
    NoSequence {
        /// The request.
        request: RequestId,
        /// Where.
        device: DeviceId,
    },
    /// The request has no sequence anywhere.
    #[error("{0} waits and has no sequence")]
    RequestWaits(RequestId),
    /// The sequence does not have these blocks.
    #[error("blocks {}..{} of the sequence of {request} on {device} do not exist, it has {count}", blocks.start, blocks.end)]
    NoSuchBlocks {
        /// The request.
        request: RequestId,
        /// Where.
        device: DeviceId,
        /// The blocks asked for.
        blocks: Range<u32>,
        /// How many it has.
        count: u32,
    },
    /// Tenants share no blocks.
    #[error("{request} and {of} are of different tenants, which share no KV blocks")]
    OtherTenant {
        /// The request that was to begin.
        request: RequestId,
        /// Whose sequence there is.
        of: RequestId,
    },
    /// The request is part of a job on a lane.
    #[error("{request} is part of {job}, which is on a lane")]
    RequestInUse {
        /// The request.
        request: RequestId,
        /// The job.
        job: JobId,
    },
    /// The request's sequence lies on another device.
    #[error("the sequence of {request} lies on {on}, not on {to}")]
    SequenceElsewhere {
        /// The request.
        request: RequestId,
        /// Where it lies.
        on: DeviceId,
        /// Where it was wanted.
        to: DeviceId,
    },
    /// The job's sequences were released since it was first placed.
    #[error("the sequence of {request} is not on {device} any more, where the iteration grew it; form a new one")]
    SequenceGone {
        /// The request.
        request: RequestId,
        /// Where its sequence was.
        device: DeviceId,
    },
    /// A request that was begun cannot be rejected.
    #[error("{request} was begun on {device}; only a waiting request can be rejected")]
    RequestStarted {
        /// The request.
        request: RequestId,
        /// Where its sequence lies.
        device: DeviceId,
    },
    /// Earlier operators of the job are not done and will not go first on the same lane.
    #[error("operators before {op} of {job} are neither done nor queued ahead of it on {lane}")]
    OutOfOrder {
        /// The job.
        job: JobId,
        /// The first operator asked for.
        op: u32,
        /// Where.
        lane: LaneId,
    },
    /// The job has operators that may still run.
    #[error("{0} has operators that may still run; cancel it first")]
    NotFinished(JobId),
    /// The job would wait for one that will never be done.
    #[error("{0} failed, was cancelled or is lost: what comes after it would wait for good")]
    NeverDone(JobId),
    /// Jobs that do not make a gang.
    #[error("{0}")]
    Gang(#[from] crate::gang::GangError),
    /// A rank is placed before the ranks that come first.
    #[error("{request} has {placed} of its parts placed, rank {rank} is not next: place the ranks of a gang in order")]
    RankOutOfOrder {
        /// The request whose sequence is spread over the ranks.
        request: RequestId,
        /// How many ranks have their part.
        placed: u32,
        /// The rank that was to be placed.
        rank: u32,
    },
    /// Two ranks on one device.
    #[error("two ranks of the gang are to run on {0}: every rank needs a device of its own")]
    SharedDevice(DeviceId),
    /// The template and the dims of the job do not fit.
    #[error("{0}")]
    Graph(#[from] crate::graph::GraphError),
}
