//! Sequences that leave a device and go on from a copy give the tokens that they give undisturbed.

use slicescheduler_executor::cpu_world::{CpuWorldOptions, KvCopy};
use slicescheduler_executor::fault::{Fault, Faults, Point};
use slicescheduler_executor::lane::StdThreads;
use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, LaneId, ModelId, RequestId, TransferId};
use slicescheduler_gmg::plan::{Action, Event, Fate, Rank, Source, World, WorldError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::rig::{BLOCK_TOKENS, Rig, alone, prompt};

/// Runs an iteration of one request where its sequence is, or on `device`, cutting it once if `fate` says so.
fn iterate(rig: &mut Rig, request: RequestId, chunk: u32, device: DeviceId, fate: Option<Fate>) {
    let device = rig.gmg.view().request(request).and_then(|request| request.device).unwrap_or(device);
    let spec = rig.iteration(&[(request, chunk)]);
    let job = rig.launch(spec, LaneId::new(device, 0), Rank::GuestBestEffort);
    if let Some(fate) = fate {
        rig.recall(job, fate);
    }
    while let Event::Recalled { .. } = rig.event() {
        rig.resume(job, LaneId::new(device, 1), Rank::OwnerBestEffort);
    }
}

/// A rig with both models on both devices.
fn rig() -> Rig {
    let mut rig = Rig::new();
    for tenant in 0..2u32 {
        let (model, device) = (rig.models[tenant as usize], DeviceId(1 - tenant));
        rig.act(Action::Prefetch { model, device, source: Source::Host });
        rig.event();
    }
    rig
}

/// Evicts a sequence every few iterations; it goes on from its copy, by turns on the device where it was and on the
/// other one, and its first job there is cut in some place, with its activations kept and dropped.
#[test]
fn what_was_kept_is_not_computed_again_and_no_token_changes() {
    let (asked, output) = (prompt(7, 30), 24);
    let expected = alone(0, &asked, output);
    for fate in [None, Some(Fate::Keep), Some(Fate::Drop)] {
        let mut rig = rig();
        let request = rig.request(0, &asked, output);
        let other = rig.request(1, &prompt(9, 17), 12);
        rig.keep(request);
        let (mut round, mut kept_before) = (0, 0);
        while !rig.has_ended(request) {
            iterate(&mut rig, request, 7, DeviceId(0), fate.filter(|_| round % 2 == 1));
            let kept = rig.world.kept_tokens(request);
            assert!(kept >= kept_before && kept.is_multiple_of(BLOCK_TOKENS));
            kept_before = kept;
            round += 1;
            if round % 3 == 0 && !rig.has_ended(request) {
                rig.release(request);
                // Another tenant's tokens come into the blocks that were freed.
                if !rig.has_ended(other) {
                    iterate(&mut rig, other, 5, DeviceId(0), None);
                }
                rig.restore(request);
                assert!(rig.remaining(request) <= 7 + BLOCK_TOKENS, "all but a block was kept");
                iterate(&mut rig, request, 7, DeviceId(u32::from(round % 2 == 0)), fate);
            }
        }
        assert_eq!(rig.world.tokens(request), expected, "{fate:?}");
        rig.run_alone(other);
        assert_eq!(rig.world.tokens(other), alone(1, &prompt(9, 17), 12));
    }
}

/// Three tokens are less than a block, so nothing is kept of them: the request goes on from its start, and its next job
/// from there.
#[test]
fn going_on_from_a_copy_of_nothing_is_a_start() {
    let (asked, output) = (prompt(4, 10), 6);
    let mut rig = rig();
    let request = rig.request(0, &asked, output);
    rig.keep(request);
    iterate(&mut rig, request, 3, DeviceId(0), None);
    assert_eq!(rig.world.kept_tokens(request), 0);
    rig.release(request);
    rig.restore(request);
    // Ten tokens, of which blocks of four are kept: the next job begins behind them.
    rig.run_alone(request);
    assert_eq!(rig.world.tokens(request), alone(0, &asked, output));
}

/// The n-th operator fails.
#[derive(Debug)]
struct Nth(AtomicU32);

impl Faults for Nth {
    fn at(&self, point: Point) -> Option<Fault> {
        let Point::Operator { .. } = point else { return None };
        (self.0.fetch_sub(1, Ordering::Relaxed) == 1).then_some(Fault::Fails)
    }
}

/// Wherever the job that begins with a copy fails: its request ends in the failure, the copy of it is whole, and the
/// other requests of both tenants have their tokens.
#[test]
fn a_failure_in_a_job_that_was_restored_harms_nobody_else() {
    let (asked, output) = (prompt(3, 18), 9);
    for fails in [1, 2, 9, 20] {
        let nth = Arc::new(Nth(AtomicU32::new(u32::MAX)));
        let options = CpuWorldOptions { faults: Some(nth.clone()), ..CpuWorldOptions::default() };
        let mut rig = Rig::with(options, &StdThreads).unwrap();
        let (request, same) = (rig.request(0, &asked, output), rig.request(0, &asked, output));
        rig.keep(request);
        for _ in 0..3 {
            iterate(&mut rig, request, 8, DeviceId(0), None);
        }
        let copy: KvCopy = rig.world.kept_kv(request).unwrap();
        rig.release(request);
        rig.restore(request);
        nth.0.store(fails, Ordering::Relaxed);
        let spec = rig.iteration(&[(request, u32::MAX)]);
        let job = rig.launch(spec, LaneId::new(DeviceId(0), 0), Rank::OwnerLatency);
        assert!(matches!(rig.event(), Event::Failed { job: failed, .. } if failed == job));
        rig.give_up(job, request);
        assert_eq!(copy.tokens(), 16, "it lives on");
        rig.run_alone(same);
        assert_eq!(rig.world.tokens(same), alone(0, &asked, output));
    }
}

#[test]
fn what_can_not_be_restored_is_refused_with_its_reason() {
    let mut rig = rig();
    let request = rig.request(0, &prompt(1, 10), 3);
    let text = |error: WorldError| error.to_string();
    assert!(rig.world.restore_kv(request).is_err(), "nothing is kept");
    assert!(rig.world.keep_kv(RequestId(77), rig.models[0], rig.gmg.view()).is_err());
    assert!(rig.world.keep_kv(request, ModelId(9), rig.gmg.view()).is_err());
    rig.keep(request);
    assert_eq!(rig.world.kept_tokens(request), 0);
    iterate(&mut rig, request, 9, DeviceId(0), None);
    let copy = rig.world.kept_kv(request).unwrap();
    assert_eq!((copy.tokens(), copy.block_tokens()), (8, BLOCK_TOKENS));
    for tokens in [0, 3, 12] {
        assert!(copy.outgoing(TransferId(0), tokens).is_err(), "{tokens}");
    }
    // The graph is told that nine tokens are computed, of which a block of eight was kept.
    rig.world.restore_kv(request).unwrap();
    let spec = rig.iteration(&[(request, u32::MAX)]);
    let plan = slicescheduler_gmg::plan::Plan {
        actions: [Action::run_new(spec, LaneId::new(DeviceId(0), 0))].into_iter().collect(),
        ..slicescheduler_gmg::plan::Plan::nothing(rig.gmg.version())
    };
    let accepted = rig.gmg.accept(plan);
    let refused = rig.world.enqueue(&accepted.commands[0], rig.gmg.view()).unwrap_err();
    assert_eq!(
        text(refused),
        format!("a row of {request} begins at position 9, of which 8 were kept; begin there at the latest")
    );
}
