//! Bytes in use on a device over the simulated time.

use slicescheduler_gmg::memory::{ByteKind, DeviceMemory, Ledger};
use slicescheduler_gmg::plan::Shortage;
use slicescheduler_gmg::units::{Bytes, Nanos};

const KINDS: usize = ByteKind::ALL.len();

/// What a device has at the start, and where it ends.
///
/// Parts are limited one by one, as they are on the device: free bytes of the KV pool do not help
/// an activation. Fragmentation inside a part is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryState {
    used: [u64; KINDS],
    limit: [u64; KINDS],
    total: u64,
    usable: u64,
}

impl MemoryState {
    /// A device of `usable` bytes, nothing used, no limit on any part.
    pub fn of(usable: Bytes) -> Self {
        Self { used: [0; KINDS], limit: [u64::MAX; KINDS], total: 0, usable: usable.get() }
    }

    /// The device as the graph has it.
    pub fn from_graph(memory: &DeviceMemory) -> Self {
        let layout = memory.layout();
        let mut state = Self::of(layout.usable);
        state.limit[ByteKind::Weights as usize] = layout.weights.get();
        state.limit[ByteKind::Activations as usize] = layout.arena.get();
        state.limit[ByteKind::Kv as usize] = layout.kv_block.times(u64::from(layout.kv_blocks())).get();
        state.count(memory.ledger());
        state
    }

    /// Sets what is used to what `ledger` counts.
    pub fn count(&mut self, ledger: &Ledger) {
        self.used = ByteKind::ALL.map(|kind| ledger.of(kind).get());
        self.total = ledger.total().get();
    }

    /// Counts `bytes` more.
    pub fn add(&mut self, kind: ByteKind, bytes: Bytes) {
        let used = &mut self.used[kind as usize];
        *used = used.saturating_add(bytes.get());
        self.total = self.total.saturating_add(bytes.get());
    }

    /// Counts `bytes` less, but never less than nothing.
    pub fn remove(&mut self, kind: ByteKind, bytes: Bytes) {
        let used = &mut self.used[kind as usize];
        let removed = bytes.get().min(*used);
        *used -= removed;
        self.total -= removed;
    }

    /// Bytes in use.
    pub fn total(&self) -> Bytes {
        Bytes(self.total)
    }

    /// Bytes that are neither in use nor out of reach.
    pub fn free(&self) -> Bytes {
        Bytes(self.usable) - Bytes(self.total)
    }

    /// Bytes missing in the part that lacks most.
    pub fn missing(&self) -> Bytes {
        let parts = self.used.iter().zip(&self.limit).map(|(used, limit)| used.saturating_sub(*limit));
        Bytes(parts.fold(self.total.saturating_sub(self.usable), u64::max))
    }
}

/// A device in a simulation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tracked {
    pub(super) state: MemoryState,
    peak: Bytes,
    shortage: Option<Shortage>,
    /// True from a change to the end of its instant.
    pub(super) changed: bool,
}

impl Tracked {
    pub(super) fn new(state: MemoryState) -> Self {
        Self { state, peak: state.total(), shortage: None, changed: false }
    }

    /// Everything of instant `at` has happened: what ended has freed its bytes, what started has
    /// taken them. In between there is no order, so a peak counts only here.
    pub(super) fn settle(&mut self, at: Nanos) {
        self.changed = false;
        self.peak = self.peak.max(self.state.total());
        let missing = self.state.missing();
        if self.shortage.is_none() && !missing.is_zero() {
            self.shortage = Some(Shortage { at, bytes: missing });
        }
    }

    pub(super) fn peak(&self) -> Bytes {
        self.peak
    }

    pub(super) fn shortage(&self) -> Option<Shortage> {
        self.shortage
    }
}
