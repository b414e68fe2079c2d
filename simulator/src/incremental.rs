//! What-if in microseconds on schedules of millions of operators.
//!
//! A [`Schedule`] has operators in a fixed order per lane, with edges between lanes, releases,
//! groups that run as one (tensor parallelism, collectives), bytes that operators hold, and due
//! times. A [`Trial`] changes some of it and computes only what follows. What it finds equals a
//! computation from scratch, bit for bit.
//!
//! # The rule
//!
//! With every number in whole nanoseconds,
//!
//! ```text
//! start(op)  = max(release(op), finish(the one before it on its lane), finish(p) for each predecessor p)
//! finish(op) = start(op) + duration(op),    duration(op) >= 1
//! ```
//!
//! and a group starts at the latest of its members' starts. Sums saturate at [`Nanos::MAX`], "never":
//! what waits for something that never finishes never does either. Since durations are positive, the
//! rule has exactly one solution, unless operators wait for each other, which is refused.
//!
//! # The invariant
//!
//! Between two settlings every record obeys the rule. While a trial settles, **every record that is
//! not queued obeys it**. A record is queued when something of its own was changed, or when an input
//! moved from `old` to `new` in a way that can matter: `new` is later than its start, or `old` was
//! not earlier than it. When the queue is empty, the rule holds everywhere; as it has one solution,
//! that is the one which a sweep from scratch would find. The order in which the queue is emptied
//! therefore decides about speed only.
//!
//! # The cut-off
//!
//! An operator whose finish comes out as it was reaches nobody. The queue is emptied in the order of
//! former starts. Along unchanged edges that is a topological order, so no operator is evaluated
//! twice; behind new edges some are.
//!
//! When more than a small part of the schedule was evaluated, the rest is not worth the bookkeeping:
//! the trial computes all finishes in one sweep, into an array of its own. That also finds cycles.
//!
//! # The layout
//!
//! - A record has 32 bytes: finish, release, duration, and its two neighbours on the lane. The start is
//!   not stored. Records of one lane lie behind one another, so that a change that runs down a lane
//!   finds the next record in the cache; a jump to another lane costs one line for the record and one
//!   for its rows of edges. (An array per field needs four lines there, and as many translations.)
//! - Edges are compressed rows, the same for all trials. What trials and adoptions add lies in an
//!   overflow table; a flag in the record says whether to look.
//! - A sweep goes through columns of durations, releases, lanes and predecessors in the order of starts,
//!   and writes finishes to a column of its own: one pass over 40 bytes per operator and 4 per edge.
//!   [`Scenarios`] does the same with a row of finishes per operator, one per scenario.
//! - A stretch of 64 operators without edges to other lanes, groups or effects is passed in one
//!   evaluation, so that a change early on a long lane does not cost the length of the lane.
//! - A trial never writes to its base. It keeps changed records in a compact list, and per record of
//!   the base a number that says where; so a rollback costs what was changed, several threads can share
//!   a base, and in steady state nothing is allocated.
//! - Bytes over time are kept per account as sorted instants with a tree of maxima; a trial keeps the
//!   shifts that it causes, and asks for maxima between them.
//!
//! ```
//! use slicescheduler_gmg::units::Nanos;
//! use slicescheduler_simulator::incremental::{Place, Schedule, Scratch};
//!
//! let mut plan = Schedule::builder();
//! let left = plan.lane(Nanos(0));
//! let first = plan.push(Nanos(10), Nanos(0));
//! let second = plan.push(Nanos(10), Nanos(15));
//! plan.lane(Nanos(0));
//! let third = plan.push(Nanos(5), Nanos(0));
//! plan.edge(first, third);
//! let schedule = plan.build()?;
//!
//! let mut scratch = Scratch::default();
//! let mut trial = schedule.trial(&mut scratch);
//! let before = trial.mark();
//! trial.set_duration(first, Nanos(12))?;
//! let guest = trial.insert(Place::Behind(first), Nanos(4), Nanos(0))?;
//! trial.settle()?;
//! assert_eq!((trial.start(guest), trial.start(third)), (Nanos(12), Nanos(12)));
//! assert_eq!(trial.start(second), Nanos(16), "one later than it would have been");
//! trial.rollback(before);
//! assert_eq!((trial.start(third), trial.lane_end(left)), (Nanos(10), Nanos(25)));
//! # Ok::<(), slicescheduler_simulator::incremental::ScheduleError>(())
//! ```
//!
//! [`Nanos::MAX`]: slicescheduler_gmg::units::Nanos::MAX

mod blocks;
mod builder;
mod edit;
mod error;
mod order;
mod outcome;
mod propagate;
mod record;
mod scenarios;
mod schedule;
mod steps;
mod trial;
mod usage;

pub use builder::ScheduleBuilder;
pub use edit::Place;
pub use error::ScheduleError;
pub use outcome::Outcome;
pub use record::{AccountRef, Hold, LaneRef, Lateness, OpRef};
pub use scenarios::{ScenarioChange, Scenarios};
pub use schedule::Schedule;
pub use trial::{Mark, Scratch, Settled, Trial};
