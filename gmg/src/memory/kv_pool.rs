//! Blocks of KV cache and the block tables of sequences.
//!
//! A pool in which nothing was ever shared hands out the block that was freed last. From the first block on
//! that is published or shared (`shared.rs`), free blocks keep what they hold, and the one that has
//! been free longest is taken; a pool may [keep](KvPool::keep_for) what one tenant left for last. Until then the pool keeps nothing about single blocks, and after that only about
//! those that were ever handed out.

mod draft;
#[cfg(feature = "serde")]
mod saved;
mod shared;

pub use draft::Draft;
#[cfg(feature = "serde")]
pub(crate) use saved::SavedPool;
use shared::Shared;
use smallvec::SmallVec;

use crate::id::{DeviceId, RequestId, TenantId};
use crate::id_map::IdMap;

/// A pool of equal blocks on one device. Every block is free or in the tables of sequences of one tenant.
///
/// Which block is handed out depends on what was done before and on nothing else, so a log that is
/// replayed gives equal tables.
///
/// ```
/// use slicescheduler_gmg::id::{RequestId, TenantId};
/// use slicescheduler_gmg::memory::KvPool;
///
/// let (mut pool, chat) = (KvPool::new(8), TenantId(0));
/// pool.grow(RequestId(0), chat, 3);
/// pool.publish(RequestId(0), 0, &[0xa, 0xb]);
/// pool.release(RequestId(0));
/// assert_eq!((pool.used_blocks(), pool.cached_by(chat)), (0, 2));
/// assert_eq!(pool.share(RequestId(1), chat, &[0xa, 0xb, 0xc]), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvPool {
    total: u32,
    /// Empty once there is [`shared`](Self::shared), which has a queue of its own.
    free: Vec<u32>,
    /// Blocks at and above this number were never handed out.
    untouched: u32,
    sequences: IdMap<RequestId, Sequence>,
    by_tenant: Vec<u32>,
    shared: Option<Box<Shared>>,
}

