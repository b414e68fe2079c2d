//! The engine's loop, as vLLM's: between two iterations it takes in what arrived, forms the next iteration and hands
//! it to the device; with asynchronous scheduling one iteration runs while the next is formed.
//!
//! ```text
//! take in arrivals -> form an iteration -> launch      (again while fewer are in flight than allowed)
//! wait for the oldest iteration in flight -> its tokens come, requests end -> again
//! ```
//!
//! So a request that arrives while iteration `k` runs is in `k + 2`, and its first token comes when that ends.
//!
//! Where one rank forms an iteration only when the last has ended, iterations that
//! [nothing disturbs](Batcher::undisturbed) are not formed one by one: only their times are asked for.
//!
//! Ranks with requests of their own go in step, because they exchange tokens in every layer of experts: they form
//! their iterations together, and the slowest decides when all of them end. A request goes to the rank with the least
//! to do, where one that waits counts as four that run.

use std::collections::VecDeque;
use std::sync::Arc;

use super::blocks::KvBlocks;
use super::run::{Load, hashes_of_blocks};
use super::{FidelityError, RunRequest};
use crate::gmg::id::{DeviceId, ModelId, RequestId, TenantId};
use crate::gmg::job::{JobSpec, Row};
use crate::gmg::plan::{BatchLimits, Ended};
use crate::gmg::units::Nanos;
use crate::scheduler::batching::{BatchOptions, Batcher, BlockHashes, PrefixCache, Sequence};
use crate::simulator::cost::Coverage;
use crate::simulator::profile::llmservingsim::StepParts;

/// A request as it reaches an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineRequest {
    /// When.
    pub arrival: Nanos,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the answer.
    pub output: u32,
    /// Chained hashes of the prompt's full blocks of 16 tokens, if known.
    pub hashes: Option<Arc<[u64]>>,
}

impl From<&RunRequest> for EngineRequest {
    fn from(request: &RunRequest) -> Self {
        let RunRequest { arrival, prompt, output, ref hashes, .. } = *request;
        Self { arrival, prompt, output, hashes: hashes.clone() }
    }
}

/// What an engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// KV blocks that sequences of a rank can hold.
    pub blocks: u32,
    /// Whether sequences with equal beginnings share blocks.
    pub has_prefix_cache: bool,
    /// From the tokens of an iteration to the next one being formed. With iterations formed ahead the device does not
    /// wait for it.
    pub host: Nanos,
    /// Ranks with requests of their own, which go in step.
    pub ranks: u32,
}

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
    /// Iterations; those of ranks that go in step count as one.
    pub steps: u64,
    /// Iterations that computed nothing of a prompt.
    pub decode_steps: u64,
    /// How often sequences lost their blocks.
    pub preemptions: u64,
    /// Tokens that were found in the prefix cache.
    pub reused_tokens: u64,
    /// Where the time went.
    pub parts: StepParts,
    /// How much of it was measured, and how much is beyond what was.
    pub coverage: Coverage,
    /// The engine's state when an iteration was formed, whenever it was another than before.
    pub loads: Vec<Load>,
    /// The KV cache that was assumed.
    pub kv: Option<KvBlocks>,
    /// What was derived or left out, and how.
    pub notes: Vec<String>,
}

/// An iteration of every rank; some may have none.
struct InFlight {
    ends: Nanos,
    jobs: Vec<Option<JobSpec>>,
}

struct Engine<'a, F> {
    requests: &'a [EngineRequest],
    options: &'a BatchOptions,
    limits: EngineLimits,
    time: F,
    ranks: Vec<Batcher>,
    now: Nanos,
    device_free: Nanos,
    in_flight: VecDeque<InFlight>,
    produced: Vec<u32>,
    preempted: Vec<(RequestId, DeviceId)>,
    ended: Vec<Ended>,
    stretch: Stretch,
    /// Sequences that run, that wait, and their blocks, as they were when an iteration was formed last.
    load: Option<(usize, usize, u32)>,
    result: Prediction,
}

/// Scratch memory of iterations that nothing disturbs.
#[derive(Default)]
struct Stretch {
    rows: Vec<Row>,
    /// By row: the position that its blocks have no room for.
    full_at: Vec<u32>,
    times: Vec<Nanos>,
}

