//! What a policy considered, and why it decided as it did.
//!
//! A host that wants to know gives the driver an [`Explain`], such as a [`DecisionLog`]. Without one nothing is
//! put together, so explaining costs a branch per candidate.

mod log;

use std::fmt;

use slicescheduler_gmg::id::{DeviceId, ModelId, TenantId};
use slicescheduler_gmg::plan::Rank;
use slicescheduler_gmg::units::Nanos;

pub use log::{DecisionLog, Explanation, Step};

/// Is told every candidate that a policy looked at, with the verdict on it.
///
/// Called in the middle of a decision: return soon, and do not count on the plan being carried out.
pub trait Explain {
    /// The policy has made up its mind about a candidate.
    fn considered(&mut self, candidate: &Considered);
}

/// A candidate, and what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Considered {
    /// When.
    pub at: Nanos,
    /// Where it would be.
    pub device: DeviceId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What it is.
    pub what: What,
    /// What was decided.
    pub verdict: Verdict,
    /// When it would end, if that was forecast.
    pub finish: Option<Nanos>,
}

/// What was considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// An iteration, or the rest of one that was cut.
    Iteration {
        /// Its right of way.
        rank: Rank,
    },
    /// Taking requests that would be late at home.
    Overflow,
    /// Bringing weights.
    Fetch {
        /// Whose.
        model: ModelId,
    },
    /// Giving the slot of these weights to the KV cache.
    GiveUpSlot {
        /// Whose.
        model: ModelId,
    },
}

/// What was decided about a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is part of the plan.
    Accepted,
    /// It is not.
    Rejected(Reason),
}

/// Why a candidate was not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// Work of this tenant goes first on the lane.
    Behind(TenantId),
    /// Nothing is lent before this time: somebody would miss a due time.
    NoSlack,
    /// Too few KV blocks are free.
    NoBlocks,
    /// It would end after its due time.
    TooLate,
    /// A device would run out of memory.
    NoMemory,
    /// The tenant has borrowed all the time that it may, or is further behind than a burst.
    NoCredit,
    /// The owner of the device has not had its minimum rate.
    OwnerRate,
    /// Weights have changed there a moment ago.
    Settling,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Behind(tenant) => write!(f, "{tenant} went first"),
            Self::NoSlack => f.write_str("somebody would have missed a due time"),
            Self::NoBlocks => f.write_str("too few KV blocks were free"),
            Self::TooLate => f.write_str("it would have come too late"),
            Self::NoMemory => f.write_str("a device would have run out of memory"),
            Self::NoCredit => f.write_str("its tenant had borrowed all that it may"),
            Self::OwnerRate => f.write_str("the owner of the device had not had its minimum rate"),
            Self::Settling => f.write_str("weights had just changed there"),
        }
    }
}
