//! The caching allocator of PyTorch for CUDA devices, without expandable segments.
//!
//! Sizes are rounded up to 512 bytes. Requests up to 1 MiB are served from segments of 2 MiB (the small
//! pool), larger ones from segments of 20 MiB, or from 10 MiB on from their own size rounded up to
//! 2 MiB (the large pool). A request takes the smallest free block of its stream and pool that holds
//! it, the lowest address among equals, and splits off the rest if that is at least 512 bytes (small
//! pool) or more than 1 MiB (large pool). Freed blocks join their free neighbours in the segment and
//! stay cached. When the device has no more, blocks that are whole segments are given back, all at
//! once, and the device is asked again.
//!
//! The driver's addresses are not known: segments get ascending ones in the order in which they are
//! made, and the device counts bytes without fragmenting.

use std::collections::{BTreeMap, BTreeSet};

use slicescheduler_gmg::units::Bytes;

use super::{Allocation, AllocatorError, AllocatorModel, Stream, Usage};

#[cfg(test)]
mod tests;

const ROUNDING: u64 = 512;
/// The largest request of the small pool.
const SMALL: u64 = 1 << 20;
const SMALL_SEGMENT: u64 = 2 << 20;
/// From here on a request gets a segment of its own size.
const OWN_SEGMENT: u64 = 10 << 20;
const LARGE_SEGMENT: u64 = 20 << 20;
const SEGMENT_ROUNDING: u64 = 2 << 20;

/// What can be set about the allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachingOptions {
    /// Blocks of at least this size are not split, and serve requests of at least this size only
    /// (`max_split_size_mb`; PyTorch takes none of 20 MiB or less). Off if [`None`].
    pub max_split: Option<Bytes>,
    /// Before the device is asked for more than this, cached segments that have not been used for longest
    /// are given back until it would hold (`garbage_collection_threshold` times the memory allowed). Off
    /// if [`None`].
    pub collect_above: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Pool {
    Small,
    Large,
}

/// A piece of a segment. Neighbours are those before and behind it in the same segment.
#[derive(Clone, Debug)]
struct Block {
    size: u64,
    stream: Stream,
    pool: Pool,
    segment: u64,
    allocated: bool,
    /// Other streams that use it; after it is freed, those that have not passed.
    users: BTreeSet<Stream>,
    /// Allocations of the pool when it was last freed.
    freed_at: u64,
}

impl Block {
    fn is_free(&self) -> bool {
        !self.allocated && self.users.is_empty()
    }
}

/// Free blocks in the order in which they are searched.
type Free = BTreeSet<(Stream, u64, u64)>;

/// The allocator, by the rules that the head of its module lists.
#[derive(Clone, Debug)]
pub struct CachingAllocator {
    capacity: Bytes,
    options: CachingOptions,
    /// By address. The blocks of a segment lie side by side; between segments there is a gap.
    blocks: BTreeMap<u64, Block>,
    small: Free,
    large: Free,
    live: BTreeMap<Allocation, u64>,
    /// Freed blocks that other streams still use.
    waiting: BTreeSet<u64>,
    next_address: u64,
    next: u64,
    /// Searches of the large pool so far: the clock of garbage collection.
    searches: u64,
    usage: Usage,
}

impl CachingAllocator {
    /// The allocator of a device of which `capacity` may be taken.
    pub fn new(capacity: Bytes, options: CachingOptions) -> Self {
        Self {
            capacity,
            options,
            blocks: BTreeMap::new(),
            small: Free::new(),
            large: Free::new(),
            live: BTreeMap::new(),
            waiting: BTreeSet::new(),
            next_address: 0,
            next: 0,
            searches: 0,
            usage: Usage::default(),
        }
    }

    /// Gives every cached segment that nothing is allocated in back to the device, as
    /// `torch.cuda.empty_cache` does after waiting for all streams.
    pub fn release_cached(&mut self) {
        for address in std::mem::take(&mut self.waiting) {
            if let Some(block) = self.blocks.get_mut(&address) {
                block.users.clear();
                self.release_block(address);
            }
        }
        let whole: Vec<u64> = self.free_segments().collect();
        whole.into_iter().for_each(|address| self.give_back(address));
    }

    /// Bytes of cached blocks that no request can have as one, because the largest is smaller: what
    /// is reserved, not allocated and not the largest free block.
    pub fn fragmented(&self) -> Bytes {
        let free = self.small.iter().chain(&self.large).map(|&(_, size, _)| size);
        let (sum, largest) = free.fold((0, 0), |(sum, largest), size| (sum + size, size.max(largest)));
        Bytes(sum - largest)
    }

    /// The free blocks of a pool.
    fn cached(&mut self, pool: Pool) -> &mut Free {
        match pool {
            Pool::Small => &mut self.small,
            Pool::Large => &mut self.large,
        }
    }

