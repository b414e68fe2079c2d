//! Differential: batching with a prefix cache and iterations ahead, against a plain transcription of the rules of vLLM
//! V1's scheduler and block pool that keeps everything in lists and searches them from the front.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::VecDeque;

use proptest::prelude::*;
use slicescheduler_gmg::id::{DeviceId, ModelId, RequestId, TenantId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::{BatchLimits, Ended};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_scheduler::batching::{BatchOptions, Batcher, BlockHashes, PrefixCache, Sequence};

const BLOCK: u32 = 4;

/// A request as the reference sees it.
#[derive(Clone, Debug)]
struct Plain {
    id: u64,
    prompt: u32,
    output: u32,
    hashes: Vec<u64>,
    computed: u32,
    produced: u32,
    placeholders: u32,
    blocks: Vec<usize>,
}

impl Plain {
    fn tokens(&self) -> u32 {
        self.prompt + self.produced
    }

    /// Beyond the hashes of its prompt, what a block holds is known to this request only.
    fn content(&self, index: usize) -> (u64, u64) {
        self.hashes.get(index).map_or((1 + self.id, index as u64), |&hash| (0, hash))
    }
}

/// (request, position, tokens)
type Rows = Vec<(u64, u32, u32)>;

struct Reference {
    waiting: VecDeque<Plain>,
    running: Vec<Plain>,
    /// What blocks hold, in the order in which they got it.
    contents: Vec<((u64, u64), usize)>,
    /// How many requests hold each block.
    holders: Vec<u32>,
    /// Free blocks, the next one to be taken first.
    free: VecDeque<usize>,
    options: BatchOptions,
}

impl Reference {
    fn take(&mut self, count: usize) -> Vec<usize> {
        (0..count)
            .map(|_| {
                let block = self.free.pop_front().unwrap();
                self.contents.retain(|&(_, holder)| holder != block);
                self.holders[block] = 1;
                block
            })
            .collect()
    }

    fn release(&mut self, blocks: &[usize]) {
        for &block in blocks.iter().rev() {
            self.holders[block] -= 1;
            if self.holders[block] == 0 {
                self.free.push_back(block);
            }
        }
    }

    fn mark(&mut self, request: &Plain) {
        let full = (request.computed.min(request.tokens()) / BLOCK) as usize;
        for (index, &block) in request.blocks.iter().enumerate().take(full) {
            if !self.contents.iter().any(|&(_, holder)| holder == block) {
                self.contents.push((request.content(index), block));
            }
        }
    }

    fn hits(&self, request: &Plain) -> Vec<usize> {
        let most = ((request.tokens() - 1) / BLOCK) as usize;
        let find = |index| self.contents.iter().find(|(content, _)| *content == request.content(index));
        (0..most).map_while(|index| find(index).map(|&(_, block)| block)).collect()
    }

    fn schedule(&mut self) -> Rows {
        let mut budget = self.options.token_budget;
        let mut rows = Rows::new();
        let mut preempted = false;
        let mut index = 0;
        'running: while index < self.running.len() && budget > 0 {
            let mut request = self.running[index].clone();
            let all = request.placeholders > 0 && request.produced + request.placeholders >= request.output;
            let tokens = request.tokens() + request.placeholders - request.computed;
            let tokens = tokens.min(self.cap()).min(budget);
            if all || tokens == 0 {
                index += 1;
                continue;
            }
            let needed = (request.computed + tokens).div_ceil(BLOCK) as usize;
            let new = needed.saturating_sub(request.blocks.len());
            while new > self.free.len() {
                let mut last = self.running.pop().unwrap();
                let blocks = std::mem::take(&mut last.blocks);
                self.release(&blocks);
                last.computed = 0;
                preempted = true;
                let itself = last.id == request.id;
                self.waiting.push_front(last);
                if itself {
                    break 'running;
                }
            }
            let blocks = self.take(new);
            request.blocks.extend(blocks);
            rows.push((request.id, request.computed, tokens));
            budget -= tokens;
            Self::advance(&mut request, tokens);
            self.mark(&request);
            self.running[index] = request;
            index += 1;
        }
        while !preempted && budget > 0 && self.running.len() < self.options.max_sequences as usize {
            let Some(request) = self.waiting.front() else { break };
            if request.placeholders > 0 {
                break;
            }
            let hits = self.hits(request);
            let idle = hits.iter().filter(|&&block| self.holders[block] == 0).count();
            let cached = hits.len() as u32 * BLOCK;
            let tokens = (request.tokens() - cached).min(self.cap()).min(budget);
            let whole = if self.options.reserve_prompt { request.tokens() } else { cached + tokens };
            if whole.div_ceil(BLOCK) as usize - hits.len() + idle > self.free.len() {
                break;
            }
            let mut request = self.waiting.pop_front().unwrap();
            for &block in &hits {
                self.free.retain(|&free| free != block);
                self.holders[block] += 1;
            }
            let new = self.take((cached + tokens).div_ceil(BLOCK) as usize - hits.len());
            request.blocks = hits.into_iter().chain(new).collect();
            request.computed = cached;
            rows.push((request.id, cached, tokens));
            budget -= tokens;
            Self::advance(&mut request, tokens);
            self.mark(&request);
            self.running.push(request);
        }
        rows
    }

    fn cap(&self) -> u32 {
        if self.options.long_prefill > 0 { self.options.long_prefill } else { u32::MAX }
    }

    fn advance(request: &mut Plain, tokens: u32) {
        request.computed += tokens;
        if request.computed == request.tokens() + request.placeholders {
            request.placeholders += 1;
        }
    }

    /// The output of an iteration: every row that reached the end of its request gives a token.
    fn update(&mut self, rows: &[(u64, bool)]) -> Vec<u64> {
        let mut ended = Vec::new();
        for &(id, emits) in rows {
            let found = self.running.iter_mut().position(|request| request.id == id);
            let waits = self.waiting.iter().position(|request| request.id == id);
            let request = match (found, waits) {
                (Some(index), _) => &mut self.running[index],
                (None, Some(index)) => &mut self.waiting[index],
                (None, None) => continue,
            };
            if emits && request.placeholders > 0 {
                request.placeholders -= 1;
                request.produced += 1;
                if request.produced == request.output {
                    ended.push(id);
                }
            }
            if let Some(index) = found {
                let request = self.running[index].clone();
                self.mark(&request);
            }
        }
        for &id in &ended {
            if let Some(index) = self.running.iter().position(|request| request.id == id) {
                let request = self.running.remove(index);
                self.release(&request.blocks);
            }
            self.waiting.retain(|request| request.id != id);
        }
        ended
    }
}

