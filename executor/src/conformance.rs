//! What an implementation of an extension trait must do, as functions that try it.
//!
//! Each takes the implementation and returns the first [`Violation`] of the trait's contract that
//! it finds. Call them from a test:
//!
//! ```
//! use slicescheduler_executor::backend::CpuBackend;
//! use slicescheduler_executor::conformance;
//!
//! conformance::backend(&CpuBackend)?;
//! # Ok::<(), slicescheduler_executor::conformance::Violation>(())
//! ```

mod link;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};
use slicescheduler_gmg::id::{DeviceId, LaneId, TransferId};
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::arena::{Arena, Region};
use crate::backend::{DynBackend, Memory};
use crate::error::{ExecutorError, Result};
use crate::lane::{Entry, Outcome, Program, Rank, StdThreads};
use crate::transport::{Place, Refusal, Transfer, TransferEvent, Transport};

pub use link::{Flaky, link};

/// How long something that must happen may take.
const LIMIT: Duration = Duration::from_secs(20);

/// A rule of a contract that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule}; found {found}")]
pub struct Violation {
    /// What the contract says.
    pub rule: &'static str,
    /// What happened.
    pub found: String,
}

fn hold(holds: bool, rule: &'static str, found: impl Debug) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { rule, found: format!("{found:?}") }) }
}

fn succeed<T>(result: Result<T>, rule: &'static str) -> Result<T, Violation> {
    result.map_err(|error| Violation { rule, found: error.to_string() })
}

/// Checks a memory of at least 64 bytes that nobody uses and nobody has used.
///
/// # Errors
/// What it does against the contract of [`Memory`].
pub fn memory(memory: &dyn Memory) -> Result<(), Violation> {
    let size = memory.size();
    hold(size >= Bytes(64), "a memory has what was asked for", size)?;
    let last = Bytes(size.get() - 4);
    let mut bytes = [7; 4];
    // SAFETY: by this function's contract nobody else uses the memory.
    unsafe {
        succeed(memory.read(last, &mut bytes), "bytes within the memory can be read")?;
        hold(bytes == [0; 4], "memory is zero at first", bytes)?;
        succeed(memory.write(last, &[1, 2, 3, 4]), "bytes within the memory can be written")?;
        succeed(memory.read(last, &mut bytes), "bytes within the memory can be read")?;
        hold(bytes == [1, 2, 3, 4], "what was written is read", bytes)?;
        succeed(memory.read(size, &mut []), "nothing can be read at the end")?;
        for at in [Bytes(size.get() - 3), size, Bytes::MAX] {
            hold(memory.read(at, &mut bytes).is_err(), "reads beyond the end are refused", at)?;
            hold(memory.write(at, &[9; 4]).is_err(), "writes beyond the end are refused", at)?;
        }
        succeed(memory.read(last, &mut bytes), "bytes within the memory can be read")?;
        hold(bytes == [1, 2, 3, 4], "a write that is refused writes nothing", bytes)
    }
}

/// Fails at the operator with this number.
struct FailsAt(u32);

impl Program for FailsAt {
    fn len(&self) -> u32 {
        3
    }

    fn step(&mut self, op: u32) -> Result<()> {
        if op == self.0 { Err(ExecutorError::TooManyRegions { limit: 0 }) } else { Ok(()) }
    }
}

/// Checks a backend: its memory, and that its lanes report each entry once and in order.
///
/// # Errors
/// What it does against the contracts of [`Backend`](crate::backend::Backend) and [`Memory`].
pub fn backend(backend: &dyn DynBackend) -> Result<(), Violation> {
    memory(&*succeed(backend.allocate(Bytes(1000)), "1000 bytes can be allocated")?)?;
    let too_much = backend.allocate(Bytes::MAX);
    hold(too_much.is_err(), "memory that there is not is refused", "memory")?;

    let (sender, events) = unbounded();
    let id = LaneId::new(DeviceId(4), 2);
    let lane = backend.start_lane(id, &StdThreads, Arc::new(|| Nanos(5)), sender);
    let lane = succeed(lane, "a lane can be started")?;
    for (tag, fails_at) in [(10, 9), (11, 1), (12, 9)] {
        let entry = Entry { program: Box::new(FailsAt(fails_at)), ops: None, rank: Rank(0), tag };
        succeed(lane.enqueue(entry), "an entry is taken")?;
    }
    for (tag, next_op) in [(10, 3), (11, 1), (12, 3)] {
        let event = received(&events, "every entry is reported")?;
        let as_expected = match event.outcome {
            Outcome::Finished => next_op == 3,
            Outcome::Failed(_) => next_op == 1,
            _ => false,
        };
        let right = (event.lane, event.tag, event.next_op) == (id, tag, next_op) && as_expected;
        hold(right, "entries of a rank end in order, and a failure is the entry's alone", event)?;
    }
    drop(lane);
    let more = events.try_recv();
    hold(more.is_err(), "an entry is reported once", more)
}

