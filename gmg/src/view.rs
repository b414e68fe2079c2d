//! Reading the graph.
//!
//! The live graph, a snapshot and a branch answer the same questions. Hot loops are generic over
//! [`GmgView`]; object-safe traits take the concrete [`View`].

use std::ops::Range;

use smallvec::SmallVec;

use crate::cluster::Cluster;
use crate::id::{ContainerId, DeviceId, JobId, LaneId, ModelId, OpIndex, RequestId, TenantId, Version};
use crate::job::{Job, OpState};
use crate::memory::{DeviceMemory, Residency, WeightState};
use crate::plan::Rank;
use crate::request::Request;
use crate::snapshot::Branch;
use crate::state::State;
use crate::tenant::{Container, Model, Tenant};
use crate::units::Nanos;

/// Operators queued on a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LaneEntry {
    /// Their job.
    pub job: JobId,
    /// Which.
    pub ops: Range<u32>,
    /// Their right of way.
    pub rank: Rank,
}

/// What is queued on a lane: by rank, highest first, then in the order of dispatch. The entry that
/// runs is not necessarily the first: it may be about to yield.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    pub(crate) queue: SmallVec<[LaneEntry; 2]>,
}

impl Lane {
    /// The entries.
    pub fn queue(&self) -> &[LaneEntry] {
        &self.queue
    }

    /// True if nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn push(&mut self, entry: LaneEntry) {
        let at = self.queue.partition_point(|other| other.rank >= entry.rank);
        self.queue.insert(at, entry);
    }

    /// Takes `ops` of `job` off the queue; what is left of its entries stays.
    pub(crate) fn remove(&mut self, job: JobId, ops: &Range<u32>) {
        let mut at = 0;
        while let Some(entry) = self.queue.get_mut(at) {
            let Range { start, end } = entry.ops;
            if entry.job != job || end <= ops.start || ops.end <= start {
                at += 1;
            } else if start < ops.start {
                let behind = LaneEntry { ops: ops.end..end, ..entry.clone() };
                entry.ops.end = ops.start;
                at += 1;
                if ops.end < end {
                    self.queue.insert(at, behind);
                }
            } else if ops.end < end {
                entry.ops.start = ops.end;
            } else {
                self.queue.remove(at);
            }
        }
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::State {}
    impl Sealed for crate::state::Recorded<'_> {}
    impl Sealed for super::Branch {}
    impl Sealed for super::View<'_> {}
}

/// The questions that every version of the graph answers. Sealed: the set of graphs is closed, so
/// that methods can be added.
pub trait GmgView: sealed::Sealed {
    /// How many deltas made it.
    fn version(&self) -> Version;
    /// The resources.
    fn cluster(&self) -> &Cluster;
    /// All tenants; a [`TenantId`] is an index into them.
    fn tenants(&self) -> &[std::sync::Arc<Tenant>];
    /// All models; a [`ModelId`] is an index into them.
    fn models(&self) -> &[std::sync::Arc<Model>];
    /// All containers; a [`ContainerId`] is an index into them.
    fn containers(&self) -> &[std::sync::Arc<Container>];
    /// The container that a device belongs to.
    fn container_of(&self, device: DeviceId) -> Option<ContainerId>;
    /// A request.
    fn request(&self, id: RequestId) -> Option<&Request>;
    /// A job.
    fn job(&self, id: JobId) -> Option<&Job>;
    /// The ids of all jobs, ascending by slot, appended to `into`. O(slots).
    fn jobs(&self, into: &mut Vec<JobId>);
    /// A lane.
    fn lane(&self, id: LaneId) -> Option<&Lane>;
    /// What is reserved on a device.
    fn memory(&self, device: DeviceId) -> Option<&DeviceMemory>;
    /// True if the device is gone.
    fn is_lost(&self, device: DeviceId) -> bool;

    /// A tenant.
    fn tenant(&self, id: TenantId) -> Option<&Tenant> {
        self.tenants().get(id.index()).map(|tenant| &**tenant)
    }

