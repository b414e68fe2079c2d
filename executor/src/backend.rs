//! What the executor asks of a kind of device: memory, lanes, and copies.
//!
//! A [`Backend`] is typed: its memory is its own type, so kernels of that backend reach it without
//! a dynamic call. What only moves bytes or starts lanes takes it as a [`DynBackend`], so that
//! devices of several kinds are used side by side; every backend is one.

use std::fmt::Debug;
use std::sync::Arc;

use crossbeam::channel::Sender;
use slicescheduler_gmg::id::LaneId;
use slicescheduler_gmg::units::Bytes;

use crate::arena::{Arena, Region};
use crate::error::Result;
use crate::lane::{Lane, LaneClock, LaneEvent, ThreadSpawner};

/// The memory of a device as those see it who copy to and from it.
///
/// # Contract
/// - All bytes are zero at first. A write is seen by every read that happens after it.
/// - A call returns when the bytes are copied. It does not wait for lanes.
/// - A range that is not within the memory is refused, and nothing is copied.
///
/// Several threads use one memory at a time. Who may touch which bytes is agreed on outside: each
/// copy is unsafe, and its caller promises that the bytes are the caller's. A memory that is not
/// the host's may leave it at that; one that is would read torn bytes, which Rust does not allow.
///
/// The suite `conformance::memory` (feature `conformance`) checks an implementation.
pub trait Memory: Debug + Send + Sync {
    /// How many bytes it has; at least as many as were asked for.
    fn size(&self) -> Bytes;

    /// Copies the bytes at `at` to `into`.
    ///
    /// # Errors
    /// When the range is not within the memory, or the device fails.
    ///
    /// # Safety
    /// Nobody may write these bytes during the call.
    unsafe fn read(&self, at: Bytes, into: &mut [u8]) -> Result<()>;

    /// Copies `from` to the bytes at `at`.
    ///
    /// # Errors
    /// When the range is not within the memory, or the device fails.
    ///
    /// # Safety
    /// Nobody else may read or write these bytes during the call.
    unsafe fn write(&self, at: Bytes, from: &[u8]) -> Result<()>;
}

/// A kind of device.
///
/// # Contract
/// - [`allocate`](Self::allocate) is called once per device, before its lanes start. The executor
///   hands out parts of what it returns and asks for no more.
/// - [`start_lane`](Self::start_lane) gives an in-order queue that reports each entry once; see
///   [`Lane`] for what that means.
/// - Nothing here starts a thread except through the spawner of the host.
///
/// The suite `conformance::backend` (feature `conformance`) checks an implementation.
pub trait Backend: Debug + Send + Sync {
    /// The memory of its devices.
    type Memory: Memory + 'static;

    /// Its name, for messages.
    fn name(&self) -> &'static str;

    /// All the memory of one device that will ever be used: `size` bytes, zero.
    ///
    /// # Errors
    /// When there is not that much.
    fn allocate(&self, size: Bytes) -> Result<Arc<Self::Memory>>;

    /// Starts a lane of a device.
    ///
    /// # Errors
    /// When there is no thread for it, or the device has no more queues.
    fn start_lane(
        &self,
        lane: LaneId,
        threads: &dyn ThreadSpawner,
        clock: LaneClock,
        events: Sender<LaneEvent>,
    ) -> Result<Lane>;
}

mod sealed {
    pub trait Sealed {}
    impl<B: super::Backend> Sealed for B {}
}

/// A [`Backend`] whose memory is behind a pointer, for use beside others. Implemented for every
/// backend, and sealed: implement [`Backend`].
pub trait DynBackend: sealed::Sealed + Debug + Send + Sync {
    /// See [`Backend::name`].
    fn name(&self) -> &'static str;

    /// See [`Backend::allocate`].
    ///
    /// # Errors
    /// As there.
    fn allocate(&self, size: Bytes) -> Result<Arc<dyn Memory>>;

    /// See [`Backend::start_lane`].
    ///
    /// # Errors
    /// As there.
    fn start_lane(
        &self,
        lane: LaneId,
        threads: &dyn ThreadSpawner,
        clock: LaneClock,
        events: Sender<LaneEvent>,
    ) -> Result<Lane>;
}

impl<B: Backend> DynBackend for B {
    fn name(&self) -> &'static str {
        Backend::name(self)
    }

    fn allocate(&self, size: Bytes) -> Result<Arc<dyn Memory>> {
        Ok(Backend::allocate(self, size)?)
    }

    fn start_lane(
        &self,
        lane: LaneId,
        threads: &dyn ThreadSpawner,
        clock: LaneClock,
        events: Sender<LaneEvent>,
    ) -> Result<Lane> {
        Backend::start_lane(self, lane, threads, clock, events)
    }
}

/// Devices made of this machine's memory and threads: the memory of each is an [`Arena`], each lane
/// a thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuBackend;

impl Backend for CpuBackend {
    type Memory = Arena;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn allocate(&self, size: Bytes) -> Result<Arc<Arena>> {
        Arena::new(size).map(Arc::new)
    }

    fn start_lane(
        &self,
        lane: LaneId,
        threads: &dyn ThreadSpawner,
        clock: LaneClock,
        events: Sender<LaneEvent>,
    ) -> Result<Lane> {
        Lane::start(lane, threads, clock, events)
    }
}

impl Memory for Arena {
    fn size(&self) -> Bytes {
        Arena::size(self)
    }

    unsafe fn read(&self, at: Bytes, into: &mut [u8]) -> Result<()> {
        // SAFETY: that nobody writes the region meanwhile is the caller's promise.
        into.copy_from_slice(unsafe { self.read_shared::<u8>(Region::of::<u8>(at, into.len()))? });
        Ok(())
    }

    unsafe fn write(&self, at: Bytes, from: &[u8]) -> Result<()> {
        let region = Region::of::<u8>(at, from.len());
        // SAFETY: that nobody else uses the region meanwhile is the caller's promise.
        let mut operands = unsafe { self.operands_within(region) };
        operands.write::<u8>(region)?.copy_from_slice(from);
        Ok(())
    }
}