/// Checks a transport, made by `start` to report to the sender that it is given.
///
/// # Errors
/// What it does against the contract of [`Transport`].
pub fn transport<T: Transport>(start: impl Fn(Sender<TransferEvent>) -> Result<T>) -> Result<(), Violation> {
    let (sender, events) = unbounded();
    let mut transport = succeed(start(sender), "a transport can be started")?;
    const SIZE: usize = 1000;
    let bytes: Vec<u8> = (0..SIZE).map(|index| index as u8).collect();
    let source = place(&bytes)?;
    let mut targets = Vec::new();
    for number in 0..64 {
        let target = place(&[0; SIZE])?;
        // SAFETY: the source is only read, the target is this transfer's, and both are looked at
        // only after all transfers were reported.
        let transfer = unsafe { Transfer::new(TransferId(number), source.clone(), target.clone()) };
        let mut transfer = succeed(transfer, "a transfer between two memories can be made")?;
        while let Err(refused) = transport.submit(transfer) {
            hold(refused.reason == Refusal::Full, "a transport that lives takes transfers", refused.reason)?;
            transfer = refused.transfer;
            std::thread::yield_now();
        }
        targets.push(target);
    }
    let mut reported = vec![false; targets.len()];
    for _ in 0..targets.len() {
        let event = received(&events, "every transfer is reported")?;
        let index = event.id.0 as usize;
        hold(
            !reported[index] && event.moved == Bytes(SIZE as u64),
            "a transfer is reported once, moved as a whole",
            &event,
        )?;
        succeed(event.outcome, "a transfer between memories that work succeeds")?;
        reported[index] = true;
    }
    for target in &targets {
        let mut found = vec![0; SIZE];
        // SAFETY: all transfers were reported.
        succeed(unsafe { target.memory.read(target.region.offset, &mut found) }, "a memory can be read")?;
        hold(found == bytes, "whoever has the event sees the bytes", "other bytes")?;
    }
    drop(transport);
    hold(events.try_recv().is_err(), "a transfer is reported once", "more events")
}

/// Some bytes in a memory of their own, not at its start.
fn place(bytes: &[u8]) -> Result<Place, Violation> {
    const OFFSET: Bytes = Bytes(24);
    let region = Region::of::<u8>(OFFSET, bytes.len());
    let memory = succeed(Arena::new(region.end() + OFFSET), "the host has memory")?;
    // SAFETY: nobody else has this memory yet.
    succeed(unsafe { memory.write(OFFSET, bytes) }, "an arena can be written")?;
    Ok(Place { memory: Arc::new(memory), region })
}

fn received<T>(events: &Receiver<T>, rule: &'static str) -> Result<T, Violation> {
    events.recv_timeout(LIMIT).map_err(|error| Violation { rule, found: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::CpuBackend;
    use crate::transport::{InProcess, InProcessOptions};

    #[test]
    fn the_cpu_backend_conforms() {
        assert_eq!(backend(&CpuBackend), Ok(()));
    }

    #[test]
    fn the_in_process_transport_conforms_whatever_its_chunk_and_queue() {
        for (chunk, queue) in [(1 << 20, 100), (7, 1), (999, 3)] {
            let options = InProcessOptions { chunk: Bytes(chunk), queue };
            let start = |sender| InProcess::start(&StdThreads, Arc::new(|| Nanos(1)), options, sender);
            assert_eq!(transport(start), Ok(()));
        }
    }

    /// Forgets what it is given.
    #[derive(Debug)]
    struct Careless;

    impl Memory for Careless {
        fn size(&self) -> Bytes {
            Bytes(64)
        }
        unsafe fn read(&self, _: Bytes, into: &mut [u8]) -> Result<()> {
            into.fill(0);
            Ok(())
        }
        unsafe fn write(&self, _: Bytes, _: &[u8]) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_violation_names_the_rule() {
        let violation = memory(&Careless).unwrap_err();
        assert_eq!(violation.to_string(), "what was written is read; found [0, 0, 0, 0]");
    }
}
