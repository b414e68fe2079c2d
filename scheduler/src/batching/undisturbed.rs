//! Iterations that nothing disturbs: the same sequences again and again, one token of each answer at a time.
//!
//! As long as nobody joins, ends or runs out of blocks, an iteration follows from the one before it without a plan. What
//! simulates long stretches of decoding takes them as one: it asks how many there are, gives each its time, and
//! says when their tokens came. Forecasts make the jobs of such iterations without a plan. Either way the state behind them
//! is the one that [`form`](Batcher::form) and [`complete`](Batcher::complete) would have left, iteration by iteration.

use std::collections::VecDeque;

use slicescheduler_gmg::id::{JobKey, ReplicaId};
use slicescheduler_gmg::job::{JobSpec, KvGrowth, Row};
use slicescheduler_gmg::plan::BatchLimits;
use slicescheduler_gmg::units::Nanos;

use crate::batching::iteration::binding;
use crate::batching::{BatchOptions, Batcher, ReplicaState, Sequence};

impl Batcher {
    /// How many iterations of a replica come one after the other, whatever their times are, each of which gives every
    /// running sequence one token of its answer and does nothing else, if nobody is entered meanwhile and no
    /// blocks of others are freed or taken. The last token of no sequence is among them.
    ///
    /// Never too many; fewer than there are, or none, where blocks are nearly used up, where somebody waits who might be
    /// admitted, with a prefix cache, and while an iteration is in flight. O(running).
    pub fn undisturbed(&self, replica: u32, limits: BatchLimits) -> u32 {
        let state = self.replicas().get(replica as usize);
        state.map_or(0, |state| state.undisturbed(self.waiting(), self.options(), self.capped(limits)))
    }

    /// As many [undisturbed](Self::undisturbed) iterations of a replica are over as there are `times`, the instants of
    /// their tokens. O(running), and for each sequence with a service level O(times).
    pub fn pass(&mut self, replica: u32, times: &[Nanos]) {
        let block_tokens = self.options().block_tokens;
        if let Some(state) = self.replica_mut(replica) {
            state.pass(times, block_tokens);
        }
    }
}

impl ReplicaState {
    /// As [`Batcher::undisturbed`], in limits that the options do not narrow any more. O(running).
    pub(super) fn undisturbed(&self, waiting: &VecDeque<Sequence>, options: &BatchOptions, limits: BatchLimits) -> u32 {
        let running = self.running.len() as u32;
        let nobody_joins = waiting.is_empty() || running >= limits.sequences;
        if self.is_in_flight()
            || self.cache.is_some()
            || options.prefix_caching
            || running > limits.tokens
            || !nobody_joins
        {
            return 0;
        }
        // A sequence takes at most one block in as many iterations as a block has tokens.
        let by_blocks = limits.new_blocks.checked_div(running).unwrap_or(0).saturating_mul(options.block_tokens.max(1));
        let before_last = |sequence: &Sequence| match sequence.is_decoding() && sequence.remaining() == 1 {
            true => sequence.max_output.saturating_sub(sequence.produced).saturating_sub(1),
            false => 0,
        };
        self.running.iter().map(before_last).min().unwrap_or(0).min(by_blocks)
    }

    /// The iteration in flight comes back at `at`, and one that nothing disturbs goes on its way. O(running).
    pub(super) fn go_on(&mut self, id: ReplicaId, at: Nanos, block_tokens: u32) -> JobSpec {
        let (mut context, mut growth) = (0, Vec::new());
        let next = |sequence: &mut Sequence| {
            // As much is on its way as was before.
            sequence.computed += 1;
            sequence.emit(at);
            let end = sequence.computed + 1;
            context += u64::from(end);
            if end > sequence.blocks.saturating_mul(block_tokens) {
                let blocks = Sequence::blocks_for(end, block_tokens).saturating_sub(sequence.blocks);
                sequence.blocks += blocks;
                growth.push(KvGrowth { request: sequence.request, blocks });
            }
            Row { request: sequence.request, position: sequence.computed, tokens: 1, emits: true }
        };
        let rows: Vec<Row> = self.running.iter_mut().map(next).collect();
        let key = JobKey { tenant: id.tenant.0, replica: id.index, iteration: self.iteration };
        self.iteration += 1;
        let count = rows.len() as u32;
        // One query each, on as many keys as there are tokens.
        JobSpec { key, binding: binding(count, count, context, context), rows, growth, ..JobSpec::of(self.model) }
    }

