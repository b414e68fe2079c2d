//! The rule: what the next iteration of one replica computes.

use std::collections::VecDeque;

use slicescheduler_gmg::job::{KvGrowth, Row};
use slicescheduler_gmg::plan::BatchLimits;
use slicescheduler_gmg::shape::{Binding, CONTEXT, PAIRS, SEQUENCES, TOKENS};
use slicescheduler_gmg::units::Nanos;

use crate::batching::prefix_cache::{Draft, Found};
use crate::batching::{BatchOptions, Prefixes, Sequence};

/// A planned iteration. Reused from one plan to the next, so planning does not allocate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Iteration {
    /// What it computes, in the order of the running list, then of the waiting list.
    pub rows: Vec<Row>,
    /// Blocks that it needs.
    pub growth: Vec<KvGrowth>,
    /// Sequences at the end of the running list that lose their blocks.
    pub preempted: u32,
    /// Sequences at the front of the waiting list that are passed over.
    pub passed_over: u32,
    /// Sequences that come from the waiting list, after those that are passed over.
    pub admitted: u32,
    /// Blocks that each admitted sequence finds in the prefix cache.
    pub found: Vec<u32>,
    /// True if a waiting sequence stayed out for want of blocks.
    pub short_of_blocks: bool,
    /// Rows that belong to the computation of a prompt.
    pub prefills: u32,
    /// Tokens computed.
    pub tokens: u32,
    /// Rows that give an output token.
    pub emits: u32,
    /// Tokens of KV cache read.
    pub context: u64,
    /// Query-key pairs.
    pub pairs: u64,
    /// Blocks in [`growth`](Self::growth).
    pub new_blocks: u32,
    /// The earliest due time among the rows.
    pub due: Nanos,
    /// The earliest due time among the rows that are one token of an answer; [`Nanos::MAX`] if none is.
    pub answers_due: Nanos,
    /// The earliest [pace](Sequence::next_pace) among the rows.
    pub pace: Nanos,
}

impl Iteration {
    /// True if there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// True if every row is one token of an answer.
    pub fn is_decode_only(&self) -> bool {
        self.prefills == 0
    }

    /// The dims of the iteration's job.
    pub fn binding(&self) -> Binding {
        binding(self.tokens, self.emits, self.context, self.pairs)
    }

    fn reset(&mut self) {
        let (mut rows, mut growth) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.growth));
        let mut found = std::mem::take(&mut self.found);
        rows.clear();
        growth.clear();
        found.clear();
        *self =
            Self { rows, growth, found, due: Nanos::MAX, answers_due: Nanos::MAX, pace: Nanos::MAX, ..Self::default() };
    }

    /// Adds `tokens` tokens of `sequence` from `position` on; with `whole`, each sees all of them.
    fn push(&mut self, sequence: &Sequence, position: u32, tokens: u32, blocks: u32, whole: bool) {
        let end = position + tokens;
        let emits = end == sequence.tokens() + sequence.pending;
        self.rows.push(Row { request: sequence.request, position, tokens, emits });
        if blocks > 0 {
            self.growth.push(KvGrowth { request: sequence.request, blocks });
            self.new_blocks += blocks;
        }
        self.tokens += tokens;
        self.emits += u32::from(emits);
        self.prefills += u32::from(!sequence.is_decoding());
        self.context += u64::from(end);
        let (new, old) = (u64::from(tokens), u64::from(position));
        self.pairs += if whole { new * new } else { new * old + new * (new + 1) / 2 };
        self.due = self.due.min(sequence.next_due());
        self.pace = self.pace.min(sequence.next_pace());
        if sequence.is_decoding() {
            self.answers_due = self.answers_due.min(sequence.next_due());
        }
    }
}

/// The dims of the job of an iteration: tokens computed, rows that emit one, tokens of cache read, query-key pairs.
pub(super) fn binding(tokens: u32, emits: u32, context: u64, pairs: u64) -> Binding {
    Binding::default()
        .bind(TOKENS, u64::from(tokens))
        .bind(SEQUENCES, u64::from(emits))
        .bind(CONTEXT, context)
        .bind(PAIRS, pairs)
}

