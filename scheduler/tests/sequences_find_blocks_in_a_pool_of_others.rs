//! Batching on a pool that somebody else keeps, as a graph does: what it plans is what that pool then holds.
//!
//! Oracle: the pool is told what the plan says and finds the same. Differential: a forecast, which goes on with a copy
//! of the pool, against batching on the pool itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use slicescheduler_gmg::id::{DeviceId, ModelId, RequestId, TenantId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::memory::KvPool;
use slicescheduler_gmg::plan::{BatchLimits, Continuation, Ended};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_scheduler::batching::{BatchOptions, Batcher, BlockHashes, Sequence};

const BLOCK_TOKENS: u32 = 4;
const TENANT: TenantId = TenantId(3);
/// Somebody else on the device.
const OTHER: TenantId = TenantId(0);

struct Rig {
    batcher: Batcher,
    pool: KvPool,
    outputs: Vec<u32>,
    ended: usize,
}

impl Rig {
    /// Requests of so many tokens and outputs, of some kind, and as many blocks like others of the kind.
    fn new(blocks: u32, requests: &[(u32, u32, u64, u32)]) -> Self {
        let options = BatchOptions {
            block_tokens: BLOCK_TOKENS,
            growth_reserve: 1,
            prefix_caching: true,
            ..BatchOptions::default()
        };
        let mut batcher = Batcher::new(TENANT, options);
        batcher.add_replica(ModelId(0), DeviceId(0));
        for (id, &(prompt, output, kind, alike)) in (0u64..).zip(requests) {
            let hash = |index: u32| {
                if index < alike { kind << 8 | u64::from(index) } else { (id + 9) << 32 | u64::from(index) }
            };
            let hashes = BlockHashes::new((0..prompt / BLOCK_TOKENS).map(hash).collect::<Vec<_>>());
            batcher.enter(Sequence::new(RequestId(id), Nanos(id), None, prompt, output).with_hashes(hashes));
        }
        let outputs = requests.iter().map(|&(_, output, ..)| output).collect();
        Self { batcher, pool: KvPool::new(blocks), outputs, ended: 0 }
    }

    fn limits(&self) -> BatchLimits {
        let new_blocks = self.pool.free_blocks();
        BatchLimits { tokens: 64, sequences: 8, new_blocks, keep_free: 0, not_due_before: Nanos::ZERO }
    }

    fn form(&mut self) -> Option<JobSpec> {
        let (limits, mut preempted) = (self.limits(), Vec::new());
        let formed = self.batcher.form_in(0, Some(&self.pool), limits, &mut preempted);
        self.give_up(preempted.into_iter().map(|(request, _)| request));
        let formed = formed?;
        for (sequence, found) in self.batcher.admitted(0).filter(|&(_, found)| found > 0) {
            let shared = self.pool.share(sequence.request, TENANT, &sequence.block_hashes(0..found));
            assert_eq!(shared, found, "what was found is there: {sequence:?}");
        }
        for growth in &formed.growth {
            assert!(self.pool.grow(growth.request, TENANT, growth.blocks), "{growth:?} of {}", self.pool.free_blocks());
        }
        Some(formed)
    }

    fn complete(&mut self, job: &JobSpec, at: Nanos) {
        let mut ended = Vec::new();
        for row in &job.rows {
            let sequence = self.batcher.replicas()[0].running().iter().find(|one| one.request == row.request).unwrap();
            let (first, full) = (row.position / BLOCK_TOKENS, (row.position + row.tokens) / BLOCK_TOKENS);
            assert!(self.pool.publish(row.request, first, &sequence.block_hashes(first..full)));
            let produced = sequence.produced + 1;
            if row.emits && produced == self.outputs[row.request.index()] {
                ended.push(Ended { request: row.request, produced });
            }
        }
        self.batcher.complete(job, &ended, at, &mut Vec::new());
        self.give_up(ended.iter().map(|ended| ended.request));
        self.ended += ended.len();
    }

    fn give_up(&mut self, requests: impl Iterator<Item = RequestId>) {
        for request in requests {
            self.pool.release(request);
        }
    }

    fn evict(&mut self, blocks: u32) {
        let (before, mut preempted) = (self.pool.free_blocks(), Vec::new());
        let freed = self.batcher.evict_in(0, Some(&self.pool), blocks, &mut preempted);
        self.give_up(preempted.into_iter().map(|(request, _)| request));
        assert_eq!(self.pool.free_blocks() - before, freed);
    }

