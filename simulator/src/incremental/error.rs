//! What a schedule refuses.

use slicescheduler_gmg::units::Nanos;

use super::{AccountRef, LaneRef, OpRef};

/// Why a schedule could not be built or changed. Whatever was to be changed is as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// Operators wait for each other.
    #[error(
        "operator {} waits for itself, through the order of its lane, its predecessors and its group; place it \
         behind what it waits for", op.0
    )]
    Cycle {
        /// One of the operators of the cycle.
        op: OpRef,
    },
    /// No such operator, or one that was removed.
    #[error("there is no operator {}", .0.0)]
    NoSuchOp(OpRef),
    /// No such lane.
    #[error("there is no lane {} in the schedule", .0.0)]
    NoSuchLane(LaneRef),
    /// No such account.
    #[error("there is no memory account {} in the schedule", .0.0)]
    NoSuchAccount(AccountRef),
    /// An operator that belongs to a group already.
    #[error("operator {} is in a group already; one operator is in one group at most", .0.0)]
    GroupedTwice(OpRef),
    /// More operators than fit.
    #[error("a schedule holds at most {most} operators and lanes, {asked} were asked for")]
    TooLarge {
        /// The limit.
        most: usize,
        /// What was asked for.
        asked: usize,
    },
    /// A scenario could last longer than times are exact in.
    #[error("a scenario could last {asked}; scenarios are exact up to {most}")]
    TooLong {
        /// The limit.
        most: Nanos,
        /// The sum of all durations, behind the last release.
        asked: Nanos,
    },
    /// The schedule was rewired since its order was found.
    #[error("the order of the schedule is not known any more; find it again with `find_order`")]
    OrderUnknown,
    /// The outcome was made from another version of the schedule.
    #[error("the outcome is of version {of} of the schedule, which is at version {at} now; ask again")]
    Stale {
        /// The version of the outcome.
        of: u64,
        /// The version of the schedule.
        at: u64,
    },
}
