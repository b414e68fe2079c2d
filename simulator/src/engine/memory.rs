//! Bytes in use on a device over the simulated time.

use slicescheduler_gmg::memory::{ByteKind, DeviceMemory, Ledger};
use slicescheduler_gmg::units::{Bytes, Nanos};

use super::node::{NONE, NodeRef};

const KINDS: usize = ByteKind::ALL.len();

/// What a device has at the start, and where it ends.
///
/// Parts are limited one by one, as they are on the device: free bytes of the KV pool do not help
/// an activation. Fragmentation inside a part is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryState {
    total: u64,
    usable: u64,
    parts: [Part; KINDS],
}

/// Bytes of one kind. Whoever takes some looks at both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    used: u64,
    limit: u64,
}

impl MemoryState {
    /// A device of `usable` bytes, nothing used, no limit on any part.
    pub fn of(usable: Bytes) -> Self {
        Self { total: 0, usable: usable.get(), parts: [Part { used: 0, limit: u64::MAX }; KINDS] }
    }

    /// The device as the graph has it.
    pub fn from_graph(memory: &DeviceMemory) -> Self {
        let layout = memory.layout();
        let mut state = Self::of(layout.usable);
        state.parts[ByteKind::Weights as usize].limit = layout.weights_end(memory.borrowed_blocks()).get();
        state.parts[ByteKind::Activations as usize].limit = layout.arena.get();
        state.parts[ByteKind::Kv as usize].limit = layout.kv_block.times(u64::from(memory.kv().total())).get();
        state.count(memory.ledger());
        state
    }

    /// Sets what is used to what `ledger` counts.
    pub fn count(&mut self, ledger: &Ledger) {
        for (part, kind) in self.parts.iter_mut().zip(ByteKind::ALL) {
            part.used = ledger.of(kind).get();
        }
        self.total = ledger.total().get();
    }

    /// Counts `bytes` more.
    pub fn add(&mut self, kind: ByteKind, bytes: Bytes) {
        let used = &mut self.parts[kind as usize].used;
        *used = used.saturating_add(bytes.get());
        self.total = self.total.saturating_add(bytes.get());
    }

    /// True if there are more bytes of `kind`, or of all kinds, than there may be.
    fn exceeds(&self, kind: ByteKind) -> bool {
        let Part { used, limit } = self.parts[kind as usize];
        used > limit || self.total > self.usable
    }

    /// Counts `bytes` less, but never less than nothing.
    pub fn remove(&mut self, kind: ByteKind, bytes: Bytes) {
        let used = &mut self.parts[kind as usize].used;
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
        let missing = self.parts.iter().map(|part| part.used.saturating_sub(part.limit));
        Bytes(missing.fold(self.total.saturating_sub(self.usable), u64::max))
    }
}

/// The bytes in use on a device from `at` on, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPoint {
    /// Since when.
    pub at: Nanos,
    /// In use, in the order of [`ByteKind::ALL`].
    pub used: [Bytes; KINDS],
}

impl MemoryPoint {
    /// Bytes of `kind`.
    pub fn of(&self, kind: ByteKind) -> Bytes {
        self.used[kind as usize]
    }

    /// Bytes of all kinds.
    pub fn total(&self) -> Bytes {
        self.used.iter().copied().sum()
    }
}

/// The first time that a device had too few bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When.
    pub at: Nanos,
    /// How many bytes were missing in the part that lacked most.
    pub missing: Bytes,
    /// The work that started in that instant and took bytes of the device; the latest added, if
    /// there were several. [`None`] if what was reserved from outside was too much.
    pub by: Option<NodeRef>,
}

/// The memory of a device in a simulation. First what every operator that takes or frees bytes needs.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Tracked {
    state: MemoryState,
    peak: Bytes,
    /// The latest node that took bytes in this instant.
    taker: u32,
    /// True if something has exceeded a limit since this was last looked at. Only what is taken can.
    exceeded: bool,
    /// True from a change to the end of its instant.
    pub(super) changed: bool,
    pub(super) recording: bool,
    violation: Option<Violation>,
    pub(super) points: Vec<MemoryPoint>,
}

impl Tracked {
    /// Bytes of what every operator needs.
    pub(super) const HOT: usize = std::mem::offset_of!(Tracked, violation);

    pub(super) fn new(state: MemoryState) -> Self {
        Self {
            state,
            peak: state.total(),
            violation: None,
            taker: NONE,
            exceeded: true,
            changed: false,
            recording: false,
            points: Vec::new(),
        }
    }

    pub(super) fn take(&mut self, kind: ByteKind, bytes: Bytes, by: u32) {
        self.state.add(kind, bytes);
        self.exceeded |= self.state.exceeds(kind);
        if by != NONE && (self.taker == NONE || by > self.taker) {
            self.taker = by;
        }
    }

    pub(super) fn free(&mut self, kind: ByteKind, bytes: Bytes) {
        self.state.remove(kind, bytes);
    }

    /// Everything of instant `at` has happened: what ended has freed its bytes, what started has
    /// taken them. In between there is no order, so a peak counts only here.
    pub(super) fn settle(&mut self, at: Nanos) {
        self.changed = false;
        if self.recording {
            self.record(at);
        }
        let taker = std::mem::replace(&mut self.taker, NONE);
        self.peak = self.peak.max(self.state.total());
        if std::mem::take(&mut self.exceeded) && self.violation.is_none() {
            let missing = self.state.missing();
            let by = (taker != NONE).then_some(NodeRef(taker));
            self.violation = (!missing.is_zero()).then_some(Violation { at, missing, by });
        }
    }

    pub(super) fn record(&mut self, at: Nanos) {
        let point = MemoryPoint { at, used: self.state.parts.map(|part| Bytes(part.used)) };
        match self.points.last_mut() {
            Some(last) if last.used == point.used => {}
            Some(last) if last.at == at => *last = point,
            _ => self.points.push(point),
        }
    }

    pub(super) fn state(&self) -> MemoryState {
        self.state
    }

    pub(super) fn peak(&self) -> Bytes {
        self.peak
    }

    pub(super) fn violation(&self) -> Option<Violation> {
        self.violation
    }
}
