//! Operators that several ranks carry out together.
//!
//! A template says *what* is exchanged and among how many; *with whom* is said by the job: a
//! [`Gang`](crate::job::Gang) gives it a rank, and the jobs of the other ranks are its peers.
//!
//! What every engine keeps to:
//!
//! - Ranks are grouped from rank 0 on: a collective of `n` ranks runs over the block of `n`
//!   consecutive ranks that its own rank is in, so with tensor parallelism inside pipeline stages
//!   the tensor ranks are the inner ones. [`Send`](Collective::Send) and
//!   [`Receive`](Collective::Receive) reach over such blocks.
//! - The `i`-th collective of a rank over a group is the `i`-th of each of its peers over that
//!   group, and the `i`-th send to a rank meets the `i`-th receive there.
//! - A rank that is early waits: the operator holds its lane from the rank's own arrival, the
//!   exchange begins when the last rank has arrived, and it ends on all of them together.

use std::fmt;
use std::ops::Range;

use crate::units::Bytes;

/// What is exchanged, and among how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Collective {
    /// Every rank gets the elementwise sum over the ranks. Input: `[.., m]`. Output: the same shape.
    AllReduce {
        /// Ranks of a group.
        ranks: u32,
    },
    /// Every rank gets the columns of all ranks, side by side. Input: `[.., m]`. Output:
    /// `[.., ranks * m]`.
    AllGather {
        /// Ranks of a group.
        ranks: u32,
    },
    /// Rank `i` gets part `i` of the columns of the sum. Input: `[.., ranks * m]`. Output: `[.., m]`.
    ReduceScatter {
        /// Ranks of a group.
        ranks: u32,
    },
    /// Every rank gives every rank a part of its rows. The parts are taken as equal: as many rows
    /// come as went. Input: `[n, m]`. Output: the same shape.
    AllToAll {
        /// Ranks of a group.
        ranks: u32,
    },
    /// Every rank gets the rows of the root. Input: `[.., m]`, of which only the root's counts.
    /// Output: the same shape.
    Broadcast {
        /// Ranks of a group.
        ranks: u32,
        /// The number of the root within its group.
        root: u32,
    },
    /// The rows go to the rank `distance` after this one. Input: any. No output.
    Send {
        /// How many ranks ahead.
        distance: u32,
    },
    /// Rows come from the rank `distance` before this one. No input. Output: as it is declared.
    Receive {
        /// How many ranks back.
        distance: u32,
    },
}

impl Collective {
    /// The ranks of a group; 2 for a send or a receive.
    pub const fn ranks(self) -> u32 {
        match self {
            Self::AllReduce { ranks }
            | Self::AllGather { ranks }
            | Self::ReduceScatter { ranks }
            | Self::AllToAll { ranks }
            | Self::Broadcast { ranks, .. } => ranks,
            Self::Send { .. } | Self::Receive { .. } => 2,
        }
    }

    /// True for what goes between two ranks and not within a group.
    pub const fn is_point_to_point(self) -> bool {
        matches!(self, Self::Send { .. } | Self::Receive { .. })
    }

    /// The ranks that `rank` exchanges with, itself included: the block that it is in. [`None`] for
    /// a send or a receive, whose other end is its [`peer`](Self::peer).
    pub const fn group(self, rank: u32) -> Option<Range<u32>> {
        if self.is_point_to_point() || self.ranks() == 0 {
            return None;
        }
        let first = rank - rank % self.ranks();
        Some(first..first.saturating_add(self.ranks()))
    }

    /// The rank at the other end of a send or a receive; [`None`] if there is none, or for a
    /// collective of a group.
    pub const fn peer(self, rank: u32) -> Option<u32> {
        match self {
            Self::Send { distance } => rank.checked_add(distance),
            Self::Receive { distance } => rank.checked_sub(distance),
            _ => None,
        }
    }

