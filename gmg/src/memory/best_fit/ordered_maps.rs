//! Best fit over two ordered maps: the same rules as plainly as possible, kept as the oracle of the
//! fast one.

use std::collections::{BTreeMap, BTreeSet};

use crate::memory::Region;
use crate::units::Bytes;

use super::ALIGNMENT;

/// Hands out regions of a range: the smallest gap that fits, the lowest offset among equals.
///
/// Freed regions join their free neighbours at once, so free space is never split by history.
/// Allocate and free are O(log gaps).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OrderedMaps {
    range: Region,
    /// Gap offset -> gap length. Gaps never touch each other.
    gaps: BTreeMap<u64, u64>,
    /// The same gaps as (length, offset).
    by_length: BTreeSet<(u64, u64)>,
    used: u64,
}

impl OrderedMaps {
    /// An allocator over `range`, all free. The range is shrunk to aligned bounds.
    pub(super) fn new(range: Region) -> Self {
        let start = range.offset.align_up(ALIGNMENT).get();
        let end = range.end().get() / ALIGNMENT * ALIGNMENT;
        let length = end.saturating_sub(start);
        let range = Region { offset: Bytes(start), bytes: Bytes(length) };
        let mut this = Self { range, gaps: BTreeMap::new(), by_length: BTreeSet::new(), used: 0 };
        if length > 0 {
            this.insert_gap(start, length);
        }
        this
    }

    /// Bytes handed out, alignment included.
    pub(super) fn used(&self) -> Bytes {
        Bytes(self.used)
    }

    /// The longest region that could be handed out now.
    pub(super) fn largest_gap(&self) -> Bytes {
        Bytes(self.by_length.last().map_or(0, |&(length, _)| length))
    }

    /// Reserves `bytes`, rounded up to the alignment; [`None`] if no gap is long enough. Zero
    /// bytes give an empty region at the start of the range, which needs no free.
    pub(super) fn allocate(&mut self, bytes: Bytes) -> Option<Region> {
        let length = bytes.align_up(ALIGNMENT).get();
        if length == 0 {
            return Some(Region { offset: self.range.offset, bytes: Bytes::ZERO });
        }
        let &(gap, offset) = self.by_length.range((length, 0)..).next()?;
        self.remove_gap(offset, gap);
        if gap > length {
            self.insert_gap(offset + length, gap - length);
        }
        self.used += length;
        Some(Region { offset: Bytes(offset), bytes: Bytes(length) })
    }

    /// Gives back a region that [`allocate`](Self::allocate) returned. Returns false, and changes
    /// nothing, if any byte of it is free already or outside the range.
    pub(super) fn free(&mut self, region: Region) -> bool {
        let (start, end) = (region.offset.get(), region.end().get());
        if start == end {
            return true;
        }
        if start < self.range.offset.get() || end > self.range.end().get() {
            return false;
        }
        let before = self.gaps.range(..end).next_back().map(|(&offset, &length)| (offset, length));
        if before.is_some_and(|(offset, length)| offset + length > start) {
            return false;
        }
        let (mut first, mut length) = (start, end - start);
        if let Some((offset, gap)) = before
            && offset + gap == start
        {
            self.remove_gap(offset, gap);
            first = offset;
            length += gap;
        }
        if let Some(&gap) = self.gaps.get(&end) {
            self.remove_gap(end, gap);
            length += gap;
        }
        self.insert_gap(first, length);
        self.used -= end - start;
        true
    }

    fn insert_gap(&mut self, offset: u64, length: u64) {
        self.gaps.insert(offset, length);
        self.by_length.insert((length, offset));
    }

    fn remove_gap(&mut self, offset: u64, length: u64) {
        self.gaps.remove(&offset);
        self.by_length.remove(&(length, offset));
    }
}
