//! Counts of bytes by kind, with high-water marks.

use crate::units::Bytes;

/// What bytes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteKind {
    /// Model weights.
    Weights,
    /// KV cache.
    Kv,
    /// Activations of jobs.
    Activations,
    /// Buffers of transfers under way.
    Staging,
    /// Tensors of the host, counted without an offset.
    External,
}

impl ByteKind {
    /// Every kind, in the order of tables.
    pub const ALL: [Self; 5] = [Self::Weights, Self::Kv, Self::Activations, Self::Staging, Self::External];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Kv => "kv",
            Self::Activations => "activations",
            Self::Staging => "staging",
            Self::External => "external",
        }
    }
}

/// Bytes in use on one device, by kind, and the most there ever were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    current: [u64; 5],
    peak: [u64; 5],
    peak_total: u64,
}

impl Ledger {
    /// Counts `bytes` more.
    pub fn add(&mut self, kind: ByteKind, bytes: Bytes) {
        let kind = kind as usize;
        self.current[kind] = self.current[kind].saturating_add(bytes.get());
        self.peak[kind] = self.peak[kind].max(self.current[kind]);
        self.peak_total = self.peak_total.max(self.total().get());
    }

    /// Counts `bytes` less; never below zero.
    pub fn remove(&mut self, kind: ByteKind, bytes: Bytes) {
        let kind = kind as usize;
        self.current[kind] = self.current[kind].saturating_sub(bytes.get());
    }

    /// The most of each kind, and of all at one time.
    #[cfg(feature = "serde")]
    pub(super) fn peaks(&self) -> ([u64; 5], u64) {
        (self.peak, self.peak_total)
    }

    /// This count with other high-water marks; [`None`] if they are below what is in use.
    #[cfg(feature = "serde")]
    pub(super) fn with_peaks(self, (peak, peak_total): ([u64; 5], u64)) -> Option<Self> {
        let reached = self.current.iter().zip(&peak).all(|(current, peak)| current <= peak);
        (reached && self.total().get() <= peak_total).then_some(Self { peak, peak_total, ..self })
    }

    /// Bytes of a kind in use.
    pub fn of(&self, kind: ByteKind) -> Bytes {
        Bytes(self.current[kind as usize])
    }

    /// Bytes in use.
    pub fn total(&self) -> Bytes {
        Bytes(self.current.iter().fold(0, |total, bytes| total.saturating_add(*bytes)))
    }

    /// The most bytes of a kind that were ever in use.
    pub fn peak_of(&self, kind: ByteKind) -> Bytes {
        Bytes(self.peak[kind as usize])
    }

    /// The most bytes that were ever in use at one time.
    pub fn peak(&self) -> Bytes {
        Bytes(self.peak_total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_of_one_instant() {
        let mut ledger = Ledger::default();
        ledger.add(ByteKind::Kv, Bytes(10));
        ledger.remove(ByteKind::Kv, Bytes(10));
        ledger.add(ByteKind::Weights, Bytes(8));
        assert_eq!(ledger.peak(), Bytes(10));
        assert_eq!(ledger.peak_of(ByteKind::Weights), Bytes(8));
        ledger.remove(ByteKind::Weights, Bytes(99));
        assert_eq!(ledger.total(), Bytes::ZERO);
    }
}
