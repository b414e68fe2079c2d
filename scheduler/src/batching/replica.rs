//! One replica of a tenant: its sequences, and what of them is in flight.

use std::collections::VecDeque;

use slicescheduler_gmg::id::{DeviceId, JobKey, ModelId, ReplicaId, RequestId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::units::Nanos;

use crate::batching::{Iteration, PrefixCache, Sequence};

/// A sequence that lost its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preempted {
    pub(crate) request: RequestId,
    pub(crate) device: DeviceId,
    /// Blocks that it held.
    pub(crate) held: u32,
    /// Those that became free.
    pub(crate) freed: u32,
}

/// One replica: the sequences whose KV cache lies on its device.
#[derive(Clone, Debug)]
pub struct ReplicaState {
    /// The device.
    pub device: DeviceId,
    /// The model that it runs.
    pub model: ModelId,
    pub(crate) running: Vec<Sequence>,
    pub(crate) cache: Option<PrefixCache>,
    /// Iterations that were formed and have not come back.
    pub(crate) in_flight: u32,
    pub(crate) iteration: u64,
}

impl ReplicaState {
    pub(crate) fn new(model: ModelId, device: DeviceId, cache: Option<PrefixCache>) -> Self {
        Self { device, model, running: Vec::new(), cache, in_flight: 0, iteration: 0 }
    }

    /// Sequences that hold blocks here, oldest admission first.
    pub fn running(&self) -> &[Sequence] {
        &self.running
    }

    /// The prefix cache, if it has one of its own.
    pub fn cache(&self) -> Option<&PrefixCache> {
        self.cache.as_ref()
    }

    /// True while an iteration was formed and has not been completed or abandoned.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// Blocks that its sequences hold. Those that several share count once in a prefix cache of its own, and for each
    /// of them in a pool that somebody else keeps.
    pub fn blocks(&self) -> u32 {
        match &self.cache {
            Some(cache) => cache.total() - cache.free(),
            None => self.running.iter().map(|sequence| sequence.blocks).sum(),
        }
    }

    /// Turns a plan made for this replica and `waiting` into the iteration's job.
    pub(crate) fn commit(
        &mut self,
        id: ReplicaId,
        plan: &Iteration,
        waiting: &mut VecDeque<Sequence>,
        block_tokens: u32,
        mut preempted: impl FnMut(Preempted),
    ) -> Option<JobSpec> {
        if let Some(cache) = &mut self.cache {
            let admitted = waiting.iter().skip(plan.passed_over as usize).zip(plan.found.iter().copied());
            cache.share_first(admitted);
        }
        let mut to_preempt = plan.preempted;
        let mut grown = plan.growth.iter().peekable();
        let mut rows = plan.rows.iter().peekable();
        let mut index = 0;
        // Blocks are taken and given up in the order in which they were planned, because that
        // decides which cached ones are lost.
        while index < self.running.len() {
            let request = self.running[index].request;
            let growth = grown.next_if(|growth| growth.request == request).map_or(0, |growth| growth.blocks);
            while to_preempt > 0 && self.cache.as_ref().is_some_and(|cache| cache.free() < growth) {
                to_preempt -= 1;
                self.preempt_youngest(waiting).into_iter().for_each(&mut preempted);
            }
            let Some(sequence) = self.running.get_mut(index) else { break };
            sequence.blocks += growth;
            if let Some(row) = rows.next_if(|row| row.request == request) {
                sequence.depart(row.tokens, row.emits);
                if let Some(cache) = &mut self.cache {
                    cache.grow(request, growth);
                    cache.scheduled(sequence, block_tokens);
                }
            }
            index += 1;
        }
        for _ in 0..to_preempt {
            self.preempt_youngest(waiting).into_iter().for_each(&mut preempted);
        }
        if plan.is_empty() {
            return None;
        }
        let passed_over = plan.passed_over as usize;
        let admitted = waiting.drain(passed_over..passed_over + plan.admitted as usize);
        for (mut sequence, (&found, row)) in admitted.zip(plan.found.iter().zip(rows)) {
            let request = sequence.request;
            let growth = grown.next_if(|growth| growth.request == request).map_or(0, |growth| growth.blocks);
            sequence.begin(row.position);
            sequence.blocks = found + growth;
            sequence.depart(row.tokens, row.emits);
            if let Some(cache) = &mut self.cache {
                cache.share(&sequence, found);
                cache.grow(request, growth);
                cache.scheduled(&sequence, block_tokens);
            }
            self.running.push(sequence);
        }
        let key = JobKey { tenant: id.tenant.0, replica: id.index, iteration: self.iteration };
        self.iteration += 1;
        self.in_flight += 1;
        Some(JobSpec {
            key,
            binding: plan.binding(),
            rows: plan.rows.clone(),
            growth: plan.growth.clone(),
            ..JobSpec::of(self.model)
        })
    }

