//! One request as batching sees it.

use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::Arc;

use slicescheduler_gmg::id::{RequestId, TenantId};
use slicescheduler_gmg::tenant::Slo;
use slicescheduler_gmg::units::Nanos;

/// The chained hashes of the full blocks of a prompt: equal hashes mean equal beginnings. Without
/// them, and beyond them, the content of a sequence is its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct BlockHashes(Option<Arc<[u64]>>);

impl BlockHashes {
    /// One hash per full block, each that of the block's tokens and of the hash before it.
    pub fn new(hashes: impl Into<Arc<[u64]>>) -> Self {
        Self(Some(hashes.into()))
    }

    /// Those of a prompt in blocks of `block_tokens` tokens, hashed by `keys`: by a hash whose key is secret
    /// ([`RandomState`](std::hash::RandomState)) where prompts come from strangers, since two blocks of one hash are
    /// taken for one. By accident that happens once among 2^32 blocks. O(tokens).
    ///
    /// ```
    /// use slicescheduler_scheduler::batching::BlockHashes;
    ///
    /// let keys = std::hash::RandomState::new();
    /// let of = |tokens: &[u32]| BlockHashes::of_tokens(&keys, tokens, 2);
    /// let (one, other) = (of(&[5, 6, 7, 8, 9]), of(&[5, 6, 7, 0]));
    /// assert_eq!((one.len(), other.len(), one.common(&other)), (2, 2, 1));
    /// // The same two tokens behind others are another block.
    /// assert_eq!(of(&[7, 8]).common(&of(&[5, 6, 7, 8])), 0);
    /// ```
    pub fn of_tokens(keys: &impl BuildHasher, tokens: &[u32], block_tokens: u32) -> Self {
        let mut before = 0;
        let hashes = tokens.chunks_exact(block_tokens.max(1) as usize).map(|block| {
            before = keys.hash_one((before, block));
            before
        });
        Self::new(hashes.collect::<Vec<u64>>())
    }

    /// How many blocks are known.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |hashes| hashes.len())
    }

    /// True if nothing is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many blocks both begin with.
    pub fn common(&self, other: &Self) -> usize {
        let both = self.0.iter().flat_map(|hashes| &**hashes).zip(other.0.iter().flat_map(|hashes| &**hashes));
        both.take_while(|(one, other)| one == other).count()
    }

    fn get(&self, index: u32) -> Option<u64> {
        self.0.as_ref()?.get(index as usize).copied()
    }
}

/// The progress of one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sequence {
    /// The request.
    pub request: RequestId,
    /// When it arrived.
    pub arrival: Nanos,
    /// Its service level.
    pub slo: Option<Slo>,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Most tokens that it may produce.
    pub max_output: u32,
    /// Tokens whose keys and values are in the cache.
    pub computed: u32,
    /// Output tokens so far.
    pub produced: u32,
    /// Tokens more that iterations in flight compute.
    pub ahead: u32,
    /// Output tokens more that iterations in flight give.
    pub pending: u32,
    /// KV blocks that it holds.
    pub blocks: u32,
    /// Tokens of its prompt that were never computed, because a prefix cache had them whenever it was admitted.
    pub cached: u32,
    /// What the blocks of its prompt contain.
    pub hashes: BlockHashes,
    /// When its first token came; [`Nanos::MAX`] before.
    pub first_token: Nanos,
    /// When its latest token came.
    pub last_token: Nanos,
    /// Tokens that came after their due time.
    pub late: u32,
    /// How often it lost its blocks.
    pub preemptions: u32,
}

/// A request that got all its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The request.
    pub request: RequestId,
    /// Its tenant.
    pub tenant: TenantId,
    /// When it arrived.
    pub arrival: Nanos,
    /// Its service level.
    pub slo: Option<Slo>,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of it that were not computed, because a prefix cache had them.
    pub cached: u32,
    /// Tokens produced.
    pub produced: u32,
    /// When the first token came.
    pub first_token: Nanos,
    /// When the last token came.
    pub last_token: Nanos,
    /// Tokens that came after their due time.
    pub late: u32,
    /// How often it was recomputed.
    pub preemptions: u32,
}

impl Sequence {
    /// A request of which nothing is computed.
    pub fn new(request: RequestId, arrival: Nanos, slo: Option<Slo>, prompt: u32, max_output: u32) -> Self {
        Self {
            request,
            arrival,
            slo,
            prompt,
            max_output,
            computed: 0,
            produced: 0,
            ahead: 0,
            pending: 0,
            blocks: 0,
            cached: 0,
            hashes: BlockHashes::default(),
            first_token: Nanos::MAX,
            last_token: Nanos::ZERO,
            late: 0,
            preemptions: 0,
        }
    }

    /// Tells what the blocks of its prompt contain, so that they can be shared.
    #[must_use]
    pub fn with_hashes(self, hashes: BlockHashes) -> Self {
        Self { hashes, ..self }
    }

    /// The chained hashes of some of its blocks, of which it has or will have tokens.
    pub fn block_hashes(&self, blocks: Range<u32>) -> Vec<u64> {
        blocks.map(|index| self.block_hash(index)).collect()
    }

    /// The chained hash of its block `index`; unique to this request beyond the known ones.
    pub(crate) fn block_hash(&self, index: u32) -> u64 {
        self.hashes.get(index).unwrap_or_else(|| own_hash(self.request.0, index))
    }

