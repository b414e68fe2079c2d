//! Transfers between memories of this process, on one thread.

use crossbeam::channel::Sender;
use slicescheduler_gmg::units::Bytes;

use super::handle::{Handle, Orders};
use super::{Ends, Refusal, Refused, Transfer, TransferEvent, Transport};
use crate::error::{ExecutorError, Result};
use crate::lane::{LaneClock, ThreadSpawner};

/// How an in-process transport works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InProcessOptions {
    /// Bytes that are copied at a time; a transport that is dropped ends after the chunk it is at.
    pub chunk: Bytes,
    /// Transfers that may wait, at least 1.
    pub queue: usize,
}

impl Default for InProcessOptions {
    fn default() -> Self {
        Self { chunk: Bytes::kib(256), queue: 16 }
    }
}

/// Copies in order of submission, chunk by chunk through a buffer of its own, so that it works
/// between any two memories.
///
/// ```
/// use std::sync::Arc;
///
/// use crossbeam::channel::unbounded;
/// use slicescheduler_executor::arena::{Arena, Region};
/// use slicescheduler_executor::backend::Memory;
/// use slicescheduler_executor::lane::StdThreads;
/// use slicescheduler_executor::transport::{InProcess, InProcessOptions, Place, Transfer, Transport};
/// use slicescheduler_gmg::id::TransferId;
/// use slicescheduler_gmg::units::{Bytes, Nanos};
///
/// # fn main() -> Result<(), slicescheduler_executor::ExecutorError> {
/// let (sender, events) = unbounded();
/// let options = InProcessOptions::default();
/// let mut transport = InProcess::start(&StdThreads, Arc::new(|| Nanos::ZERO), options, sender)?;
/// let (host, device) = (Arc::new(Arena::new(Bytes(64))?), Arc::new(Arena::new(Bytes(256))?));
/// let from = Place { memory: host, region: Region::new(Bytes(0), Bytes(64)) };
/// let to = Place { memory: device.clone(), region: Region::new(Bytes(128), Bytes(64)) };
/// // SAFETY: nobody else has these memories, and they are not used before the event.
/// let transfer = unsafe { Transfer::new(TransferId(7), from, to)? };
/// assert!(transport.submit(transfer).is_ok());
/// assert!(events.iter().take(1).all(|event| event.id == TransferId(7) && event.outcome.is_ok()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct InProcess(Handle);

impl InProcess {
    /// Starts a transport on a thread from `threads`. Its events go to `events`.
    ///
    /// # Errors
    /// [`ExecutorError::Spawn`] when there is no thread.
    pub fn start(
        threads: &dyn ThreadSpawner,
        clock: LaneClock,
        options: InProcessOptions,
        events: Sender<TransferEvent>,
    ) -> Result<Self> {
        let chunk = usize::try_from(options.chunk.get().max(1)).unwrap_or(usize::MAX);
        let work = move |orders| Worker { clock, events, chunk, orders }.run();
        Handle::start(threads, "transfers", options.queue, work).map(Self)
    }
}

impl Transport for InProcess {
    fn submit(&mut self, transfer: Transfer) -> Result<(), Box<Refused>> {
        if transfer.ends() != Ends::Both {
            return Err(Box::new(Refused { transfer, reason: Refusal::OtherEnds }));
        }
        self.0.submit(transfer)
    }
}

struct Worker {
    clock: LaneClock,
    events: Sender<TransferEvent>,
    chunk: usize,
    /// The last field, so that all else is gone by then.
    orders: Orders,
}

impl Worker {
    fn run(self) {
        let mut buffer = vec![0; self.chunk];
        for mut transfer in &self.orders.transfers {
            let started = (self.clock)();
            let outcome = self.copy(&mut transfer, &mut buffer);
            let finished = (self.clock)();
            // A host that has dropped its receiver does not want to know.
            let _ = self.events.send(transfer.end(started, finished, outcome));
        }
    }

    fn copy(&self, transfer: &mut Transfer, buffer: &mut [u8]) -> Result<()> {
        while !transfer.left().is_zero() {
            if self.orders.ended() {
                return Err(ExecutorError::TransportEnded { left: transfer.left(), size: transfer.size() });
            }
            transfer.copy_chunk(buffer)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam::channel::{Receiver, unbounded};
    use slicescheduler_gmg::id::TransferId;
    use slicescheduler_gmg::units::Nanos;

    use super::*;
    use crate::arena::{Arena, Region};
    use crate::backend::Memory;
    use crate::lane::StdThreads;
    use crate::transport::Place;

    /// A memory whose first read says that it has begun and waits for the test.
    #[derive(Debug)]
    struct Slow {
        begun: Sender<()>,
        go: Receiver<()>,
    }

    impl Memory for Slow {
        fn size(&self) -> Bytes {
            Bytes(8)
        }
        unsafe fn read(&self, _: Bytes, into: &mut [u8]) -> Result<()> {
            let _ = self.begun.send(());
            let _ = self.go.recv();
            into.fill(1);
            Ok(())
        }
        unsafe fn write(&self, _: Bytes, _: &[u8]) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_transport_that_is_dropped_reports_what_it_had_not_moved() {
        let (sender, events) = unbounded();
        let options = InProcessOptions { chunk: Bytes(2), queue: 2 };
        let mut transport = InProcess::start(&StdThreads, Arc::new(|| Nanos(1)), options, sender).unwrap();
        let ((begun_in, begun), (go, go_out)) = (unbounded(), unbounded());
        let slow = Arc::new(Slow { begun: begun_in, go: go_out });
        let region = Region::new(Bytes(0), Bytes(8));
        let mut submit = |number| {
            let from = Place { memory: slow.clone(), region };
            let to = Place { memory: Arc::new(Arena::new(Bytes(64)).unwrap()), region };
            // SAFETY: nobody else has these memories.
            let transfer = unsafe { Transfer::new(TransferId(number), from, to) }.unwrap();
            transport.submit(transfer)
        };
        submit(0).unwrap();
        begun.recv().unwrap();
        submit(1).unwrap();
        submit(2).unwrap();
        assert_eq!(submit(3).unwrap_err().reason, Refusal::Full);
        transport.0.end();
        go.send(()).unwrap();
        drop(transport);
        let ends: Vec<_> = events.iter().map(|event| (event.id.0, event.moved.get(), event.outcome.is_ok())).collect();
        assert_eq!(ends, [(0, 2, false), (1, 0, false), (2, 0, false)]);
    }
}
