//! What a mixed batch asks of attention.
//!
//! A binding says how many tokens, sequences, context tokens and pairs of tokens a batch has, not
//! how they are divided among its sequences. For a batch of decoding sequences and at most one
//! chunk of a prompt the division follows from these sums; other batches are described by an
//! equal number of equal prompts with the same tokens and pairs.

use std::sync::Arc;

use slicescheduler_gmg::shape::{Binding, CONTEXT, PAIRS, SEQUENCES, TOKENS};

use super::Confidence;
use crate::profile::{Reading, Table};

/// Sequences that decode one token each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decoding {
    /// The number of sequences.
    pub batch: f64,
    /// Their mean context, the new token included.
    pub context: f64,
}

/// Prompts, or chunks of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prompts {
    /// The number of prompts.
    pub batch: f64,
    /// New tokens of each.
    pub length: f64,
    /// Tokens of each that were cached before.
    pub cached: f64,
}

/// The parts of a batch, as far as attention is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BatchParts {
    /// What decodes.
    pub decoding: Option<Decoding>,
    /// What is read in.
    pub prompts: Option<Prompts>,
}

impl BatchParts {
    /// The parts of a batch with the sums of `binding`.
    ///
    /// A chunk of `n` tokens after `c` cached ones has `n * c + n * (n + 1) / 2` pairs and `c + n`
    /// tokens of context; a decoding sequence has as many pairs as context. So pairs equal context
    /// if and only if everything decodes, and with `d` decoding sequences and one chunk, which has
    /// `n = tokens - d` tokens, `pairs - context = (n - 1) * (c + n) - n * (n - 1) / 2` gives its
    /// context. `d` is the number of sequences that emit a token, or one less if the chunk is the
    /// last of its prompt; the first of these that leaves every decoding sequence a context of at
    /// least one token is taken.
    pub fn of(binding: &Binding) -> Self {
        let [tokens, sequences, context, pairs] =
            [TOKENS, SEQUENCES, CONTEXT, PAIRS].map(|symbol| binding.value(symbol) as f64);
        if tokens == 0.0 {
            return Self::default();
        }
        if pairs <= context {
            return Self { decoding: Some(Decoding { batch: tokens, context: context / tokens }), prompts: None };
        }
        if context <= tokens {
            // Nothing is cached: whole prompts only.
            return Self { decoding: None, prompts: Some(equal_prompts(tokens, pairs)) };
        }
        for decoding in [sequences, sequences - 1.0] {
            let length = tokens - decoding;
            if decoding < 0.0 || length < 2.0 {
                continue;
            }
            let end = (pairs - context) / (length - 1.0) + length * 0.5;
            let rest = context - end;
            if end + 0.5 < length || rest + 0.5 < decoding {
                continue;
            }
            let prompts = Prompts { batch: 1.0, length, cached: (end - length).max(0.0) };
            let decoding = (decoding > 0.0).then(|| Decoding { batch: decoding, context: rest / decoding });
            return Self { decoding, prompts: Some(prompts) };
        }
        Self { decoding: None, prompts: Some(equal_prompts(tokens, pairs)) }
    }
}

/// Prompts of equal length with these tokens and pairs in all. With cached tokens there are more
/// pairs than `tokens` alone can have; then it is one prompt, longer than its tokens. Fewer pairs than
/// tokens are of no real batch; they are shared by prompts that are shorter than a token.
fn equal_prompts(tokens: f64, pairs: f64) -> Prompts {
    let length = (2.0 * pairs / tokens - 1.0).max(1.0);
    let batch = (tokens / length).max(1.0);
    Prompts { batch, length: length_of(pairs / batch), cached: 0.0 }
}

/// The length of the prompt that has `pairs` pairs: `length * (length + 1) / 2` of them.
fn length_of(pairs: f64) -> f64 {
    ((1.0 + 8.0 * pairs).sqrt() - 1.0) * 0.5
}

/// The tables of one attention operator: heads, head size and cache type are known.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionTables {
    /// Over `batch` and `context`.
    pub(crate) decode: Arc<Table>,
    /// Over `batch` and `length`, without cached tokens; or over `length` and `cached`, one prompt
    /// at a time.
    pub(crate) prompts: PromptTable,
}

/// What prompts were measured by.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PromptTable {
    Whole(Arc<Table>),
    Chunks(Arc<Table>),
}

impl AttentionTables {
    /// The duration for a batch with the sums of `binding`: that of its decoding sequences and
    /// that of its prompts, one after the other.
    pub fn read(&self, binding: &Binding) -> Reading {
        self.read_parts(BatchParts::of(binding))
    }