/// How the content of a block came to be a sequence's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    /// It was already; if it was published, it is not any more.
    InPlace,
    /// Other sequences hold it as well, so a free block took its place.
    Copied {
        /// The block to copy.
        from: u32,
        /// The sequence's own now.
        to: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sequence {
    tenant: TenantId,
    table: Vec<u32>,
    parts: SmallVec<[DeviceId; 1]>,
}

impl KvPool {
    /// A pool of `total` free blocks.
    pub fn new(total: u32) -> Self {
        Self { total, ..Self::default() }
    }

    /// A pool of `total` free blocks that keep what they hold from the first one on, as if one had been
    /// published.
    pub fn caching(total: u32) -> Self {
        let mut pool = Self::new(total);
        pool.shared_mut();
        pool
    }

    /// All blocks.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Changes the number of blocks. What free blocks beyond it hold is found no more; what blocks of sequences
    /// beyond it hold moves to free blocks before it: the result says from where to where. [`None`], and nothing
    /// changes, if those are too few. In a pool that shares nothing, blocks with low numbers are handed out first
    /// afterwards. O(b log b) in the blocks that were handed out before.
    pub(crate) fn resize(&mut self, total: u32) -> Option<Vec<(u32, u32)>> {
        if self.used_blocks() > total {
            return None;
        }
        let mut moves = self.shared.as_mut().map_or_else(Vec::new, |shared| shared.cut(total));
        if !moves.is_empty() {
            let places: IdMap<u32, u32> = moves.iter().copied().collect();
            for block in self.sequences.values_mut().flat_map(|sequence| &mut sequence.table) {
                *block = places.get(block).copied().unwrap_or(*block);
            }
        }
        self.free.retain(|&block| block < total);
        self.free.sort_unstable_by_key(|&block| std::cmp::Reverse(block));
        self.untouched = self.untouched.min(total);
        self.total = total;
        if self.shared.is_none() {
            for request in self.sequences() {
                let Some(sequence) = self.sequences.get_mut(&request) else { continue };
                for block in sequence.table.iter_mut().filter(|block| **block >= total) {
                    let Some(to) = self.free.pop() else { continue };
                    moves.push((*block, to));
                    *block = to;
                }
            }
        }
        Some(moves)
    }

    /// Blocks that belong to no sequence, those included whose content is still found.
    pub fn free_blocks(&self) -> u32 {
        self.total - self.untouched + self.shared.as_ref().map_or(self.free.len() as u32, |shared| shared.free())
    }

    /// Free blocks of `tenant` whose content is still found: its prefix cache, as far as no sequence holds it.
    pub fn cached_by(&self, tenant: TenantId) -> u32 {
        self.shared.as_ref().map_or(0, |shared| shared.cached_by(tenant))
    }

    /// The tenants with such blocks, ascending.
    pub fn cachers(&self) -> impl Iterator<Item = TenantId> + '_ {
        self.shared.iter().flat_map(|shared| shared.cachers())
    }

    /// Cached blocks of `tenant` are taken last from now on, after all other free blocks, whoever takes them; among
    /// themselves, those that have been free longest first. A pool keeps for one tenant, or for nobody. No effect on
    /// a pool in which nothing was ever shared. O(1), or O(free blocks) for another tenant than before.
    ///
    /// ```
    /// use slicescheduler_gmg::id::{RequestId, TenantId};
    /// use slicescheduler_gmg::memory::KvPool;
    ///
    /// let (mut pool, owner, guest) = (KvPool::caching(4), TenantId(0), TenantId(1));
    /// pool.grow(RequestId(0), owner, 2);
    /// pool.publish(RequestId(0), 0, &[0xa, 0xb]);
    /// pool.keep_for(owner);
    /// pool.release(RequestId(0));
    /// for request in 1..10 {
    ///     // Two of four blocks are as good as the guest's: it comes and goes, and takes no other.
    ///     pool.grow(RequestId(request), guest, 2);
    ///     pool.release(RequestId(request));
    /// }
    /// assert_eq!((pool.cached_by(owner), pool.displaced(owner)), (2, 0));
    /// ```
    pub fn keep_for(&mut self, tenant: TenantId) {
        if let Some(shared) = &mut self.shared {
            shared.keep_for(tenant);
        }
    }

    /// How many cached blocks of `tenant` sequences of other tenants have taken.
    pub fn displaced(&self, tenant: TenantId) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.displaced(tenant))
    }

    /// Blocks that belong to sequences, each counted once.
    pub fn used_blocks(&self) -> u32 {
        self.total - self.free_blocks()
    }

    /// Blocks that belong to sequences of `tenant`, each counted once.
    pub fn used_by(&self, tenant: TenantId) -> u32 {
        self.by_tenant.get(tenant.index()).copied().unwrap_or(0)
    }

    /// The blocks of a sequence, in token order; empty if it has none.
    pub fn table(&self, request: RequestId) -> &[u32] {
        self.sequences.get(&request).map_or(&[], |sequence| &sequence.table)
    }

    /// Adds `blocks` blocks to the sequence of `request`, which belongs to `tenant`. Returns false,
    /// and changes nothing, if that many are not free.
    pub fn grow(&mut self, request: RequestId, tenant: TenantId, blocks: u32) -> bool {
        if blocks > self.free_blocks() {
            return false;
        }
        let sequence = self.sequences.entry(request).or_insert_with(|| Sequence {
            tenant,
            table: Vec::with_capacity(blocks as usize),
            parts: SmallVec::new(),
        });
        let owner = sequence.tenant;
        match &mut self.shared {
            None => {
                for _ in 0..blocks {
                    let block = self.free.pop().unwrap_or_else(|| {
                        self.untouched += 1;
                        self.untouched - 1
                    });
                    sequence.table.push(block);
                }
            }
            Some(shared) => {
                for _ in 0..blocks {
                    let Some(block) = take(shared, self.total, &mut self.untouched, owner) else { break };
                    sequence.table.push(block);
                }
            }
        }
        self.count(owner, blocks);
        true
    }

    fn count(&mut self, tenant: TenantId, blocks: u32) {
        let owner = tenant.index();
        if self.by_tenant.len() <= owner {
            self.by_tenant.resize(owner + 1, 0);
        }
        self.by_tenant[owner] += blocks;
    }

    fn shared_mut(&mut self) -> &mut Shared {
        let tables = self.sequences.values().map(|sequence| (sequence.tenant, &sequence.table[..]));
        let (untouched, free) = (self.untouched, &mut self.free);
        self.shared.get_or_insert_with(|| Box::new(Shared::new(untouched, &std::mem::take(free), tables)))
    }

    /// How many blocks [`share`](Self::share) would find, and how many of them no sequence holds. O(found).
    pub fn find(&self, tenant: TenantId, hashes: &[u64]) -> (u32, u32) {
        let Some(shared) = &self.shared else { return (0, 0) };
        let found = hashes.iter().map_while(|&hash| shared.find(tenant, hash));
        found.fold((0, 0), |(all, free), block| (all + 1, free + u32::from(shared.holders(block) == 0)))
    }

    /// Begins the sequence of `request` with the blocks of the longest beginning of `hashes` that is found,
    /// and returns how many those are. Nothing changes if there is none, or if the request has a sequence.
    ///
    /// `hashes` are chained: that of a block covers its tokens, all before them, and the model. So equal
    /// hashes mean equal beginnings. Whose last token is needed again leaves its block out. Tenants share
    /// nothing with each other. O(found).
    pub fn share(&mut self, request: RequestId, tenant: TenantId, hashes: &[u64]) -> u32 {
        let Some(shared) = self.shared.as_mut().filter(|_| !self.sequences.contains_key(&request)) else { return 0 };
        let table: Vec<u32> = hashes.iter().map_while(|&hash| shared.find(tenant, hash)).collect();
        if table.is_empty() {
            return 0;
        }
        let newly = table.iter().filter(|&&block| shared.share(block, tenant)).count() as u32;
        let found = table.len() as u32;
        self.sequences.insert(request, Sequence { tenant, table, parts: SmallVec::new() });
        self.count(tenant, newly);
        found
    }

    /// The blocks of the sequence of `request` from the `first` on are found under `hashes` from now on,
    /// chained as for [`share`](Self::share). A block that is found already stays as it is. False, and
    /// nothing changes, if the sequence has not that many blocks. O(`hashes`).
    pub fn publish(&mut self, request: RequestId, first: u32, hashes: &[u64]) -> bool {
        let (first, table) = (first as usize, self.table(request));
        if first > table.len() || hashes.len() > table.len() - first {
            return false;
        }
        self.shared_mut();
        let (Some(shared), Some(sequence)) = (&mut self.shared, self.sequences.get(&request)) else { return true };
        sequence.table[first..].iter().zip(hashes).for_each(|(&block, &hash)| shared.publish(block, hash));
        true
    }

    /// The first `count` blocks of the sequence of `request` are found from now on under what `hash` says of
    /// each: those behind the last one that is found already. As [`publish`](Self::publish), for a sequence
    /// that is published as it grows. O(blocks that are new).
    pub fn publish_up_to(&mut self, request: RequestId, count: u32, hash: impl Fn(u32) -> u64) {
        self.shared_mut();
        let (Some(shared), Some(sequence)) = (&mut self.shared, self.sequences.get(&request)) else { return };
        for (&block, index) in sequence.table.iter().zip(0..count).rev() {
            if shared.is_published(block) {
                return;
            }
            shared.publish(block, hash(index));
        }
    }

    /// `request` begins as a copy of the sequence of `of`, whose blocks both hold from now on. False, and
    /// nothing changes, if `of` has no sequence or `request` has one. O(blocks).
    pub fn fork(&mut self, of: RequestId, request: RequestId) -> bool {
        if self.sequences.contains_key(&request) || !self.sequences.contains_key(&of) {
            return false;
        }
        self.shared_mut();
        let (Some(shared), Some(sequence)) = (&mut self.shared, self.sequences.get(&of)) else { return false };
        let Sequence { tenant, table, parts } = sequence.clone();
        table.iter().for_each(|&block| {
            shared.hold(block, tenant);
        });
        self.sequences.insert(request, Sequence { tenant, table, parts });
        true
    }

    /// How many sequences hold the `index`th block of the sequence of `request`, itself included; zero if
    /// there is no such block.
    pub fn holders(&self, request: RequestId, index: u32) -> u32 {
        let Some(&block) = self.table(request).get(index as usize) else { return 0 };
        self.shared.as_ref().map_or(1, |shared| shared.holders(block))
    }

    /// True if other sequences hold the `index`th block of the sequence of `request` too.
    pub fn is_shared(&self, request: RequestId, index: u32) -> bool {
        self.holders(request, index) > 1
    }

    /// Makes the `index`th block of the sequence of `request` one that can be written: nobody else holds it
    /// and nobody finds it. [`None`], and nothing changes, if there is no such block, or no free one to
    /// copy it to. O(1).
    pub fn own(&mut self, request: RequestId, index: u32) -> Option<Owned> {
        let free = self.free_blocks();
        let sequence = self.sequences.get_mut(&request)?;
        let place = sequence.table.get_mut(index as usize)?;
        let Some(shared) = &mut self.shared else { return Some(Owned::InPlace) };
        let from = *place;
        if shared.holders(from) == 1 {
            shared.forget(from);
            return Some(Owned::InPlace);
        }
        if free == 0 {
            return None;
        }
        let tenant = sequence.tenant;
        let to = take(shared, self.total, &mut self.untouched, tenant)?;
        shared.let_go(from);
        *place = to;
        self.count(tenant, 1);
        Some(Owned::Copied { from, to })
    }

    /// What free blocks of `tenant`, or of everybody, hold is not found any more. Returns how many there
    /// were. O(free blocks that were handed out before).
    pub fn drop_cached(&mut self, tenant: Option<TenantId>) -> u32 {
        self.shared.as_mut().map_or(0, |shared| shared.drop_cached(tenant))
    }

    /// What a sequence shares, without block numbers: for every block the place of its first mention in
    /// the sequences, ascending, and its content; then the cached blocks in the order in which they go, with
    /// what goes before each. Empty for a pool that shares nothing.
    pub(crate) fn sharing(&self, mut each: impl FnMut([u64; 4])) {
        let Some(shared) = &self.shared else { return };
        let mut mentioned: IdMap<u32, u64> = IdMap::default();
        let content = |block| shared.content(block).map_or([0; 3], |(hash, ahead)| [1, hash, ahead.into()]);
        let tables = self.sequences().into_iter().flat_map(|request| self.table(request));
        for &block in tables {
            let next = mentioned.len() as u64;
            let [found, hash, ahead] = content(block);
            let place = *mentioned.entry(block).or_insert(next);
            if found > 0 || shared.holders(block) > 1 {
                each([place, found, hash, ahead]);
            }
        }
        let mut before = u64::from(self.total - self.untouched);
        for (block, tenant) in shared.queue() {
            let [found, hash, ahead] = content(block);
            if found > 0 {
                each([before, tenant.0.into(), hash, ahead]);
                before = 0;
            } else {
                before += 1;
            }
        }
    }

    /// The devices that hold the parts of the other ranks of a sequence whose first part is here, from
    /// rank 1 on; empty for a sequence in one part.
    pub fn parts(&self, request: RequestId) -> &[DeviceId] {
        self.sequences.get(&request).map_or(&[], |sequence| &sequence.parts)
    }

    /// The next rank's part of the sequence is on `device`. Nothing changes if one is there already.
    pub fn add_part(&mut self, request: RequestId, device: DeviceId) {
        if let Some(sequence) = self.sequences.get_mut(&request)
            && !sequence.parts.contains(&device)
        {
            sequence.parts.push(device);
        }
    }

    /// Ends a sequence and returns how many blocks are free by it: those that no other holds.
    pub fn release(&mut self, request: RequestId) -> u32 {
        let Some(sequence) = self.sequences.remove(&request) else { return 0 };
        self.give_up(sequence.tenant, &sequence.table)
    }

    /// Gives up the last `count` blocks of a sequence, which ends with its last one. Returns how many are free
    /// by it: those that no other holds.
    pub fn shrink(&mut self, request: RequestId, count: u32) -> u32 {
        let Some(sequence) = self.sequences.get_mut(&request) else { return 0 };
        let kept = sequence.table.len().saturating_sub(count as usize);
        if kept == 0 {
            return self.release(request);
        }
        let (tenant, lost) = (sequence.tenant, sequence.table.split_off(kept));
        self.give_up(tenant, &lost)
    }

    /// A sequence of `tenant` lets go of `blocks`, the last one first.
    fn give_up(&mut self, tenant: TenantId, blocks: &[u32]) -> u32 {
        let freed = match &mut self.shared {
            None => {
                self.free.extend(blocks.iter().rev());
                blocks.len() as u32
            }
            Some(shared) => blocks.iter().rev().filter(|&&block| shared.let_go(block)).count() as u32,
        };
        if let Some(used) = self.by_tenant.get_mut(tenant.index()) {
            *used -= freed;
        }
        freed
    }

    /// True if there is no sequence, not even one without blocks.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// The sequences, ascending, those without blocks too.
    pub fn sequences(&self) -> Vec<RequestId> {
        let mut ids: Vec<_> = self.sequences.keys().copied().collect();
        ids.sort_unstable();
        ids
    }
}

