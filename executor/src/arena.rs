//! Memory that is allocated once and handed out at planned offsets.
//!
//! The executor never allocates while it runs: the graph reserves bytes and picks offsets when it
//! accepts a plan, and an operator asks its arena for the slices at those offsets. Two arenas with
//! different rules:
//!
//! - **An arena with one owner**. An operator borrows it mutably and takes its
//!   operands through [`Operands`], which refuses overlapping ones: safe code throughout.
//! - **A device's memory** is shared by the device's lanes: weights, activations of several jobs,
//!   and the pool of KV blocks. What keeps the lanes apart is who was granted which bytes, which no
//!   borrow can say; see [`Arena::operands_within`] and
//!   [`KvCache::shared`](crate::kernels::KvCache::shared).

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ptr::NonNull;

use slicescheduler_gmg::units::Bytes;

use crate::error::{ExecutorError, Result};

/// Every arena begins on such a boundary: a cache line, and the widest vector register.
pub const ARENA_ALIGN: usize = 64;

/// A piece of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Region {
    /// Where it starts, from the beginning of the arena.
    pub offset: Bytes,
    /// How long it is.
    pub size: Bytes,
}

impl Region {
    /// `size` bytes at `offset`.
    pub const fn new(offset: Bytes, size: Bytes) -> Self {
        Self { offset, size }
    }

    /// Room for `count` elements at `offset`.
    pub const fn of<T: Element>(offset: Bytes, count: usize) -> Self {
        Self { offset, size: Bytes((count as u64).saturating_mul(size_of::<T>() as u64)) }
    }

    /// One past its last byte.
    pub fn end(&self) -> Bytes {
        self.offset + self.size
    }

    /// True when all of `other` lies within this one.
    pub fn contains(&self, other: &Self) -> bool {
        self.offset <= other.offset && other.end() <= self.end()
    }

    /// True when the two share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        let shared = self.offset < other.end() && other.offset < self.end();
        shared && !self.size.is_zero() && !other.size.is_zero()
    }
}

mod sealed {
    pub trait Sealed {}
}

/// What an arena can hold: plain numbers, for which every bit pattern is a value.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {}

macro_rules! element {
    ($($number:ty),*) => {$(
        impl sealed::Sealed for $number {}
        impl Element for $number {}
    )*};
}

element!(u8, u16, u32, f32);

/// How allocations are aligned from which an arena cuts its own: as every allocator aligns what it may fetch from
/// the system as pages that are zero already. One with a wider alignment it would clear byte by byte.
const PLAIN_ALIGN: usize = 8;

/// A fixed block of zeroed, aligned memory.
#[derive(Debug)]
pub struct Arena {
    /// On a boundary of [`ARENA_ALIGN`], with `size` bytes of the allocation behind it.
    base: NonNull<u8>,
    size: usize,
    /// What was allocated, held for its drop.
    _allocation: Allocation,
}

// SAFETY: the arena owns its memory and holds plain bytes, which may go to another thread.
unsafe impl Send for Arena {}
// SAFETY: through `&Arena` safe code can not reach the bytes; whoever does it through the unsafe
// functions promises that no two threads touch the same bytes while one of them writes.
unsafe impl Sync for Arena {}

impl Arena {
    /// Allocates `size` bytes, all zero, on huge pages where the system has some. A large arena takes memory as its
    /// pages are first touched, so one that is never used costs nothing, and the first use of a page takes some
    /// microseconds, of a huge one a tenth of a millisecond.
    ///
    /// # Errors
    /// [`ExecutorError::OutOfMemory`] when the system refuses. One that promises more than it has does not, and ends
    /// the process when the pages are touched: whoever sizes arenas compares them with what the machine has.
    pub fn new(size: Bytes) -> Result<Self> {
        let refused = ExecutorError::OutOfMemory { wanted: size };
        // An arena of no bytes is as long as its alignment.
        let bytes = usize::try_from(size.get()).ok().map(|bytes| bytes.max(ARENA_ALIGN));
        let layout = bytes.and_then(|bytes| {
            Some((bytes, Layout::from_size_align(bytes.checked_add(ARENA_ALIGN)?, PLAIN_ALIGN).ok()?))
        });
        let Some((bytes, layout)) = layout else {
            return Err(refused);
        };
        let allocation = Allocation::new(layout).ok_or(refused)?;
        let start = allocation.start;
        let first = start.addr().get().next_multiple_of(ARENA_ALIGN) - start.addr().get();
        // SAFETY: `first` is less than the alignment, and the allocation is longer than the arena by that.
        let base = unsafe { start.add(first) };
        Ok(Self { base, size: bytes, _allocation: allocation })
    }

