//! Operators as they are stored.

use slicescheduler_gmg::units::{Bytes, Nanos};

/// An operator of a [`Schedule`](super::Schedule). Stays valid until the schedule is rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpRef(pub(super) u32);

/// A lane of a [`Schedule`](super::Schedule).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneRef(pub(super) u32);

/// A part of some device's memory in a [`Schedule`](super::Schedule).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountRef(pub(super) u32);

/// The time of what does not happen.
pub(super) const NEVER: u64 = u64::MAX;

/// A record that stands for no operator: it finished at time zero.
pub(super) const ORIGIN: u32 = 0;

/// In `prev`: the operator has predecessors in the overflow table.
pub(super) const MORE_IN: u32 = 1 << 31;
/// In `prev`: the operator was changed since the last propagation, its effects are taken out.
pub(super) const EDITED: u32 = 1 << 30;
/// In `next`: the operator has successors in the overflow table.
pub(super) const MORE_OUT: u32 = 1 << 31;
/// In a list of predecessors: the rest of the number is that of the operator's group.
pub(super) const GANG: u32 = 1 << 31;
/// The part of a neighbour that is a number.
pub(super) const ID: u32 = EDITED - 1;

/// One operator, or what stands in its place.
///
/// A record of duration 0 is no operator: the origin, the head of a lane, or an operator that was
/// removed. It finishes at its release, whatever comes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(32))]
pub(super) struct Record {
    pub(super) finish: u64,
    pub(super) release: u64,
    pub(super) duration: u64,
    /// The record before it on its lane, and two flags.
    pub(super) prev: u32,
    /// The record behind it on its lane, or the lane's head if it is the last, and a flag.
    pub(super) next: u32,
}

impl Record {
    pub(super) const REMOVED: Self = Self { finish: 0, release: 0, duration: 0, prev: ORIGIN, next: ORIGIN };

    pub(super) fn prev(&self) -> u32 {
        self.prev & ID
    }

    pub(super) fn next(&self) -> u32 {
        self.next & ID
    }

    pub(super) fn is_operator(&self) -> bool {
        self.duration != 0
    }

    /// When it starts; what never finishes counts as never started.
    pub(super) fn start(&self) -> u64 {
        if self.finish == NEVER { NEVER } else { self.finish - self.duration }
    }

    /// No input that is earlier than this matters to it.
    pub(super) fn bound(&self) -> u64 {
        self.finish.saturating_sub(self.duration)
    }
}

/// What else an operator does than take time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Hold {
        account: u32,
        taken: i64,
        freed: i64,
    },
    /// It should finish by then.
    Due(u64),
}

/// Bytes that an operator takes when it starts and frees when it finishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Where.
    pub account: AccountRef,
    /// Taken at the start.
    pub taken: Bytes,
    /// Freed at the finish.
    pub freed: Bytes,
}

impl From<Hold> for Effect {
    fn from(hold: Hold) -> Self {
        let signed = |bytes: Bytes| i64::try_from(bytes.get()).unwrap_or(i64::MAX);
        Self::Hold { account: hold.account.0, taken: signed(hold.taken), freed: signed(hold.freed) }
    }
}

/// How late operators are, over all that have a due time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Operators that finish after their due time.
    pub operators: u64,
    /// By how much, added up over those that finish at all.
    pub total: Nanos,
    /// Operators with a due time that never finish.
    pub never: u64,
}

impl Lateness {
    pub(super) fn count(&mut self, due: u64, finish: u64) {
        let (late, by, never) = Self::parts(due, finish);
        self.operators = self.operators.wrapping_add(late);
        self.total = Nanos(self.total.0.wrapping_add(by));
        self.never = self.never.wrapping_add(never);
    }

    pub(super) fn uncount(&mut self, due: u64, finish: u64) {
        let (late, by, never) = Self::parts(due, finish);
        self.operators = self.operators.wrapping_sub(late);
        self.total = Nanos(self.total.0.wrapping_sub(by));
        self.never = self.never.wrapping_sub(never);
    }

    fn parts(due: u64, finish: u64) -> (u64, u64, u64) {
        match finish {
            NEVER => (1, 0, 1),
            _ if finish > due => (1, finish - due, 0),
            _ => (0, 0, 0),
        }
    }
}
