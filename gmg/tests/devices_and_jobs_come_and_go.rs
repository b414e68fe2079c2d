//! Lost and returned devices, recalls, jobs that wait for others, and who may be removed when.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use slicescheduler_gmg::delta::Divergence;
use slicescheduler_gmg::id::{DeviceId, JobId, OpIndex};
use slicescheduler_gmg::job::OpState;
use slicescheduler_gmg::memory::{ByteKind, DeviceLayout};
use slicescheduler_gmg::plan::{Event, Failure, Fate, Rank, Source};
use slicescheduler_gmg::request::RequestState;
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_gmg::{Container, Effect, Gmg, GmgError, GmgView, Intent, Model, Tenant};
use support::digest::digest;
use support::{
    BATCH, CHAIN, CHAT, DIAMOND, OPS, batch, chain, dispatch, finished, finished_with, gmg, iteration, lane, layout,
    recalled, request,
};

const GPU_0: DeviceId = DeviceId(0);
const GPU_2: DeviceId = DeviceId(2);

fn lose(gmg: &mut Gmg, device: DeviceId) {
    gmg.apply(Event::DeviceLost { device, at: Nanos(9) }).unwrap();
}

/// The weights of the chain come to a device.
fn load(gmg: &mut Gmg, device: DeviceId) {
    gmg.apply(Intent::LoadWeights { model: CHAIN, device, source: Source::Host }).unwrap();
    gmg.apply(Event::WeightsLoaded { model: CHAIN, device, at: Nanos(1) }).unwrap();
}

/// An iteration of `requests` that grew each by two blocks, on lane 0 of device 0.
fn running(gmg: &mut Gmg, requests: &[slicescheduler_gmg::id::RequestId]) -> JobId {
    let job = gmg.submit(batch(CHAIN, requests, 2)).unwrap();
    dispatch(gmg, job, 0..OPS, lane(0, 0)).unwrap();
    job
}

fn states(gmg: &Gmg, job: JobId) -> Vec<OpState> {
    let job = gmg.state().job(job).unwrap();
    (0..job.op_count()).filter_map(|op| job.op_state(OpIndex(op))).collect()
}

fn used(gmg: &Gmg, device: DeviceId, kind: ByteKind) -> Bytes {
    gmg.state().memory(device).unwrap().ledger().of(kind)
}

fn divergence(gmg: &mut Gmg, event: Event) -> Option<Divergence> {
    match gmg.apply(event).unwrap().effect {
        Effect::Diverged(divergence) => Some(divergence),
        _ => None,
    }
}

fn failed(job: JobId) -> Event {
    let failure = Failure::Kernel { op: 1, message: "illegal address".to_owned() };
    Event::Failed { job, lane: lane(0, 0), at: Nanos(5), failure }
}

#[test]
fn a_lost_device_takes_everything_on_it_along() {
    let mut gmg = gmg();
    let request = request(&mut gmg, CHAT);
    let job = running(&mut gmg, &[request]);
    gmg.apply(finished(job, 0..2, lane(0, 0), 1)).unwrap();
    gmg.apply(Intent::ReserveExternal { device: GPU_0, bytes: Bytes(7) }).unwrap();
    lose(&mut gmg, GPU_0);

    assert!(gmg.state().is_lost(GPU_0));
    assert_eq!(states(&gmg, job), [OpState::Lost; OPS as usize]);
    assert!(gmg.state().lane(lane(0, 0)).unwrap().is_empty());
    assert!(gmg.state().job(job).unwrap().arena.is_none());
    let memory = gmg.state().memory(GPU_0).unwrap();
    assert_eq!(memory.ledger().total(), Bytes::ZERO);
    assert_eq!(memory.weight_state(CHAIN), None);
    let request = gmg.state().request(request).unwrap();
    assert_eq!((request.state, request.device), (RequestState::Waiting, None));
    assert_eq!(gmg.state().container_of(GPU_0).map(|container| container.0), Some(0), "it stays its tenant's");
}

