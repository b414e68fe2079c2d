//! The engine's loop, as vLLM's: between two iterations it takes in what arrived, forms the next iteration and hands
//! it to the device; with asynchronous scheduling one iteration runs while the next is formed.
//!
//! ```text
//! take in arrivals -> form an iteration -> launch      (again while fewer are in flight than allowed)
//! wait for the oldest iteration in flight -> its tokens come, requests end -> again
//! ```
//!
//! So a request that arrives while iteration `k` runs is in `k + 2`, and its first token comes when that ends.

use std::collections::VecDeque;
use std::sync::Arc;

use super::blocks::KvBlocks;
use super::run::{Load, hashes_of_blocks};
use super::{FidelityError, Run};
use crate::gmg::id::{DeviceId, ModelId, RequestId, TenantId};
use crate::gmg::job::JobSpec;
use crate::gmg::plan::{BatchLimits, Ended};
use crate::gmg::units::Nanos;
use crate::scheduler::batching::{BatchOptions, Batcher, BlockHashes, CaptureSizes, PrefixCache, Sequence};
use crate::simulator::profile::llmservingsim::{Step, StepModel, StepParts};

/// From the tokens of an iteration to the next one being formed, as the timestamps of real runs show it. With iterations
/// formed ahead the device does not wait for it.
const HOST: Nanos = Nanos::us(100);

/// What is predicted of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// When the engine took it in.
    pub queued: Nanos,
    /// When it was scheduled first.
    pub scheduled: Nanos,
    /// When its first token came.
    pub first_token: Nanos,
    /// When its last token came.
    pub last_token: Nanos,
    /// How often it was recomputed.
    pub preemptions: u32,
}

/// What is predicted of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prediction {
    /// By request, in the order of the run.
    pub outcomes: Vec<Outcome>,
    /// Iterations.
    pub steps: u64,
    /// Iterations that computed nothing of a prompt.
    pub decode_steps: u64,
    /// How often sequences lost their blocks.
    pub preemptions: u64,
    /// Tokens that were found in the prefix cache.
    pub reused_tokens: u64,
    /// Where the time went.
    pub parts: StepParts,
    /// The engine's state whenever an iteration was formed.
    pub loads: Vec<Load>,
    /// The KV cache that was assumed.
    pub kv: Option<KvBlocks>,
    /// What was derived or left out, and how.
    pub notes: Vec<String>,
}

struct InFlight {
    ends: Nanos,
    job: JobSpec,
}

struct Engine<'a> {
    run: &'a Run,
    model: &'a StepModel,
    capture: &'a CaptureSizes,
    batcher: Batcher,
    now: Nanos,
    device_free: Nanos,
    in_flight: VecDeque<InFlight>,
    produced: Vec<u32>,
    result: Prediction,
    step: Step,
}

/// Serves the arrivals of `run` and says when everything happens.
///
/// # Errors
/// If a request can never run because it needs more blocks than there are.
pub fn serve(
    run: &Run,
    options: &BatchOptions,
    capture: &CaptureSizes,
    kv: &KvBlocks,
    model: &StepModel,
) -> Result<Prediction, FidelityError> {
    let blocks = kv.usable();
    for (index, request) in run.requests.iter().enumerate() {
        let needed = (request.prompt + request.output).div_ceil(kv.block_tokens);
        if needed > blocks {
            return Err(FidelityError::TooLong { request: index, needed, blocks });
        }
    }
    let mut batcher = Batcher::new(TenantId(0), *options);
    batcher.add_cached_replica(ModelId(0), DeviceId(0), PrefixCache::new(blocks));
    let count = run.requests.len();
    let mut engine = Engine {
        run,
        model,
        capture,
        batcher,
        now: Nanos::ZERO,
        device_free: Nanos::ZERO,
        in_flight: VecDeque::new(),
        produced: vec![0; count],
        result: Prediction { outcomes: vec![Outcome::default(); count], ..Prediction::default() },
        step: Step::default(),
    };
    engine.serve(options);
    Ok(engine.result)
}