    /// Free blocks that are whole segments.
    fn free_segments(&self) -> impl Iterator<Item = u64> + '_ {
        let addresses = self.large.iter().chain(&self.small).map(|&(_, _, address)| address);
        addresses.filter(|&address| self.is_whole(address))
    }

    fn is_whole(&self, address: u64) -> bool {
        self.before(address).is_none() && self.behind(address).is_none()
    }

    fn before(&self, address: u64) -> Option<u64> {
        let segment = self.blocks.get(&address)?.segment;
        let (&before, block) = self.blocks.range(..address).next_back()?;
        (block.segment == segment).then_some(before)
    }

    fn behind(&self, address: u64) -> Option<u64> {
        let segment = self.blocks.get(&address)?.segment;
        let (&behind, block) = self.blocks.range(address + 1..).next()?;
        (block.segment == segment).then_some(behind)
    }

    /// Takes the best block out of the pool.
    fn search(&mut self, pool: Pool, size: u64, stream: Stream) -> Option<u64> {
        let found = self.cached(pool).range((stream, size, 0)..).next().copied();
        if pool == Pool::Large {
            self.searches += 1;
        }
        let (of, found, address) = found.filter(|&(of, ..)| of == stream)?;
        if let (Pool::Large, Some(Bytes(most))) = (pool, self.options.max_split) {
            let too_large = if size < most { found >= most } else { found >= size.saturating_add(LARGE_SEGMENT) };
            if too_large {
                return None;
            }
        }
        self.cached(pool).remove(&(of, found, address));
        Some(address)
    }

    /// A new segment as one block, if the device has it.
    fn segment(&mut self, pool: Pool, bytes: u64, stream: Stream) -> Option<u64> {
        if Bytes(bytes) > self.capacity - self.usage.reserved {
            return None;
        }
        let address = self.next_address;
        // The gap keeps blocks of different segments from being neighbours.
        self.next_address += bytes + SEGMENT_ROUNDING;
        let block = Block {
            size: bytes,
            stream,
            pool,
            segment: address,
            allocated: false,
            users: BTreeSet::new(),
            freed_at: self.searches,
        };
        self.blocks.insert(address, block);
        self.usage.reserve(Bytes(bytes));
        Some(address)
    }

    /// Gives a free block that is a whole segment back to the device.
    fn give_back(&mut self, address: u64) {
        if let Some(block) = self.blocks.remove(&address) {
            self.cached(block.pool).remove(&(block.stream, block.size, address));
            self.usage.reserved -= Bytes(block.size);
        }
    }

    /// Gives back oversize segments of the stream: the smallest one that has `bytes`, or several from the
    /// largest down. False if they have less together.
    fn give_back_oversize(&mut self, bytes: u64, stream: Stream) -> bool {
        let Some(Bytes(most)) = self.options.max_split else { return false };
        let wanted = bytes.max(most);
        let enough = self.large.range((stream, wanted, 0)..).next().copied();
        if let Some((_, _, address)) = enough.filter(|&(of, _, address)| of == stream && self.is_whole(address)) {
            self.give_back(address);
            return true;
        }
        let mut released = 0;
        while released < wanted {
            let mut oversize = self.large.range((stream, most, 0)..=(stream, u64::MAX, u64::MAX)).rev();
            let Some(&(_, size, address)) = oversize.find(|&&(_, _, address)| self.is_whole(address)) else {
                return false;
            };
            released += size;
            self.give_back(address);
        }
        true
    }

    /// Gives back the large segments that have been cached for at least the average age, until what is
    /// reserved is within the threshold or none is left.
    fn collect(&mut self) {
        let Some(threshold) = self.options.collect_above else { return };
        while self.usage.reserved > threshold {
            let age = |address: &u64| self.blocks.get(address).map_or(0, |block| self.searches - block.freed_at);
            let whole: Vec<u64> =
                self.large.iter().map(|&(_, _, address)| address).filter(|&address| self.is_whole(address)).collect();
            let total: u64 = whole.iter().map(age).sum();
            let Some(average) = total.checked_div(whole.len() as u64) else { break };
            let old: Vec<u64> = whole.into_iter().filter(|address| age(address) >= average).collect();
            for address in old {
                if self.usage.reserved <= threshold {
                    break;
                }
                self.give_back(address);
            }
        }
    }

    fn splits(&self, pool: Pool, size: u64, rest: u64) -> bool {
        match pool {
            Pool::Small => rest >= ROUNDING,
            Pool::Large => self.options.max_split.is_none_or(|most| size < most.get()) && rest > SMALL,
        }
    }

    /// Puts a block that nobody uses any more back, joined with its free neighbours.
    fn release_block(&mut self, mut address: u64) {
        let Some(block) = self.blocks.get(&address) else { return };
        self.usage.allocated -= Bytes(block.size);
        if let Some(behind) = self.behind(address).filter(|behind| self.blocks[behind].is_free()) {
            self.join(address, behind);
        }
        if let Some(before) = self.before(address).filter(|before| self.blocks[before].is_free()) {
            let Block { stream, pool, size, .. } = self.blocks[&before];
            self.cached(pool).remove(&(stream, size, before));
            self.join(before, address);
            address = before;
        }
        let searches = self.searches;
        if let Some(block) = self.blocks.get_mut(&address) {
            block.freed_at = searches;
            let key = (block.stream, block.size, address);
            let pool = block.pool;
            self.cached(pool).insert(key);
        }
    }

    /// Makes one block of `first` and the one behind it, which is in no pool afterwards.
    fn join(&mut self, first: u64, behind: u64) {
        if let Some(block) = self.blocks.remove(&behind) {
            self.cached(block.pool).remove(&(block.stream, block.size, behind));
            if let Some(first) = self.blocks.get_mut(&first) {
                first.size += block.size;
            }
        }
    }

    /// What a request takes from the device if no block serves it.
    fn segment_bytes(size: u64) -> u64 {
        if size <= SMALL {
            SMALL_SEGMENT
        } else if size < OWN_SEGMENT {
            LARGE_SEGMENT
        } else {
            size.div_ceil(SEGMENT_ROUNDING).saturating_mul(SEGMENT_ROUNDING)
        }
    }
}