#[test]
fn a_recalled_job_is_lost_with_the_device_that_has_its_memory() {
    for (fate, done) in [(Fate::Keep, 0), (Fate::Keep, 3), (Fate::Drop, 3)] {
        let mut gmg = gmg();
        let request = request(&mut gmg, CHAT);
        let job = running(&mut gmg, &[request]);
        gmg.apply(recalled(job, lane(0, 0), 0..done, OPS, fate)).unwrap();
        lose(&mut gmg, GPU_0);
        assert_eq!(states(&gmg, job), [OpState::Lost; OPS as usize], "{fate:?} after {done}");
        gmg.apply(Intent::ReturnDevice { device: GPU_0 }).unwrap();
        load(&mut gmg, GPU_0);
        let refused = Err(GmgError::NotPending { job, ops: 0..OPS });
        assert_eq!(dispatch(&mut gmg, job, 0..OPS, lane(0, 0)).map(|_| ()), refused);
    }
}

#[test]
fn a_job_that_left_nothing_on_the_lost_device_goes_on_elsewhere() {
    let mut gmg = gmg();
    load(&mut gmg, GPU_2);
    let job = gmg.submit(iteration(CHAIN, 2)).unwrap();
    dispatch(&mut gmg, job, 0..OPS, lane(0, 0)).unwrap();
    gmg.apply(recalled(job, lane(0, 0), 0..3, OPS, Fate::Drop)).unwrap();
    lose(&mut gmg, GPU_0);
    assert_eq!(gmg.state().job(job).unwrap().progress(), 0);
    dispatch(&mut gmg, job, 0..OPS, lane(2, 0)).unwrap();
}

#[test]
fn what_had_ended_before_the_loss_stays_as_it_was() {
    let mut gmg = gmg();
    let request = request(&mut gmg, CHAT);
    let done = running(&mut gmg, &[request]);
    gmg.apply(finished_with(done, 0..OPS, lane(0, 0), &[request])).unwrap();
    let broken = running(&mut gmg, &[]);
    gmg.apply(failed(broken)).unwrap();
    let cancelled = running(&mut gmg, &[]);
    gmg.apply(recalled(cancelled, lane(0, 0), 0..0, OPS, Fate::Keep)).unwrap();
    gmg.apply(Intent::Cancel { job: cancelled }).unwrap();
    lose(&mut gmg, GPU_0);
    assert_eq!(states(&gmg, done), [OpState::Done; OPS as usize]);
    assert_eq!(states(&gmg, broken), [OpState::Failed; OPS as usize]);
    assert_eq!(states(&gmg, cancelled), [OpState::Cancelled; OPS as usize]);
    assert_eq!(gmg.state().request(request).unwrap().state, RequestState::Done);
}

#[test]
fn a_returned_device_is_empty_and_takes_work_once_the_weights_are_back() {
    let mut gmg = gmg();
    lose(&mut gmg, GPU_0);
    let external = Intent::ReserveExternal { device: GPU_0, bytes: Bytes(1) };
    assert_eq!(gmg.apply(external).unwrap_err(), GmgError::DeviceLost(GPU_0));
    gmg.apply(Intent::ReturnDevice { device: GPU_0 }).unwrap();
    assert_eq!(gmg.state().memory(GPU_0).unwrap().ledger().total(), Bytes::ZERO);
    let job = gmg.submit(iteration(CHAIN, 1)).unwrap();
    let refused = dispatch(&mut gmg, job, 0..OPS, lane(0, 0)).unwrap_err();
    assert_eq!(refused, GmgError::WeightsAbsent { model: CHAIN, device: GPU_0 });
    load(&mut gmg, GPU_0);
    dispatch(&mut gmg, job, 0..OPS, lane(0, 0)).unwrap();
}

#[test]
fn weights_that_arrive_after_the_loss_are_not_there() {
    let mut gmg = gmg();
    gmg.apply(Intent::LoadWeights { model: CHAIN, device: GPU_2, source: Source::Host }).unwrap();
    lose(&mut gmg, GPU_2);
    let late = Event::WeightsLoaded { model: CHAIN, device: GPU_2, at: Nanos(10) };
    let expected = Divergence::UnexpectedWeights { model: CHAIN, device: GPU_2 };
    assert_eq!(divergence(&mut gmg, late), Some(expected));
    assert!(!gmg.state().is_resident(CHAIN, GPU_2));
}

