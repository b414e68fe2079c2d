//! Jobs: instances of a template with its dims bound.
//!
//! The operators of a job are kept as runs of equal state ([`Segment`]). An iteration that nobody
//! disturbs is one segment through its whole life, which makes it a macro-operator for everyone
//! who reads it; a cut splits the segment at the operator where it happened.

mod op_state;
mod segments;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::gang::{Gang, Members};
use crate::graph::OpGraph;
use crate::id::{DeviceId, JobId, JobKey, ModelId, OpIndex, RequestId};
use crate::memory::Region;
use crate::shape::Binding;
use crate::units::{Bytes, Nanos};

pub use op_state::{OpState, StoredState};
pub use segments::{Segment, Segments};

/// Tokens of one request that an iteration computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Row {
    /// Whose tokens.
    pub request: RequestId,
    /// Position of the first of them in the request's sequence, counted from 0.
    pub position: u32,
    /// How many.
    pub tokens: u32,
    /// True if the last of them gives the next output token.
    pub emits: bool,
}

/// KV blocks that a request needs before a job may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KvGrowth {
    /// Whose sequence grows.
    pub request: RequestId,
    /// By how many blocks.
    pub blocks: u32,
}

/// What to run: a model's template with its dims bound.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct JobSpec {
    /// What the job is, whenever it is created.
    pub key: JobKey,
    /// The model whose template runs.
    pub model: ModelId,
    /// The values of the template's symbols.
    pub binding: Binding,
    /// Not to start earlier.
    pub release: Nanos,
    /// Jobs that must be done first.
    #[cfg_attr(feature = "serde", serde(with = "crate::wire::list"))]
    pub after: SmallVec<[JobId; 2]>,
    /// The batch, for iterations of a language model.
    pub rows: Vec<Row>,
    /// KV blocks to reserve before the start.
    pub growth: Vec<KvGrowth>,
    /// The place among the jobs of the other ranks; [`None`] for a job that needs no others.
    pub gang: Option<Gang>,
}

impl JobSpec {
    /// A job of `model` with nothing bound, runnable at once.
    pub fn of(model: ModelId) -> Self {
        Self {
            key: JobKey::default(),
            model,
            binding: Binding::default(),
            release: Nanos::ZERO,
            after: SmallVec::new(),
            rows: Vec::new(),
            growth: Vec::new(),
            gang: None,
        }
    }

    /// Sets the dims.
    #[must_use]
    pub fn bind(mut self, binding: Binding) -> Self {
        self.binding = binding;
        self
    }

    /// Not to start before `release`.
    #[must_use]
    pub fn release(mut self, release: Nanos) -> Self {
        self.release = release;
        self
    }

    /// Not to start before `job` is done.
    #[must_use]
    pub fn after(mut self, job: JobId) -> Self {
        self.after.push(job);
        self
    }

    /// Makes it rank `rank` of `size` jobs that run together.
    #[must_use]
    pub fn rank(mut self, rank: u32, size: u32) -> Self {
        self.gang = Some(Gang { rank, size });
        self
    }

    /// The requests of the batch; some of them twice.
    pub fn requests(&self) -> impl Iterator<Item = RequestId> + Clone + '_ {
        self.rows.iter().map(|row| row.request).chain(self.growth.iter().map(|growth| growth.request))
    }

    /// Blocks that the job reserves in all.
    pub fn new_blocks(&self) -> u64 {
        self.growth.iter().map(|growth| u64::from(growth.blocks)).sum()
    }
}

/// A job of the live graph.
#[derive(Clone, Debug)]
pub struct Job {
    /// What it is.
    pub spec: Arc<JobSpec>,
    /// Its operators.
    pub template: Arc<OpGraph>,
    /// Their states.
    pub segments: Segments,
    /// Bytes of activations that it needs.
    pub activations: Bytes,
    /// Its activations, from the placement of its first operator until it is done.
    pub arena: Option<(DeviceId, Region)>,
    /// Where the sequences of its batch grew, once they did: at the placement of its first operator,
    /// and not again when it starts over. [`None`] for a job without a batch.
    pub kv_on: Option<DeviceId>,
    /// The departures of [`kv_on`](Self::kv_on) when all sequences of the batch were there: while they
    /// have not changed, they still are.
    pub(crate) departures: u32,
    /// Jobs of [`JobSpec::after`] that are not done.
    pub waiting_for: u32,
    /// Jobs that wait for this one.
    pub dependents: SmallVec<[JobId; 2]>,
    /// The jobs of all ranks, if it is one of several.
    pub gang: Option<Members>,
}

impl Job {
    /// Number of operators.
    pub fn op_count(&self) -> u32 {
        self.template.op_count()
    }

    /// True if some of its operators are on a lane.
    pub fn is_dispatched(&self) -> bool {
        self.segments.any_state(StoredState::is_on_lane)
    }

    /// True if some of its operators failed, were cancelled or are lost: it will never be done.
    pub fn is_broken(&self) -> bool {
        use StoredState::{Cancelled, Failed, Lost};
        self.segments.any_state(|state| matches!(state, Failed | Cancelled | Lost))
    }

    /// The operators that are done from the front: where a recalled job continues.
    pub fn progress(&self) -> u32 {
        match self.segments.iter().find(|segment| segment.state != StoredState::Done) {
            Some(segment) => segment.first,
            None => self.op_count(),
        }
    }

    /// The state of `op`; [`None`] if the job has no such operator. O(predecessors).
    pub fn op_state(&self, op: OpIndex) -> Option<OpState> {
        let segment = self.segments.at(op.0)?;
        Some(match segment.state {
            StoredState::Pending if self.is_ready(op) => OpState::Ready,
            StoredState::Pending => OpState::Blocked,
            StoredState::Dispatched => OpState::Dispatched,
            StoredState::Running => OpState::Running,
            StoredState::Done => OpState::Done,
            StoredState::Failed => OpState::Failed,
            StoredState::Cancelled => OpState::Cancelled,
            StoredState::Lost => OpState::Lost,
        })
    }

    fn is_ready(&self, op: OpIndex) -> bool {
        let done = |op: OpIndex| self.segments.at(op.0).is_some_and(|s| s.state == StoredState::Done);
        self.waiting_for == 0 && self.template.predecessors(op).all(done)
    }
}
