//! Faults on purpose, to see what becomes of the rest.
//!
//! A world that is given [`Faults`] asks them at every point where something can go wrong, and behaves as
//! if it had. One that is given none asks nothing.

use std::fmt::Debug;

use slicescheduler_gmg::id::{DeviceId, LaneId, ModelId};
use slicescheduler_gmg::units::Bytes;

/// Where something can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Point {
    /// A lane is about to run operator `op` of a job. Who blocks here stalls the lane.
    Operator {
        /// The lane.
        lane: LaneId,
        /// The operator's number in its template.
        op: u32,
    },
    /// Weights were copied; what goes wrong now went wrong on the way.
    Load {
        /// Whose.
        model: ModelId,
        /// Where to.
        device: DeviceId,
    },
    /// The memory of a device is about to be allocated.
    Allocation {
        /// Whose.
        device: DeviceId,
        /// How much.
        size: Bytes,
    },
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// What is about to happen fails.
    Fails,
    /// An operator panics; elsewhere as [`Fails`](Self::Fails).
    Panics,
    /// The device is gone, with everything on it; where memory is allocated as [`Fails`](Self::Fails).
    LosesDevice,
}

/// Says what goes wrong.
///
/// # Contract
/// [`at`](Self::at) is called by several threads at a time, once per point. It may block at an operator,
/// which holds up that lane only.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// use slicescheduler_executor::fault::{Fault, Faults, Point};
///
/// /// Every thousandth operator fails.
/// #[derive(Debug, Default)]
/// struct Thousandth(AtomicU32);
///
/// impl Faults for Thousandth {
///     fn at(&self, point: Point) -> Option<Fault> {
///         let Point::Operator { .. } = point else { return None };
///         (self.0.fetch_add(1, Ordering::Relaxed) % 1000 == 999).then_some(Fault::Fails)
///     }
/// }
/// ```
pub trait Faults: Debug + Send + Sync {
    /// What goes wrong at `point`, if anything does.
    fn at(&self, point: Point) -> Option<Fault>;
}
