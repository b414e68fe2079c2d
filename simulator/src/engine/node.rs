//! Work, as the engine sees it.

use std::ops::Range;

use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::Rank;
use slicescheduler_gmg::units::{Bytes, Nanos};

macro_rules! reference {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) u32);
    };
}

reference! {
    /// A lane of an [`Engine`](super::Engine), valid until its next reset.
    LaneRef
}
reference! {
    /// A link of an [`Engine`](super::Engine), valid until its next reset.
    LinkRef
}
reference! {
    /// A device of an [`Engine`](super::Engine), valid until its next reset.
    DeviceRef
}
reference! {
    /// The durations of a job in an [`Engine`](super::Engine), valid until its next reset.
    CostRef
}
reference! {
    /// Work in an [`Engine`](super::Engine), valid until its next reset.
    NodeRef
}

/// No lane, no node, no edge.
pub(super) const NONE: u32 = u32::MAX;

/// How long a node takes.
#[derive(Clone, Debug)]
pub(super) enum Span {
    /// As long as the operators that are left of it. Can be cut between them.
    Operators { cost: u32, ops: Range<u32> },
    /// So long. Cannot be cut.
    Fixed(Nanos),
    /// As long as the links allow.
    Flow { links: Range<u32>, bytes: Bytes, latency: Nanos },
}

/// Work to be added with [`Engine::add`](super::Engine::add).
#[derive(Clone, Debug)]
pub struct Node {
    pub(super) lane: Option<LaneRef>,
    pub(super) rank: Rank,
    pub(super) release: Nanos,
    pub(super) span: Span,
}

impl Node {
    /// Operators of a job on a lane: a macro-operator, or a single one. Rank
    /// [`Rank::GuestBestEffort`], released at time zero.
    pub fn operators(lane: LaneRef, cost: CostRef, ops: Range<u32>) -> Self {
        let span = Span::Operators { cost: cost.0, ops };
        Self { lane: Some(lane), rank: Rank::GuestBestEffort, release: Nanos::ZERO, span }
    }

    /// Work of a given length on a lane, without a boundary inside. Rank
    /// [`Rank::GuestBestEffort`], released at time zero.
    pub fn fixed(lane: LaneRef, length: Nanos) -> Self {
        let span = Span::Fixed(length);
        Self { lane: Some(lane), rank: Rank::GuestBestEffort, release: Nanos::ZERO, span }
    }

    /// Sets the right of way.
    #[must_use]
    pub fn rank(mut self, rank: Rank) -> Self {
        self.rank = rank;
        self
    }

    /// Sets the earliest start.
    #[must_use]
    pub fn release(mut self, release: Nanos) -> Self {
        self.release = release;
        self
    }
}

/// Bytes that a node takes when it starts and frees when it ends; the two differ for results that
/// stay, or that somebody else took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Where.
    pub device: DeviceRef,
    /// In which part of the memory.
    pub kind: ByteKind,
    /// Taken at the start.
    pub taken: Bytes,
    /// Freed at the end.
    pub freed: Bytes,
}

/// When a node ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// When it first started.
    pub start: Nanos,
    /// When it ended, or was taken back.
    pub finish: Nanos,
    /// How often it was cut.
    pub cuts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not started, or cut.
    Waiting,
    Running,
    Done,
    /// Taken back.
    Dropped,
}

/// A node and what has become of it.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) lane: u32,
    pub(super) rank: Rank,
    pub(super) phase: Phase,
    pub(super) recalled: bool,
    pub(super) frees_on_recall: bool,
    started: bool,
    /// True if `finish` holds: it ended, or will if nothing else happens.
    finished: bool,
    /// Predecessors that are not done.
    pub(super) waits: u32,
    pub(super) release: Nanos,
    /// What is left of it.
    pub(super) span: Span,
    /// When it last started to run.
    pub(super) since: Nanos,
    start: Nanos,
    finish: Nanos,
    cuts: u32,
    /// The operator at which the lane's next event cuts it.
    pub(super) cut_at: Option<u32>,
    /// The node behind it in its queue.
    pub(super) behind: u32,
    pub(super) first_edge: u32,
    pub(super) holds: Range<u32>,
}

impl State {
    pub(super) fn new(node: &Node, lane: u32, holds: Range<u32>) -> Self {
        Self {
            lane,
            rank: node.rank,
            phase: Phase::Waiting,
            recalled: false,
            frees_on_recall: false,
            started: false,
            finished: false,
            waits: 0,
            release: node.release,
            span: node.span.clone(),
            since: Nanos::ZERO,
            start: Nanos::ZERO,
            finish: Nanos::ZERO,
            cuts: 0,
            cut_at: None,
            behind: NONE,
            first_edge: NONE,
            holds,
        }
    }

    /// It runs from `now` on. True if that is its first start.
    pub(super) fn begin(&mut self, now: Nanos) -> bool {
        self.phase = Phase::Running;
        self.since = now;
        let first = !self.started;
        if first {
            self.started = true;
            self.start = now;
        }
        first
    }

    pub(super) fn end(&mut self, now: Nanos) {
        self.phase = Phase::Done;
        self.expect(now);
        if let Span::Operators { ops, .. } = &mut self.span {
            ops.start = ops.end;
        }
    }

    /// It will end at `finish`.
    pub(super) fn expect(&mut self, finish: Nanos) {
        self.finished = true;
        self.finish = finish;
    }

    /// It stops before operator `next`.
    pub(super) fn cut(&mut self, next: u32) {
        self.phase = Phase::Waiting;
        self.cut_at = None;
        self.cuts += 1;
        if let Span::Operators { ops, .. } = &mut self.span {
            ops.start = next;
        }
    }

    /// It will not go on. True if it had started.
    pub(super) fn drop_at(&mut self, now: Nanos) -> bool {
        self.phase = Phase::Dropped;
        self.expect(now);
        self.started
    }

    pub(super) fn ran(&self) -> Option<Ran> {
        let known = self.started && self.finished;
        known.then_some(Ran { start: self.start, finish: self.finish, cuts: self.cuts })
    }

    pub(super) fn op_count(&self) -> u64 {
        match &self.span {
            Span::Operators { ops, .. } => u64::from(ops.end.saturating_sub(ops.start)),
            Span::Fixed(_) => 1,
            Span::Flow { .. } => 0,
        }
    }
}
