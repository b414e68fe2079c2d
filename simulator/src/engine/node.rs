//! Work, as the engine sees it.

use std::ops::Range;

use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::Rank;
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::interference::Demand;

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
#[derive(Clone, Copy, Debug)]
pub(super) enum Span {
    /// As long as operators `next..end` of a job. Can be cut between them.
    Operators { cost: u32, next: u32, end: u32 },
    /// So long. Cannot be cut.
    Fixed { length: Nanos, demand: Demand },
    /// As long as the links allow: a transfer of the network.
    Flow { transfer: u32 },
}

/// Work to be added with [`Engine::add`](super::Engine::add).
#[derive(Clone, Copy, Debug)]
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
        let span = Span::Operators { cost: cost.0, next: ops.start, end: ops.end };
        Self { lane: Some(lane), rank: Rank::GuestBestEffort, release: Nanos::ZERO, span }
    }

    /// Work of a given length on a lane, without a boundary inside, that demands nothing of its
    /// device. Rank [`Rank::GuestBestEffort`], released at time zero.
    pub fn fixed(lane: LaneRef, length: Nanos) -> Self {
        let span = Span::Fixed { length, demand: Demand::NONE };
        Self { lane: Some(lane), rank: Rank::GuestBestEffort, release: Nanos::ZERO, span }
    }

    /// Sets what work of a given length demands of its device. The demands of operators are those
    /// of their job.
    #[must_use]
    pub fn demand(mut self, of_work: Demand) -> Self {
        if let Span::Fixed { demand, .. } = &mut self.span {
            *demand = of_work;
        }
        self
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
    /// Taken back, or its link failed.
    Dropped,
}

/// A node and what has become of it: one cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct State {
    /// What is left of it.
    pub(super) span: Span,
    /// When it may start, until it has started; then when it first did.
    at: Nanos,
    finish: Nanos,
    pub(super) lane: u32,
    /// Predecessors that are not done.
    pub(super) waits: u32,
    /// The node behind it in its queue.
    pub(super) behind: u32,
    pub(super) first_edge: u32,
    /// In the order in which nodes were added.
    pub(super) number: u32,
    cuts: u32,
    pub(super) rank: Rank,
    pub(super) phase: Phase,
    pub(super) recalled: bool,
    pub(super) frees_on_recall: bool,
    started: bool,
    /// True if `finish` holds: it ended, or will if nothing else happens.
    finished: bool,
    /// True for a member of a gang.
    pub(super) in_gang: bool,
    /// True if something that is on no lane waits for it.
    pub(super) informs_others: bool,
}

const _: () = assert!(size_of::<State>() == 64);

impl State {
    pub(super) fn new(node: &Node, lane: u32, number: u32) -> Self {
        Self {
            lane,
            rank: node.rank,
            phase: Phase::Waiting,
            recalled: false,
            frees_on_recall: false,
            started: false,
            finished: false,
            in_gang: false,
            informs_others: false,
            waits: 0,
            at: node.release,
            span: node.span,
            finish: Nanos::ZERO,
            cuts: 0,
            behind: NONE,
            first_edge: NONE,
            number,
        }
    }

    /// Where no node lies.
    pub(super) const VACANT: Self = Self {
        span: Span::Flow { transfer: NONE },
        at: Nanos::MAX,
        finish: Nanos::ZERO,
        lane: NONE,
        waits: 0,
        behind: NONE,
        first_edge: NONE,
        number: NONE,
        cuts: 0,
        rank: Rank::GuestBestEffort,
        phase: Phase::Dropped,
        recalled: false,
        frees_on_recall: false,
        started: false,
        finished: false,
        in_gang: false,
        informs_others: false,
    };

    /// True if nothing but its lane holds it back at `now`.
    pub(super) fn is_runnable(&self, now: Nanos) -> bool {
        // The time of a first start is never in the future, so `at` is good for both.
        self.phase == Phase::Waiting && self.waits == 0 && self.at <= now
    }

    /// True if it is runnable once its time has come, if nothing else happens.
    pub(super) fn runs_later(&self) -> bool {
        self.phase == Phase::Waiting && self.waits == 0
    }

    /// It must not start before `at`, if it has not started.
    pub(super) fn wait_until(&mut self, at: Nanos) {
        if !self.started {
            self.at = self.at.max(at);
        }
    }

    /// When it may start; of no meaning once it has.
    pub(super) fn release(&self) -> Nanos {
        self.at
    }

    pub(super) fn started(&self) -> bool {
        self.started
    }

    /// It runs from `now` on. True if that is its first start.
    pub(super) fn begin(&mut self, now: Nanos) -> bool {
        self.phase = Phase::Running;
        let first = !self.started;
        if first {
            self.started = true;
            self.at = now;
        }
        first
    }

    pub(super) fn end(&mut self, now: Nanos) {
        self.phase = Phase::Done;
        self.expect(now);
        let (_, end) = self.ops();
        self.set_next(end);
    }

    /// It will end at `finish`.
    pub(super) fn expect(&mut self, finish: Nanos) {
        self.finished = true;
        self.finish = finish;
    }

    /// It stops before operator `next`.
    pub(super) fn cut(&mut self, next: u32) {
        self.phase = Phase::Waiting;
        self.cuts += 1;
        self.set_next(next);
    }

    /// It will not go on. True if it had started.
    pub(super) fn drop_at(&mut self, now: Nanos) -> bool {
        self.phase = Phase::Dropped;
        self.expect(now);
        self.started
    }

    pub(super) fn ran(&self) -> Option<Ran> {
        let known = self.started && self.finished;
        known.then_some(Ran { start: self.at, finish: self.finish, cuts: self.cuts })
    }

    /// The operators that are left. Work of a fixed length counts as one.
    pub(super) fn ops(&self) -> (u32, u32) {
        match self.span {
            Span::Operators { next, end, .. } => (next, end),
            Span::Fixed { .. } => (0, 1),
            Span::Flow { .. } => (0, 0),
        }
    }

    /// How long it takes if it is work of a fixed length.
    pub(super) fn length(&self) -> Nanos {
        match self.span {
            Span::Fixed { length, .. } => length.max(Nanos(1)),
            _ => Nanos::ZERO,
        }
    }

    /// The operators before `op` are done.
    pub(super) fn set_next(&mut self, op: u32) {
        if let Span::Operators { next, .. } = &mut self.span {
            *next = op;
        }
    }

    pub(super) fn was_cut(&self) -> bool {
        self.cuts > 0
    }

    pub(super) fn op_count(&self) -> u64 {
        let (next, end) = self.ops();
        u64::from(end.saturating_sub(next))
    }
}