    /// How many bytes it has.
    pub const fn size(&self) -> Bytes {
        Bytes(self.size as u64)
    }

    /// The operands of one operator. All memory of the arena is the operator's while the result
    /// lives.
    pub fn operands(&mut self) -> Operands<'_> {
        let bounds = Region::new(Bytes::ZERO, self.size());
        // SAFETY: the arena is borrowed exclusively.
        unsafe { self.operands_within(bounds) }
    }

    /// As [`operands`](Self::operands), of an operator to which only `bounds` belongs, while other
    /// lanes use the rest. Regions count from the start of the arena; those that leave `bounds` are
    /// refused.
    ///
    /// # Safety
    /// As long as the result or an operand that it handed out lives, nobody else may read or write
    /// within `bounds`.
    pub unsafe fn operands_within(&self, bounds: Region) -> Operands<'_> {
        let held = [(Region::default(), false); MAX_OPERANDS];
        Operands { arena: self, bounds, held, count: 0, borrow: PhantomData }
    }

    /// The elements of a region that several lanes read at a time, such as weights.
    ///
    /// # Errors
    /// When the region is not within the arena, or not made of whole elements.
    ///
    /// # Safety
    /// Nobody may write the region while the result lives.
    pub unsafe fn read_shared<T: Element>(&self, region: Region) -> Result<&[T]> {
        let (first, count) = self.elements(region)?;
        // SAFETY: in bounds and aligned (checked by `elements`), initialised (arenas are zeroed and
        // hold plain numbers); that nobody writes it is the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts(first.as_ptr(), count) })
    }

    /// Sets a region to zero, as when it passes from one tenant to another.
    ///
    /// # Errors
    /// When the region is not within the arena.
    pub fn clear(&mut self, region: Region) -> Result<()> {
        // SAFETY: the arena is borrowed exclusively.
        unsafe { self.clear_shared(region) }
    }

    /// As [`clear`](Self::clear), while other lanes use other regions.
    ///
    /// # Errors
    /// When the region is not within the arena.
    ///
    /// # Safety
    /// Nobody else may read or write the region during the call.
    pub unsafe fn clear_shared(&self, region: Region) -> Result<()> {
        let (start, bytes) = self.elements::<u8>(region)?;
        // SAFETY: the bytes are within the arena (checked), and nobody else's by the contract.
        unsafe { start.write_bytes(0, bytes) };
        Ok(())
    }

    /// Copies the bytes of `from` to `to` of another arena, or to one of this that does not overlap it.
    ///
    /// # Errors
    /// When a region is not within its arena, or their lengths differ.
    ///
    /// # Safety
    /// Nobody may write `from` during the call, nor read or write `to`, and the two do not overlap.
    pub(crate) unsafe fn copy_to(&self, from: Region, other: &Self, to: Region) -> Result<()> {
        let ((source, bytes), (target, room)) = (self.elements::<u8>(from)?, other.elements::<u8>(to)?);
        if bytes != room {
            return Err(ExecutorError::TransferLength { from: from.size, to: to.size });
        }
        // SAFETY: both are within their arenas (checked) and as long as each other, do not overlap, and nobody
        // else is in the way (the caller's promise).
        unsafe { source.copy_to_nonoverlapping(target, bytes) };
        Ok(())
    }

    /// Where the elements of a region begin, and how many there are. Only an address: whoever
    /// dereferences it answers for who else does.
    pub(crate) fn elements<T: Element>(&self, region: Region) -> Result<(NonNull<T>, usize)> {
        let Region { offset, size } = region;
        let end = offset.get().checked_add(size.get());
        if end.is_none_or(|end| end > self.size().get()) {
            return Err(ExecutorError::RegionOutOfBounds { offset, size, arena: self.size() });
        }
        // Both fit usize: the arena does, and they are within it.
        let (start, bytes) = (offset.get() as usize, size.get() as usize);
        if !start.is_multiple_of(align_of::<T>()) || !bytes.is_multiple_of(size_of::<T>()) {
            return Err(ExecutorError::RegionMisaligned { offset, size, element: size_of::<T>() });
        }
        // SAFETY: start is within the allocation, or one past its end.
        let first = unsafe { self.base.add(start) };
        Ok((first.cast(), bytes / size_of::<T>()))
    }
}

