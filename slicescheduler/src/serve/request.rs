//! What users ask for, and what they get.

use std::fmt;

use slicescheduler_executor::kernels::Sampling;
use slicescheduler_gmg::units::Nanos;

/// Most tokens of an answer, unless said.
const MAX_TOKENS: u32 = 256;

/// A prompt, and how long its answer may be.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub(super) prompt: Vec<u32>,
    pub(super) max_tokens: u32,
    pub(super) stop_at: Option<u32>,
    pub(super) sampling: Sampling,
}

impl Request {
    /// Asks to go on after these tokens. The answer has 256 tokens at most unless
    /// [`max_tokens`](Self::max_tokens) says otherwise.
    pub fn prompt_tokens(tokens: &[u32]) -> Self {
        Self { prompt: tokens.to_vec(), max_tokens: MAX_TOKENS, stop_at: None, sampling: Sampling::GREEDY }
    }

    /// Ends the answer after `count` tokens at the latest.
    #[must_use]
    pub fn max_tokens(mut self, count: u32) -> Self {
        self.max_tokens = count;
        self
    }

    /// Chooses tokens as `sampling` says; without this the likeliest each time. The answer depends on
    /// the prompt, on this and its seed, and on nothing else.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Ends the answer with the first `token`, which is part of it. Replaces the model's own.
    #[must_use]
    pub fn stop_at(mut self, token: u32) -> Self {
        self.stop_at = Some(token);
        self
    }
}

/// One token of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// Which token of the vocabulary.
    pub id: u32,
    /// Its place in the answer, from 0.
    pub index: u32,
    /// When it was computed, by the scheduler's clock.
    pub at: Nanos,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}
