//! Start against recall: one word per entry.
//!
//! The word counts the operators that were started; its top bit says that the entry is recalled.
//! A lane starts an operator by raising the count, in one compare-and-swap that fails once the bit
//! is set. Whoever recalls sets the bit and reads the count in the same step. So both sides see
//! one order of the two, and the recaller knows at once which operators will never run.

use std::ops::Range;

use crate::sync::{AtomicU64, Ordering};

const RECALLED: u64 = 1 << 63;

/// What became of a recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    /// The operators from this one on never run; the ones before it have run or are running. The last of those may be
    /// stopped in the middle, if it can be; the entry's event says so.
    Recalled {
        /// The first operator that does not run.
        first: u32,
    },
    /// All operators were started before; the last one may be stopped in the middle.
    TooLate,
}

/// How far an entry has come.
#[derive(Debug)]
pub(super) struct Progress {
    word: AtomicU64,
    ops: Range<u32>,
}

impl Progress {
    /// Nothing of `ops` started.
    pub(super) fn new(ops: Range<u32>) -> Self {
        Self { word: AtomicU64::new(u64::from(ops.start)), ops }
    }

    /// Starts the next operator and returns it; `None` when all were started or the rest was
    /// recalled. Called by the lane only.
    pub(super) fn start(&self) -> Option<u32> {
        let word = self.word.load(Ordering::Relaxed);
        if word >= u64::from(self.ops.end) {
            return None;
        }
        // Only the lane raises the count, so failure means that the bit was set. What the recaller
        // did before must be seen by whoever learns of it from the lane, hence acquire.
        self.word.compare_exchange(word, word + 1, Ordering::AcqRel, Ordering::Acquire).ok()?;
        Some(word as u32)
    }

    /// Recalls what was not started.
    pub(super) fn recall(&self) -> Recall {
        let before = self.word.fetch_or(RECALLED, Ordering::AcqRel);
        let first = (before & !RECALLED) as u32;
        if first >= self.ops.end { Recall::TooLate } else { Recall::Recalled { first } }
    }

    /// True once the rest was recalled.
    pub(super) fn is_recalled(&self) -> bool {
        // What follows from it is ordered by the entry's event.
        self.word.load(Ordering::Relaxed) & RECALLED != 0
    }

    /// The first operator that was not started.
    pub(super) fn next(&self) -> u32 {
        (self.word.load(Ordering::Acquire) & !RECALLED) as u32
    }

    /// One past the last operator.
    pub(super) const fn end(&self) -> u32 {
        self.ops.end
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn what_is_recalled_never_starts() {
        let progress = Progress::new(2..5);
        assert_eq!(progress.start(), Some(2));
        assert_eq!(progress.recall(), Recall::Recalled { first: 3 });
        assert_eq!(progress.start(), None);
        assert_eq!(progress.recall(), Recall::Recalled { first: 3 });
        assert_eq!(progress.next(), 3);
    }

    #[test]
    fn a_recall_after_the_last_start_is_too_late() {
        let progress = Progress::new(0..1);
        assert_eq!(progress.start(), Some(0));
        assert_eq!(progress.recall(), Recall::TooLate);
        assert_eq!(progress.start(), None);
        assert_eq!(progress.next(), 1);
    }

    /// Both sides race; whatever the order, what started and what was recalled are complements.
    #[test]
    fn both_sides_of_a_race_agree_on_its_outcome() {
        for _ in 0..2_000 {
            let progress = Progress::new(0..8);
            let barrier = Barrier::new(2);
            let (started, recall) = std::thread::scope(|scope| {
                let lane = scope.spawn(|| {
                    barrier.wait();
                    std::iter::from_fn(|| progress.start()).count() as u32
                });
                barrier.wait();
                let recall = progress.recall();
                (lane.join().unwrap(), recall)
            });
            match recall {
                Recall::Recalled { first } => assert_eq!(started, first),
                Recall::TooLate => assert_eq!(started, 8),
            }
        }
    }
}
