//! The blocks of a replica by what they hold.
//!
//! A full block of a sequence has a *chained* hash: that of its tokens and of the block before it, so
//! equal hashes mean equal beginnings. Blocks that no sequence holds keep their content until they
//! are needed: they are taken in the order in which they became free, the end of a sequence before its
//! beginning. A sequence shares the blocks of the longest beginning that is present; the last token
//! before the next output is always computed, because its logits are needed.
//!
//! The rules are those of vLLM V1's block pool: a block counts as present from the moment it is
//! scheduled to be computed, and of blocks with equal content the one that has had it longest is found.
//!
//! What must stay true: a block is in the list of free blocks if and only if no sequence holds it;
//! stamps ascend along that list; `by_hash` names exactly the blocks that carry a hash, under it.

use std::collections::HashMap;

use slicescheduler_gmg::id::RequestId;
use smallvec::SmallVec;

use crate::batching::Sequence;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Block {
    hash: Option<u64>,
    /// Sequences that hold it.
    holders: u32,
    before: u32,
    after: u32,
    /// When it became free, counted in blocks that did.
    stamp: u64,
}

/// Which block of a replica holds the beginning of which sequence.
#[derive(Clone, Debug)]
pub struct PrefixCache {
    blocks: Vec<Block>,
    first: u32,
    last: u32,
    free: u32,
    stamps: u64,
    by_hash: HashMap<u64, SmallVec<[u32; 2]>>,
    tables: HashMap<RequestId, Vec<u32>>,
}

/// Blocks that a waiting sequence finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// All of them.
    pub(crate) blocks: u32,
    /// Those that no sequence holds yet: sharing them takes free blocks.
    pub(crate) free: u32,
}

impl PrefixCache {
    /// `blocks` blocks that hold nothing.
    pub fn new(blocks: u32) -> Self {
        let empty = Block { hash: None, holders: 0, before: NONE, after: NONE, stamp: 0 };
        let mut cache = Self {
            blocks: vec![empty; blocks as usize],
            first: NONE,
            last: NONE,
            free: 0,
            stamps: 0,
            by_hash: HashMap::new(),
            tables: HashMap::new(),
        };
        (0..blocks).for_each(|block| cache.append(block));
        cache
    }

    /// All blocks.
    pub fn total(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks that no sequence holds; what they contain may still be found.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Blocks that `request` holds, in the order of its tokens.
    pub fn table(&self, request: RequestId) -> &[u32] {
        self.tables.get(&request).map_or(&[], Vec::as_slice)
    }

    /// Blocks that would become free if `request` gave up its own after `others` had given up theirs. A
    /// shared block has the same place in every table. O(blocks * others).
    pub(crate) fn released_by<'s>(
        &self,
        request: RequestId,
        others: impl Iterator<Item = &'s Sequence> + Clone,
    ) -> u32 {
        let is_last = |&(index, &block): &(usize, &u32)| {
            let gone = others.clone().filter(|other| self.table(other.request).get(index) == Some(&block)).count();
            self.blocks[block as usize].holders as usize == gone + 1
        };
        self.table(request).iter().enumerate().filter(is_last).count() as u32
    }

    /// Takes `count` free blocks for the end of `request`; fewer if there are not as many.
    pub(crate) fn grow(&mut self, request: RequestId, count: u32) {
        for _ in 0..count.min(self.free) {
            let block = self.first;
            self.unlink(block);
            let entry = &mut self.blocks[block as usize];
            entry.holders = 1;
            if let Some(hash) = entry.hash.take() {
                self.forget(hash, block);
            }
            self.tables.entry(request).or_default().push(block);
        }
    }

    /// Lets `sequence` hold the first `count` blocks of its content, as far as they are present.
    pub(crate) fn share(&mut self, sequence: &Sequence, count: u32) {
        for index in 0..count {
            let Some(block) = self.find(sequence.block_hash(index)) else { return };
            if self.blocks[block as usize].holders == 0 {
                self.unlink(block);
            }
            self.blocks[block as usize].holders += 1;
            self.tables.entry(sequence.request).or_default().push(block);
        }
    }

    /// The full blocks of the first `tokens` tokens of `sequence` can be found from now on.
    /// O(blocks that are new since the last call).
    pub(crate) fn publish(&mut self, sequence: &Sequence, tokens: u32, block_tokens: u32) {
        let Some(table) = self.tables.get(&sequence.request) else { return };
        let full = (tokens / block_tokens.max(1)).min(table.len() as u32);
        for index in (0..full).rev() {
            let block = table[index as usize];
            let entry = &mut self.blocks[block as usize];
            if entry.hash.is_some() {
                return;
            }
            let hash = sequence.block_hash(index);
            entry.hash = Some(hash);
            self.by_hash.entry(hash).or_default().push(block);
        }
    }

    /// The block that has carried `hash` longest.
    fn find(&self, hash: u64) -> Option<u32> {
        self.by_hash.get(&hash)?.first().copied()
    }

