//! Runs in which devices are lost and kernels fail, and what is true of every one of them.

use std::collections::BTreeSet;

use proptest::prelude::*;
use slicescheduler::driver::{Driver, RequestError};
use slicescheduler::scenario::Scenario;
use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, RequestId};
use slicescheduler_gmg::units::Nanos;

use crate::rig::{Driven, Faults, ROOMY, TIGHT, Watched, as_they_are, driven};

/// A seed, a share of memory, and what goes wrong: fewer than `most` of `devices` devices are lost `within` a time.
pub(crate) fn troubles(within: Nanos, devices: u32, most: usize) -> impl Strategy<Value = (u64, f64, Faults)> {
    let lost = prop::collection::vec((0..within.get(), 0..devices), 0..most);
    let jobs_one_in = prop::sample::select(vec![0u64, 3, 50, 400]);
    let usable = prop::sample::select(vec![TIGHT, ROOMY]);
    (0u64..1000, usable, lost, jobs_one_in).prop_map(|(seed, usable, lost, jobs_one_in)| {
        let devices = lost.into_iter().map(|(at, device)| (Nanos(at), DeviceId(device))).collect();
        (seed, usable, Faults { devices, jobs_one_in })
    })
}

/// Runs `scenario` through its arrivals and `rest` longer: the witness has nothing to complain of, nothing contradicts
/// the graph, and every request is accounted for, those that are lost with a reason. Calls `look` after every step.
pub(crate) fn accounted(
    scenario: &Scenario,
    policy: &str,
    faults: &Faults,
    rest: Nanos,
    look: impl FnMut(&Driver<Watched>),
) -> Driven<Watched> {
    let run = driven(scenario, policy, |setup| Watched::new(scenario, setup, faults, as_they_are()), rest, look);
    nobody_vanished(&run);
    assert_eq!(run.driver.counters().divergences, 0, "{policy}");
    let complaints = &run.driver.world().witness.complaints;
    assert!(complaints.is_empty(), "{policy}: {complaints:#?}");
    let explained = |reason: &RequestError| matches!(reason, RequestError::Failed(_) | RequestError::NoDevice);
    assert!(run.lost.iter().all(|lost| explained(&lost.reason)), "{policy}: {:?}", run.lost);
    run
}

/// Every request is completed, lost with a reason, waiting or running; in one of these only.
fn nobody_vanished(run: &Driven<Watched>) {
    let open = |batcher: &slicescheduler_scheduler::batching::Batcher| {
        let running = batcher.replicas().iter().flat_map(|replica| replica.running());
        running.chain(batcher.waiting()).map(|sequence| sequence.request).collect::<Vec<_>>()
    };
    let open: Vec<RequestId> = run.driver.batching().iter().flat_map(open).collect();
    let completed = run.completed.iter().map(|done| done.request);
    let lost = run.lost.iter().map(|lost| lost.request);
    let mut all: Vec<RequestId> = completed.chain(lost).chain(open.iter().copied()).collect();
    all.sort_unstable();
    assert_eq!(all, run.submitted, "every request is accounted for once");
    let view = run.driver.gmg().view();
    let known: BTreeSet<_> = run.submitted.iter().copied().filter(|&id| view.request(id).is_some()).collect();
    assert_eq!(known, open.into_iter().collect(), "the graph forgets those that ended and no other");
}