/// Zeroed memory, freed when it is dropped.
#[derive(Debug)]
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
    /// From the system, not from the process's allocator.
    mapped: bool,
}

/// Bytes of a huge page. An allocation of as many comes from the system: what the process has for an allocator may
/// write zeros to it, and with that take all of it at once, in small pages.
const HUGE: usize = 2 << 20;

impl Allocation {
    /// Memory for `layout`, which is not empty and no more aligned than a page.
    fn new(layout: Layout) -> Option<Self> {
        if layout.size() >= HUGE
            && let Some(start) = map(layout.size())
        {
            return Some(Self { start, layout, mapped: true });
        }
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout, mapped: false })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.mapped {
            unmap(self.start, self.layout.size());
        } else {
            // SAFETY: `start` came from `alloc_zeroed` with this layout and is freed once.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}

/// Pages from the system, zero when they are first touched, and huge ones where it has some: weights are read from
/// end to end, and an entry of the address cache then covers 512 times as much of them.
#[cfg(all(target_os = "linux", not(miri)))]
fn map(size: usize) -> Option<NonNull<u8>> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping of no file, at an address that the system chooses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), size, access, kind, -1, 0) };
    let start = if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast::<u8>()) }?;
    // SAFETY: the range is the mapping, and the advice changes neither its bytes nor what may be done with them. A
    // system that has no huge pages refuses it, and nothing is different then.
    unsafe { libc::madvise(start.as_ptr().cast(), size, libc::MADV_HUGEPAGE) };
    Some(start)
}

