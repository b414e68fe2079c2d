//! Batching as a continuation: what a replica will submit next.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use slicescheduler_gmg::id::ReplicaId;
use slicescheduler_gmg::id_map::IdHasher;
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::{BatchLimits, Continuation};
use slicescheduler_gmg::units::Nanos;

use crate::batching::{BatchOptions, Iteration, PrefixCache, ReplicaState, Sequence, plan_iteration};

/// The future of one replica by the same rule that serves for real. How long answers will be is
/// not known, so a sequence goes on until its `max_output`.
#[derive(Clone, Debug)]
pub struct ReplicaForecast {
    id: ReplicaId,
    state: ReplicaState,
    waiting: VecDeque<Sequence>,
    options: BatchOptions,
    limits: BatchLimits,
    /// Iterations behind the one in flight that [nothing disturbs](super::Batcher::undisturbed).
    undisturbed: u32,
    scratch: Iteration,
}

impl ReplicaForecast {
    pub(crate) fn new(
        id: ReplicaId,
        state: ReplicaState,
        waiting: VecDeque<Sequence>,
        options: BatchOptions,
        limits: BatchLimits,
    ) -> Self {
        Self { id, state, waiting, options, limits, undisturbed: 0, scratch: Iteration::default() }
    }

    fn absorb(&mut self, finished: &JobSpec, at: Nanos) {
        self.state.absorb(finished, &mut self.waiting, at, self.options.block_tokens);
        let limits = &mut self.limits;
        let ends = |sequence: &Sequence| sequence.produced >= sequence.max_output;
        self.state.end(ends, |_, freed| limits.new_blocks = limits.new_blocks.saturating_add(freed));
    }

    fn form(&mut self) -> Option<JobSpec> {
        let prefixes = self.state.cache.as_ref().map(PrefixCache::prefixes);
        plan_iteration(&self.state.running, &self.waiting, prefixes, &self.options, self.limits, &mut self.scratch);
        let limits = &mut self.limits;
        let block_tokens = self.options.block_tokens;
        let formed = self.state.commit(self.id, &self.scratch, &mut self.waiting, block_tokens, |lost| {
            limits.new_blocks = limits.new_blocks.saturating_add(lost.freed);
        });
        limits.new_blocks = limits.new_blocks.saturating_sub(self.scratch.new_blocks);
        formed
    }
}

impl Continuation for ReplicaForecast {
    fn next(&mut self, finished: &JobSpec, at: Nanos) -> Option<JobSpec> {
        let key = finished.key;
        let mut undisturbed = 0;
        if key.tenant == self.id.tenant.0 && key.replica == self.id.index {
            if self.undisturbed > 0 && key.iteration + 1 == self.state.iteration {
                self.undisturbed -= 1;
                let next = self.state.go_on(self.id, at, self.options.block_tokens);
                let grown = next.new_blocks() as u32;
                self.limits.new_blocks = self.limits.new_blocks.saturating_sub(grown);
                return Some(next);
            }
            self.absorb(finished, at);
            undisturbed = self.state.undisturbed(&self.waiting, &self.options, self.limits);
        }
        let formed = self.form();
        // The first of them is in flight now.
        self.undisturbed = undisturbed.saturating_sub(1);
        formed
    }

    fn fork(&self) -> Box<dyn Continuation> {
        Box::new(self.clone())
    }

    /// Not known with a prefix cache, which is too large to go through at every step.
    fn state_hash(&self) -> Option<u64> {
        // How many iterations nothing disturbs follows from the rest.
        let Self { id, state, waiting, options, limits, undisturbed: _, scratch: _ } = self;
        let ReplicaState { device, model, running, cache: None, in_flight, iteration } = state else { return None };
        let mut hasher = IdHasher::default();
        (id, device, model, running, in_flight, iteration, waiting, options, limits).hash(&mut hasher);
        Some(hasher.finish())
    }
}
