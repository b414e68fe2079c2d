//! What prompts begin with.

use slicescheduler_scheduler::batching::BlockHashes;

use super::rng::Seed;

/// The prompt as a chain of blocks: two requests whose first `n` blocks are equal share their
/// first `n * block_tokens` tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixBlocks {
    /// Tokens in a block; the last block of a prompt may be shorter.
    pub block_tokens: u32,
    /// One id per block, in prompt order.
    pub blocks: Box<[u64]>,
}

impl PrefixBlocks {
    /// The block in which the token at `position` lies; none beyond the last.
    pub fn at(&self, position: u32) -> Option<u64> {
        self.blocks.get((position / self.block_tokens.max(1)) as usize).copied()
    }

    /// The same prompt, of `prompt` tokens, in blocks of `block_tokens` tokens: the chained hash of each full one.
    ///
    /// Block `k` covers the tokens from `k * block_tokens` to `(k + 1) * block_tokens`. It is equal in two prompts if
    /// the blocks here are that its tokens lie in, and all before. So where prompts part within a block here,
    /// all of it counts as different; tokens beyond the last block are the prompt's own. O(blocks).
    ///
    /// ```
    /// use slicescheduler::workload::PrefixBlocks;
    ///
    /// let of = |blocks: &[u64]| PrefixBlocks { block_tokens: 512, blocks: blocks.into() };
    /// // Of 1000 tokens, 62 blocks of 16 are full; the first 32 lie in the first block of 512.
    /// let (one, other) = (of(&[7, 8]).hashes(1000, 16), of(&[7, 9]).hashes(1000, 16));
    /// assert_eq!((one.len(), one.common(&other)), (62, 32));
    /// ```
    pub fn hashes(&self, prompt: u32, block_tokens: u32) -> BlockHashes {
        let (own, size) = (u64::from(self.block_tokens.max(1)), u64::from(block_tokens.max(1)));
        let known = u64::from(prompt).min(own.saturating_mul(self.blocks.len() as u64));
        let (mut hash, mut next) = (Seed(own), 0);
        let hashes = (1..=known / size).map(|block| {
            // Those in which the block ends or that end in it, as far as they are not in the hash already.
            let end = (block * size).div_ceil(own) as usize;
            while let Some(&id) = self.blocks.get(next).filter(|_| next < end) {
                (hash, next) = (hash.derive(id), next + 1);
            }
            hash = hash.derive(block);
            hash.0
        });
        BlockHashes::new(hashes.collect::<Vec<u64>>())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Oracle: a block is equal in two prompts if all blocks of the trace up to its last token are.
        #[test]
        fn blocks_are_equal_as_far_as_those_of_the_trace_are(
            one in prop::collection::vec(0u64..3, 0..6),
            other in prop::collection::vec(0u64..3, 0..6),
            (own, size) in (1u32..20, 1u32..20),
            prompts in (0u32..120, 0u32..120),
        ) {
            let of = |ids: &[u64], prompt| PrefixBlocks { block_tokens: own, blocks: ids.into() }.hashes(prompt, size);
            let (a, b) = (of(&one, prompts.0), of(&other, prompts.1));
            let known = |ids: &[u64], prompt: u32| prompt.min(own * ids.len() as u32) / size;
            prop_assert_eq!((a.len(), b.len()), (known(&one, prompts.0) as usize, known(&other, prompts.1) as usize));
            let alike = one.iter().zip(&other).take_while(|(x, y)| x == y).count() as u32 * own;
            let expected = (alike / size).min(a.len() as u32).min(b.len() as u32);
            prop_assert_eq!(a.common(&b) as u32, expected);
        }
    }
}
