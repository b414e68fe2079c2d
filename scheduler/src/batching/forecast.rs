//! Batching as a continuation: what a replica will submit next.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use slicescheduler_gmg::id::ReplicaId;
use slicescheduler_gmg::id_map::IdHasher;
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::{BatchLimits, Continuation};
use slicescheduler_gmg::units::Nanos;

use crate::batching::{BatchOptions, Iteration, ReplicaState, Sequence, plan_iteration};

/// The future of one replica by the same rule that serves for real. How long answers will be is
/// not known, so a sequence goes on until its `max_output`.
#[derive(Clone, Debug)]
pub struct ReplicaForecast {
    id: ReplicaId,
    state: ReplicaState,
    waiting: VecDeque<Sequence>,
    options: BatchOptions,
    limits: BatchLimits,
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
        Self { id, state, waiting, options, limits, scratch: Iteration::default() }
    }

    fn absorb(&mut self, finished: &JobSpec, at: Nanos) {
        self.state.absorb(finished, &mut self.waiting, at, self.options.block_tokens);
        let limits = &mut self.limits;
        let ends = |sequence: &Sequence| sequence.produced >= sequence.max_output;
        self.state.end(ends, |_, freed| limits.new_blocks = limits.new_blocks.saturating_add(freed));
    }

    fn form(&mut self) -> Option<JobSpec> {
        let cache = self.state.cache.as_ref();
        plan_iteration(&self.state.running, &self.waiting, cache, &self.options, self.limits, &mut self.scratch);
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
        if finished.key.tenant == self.id.tenant.0 && finished.key.replica == self.id.index {
            self.absorb(finished, at);
        }
        self.form()
    }

    fn fork(&self) -> Box<dyn Continuation> {
        Box::new(self.clone())
    }

    /// Not known with a prefix cache, which is too large to go through at every step.
    fn state_hash(&self) -> Option<u64> {
        let Self { id, state, waiting, options, limits, scratch: _ } = self;
        let ReplicaState { device, model, running, cache: None, in_flight, iteration } = state else { return None };
        let mut hasher = IdHasher::default();
        (id, device, model, running, in_flight, iteration, waiting, options, limits).hash(&mut hasher);
        Some(hasher.finish())
    }
}
