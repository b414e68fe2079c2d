//! Best fit with coalescing, for regions of irregular size.
//!
//! Gaps are kept in two flat arrays of 32-bit words, offsets and lengths, in the order of offsets.
//! A device has few gaps: one pass over the lengths, which compilers turn into vector instructions,
//! beats any ordered structure up to some hundreds of gaps, and a copy of the whole is a copy of a
//! cache line or two.
//!
//! What must stay true: gaps ascend, and neither overlap nor touch. So the arrays follow from what is
//! handed out, whatever happened before: equal reservations make equal allocators, and a change is
//! taken back by its opposite.

#[cfg(test)]
mod ordered_maps;

use smallvec::SmallVec;

use crate::memory::Region;
use crate::units::Bytes;

/// Alignment of every region, in bytes: that of a cache line pair, and of what matrix kernels ask.
const ALIGNMENT: u64 = 256;

/// Gaps that are kept without a heap allocation.
const INLINE: usize = 6;

/// Up to this many gaps, counting the lower ones is faster than halving.
const COUNTED: usize = 96;

/// Hands out regions of a range: the smallest gap that fits, the lowest offset among equals.
///
/// Freed regions join their free neighbours at once, so free space is never split by history.
/// Allocate is one pass over 4 bytes per gap, free O(log gaps) and a move of at most 8 bytes per gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BestFit {
    start: Bytes,
    /// All, in units of [`ALIGNMENT`], as are the counts below.
    units: u32,
    used: u32,
    offsets: SmallVec<[u32; INLINE]>,
    lengths: SmallVec<[u32; INLINE]>,
}

impl BestFit {
    /// The longest range: a unit short of 1 TiB.
    pub const LARGEST: Bytes = Bytes(u32::MAX as u64 * ALIGNMENT);

    /// An allocator over `range`, all free. The range is shrunk to aligned bounds, and to
    /// [`LARGEST`](Self::LARGEST).
    pub fn new(range: Region) -> Self {
        let start = range.offset.align_up(ALIGNMENT);
        let units = (range.end().get() / ALIGNMENT).saturating_sub(start.get() / ALIGNMENT);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let mut this = Self { start, units, used: 0, offsets: SmallVec::new(), lengths: SmallVec::new() };
        if units > 0 {
            this.insert(0, 0, units);
        }
        this
    }

    /// The range it hands out.
    pub fn range(&self) -> Region {
        Region { offset: self.start, bytes: bytes(self.units) }
    }

    /// Bytes handed out, alignment included.
    pub fn used(&self) -> Bytes {
        bytes(self.used)
    }

    /// Bytes not handed out; not necessarily in one piece.
    pub fn free_bytes(&self) -> Bytes {
        bytes(self.units - self.used)
    }

    /// The longest region that could be handed out now. O(gaps).
    pub fn largest_gap(&self) -> Bytes {
        bytes(self.lengths.iter().fold(0, |largest, &length| largest.max(length)))
    }

    /// Reserves `bytes`, rounded up to the alignment; [`None`] if no gap is long enough. Zero
    /// bytes give an empty region at the start of the range, which needs no free.
    pub fn allocate(&mut self, bytes: Bytes) -> Option<Region> {
        let wanted = u32::try_from(bytes.get().div_ceil(ALIGNMENT)).ok()?;
        if wanted == 0 {
            return Some(Region { offset: self.start, bytes: Bytes::ZERO });
        }
        // What is too short wraps around to more than anything that is long enough.
        let rest = self.lengths.iter().fold(u32::MAX, |least, &length| least.min(length.wrapping_sub(wanted)));
        let place = self.lengths.iter().position(|&length| length.wrapping_sub(wanted) == rest)?;
        let (offset, length) = (self.offsets.get_mut(place)?, self.lengths.get_mut(place)?);
        if *length < wanted {
            return None;
        }
        let taken = *offset;
        (*offset, *length) = (taken + wanted, rest);
        if rest == 0 {
            self.remove(place);
        }
        self.used += wanted;
        Some(self.region(taken, wanted))
    }