    /// [`read`](Self::read) of a batch whose parts are known.
    pub fn read_parts(&self, parts: BatchParts) -> Reading {
        let decode = |point: [f64; 2]| self.decode.read(&point);
        let prompts = |point: [f64; 2]| match &self.prompts {
            PromptTable::Whole(table) | PromptTable::Chunks(table) => table.read(&point),
        };
        read(parts, matches!(self.prompts, PromptTable::Chunks(_)), decode, prompts)
    }
}

/// The duration of a batch, given tables of decoding and of prompts. `chunks` says by what prompts
/// were measured. Where whole prompts were measured, a chunk counts as the whole prompt with as
/// many pairs.
pub(crate) fn read(
    parts: BatchParts,
    chunks: bool,
    decode: impl Fn([f64; 2]) -> Reading,
    prompts: impl Fn([f64; 2]) -> Reading,
) -> Reading {
    let decoding = parts.decoding.map(|part| decode([part.batch, part.context]));
    let read_in = parts.prompts.map(|part| {
        if chunks {
            let one = prompts([part.length, part.cached]);
            return Reading { nanos: one.nanos * part.batch, ..one };
        }
        if part.cached == 0.0 {
            return prompts([part.batch, part.length]);
        }
        let pairs = part.length * part.cached + part.length * (part.length + 1.0) * 0.5;
        let one = prompts([part.batch, length_of(pairs)]);
        Reading { confidence: one.confidence.max(Confidence::Interpolated), ..one }
    });
    match (decoding, read_in) {
        (Some(a), Some(b)) => Reading { nanos: a.nanos + b.nanos, confidence: a.confidence.max(b.confidence) },
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => Reading { nanos: 0.0, confidence: Confidence::Measured },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_batch_that_decodes_has_its_mean_context() {
        let mut batch = Binding::new();
        [99, 199, 299].iter().for_each(|&cached| batch.add_chunk(1, cached, true));
        let decoding = Some(Decoding { batch: 3.0, context: 200.0 });
        assert_eq!(BatchParts::of(&batch), BatchParts { decoding, prompts: None });
    }

    #[test]
    fn whole_prompts_of_equal_length_are_themselves() {
        let mut batch = Binding::new();
        (0..4).for_each(|_| batch.add_chunk(512, 0, true));
        let prompts = Some(Prompts { batch: 4.0, length: 512.0, cached: 0.0 });
        assert_eq!(BatchParts::of(&batch), BatchParts { decoding: None, prompts });
    }

    #[test]
    fn an_empty_batch_has_no_parts() {
        assert_eq!(BatchParts::of(&Binding::new()), BatchParts::default());
    }

    proptest! {
        #[test]
        fn one_chunk_among_decoding_sequences_is_found(
            contexts in prop::collection::vec(1u64..5000, 0..40),
            (length, cached) in (64u64..4096, 0u64..20_000),
            last in any::<bool>(),
        ) {
            let mut batch = Binding::new();
            contexts.iter().for_each(|&context| batch.add_chunk(1, context, true));
            batch.add_chunk(length, cached, last);
            let parts = BatchParts::of(&batch);
            let prompts = parts.prompts.unwrap();
            // Whether the chunk is the last one cannot always be told: it may count as one more
            // or one less decoding sequence.
            let decoding = parts.decoding.map_or(0.0, |part| part.batch);
            prop_assert!((decoding - contexts.len() as f64).abs() <= 1.0, "{parts:?}");
            prop_assert!((prompts.length - length as f64).abs() <= 1.0, "{parts:?}");
            let pairs = |n: f64, c: f64| n * c + n * (n + 1.0) * 0.5;
            let found = pairs(prompts.length, prompts.cached) * prompts.batch;
            let true_pairs = pairs(length as f64, cached as f64);
            prop_assert!((found / true_pairs - 1.0).abs() < 0.05, "{parts:?}: {found} pairs instead of {true_pairs}");
        }

        #[test]
        fn every_binding_has_finite_parts(values in prop::array::uniform4(prop_oneof![0u64..50, any::<u64>()])) {
            let parts = BatchParts::of(&Binding::iteration(values[0], values[1], values[2], values[3]));
            let fine = |value: f64| value.is_finite() && value >= 0.0;
            prop_assert!(parts.decoding.is_none_or(|part| fine(part.batch) && fine(part.context)));
            prop_assert!(parts.prompts.is_none_or(|part| fine(part.batch) && fine(part.length) && fine(part.cached)));
        }
    }
}
