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
//! They are kept by [`KvPool`]; here it is told of sequences.

use slicescheduler_gmg::id::{RequestId, TenantId};
use slicescheduler_gmg::memory::{self, KvPool};

use crate::batching::Sequence;

/// A replica serves one tenant, so one name does for all of its blocks.
const OWN: TenantId = TenantId(0);

/// Which block of a replica holds the beginning of which sequence.
#[derive(Clone, Debug)]
pub struct PrefixCache(KvPool);

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
        Self(KvPool::caching(blocks))
    }

    /// All blocks.
    pub fn total(&self) -> u32 {
        self.0.total()
    }

    /// Blocks that no sequence holds; what they contain may still be found.
    pub fn free(&self) -> u32 {
        self.0.free_blocks()
    }

    /// Blocks that `request` holds, in the order of its tokens.
    pub fn table(&self, request: RequestId) -> &[u32] {
        self.0.table(request)
    }

    /// Blocks that would become free if `request` gave up its own after `others` had given up theirs. A
    /// shared block has the same place in every table. O(blocks * others).
    pub(crate) fn released_by<'s>(
        &self,
        request: RequestId,
        others: impl Iterator<Item = &'s Sequence> + Clone,
    ) -> u32 {
        let is_last = |&(index, block): &(u32, &u32)| {
            let holds = |other: &&Sequence| self.table(other.request).get(index as usize) == Some(block);
            self.0.holders(request, index) as usize == others.clone().filter(holds).count() + 1
        };
        (0..).zip(self.table(request)).filter(is_last).count() as u32
    }

    /// Takes `count` free blocks for the end of `request`; fewer if there are not as many.
    pub(crate) fn grow(&mut self, request: RequestId, count: u32) {
        if count > 0 {
            self.0.grow(request, OWN, count.min(self.free()));
        }
    }

    /// Lets `sequence`, which holds nothing, hold the first `count` blocks of its content, as far as they
    /// are present.
    pub(crate) fn share(&mut self, sequence: &Sequence, count: u32) {
        if count > 0 {
            let hashes: Vec<u64> = (0..count).map(|index| sequence.block_hash(index)).collect();
            self.0.share(sequence.request, OWN, &hashes);
        }
    }

    /// The full blocks of the first `tokens` tokens of `sequence` can be found from now on.
    /// O(blocks that are new since the last call).
    pub(crate) fn publish(&mut self, sequence: &Sequence, tokens: u32, block_tokens: u32) {
        let full = tokens / block_tokens.max(1);
        self.0.publish_up_to(sequence.request, full, |index| sequence.block_hash(index));
    }

    /// Gives up the last `count` blocks of `request`. Returns the blocks that became free.
    pub(crate) fn release(&mut self, request: RequestId, count: u32) -> u32 {
        self.0.shrink(request, count)
    }
}

/// What a plan did to a cache so far, without doing it: which free blocks it took, which it shares,
/// and what it will compute.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pool: memory::Draft<'a>,
    /// Sequences that get further, and how many of their blocks will be full.
    computed: Vec<(&'a Sequence, u32)>,
}

impl<'a> Draft<'a> {
    pub(crate) fn of(cache: &'a PrefixCache) -> Self {
        Self { pool: cache.0.draft(), computed: Vec::new() }
    }

    /// A running `sequence` takes `new` blocks; `full` of its blocks will be full, `before` of them are.
    pub(crate) fn advance(&mut self, sequence: &'a Sequence, new: u32, before: u32, full: u32) {
        self.pool.take(new);
        if full > before {
            self.computed.push((sequence, full));
        }
    }

    /// What `sequence` finds if it is admitted next. O(blocks found + sequences that get further).
    pub(crate) fn find(&self, sequence: &Sequence, block_tokens: u32) -> Found {
        let most = sequence.tokens().saturating_sub(1) / block_tokens.max(1);
        let mut found = Found::default();
        for index in 0..most {
            let hash = sequence.block_hash(index);
            match self.pool.find(OWN, hash) {
                Some(block) => found.free += u32::from(!self.pool.is_held(block)),
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
            for index in 0..found.blocks {
                if let Some(block) = self.pool.find(OWN, sequence.block_hash(index)) {
                    self.pool.share(block);
                }
            }
        }
        self.pool.take(new);
        self.computed.push((sequence, full));
    }

    fn will_be(&self, index: u32, hash: u64) -> bool {
        self.computed.iter().any(|(sequence, full)| index < *full && sequence.block_hash(index) == hash)
    }
}