/// A block that nobody held: one that was never handed out, or the one that has been free longest.
fn take(shared: &mut Shared, total: u32, untouched: &mut u32, tenant: TenantId) -> Option<u32> {
    let block = if *untouched < total {
        shared.add_block();
        *untouched += 1;
        *untouched - 1
    } else {
        shared.take(tenant)?
    };
    shared.hold(block, tenant);
    Some(block)
}

#[cfg(test)]
mod sharing_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn a_growth_that_does_not_fit_changes_nothing() {
        let mut pool = KvPool::new(4);
        assert!(pool.grow(RequestId(1), TenantId(0), 3));
        let before = pool.clone();
        assert!(!pool.grow(RequestId(2), TenantId(0), 2));
        assert_eq!(pool, before);
        assert_eq!(pool.release(RequestId(9)), 0);
    }

    /// Two hundred thousand blocks with one content: a search among them for each would be 2 * 10^10 steps.
    #[test]
    fn blocks_with_equal_content_are_published_and_forgotten_one_by_one() {
        let (count, began) = (200_000_u32, std::time::Instant::now());
        let (mut pool, tenant) = (KvPool::new(count), TenantId(0));
        assert!(pool.grow(RequestId(0), tenant, count));
        assert!(pool.publish(RequestId(0), 0, &vec![7; count as usize]));
        let table = pool.table(RequestId(0)).to_vec();
        assert_eq!(pool.release(RequestId(0)), count);
        // The end of the sequence is taken first, and the beginning has had the content longest.
        for taken in 1..count {
            pool.grow(RequestId(u64::from(taken)), tenant, 1);
            assert_eq!(pool.find(tenant, &[7]), (1, 1));
        }
        assert_eq!(pool.share(RequestId(0), tenant, &[7]), 1);
        assert_eq!(pool.table(RequestId(0)), &table[..1]);
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }

    proptest! {
        #[test]
        fn every_block_has_one_owner(steps in prop::collection::vec((0u64..6, 0u32..5, any::<bool>()), 1..200)) {
            let mut pool = KvPool::new(24);
            let mut expected: HashMap<u64, u32> = HashMap::new();
            for (request, blocks, grow) in steps {
                let tenant = TenantId(request as u32 % 2);
                if grow {
                    let fits = blocks <= 24 - expected.values().sum::<u32>();
                    prop_assert_eq!(pool.grow(RequestId(request), tenant, blocks), fits);
                    if fits {
                        *expected.entry(request).or_default() += blocks;
                    }
                } else {
                    prop_assert_eq!(pool.release(RequestId(request)), expected.remove(&request).unwrap_or(0));
                }
                let mut seen = HashSet::new();
                for (&request, &blocks) in &expected {
                    let table = pool.table(RequestId(request));
                    prop_assert_eq!(table.len() as u32, blocks);
                    prop_assert!(table.iter().all(|&block| block < 24 && seen.insert(block)));
                }
                prop_assert_eq!(pool.used_blocks() as usize, seen.len());
                let even: u32 = expected.iter().filter(|(request, _)| *request % 2 == 0).map(|(_, blocks)| blocks).sum();
                prop_assert_eq!(pool.used_by(TenantId(0)), even);
            }
        }
    }
}
