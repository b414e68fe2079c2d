//! The blocks of a replica by what they hold.
//!
//! A full block of a sequence has a *chained* hash: that of its tokens and of the block before it, so
//! equal hashes mean equal beginnings. Blocks that no sequence holds keep their content until they
//! are needed: they are taken in the order in which they became free, the end of a sequence before its
//! beginning. A sequence shares the blocks of the longest beginning that is present; the last token
//! before the next output is always computed, because its logits are needed. So a block that others hold
//! or find is full, and never written again.
//!
//! The rules are those of vLLM V1's block pool, kept by [`KvPool`]; here it is told of sequences. A replica has
//! a [pool of its own](PrefixCache), or finds blocks in one that others use as well, such as the
//! one that a graph has for a device ([`Prefixes::of`]). They differ in two points:
//!
//! | | a pool of its own | a pool of a graph |
//! |---|---|---|
//! | a block is present | from when it is scheduled to be computed, as in vLLM | from when it is computed: who shares it may run elsewhere, and what was recalled or failed is never found |
//! | an iteration takes blocks | sequence by sequence | first those that its sequences share, then those that they grow by |

use slicescheduler_gmg::id::{RequestId, TenantId};
use slicescheduler_gmg::memory::{self, KvPool};

use crate::batching::Sequence;

/// A replica serves one tenant, so one name does for all of its blocks.
const OWN: TenantId = TenantId(0);

/// When what a sequence will hold is found by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Present {
    /// From when its computation is scheduled.
    Scheduled,
    /// From when it is computed.
    Computed,
}

/// Which block of a replica holds the beginning of which sequence.
#[derive(Clone, Debug)]
pub struct PrefixCache {
    pool: KvPool,
    tenant: TenantId,
    present: Present,
}

/// A pool in which the sequences of a tenant find blocks.
#[derive(Clone, Copy, Debug)]
pub struct Prefixes<'p> {
    pool: &'p KvPool,
    tenant: TenantId,
    present: Present,
    /// True if a plan may take what is free in the pool, whatever its limits say.
    bounds: bool,
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
        Self { pool: KvPool::caching(blocks), tenant: OWN, present: Present::Scheduled }
    }

    /// What `pool` holds, to go on with by the rules of a pool of a graph. O(blocks).
    pub(crate) fn copied(Prefixes { pool, tenant, present, .. }: Prefixes<'_>) -> Self {
        Self { pool: pool.clone(), tenant, present }
    }

    /// What sequences find in it.
    pub fn prefixes(&self) -> Prefixes<'_> {
        Prefixes { pool: &self.pool, tenant: self.tenant, present: self.present, bounds: true }
    }

    /// All blocks.
    pub fn total(&self) -> u32 {
        self.pool.total()
    }

    /// Blocks that no sequence holds; what they contain may still be found.
    pub fn free(&self) -> u32 {
        self.pool.free_blocks()
    }

    /// Blocks that `request` holds, in the order of its tokens.
    pub fn table(&self, request: RequestId) -> &[u32] {
        self.pool.table(request)
    }

    /// Takes `count` free blocks for the end of `request`; fewer if there are not as many.
    pub(crate) fn grow(&mut self, request: RequestId, count: u32) {
        if count > 0 {
            self.pool.grow(request, self.tenant, count.min(self.free()));
        }
    }

    /// Lets each of `admitted` hold as many blocks of its content as it found, where that comes before anything grows.
    pub(crate) fn share_first<'s>(&mut self, admitted: impl Iterator<Item = (&'s Sequence, u32)>) {
        if self.present == Present::Computed {
            admitted.for_each(|(sequence, found)| self.share(sequence, found));
        }
    }

    /// Lets `sequence`, which holds nothing, hold the first `count` blocks of its content, as far as they
    /// are present. No effect if it holds something.
    pub(crate) fn share(&mut self, sequence: &Sequence, count: u32) {
        if count > 0 {
            self.pool.share(sequence.request, self.tenant, &sequence.block_hashes(0..count));
        }
    }

    /// The full blocks of `sequence` as far as it is scheduled can be found from now on, if that is the rule.
    pub(crate) fn scheduled(&mut self, sequence: &Sequence, block_tokens: u32) {
        if self.present == Present::Scheduled {
            self.publish(sequence, sequence.position().min(sequence.tokens()), block_tokens);
        }
    }

    /// The full blocks of `sequence` as far as it is computed can be found from now on.
    pub(crate) fn computed(&mut self, sequence: &Sequence, block_tokens: u32) {
        match self.present {
            Present::Scheduled => self.scheduled(sequence, block_tokens),
            Present::Computed => self.publish(sequence, sequence.computed.min(sequence.tokens()), block_tokens),
        }
    }

    /// O(blocks that are new since the last call).
    fn publish(&mut self, sequence: &Sequence, tokens: u32, block_tokens: u32) {
        let full = tokens / block_tokens.max(1);
        self.pool.publish_up_to(sequence.request, full, |index| sequence.block_hash(index));
    }

    /// Gives up the last `count` blocks of `request`. Returns the blocks that became free.
    pub(crate) fn release(&mut self, request: RequestId, count: u32) -> u32 {
        self.pool.shrink(request, count)
    }
}