fn sequences(requests: &[(u32, u32, u8)]) -> Vec<Plain> {
    // The `kind` of a prompt decides after which block it differs from the others: a chain of hashes.
    let chain = |kind: u8, blocks: u32| {
        (0..u64::from(blocks))
            .map(move |block| if block < u64::from(kind) % 4 { block } else { block + 100 * u64::from(kind) })
    };
    (0..)
        .zip(requests)
        .map(|(id, &(prompt, output, kind))| Plain {
            id,
            prompt,
            output,
            hashes: chain(kind, prompt / BLOCK).collect(),
            computed: 0,
            produced: 0,
            placeholders: 0,
            blocks: Vec::new(),
        })
        .collect()
}

fn check(requests: &[(u32, u32, u8)], spare: u32, options: BatchOptions) -> Result<u64, TestCaseError> {
    let plain = sequences(requests);
    let longest = plain.iter().map(|request| (request.prompt + request.output).div_ceil(BLOCK)).max().unwrap();
    let blocks = longest + spare;
    let mut reference = Reference {
        waiting: VecDeque::new(),
        running: Vec::new(),
        contents: Vec::new(),
        holders: vec![0; blocks as usize],
        free: (0..blocks as usize).collect(),
        options,
    };
    let mut batcher = Batcher::new(TenantId(0), options);
    batcher.add_cached_replica(ModelId(0), DeviceId(0), PrefixCache::new(blocks));
    let limits = BatchLimits {
        tokens: u32::MAX,
        sequences: u32::MAX,
        new_blocks: u32::MAX,
        keep_free: 0,
        not_due_before: Nanos::ZERO,
    };
    let (mut arrived, mut ended, mut preemptions) = (0, 0, 0);
    let mut in_flight: VecDeque<JobSpec> = VecDeque::new();
    for step in 0..20_000u64 {
        if arrived < plain.len() && step % 3 == 0 {
            let request = plain[arrived].clone();
            let hashes = BlockHashes::new(request.hashes.clone());
            let sequence = Sequence::new(RequestId(request.id), Nanos(step), None, request.prompt, request.output);
            batcher.enter(sequence.with_hashes(hashes));
            reference.waiting.push_back(request);
            arrived += 1;
        }
        let mut lost = Vec::new();
        let formed = batcher.form(0, limits, &mut lost);
        preemptions += lost.len() as u64;
        let rows = reference.schedule();
        let formed_rows: Rows =
            formed.iter().flat_map(|job| &job.rows).map(|row| (row.request.0, row.position, row.tokens)).collect();
        prop_assert_eq!(&formed_rows, &rows, "step {}", step);
        let replica = &batcher.replicas()[0];
        prop_assert_eq!(replica.cache().unwrap().free() as usize, reference.free.len());
        in_flight.extend(formed);
        if in_flight.len() as u32 > options.ahead || formed_rows.is_empty() {
            let Some(job) = in_flight.pop_front() else { continue };
            let rows: Vec<_> = job.rows.iter().map(|row| (row.request.0, row.emits)).collect();
            let done = reference.update(&rows);
            let done: Vec<_> =
                done.iter().map(|&id| Ended { request: RequestId(id), produced: plain[id as usize].output }).collect();
            ended += done.len();
            batcher.complete(&job, &done, Nanos(step), &mut Vec::new());
        }
        if ended == plain.len() {
            prop_assert_eq!(batcher.replicas()[0].blocks(), 0, "every block is given back");
            return Ok(preemptions);
        }
    }
    Err(TestCaseError::fail("some request never ended"))
}

