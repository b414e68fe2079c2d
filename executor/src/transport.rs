//! Moving bytes between memories: device to device, host to device.
//!
//! A [`Transport`] takes [`Transfer`]s into a bounded queue and reports each with one
//! [`TransferEvent`]. [`InProcess`] is the one for memories of this process. Between processes, each
//! submits its half of a transfer to its end of a [`link`], over TCP (`tcp`, feature `tcp`) or memory
//! that both have mapped (`shared_memory`, feature `shared-memory`).

mod handle;
mod in_process;
pub mod link;
#[cfg(feature = "shared-memory")]
pub mod shared_memory;
#[cfg(feature = "tcp")]
pub mod tcp;

use std::fmt::Debug;
use std::sync::Arc;

use crossbeam::channel::Sender;
use slicescheduler_gmg::id::TransferId;
use slicescheduler_gmg::units::{Bytes, Nanos};

pub use in_process::{InProcess, InProcessOptions};

use crate::arena::Region;
use crate::backend::Memory;
use crate::error::{ExecutorError, Result};
use crate::lane::{LaneClock, ThreadSpawner};

/// One end of a transfer: a region of some memory.
#[derive(Clone, Debug)]
pub struct Place {
    /// The memory.
    pub memory: Arc<dyn Memory>,
    /// Which of its bytes.
    pub region: Region,
}

/// Which ends of a transfer are in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Both.
    Both,
    /// Its source; the destination is at the other end of a link.
    Source,
    /// Its destination.
    Destination,
}

/// Bytes to be moved.
#[derive(Debug)]
pub struct Transfer {
    id: TransferId,
    from: Option<Place>,
    to: Option<Place>,
    size: Bytes,
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
        let size = checked(&from)?;
        if size != checked(&to)? {
            return Err(ExecutorError::TransferLength { from: size, to: to.region.size });
        }
        Ok(Self { id, from: Some(from), to: Some(to), size, moved: Bytes::ZERO })
    }

    /// This process's half of a transfer to another process, which submits the other half,
    /// [`incoming`](Self::incoming), under the same name to its end of the link.
    ///
    /// # Errors
    /// When the region is not within its memory.
    ///
    /// # Safety
    /// Until the transfer has been reported, or given back by [`Transport::submit`], nobody may write
    /// the bytes of `from`.
    pub unsafe fn outgoing(id: TransferId, from: Place) -> Result<Self> {
        let size = checked(&from)?;
        Ok(Self { id, from: Some(from), to: None, size, moved: Bytes::ZERO })
    }

    /// The other half of an [`outgoing`](Self::outgoing) transfer.
    ///
    /// # Errors
    /// When the region is not within its memory.
    ///
    /// # Safety
    /// Until the transfer has been reported, or given back by [`Transport::submit`], nobody may read
    /// or write the bytes of `to`.
    pub unsafe fn incoming(id: TransferId, to: Place) -> Result<Self> {
        let size = checked(&to)?;
        Ok(Self { id, from: None, to: Some(to), size, moved: Bytes::ZERO })
    }

    /// Its name, given by whoever made it.
    pub const fn id(&self) -> TransferId {
        self.id
    }

    /// Which of its ends are here.
    pub const fn ends(&self) -> Ends {
        match (&self.from, &self.to) {
            (Some(_), None) => Ends::Source,
            (None, Some(_)) => Ends::Destination,
            _ => Ends::Both,
        }
    }

    /// Bytes to move.
    pub const fn size(&self) -> Bytes {
        self.size
    }

    /// Bytes that are not moved yet.
    pub fn left(&self) -> Bytes {
        self.size - self.moved
    }

    /// Moves the next `buffer.len()` bytes, or what is left, through `buffer`.
    ///
    /// # Errors
    /// When one of the memories fails, or one of the ends is not here.
    pub fn copy_chunk(&mut self, buffer: &mut [u8]) -> Result<()> {
        let left = usize::try_from(self.left().get()).unwrap_or(usize::MAX);
        let length = left.min(buffer.len());
        let chunk = &mut buffer[..length];
        self.read_at(self.moved, chunk)?;
        self.write_next(chunk)
    }

    /// Reads the source from byte `at` of the transfer on.
    ///
    /// # Errors
    /// When the source is not here, has not that many bytes, or fails.
    pub fn read_at(&self, at: Bytes, into: &mut [u8]) -> Result<()> {
        let from = self.from.as_ref().ok_or(ExecutorError::NoSuchEnd { end: "source" })?;
        let at = within(from.region, at, into.len())?;
        // SAFETY: the range is within the region, of which the constructor was promised that it is this
        // transfer's until it is reported; that takes the transfer.
        unsafe { from.memory.read(at, into) }
    }

    /// Writes the next bytes of the destination.
    ///
    /// # Errors
    /// When the destination is not here, has not that many bytes left, or fails.
    pub fn write_next(&mut self, from: &[u8]) -> Result<()> {
        let to = self.to.as_ref().ok_or(ExecutorError::NoSuchEnd { end: "destination" })?;
        let at = within(to.region, self.moved, from.len())?;
        // SAFETY: as in `read_at`.
        unsafe { to.memory.write(at, from)? };
        self.moved += Bytes(from.len() as u64);
        Ok(())
    }

    /// The other end has all bytes.
    fn arrived(&mut self) {
        self.moved = self.size;
    }

    /// Ends the transfer, which ran from `started` to `finished`: what is to be reported. One that is said to have
    /// ended well and has a destination here with bytes missing has failed, with [`ExecutorError::NotMoved`].
    pub fn end(self, started: Nanos, finished: Nanos, outcome: Result<()>) -> TransferEvent {
        let (left, size) = (self.left(), self.size);
        let missing = self.to.is_some() && !left.is_zero();
        let outcome = outcome.and_then(|()| if missing { Err(ExecutorError::NotMoved { left, size }) } else { Ok(()) });
        TransferEvent { id: self.id, of: self.id, moved: self.moved, started, finished, outcome }
    }
}