    fn pass(&mut self, times: &[Nanos], block_tokens: u32) {
        let count = times.len() as u32;
        self.iteration += u64::from(count);
        for sequence in &mut self.running {
            sequence.computed += count;
            sequence.blocks = sequence.blocks.max(Sequence::blocks_for(sequence.computed, block_tokens));
            match (sequence.slo, times.last()) {
                (None, Some(&last)) => (sequence.produced, sequence.last_token) = (sequence.produced + count, last),
                _ => times.iter().for_each(|&at| sequence.emit(at)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use slicescheduler_gmg::id::{DeviceId, ModelId, RequestId, TenantId};
    use slicescheduler_gmg::plan::{Continuation, Ended};
    use slicescheduler_gmg::tenant::Slo;

    /// Forms an iteration and completes it a millisecond later; `known` are the lengths of the answers.
    fn iterate(batcher: &mut Batcher, limits: BatchLimits, at: Nanos) -> Option<Vec<(u64, u32, u32, bool)>> {
        let spec = batcher.form(0, limits, &mut Vec::new())?;
        let produced = |id: RequestId| batcher.replicas()[0].running().iter().find(|s| s.request == id);
        let ends = |id: RequestId| produced(id).is_some_and(|s| s.produced + 1 >= s.max_output);
        let emits = spec.rows.iter().filter(|row| row.emits);
        let ended = emits.filter(|row| ends(row.request)).map(|row| Ended { request: row.request, produced: 0 });
        let ended: Vec<_> = ended.collect();
        batcher.complete(&spec, &ended, at, &mut Vec::new());
        Some(spec.rows.iter().map(|row| (row.request.0, row.position, row.tokens, row.emits)).collect())
    }

    fn limits(batcher: &Batcher, blocks: u32) -> BatchLimits {
        let new_blocks = blocks.saturating_sub(batcher.replicas()[0].blocks());
        BatchLimits { tokens: 12, sequences: 5, new_blocks, keep_free: 0, not_due_before: Nanos::ZERO }
    }

    proptest! {
        /// Differential: iterations that are passed at once, against the same ones formed and completed.
        #[test]
        fn passing_iterations_equals_forming_each_of_them(
            wants in prop::collection::vec((1u32..30, 1u32..40, any::<bool>(), 0u32..60), 1..12),
            blocks in 12u32..80,
            block_tokens in 1u32..5,
            reserve_prompt in any::<bool>(),
        ) {
            let options = BatchOptions { block_tokens, growth_reserve: 0, reserve_prompt, ..BatchOptions::default() };
            let mut passed = Batcher::new(TenantId(0), options);
            passed.add_replica(ModelId(0), DeviceId(0));
            let mut arrivals: Vec<_> = (0u64..).zip(wants).filter(|(_, (prompt, output, ..))| {
                (prompt + output).div_ceil(block_tokens) <= blocks
            }).collect();
            arrivals.sort_by_key(|(_, want)| std::cmp::Reverse(want.3));
            let (mut clock, mut stretches) = (0, 0);
            loop {
                while let Some((id, (prompt, output, has_slo, _))) = arrivals.pop_if(|(_, want)| u64::from(want.3) <= clock) {
                    let slo = has_slo.then_some(Slo { ttft: Nanos::ms(5), tpot: Nanos(1_100_000) });
                    passed.enter(Sequence::new(RequestId(id), Nanos::ms(clock), slo, prompt, output));
                }
                let room = limits(&passed, blocks);
                let undisturbed = passed.undisturbed(0, room);
                if undisturbed > 0 {
                    let mut formed = passed.clone();
                    let start: Vec<_> = formed.replicas()[0].running().iter().map(|s| (s.request.0, s.computed)).collect();
                    let times: Vec<_> = (0..undisturbed).map(|k| Nanos::ms(clock + u64::from(k) + 1)).collect();
                    for (k, &at) in (0..).zip(&times) {
                        let room = limits(&formed, blocks);
                        let rows = iterate(&mut formed, room, at);
                        let expected: Vec<_> = start.iter().map(|&(id, computed)| (id, computed + k, 1, true)).collect();
                        prop_assert_eq!(rows, Some(expected));
                    }
                    passed.pass(0, &times);
                    let of = |batcher: &Batcher| {
                        let state = &batcher.replicas()[0];
                        (state.running().to_vec(), state.blocks(), state.iteration, batcher.waiting_tokens())
                    };
                    prop_assert_eq!(of(&passed), of(&formed));
                    (clock, stretches) = (clock + u64::from(undisturbed), stretches + 1);
                    continue;
                }
                match iterate(&mut passed, room, Nanos::ms(clock + 1)) {
                    None if arrivals.is_empty() => break,
                    _ => clock += 1,
                }
                prop_assert!(clock < 10_000, "somebody never ends");
            }
            prop_assert!(stretches > 0 || passed.waiting().is_empty());
        }
    }

    proptest! {
        /// Differential: a forecast, which plans only what is disturbed, against batching, which plans everything.
        #[test]
        fn a_forecast_makes_the_jobs_that_batching_forms(
            wants in prop::collection::vec((1u32..30, 1u32..40, any::<bool>()), 1..10),
            blocks in 12u32..80,
            block_tokens in 1u32..5,
        ) {
            let options = BatchOptions { block_tokens, growth_reserve: 0, ..BatchOptions::default() };
            let mut batcher = Batcher::new(TenantId(0), options);
            batcher.add_replica(ModelId(0), DeviceId(0));
            for (id, (prompt, output, has_slo)) in (0u64..).zip(wants) {
                if (prompt + output).div_ceil(block_tokens) <= blocks {
                    let slo = has_slo.then_some(Slo { ttft: Nanos::ms(5), tpot: Nanos(1_100_000) });
                    batcher.enter(Sequence::new(RequestId(id), Nanos::ZERO, slo, prompt, output));
                }
            }
            let room = limits(&batcher, blocks);
            let mut forecast = batcher.forecast(0, room, usize::MAX).unwrap();
            let mut last = JobSpec { key: JobKey { tenant: 7, ..JobKey::default() }, ..JobSpec::of(ModelId(0)) };
            for at in (0..).map(Nanos::ms) {
                if last.key.tenant == 0 {
                    let running = batcher.replicas()[0].running().to_vec();
                    let ends = |row: &&Row| running.iter().any(|s| s.request == row.request && s.produced + 1 >= s.max_output);
                    let ended = last.rows.iter().filter(|row| row.emits).filter(ends);
                    let ended: Vec<_> = ended.map(|row| Ended { request: row.request, produced: 0 }).collect();
                    batcher.complete(&last, &ended, at, &mut Vec::new());
                }
                let room = limits(&batcher, blocks);
                let formed = batcher.form(0, room, &mut Vec::new());
                let made = forecast.next(&last, at);
                prop_assert_eq!(&made, &formed);
                let Some(made) = made else { break };
                last = made;
                // Also the state is the same, as far as it decides anything: a new forecast has the same hash.
                let room = limits(&batcher, blocks);
                let anew = batcher.forecast(0, room, usize::MAX).unwrap();
                prop_assert_eq!(forecast.state_hash(), anew.state_hash());
                prop_assert!(at < Nanos::secs(10), "somebody never ends");
            }
        }
    }

    #[test]
    fn the_last_token_is_formed() {
        let mut batcher = Batcher::new(TenantId(0), BatchOptions { block_tokens: 4, ..BatchOptions::default() });
        batcher.add_replica(ModelId(0), DeviceId(0));
        batcher.enter(Sequence::new(RequestId(0), Nanos::ZERO, None, 8, 10));
        let room = limits(&batcher, 100);
        assert_eq!(batcher.undisturbed(0, room), 0, "its prompt is not computed");
        iterate(&mut batcher, room, Nanos::ms(1));
        let room = limits(&batcher, 100);
        assert_eq!(batcher.undisturbed(0, room), 8, "of ten tokens, all but the first and the last");
        assert_eq!(batcher.undisturbed(0, BatchLimits { new_blocks: 1, ..room }), 4, "a block has room for four");
        assert_eq!(batcher.undisturbed(0, BatchLimits { new_blocks: 0, ..room }), 0);
        assert_eq!(batcher.undisturbed(1, room), 0, "there is no such replica");
        batcher.enter(Sequence::new(RequestId(1), Nanos::ZERO, None, 8, 10));
        assert_eq!(batcher.undisturbed(0, room), 0, "somebody waits");
    }
}
