//! How many predecessors of each task have not finished.
//!
//! Two bytes per task, side by side: what is left, and what it starts from again. So the last
//! arrival finds in the same word how to set it back. What must stay true: outside of a run every
//! count is at its start.

use super::{TaskGraph, WIDE};
use crate::sync::{AtomicU16, AtomicU32, Ordering};

/// In both bytes: the count is in `wide`.
const ELSEWHERE: u16 = u16::from_le_bytes([WIDE, WIDE]);

#[derive(Debug)]
struct Wide {
    label: u32,
    total: u32,
    left: AtomicU32,
}

/// A countdown per label.
#[derive(Debug)]
pub(super) struct Countdowns {
    words: Box<[AtomicU16]>,
    /// By label, ascending.
    wide: Box<[Wide]>,
}

impl Countdowns {
    /// All at their start.
    pub(super) fn new(graph: &TaskGraph) -> Self {
        let word = |&count: &u8| AtomicU16::new(u16::from_le_bytes([count, count]));
        let wide = |&(label, total): &(u32, u32)| Wide { label, total, left: AtomicU32::new(total) };
        Self { words: graph.predecessors.iter().map(word).collect(), wide: graph.wide.iter().map(wide).collect() }
    }

    /// Sets all back.
    pub(super) fn reset(&mut self) {
        for word in &mut self.words {
            let word = word.get_mut();
            let [_, total] = word.to_le_bytes();
            *word = u16::from_le_bytes([total, total]);
        }
        for wide in &mut self.wide {
            *wide.left.get_mut() = wide.total;
        }
    }

    /// The count of `label` as [`arrive`](Self::arrive) wants to have seen it.
    #[inline]
    pub(super) fn look(&self, label: u32) -> u16 {
        // Whoever sees that it is the last one acquires what the others wrote.
        self.words[label as usize].load(Ordering::Acquire)
    }

    /// A predecessor of `label` has finished, which looked at its count before; true if it was the
    /// last, and then the count is back at its start. Several threads may call this.
    #[inline]
    pub(super) fn arrive(&self, label: u32, seen: u16) -> bool {
        if seen == ELSEWHERE {
            return self.arrive_wide(label);
        }
        let word = &self.words[label as usize];
        let mut before = seen;
        // Where one is left, that one is who looks: nobody else counts here, and no locked operation
        // is needed.
        if seen & 0xff != 1 {
            // Release what this task wrote; whoever is the last acquires all of it.
            before = word.fetch_sub(1, Ordering::AcqRel);
        }
        let [left, total] = before.to_le_bytes();
        if left == 1 {
            // Nobody counts here again before the task behind has run.
            word.store(u16::from_le_bytes([total, total]), Ordering::Relaxed);
        }
        left == 1
    }

    /// As [`arrive`](Self::arrive), by a thread that has the run for itself.
    #[inline]
    pub(super) fn arrive_alone(&self, label: u32) -> bool {
        let word = &self.words[label as usize];
        let seen = word.load(Ordering::Relaxed);
        if seen == ELSEWHERE {
            return self.arrive_wide(label);
        }
        let [left, total] = seen.to_le_bytes();
        let after = if left == 1 { u16::from_le_bytes([total, total]) } else { seen.wrapping_sub(1) };
        word.store(after, Ordering::Relaxed);
        left == 1
    }

    #[cold]
    fn arrive_wide(&self, label: u32) -> bool {
        let place = self.wide.binary_search_by_key(&label, |wide| wide.label);
        let Some(wide) = place.ok().and_then(|place| self.wide.get(place)) else { return false };
        let last = wide.left.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            wide.left.store(wide.total, Ordering::Relaxed);
        }
        last
    }
}