#[test]
fn a_report_about_a_lost_job_does_not_bring_it_back() {
    let mut gmg = gmg();
    let job = running(&mut gmg, &[]);
    lose(&mut gmg, GPU_0);
    let expected = Divergence::Unexpected { job, ops: 0..OPS, what: "finished" };
    assert_eq!(divergence(&mut gmg, finished(job, 0..OPS, lane(0, 0), 9)), Some(expected));
    assert_eq!(states(&gmg, job), [OpState::Lost; OPS as usize]);
}

#[test]
fn a_recall_that_keeps_lets_the_job_go_on_where_it_was_cut() {
    let mut gmg = gmg();
    let request = request(&mut gmg, CHAT);
    let job = running(&mut gmg, &[request]);
    gmg.apply(Event::Started { job, at: Nanos(1) }).unwrap();
    let arena = gmg.state().job(job).unwrap().arena;
    assert_eq!(divergence(&mut gmg, recalled(job, lane(0, 0), 0..2, OPS, Fate::Keep)), None);
    let cut = gmg.state().job(job).unwrap();
    assert_eq!((cut.progress(), cut.arena, cut.is_dispatched()), (2, arena, false));
    use OpState::{Blocked, Done, Ready};
    assert_eq!(states(&gmg, job), [Done, Done, Ready, Blocked, Blocked, Blocked]);
    dispatch(&mut gmg, job, 2..OPS, lane(0, 1)).unwrap();
    assert_eq!(divergence(&mut gmg, finished(job, 2..OPS, lane(0, 1), 5)), None);
    assert_eq!(used(&gmg, GPU_0, ByteKind::Activations), Bytes::ZERO);
}

#[test]
fn a_recall_that_drops_starts_the_job_over_without_growing_its_batch_again() {
    let mut gmg = gmg();
    let request = request(&mut gmg, CHAT);
    let job = running(&mut gmg, &[request]);
    let blocks = used(&gmg, GPU_0, ByteKind::Kv);
    assert_eq!(blocks, Bytes::kib(2));
    assert_eq!(divergence(&mut gmg, recalled(job, lane(0, 0), 0..4, OPS, Fate::Drop)), None);
    assert_eq!(gmg.state().job(job).unwrap().progress(), 0);
    assert_eq!(used(&gmg, GPU_0, ByteKind::Activations), Bytes::ZERO);
    dispatch(&mut gmg, job, 0..OPS, lane(0, 0)).unwrap();
    assert_eq!(used(&gmg, GPU_0, ByteKind::Kv), blocks);
}

#[test]
fn activations_are_dropped_when_the_last_run_of_the_job_has_left_its_lane() {
    let mut gmg = gmg();
    let job = gmg.submit(iteration(CHAIN, 2)).unwrap();
    dispatch(&mut gmg, job, 0..3, lane(0, 0)).unwrap();
    dispatch(&mut gmg, job, 3..OPS, lane(0, 0)).unwrap();
    gmg.apply(recalled(job, lane(0, 0), 0..1, 3, Fate::Drop)).unwrap();
    assert!(gmg.state().job(job).unwrap().arena.is_some(), "operators 3..6 still use them");
    gmg.apply(recalled(job, lane(0, 0), 3..3, OPS, Fate::Drop)).unwrap();
    let job = gmg.state().job(job).unwrap();
    assert_eq!((job.arena, job.progress()), (None, 0));
}

#[test]
fn a_recall_that_came_too_late_finds_the_job_done() {
    let mut gmg = gmg();
    let job = running(&mut gmg, &[]);
    let next = gmg.submit(iteration(CHAIN, 1).after(job)).unwrap();
    for fate in [Fate::Keep, Fate::Drop] {
        let mut branch = gmg.publish().branch();
        branch.apply(recalled(job, lane(0, 0), 0..OPS, OPS, fate)).unwrap();
        assert!(branch.job(job).unwrap().segments.all_done());
        assert_eq!(branch.job(job).unwrap().arena, None);
        assert_eq!(branch.job(next).unwrap().waiting_for, 0);
    }
}