/// The size of a place, which must lie within its memory.
fn checked(place: &Place) -> Result<Bytes> {
    let Region { offset, size } = place.region;
    let arena = place.memory.size();
    if offset.get().checked_add(size.get()).is_none_or(|end| end > arena.get()) {
        return Err(ExecutorError::RegionOutOfBounds { offset, size, arena });
    }
    Ok(size)
}

/// Where in its memory the `length` bytes of `region` at `at` begin.
fn within(region: Region, at: Bytes, length: usize) -> Result<Bytes> {
    let size = Bytes(length as u64);
    if at.get().checked_add(size.get()).is_none_or(|end| end > region.size.get()) {
        return Err(ExecutorError::RegionOutOfBounds { offset: at, size, arena: region.size });
    }
    Ok(region.offset + at)
}

/// The end of a transfer, made by [`Transfer::end`].
#[derive(Debug)]
#[non_exhaustive]
pub struct TransferEvent {
    /// Which.
    pub id: TransferId,
    /// The same, which nobody else can write: by it memory is given back.
    of: TransferId,
    /// Bytes moved.
    pub moved: Bytes,
    /// When its first byte was read, by the transport's clock.
    pub started: Nanos,
    /// When it ended.
    pub finished: Nanos,
    /// Why it did not move everything, if it did not.
    pub outcome: Result<()>,
}

impl TransferEvent {
    /// The transfer that [ended](Transfer::end), whatever its transport wrote over [`id`](Self::id).
    pub(crate) const fn of(&self) -> TransferId {
        self.of
    }
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
    /// The transport wants [both ends](Ends::Both) of a transfer, or only one.
    OtherEnds,
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
/// The suite `conformance::transport` (feature `conformance`) checks an implementation. A world of CPU lanes loads
/// weights with the one that its options [start](StartTransport).
pub trait Transport: Debug + Send {
    /// Takes a transfer, or gives it back.
    ///
    /// # Errors
    /// [`Refused`], with the transfer and the reason.
    fn submit(&mut self, transfer: Transfer) -> Result<(), Box<Refused>>;
}

/// Starts a [`Transport`], for a world that is being set up.
///
/// Its transfers have both ends in this process: from the host's memory, or from another device, to a device.
pub trait StartTransport: Debug + Send + Sync {
    /// Starts one that reports to `events`, by `clock`. If it has threads, they are from `threads`.
    ///
    /// # Errors
    /// When it can not be started; the world is not made then.
    fn start(
        &self,
        threads: &dyn ThreadSpawner,
        clock: LaneClock,
        events: Sender<TransferEvent>,
    ) -> Result<Box<dyn Transport>>;
}

impl StartTransport for InProcessOptions {
    fn start(
        &self,
        threads: &dyn ThreadSpawner,
        clock: LaneClock,
        events: Sender<TransferEvent>,
    ) -> Result<Box<dyn Transport>> {
        Ok(Box::new(InProcess::start(threads, clock, *self, events)?))
    }
}
