//! Moving bytes between memories: device to device, host to device.
//!
//! A [`Transport`] takes [`Transfer`]s into a bounded queue and reports each with one
//! [`TransferEvent`]. [`InProcess`] is the one for memories of this process.

mod in_process;

use std::fmt::Debug;
use std::sync::Arc;

use slicescheduler_gmg::id::TransferId;
use slicescheduler_gmg::units::{Bytes, Nanos};

pub use in_process::{InProcess, InProcessOptions};

use crate::arena::Region;
use crate::backend::Memory;
use crate::error::{ExecutorError, Result};

/// One end of a transfer: a region of some memory.
#[derive(Clone, Debug)]
pub struct Place {
    /// The memory.
    pub memory: Arc<dyn Memory>,
    /// Which of its bytes.
    pub region: Region,
}

/// Bytes to be moved.
#[derive(Debug)]
pub struct Transfer {
    id: TransferId,
    from: Place,
    to: Place,
    moved: Bytes,
}

impl Transfer {
    /// Moves the bytes of `from` to `to`, which is as long.
    ///
    /// # Errors
    /// When the lengths differ or a region is not within its memory.
    ///
    /// # Safety
    /// Until the transfer has been reported, or given back by [`Transport::submit`], nobody may
    /// write the bytes of `from`, nor read or write those of `to`; and these two do not overlap.
    pub unsafe fn new(id: TransferId, from: Place, to: Place) -> Result<Self> {
        for place in [&from, &to] {
            let Region { offset, size } = place.region;
            let arena = place.memory.size();
            if offset.get().checked_add(size.get()).is_none_or(|end| end > arena.get()) {
                return Err(ExecutorError::RegionOutOfBounds { offset, size, arena });
            }
        }
        if from.region.size != to.region.size {
            return Err(ExecutorError::TransferLength { from: from.region.size, to: to.region.size });
        }
        Ok(Self { id, from, to, moved: Bytes::ZERO })
    }

    /// Its name, given by whoever made it.
    pub const fn id(&self) -> TransferId {
        self.id
    }

    /// Bytes to move.
    pub const fn size(&self) -> Bytes {
        self.to.region.size
    }

    /// Bytes that are not moved yet.
    pub fn left(&self) -> Bytes {
        self.size() - self.moved
    }

    /// Moves the next `buffer.len()` bytes, or what is left, through `buffer`.
    ///
    /// # Errors
    /// When one of the memories fails.
    pub fn copy_chunk(&mut self, buffer: &mut [u8]) -> Result<()> {
        let left = usize::try_from(self.left().get()).unwrap_or(usize::MAX);
        let length = left.min(buffer.len());
        let chunk = &mut buffer[..length];
        // SAFETY: both ranges are within the regions, of which `new` was promised that they are
        // this transfer's until it is reported; that takes the transfer.
        unsafe {
            self.from.memory.read(self.from.region.offset + self.moved, chunk)?;
            self.to.memory.write(self.to.region.offset + self.moved, chunk)?;
        }
        self.moved += Bytes(length as u64);
        Ok(())
    }

    /// Ends the transfer, which ran from `started` to `finished`: what is to be reported.
    pub fn end(self, started: Nanos, finished: Nanos, outcome: Result<()>) -> TransferEvent {
        TransferEvent { id: self.id, moved: self.moved, started, finished, outcome }
    }
}

/// The end of a transfer, made by [`Transfer::end`].
#[derive(Debug)]
#[non_exhaustive]
pub struct TransferEvent {
    /// Which.
    pub id: TransferId,
    /// Bytes moved.
    pub moved: Bytes,
    /// When its first byte was read, by the transport's clock.
    pub started: Nanos,
    /// When it ended.
    pub finished: Nanos,
    /// Why it did not move everything, if it did not.
    pub outcome: Result<()>,
}

/// A transfer that was not taken.
#[derive(Debug)]
pub struct Refused {
    /// The transfer, to be submitted again.
    pub transfer: Transfer,
    /// Why.
    pub reason: Refusal,
}

/// Why a transfer was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full. There is room after the next event.
    Full,
    /// The transport has ended.
    Ended,
}

/// Moves bytes.
///
/// # Contract
/// - [`submit`](Self::submit) never waits: a transfer is taken or given back.
/// - What was taken is reported once, on the channel that the transport was made with, after its
///   last byte was written: whoever has the event sees the bytes. One that fails is reported too.
/// - Transfers may overlap in time and end in any order.
/// - After a transport was dropped it touches no memory; what it had not moved is reported as
///   failed with [`ExecutorError::TransportEnded`].
///
/// The suite `conformance::transport` (feature `conformance`) checks an implementation.
pub trait Transport: Debug + Send {
    /// Takes a transfer, or gives it back.
    ///
    /// # Errors
    /// [`Refused`], with the transfer and the reason.
    fn submit(&mut self, transfer: Transfer) -> Result<(), Box<Refused>>;
}
