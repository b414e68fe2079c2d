//! How a tenant batches.

/// How a tenant's replicas batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchOptions {
    /// Most tokens that one iteration computes.
    pub token_budget: u32,
    /// Most sequences that run at a time on one replica.
    pub max_sequences: u32,
    /// Tokens that one KV block holds.
    pub block_tokens: u32,
    /// Blocks that must stay free per running sequence when a waiting one is admitted. Spares
    /// preemptions when answers grow; vLLM's own rule is zero.
    pub growth_reserve: u32,
    /// Requests that are visible to batching at a time; the rest of a backlog waits outside.
    pub window: u32,
    /// Most tokens of one prompt that an iteration computes; zero for no such limit.
    pub long_prefill: u32,
    /// A waiting sequence is admitted only if there are blocks for all of its tokens, not just for
    /// those of its first chunk.
    pub reserve_prompt: bool,
    /// A prompt is computed at once or not yet, and each of its tokens sees all others: the rule of
    /// encoders, whose attention goes both ways. One that is longer than the token budget waits for
    /// ever.
    pub whole_prompts: bool,
    /// Iterations of a replica that are formed before the one in flight has ended. Zero forms the
    /// next one from what came out of the last; one is vLLM's asynchronous scheduling.
    pub ahead: u32,
    /// Sequences that begin alike hold the same KV blocks, as far as the pool that a plan is made for has them:
    /// [`Prefixes`](crate::batching::Prefixes). No effect with [`whole_prompts`](Self::whole_prompts), nor with
    /// iterations formed [`ahead`](Self::ahead).
    pub prefix_caching: bool,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self {
            token_budget: 2048,
            max_sequences: 256,
            block_tokens: 16,
            growth_reserve: 3,
            window: u32::MAX,
            long_prefill: 0,
            reserve_prompt: true,
            whole_prompts: false,
            ahead: 0,
            prefix_caching: false,
        }
    }
}

/// Options that nothing can be batched with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// A quantity that must be above zero is zero.
    #[error("{option} is 0: expected at least 1")]
    Zero {
        /// Which one.
        option: &'static str,
    },
    /// An iteration cannot hold one token of every running sequence.
    #[error("token_budget {token_budget} is below max_sequences {max_sequences}: expected room for a token of each")]
    Budget {
        /// The budget.
        token_budget: u32,
        /// The sequences.
        max_sequences: u32,
    },
    /// A size of a captured graph that is not above the one before it.
    #[error("captured size {size} follows {before}: expected ascending sizes above 0")]
    CaptureSize {
        /// The size.
        size: u32,
        /// The one before it, or zero.
        before: u32,
    },
}

impl BatchOptions {
    /// The values of vLLM 0.19's engine: 2048 tokens, 256 sequences, blocks of 16 tokens, no reserve
    /// for growth, full prompts reserved, scheduled one iteration ahead.
    pub fn vllm() -> Self {
        Self { growth_reserve: 0, ahead: 1, ..Self::default() }
    }

    /// Tells whether batching can make progress with these options.
    ///
    /// # Errors
    /// If a quantity is zero that must not be, or the budget cannot hold a token of every sequence.
    pub fn check(&self) -> Result<(), OptionsError> {
        let quantities = [
            ("token_budget", self.token_budget),
            ("max_sequences", self.max_sequences),
            ("block_tokens", self.block_tokens),
            ("window", self.window),
        ];
        if let Some(&(option, _)) = quantities.iter().find(|(_, value)| *value == 0) {
            return Err(OptionsError::Zero { option });
        }
        if self.token_budget < self.max_sequences {
            let Self { token_budget, max_sequences, .. } = *self;
            return Err(OptionsError::Budget { token_budget, max_sequences });
        }
        Ok(())
    }

    /// `tokens` within the limit on the tokens of one prompt.
    pub(crate) fn chunk(&self, tokens: u32) -> u32 {
        if self.long_prefill > 0 { tokens.min(self.long_prefill) } else { tokens }
    }
}

/// The batch sizes that an engine has captured graphs for. An iteration with fewer tokens is padded
/// to the next size; one with more tokens than the largest size runs as it is.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CaptureSizes {
    sizes: Vec<u32>,
}

impl CaptureSizes {
    /// Sizes in ascending order.
    ///
    /// # Errors
    /// If they are not ascending or not above zero.
    pub fn new(sizes: Vec<u32>) -> Result<Self, OptionsError> {
        let mut before = 0;
        for &size in &sizes {
            if size <= before {
                return Err(OptionsError::CaptureSize { size, before });
            }
            before = size;
        }
        Ok(Self { sizes })
    }

    /// vLLM's own choice for a replica of `max_sequences` sequences: 1, 2, 4, then steps of 8 up to
    /// 256 and of 16 beyond, up to twice the sequences or 512, whichever is less.
    pub fn vllm(max_sequences: u32) -> Self {
        let largest = max_sequences.saturating_mul(2).min(512);
        let steps = [1, 2, 4].into_iter().chain((8..256).step_by(8)).chain((256..=512).step_by(16));
        Self { sizes: steps.take_while(|&size| size <= largest).collect() }
    }

    /// The tokens that an iteration of `tokens` tokens computes. O(log sizes).
    pub fn padded(&self, tokens: u32) -> u32 {
        let next = self.sizes.partition_point(|&size| size < tokens);
        self.sizes.get(next).copied().unwrap_or(tokens)
    }

    /// The sizes.
    pub fn sizes(&self) -> &[u32] {
        &self.sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_cannot_make_progress_are_refused() {
        assert_eq!(BatchOptions::vllm().check(), Ok(()));
        let none = BatchOptions { block_tokens: 0, ..BatchOptions::default() };
        assert_eq!(none.check(), Err(OptionsError::Zero { option: "block_tokens" }));
        let narrow = BatchOptions { token_budget: 16, ..BatchOptions::default() };
        assert_eq!(narrow.check(), Err(OptionsError::Budget { token_budget: 16, max_sequences: 256 }));
    }

    /// The sizes are those that vLLM 0.19 wrote into the metadata of a run with 256 sequences.
    #[test]
    fn iterations_are_padded_to_the_sizes_that_vllm_captures() {
        let sizes = CaptureSizes::vllm(256);
        assert_eq!(sizes.sizes().len(), 51);
        assert_eq!(&sizes.sizes()[..6], [1, 2, 4, 8, 16, 24]);
        assert_eq!(&sizes.sizes()[33..37], [248, 256, 272, 288]);
        assert_eq!((sizes.padded(3), sizes.padded(17), sizes.padded(257), sizes.padded(512)), (4, 24, 272, 512));
        assert_eq!(sizes.padded(513), 513, "beyond the largest graph nothing is padded");
        assert_eq!(CaptureSizes::vllm(128).sizes().last(), Some(&256));
        assert_eq!(CaptureSizes::default().padded(5), 5);
    }

    #[test]
    fn captured_sizes_ascend() {
        assert_eq!(CaptureSizes::new(vec![1, 4, 4]), Err(OptionsError::CaptureSize { size: 4, before: 4 }));
        assert_eq!(CaptureSizes::new(vec![0]), Err(OptionsError::CaptureSize { size: 0, before: 0 }));
    }
}