    /// Tokens of prompt and answer so far.
    pub fn tokens(&self) -> u32 {
        self.prompt.saturating_add(self.produced)
    }

    /// Tokens that must be computed before the next output token.
    pub fn remaining(&self) -> u32 {
        self.tokens().saturating_sub(self.computed)
    }

    /// Where the next iteration goes on: after what is computed, now or in flight.
    pub(crate) fn position(&self) -> u32 {
        self.computed.saturating_add(self.ahead)
    }

    /// Tokens that the next iteration may compute, counting those in flight as computed and their
    /// output as there. Zero if the last token of the answer is in flight already.
    pub(crate) fn remaining_ahead(&self) -> u32 {
        if self.pending > 0 && self.produced.saturating_add(self.pending) >= self.max_output {
            return 0;
        }
        self.tokens().saturating_add(self.pending).saturating_sub(self.position())
    }

    /// True if the next iteration is all that the next output token needs.
    pub fn is_decoding(&self) -> bool {
        self.produced + self.pending > 0 && self.remaining_ahead() <= 1
    }

    /// When its next token is due; [`Nanos::MAX`] without a service level. Once the first token was
    /// late, what is left to save is the pace, so later tokens count from it.
    pub fn next_due(&self) -> Nanos {
        let Some(slo) = self.slo else { return Nanos::MAX };
        let first_due = slo.due(self.arrival, 0);
        let base = if self.produced > 0 { first_due.max(self.first_token) } else { first_due };
        base + slo.tpot.times(u64::from(self.produced))
    }

    /// When its next token has to come so that its mean time per output token holds so far, whatever
    /// slack it has left; [`Nanos::MAX`] before the first token and without a service level.
    pub fn next_pace(&self) -> Nanos {
        match self.slo {
            Some(slo) if self.produced > 0 => self.first_token + slo.tpot.times(u64::from(self.produced)),
            _ => Nanos::MAX,
        }
    }

    /// Blocks that hold `tokens` tokens.
    pub(crate) fn blocks_for(tokens: u32, block_tokens: u32) -> u32 {
        tokens.div_ceil(block_tokens.max(1))
    }

    pub(crate) fn emit(&mut self, at: Nanos) {
        if self.slo.is_some_and(|slo| at > slo.due(self.arrival, self.produced)) {
            self.late += 1;
        }
        if self.produced == 0 {
            self.first_token = at;
        }
        self.last_token = at;
        self.produced += 1;
    }

    /// It begins with `tokens` tokens that are there already.
    pub(crate) fn begin(&mut self, tokens: u32) {
        self.computed = tokens;
        self.cached = if self.preemptions == 0 { tokens } else { self.cached.min(tokens) };
    }

    /// An iteration that computes `tokens` of it is on its way.
    pub(crate) fn depart(&mut self, tokens: u32, emits: bool) {
        self.ahead += tokens;
        self.pending += u32::from(emits);
    }

    /// An iteration that computed `tokens` of it has come back.
    pub(crate) fn arrive(&mut self, tokens: u32, emits: bool, at: Nanos) {
        self.computed += tokens;
        self.ground(tokens, emits);
        if emits {
            self.emit(at);
        }
    }

    /// An iteration that computes `tokens` of it will not come back.
    pub(crate) fn ground(&mut self, tokens: u32, emits: bool) {
        self.ahead = self.ahead.saturating_sub(tokens);
        self.pending = self.pending.saturating_sub(u32::from(emits));
    }

    /// Forgets what was computed; the tokens produced so far stay, and those in flight will come.
    pub(crate) fn preempt(&mut self) {
        self.computed = 0;
        self.ahead = 0;
        self.blocks = 0;
        self.preemptions += 1;
    }

    pub(crate) fn completed(&self, tenant: TenantId) -> Completed {
        Completed {
            request: self.request,
            tenant,
            arrival: self.arrival,
            slo: self.slo,
            prompt: self.prompt,
            cached: self.cached.min(self.prompt),
            produced: self.produced,
            first_token: self.first_token,
            last_token: self.last_token,
            late: self.late,
            preemptions: self.preemptions,
        }
    }
}

/// A hash that no other block has, but for accidents of 64 bits: the finalizer of SplitMix64.
fn own_hash(request: u64, index: u32) -> u64 {
    let mut state = request.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(index) << 32 | 0x5bd1_e995);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence() -> Sequence {
        let slo = Slo { ttft: Nanos::ms(400), tpot: Nanos::ms(40) };
        Sequence::new(RequestId(0), Nanos::ms(100), Some(slo), 10, 5)
    }

    #[test]
    fn tokens_are_due_from_the_arrival() {
        let mut sequence = sequence();
        assert_eq!(sequence.next_due(), Nanos::ms(500));
        sequence.emit(Nanos::ms(450));
        assert_eq!(sequence.next_due(), Nanos::ms(540));
        assert_eq!(sequence.next_pace(), Nanos::ms(490), "the pace counts from the first token");
        assert_eq!(sequence.late, 0);
    }

    #[test]
    fn after_a_late_first_token_the_pace_counts_from_it() {
        let mut sequence = sequence();
        sequence.emit(Nanos::ms(900));
        assert_eq!((sequence.late, sequence.next_due()), (1, Nanos::ms(940)));
        sequence.emit(Nanos::ms(930));
        assert_eq!(sequence.late, 2, "the service level itself is not forgiven");
    }
}
