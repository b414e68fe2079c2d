//! Blocks that several sequences hold, and blocks that keep their content when none does.
//!
//! The rule is that of vLLM V1's block pool: free blocks are one queue, in the order in which they became
//! free, the end of a sequence before its beginning; what a block holds is found until the block is
//! taken from the front of the queue; of blocks with equal content the one that has had it longest is found.
//! What the *keeper* of a pool left is a queue of its own, in the same order, behind that of all other free blocks.
//!
//! What must stay true: a block is in one of the queues if and only if no sequence holds it, and in the keeper's if
//! and only if it is found under the keeper's name; `by_content` leads to
//! exactly the blocks that carry a hash; a block with a hash belongs to the tenant under which it is found.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};

use crate::id::TenantId;

pub(super) const NONE: u32 = u32::MAX;

/// When a block became free, counted in blocks that did: ascending along the queue. Nothing but that order
/// depends on it, so pools are equal whatever their stamps are.
#[derive(Clone, Copy, Debug)]
struct Stamp(u64);

impl PartialEq for Stamp {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Stamp {}

/// Whose blocks are taken last. Pools are equal whoever that is: where it matters their queues differ.
#[derive(Clone, Copy, Debug)]
struct Keeper(Option<TenantId>);

impl PartialEq for Keeper {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Keeper {}

/// The ends of a queue of blocks, or [`NONE`] and [`NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Queue {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    hash: Option<u64>,
    /// Whose sequence had it last.
    tenant: TenantId,
    /// Sequences that hold it.
    holders: u32,
    before: u32,
    after: u32,
    stamp: Stamp,
    /// True in the keeper's queue.
    kept: bool,
    /// The next block with the same content, in the order in which they got it.
    twin: u32,
    /// The one before it in that order.
    elder: u32,
}

/// The first and the last block with some content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Twins {
    first: u32,
    last: u32,
}

/// What a block holds, and under whose name it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    tenant: TenantId,
    hash: u64,
}

impl Hash for Content {
    /// One word, which is hashed faster than two. No two contents of one tenant have the same.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash ^ u64::from(self.tenant.0).rotate_left(32));
    }
}

/// The blocks of a pool that were ever handed out, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    blocks: Vec<Block>,
    /// The keeper's is the second.
    queues: [Queue; 2],
    keeper: Keeper,
    free: u32,
    stamps: Stamp,
    /// The hash is the host's, so the map is one that a hostile choice does not slow down.
    by_content: HashMap<Content, Twins>,
    by_tenant: Vec<Counts>,
}

/// What is saved of the blocks beside tables and queue.
#[cfg(feature = "serde")]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct SavedShared {
    pub(super) had: Vec<TenantId>,
    published: Vec<(u32, u64)>,
    pub(super) displaced: Vec<u64>,
}

/// Counts of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    cached: u32,
    displaced: u64,
}