/// Plans the next iteration of a replica into `iteration`, without changing anything. `prefixes` are what
/// its sequences find, if they share blocks; the free blocks of a [pool of its own](super::PrefixCache) bound the
/// plan as well as the limits do. O(running + admitted + blocks found).
pub fn plan_iteration(
    running: &[Sequence],
    waiting: &VecDeque<Sequence>,
    prefixes: Option<Prefixes<'_>>,
    options: &BatchOptions,
    limits: BatchLimits,
    iteration: &mut Iteration,
) {
    iteration.reset();
    let mut tokens_left = limits.tokens;
    let mut blocks_left = prefixes.map_or(limits.new_blocks, |prefixes| prefixes.bounded(limits.new_blocks));
    let mut draft = prefixes.map(Draft::of);
    let mut end = running.len();
    let mut index = 0;
    while index < end && tokens_left > 0 {
        let sequence = &running[index];
        let tokens = options.chunk(sequence.remaining_ahead()).min(tokens_left);
        let needed = Sequence::blocks_for(sequence.position() + tokens, options.block_tokens);
        let blocks = needed.saturating_sub(sequence.blocks);
        while blocks > blocks_left && end > index {
            end -= 1;
            let lost = &running[end];
            let gone = running[end + 1..].iter();
            let freed = prefixes.map_or(lost.blocks, |prefixes| prefixes.released_by(lost.request, gone));
            blocks_left = blocks_left.saturating_add(freed);
            iteration.preempted += 1;
        }
        if end == index {
            break;
        }
        if tokens > 0 {
            blocks_left -= blocks;
            tokens_left -= tokens;
            if let Some(draft) = &mut draft {
                let full = |tokens: u32| tokens.min(sequence.tokens()) / options.block_tokens.max(1);
                draft.advance(sequence, blocks, full(sequence.position()), full(sequence.position() + tokens));
            }
            iteration.push(sequence, sequence.position(), tokens, blocks, false);
        }
        index += 1;
    }
    if iteration.preempted > 0 {
        return;
    }
    let late = late_prefix(waiting, limits.not_due_before);
    iteration.passed_over = late as u32;
    for (live, sequence) in (running.len() as u32..).zip(waiting.iter().skip(late)) {
        if tokens_left == 0 || live >= limits.sequences || sequence.pending > 0 {
            break;
        }
        let found = draft.as_ref().map_or(Found::default(), |draft| draft.find(sequence, options.block_tokens));
        let cached = found.blocks * options.block_tokens;
        let tokens = options.chunk(sequence.tokens() - cached).min(tokens_left);
        if options.whole_prompts && tokens < sequence.tokens() {
            break;
        }
        let end = cached + tokens;
        let reserved = if options.reserve_prompt { sequence.tokens() } else { end };
        let whole = Sequence::blocks_for(reserved, options.block_tokens) - found.blocks + found.free;
        let reserve = if live > 0 { options.growth_reserve.saturating_mul(live + 1) } else { 0 };
        if whole.saturating_add(reserve).saturating_add(limits.keep_free) > blocks_left {
            iteration.short_of_blocks = true;
            break;
        }
        let blocks = Sequence::blocks_for(end, options.block_tokens) - found.blocks;
        blocks_left -= blocks + found.free;
        tokens_left -= tokens;
        if let Some(draft) = &mut draft {
            draft.admit(sequence, found, blocks, end / options.block_tokens.max(1));
        }
        iteration.admitted += 1;
        iteration.found.push(found.blocks);
        iteration.push(sequence, cached, tokens, blocks, options.whole_prompts);
    }
}