    /// A model.
    fn model(&self, id: ModelId) -> Option<&Model> {
        self.models().get(id.index()).map(|model| &**model)
    }

    /// The tenant that a device is reserved for; of a pool, the first of those that share it.
    fn owner(&self, device: DeviceId) -> Option<TenantId> {
        let container = self.container_of(device)?;
        self.containers().get(container.index()).map(|container| container.tenant)
    }

    /// The devices over which the model of the owner of `device` is spread, by rank: `device` among others, or
    /// nothing where a device has a whole model or no owner.
    fn group(&self, device: DeviceId) -> &[DeviceId] {
        let container = self.container_of(device).and_then(|id| self.containers().get(id.index()));
        match container.filter(|container| container.layout.ranks() > 1) {
            Some(container) => container.group_of(device),
            None => &[],
        }
    }

    /// True if `tenant` is at home on `device`: its own, or of a pool that it shares.
    fn is_home(&self, tenant: TenantId, device: DeviceId) -> bool {
        let container = self.container_of(device).and_then(|id| self.containers().get(id.index()));
        container.is_some_and(|container| container.is_home_of(tenant))
    }

    /// Whether the operators `ops` of `model` find their weights on `device`.
    fn residency(&self, model: ModelId, ops: &Range<u32>, device: DeviceId) -> Residency {
        self.memory(device).map_or(Residency::Absent, |memory| memory.residency(model, ops))
    }

    /// True if work of `model` could run on `device` now.
    fn is_resident(&self, model: ModelId, device: DeviceId) -> bool {
        self.memory(device).is_some_and(|memory| memory.weight_state(model) == Some(WeightState::Resident))
    }

    /// The rank of work of `tenant` on `device`.
    fn rank(&self, tenant: TenantId, device: DeviceId) -> Rank {
        let owner = self.is_home(tenant, device);
        let latency = self.tenant(tenant).is_some_and(Tenant::is_latency_sensitive);
        match (owner, latency) {
            (true, true) => Rank::OwnerLatency,
            (false, true) => Rank::GuestLatency,
            (true, false) => Rank::OwnerBestEffort,
            (false, false) => Rank::GuestBestEffort,
        }
    }

    /// The operators of `job` that could start now, ascending, appended to `into`.
    /// O(operators + edges).
    fn ready(&self, job: JobId, now: Nanos, into: &mut Vec<OpIndex>) {
        let Some(job) = self.job(job) else { return };
        if job.spec.release > now {
            return;
        }
        into.extend((0..job.op_count()).map(OpIndex).filter(|&op| job.op_state(op) == Some(OpState::Ready)));
    }
}

/// Any version of the graph, behind one type.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(Which<'a>);

#[derive(Clone, Copy, Debug)]
enum Which<'a> {
    State(&'a State),
    Branch(&'a Branch),
}

impl<'a> From<&'a State> for View<'a> {
    fn from(state: &'a State) -> Self {
        Self(Which::State(state))
    }
}

impl<'a> From<&'a Branch> for View<'a> {
    fn from(branch: &'a Branch) -> Self {
        Self(Which::Branch(branch))
    }
}

macro_rules! delegate {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        impl GmgView for View<'_> {
            $(fn $name(&self, $($arg: $type),*) -> $result {
                match self.0 {
                    Which::State(state) => state.$name($($arg),*),
                    Which::Branch(branch) => branch.$name($($arg),*),
                }
            })*
        }
    };
}

delegate! {
    version() -> Version;
    cluster() -> &Cluster;
    tenants() -> &[std::sync::Arc<Tenant>];
    models() -> &[std::sync::Arc<Model>];
    containers() -> &[std::sync::Arc<Container>];
    container_of(device: DeviceId) -> Option<ContainerId>;
    request(id: RequestId) -> Option<&Request>;
    job(id: JobId) -> Option<&Job>;
    jobs(into: &mut Vec<JobId>) -> ();
    lane(id: LaneId) -> Option<&Lane>;
    memory(device: DeviceId) -> Option<&DeviceMemory>;
    is_lost(device: DeviceId) -> bool;
}