impl Shared {
    /// Of a pool in which every block of `tables` is held by one sequence and the blocks of `free` are
    /// free, to be taken from the end.
    pub(super) fn new<'t>(untouched: u32, free: &[u32], tables: impl Iterator<Item = (TenantId, &'t [u32])>) -> Self {
        let mut shared = Self {
            blocks: Vec::new(),
            queues: [Queue { first: NONE, last: NONE }; 2],
            keeper: Keeper(None),
            free: 0,
            stamps: Stamp(0),
            by_content: HashMap::new(),
            by_tenant: Vec::new(),
        };
        (0..untouched).for_each(|_| shared.add_block());
        for (tenant, table) in tables {
            table.iter().for_each(|&block| {
                shared.hold(block, tenant);
            });
        }
        free.iter().rev().for_each(|&block| shared.append(block));
        shared
    }

    /// What cannot be told from tables and queue: who had each block last, and what is found, of equal
    /// contents in the order in which they are found.
    #[cfg(feature = "serde")]
    pub(super) fn save(&self) -> SavedShared {
        let mut published = Vec::new();
        for (block, entry) in (0u32..).zip(&self.blocks) {
            let head = entry.hash.filter(|&hash| self.find(entry.tenant, hash) == Some(block));
            let mut next = if head.is_some() { block } else { NONE };
            while let (Some(hash), Some(twin)) = (head, self.blocks.get(next as usize)) {
                published.push((next, hash));
                next = twin.twin;
            }
        }
        let had = self.blocks.iter().map(|block| block.tenant).collect();
        SavedShared { had, published, displaced: self.by_tenant.iter().map(|counts| counts.displaced).collect() }
    }

    /// The blocks that were saved, held by `tables` and free in the order of `queue`.
    #[cfg(feature = "serde")]
    pub(super) fn restored<'t>(
        saved: SavedShared,
        queue: &[u32],
        tables: impl Iterator<Item = (TenantId, &'t [u32])>,
    ) -> Result<Self, &'static str> {
        let mut shared = Self::new(saved.had.len() as u32, &[], std::iter::empty());
        for (entry, tenant) in shared.blocks.iter_mut().zip(saved.had) {
            entry.tenant = tenant;
        }
        for (tenant, table) in tables {
            for &block in table {
                if shared.blocks.get(block as usize).is_none_or(|entry| entry.tenant != tenant) {
                    return Err("a block of a sequence that its tenant does not have");
                }
                shared.hold(block, tenant);
            }
        }
        let mut queued = vec![false; shared.blocks.len()];
        for &block in queue {
            let is_free = shared.blocks.get(block as usize).is_some_and(|entry| entry.holders == 0);
            if !is_free || std::mem::replace(&mut queued[block as usize], true) {
                return Err("a free block that is held, or free twice");
            }
            shared.append(block);
        }
        if shared.blocks.iter().zip(&queued).any(|(entry, queued)| entry.holders == 0 && !queued) {
            return Err("a block that is neither free nor held");
        }
        let counts = saved.displaced.into_iter().map(|displaced| Counts { cached: 0, displaced });
        shared.by_tenant = counts.collect();
        for (block, hash) in saved.published {
            let Some(entry) = shared.blocks.get(block as usize).filter(|entry| entry.hash.is_none()) else {
                return Err("content of a block that there is not, or that has another");
            };
            let (tenant, cached) = (entry.tenant, entry.holders == 0);
            shared.publish(block, hash);
            if cached {
                let counts = shared.by_tenant.get_mut(tenant.index());
                counts.ok_or("cached blocks of a tenant of which nothing is counted")?.cached += 1;
            }
        }
        Ok(shared)
    }

    /// Blocks that no sequence holds.
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Blocks of `tenant` that no sequence holds and whose content is found.
    pub(super) fn cached_by(&self, tenant: TenantId) -> u32 {
        self.by_tenant.get(tenant.index()).map_or(0, |counts| counts.cached)
    }

    /// Cached blocks of `tenant` that sequences of others took.
    pub(super) fn displaced(&self, tenant: TenantId) -> u64 {
        self.by_tenant.get(tenant.index()).map_or(0, |counts| counts.displaced)
    }

    /// Tenants with cached blocks, ascending.
    pub(super) fn cachers(&self) -> impl Iterator<Item = TenantId> + '_ {
        (0..).map(TenantId).zip(&self.by_tenant).filter(|(_, counts)| counts.cached > 0).map(|(tenant, _)| tenant)
    }

    /// Enters the block with the next number, which nobody holds and which is not in the queue.
    pub(super) fn add_block(&mut self) {
        let (tenant, hash, stamp) = (TenantId(0), None, Stamp(0));
        let (before, after, twin, elder) = (NONE, NONE, NONE, NONE);
        self.blocks.push(Block { hash, tenant, holders: 0, before, after, stamp, kept: false, twin, elder });
    }

    /// Leaves out the blocks from number `total` on. What free ones held is forgotten; what is held moves to the
    /// blocks that have been free longest, and the result says from where to where, ascending. At most `total` blocks
    /// may be held. O(blocks that go).
    pub(super) fn cut(&mut self, total: u32) -> Vec<(u32, u32)> {
        let end = self.blocks.len() as u32;
        for block in (total..end).filter(|&block| self.holders(block) == 0).collect::<Vec<_>>() {
            self.unlink(block);
            self.forget_cached(block);
        }
        let mut moves = Vec::new();
        for from in total..end {
            let Block { holders, tenant, .. } = self.blocks[from as usize];
            let Some(to) = (holders > 0).then(|| self.take(tenant)).flatten() else { continue };
            self.relocate(from, to);
            moves.push((from, to));
        }
        self.blocks.truncate(total as usize);
        moves
    }

    /// What block `from` is, `to` is in its place; nobody holds or finds `to`.
    fn relocate(&mut self, from: u32, to: u32) {
        let Block { hash, tenant, holders, twin, elder, .. } = self.blocks[from as usize];
        let entry = &mut self.blocks[to as usize];
        (entry.hash, entry.tenant, entry.holders) = (hash, tenant, holders);
        (entry.twin, entry.elder) = (twin, elder);
        let Some(hash) = hash else { return };
        let Entry::Occupied(mut place) = self.by_content.entry(Content { tenant, hash }) else { return };
        match self.blocks.get_mut(elder as usize) {
            Some(elder) => elder.twin = to,
            None => place.get_mut().first = to,
        }
        match self.blocks.get_mut(twin as usize) {
            Some(twin) => twin.elder = to,
            None => place.get_mut().last = to,
        }
    }

    /// From now on, what sequences of `tenant` left is taken last. O(free blocks) for another than before.
    pub(super) fn keep_for(&mut self, tenant: TenantId) {
        if self.keeper.0.replace(tenant) == Some(tenant) {
            return;
        }
        let queue: Vec<u32> = self.queue().map(|(block, _)| block).collect();
        for block in queue {
            self.unlink(block);
            self.append(block);
        }
    }

    /// Takes the block that has been free longest out of the queue, for a sequence of `tenant`; what it
    /// held is forgotten.
    pub(super) fn take(&mut self, tenant: TenantId) -> Option<u32> {
        let block = self.front();
        let entry = *self.blocks.get(block as usize)?;
        self.unlink(block);
        if self.forget_cached(block) {
            self.counts(entry.tenant).displaced += u64::from(entry.tenant != tenant);
        }
        Some(block)
    }

    /// What `block`, which nobody holds, has is not found any more. False if it was not.
    fn forget_cached(&mut self, block: u32) -> bool {
        let entry = self.blocks[block as usize];
        if entry.hash.is_some() {
            self.counts(entry.tenant).cached -= 1;
            self.forget(block);
        }
        entry.hash.is_some()
    }

    /// A sequence of `tenant` holds `block`, which is not in the queue. True if it is the first.
    pub(super) fn hold(&mut self, block: u32, tenant: TenantId) -> bool {
        let entry = &mut self.blocks[block as usize];
        (entry.holders, entry.tenant) = (entry.holders + 1, tenant);
        entry.holders == 1
    }

    /// A sequence lets go of `block`. True if it was the last.
    pub(super) fn let_go(&mut self, block: u32) -> bool {
        let entry = &mut self.blocks[block as usize];
        entry.holders -= 1;
        let Block { holders, hash, tenant, .. } = *entry;
        if holders == 0 {
            self.append(block);
            self.counts(tenant).cached += u32::from(hash.is_some());
        }
        holders == 0
    }

    pub(super) fn holders(&self, block: u32) -> u32 {
        self.blocks[block as usize].holders
    }

    /// The block of `tenant` that has carried `hash` longest. O(1).
    pub(super) fn find(&self, tenant: TenantId, hash: u64) -> Option<u32> {
        self.by_content.get(&Content { tenant, hash }).map(|twins| twins.first)
    }

    /// The blocks of `tenant` that carry `hash`, in the order in which they are found.
    pub(super) fn twins(&self, tenant: TenantId, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let next = |&block: &u32| Some(self.blocks[block as usize].twin).filter(|&twin| twin != NONE);
        std::iter::successors(self.find(tenant, hash), next)
    }

    /// True if what `block` holds is found.
    pub(super) fn is_published(&self, block: u32) -> bool {
        self.blocks[block as usize].hash.is_some()
    }

    /// The block that is taken next: the one that has been free longest, the keeper's last; [`NONE`] if none is.
    pub(super) fn front(&self) -> u32 {
        let [others, kept] = self.queues;
        if others.first == NONE { kept.first } else { others.first }
    }

    /// The block that is taken after `block`; [`NONE`] behind the last.
    pub(super) fn behind(&self, block: u32) -> u32 {
        match self.blocks.get(block as usize) {
            Some(Block { after: NONE, kept: false, .. }) => self.queues[1].first,
            entry => entry.map_or(NONE, |entry| entry.after),
        }
    }

    /// True if `block`, which is in a queue, is `place` or is taken after it.
    pub(super) fn is_from(&self, block: u32, place: u32) -> bool {
        let stamp = |block: u32| self.blocks.get(block as usize).map(|entry| (entry.kept, entry.stamp.0));
        stamp(place).is_some_and(|place| stamp(block) >= Some(place))
    }

    /// A sequence of `tenant` holds `block`, which was found, too. True if it is the only one.
    pub(super) fn share(&mut self, block: u32, tenant: TenantId) -> bool {
        if self.holders(block) == 0 {
            self.unlink(block);
            self.counts(tenant).cached -= 1;
        }
        self.hold(block, tenant)
    }

    /// `block` is found under `hash` from now on, unless it is found under another. O(1).
    pub(super) fn publish(&mut self, block: u32, hash: u64) {
        let entry = &mut self.blocks[block as usize];
        if entry.hash.is_some() {
            return;
        }
        entry.hash = Some(hash);
        match self.by_content.entry(Content { tenant: entry.tenant, hash }) {
            Entry::Vacant(place) => drop(place.insert(Twins { first: block, last: block })),
            Entry::Occupied(mut place) => {
                let elder = std::mem::replace(&mut place.get_mut().last, block);
                self.blocks[elder as usize].twin = block;
                self.blocks[block as usize].elder = elder;
            }
        }
    }

    /// `block` is not found any more. O(1).
    pub(super) fn forget(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        let next = std::mem::replace(&mut entry.twin, NONE);
        let elder = std::mem::replace(&mut entry.elder, NONE);
        let Some(hash) = entry.hash.take() else { return };
        let Entry::Occupied(mut place) = self.by_content.entry(Content { tenant: entry.tenant, hash }) else { return };
        if elder == NONE && next == NONE {
            place.remove();
            return;
        }
        match self.blocks.get_mut(elder as usize) {
            Some(elder) => elder.twin = next,
            None => place.get_mut().first = next,
        }
        match self.blocks.get_mut(next as usize) {
            Some(next) => next.elder = elder,
            None => place.get_mut().last = elder,
        }
    }

    /// What blocks of `tenant`, or of everybody, hold that no sequence holds is not found any more; they
    /// keep their places in the queue, but for the keeper's, which go to the end of that of the others. Returns how
    /// many there were. O(free blocks).
    pub(super) fn drop_cached(&mut self, tenant: Option<TenantId>) -> u32 {
        let of = |(block, had): (u32, TenantId)| tenant.is_none_or(|tenant| tenant == had).then_some(block);
        let blocks: Vec<u32> = self.queue().filter_map(of).collect();
        let mut dropped = 0;
        for block in blocks {
            dropped += u32::from(self.forget_cached(block));
            if self.blocks[block as usize].kept {
                self.unlink(block);
                self.append(block);
            }
        }
        dropped
    }

    /// What the content of `block` is, and how many blocks are found in its place before it is.
    pub(super) fn content(&self, block: u32) -> Option<(u64, u32)> {
        let entry = self.blocks[block as usize];
        let hash = entry.hash?;
        let (mut ahead, mut twin) = (0, self.find(entry.tenant, hash)?);
        while twin != block {
            (ahead, twin) = (ahead + 1, self.blocks[twin as usize].twin);
        }
        Some((hash, ahead))
    }

    /// The free blocks in the order in which they are taken, and the tenants that had them.
    pub(super) fn queue(&self) -> impl Iterator<Item = (u32, TenantId)> + '_ {
        let is_block = |&block: &u32| block != NONE;
        let blocks = std::iter::successors(Some(self.front()).filter(is_block), move |&block| {
            Some(self.behind(block)).filter(is_block)
        });
        blocks.map(|block| (block, self.blocks[block as usize].tenant))
    }

    fn counts(&mut self, tenant: TenantId) -> &mut Counts {
        let index = tenant.index();
        if self.by_tenant.len() <= index {
            self.by_tenant.resize(index + 1, Counts::default());
        }
        &mut self.by_tenant[index]
    }

    fn append(&mut self, block: u32) {
        let Block { hash, tenant, .. } = self.blocks[block as usize];
        let kept = hash.is_some() && self.keeper.0 == Some(tenant);
        let queue = &mut self.queues[usize::from(kept)];
        let last = std::mem::replace(&mut queue.last, block);
        match self.blocks.get_mut(last as usize) {
            Some(last) => last.after = block,
            None => queue.first = block,
        }
        let entry = &mut self.blocks[block as usize];
        (entry.before, entry.after, entry.stamp, entry.kept) = (last, NONE, self.stamps, kept);
        self.stamps.0 += 1;
        self.free += 1;
    }

    fn unlink(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        let (before, after) = (entry.before, entry.after);
        let queue = &mut self.queues[usize::from(entry.kept)];
        (entry.before, entry.after, entry.kept) = (NONE, NONE, false);
        match self.blocks.get_mut(before as usize) {
            Some(before) => before.after = after,
            None => queue.first = after,
        }
        match self.blocks.get_mut(after as usize) {
            Some(after) => after.before = before,
            None => queue.last = before,
        }
        self.free -= 1;
    }
}