    /// Reserves `region`, which is in the form in which [`allocate`](Self::allocate) returns one. False, and
    /// nothing changes, if some of it is not free. O(log gaps), and a move of at most 8 bytes per gap.
    #[cfg(feature = "serde")]
    pub(super) fn occupy(&mut self, region: Region) -> bool {
        if region.bytes.is_zero() {
            return region.offset == self.start;
        }
        let Some((start, end)) = self.units_of(region) else { return false };
        let Some(place) = self.gaps_below(start.saturating_add(1)).checked_sub(1) else { return false };
        let (offset, length) = (self.offsets[place], self.lengths[place]);
        let behind = offset + length;
        if behind < end || start >= behind {
            return false;
        }
        match (offset == start, behind == end) {
            (true, true) => self.remove(place),
            (true, false) => (self.offsets[place], self.lengths[place]) = (end, behind - end),
            (false, last) => {
                self.lengths[place] = start - offset;
                if !last {
                    self.insert(place + 1, end, behind - end);
                }
            }
        }
        self.used += end - start;
        true
    }

    /// From where on everything up to the end of the range is free.
    pub fn free_from(&self) -> Bytes {
        let last = self.offsets.last().zip(self.lengths.last());
        let from =
            last.filter(|&(offset, length)| offset + length == self.units).map_or(self.units, |(offset, _)| *offset);
        self.start + bytes(from)
    }

    /// Moves the end of the range, which is rounded down to the alignment. False, and nothing changes, if
    /// something beyond it is handed out.
    pub(super) fn end_at(&mut self, end: Bytes) -> bool {
        let units = (end.get() / ALIGNMENT).saturating_sub(self.start.get() / ALIGNMENT);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        if bytes(units) + self.start < self.free_from() {
            return false;
        }
        let touches =
            self.offsets.last().zip(self.lengths.last()).is_some_and(|(offset, length)| offset + length == self.units);
        match self.lengths.last_mut() {
            Some(length) if touches => *length = units - (self.units - *length),
            _ if units > self.units => self.insert(self.offsets.len(), self.units, units - self.units),
            _ => {}
        }
        if self.lengths.last() == Some(&0) {
            self.remove(self.lengths.len() - 1);
        }
        self.units = units;
        true
    }

    /// Gives back a region that [`allocate`](Self::allocate) returned. Returns false, and changes
    /// nothing, if any byte of it is free already or outside the range.
    pub fn free(&mut self, region: Region) -> bool {
        if region.bytes.is_zero() {
            return true;
        }
        let Some((start, end)) = self.units_of(region) else { return false };
        let place = self.gaps_below(start);
        // One past the gap before, and the start of the gap behind.
        let ends = place.checked_sub(1).map(|before| self.offsets[before] + self.lengths[before]);
        let begins = self.offsets.get(place).copied();
        if ends.is_some_and(|ends| ends > start) || begins.is_some_and(|begins| begins < end) {
            return false;
        }
        match (ends == Some(start), begins == Some(end)) {
            (false, false) => self.insert(place, start, end - start),
            (true, false) => self.lengths[place - 1] += end - start,
            (false, true) => {
                self.offsets[place] = start;
                self.lengths[place] += end - start;
            }
            (true, true) => {
                self.lengths[place - 1] += end - start + self.lengths[place];
                self.remove(place);
            }
        }
        self.used -= end - start;
        true
    }

    fn gaps_below(&self, offset: u32) -> usize {
        if self.offsets.len() > COUNTED {
            return self.offsets.partition_point(|&other| other < offset);
        }
        self.offsets.iter().map(|&other| u32::from(other < offset)).sum::<u32>() as usize
    }

    fn insert(&mut self, place: usize, offset: u32, length: u32) {
        self.offsets.insert(place, offset);
        self.lengths.insert(place, length);
    }