#[test]
fn operators_leave_the_lane_they_are_on_whatever_lane_is_reported() {
    let mut gmg = gmg();
    let job = running(&mut gmg, &[]);
    let expected = Divergence::Unexpected { job, ops: 0..OPS, what: "finished" };
    assert_eq!(divergence(&mut gmg, finished(job, 0..OPS, lane(1, 0), 1)), Some(expected));
    assert!(gmg.state().lane(lane(0, 0)).unwrap().is_empty());
    assert!(gmg.state().job(job).unwrap().segments.all_done());
}

#[test]
fn one_report_may_span_several_runs_or_the_middle_of_one() {
    let mut gmg = gmg();
    let job = gmg.submit(iteration(CHAIN, 2)).unwrap();
    dispatch(&mut gmg, job, 0..2, lane(0, 0)).unwrap();
    dispatch(&mut gmg, job, 2..OPS, lane(0, 0)).unwrap();
    assert_eq!(divergence(&mut gmg, finished(job, 0..3, lane(0, 0), 1)), None);
    let left = |gmg: &Gmg| {
        gmg.state().lane(lane(0, 0)).unwrap().queue().iter().map(|entry| entry.ops.clone()).collect::<Vec<_>>()
    };
    assert_eq!(left(&gmg), vec![3..OPS; 1]);
    gmg.apply(finished(job, 4..5, lane(0, 0), 2)).unwrap();
    assert_eq!(left(&gmg), [3..4, 5..OPS]);
}

#[test]
fn a_job_waits_for_all_that_it_comes_after() {
    let mut gmg = gmg();
    let first = running(&mut gmg, &[]);
    let second = gmg.submit(iteration(CHAIN, 1)).unwrap();
    let last = gmg.submit(iteration(CHAIN, 1).after(first).after(second)).unwrap();
    assert_eq!(states(&gmg, last)[0], OpState::Blocked);
    gmg.apply(finished(first, 0..OPS, lane(0, 0), 1)).unwrap();
    assert_eq!(dispatch(&mut gmg, last, 0..OPS, lane(0, 0)).unwrap_err(), GmgError::NotReady { job: last, count: 1 });
    dispatch(&mut gmg, second, 0..OPS, lane(0, 1)).unwrap();
    gmg.apply(finished(second, 0..3, lane(0, 1), 2)).unwrap();
    assert_eq!(states(&gmg, last)[0], OpState::Blocked);
    gmg.apply(finished(second, 3..OPS, lane(0, 1), 3)).unwrap();
    assert_eq!(states(&gmg, last)[0], OpState::Ready);
    dispatch(&mut gmg, last, 0..OPS, lane(0, 0)).unwrap();
}

#[test]
fn a_job_does_not_wait_for_one_that_is_done_already() {
    let mut gmg = gmg();
    let first = running(&mut gmg, &[]);
    gmg.apply(finished(first, 0..OPS, lane(0, 0), 1)).unwrap();
    let beside = gmg.submit(iteration(CHAIN, 1).after(first)).unwrap();
    gmg.apply(Intent::Retire { job: first }).unwrap();
    let later = gmg.submit(iteration(CHAIN, 1).after(first)).unwrap();
    for job in [beside, later] {
        assert_eq!(states(&gmg, job)[0], OpState::Ready);
    }
}

/// Its input will never be there, so it must not run; its owner can cancel it.
#[test]
fn a_job_whose_predecessor_failed_never_becomes_ready() {
    let mut gmg = gmg();
    let first = running(&mut gmg, &[]);
    let next = gmg.submit(iteration(CHAIN, 1).after(first)).unwrap();
    gmg.apply(failed(first)).unwrap();
    gmg.apply(Intent::Retire { job: first }).unwrap();
    assert_eq!(dispatch(&mut gmg, next, 0..OPS, lane(0, 0)).unwrap_err(), GmgError::NotReady { job: next, count: 1 });
    gmg.apply(Intent::Cancel { job: next }).unwrap();
    gmg.apply(Intent::Retire { job: next }).unwrap();
    assert!(gmg.state().job(next).is_none());
}