#[cfg(all(target_os = "linux", not(miri)))]
fn unmap(start: NonNull<u8>, size: usize) {
    // SAFETY: a mapping of this length that [`map`] made, unmapped once.
    unsafe { libc::munmap(start.as_ptr().cast(), size) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
const fn map(_: usize) -> Option<NonNull<u8>> {
    None
}

#[cfg(not(all(target_os = "linux", not(miri))))]
const fn unmap(_: NonNull<u8>, _: usize) {}

/// Regions that an operator may hold at once.
const MAX_OPERANDS: usize = 16;

/// Hands out the operands of one operator and sees to it that what is written is held once.
///
/// ```
/// use slicescheduler_executor::arena::{Arena, Region};
/// use slicescheduler_gmg::units::Bytes;
///
/// # fn main() -> Result<(), slicescheduler_executor::ExecutorError> {
/// let mut arena = Arena::new(Bytes(1024))?;
/// let mut operands = arena.operands();
/// let x: &[f32] = operands.read(Region::of::<f32>(Bytes(0), 4))?;
/// let y: &mut [f32] = operands.write(Region::of::<f32>(Bytes(64), 4))?;
/// y.copy_from_slice(x);
/// assert!(operands.write::<f32>(Region::of::<f32>(Bytes(8), 4)).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Operands<'a> {
    arena: &'a Arena,
    bounds: Region,
    held: [(Region, bool); MAX_OPERANDS],
    count: usize,
    borrow: PhantomData<&'a mut [u8]>,
}

impl<'a> Operands<'a> {
    /// An operand that is only read; other operands that are only read may overlap it.
    ///
    /// # Errors
    /// When the region is not within what the operator was given of the arena, not made of whole elements, or overlaps an
    /// operand that is written; or when 16 are held already.
    pub fn read<T: Element>(&mut self, region: Region) -> Result<&'a [T]> {
        let (first, count) = self.hold::<T>(region, false)?;
        // SAFETY: in bounds and aligned (checked by `elements`), initialised (arenas are zeroed and
        // hold plain numbers), and no `&mut` to it was or will be handed out (checked by `hold`)
        // while 'a, the arena's exclusive borrow, lasts.
        Ok(unsafe { std::slice::from_raw_parts(first.as_ptr(), count) })
    }

    /// An operand that is written; nothing else may overlap it.
    ///
    /// # Errors
    /// When the region is not within what the operator was given of the arena, not made of whole elements, or overlaps
    /// another operand; or when 16 are held already.
    pub fn write<T: Element>(&mut self, region: Region) -> Result<&'a mut [T]> {
        let (first, count) = self.hold::<T>(region, true)?;
        // SAFETY: as in `read`, and no reference at all to it was or will be handed out.
        Ok(unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), count) })
    }

    /// What was handed out, and whether it is written.
    pub fn held(&self) -> impl Iterator<Item = (Region, bool)> + '_ {
        self.held.iter().take(self.count).copied()
    }

    fn hold<T: Element>(&mut self, region: Region, written: bool) -> Result<(NonNull<T>, usize)> {
        let elements = self.arena.elements(region)?;
        if !self.bounds.contains(&region) {
            return Err(ExecutorError::RegionNotGranted {
                offset: region.offset,
                size: region.size,
                bounds_offset: self.bounds.offset,
                bounds_size: self.bounds.size,
            });
        }
        for (other, other_written) in &self.held[..self.count] {
            if (written || *other_written) && region.overlaps(other) {
                return Err(ExecutorError::RegionOverlap {
                    offset: region.offset,
                    size: region.size,
                    other_offset: other.offset,
                    other_size: other.size,
                });
            }
        }
        let Some(slot) = self.held.get_mut(self.count) else {
            return Err(ExecutorError::TooManyRegions { limit: MAX_OPERANDS });
        };
        *slot = (region, written);
        self.count += 1;
        Ok(elements)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn arena() -> Arena {
        Arena::new(Bytes(256)).unwrap()
    }

    #[test]
    fn memory_is_zero_aligned_and_keeps_what_is_written() {
        let mut arena = arena();
        let region = Region::of::<f32>(Bytes(64), 8);
        let written = arena.operands().write::<f32>(region).unwrap();
        assert_eq!(written, [0.0; 8]);
        assert!(written.as_ptr().addr().is_multiple_of(64));
        written.fill(1.5);
        assert_eq!(arena.operands().read::<u32>(region).unwrap(), [1.5f32.to_bits(); 8]);
        arena.clear(Region::of::<f32>(Bytes(64), 4)).unwrap();
        assert_eq!(arena.operands().read::<f32>(region).unwrap(), [0.0, 0.0, 0.0, 0.0, 1.5, 1.5, 1.5, 1.5]);
    }

    #[test]
    fn regions_outside_or_off_the_elements_are_refused() {
        let mut arena = arena();
        let mut operands = arena.operands();
        let mut refused = |offset, size| operands.read::<f32>(Region::new(Bytes(offset), Bytes(size))).unwrap_err();
        assert!(matches!(refused(252, 8), ExecutorError::RegionOutOfBounds { .. }));
        assert!(matches!(refused(u64::MAX, 8), ExecutorError::RegionOutOfBounds { .. }));
        assert!(matches!(refused(2, 4), ExecutorError::RegionMisaligned { .. }));
        assert!(matches!(refused(4, 6), ExecutorError::RegionMisaligned { .. }));
        assert!(matches!(arena.clear(Region::new(Bytes(0), Bytes(257))), Err(ExecutorError::RegionOutOfBounds { .. })));
    }

    #[test]
    fn a_region_that_was_not_given_to_the_operator_is_refused_as_such() {
        let arena = arena();
        // SAFETY: nobody else has the arena.
        let mut operands = unsafe { arena.operands_within(Region::new(Bytes(64), Bytes(64))) };
        assert!(operands.read::<f32>(Region::of::<f32>(Bytes(64), 16)).is_ok());
        for offset in [0, 60, 124, 192] {
            let refused = operands.read::<f32>(Region::of::<f32>(Bytes(offset), 2)).unwrap_err();
            assert_eq!(
                refused.to_string(),
                format!("region at {offset} B of 8 B is not within the 64 B at 64 B that the operator was given")
            );
        }
    }

    #[test]
    fn no_more_than_the_limit_is_held() {
        let mut arena = arena();
        let mut operands = arena.operands();
        for _ in 0..MAX_OPERANDS {
            operands.read::<f32>(Region::of::<f32>(Bytes(0), 1)).unwrap();
        }
        let error = operands.read::<f32>(Region::of::<f32>(Bytes(0), 1)).unwrap_err();
        assert!(matches!(error, ExecutorError::TooManyRegions { limit: MAX_OPERANDS }));
    }

    #[test]
    fn an_arena_larger_than_memory_is_refused() {
        assert!(matches!(Arena::new(Bytes::MAX), Err(ExecutorError::OutOfMemory { wanted: Bytes::MAX })));
    }

    /// The bytes of memory that this process has, of those that it was promised.
    #[cfg(target_os = "linux")]
    fn resident() -> u64 {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_arena_takes_memory_when_it_is_touched_and_is_zero_there() {
        let before = resident();
        let mut arena = Arena::new(Bytes::mib(512)).unwrap();
        // Other tests of this process take some megabytes meanwhile.
        assert!(resident() < before + (256 << 20), "{} of 512 MiB are there", resident() - before);
        let region = Region::new(Bytes::mib(300), Bytes(100));
        assert_eq!(arena.operands().read::<u8>(region).unwrap(), [0; 100]);
        assert!(arena.base.addr().get().is_multiple_of(ARENA_ALIGN));
        assert_eq!(arena.size(), Bytes::mib(512));
    }

    /// Whether the mapping that holds `address` is advised to have huge pages, by what the system says.
    #[cfg(target_os = "linux")]
    fn is_advised(address: usize) -> Option<bool> {
        let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let mut within = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let ends = range.and_then(|(start, end)| {
                Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
            });
            match (ends, line.strip_prefix("VmFlags:")) {
                (Some(ends), _) => within = ends.contains(&address),
                (None, Some(flags)) if within => return Some(flags.split_whitespace().any(|flag| flag == "hg")),
                _ => {}
            }
        }
        None
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_large_arena_asks_for_huge_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            println!("skipped: this system has no transparent huge pages");
            return;
        }
        let arena = Arena::new(Bytes::mib(8)).unwrap();
        assert_eq!(is_advised(arena.base.addr().get() + (4 << 20)), Some(true));
    }

    proptest! {
        #[test]
        fn operands_overlap_only_where_none_is_written(
            wishes in prop::collection::vec((0u64..64, 0usize..16, any::<bool>()), 1..12),
        ) {
            let mut arena = arena();
            let mut operands = arena.operands();
            let mut held: Vec<(u64, u64, bool)> = Vec::new();
            for (at, count, written) in wishes {
                let (start, end) = (at * 4, at * 4 + count as u64 * 4);
                let region = Region::of::<f32>(Bytes(start), count);
                let granted = if written {
                    operands.write::<f32>(region).is_ok()
                } else {
                    operands.read::<f32>(region).is_ok()
                };
                let clash = held.iter().any(|&(s, e, w)| (w || written) && (start..end).any(|b| s <= b && b < e));
                prop_assert_eq!(granted, end <= 256 && !clash);
                if granted {
                    held.push((start, end, written));
                }
            }
        }
    }
}
