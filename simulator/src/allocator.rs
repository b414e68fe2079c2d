//! What a host's memory allocator makes of a sequence of requests.
//!
//! A host that brings its own tensors does not place them where the graph says: its allocator rounds,
//! caches and fragments. An [`AllocatorModel`] says how many bytes of a device that takes.
//!
//! | model | what it is |
//! |---|---|
//! | [`ExactBytes`] | no rounding, no caching: the lower bound, and the reference of what is alive |
//! | [`CachingAllocator`] | the caching allocator of PyTorch, block by block |
//!
//! ```
//! use slicescheduler_gmg::units::Bytes;
//! use slicescheduler_simulator::allocator::{AllocatorModel, CachingAllocator, CachingOptions, Stream};
//!
//! let mut memory = CachingAllocator::new(Bytes::gib(80), CachingOptions::default());
//! let tensor = memory.allocate(Bytes::mib(3), Stream(0))?;
//! assert_eq!(memory.usage().reserved, Bytes::mib(20));
//! memory.free(tensor)?;
//! assert_eq!((memory.usage().allocated, memory.usage().reserved), (Bytes::ZERO, Bytes::mib(20)));
//! # Ok::<(), slicescheduler_simulator::allocator::AllocatorError>(())
//! ```

mod exact;
mod pytorch;

use std::fmt::{self, Debug};

use slicescheduler_gmg::units::Bytes;

pub use exact::ExactBytes;
pub use pytorch::{CachingAllocator, CachingOptions};

/// A stream of a device, on which work is in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub u32);

/// An allocation. Handles are not used twice by one allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Allocation(pub u64);

impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "allocation {}", self.0)
    }
}

/// What an allocator holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In allocations, rounded as the allocator rounds. Memory that was freed counts until every
    /// stream that used it is through with it: what PyTorch calls active bytes.
    pub allocated: Bytes,
    /// Taken from the device.
    pub reserved: Bytes,
    /// The most that was ever [`allocated`](Self::allocated).
    pub peak_allocated: Bytes,
    /// The most that was ever [`reserved`](Self::reserved).
    pub peak_reserved: Bytes,
}

impl Usage {
    pub(crate) fn allocate(&mut self, bytes: Bytes) {
        self.allocated += bytes;
        self.peak_allocated = self.peak_allocated.max(self.allocated);
    }

    pub(crate) fn reserve(&mut self, bytes: Bytes) {
        self.reserved += bytes;
        self.peak_reserved = self.peak_reserved.max(self.reserved);
    }
}

/// Why an allocator refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocatorError {
    /// The device has no more, whatever is given back to it.
    #[error("{wanted} are wanted on {stream:?}: {reserved} of {capacity} are reserved, {allocated} of them allocated")]
    OutOfMemory {
        /// What was to be taken from the device.
        wanted: Bytes,
        /// For whom.
        stream: Stream,
        /// What is in allocations.
        allocated: Bytes,
        /// What is taken.
        reserved: Bytes,
        /// What the device has.
        capacity: Bytes,
    },
    /// It never was, or is freed.
    #[error("{0} does not exist, or is freed already")]
    NoSuchAllocation(Allocation),
}

/// How an allocator uses a device.
///
/// # Contract
///
/// - Deterministic: equal calls give equal results on every machine.
/// - A refused call changes nothing but what the allocator gave back to the device in vain.
/// - `allocated <= reserved <= capacity`, always. Zero bytes are an allocation like another.
/// - The caller says with [`use_on`](Self::use_on) what other streams read or write, before it frees,
///   and with [`passed`](Self::passed) when a stream is through with all that was freed so far.
pub trait AllocatorModel: Debug + Send {
    /// Allocates `bytes` for work on `stream`.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](AllocatorError::OutOfMemory).
    fn allocate(&mut self, bytes: Bytes, stream: Stream) -> Result<Allocation, AllocatorError>;

    /// Says that work on `stream` uses `allocation`, which was made for another.
    ///
    /// # Errors
    ///
    /// [`NoSuchAllocation`](AllocatorError::NoSuchAllocation).
    fn use_on(&mut self, allocation: Allocation, stream: Stream) -> Result<(), AllocatorError>;

    /// Frees `allocation`. If other streams use it, its memory is free when all of them have passed.
    ///
    /// # Errors
    ///
    /// [`NoSuchAllocation`](AllocatorError::NoSuchAllocation).
    fn free(&mut self, allocation: Allocation) -> Result<(), AllocatorError>;

    /// Says that `stream` has done all that it was given so far.
    fn passed(&mut self, stream: Stream);

    /// What it holds.
    fn usage(&self) -> Usage;
}
