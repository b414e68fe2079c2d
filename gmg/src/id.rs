//! Names for the things of a graph.
//!
//! Ids are newtypes, so a device can not be passed where a tenant is meant. Ids of things that
//! come and go ([`JobId`]) carry a generation: an old id never names a new thing.
//!
//! ```compile_fail,E0308
//! # use slicescheduler_gmg::id::*;
//! let lane = LaneId::new(TenantId(0), 0);
//! ```
//!
//! Ids are plain numbers, so that they can be logged, sent and compared. The types do not tell one graph's from
//! another's: an id that is used with a graph that did not give it names whatever has that number there, or
//! nothing. Where the numbers are still private, in the builder of an
//! [`OpGraph`](crate::graph::OpGraph), references know their builder and are refused by others; a
//! [`Mark`](crate::snapshot::Mark) knows its branch.
//!
//! An operator of a template is not one of a job, and a job's id is no number to count with:
//!
//! ```compile_fail,E0308
//! # use slicescheduler_gmg::{GmgView, State, id::*};
//! fn first(state: &State) -> Option<&slicescheduler_gmg::job::Job> {
//!     state.job(OpIndex(0))
//! }
//! ```
//!
//! ```compile_fail,E0308
//! # use slicescheduler_gmg::{GmgView, State, id::*};
//! fn owner(state: &State, container: ContainerId) -> Option<TenantId> {
//!     state.owner(container)
//! }
//! ```

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The id as an index into dense tables.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id! {
    /// A tenant: one customer of the cluster, with its service level and its models.
    TenantId(u32), "tenant "
}
id! {
    /// A model that a tenant serves.
    ModelId(u32), "model "
}
id! {
    /// A container: devices reserved for one tenant.
    ContainerId(u32), "container "
}
id! {
    /// A machine of the cluster.
    NodeId(u32), "node "
}
id! {
    /// An accelerator, or a CPU that acts as one.
    DeviceId(u32), "device "
}
id! {
    /// A link between two endpoints of the cluster.
    LinkId(u32), "link "
}
id! {
    /// A request; given by the host, unique in a run, ascending in arrival order.
    RequestId(u64), "request "
}
id! {
    /// An operator within its template, counted over all repetitions of repeated blocks.
    OpIndex(u32), "op "
}
id! {
    /// A tensor within its template.
    TensorId(u32), "tensor "
}
id! {
    /// A version of the graph: the number of deltas applied so far.
    Version(u64), "version "
}
id! {
    /// A transfer of bytes between two places.
    TransferId(u64), "transfer "
}

/// An in-order queue on a device: a CUDA stream, an SM partition, a CPU worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LaneId {
    /// The device it runs on.
    pub device: DeviceId,
    /// Its number on that device.
    pub index: u16,
}

impl LaneId {
    /// Lane `index` of `device`.
    pub const fn new(device: DeviceId, index: u16) -> Self {
        Self { device, index }
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {}.{}", self.device.0, self.index)
    }
}

/// A job of the live graph. The slot is reused after the job is removed; the generation tells the
/// old job from the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct JobId {
    /// The slot in the job table.
    pub slot: u32,
    /// How many jobs lived in the slot before.
    pub generation: u32,
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {}v{}", self.slot, self.generation)
    }
}

/// An operator of a live job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId {
    /// The job.
    pub job: JobId,
    /// The operator within the job's template.
    pub op: OpIndex,
}

/// What a job is, independent of when it was created: the `iteration`-th iteration of a replica of
/// a tenant. Two runs that make the same decisions give the same keys, so noise and tie-breaks are
/// keyed by it and never by allocation order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct JobKey {
    /// The tenant's number.
    pub tenant: u32,
    /// The replica within the tenant.
    pub replica: u32,
    /// The iteration within the replica.
    pub iteration: u64,
}

/// One replica of a tenant's model: the unit that batches requests and runs iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId {
    /// The tenant it serves.
    pub tenant: TenantId,
    /// Its number within the tenant.
    pub index: u32,
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {}.{}", self.tenant.0, self.index)
    }
}