#[test]
fn a_failed_job_leaves_its_lane_and_keeps_what_was_done() {
    let mut gmg = gmg();
    let request = request(&mut gmg, CHAT);
    let job = gmg.submit(batch(CHAIN, &[request], 2)).unwrap();
    dispatch(&mut gmg, job, 0..2, lane(0, 0)).unwrap();
    dispatch(&mut gmg, job, 2..4, lane(0, 0)).unwrap();
    gmg.apply(finished(job, 0..1, lane(0, 0), 1)).unwrap();
    assert_eq!(divergence(&mut gmg, failed(job)), None);
    use OpState::{Cancelled, Done, Failed};
    assert_eq!(states(&gmg, job), [Done, Failed, Failed, Failed, Cancelled, Cancelled]);
    assert!(gmg.state().lane(lane(0, 0)).unwrap().is_empty());
    assert_eq!(used(&gmg, GPU_0, ByteKind::Activations), Bytes::ZERO);
    assert_eq!(used(&gmg, GPU_0, ByteKind::Kv), Bytes::kib(2), "the sequence is the request's");
    gmg.apply(Intent::Retire { job }).unwrap();
    gmg.apply(Intent::RetireRequest { request }).unwrap();
    assert_eq!(used(&gmg, GPU_0, ByteKind::Kv), Bytes::ZERO);
}

#[test]
fn a_failure_of_a_job_that_is_not_on_a_lane_is_a_contradiction() {
    let mut gmg = gmg();
    let job = gmg.submit(iteration(CHAIN, 1)).unwrap();
    let expected = Divergence::Unexpected { job, ops: 0..OPS, what: "failed" };
    assert_eq!(divergence(&mut gmg, failed(job)), Some(expected));
    assert_eq!(states(&gmg, job), [OpState::Cancelled; OPS as usize]);
}

#[test]
fn a_cancellation_spares_what_is_on_a_lane() {
    let mut gmg = gmg();
    let job = gmg.submit(iteration(CHAIN, 1)).unwrap();
    dispatch(&mut gmg, job, 0..2, lane(0, 0)).unwrap();
    gmg.apply(Intent::Cancel { job }).unwrap();
    use OpState::{Cancelled, Dispatched};
    assert_eq!(states(&gmg, job), [Dispatched, Dispatched, Cancelled, Cancelled, Cancelled, Cancelled]);
    let refused = gmg.apply(Intent::Retire { job }).unwrap_err();
    assert_eq!(refused, GmgError::NotFinished(job));
    assert_eq!(refused.to_string(), "job 0v0 has operators that may still run; cancel it first");
    gmg.apply(finished(job, 0..2, lane(0, 0), 1)).unwrap();
    gmg.apply(Intent::Retire { job }).unwrap();
    assert_eq!(used(&gmg, GPU_0, ByteKind::Activations), Bytes::ZERO);
}

#[test]
fn an_old_id_never_names_a_new_job() {
    let mut gmg = gmg();
    let old = gmg.submit(iteration(CHAIN, 1)).unwrap();
    assert_eq!(gmg.apply(Intent::Retire { job: old }).unwrap_err(), GmgError::NotFinished(old));
    gmg.apply(Intent::Cancel { job: old }).unwrap();
    gmg.apply(Intent::Retire { job: old }).unwrap();
    let new = gmg.submit(iteration(CHAIN, 1)).unwrap();
    assert_eq!((new.slot, new.generation), (old.slot, old.generation + 1));
    assert!(gmg.state().job(old).is_none());
    assert_eq!(divergence(&mut gmg, finished(old, 0..OPS, lane(0, 0), 1)), Some(Divergence::UnknownJob(old)));
    assert_eq!(states(&gmg, new)[0], OpState::Ready);
}

#[test]
fn a_request_is_not_retired_while_it_is_on_a_lane() {
    let mut gmg = gmg();
    let request = request(&mut gmg, CHAT);
    // A row that needs no further block uses the sequence as well.
    let job = gmg.submit(batch(CHAIN, &[request], 0)).unwrap();
    dispatch(&mut gmg, job, 0..OPS, lane(0, 0)).unwrap();
    let refused = gmg.apply(Intent::RetireRequest { request }).unwrap_err();
    assert_eq!(refused, GmgError::RequestInUse { request, job });
    assert_eq!(divergence(&mut gmg, finished_with(job, 0..OPS, lane(0, 0), &[request])), None);
    gmg.apply(Intent::RetireRequest { request }).unwrap();
    assert!(gmg.state().request(request).is_none());
}