impl AllocatorModel for CachingAllocator {
    fn allocate(&mut self, bytes: Bytes, stream: Stream) -> Result<Allocation, AllocatorError> {
        let refused = |this: &Self, wanted| {
            let Usage { allocated, reserved, .. } = this.usage;
            Err(AllocatorError::OutOfMemory { wanted, stream, allocated, reserved, capacity: this.capacity })
        };
        if bytes > self.capacity {
            return refused(self, bytes);
        }
        let size = Bytes(bytes.get().max(1)).align_up(ROUNDING).get();
        let pool = if size <= SMALL { Pool::Small } else { Pool::Large };
        let address = match self.search(pool, size, stream) {
            Some(address) => address,
            None => {
                let segment = Self::segment_bytes(size);
                self.collect();
                let made = self.segment(pool, segment, stream).or_else(|| {
                    let enough = self.give_back_oversize(segment, stream);
                    enough.then(|| self.segment(pool, segment, stream)).flatten()
                });
                let made = made.or_else(|| {
                    self.release_cached();
                    self.segment(pool, segment, stream)
                });
                match made {
                    Some(address) => address,
                    None => return refused(self, Bytes(segment)),
                }
            }
        };
        let rest = self.blocks.get(&address).map_or(0, |block| block.size - size);
        let splits = self.splits(pool, size, rest);
        if let Some(block) = self.blocks.get_mut(&address) {
            block.allocated = true;
            if splits {
                block.size = size;
                let behind = Block { size: rest, allocated: false, users: BTreeSet::new(), ..*block };
                self.blocks.insert(address + size, behind);
                self.cached(pool).insert((stream, rest, address + size));
            }
        }
        self.usage.allocate(Bytes(if splits { size } else { size + rest }));
        let allocation = Allocation(self.next);
        self.next += 1;
        self.live.insert(allocation, address);
        Ok(allocation)
    }

    fn use_on(&mut self, allocation: Allocation, stream: Stream) -> Result<(), AllocatorError> {
        let address = self.live.get(&allocation).ok_or(AllocatorError::NoSuchAllocation(allocation))?;
        if let Some(block) = self.blocks.get_mut(address).filter(|block| block.stream != stream) {
            block.users.insert(stream);
        }
        Ok(())
    }

    fn free(&mut self, allocation: Allocation) -> Result<(), AllocatorError> {
        let address = self.live.remove(&allocation).ok_or(AllocatorError::NoSuchAllocation(allocation))?;
        if let Some(block) = self.blocks.get_mut(&address) {
            block.allocated = false;
            if block.users.is_empty() {
                self.release_block(address);
            } else {
                self.waiting.insert(address);
            }
        }
        Ok(())
    }

    fn passed(&mut self, stream: Stream) {
        let waiting: Vec<u64> = self.waiting.iter().copied().collect();
        for address in waiting {
            let Some(block) = self.blocks.get_mut(&address) else { continue };
            block.users.remove(&stream);
            if block.users.is_empty() {
                self.waiting.remove(&address);
                self.release_block(address);
            }
        }
    }

    fn usage(&self) -> Usage {
        self.usage
    }
}