    fn agree(&self) {
        let running = self.batcher.replicas()[0].running();
        for sequence in running {
            assert_eq!(self.pool.table(sequence.request).len() as u32, sequence.blocks, "{sequence:?}");
            // What is written next is nobody else's.
            for index in sequence.computed / BLOCK_TOKENS..sequence.blocks {
                assert_eq!(self.pool.holders(sequence.request, index), 1, "{sequence:?}");
            }
        }
        let of_tenant = self.pool.sequences().into_iter().filter(|id| id.0 < 1000).count();
        assert_eq!(of_tenant, running.iter().filter(|one| one.blocks > 0).count());
    }
}

fn requests() -> impl Strategy<Value = Vec<(u32, u32, u64, u32)>> {
    prop::collection::vec((1u32..90, 1u32..30, 0u64..3, 0u32..20), 1..14)
}

proptest! {
    #[test]
    fn what_is_planned_on_a_pool_is_what_it_then_holds(
        requests in requests(),
        blocks in 34u32..140,
        others in prop::collection::vec((0u32..12, 0u32..40), 0..40),
    ) {
        let mut rig = Rig::new(blocks, &requests);
        let mut others = others.into_iter();
        for at in (0..).map(Nanos) {
            // Somebody else comes and goes, and takes what is cached; and sometimes sequences are evicted.
            if let Some((wanted, evicted)) = others.next() {
                rig.pool.release(RequestId(1000));
                rig.pool.grow(RequestId(1000), OTHER, wanted.min(rig.pool.free_blocks() / 4));
                rig.evict(evicted.saturating_sub(30));
                rig.agree();
            } else {
                rig.pool.release(RequestId(1000));
            }
            let formed = rig.form();
            rig.agree();
            match formed {
                Some(job) => rig.complete(&job, at),
                None if others.len() == 0 && rig.batcher.replicas()[0].running().is_empty() => break,
                None => {}
            }
            rig.agree();
            prop_assert!(at < Nanos(20_000), "somebody never ends");
        }
        rig.pool.release(RequestId(1000));
        prop_assert_eq!((rig.ended, rig.pool.used_blocks()), (requests.len(), 0), "everybody ended, nothing is held");
    }

    #[test]
    fn a_forecast_finds_what_batching_finds(requests in requests(), blocks in 34u32..140, begun in 1usize..20) {
        let mut rig = Rig::new(blocks, &requests);
        let mut job = None;
        for step in 0..begun {
            if let Some(done) = job.take() {
                rig.complete(&done, Nanos(step as u64));
            }
            job = rig.form();
        }
        prop_assume!(job.is_some());
        let mut job = job.unwrap();
        let mut forecast = rig.batcher.forecast_in(0, Some(&rig.pool), rig.limits(), usize::MAX).unwrap();
        for at in (100..).map(Nanos) {
            rig.complete(&job, at);
            let foretold = forecast.next(&job, at);
            let formed = rig.form();
            prop_assert_eq!(&foretold, &formed);
            match formed {
                Some(next) => job = next,
                None => break,
            }
        }
        prop_assert!(rig.batcher.waiting().is_empty());
    }
}

#[test]
fn two_prompts_in_one_iteration_are_both_computed_and_the_third_finds_them() {
    let mut rig = Rig::new(100, &[(20, 2, 1, 5), (20, 2, 1, 5), (20, 2, 1, 5)]);
    let tokens =
        |job: &JobSpec| job.rows.iter().map(|row| (row.request.0, row.position, row.tokens)).collect::<Vec<_>>();
    let first = rig.form().unwrap();
    // Nothing is there before it is computed.
    assert_eq!(tokens(&first), [(0, 0, 20), (1, 0, 20), (2, 0, 20)]);
    rig.complete(&first, Nanos(1));
    let fourth = Sequence::new(RequestId(3), Nanos(3), None, 21, 1);
    let hashes = BlockHashes::new((0..5).map(|index| 1u64 << 8 | index).collect::<Vec<_>>());
    rig.outputs.push(1);
    rig.batcher.enter(fourth.with_hashes(hashes));
    let second = rig.form().unwrap();
    assert_eq!(tokens(&second)[3], (3, 20, 1), "five blocks of it are there");
    assert_eq!((rig.batcher.cached_tokens(), rig.batcher.latest_plan().new_blocks), (20, 4));
    rig.agree();
}
