//! What operators send and receive.

use std::fmt;

use crate::units::Bytes;

/// Who gets what in a communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Pattern {
    /// Everybody gets the sum.
    AllReduce,
    /// One gets the sum.
    Reduce,
    /// Everybody gets everything.
    AllGather,
    /// One gets everything.
    Gather,
    /// Everybody gets a part of what one has.
    Scatter,
    /// Everybody gets what one has.
    Broadcast,
    /// Everybody gets a part of what everybody has.
    AllToAll,
    /// Everybody gets a part of the sum.
    ReduceScatter,
    /// Nobody gets anything; all wait for all.
    Barrier,
    /// One sends to one.
    Send,
    /// One receives from one.
    Receive,
}

impl Pattern {
    const ALL: [Self; 11] = [
        Self::AllReduce,
        Self::Reduce,
        Self::AllGather,
        Self::Gather,
        Self::Scatter,
        Self::Broadcast,
        Self::AllToAll,
        Self::ReduceScatter,
        Self::Barrier,
        Self::Send,
        Self::Receive,
    ];

    /// Its name: `all_reduce`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::AllGather => "all_gather",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all_to_all",
            Self::ReduceScatter => "reduce_scatter",
            Self::Barrier => "barrier",
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }

    /// The pattern that a name of NCCL, c10d or MPI stands for, however it is spelled: `allreduce`,
    /// `_allgather_base`, `ncclKernel_AllReduce_RING_LL_Sum_float`.
    pub fn of_name(name: &str) -> Option<Self> {
        let letters = |name: &str| -> String {
            let letters = name.chars().filter(char::is_ascii_alphanumeric);
            letters.map(|letter| letter.to_ascii_lowercase()).take(256).collect()
        };
        let name = letters(name);
        // Longer names first: "allreduce" contains "reduce".
        let mut known: Vec<_> = Self::ALL.into_iter().map(|pattern| (letters(pattern.name()), pattern)).collect();
        known.extend([("alltoall".to_owned(), Self::AllToAll), ("recv".to_owned(), Self::Receive)]);
        known.sort_by_key(|(spelled, _)| std::cmp::Reverse(spelled.len()));
        known.into_iter().find(|(spelled, _)| name.contains(spelled)).map(|(_, pattern)| pattern)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What an operator sends and receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Communication {
    /// Who gets what; [`None`] if the trace does not say.
    pub pattern: Option<Pattern>,
    /// The payload of this rank as the trace counts it, not what an algorithm moves for it.
    pub bytes: Bytes,
    /// The name of the group of ranks.
    pub group: Option<Box<str>>,
    /// Ranks in the group.
    pub ranks: Option<u32>,
    /// The sender of a [`Send`](Pattern::Send) or [`Receive`](Pattern::Receive).
    pub from: Option<u32>,
    /// Its receiver.
    pub to: Option<u32>,
    /// What tells it from others between the same two.
    pub tag: Option<u64>,
}

impl Communication {
    /// A communication of `bytes`; nothing more is known.
    pub const fn new(pattern: Option<Pattern>, bytes: Bytes) -> Self {
        Self { pattern, bytes, group: None, ranks: None, from: None, to: None, tag: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_known_by_the_names_that_libraries_give_them() {
        let cases = [
            ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", Some(Pattern::AllReduce)),
            ("_allgather_base", Some(Pattern::AllGather)),
            ("reduce_scatter_tensor", Some(Pattern::ReduceScatter)),
            ("ncclDevKernel_Reduce_RING_LL", Some(Pattern::Reduce)),
            ("all_to_allv", Some(Pattern::AllToAll)),
            ("c10d::recv_", Some(Pattern::Receive)),
            ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", Some(Pattern::Send)),
            ("gemm", None),
        ];
        for (name, pattern) in cases {
            assert_eq!(Pattern::of_name(name), pattern, "{name}");
        }
        assert!(Pattern::ALL.iter().all(|&pattern| Pattern::of_name(pattern.name()) == Some(pattern)));
    }
}