impl Engine<'_> {
    fn serve(&mut self, options: &BatchOptions) {
        let mut arrived = 0;
        loop {
            while let Some(request) = self.run.requests.get(arrived).filter(|request| request.arrival <= self.now) {
                self.take_in(arrived, options, request.hashes.as_ref());
                arrived += 1;
            }
            if self.launch() && self.in_flight.len() as u32 <= options.ahead {
                continue;
            }
            match (self.in_flight.pop_front(), self.run.requests.get(arrived)) {
                (Some(oldest), _) => self.come_back(&oldest),
                (None, Some(request)) => self.now = self.now.max(request.arrival),
                (None, None) => return,
            }
        }
    }

    fn take_in(&mut self, index: usize, options: &BatchOptions, hashes: Option<&Arc<[u64]>>) {
        let request = &self.run.requests[index];
        self.result.outcomes[index].queued = self.now;
        let mut sequence =
            Sequence::new(RequestId(index as u64), request.arrival, None, request.prompt, request.output);
        let hashes = hashes.filter(|_| self.run.has_prefix_cache());
        if let Some(hashes) = hashes.and_then(|hashes| hashes_of_blocks(hashes, options.block_tokens)) {
            sequence = sequence.with_hashes(BlockHashes::new(hashes));
        }
        self.batcher.enter(sequence);
    }

    /// Forms an iteration and launches it; false if there is nothing to compute.
    fn launch(&mut self) -> bool {
        let unlimited = BatchLimits {
            tokens: u32::MAX,
            sequences: u32::MAX,
            new_blocks: u32::MAX,
            keep_free: 0,
            not_due_before: Nanos::ZERO,
        };
        let mut preempted = Vec::new();
        let formed = self.batcher.form(0, unlimited, &mut preempted);
        for (request, _) in &preempted {
            self.result.preemptions += 1;
            self.result.outcomes[request.0 as usize].preemptions += 1;
        }
        let Some(job) = formed else { return false };
        self.describe(&job);
        let parts = self.model.parts(&mut self.step);
        self.account(&job, parts);
        let starts = self.device_free.max(self.now + HOST);
        self.device_free = starts + parts.total();
        self.in_flight.push_back(InFlight { ends: self.device_free, job });
        true
    }

    /// What `job` computes, as the step model wants it. A row of one token is a decode for the attention kernels, whatever
    /// it is for the request.
    fn describe(&mut self, job: &JobSpec) {
        let tokens: u32 = job.rows.iter().map(|row| row.tokens).sum();
        let step = &mut self.step;
        step.chunks.clear();
        step.decodes.clear();
        for row in &job.rows {
            match row.tokens {
                1 => step.decodes.push(row.position + 1),
                tokens => step.chunks.push((tokens, row.position)),
            }
        }
        step.tokens = self.capture.padded(tokens);
        step.expert_tokens = step.tokens;
        step.sequences = job.rows.len() as u32;
    }

    fn account(&mut self, job: &JobSpec, parts: StepParts) {
        let result = &mut self.result;
        result.steps += 1;
        result.decode_steps += u64::from(self.step.chunks.is_empty());
        let plan = self.batcher.latest_plan();
        let admitted = job.rows.len().saturating_sub(plan.found.len());
        for row in &job.rows[admitted..] {
            let outcome = &mut result.outcomes[row.request.0 as usize];
            if outcome.scheduled.is_zero() {
                outcome.scheduled = self.now;
            }
            result.reused_tokens += u64::from(row.position);
        }
        let total = &mut result.parts;
        total.dense += parts.dense;
        total.experts += parts.experts;
        total.attention += parts.attention;
        total.skew += parts.skew;
        total.head += parts.head;
        total.exchange += parts.exchange;
        let replica = &self.batcher.replicas()[0];
        let share = |cache: &PrefixCache| f64::from(cache.total() - cache.free()) / f64::from(cache.total().max(1));
        result.loads.push(Load {
            at: self.now.as_secs_f64(),
            running: replica.running().len() as f64,
            waiting: self.batcher.waiting().len() as f64,
            kv: 100.0 * replica.cache().map_or(0.0, share),
        });
    }

    /// The oldest iteration in flight ended: its tokens come.
    fn come_back(&mut self, oldest: &InFlight) {
        self.now = self.now.max(oldest.ends);
        let mut ended = Vec::new();
        for row in oldest.job.rows.iter().filter(|row| row.emits) {
            let index = row.request.0 as usize;
            let produced = &mut self.produced[index];
            *produced += 1;
            let outcome = &mut self.result.outcomes[index];
            if *produced == 1 {
                outcome.first_token = self.now;
            }
            if *produced == self.run.requests[index].output {
                outcome.last_token = self.now;
                ended.push(Ended { request: row.request, produced: *produced });
            }
        }
        self.batcher.complete(&oldest.job, &ended, self.now, &mut Vec::new());
    }
}
