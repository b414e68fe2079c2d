//! Best fit with coalescing, for regions of irregular size.

use std::collections::{BTreeMap, BTreeSet};

use crate::memory::Region;
use crate::units::Bytes;

/// Alignment of every region, in bytes: that of a cache line pair, and of what matrix kernels ask.
const ALIGNMENT: u64 = 256;

/// Hands out regions of a range: the smallest gap that fits, the lowest offset among equals.
///
/// Freed regions join their free neighbours at once, so free space is never split by history.
/// Allocate and free are O(log gaps).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BestFit {
    range: Region,
    /// Gap offset -> gap length. Gaps never touch each other.
    gaps: BTreeMap<u64, u64>,
    /// The same gaps as (length, offset).
    by_length: BTreeSet<(u64, u64)>,
    used: u64,
}

impl BestFit {
    /// An allocator over `range`, all free. The range is shrunk to aligned bounds.
    pub fn new(range: Region) -> Self {
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

    /// The range it hands out.
    pub fn range(&self) -> Region {
        self.range
    }

    /// Bytes handed out, alignment included.
    pub fn used(&self) -> Bytes {
        Bytes(self.used)
    }

    /// Bytes not handed out; not necessarily in one piece.
    pub fn free_bytes(&self) -> Bytes {
        self.range.bytes - self.used()
    }

    /// The longest region that could be handed out now.
    pub fn largest_gap(&self) -> Bytes {
        Bytes(self.by_length.last().map_or(0, |&(length, _)| length))
    }

    /// Reserves `bytes`, rounded up to the alignment; [`None`] if no gap is long enough. Zero
    /// bytes give an empty region at the start of the range, which needs no free.
    pub fn allocate(&mut self, bytes: Bytes) -> Option<Region> {
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
    pub fn free(&mut self, region: Region) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn allocator(bytes: u64) -> BestFit {
        BestFit::new(Region { offset: Bytes(0), bytes: Bytes(bytes) })
    }

    #[test]
    fn the_smallest_gap_that_fits_is_used() {
        let mut memory = allocator(10 * 1024);
        let regions: Vec<_> = [2048, 256, 1024, 256].map(|n| memory.allocate(Bytes(n)).unwrap()).into();
        assert!(memory.free(regions[0]));
        assert!(memory.free(regions[2]));
        assert_eq!(memory.allocate(Bytes(1000)).unwrap().offset, regions[2].offset);
    }

    #[test]
    fn neighbours_join_when_freed() {
        let mut memory = allocator(4096);
        let regions: Vec<_> = (0..4).map(|_| memory.allocate(Bytes(1024)).unwrap()).collect();
        for index in [0, 2, 1, 3] {
            assert!(memory.free(regions[index]));
        }
        assert_eq!(memory.largest_gap(), Bytes(4096));
    }

    #[test]
    fn freeing_twice_is_refused() {
        let mut memory = allocator(4096);
        let region = memory.allocate(Bytes(512)).unwrap();
        assert!(memory.free(region));
        let before = memory.clone();
        assert!(!memory.free(region));
        assert_eq!(memory, before);
    }

    proptest! {
        /// Against a map of every 256-byte cell.
        #[test]
        fn regions_never_overlap_and_nothing_leaks(steps in prop::collection::vec((any::<bool>(), 1u64..3000, any::<prop::sample::Index>()), 1..200)) {
            let mut memory = allocator(64 * 256);
            let mut live: Vec<Region> = Vec::new();
            for (allocate, bytes, pick) in steps {
                if allocate {
                    let wanted = Bytes(bytes).align_up(256);
                    let largest = memory.largest_gap();
                    match memory.allocate(Bytes(bytes)) {
                        Some(region) => {
                            prop_assert_eq!(region.bytes, wanted);
                            prop_assert!(region.end() <= Bytes(64 * 256));
                            prop_assert!(live.iter().all(|other| region.end() <= other.offset || other.end() <= region.offset));
                            live.push(region);
                        }
                        None => prop_assert!(largest < wanted),
                    }
                } else if !live.is_empty() {
                    let region = live.swap_remove(pick.index(live.len()));
                    prop_assert!(memory.free(region));
                }
                prop_assert_eq!(memory.used(), live.iter().map(|region| region.bytes).sum());
            }
            for region in live {
                prop_assert!(memory.free(region));
            }
            prop_assert_eq!(memory.largest_gap(), Bytes(64 * 256));
        }
    }
}
