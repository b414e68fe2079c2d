//! Faults on purpose, to see what becomes of the rest.
//!
//! A world that is given [`Faults`] asks them at every point where something can go wrong, and behaves as
//! if it had. One that is given none asks nothing.
//!
//! | what goes wrong | how to make it | what becomes of it |
//! |---|---|---|
//! | a kernel fails or panics | [`Point::Operator`], [`Fault::Fails`] or [`Fault::Panics`] | its job fails ([`Event::Failed`]) |
//! | a lane stalls | [`Faults::at`] blocks at a [`Point::Operator`] | others go on; the device is lost if [`patience`] ends |
//! | a lane is poisoned | [`Point::Operator`], [`Fault::PoisonsLane`] | the device is lost |
//! | a device is lost | [`Point::Operator`] or [`Point::Load`], [`Fault::LosesDevice`] | [`Event::DeviceLost`] |
//! | weights are cut or corrupted on the way | [`Point::Load`], [`Fault::Fails`] | copied again; the third time the device is lost |
//! | a link between processes is cut or turns bits | `conformance::Flaky` (feature `conformance`) around a [`Carrier`] | transfers go on, or fail when the link does not come back |
//! | memory of a device is lacking | [`Point::Allocation`] | [`ExecutorError::OutOfMemory`] when the world is made |
//! | memory for a copy of a sequence is lacking | [`Point::Copy`] | [`ExecutorError::OutOfMemory`]; the request goes on without a copy |
//!
//! [`Event::Failed`]: slicescheduler_gmg::plan::Event::Failed
//! [`Event::DeviceLost`]: slicescheduler_gmg::plan::Event::DeviceLost
//! [`patience`]: crate::cpu_world::CpuWorldOptions::patience
//! [`Carrier`]: crate::transport::link::Carrier
//! [`ExecutorError::OutOfMemory`]: crate::ExecutorError::OutOfMemory

use std::fmt::Debug;

use slicescheduler_gmg::id::{DeviceId, LaneId, ModelId, RequestId};
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
    /// Host memory for the copy of a sequence's keys and values is about to be allocated.
    Copy {
        /// Whose.
        request: RequestId,
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
    /// The lane that runs an operator can not go on, and its thread ends; elsewhere as [`Fails`](Self::Fails).
    PoisonsLane,
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
