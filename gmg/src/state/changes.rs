//! What was changed between two publications.

use crate::id::{DeviceId, RequestId, TenantId};
use crate::memory::{DeviceMemory, Region};
use crate::units::Bytes;

/// Entries of one kind that are kept; see [`Changes::is_complete`].
const MAX_ENTRIES: usize = 1 << 16;

/// The entities that differ between two versions, by name: whoever has the older one and can read
/// the newer one copies them. Names take no more memory than there are entities, and nothing is
/// copied here however long nobody publishes.
///
/// Reservations of memory are kept as what was done, since doing it again costs less than copying a
/// device's blocks and gaps. That is exact: what lies where follows from the order of reservations.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(super) jobs: Names,
    pub(super) lanes: Names,
    /// Devices to be copied whole; their entries of `memory` do not count.
    pub(super) devices: Names,
    pub(super) memory: Vec<(DeviceId, MemoryChange)>,
    pub(super) requests: Vec<RequestId>,
    pub(super) statics: bool,
    /// The shortest that the stack of free slots was; what lies below has not changed.
    pub(super) free_slots: usize,
    incomplete: bool,
}

/// A change of what is reserved on a device that happens all the time.
#[derive(Clone, Copy, Debug)]
pub(super) enum MemoryChange {
    ReserveArena(Bytes),
    ReleaseArena(Region),
    GrowKv(RequestId, TenantId, u32),
    ReleaseKv(RequestId),
}

impl MemoryChange {
    pub(super) fn repeat(self, memory: &mut DeviceMemory) {
        match self {
            Self::ReserveArena(bytes) => {
                memory.reserve_arena(bytes);
            }
            Self::ReleaseArena(region) => {
                memory.release_arena(region);
            }
            Self::GrowKv(request, tenant, blocks) => {
                memory.grow_kv(request, tenant, blocks);
            }
            Self::ReleaseKv(request) => {
                memory.release_kv(request);
            }
        }
    }
}

impl Changes {
    /// Nothing was changed yet in a graph with so many free slots.
    pub(crate) fn restart(&mut self, free_slots: usize) {
        self.jobs.clear();
        self.lanes.clear();
        self.devices.clear();
        self.memory.clear();
        self.requests.clear();
        self.statics = false;
        self.free_slots = free_slots;
        self.incomplete = false;
    }

    /// False after so many changes that copying everything is cheaper than keeping them.
    pub(crate) fn is_complete(&self) -> bool {
        !self.incomplete
    }

    pub(super) fn memory(&mut self, device: DeviceId, change: MemoryChange) {
        if self.memory.len() < MAX_ENTRIES {
            self.memory.push((device, change));
        } else {
            self.incomplete = true;
        }
    }

    pub(super) fn request(&mut self, id: RequestId) {
        if self.requests.last() == Some(&id) {
            return;
        }
        if self.requests.len() < MAX_ENTRIES {
            self.requests.push(id);
        } else {
            self.incomplete = true;
        }
    }
}

/// A set of numbers from zero up, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Names {
    list: Vec<u32>,
    /// One bit per number.
    known: Vec<u64>,
}

impl Names {
    pub(super) fn insert(&mut self, name: u32) {
        let (word, bit) = (name as usize / 64, 1 << (name % 64));
        if word >= self.known.len() {
            self.known.resize(word + 1, 0);
        }
        if self.known[word] & bit == 0 {
            self.known[word] |= bit;
            self.list.push(name);
        }
    }

    pub(super) fn contains(&self, name: u32) -> bool {
        self.known.get(name as usize / 64).is_some_and(|word| word >> (name % 64) & 1 == 1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.list.iter().copied()
    }

    fn clear(&mut self) {
        for &name in &self.list {
            self.known[name as usize / 64] = 0;
        }
        self.list.clear();
    }
}