    fn forget(&mut self, hash: u64, block: u32) {
        if let Some(blocks) = self.by_hash.get_mut(&hash) {
            blocks.retain(|&mut other| other != block);
            if blocks.is_empty() {
                self.by_hash.remove(&hash);
            }
        }
    }

    /// Gives up the last `count` blocks of `request`. Returns the blocks that became free.
    pub(crate) fn release(&mut self, request: RequestId, count: u32) -> u32 {
        let Some(mut table) = self.tables.remove(&request) else { return 0 };
        let before = self.free;
        let kept = table.len().saturating_sub(count as usize);
        for block in table.drain(kept..).rev() {
            let entry = &mut self.blocks[block as usize];
            entry.holders -= 1;
            if entry.holders == 0 {
                self.append(block);
            }
        }
        if !table.is_empty() {
            self.tables.insert(request, table);
        }
        self.free - before
    }

    fn append(&mut self, block: u32) {
        let last = std::mem::replace(&mut self.last, block);
        match self.blocks.get_mut(last as usize) {
            Some(last) => last.after = block,
            None => self.first = block,
        }
        let entry = &mut self.blocks[block as usize];
        (entry.before, entry.after, entry.stamp) = (last, NONE, self.stamps);
        self.stamps += 1;
        self.free += 1;
    }

    fn unlink(&mut self, block: u32) {
        let Block { before, after, .. } = self.blocks[block as usize];
        match self.blocks.get_mut(before as usize) {
            Some(before) => before.after = after,
            None => self.first = after,
        }
        match self.blocks.get_mut(after as usize) {
            Some(after) => after.before = before,
            None => self.last = before,
        }
        self.free -= 1;
    }
}

/// What a plan did to a cache so far, without doing it: which free blocks it took, which it shares,
/// and what it will compute.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    cache: &'a PrefixCache,
    /// Blocks of the free list before this one are taken, except for shared ones.
    cursor: u32,
    shared: Vec<u32>,
    /// Sequences that get further, and how many of their blocks will be full.
    computed: Vec<(&'a Sequence, u32)>,
}

impl<'a> Draft<'a> {
    pub(crate) fn of(cache: &'a PrefixCache) -> Self {
        Self { cache, cursor: cache.first, shared: Vec::new(), computed: Vec::new() }
    }

    /// A running `sequence` takes `new` blocks; `full` of its blocks will be full, `before` of them are.
    pub(crate) fn advance(&mut self, sequence: &'a Sequence, new: u32, before: u32, full: u32) {
        self.take(new);
        if full > before {
            self.computed.push((sequence, full));
        }
    }

    /// The next `count` free blocks are taken. O(count).
    fn take(&mut self, count: u32) {
        let mut left = count;
        while left > 0 && self.cursor != NONE {
            if !self.shared.contains(&self.cursor) {
                left -= 1;
            }
            self.cursor = self.cache.blocks[self.cursor as usize].after;
        }
    }

    /// What `sequence` finds if it is admitted next. O(blocks found + sequences that get further).
    pub(crate) fn find(&self, sequence: &Sequence, block_tokens: u32) -> Found {
        let most = sequence.tokens().saturating_sub(1) / block_tokens.max(1);
        let mut found = Found::default();
        for index in 0..most {
            let hash = sequence.block_hash(index);
            match self.left(hash) {
                Some(block) => {
                    let taken = self.cache.blocks[block as usize].holders > 0 || self.shared.contains(&block);
                    found.free += u32::from(!taken);
                }
                _ if self.will_be(index, hash) => {}
                _ => break,
            }
            found.blocks += 1;
        }
        found
    }

    /// `sequence` is admitted with the blocks that it `found`, takes `new` blocks, and will have
    /// `full` full ones.
    pub(crate) fn admit(&mut self, sequence: &'a Sequence, found: Found, new: u32, full: u32) {
        if found.free > 0 {
            let hashes = (0..found.blocks).map(|index| sequence.block_hash(index));
            let blocks = hashes.filter_map(|hash| self.left(hash));
            let free: SmallVec<[u32; 32]> =
                blocks.filter(|&block| self.cache.blocks[block as usize].holders == 0).collect();
            self.shared.extend(free);
        }
        self.take(new);
        self.computed.push((sequence, full));
    }

    /// The block with `hash` that will be found: the oldest that is not taken.
    fn left(&self, hash: u64) -> Option<u32> {
        self.cache.by_hash.get(&hash)?.iter().copied().find(|&block| self.is_left(block))
    }

    fn is_left(&self, block: u32) -> bool {
        let entry = &self.cache.blocks[block as usize];
        let ahead = match self.cache.blocks.get(self.cursor as usize) {
            Some(cursor) => entry.stamp >= cursor.stamp,
            None => false,
        };
        entry.holders > 0 || ahead || self.shared.contains(&block)
    }

    fn will_be(&self, index: u32, hash: u64) -> bool {
        self.computed.iter().any(|(sequence, full)| index < *full && sequence.block_hash(index) == hash)
    }
}
