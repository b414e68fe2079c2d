//! The tables of branches, used again.

use std::sync::Arc;

use crate::id::{RequestId, Version};
use crate::id_map::IdMap;
use crate::memory::DeviceMemory;
use crate::request::Request;
use crate::snapshot::overlay::{Dense, Extent, Overlay};
use crate::state::{Slot, Statics};
use crate::sync::{Mutex, PoisonError};
use crate::view::Lane;

/// What a branch keeps beside its snapshot.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) jobs: Overlay<u32, Slot, Dense>,
    pub(super) lanes: Overlay<u32, Lane, Dense>,
    pub(super) memory: Overlay<u32, DeviceMemory, Dense>,
    /// [`None`]: removed.
    pub(super) requests: Overlay<RequestId, Option<Request>, IdMap<RequestId, u32>>,
    /// Slots that were vacated on the branch and not taken again, the next to be taken last.
    pub(super) freed: Vec<u32>,
    /// What was done to `freed`: put on it, or taken off.
    pub(super) freed_journal: Vec<Option<u32>>,
    pub(super) marks: Vec<Marked>,
}

/// A moment that can be gone back to.
#[derive(Debug)]
pub(super) struct Marked {
    /// Unique in the process and ascending.
    pub(super) serial: u64,
    pub(super) version: Version,
    pub(super) statics: Option<Arc<Statics>>,
    pub(super) next_request: u64,
    pub(super) next_slot: u32,
    pub(super) taken: usize,
    pub(super) freed_journal: usize,
    pub(super) extents: [Extent; 4],
}

impl Scratch {
    pub(super) fn extents(&self) -> [Extent; 4] {
        [self.jobs.extent(), self.lanes.extent(), self.memory.extent(), self.requests.extent()]
    }

    pub(super) fn go_back(&mut self, [jobs, lanes, memory, requests]: [Extent; 4]) {
        self.jobs.go_back(jobs);
        self.lanes.go_back(lanes);
        self.memory.go_back(memory);
        self.requests.go_back(requests);
    }

    fn clear(&mut self) {
        self.jobs.clear();
        self.lanes.clear();
        self.memory.clear();
        self.requests.clear();
        self.freed.clear();
        self.freed_journal.clear();
        self.marks.clear();
    }
}

/// Emptied tables that a pool keeps at most: as many branches side by side allocate nothing.
const POOLED: usize = 64;

/// Where branches leave their tables. All versions of a graph share one.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "a branch holds a box, which is not opened on its way here and back")]
pub(crate) struct ScratchPool(Mutex<Vec<Box<Scratch>>>);

impl ScratchPool {
    pub(super) fn take(&self) -> Box<Scratch> {
        let pooled = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        pooled.unwrap_or_default()
    }

    pub(super) fn put(&self, mut scratch: Box<Scratch>) {
        scratch.clear();
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.len() < POOLED {
            pool.push(scratch);
        }
    }
}
