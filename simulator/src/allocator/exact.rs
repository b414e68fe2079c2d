//! The bytes that are asked for, and no more.

use std::collections::{BTreeMap, BTreeSet};

use slicescheduler_gmg::units::Bytes;

use super::{Allocation, AllocatorError, AllocatorModel, Stream, Usage};

/// An allocator without rounding, caching or fragmentation.
#[derive(Clone, Debug)]
pub struct ExactBytes {
    capacity: Bytes,
    next: u64,
    live: BTreeMap<Allocation, Live>,
    /// Freed, but not passed by these streams.
    waiting: Vec<(Bytes, BTreeSet<Stream>)>,
    usage: Usage,
}

#[derive(Clone, Debug)]
struct Live {
    bytes: Bytes,
    /// Work on it is in order: it needs no waiting.
    stream: Stream,
    users: BTreeSet<Stream>,
}

impl ExactBytes {
    /// An allocator for a device of `capacity`.
    pub fn new(capacity: Bytes) -> Self {
        Self { capacity, next: 0, live: BTreeMap::new(), waiting: Vec::new(), usage: Usage::default() }
    }

    fn give_back(&mut self, bytes: Bytes) {
        self.usage.allocated -= bytes;
        self.usage.reserved -= bytes;
    }
}

impl AllocatorModel for ExactBytes {
    fn allocate(&mut self, bytes: Bytes, stream: Stream) -> Result<Allocation, AllocatorError> {
        let Usage { allocated, reserved, .. } = self.usage;
        if bytes > self.capacity - reserved {
            let capacity = self.capacity;
            return Err(AllocatorError::OutOfMemory { wanted: bytes, stream, allocated, reserved, capacity });
        }
        self.usage.allocate(bytes);
        self.usage.reserve(bytes);
        let allocation = Allocation(self.next);
        self.next += 1;
        self.live.insert(allocation, Live { bytes, stream, users: BTreeSet::new() });
        Ok(allocation)
    }

    fn use_on(&mut self, allocation: Allocation, stream: Stream) -> Result<(), AllocatorError> {
        let live = self.live.get_mut(&allocation).ok_or(AllocatorError::NoSuchAllocation(allocation))?;
        if live.stream != stream {
            live.users.insert(stream);
        }
        Ok(())
    }

    fn free(&mut self, allocation: Allocation) -> Result<(), AllocatorError> {
        let Live { bytes, users, .. } =
            self.live.remove(&allocation).ok_or(AllocatorError::NoSuchAllocation(allocation))?;
        if users.is_empty() {
            self.give_back(bytes)
        } else {
            self.waiting.push((bytes, users))
        }
        Ok(())
    }

    fn passed(&mut self, stream: Stream) {
        let mut free = Bytes::ZERO;
        self.waiting.retain_mut(|(bytes, users)| {
            users.remove(&stream);
            if users.is_empty() {
                free += *bytes;
            }
            !users.is_empty()
        });
        self.give_back(free);
    }

    fn usage(&self) -> Usage {
        self.usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_held_until_every_other_stream_has_passed() {
        let mut memory = ExactBytes::new(Bytes(10));
        let a = memory.allocate(Bytes(7), Stream(0)).unwrap();
        assert!(memory.allocate(Bytes(4), Stream(0)).is_err());
        memory.use_on(a, Stream(0)).unwrap();
        memory.use_on(a, Stream(1)).unwrap();
        memory.free(a).unwrap();
        assert_eq!(memory.usage().allocated, Bytes(7));
        memory.passed(Stream(1));
        assert_eq!((memory.usage().allocated, memory.usage().peak_reserved), (Bytes::ZERO, Bytes(7)));
        assert_eq!(memory.use_on(a, Stream(1)), Err(AllocatorError::NoSuchAllocation(a)));
    }
}