    fn remove(&mut self, place: usize) {
        self.offsets.remove(place);
        self.lengths.remove(place);
    }

    /// First unit and one past the last; [`None`] for what this never hands out.
    fn units_of(&self, region: Region) -> Option<(u32, u32)> {
        let offset = region.offset.get().checked_sub(self.start.get())?;
        let end = offset.checked_add(region.bytes.get())?;
        let aligned = offset.is_multiple_of(ALIGNMENT) && end.is_multiple_of(ALIGNMENT);
        let (offset, end) = (offset / ALIGNMENT, end / ALIGNMENT);
        (aligned && end <= u64::from(self.units)).then_some((offset as u32, end as u32))
    }

    fn region(&self, offset: u32, length: u32) -> Region {
        Region { offset: self.start + bytes(offset), bytes: bytes(length) }
    }
}

fn bytes(units: u32) -> Bytes {
    Bytes(u64::from(units) * ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::ordered_maps::OrderedMaps;
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

    #[test]
    fn a_range_beyond_a_tebibyte_is_cut() {
        let memory = BestFit::new(Region { offset: Bytes(100), bytes: Bytes::gib(2048) });
        assert_eq!(memory.range(), Region { offset: Bytes(256), bytes: Bytes(u64::from(u32::MAX) * 256) });
        assert_eq!(memory.largest_gap(), memory.free_bytes());
    }

    #[test]
    fn the_end_of_a_range_beyond_half_a_tebibyte_moves() {
        let whole = Region { offset: Bytes::ZERO, bytes: BestFit::LARGEST };
        let mut memory = BestFit::new(whole);
        for end in [Bytes::gib(1000), Bytes::gib(600), BestFit::LARGEST] {
            assert!(memory.end_at(end));
            assert_eq!((memory.range().bytes, memory.free_bytes(), memory.largest_gap()), (end, end, end));
        }
    }

    #[test]
    fn what_was_never_handed_out_cannot_be_freed() {
        let mut memory = BestFit::new(Region { offset: Bytes(1024), bytes: Bytes(4096) });
        memory.allocate(Bytes(4096)).unwrap();
        let before = memory.clone();
        for (offset, bytes) in [(0, 512), (1024, 100), (1100, 256), (4096, 2048), (u64::MAX - 255, 512)] {
            assert!(!memory.free(Region { offset: Bytes(offset), bytes: Bytes(bytes) }), "{offset} {bytes}");
        }
        assert_eq!(memory, before);
    }

    proptest! {
        /// Against ordered maps: the same regions, refusals and gaps, with few gaps and with many.
        #[test]
        fn every_region_lies_where_the_plain_version_puts_it(
            steps in prop::collection::vec((0u8..7, 0u64..3000, any::<prop::sample::Index>()), 1..400),
            units in prop::sample::select(vec![16u64, 64, 1024]),
        ) {
            let range = Region { offset: Bytes(1000), bytes: Bytes(units * ALIGNMENT) };
            let (mut memory, mut oracle) = (BestFit::new(range), OrderedMaps::new(range));
            let mut live: Vec<Region> = Vec::new();
            for (kind, bytes, pick) in steps {
                if kind < 4 || live.is_empty() {
                    let region = memory.allocate(Bytes(bytes));
                    prop_assert_eq!(region, oracle.allocate(Bytes(bytes)));
                    live.extend(region);
                } else {
                    let region = live[pick.index(live.len())];
                    live.retain(|other| *other != region);
                    prop_assert_eq!(memory.free(region), oracle.free(region));
                    if kind == 6 {
                        prop_assert_eq!(memory.free(region), oracle.free(region));
                    }
                }
                prop_assert_eq!(memory.used(), oracle.used());
                prop_assert_eq!(memory.largest_gap(), oracle.largest_gap());
            }
            for region in live {
                prop_assert_eq!(memory.free(region), oracle.free(region));
            }
            prop_assert_eq!(memory, BestFit::new(range));
        }

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