impl<'p> Prefixes<'p> {
    /// What sequences of `tenant` find in `pool`, which somebody else keeps: a graph, for one of its devices. A plan
    /// changes nothing in it; whoever carries the plan out shares, grows and publishes.
    pub fn of(pool: &'p KvPool, tenant: TenantId) -> Self {
        Self { pool, tenant, present: Present::Computed, bounds: false }
    }

    /// `blocks`, or what is free in the pool if that is less and is for the plan to know.
    pub(crate) fn bounded(self, blocks: u32) -> u32 {
        if self.bounds { blocks.min(self.pool.free_blocks()) } else { blocks }
    }

    /// Blocks that would become free if `request` gave up its own after `others` had given up theirs. A
    /// shared block has the same place in every table. O(blocks * others).
    pub(crate) fn released_by<'s>(self, request: RequestId, others: impl Iterator<Item = &'s Sequence> + Clone) -> u32 {
        let is_last = |&(index, block): &(u32, &u32)| {
            let holds = |other: &&Sequence| self.pool.table(other.request).get(index as usize) == Some(block);
            self.pool.holders(request, index) as usize == others.clone().filter(holds).count() + 1
        };
        (0..).zip(self.pool.table(request)).filter(is_last).count() as u32
    }
}

/// What a plan did to a pool so far, without doing it: which free blocks it took, which it shares,
/// and what it will compute.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    prefixes: Prefixes<'a>,
    pool: memory::Draft<'a>,
    /// Sequences that get further, and how many of their blocks will be full.
    computed: Vec<(&'a Sequence, u32)>,
}

impl<'a> Draft<'a> {
    pub(crate) fn of(prefixes: Prefixes<'a>) -> Self {
        Self { prefixes, pool: prefixes.pool.draft(), computed: Vec::new() }
    }

    /// A running `sequence` takes `new` blocks; `full` of its blocks will be full, `before` of them are.
    pub(crate) fn advance(&mut self, sequence: &'a Sequence, new: u32, before: u32, full: u32) {
        // What is computed later is not found, and what is taken later is.
        if self.prefixes.present == Present::Computed {
            return;
        }
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
            match self.pool.find(self.prefixes.tenant, hash) {
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
                if let Some(block) = self.pool.find(self.prefixes.tenant, sequence.block_hash(index)) {
                    self.pool.share(block);
                }
            }
        }
        self.advance(sequence, new, 0, full);
    }

    fn will_be(&self, index: u32, hash: u64) -> bool {
        self.computed.iter().any(|(sequence, full)| index < *full && sequence.block_hash(index) == hash)
    }
}