/// Serves `requests`, which are in the order of arrival, and says when everything happens. `time` gives the time of an
/// iteration from its rows, one slice per rank; an idle rank has none.
///
/// # Errors
/// If a request can never run because it needs more blocks than there are.
pub fn replay(
    requests: &[EngineRequest],
    options: &BatchOptions,
    limits: EngineLimits,
    time: impl FnMut(&[&[Row]]) -> Nanos,
) -> Result<Prediction, FidelityError> {
    for (index, request) in requests.iter().enumerate() {
        let needed = request.prompt.saturating_add(request.output).div_ceil(options.block_tokens.max(1));
        if needed > limits.blocks {
            return Err(FidelityError::TooLong { request: index, needed, blocks: limits.blocks });
        }
    }
    let rank = |index| {
        let mut batcher = Batcher::new(TenantId(0), *options);
        match limits.has_prefix_cache {
            true => batcher.add_cached_replica(ModelId(0), DeviceId(index), PrefixCache::new(limits.blocks)),
            false => batcher.add_replica(ModelId(0), DeviceId(index)),
        };
        batcher
    };
    let mut engine = Engine {
        requests,
        options,
        limits,
        time,
        ranks: (0..limits.ranks.max(1)).map(rank).collect(),
        now: Nanos::ZERO,
        device_free: Nanos::ZERO,
        in_flight: VecDeque::new(),
        produced: vec![0; requests.len()],
        preempted: Vec::new(),
        ended: Vec::new(),
        stretch: Stretch::default(),
        load: None,
        result: Prediction { outcomes: vec![Outcome::default(); requests.len()], ..Prediction::default() },
    };
    engine.serve();
    Ok(engine.result)
}