/// Sequences at the front of the list whose next token was due before `time`. The list is in the order
/// of arrival, so this is nearly all of them where all have one service level; a preempted sequence that has
/// tokens already, or one with more time than others, may hide some. O(late).
pub(crate) fn late_prefix(waiting: &VecDeque<Sequence>, time: Nanos) -> usize {
    waiting.iter().take_while(|sequence| sequence.next_due() < time).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use slicescheduler_gmg::id::RequestId;
    use slicescheduler_gmg::tenant::Slo;

    fn options() -> BatchOptions {
        BatchOptions {
            token_budget: 64,
            max_sequences: 8,
            block_tokens: 4,
            growth_reserve: 0,
            ..BatchOptions::default()
        }
    }

    fn limits(tokens: u32, new_blocks: u32) -> BatchLimits {
        BatchLimits { tokens, sequences: 8, new_blocks, keep_free: 0, not_due_before: Nanos::ZERO }
    }

    fn sequence(id: u64, prompt: u32, computed: u32, produced: u32) -> Sequence {
        let blocks = computed.div_ceil(4);
        Sequence { computed, produced, blocks, ..Sequence::new(RequestId(id), Nanos::ZERO, None, prompt, 100) }
    }

    fn plan(running: &[Sequence], waiting: Vec<Sequence>, limits: BatchLimits) -> Iteration {
        let mut iteration = Iteration::default();
        plan_iteration(running, &waiting.into(), None, &options(), limits, &mut iteration);
        iteration
    }

    #[test]
    fn decodes_go_first_and_a_prompt_is_cut_to_the_budget() {
        let running = [sequence(0, 8, 8, 1)];
        let plan = plan(&running, vec![sequence(1, 20, 0, 0)], limits(11, 100));
        let row = |id, position, tokens, emits| Row { request: RequestId(id), position, tokens, emits };
        assert_eq!(plan.rows, [row(0, 8, 1, true), row(1, 0, 10, false)]);
        assert_eq!((plan.tokens, plan.emits, plan.context), (11, 1, 9 + 10));
        assert_eq!(plan.pairs, 9 + 55, "one query on 9 keys, ten queries on 1 to 10 keys");
        assert_eq!(plan.new_blocks, 1 + 3);
    }

    #[test]
    fn whole_prompts_are_not_cut_and_their_tokens_see_all_others() {
        let options = BatchOptions { whole_prompts: true, ..options() };
        let (mut iteration, waiting) = (Iteration::default(), vec![sequence(0, 7, 0, 0), sequence(1, 5, 0, 0)]);
        plan_iteration(&[], &waiting.into(), None, &options, limits(11, 100), &mut iteration);
        assert_eq!((iteration.rows.len(), iteration.tokens, iteration.emits), (1, 7, 1));
        assert_eq!(iteration.pairs, 49);
    }

    #[test]
    fn an_iteration_for_those_in_time_passes_over_the_late() {
        let slo = Slo { ttft: Nanos::ms(10), tpot: Nanos::ms(1) };
        let waiting = (0..3).map(|id| Sequence::new(RequestId(id), Nanos::ms(id), Some(slo), 4, 100)).collect();
        let limits = BatchLimits { not_due_before: Nanos::ms(11), ..limits(64, 100) };
        let plan = plan(&[], waiting, limits);
        assert_eq!((plan.passed_over, plan.admitted), (1, 2));
        assert_eq!(plan.rows[0].request, RequestId(1));
    }

    #[test]
    fn the_youngest_is_preempted_when_blocks_run_out() {
        let running = [sequence(0, 8, 8, 1), sequence(1, 8, 8, 1), sequence(2, 8, 7, 0)];
        let plan = plan(&running, vec![sequence(3, 4, 0, 0)], limits(64, 0));
        assert_eq!(plan.preempted, 1);
        assert_eq!(plan.rows.len(), 2, "the blocks of the third serve the two before it");
        assert_eq!(plan.admitted, 0);
    }

    #[test]
    fn a_sequence_that_cannot_grow_at_all_is_preempted_itself() {
        let running = [sequence(0, 8, 8, 1)];
        let plan = plan(&running, vec![], limits(64, 0));
        assert_eq!((plan.preempted, plan.rows.len()), (1, 0));
    }

    #[test]
    fn a_prompt_that_does_not_fit_waits_and_says_so() {
        let plan = plan(&[], vec![sequence(0, 100, 0, 0), sequence(1, 4, 0, 0)], limits(64, 24));
        assert!(plan.is_empty() && plan.short_of_blocks, "first come, first served: nobody overtakes");
    }

    proptest! {
        #[test]
        fn limits_hold_and_rows_cover_no_token_twice(
            running in prop::collection::vec((1u32..40, 0u32..40, 0u32..3), 0..8),
            waiting in prop::collection::vec(1u32..60, 0..6),
            tokens in 0u32..80,
            blocks in 0u32..30,
        ) {
            let running: Vec<_> = running.iter().enumerate().map(|(id, &(prompt, computed, produced))| {
                let produced = if computed >= prompt { produced.max(1) } else { 0 };
                sequence(id as u64, prompt, computed.min(prompt + produced - 1), produced)
            }).collect();
            let waiting: Vec<_> = waiting.iter().enumerate().map(|(id, &prompt)| sequence(100 + id as u64, prompt, 0, 0)).collect();
            let iteration = plan(&running, waiting, limits(tokens, blocks));
            prop_assert!(iteration.tokens <= tokens);
            prop_assert_eq!(iteration.tokens, iteration.rows.iter().map(|row| row.tokens).sum::<u32>());
            let kept = running.len() - iteration.preempted as usize;
            let freed: u32 = running[kept..].iter().map(|sequence| sequence.blocks).sum();
            prop_assert!(iteration.new_blocks <= blocks + freed);
            prop_assert!(running.len() + iteration.admitted as usize <= 8 || iteration.admitted == 0);
            let mut ids: Vec<_> = iteration.rows.iter().map(|row| row.request).collect();
            prop_assert!(ids.is_sorted());
            ids.dedup();
            prop_assert_eq!(ids.len(), iteration.rows.len());
            for row in &iteration.rows {
                prop_assert!(row.tokens > 0);
                prop_assert!(running[kept..].iter().all(|lost| lost.request != row.request));
            }
        }
    }
}