fn options(budget: u32, sequences: u32, long_prefill: u32, reserve: bool, ahead: u32) -> BatchOptions {
    BatchOptions {
        token_budget: budget,
        max_sequences: sequences,
        block_tokens: BLOCK,
        long_prefill,
        reserve_prompt: reserve,
        ahead,
        ..BatchOptions::vllm()
    }
}

proptest! {
    #[test]
    fn iterations_are_those_of_the_plain_rules(
        requests in prop::collection::vec((1u32..60, 1u32..30, 0u8..6), 1..14),
        spare in 0u32..30,
        budget in 8u32..40,
        sequences in 1u32..8,
        long_prefill in prop_oneof![Just(0), 3u32..20],
        reserve in any::<bool>(),
        ahead in 0u32..2,
    ) {
        check(&requests, spare, options(budget, sequences, long_prefill, reserve, ahead))?;
    }
}

#[test]
fn scarce_blocks_preempt_and_everybody_ends() {
    let requests: Vec<_> = (0..10).map(|request| (20, 28, request % 3)).collect();
    let preemptions = check(&requests, 6, options(32, 8, 0, true, 1)).unwrap();
    assert!(preemptions > 3, "{preemptions}");
}

#[test]
fn an_equal_beginning_is_computed_once() {
    let mut batcher = Batcher::new(TenantId(0), options(64, 8, 0, true, 0));
    batcher.add_cached_replica(ModelId(0), DeviceId(0), PrefixCache::new(100));
    for id in 0..2 {
        let hashes = BlockHashes::new(vec![1, 2, 3, 4 + id, 5 + id]);
        batcher.enter(Sequence::new(RequestId(id), Nanos::ZERO, None, 20, 5).with_hashes(hashes));
    }
    let limits = BatchLimits { tokens: 64, sequences: 8, new_blocks: 100, keep_free: 0, not_due_before: Nanos::ZERO };
    let job = batcher.form(0, limits, &mut Vec::new()).unwrap();
    let rows: Rows = job.rows.iter().map(|row| (row.request.0, row.position, row.tokens)).collect();
    assert_eq!(rows, [(0, 0, 20), (1, 12, 8)], "three blocks of the first are the second's too, at once");
    assert_eq!(batcher.replicas()[0].blocks(), 5 + 2);
}