    /// Bytes that one rank sends over its links, or receives for a [`Receive`](Self::Receive), of a
    /// `payload`: the larger of what the operator takes and gives on one rank.
    ///
    /// Rings, with the payload cut into one chunk per rank, the last one filled up:
    ///
    /// | collective | bytes per rank |
    /// |---|---|
    /// | all-reduce | `2 * (n - 1) * ceil(payload / n)` |
    /// | all-gather, reduce-scatter, all-to-all | `(n - 1) * ceil(payload / n)` |
    /// | broadcast, send, receive | `payload` |
    ///
    /// Source: Thakur, Rabenseifner & Gropp 2005; Patarasuk & Yuan 2009 (no all-reduce sends less);
    /// the bus bandwidth factors of the NCCL tests are the same.
    pub const fn wire_bytes(self, payload: Bytes) -> Bytes {
        let n = self.ranks() as u64;
        if n < 2 {
            return Bytes::ZERO;
        }
        let chunk = Bytes(payload.get().div_ceil(n));
        match self {
            Self::AllReduce { .. } => chunk.times(2 * (n - 1)),
            Self::AllGather { .. } | Self::ReduceScatter { .. } | Self::AllToAll { .. } => chunk.times(n - 1),
            Self::Broadcast { .. } | Self::Send { .. } | Self::Receive { .. } => payload,
        }
    }

    /// Messages that follow one another on a ring, each of which pays the latency of a link:
    /// `2 * (n - 1)` for an all-reduce, 1 for a send or a receive, `n - 1` for the others.
    pub const fn steps(self) -> u32 {
        match self {
            Self::AllReduce { ranks } => 2 * ranks.saturating_sub(1),
            Self::Send { .. } | Self::Receive { .. } => 1,
            _ => self.ranks().saturating_sub(1),
        }
    }

    /// What a rank's collectives must have in common with its peers': two ends of a message, or
    /// equal.
    pub const fn matches(self, other: Self) -> bool {
        match (self, other) {
            (Self::Send { distance: ahead }, Self::Receive { distance: back })
            | (Self::Receive { distance: back }, Self::Send { distance: ahead }) => ahead == back,
            (Self::AllReduce { ranks: one }, Self::AllReduce { ranks: other })
            | (Self::AllGather { ranks: one }, Self::AllGather { ranks: other })
            | (Self::ReduceScatter { ranks: one }, Self::ReduceScatter { ranks: other })
            | (Self::AllToAll { ranks: one }, Self::AllToAll { ranks: other }) => one == other,
            (Self::Broadcast { ranks: one, root: from }, Self::Broadcast { ranks: other, root }) => {
                one == other && from == root
            }
            _ => false,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::AllReduce { .. } => "all_reduce",
            Self::AllGather { .. } => "all_gather",
            Self::ReduceScatter { .. } => "reduce_scatter",
            Self::AllToAll { .. } => "all_to_all",
            Self::Broadcast { .. } => "broadcast",
            Self::Send { .. } => "send",
            Self::Receive { .. } => "receive",
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_bytes_are_those_of_a_hand_calculation() {
        // 4 ranks, 1000 bytes: chunks of 250, three steps each way.
        let bytes = |collective: Collective| collective.wire_bytes(Bytes(1000)).get();
        assert_eq!(bytes(Collective::AllReduce { ranks: 4 }), 1500);
        assert_eq!(bytes(Collective::AllGather { ranks: 4 }), 750);
        assert_eq!(bytes(Collective::ReduceScatter { ranks: 4 }), 750);
        assert_eq!(bytes(Collective::AllToAll { ranks: 4 }), 750);
        assert_eq!(bytes(Collective::Broadcast { ranks: 4, root: 0 }), 1000);
        assert_eq!(bytes(Collective::Send { distance: 1 }), 1000);
        // Chunks of 334 for 3 ranks.
        assert_eq!(bytes(Collective::AllReduce { ranks: 3 }), 4 * 334);
        assert_eq!(bytes(Collective::AllReduce { ranks: 1 }), 0);
    }

    #[test]
    fn groups_are_blocks_of_ranks_and_messages_reach_over_them() {
        let inner = Collective::AllReduce { ranks: 4 };
        assert_eq!(inner.group(0), Some(0..4));
        assert_eq!(inner.group(6), Some(4..8));
        assert_eq!(inner.peer(6), None);
        assert_eq!(Collective::Send { distance: 4 }.peer(2), Some(6));
        assert_eq!(Collective::Receive { distance: 4 }.peer(6), Some(2));
        assert_eq!(Collective::Receive { distance: 4 }.peer(2), None);
        assert!(Collective::Send { distance: 4 }.matches(Collective::Receive { distance: 4 }));
        assert!(!Collective::Send { distance: 4 }.matches(Collective::Send { distance: 4 }));
    }
}