    /// The rows of `finished` are computed. A sequence that was preempted since gets its token, but
    /// nothing of it is computed any more. Returns how many such sequences got one.
    pub(crate) fn absorb(
        &mut self,
        finished: &JobSpec,
        waiting: &mut VecDeque<Sequence>,
        at: Nanos,
        block_tokens: u32,
    ) -> u64 {
        self.in_flight = self.in_flight.saturating_sub(1);
        let mut from = 0;
        let mut waiting_tokens = 0;
        for row in &finished.rows {
            let found = self.running[from..].iter().position(|sequence| sequence.request == row.request);
            let Some(index) = found.map(|offset| from + offset) else {
                if row.emits
                    && let Some(sequence) = waiting.iter_mut().find(|sequence| sequence.request == row.request)
                    && sequence.pending > 0
                {
                    sequence.ground(0, true);
                    sequence.emit(at);
                    waiting_tokens += 1;
                }
                continue;
            };
            from = index + 1;
            let sequence = &mut self.running[index];
            sequence.arrive(row.tokens, row.emits, at);
            if let Some(cache) = &mut self.cache {
                cache.computed(sequence, block_tokens);
            }
        }
        waiting_tokens
    }

    /// Takes out the sequences that `ends` and gives up their blocks; `ended` is told of each, and
    /// of the blocks that became free.
    pub(crate) fn end(&mut self, ends: impl Fn(&Sequence) -> bool, mut ended: impl FnMut(&Sequence, u32)) {
        let cache = &mut self.cache;
        self.running.retain(|sequence| {
            let ends = ends(sequence);
            if ends {
                let freed = match cache {
                    Some(cache) => cache.release(sequence.request, u32::MAX),
                    None => sequence.blocks,
                };
                ended(sequence, freed);
            }
            !ends
        });
    }

    /// Nothing of what is in flight will come back.
    pub(crate) fn ground(&mut self) {
        self.in_flight = 0;
        for sequence in &mut self.running {
            (sequence.ahead, sequence.pending) = (0, 0);
        }
    }

    /// The iteration that was formed last is taken back, with the blocks that it would have got.
    pub(crate) fn withdraw(&mut self, spec: &JobSpec) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let mut rows = spec.rows.iter().peekable();
        let mut grown = spec.growth.iter().peekable();
        for sequence in &mut self.running {
            if let Some(row) = rows.next_if(|row| row.request == sequence.request) {
                sequence.ground(row.tokens, row.emits);
            }
            if let Some(growth) = grown.next_if(|growth| growth.request == sequence.request) {
                sequence.blocks = sequence.blocks.saturating_sub(growth.blocks);
                if let Some(cache) = &mut self.cache {
                    cache.release(sequence.request, growth.blocks);
                }
            }
        }
    }

    /// Takes the blocks of the sequence that was admitted last and puts it before all that wait.
    pub(crate) fn preempt_youngest(&mut self, waiting: &mut VecDeque<Sequence>) -> Option<Preempted> {
        let mut sequence = self.running.pop()?;
        let (request, held) = (sequence.request, sequence.blocks);
        let freed = match &mut self.cache {
            Some(cache) => cache.release(request, u32::MAX),
            None => held,
        };
        sequence.preempt();
        waiting.push_front(sequence);
        Some(Preempted { request, device: self.device, held, freed })
    }
}