impl<F: FnMut(&[&[Row]]) -> Nanos> Engine<'_, F> {
    fn serve(&mut self) {
        let mut arrived = 0;
        loop {
            while self.requests.get(arrived).is_some_and(|request| request.arrival <= self.now) {
                self.take_in(arrived);
                arrived += 1;
            }
            if self.run_undisturbed(self.requests.get(arrived).map(|next| next.arrival)) {
                continue;
            }
            if self.launch() && self.in_flight.len() as u32 <= self.options.ahead {
                continue;
            }
            match (self.in_flight.pop_front(), self.requests.get(arrived)) {
                (Some(oldest), _) => self.come_back(&oldest),
                (None, Some(request)) => self.now = self.now.max(request.arrival),
                (None, None) => return,
            }
        }
    }

    fn take_in(&mut self, index: usize) {
        let EngineRequest { arrival, prompt, output, ref hashes } = self.requests[index];
        self.result.outcomes[index].queued = self.now;
        let mut sequence = Sequence::new(RequestId(index as u64), arrival, None, prompt, output);
        let hashes = hashes.as_ref().filter(|_| self.limits.has_prefix_cache);
        if let Some(hashes) = hashes.and_then(|hashes| hashes_of_blocks(hashes, self.options.block_tokens)) {
            sequence = sequence.with_hashes(BlockHashes::new(hashes));
        }
        let to_do = |rank: &&mut Batcher| 4 * rank.waiting().len() + rank.replicas()[0].running().len();
        if let Some(least) = self.ranks.iter_mut().min_by_key(to_do) {
            least.enter(sequence);
        }
    }

    /// Forms an iteration of every rank and launches it; false if there is nothing to compute.
    fn launch(&mut self) -> bool {
        let (limits, preempted) = (self.limits, &mut self.preempted);
        let form = |rank: &mut Batcher| {
            let free = free_blocks(rank, limits);
            rank.form(0, free, preempted)
        };
        let jobs: Vec<_> = self.ranks.iter_mut().map(form).collect();
        for (request, _) in self.preempted.drain(..) {
            self.result.preemptions += 1;
            self.result.outcomes[request.0 as usize].preemptions += 1;
        }
        if jobs.iter().all(Option::is_none) {
            return false;
        }
        let rows: Vec<&[Row]> = jobs.iter().map(|job| job.as_ref().map_or(&[][..], |job| &job.rows)).collect();
        let takes = (self.time)(&rows);
        let is_decode = rows.iter().all(|rows| rows.iter().all(|row| row.tokens == 1));
        self.result.steps += 1;
        self.result.decode_steps += u64::from(is_decode);
        self.note_admissions(&jobs);
        let starts = self.device_free.max(self.now + self.limits.host);
        self.device_free = starts + takes;
        self.in_flight.push_back(InFlight { ends: self.device_free, jobs });
        true
    }

    fn note_admissions(&mut self, jobs: &[Option<JobSpec>]) {
        let result = &mut self.result;
        for (rank, job) in self.ranks.iter().zip(jobs) {
            let Some(job) = job else { continue };
            let admitted = job.rows.len().saturating_sub(rank.latest_plan().found.len());
            for row in &job.rows[admitted..] {
                let outcome = &mut result.outcomes[row.request.0 as usize];
                if outcome.scheduled.is_zero() {
                    outcome.scheduled = self.now;
                }
                result.reused_tokens += u64::from(row.position);
            }
        }
        let replicas = || self.ranks.iter().map(|rank| &rank.replicas()[0]);
        let held = replicas().map(|replica| replica.blocks()).sum();
        let running = replicas().map(|replica| replica.running().len()).sum();
        let waiting = self.ranks.iter().map(|rank| rank.waiting().len()).sum();
        self.note_load(running, waiting, held);
    }

    /// An iteration is formed now: so many sequences run and wait, and hold so many blocks.
    fn note_load(&mut self, running: usize, waiting: usize, held: u32) {
        if self.load.replace((running, waiting, held)) == Some((running, waiting, held)) {
            return;
        }
        let all = f64::from(self.limits.blocks) * self.ranks.len() as f64;
        self.result.loads.push(Load {
            at: self.now.as_secs_f64(),
            running: running as f64,
            waiting: waiting as f64,
            kv: 100.0 * f64::from(held) / all.max(1.0),
        });
    }

    /// Runs iterations that nothing disturbs until the first that ends at `arrival` or later, if anybody arrives. False
    /// if there are none.
    fn run_undisturbed(&mut self, arrival: Option<Nanos>) -> bool {
        let ([rank], true) = (&self.ranks[..], self.options.ahead == 0 && self.in_flight.is_empty()) else {
            return false;
        };
        let most = rank.undisturbed(0, free_blocks(rank, self.limits));
        if most == 0 {
            return false;
        }
        let replica = &rank.replicas()[0];
        let (running, waiting, mut held) = (replica.running(), rank.waiting().len(), replica.blocks());
        let Stretch { mut rows, mut full_at, mut times } = std::mem::take(&mut self.stretch);
        let block_tokens = self.options.block_tokens.max(1);
        rows.clear();
        rows.extend(running.iter().map(|sequence| Row {
            request: sequence.request,
            position: sequence.computed,
            tokens: 1,
            emits: true,
        }));
        full_at.clear();
        full_at.extend(running.iter().map(|sequence| sequence.blocks * block_tokens));
        times.clear();
        while (times.len() as u32) < most && arrival.is_none_or(|arrival| self.now < arrival) {
            for (row, full_at) in rows.iter().zip(&mut full_at) {
                if row.position >= *full_at {
                    *full_at += block_tokens;
                    held += 1;
                }
            }
            self.note_load(rows.len(), waiting, held);
            let takes = (self.time)(&[&rows]);
            self.device_free = self.device_free.max(self.now + self.limits.host) + takes;
            self.now = self.now.max(self.device_free);
            times.push(self.now);
            rows.iter_mut().for_each(|row| row.position += 1);
        }
        let count = times.len() as u32;
        self.result.steps += u64::from(count);
        self.result.decode_steps += u64::from(count);
        rows.iter().for_each(|row| self.produced[row.request.0 as usize] += count);
        if let Some(rank) = self.ranks.first_mut() {
            rank.pass(0, &times);
        }
        self.stretch = Stretch { rows, full_at, times };
        true
    }

    /// The oldest iteration in flight ended: its tokens come.
    fn come_back(&mut self, oldest: &InFlight) {
        self.now = self.now.max(oldest.ends);
        for (rank, job) in self.ranks.iter_mut().zip(&oldest.jobs) {
            let Some(job) = job else { continue };
            self.ended.clear();
            for row in job.rows.iter().filter(|row| row.emits) {
                let index = row.request.0 as usize;
                let produced = &mut self.produced[index];
                *produced += 1;
                let outcome = &mut self.result.outcomes[index];
                if *produced == 1 {
                    outcome.first_token = self.now;
                }
                if *produced == self.requests[index].output {
                    outcome.last_token = self.now;
                    self.ended.push(Ended { request: row.request, produced: *produced });
                }
            }
            rank.complete(job, &self.ended, self.now, &mut Vec::new());
        }
    }
}

/// What the next iteration of a rank may take: every block that is free.
fn free_blocks(rank: &Batcher, limits: EngineLimits) -> BatchLimits {
    let replica = &rank.replicas()[0];
    let new_blocks = match replica.cache() {
        Some(_) => u32::MAX,
        None => limits.blocks.saturating_sub(replica.blocks()),
    };
    BatchLimits { tokens: u32::MAX, sequences: u32::MAX, new_blocks, keep_free: 0, not_due_before: Nanos::ZERO }
}