#[test]
fn a_request_that_is_not_running_cannot_end() {
    let mut gmg = gmg();
    let [batched, stranger] = [(); 2].map(|()| request(&mut gmg, CHAT));
    let job = running(&mut gmg, &[batched]);
    let event = finished_with(job, 0..OPS, lane(0, 0), &[stranger, batched]);
    assert_eq!(divergence(&mut gmg, event), Some(Divergence::UnknownRequest(stranger)));
    assert_eq!(gmg.state().request(batched).unwrap().state, RequestState::Done);
    assert_eq!(gmg.state().request(stranger).unwrap().state, RequestState::Waiting);
}

#[test]
fn right_of_way_orders_a_lane_and_dispatch_order_breaks_ties() {
    let mut gmg = gmg();
    let ranks = [Rank::GuestBestEffort, Rank::OwnerLatency, Rank::GuestLatency, Rank::OwnerLatency];
    let jobs = ranks.map(|rank| {
        let job = gmg.submit(iteration(CHAIN, 1)).unwrap();
        gmg.apply(Intent::Dispatch { job, ops: 0..OPS, lane: lane(0, 0), rank }).unwrap();
        job
    });
    let queue: Vec<_> = gmg.state().lane(lane(0, 0)).unwrap().queue().iter().map(|entry| entry.job).collect();
    assert_eq!(queue, [jobs[1], jobs[3], jobs[2], jobs[0]]);
}

/// The refusals that no plan can run into.
#[test]
fn tenants_models_and_layouts_are_checked() {
    let mut gmg = gmg();
    let before = digest(gmg.state());
    let model = || Model::new("late", chain());
    let stranger = slicescheduler_gmg::id::TenantId(8);
    let lay_out = |gmg: &mut Gmg, layout: DeviceLayout| gmg.lay_out(GPU_2, layout).unwrap_err().to_string();

    let refusals = [
        (
            gmg.add_tenant(Tenant::best_effort("chat")).unwrap_err(),
            GmgError::DuplicateTenant("chat".into()),
            "tenant \"chat\" exists already; names are unique",
        ),
        (
            gmg.add_model(stranger, model(), Container::replicas([2])).unwrap_err(),
            GmgError::NoSuchTenant(stranger),
            "tenant 8 does not exist",
        ),
        (
            gmg.add_model(BATCH, model(), Container::replicas([])).unwrap_err(),
            GmgError::EmptyContainer("batch".into()),
            "the container of tenant \"batch\" has no devices; it needs at least one",
        ),
        (
            gmg.add_model(BATCH, model(), Container::replicas([2, 1])).unwrap_err(),
            GmgError::DeviceTaken { device: DeviceId(1), container: slicescheduler_gmg::id::ContainerId(1) },
            "device 1 belongs to container 1 already; a device is in one container",
        ),
        (
            gmg.lay_out(GPU_0, layout()).unwrap_err(),
            GmgError::DeviceInUse(GPU_0, Bytes::kib(6)),
            "device 0 has memory in use (6.0 KiB); lay it out before anything is reserved",
        ),
    ];
    for (refused, expected, message) in refusals {
        assert_eq!(refused, expected);
        assert_eq!(refused.to_string(), message);
    }
    let message = "the layout of device 2 needs 36.0 KiB before KV blocks, 32.0 KiB are usable of 64.0 KiB";
    assert_eq!(lay_out(&mut gmg, DeviceLayout { weights: Bytes::kib(30), ..layout() }), message);
    let message = "the layout of device 2 needs 20.0 KiB before KV blocks, 65.0 KiB are usable of 64.0 KiB";
    assert_eq!(lay_out(&mut gmg, DeviceLayout { usable: Bytes::kib(65), ..layout() }), message);
    assert_eq!(digest(gmg.state()), before);

    gmg.lay_out(GPU_2, DeviceLayout { weights: Bytes::kib(4), ..layout() }).unwrap();
    let refused = gmg.add_model(BATCH, model(), Container::replicas([2])).unwrap_err();
    let message = "tenant \"batch\": model late needs 6.0 KiB of weights on device 2, which has 4.0 KiB for weights \
                   left in one piece, of 4.0 KiB laid out for them";
    assert_eq!(refused.to_string(), message);
    assert!(gmg.state().model(DIAMOND).is_some() && gmg.state().models().len() == 2);
}
