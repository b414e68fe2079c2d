//! Differential: what a forecast says that a replica will submit, against what batching forms when
//! the future turns out as forecast: nothing arrives, no other replica takes a request, and every
//! answer is as long as it may be.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use slicescheduler_gmg::id::{DeviceId, ModelId, RequestId, TenantId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::{BatchLimits, Continuation, Ended};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_scheduler::batching::{BatchOptions, Batcher, Sequence};

const BLOCK_TOKENS: u32 = 4;
const BLOCKS: u32 = 200;

fn limits(batcher: &Batcher) -> BatchLimits {
    let free = BLOCKS - batcher.replicas()[0].blocks();
    BatchLimits { tokens: 64, sequences: 8, new_blocks: free, keep_free: 0, not_due_before: Nanos::ZERO }
}

fn batcher(requests: &[(u32, u32)]) -> Batcher {
    let options = BatchOptions { block_tokens: BLOCK_TOKENS, growth_reserve: 1, ..BatchOptions::default() };
    let mut batcher = Batcher::new(TenantId(0), options);
    batcher.add_replica(ModelId(0), DeviceId(0));
    for (id, &(prompt, output)) in (0..).zip(requests) {
        batcher.enter(Sequence::new(RequestId(id), Nanos(id), None, prompt, output));
    }
    batcher
}

/// Ends an iteration: every request that has all its tokens ends with it.
fn complete(batcher: &mut Batcher, job: &JobSpec, requests: &[(u32, u32)], at: Nanos) {
    let running = batcher.replicas()[0].running();
    let ended: Vec<Ended> = job
        .rows
        .iter()
        .filter(|row| row.emits)
        .map(|row| {
            let produced = running.iter().find(|sequence| sequence.request == row.request).unwrap().produced + 1;
            Ended { request: row.request, produced }
        })
        .filter(|ended| ended.produced == requests[ended.request.index()].1)
        .collect();
    batcher.complete(job, &ended, at, &mut Vec::new());
}

proptest! {
    #[test]
    fn the_future_of_a_replica_is_formed_as_forecast(
        requests in prop::collection::vec((1u32..120, 1u32..40), 1..16),
        begun in 0usize..30,
    ) {
        let mut batcher = batcher(&requests);
        let mut job = None;
        for step in 0..=begun {
            let Some(formed) = batcher.form(0, limits(&batcher), &mut Vec::new()) else { break };
            if step < begun {
                complete(&mut batcher, &formed, &requests, Nanos(step as u64));
            } else {
                job = Some(formed);
            }
        }
        prop_assume!(job.is_some());
        let mut job = job.unwrap();
        let mut forecast = batcher.forecast(0, limits(&batcher), requests.len()).unwrap();
        let untouched = forecast.fork();
        for at in (100..).map(Nanos) {
            complete(&mut batcher, &job, &requests, at);
            let foretold = forecast.next(&job, at);
            let formed = batcher.form(0, limits(&batcher), &mut Vec::new());
            prop_assert_eq!(&foretold, &formed);
            match formed {
                Some(next) => job = next,
                None => break,
            }
        }
        prop_assert!(batcher.waiting().is_empty() && !batcher.holds_sequences(0), "the future came to its end");
        prop_assert!(format!("{untouched:?}") != format!("{forecast:?}"), "a fork does not follow");
    }
}
