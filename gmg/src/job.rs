//! Jobs: instances of a template with its dims bound.
//!
//! The operators of a job are kept as runs of equal state ([`Segment`]). An iteration that nobody
//! disturbs is one segment through its whole life, which makes it a macro-operator for everyone
//! who reads it; a cut splits the segment at the operator where it happened.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::graph::OpGraph;
use crate::id::{DeviceId, JobId, JobKey, LaneId, ModelId, OpIndex, RequestId};
use crate::memory::Region;
use crate::shape::Binding;
use crate::units::Nanos;

/// Tokens of one request that an iteration computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
pub struct KvGrowth {
    /// Whose sequence grows.
    pub request: RequestId,
    /// By how many blocks.
    pub blocks: u32,
}

/// What to run: a model's template with its dims bound.
#[derive(Clone, Debug, PartialEq)]
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
    pub after: SmallVec<[JobId; 2]>,
    /// The batch, for iterations of a language model.
    pub rows: Vec<Row>,
    /// KV blocks to reserve before the start.
    pub growth: Vec<KvGrowth>,
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

    /// The requests of the batch; some of them twice.
    pub fn requests(&self) -> impl Iterator<Item = RequestId> + Clone + '_ {
        self.rows.iter().map(|row| row.request).chain(self.growth.iter().map(|growth| growth.request))
    }

    /// Blocks that the job reserves in all.
    pub fn new_blocks(&self) -> u64 {
        self.growth.iter().map(|growth| u64::from(growth.blocks)).sum()
    }
}

/// The state of an operator.
///
/// `Blocked` and `Ready` are not stored: both are [`Pending`](StoredState::Pending), and which of
/// them holds follows from the predecessors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpState {
    /// Waits for a predecessor, a job it comes after, or its release.
    Blocked,
    /// Could start.
    Ready,
    /// Handed to a lane.
    Dispatched,
    /// Running.
    Running,
    /// Finished; its results are usable.
    Done,
    /// Its kernel failed.
    Failed,
    /// Will never run.
    Cancelled,
    /// Gone with its device: it was on a lane there, or done with results there, or its job had
    /// memory there.
    Lost,
}

/// The state of an operator as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoredState {
    /// Blocked or ready.
    Pending,
    /// Handed to a lane.
    Dispatched,
    /// Running.
    Running,
    /// Finished.
    Done,
    /// Its kernel failed.
    Failed,
    /// Will never run.
    Cancelled,
    /// Gone with its device.
    Lost,
}

impl StoredState {
    /// True if the operator is on a lane.
    pub fn is_on_lane(self) -> bool {
        matches!(self, Self::Dispatched | Self::Running)
    }

    /// True if `self -> next` is a transition that can happen to an operator.
    ///
    /// A recall takes back operators that had not begun although their run had; one that drops the
    /// activations takes back finished ones as well.
    pub fn may_become(self, next: Self) -> bool {
        use StoredState::{Cancelled, Dispatched, Done, Failed, Lost, Pending, Running};
        matches!(
            (self, next),
            (Pending, Dispatched | Cancelled | Lost)
                | (Dispatched, Running | Done | Pending | Failed | Lost)
                | (Running, Done | Pending | Failed | Lost)
                | (Done, Pending | Lost)
                | (Lost, Pending | Cancelled)
        )
    }
}

/// A run of consecutive operators in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First operator.
    pub first: u32,
    /// One past the last operator.
    pub end: u32,
    /// Their state.
    pub state: StoredState,
    /// Where they were placed.
    pub lane: Option<LaneId>,
    /// When the first of them started, once known.
    pub start: Nanos,
    /// When the last of them finished, once known.
    pub finish: Nanos,
}

impl Segment {
    fn same_kind(&self, other: &Self) -> bool {
        self.state == other.state
            && self.lane == other.lane
            && (self.state == StoredState::Pending || self.start == other.start)
    }
}

/// The segments of a job: ascending, without gaps or overlap, covering every operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments(SmallVec<[Segment; 2]>);

impl Segments {
    /// `ops` operators, all pending.
    pub fn pending(ops: u32) -> Self {
        let mut segments = SmallVec::new();
        if ops > 0 {
            segments.push(Segment {
                first: 0,
                end: ops,
                state: StoredState::Pending,
                lane: None,
                start: Nanos::ZERO,
                finish: Nanos::ZERO,
            });
        }
        Self(segments)
    }

    /// The segments in operator order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Segment> + DoubleEndedIterator + Clone + '_ {
        self.0.iter()
    }

    /// The segment that holds `op`.
    pub fn at(&self, op: u32) -> Option<&Segment> {
        let index = self.0.partition_point(|segment| segment.end <= op);
        self.0.get(index).filter(|segment| segment.first <= op)
    }

    /// True if every operator of `ops` satisfies `holds`; true for an empty range.
    pub fn all(&self, ops: Range<u32>, mut holds: impl FnMut(&Segment) -> bool) -> bool {
        self.0.iter().filter(|s| s.first < ops.end && ops.start < s.end).all(&mut holds)
    }

    /// True if every operator is done.
    pub fn all_done(&self) -> bool {
        self.0.iter().all(|segment| segment.state == StoredState::Done)
    }

    /// Rewrites the operators of `ops`: splits segments at the borders, applies `change` to each
    /// piece inside, and joins neighbours that have become alike. O(segments).
    pub fn update(&mut self, ops: Range<u32>, mut change: impl FnMut(&mut Segment)) {
        if ops.start >= ops.end {
            return;
        }
        if let [only] = self.0.as_mut_slice()
            && only.first == ops.start
            && only.end == ops.end
        {
            change(only);
            return;
        }
        let mut pieces: SmallVec<[Segment; 2]> = SmallVec::new();
        for segment in &self.0 {
            let (first, end) = (segment.first.max(ops.start), segment.end.min(ops.end));
            if first >= end {
                push_joined(&mut pieces, *segment);
                continue;
            }
            if segment.first < first {
                push_joined(&mut pieces, Segment { end: first, ..*segment });
            }
            let mut inside = Segment { first, end, ..*segment };
            change(&mut inside);
            push_joined(&mut pieces, inside);
            if end < segment.end {
                push_joined(&mut pieces, Segment { first: end, ..*segment });
            }
        }
        self.0 = pieces;
    }
}

fn push_joined(pieces: &mut SmallVec<[Segment; 2]>, piece: Segment) {
    match pieces.last_mut() {
        Some(last) if last.same_kind(&piece) => {
            last.end = piece.end;
            last.finish = piece.finish;
        }
        _ => pieces.push(piece),
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
    /// Its activations, from the placement of its first operator until it is done.
    pub arena: Option<(DeviceId, Region)>,
    /// Where the sequences of its batch grew, once they did: at the placement of its first operator,
    /// and not again when it starts over. [`None`] for a job without a batch.
    pub kv_on: Option<DeviceId>,
    /// Jobs of [`JobSpec::after`] that are not done.
    pub waiting_for: u32,
    /// Jobs that wait for this one.
    pub dependents: SmallVec<[JobId; 2]>,
}

impl Job {
    /// Number of operators.
    pub fn op_count(&self) -> u32 {
        self.template.op_count()
    }

    /// True if some of its operators are on a lane.
    pub fn is_dispatched(&self) -> bool {
        self.segments.iter().any(|segment| segment.state.is_on_lane())
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
