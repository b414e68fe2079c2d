//! Accepting a plan: what cannot be carried out is given back with its reason and leaves no trace,
//! the rest is reserved and turned into commands, in order.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use std::sync::Arc;

use proptest::prelude::*;
use slicescheduler_gmg::id::{DeviceId, JobId, ModelId, ReplicaId, RequestId};
use slicescheduler_gmg::memory::WeightState;
use slicescheduler_gmg::plan::{Action, BatchLimits, Command, Event, Fate, Rank, Source};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_gmg::{Delta, Effect, Gmg, GmgError, GmgView, Intent};
use support::digest::digest;
use support::reference::{Reference, Verdict};
use support::stream::{Step, Stream, steps};
use support::{
    BLOCKS, CHAIN, CHAT, DIAMOND, OPS, batch, dispatch, finished, finished_with, gmg, iteration, lane, plan, recalled,
    request,
};

const NOBODY: JobId = JobId { slot: 5, generation: 3 };
const GPU_0: DeviceId = DeviceId(0);
const GPU_1: DeviceId = DeviceId(1);
const GPU_2: DeviceId = DeviceId(2);

/// The reason why the graph drops `action`, which must come back as it was and leave no trace.
fn reason(gmg: &mut Gmg, action: Action) -> GmgError {
    let before = digest(gmg.state());
    let mut accepted = gmg.accept(plan(gmg, [action.clone()]));
    assert_eq!(digest(gmg.state()), before);
    assert!(accepted.commands.is_empty() && accepted.applied.is_empty());
    assert_eq!(accepted.dropped.len(), 1, "{action:?} was carried out");
    let dropped = accepted.dropped.remove(0);
    assert_eq!((dropped.index, dropped.action), (0, action));
    dropped.reason
}

/// Carries out `action`.
fn accept(gmg: &mut Gmg, action: Action) -> slicescheduler_gmg::plan::Accepted {
    let accepted = gmg.accept(plan(gmg, [action]));
    assert!(accepted.dropped.is_empty(), "{:?}", accepted.dropped);
    accepted
}

/// A job on lane 0 of device 0.
fn running(gmg: &mut Gmg) -> JobId {
    let job = gmg.submit(iteration(CHAIN, 2)).unwrap();
    accept(gmg, Action::run(job, 0..OPS, lane(0, 0)));
    job
}

fn lose(gmg: &mut Gmg, device: DeviceId) {
    gmg.apply(Event::DeviceLost { device, at: Nanos(9) }).unwrap();
}

#[test]
fn jobs_and_operators_that_cannot_run_are_dropped() {
    let mut gmg = gmg();
    let whole = |job| Action::run(job, 0..OPS, lane(0, 0));

    let error = reason(&mut gmg, whole(NOBODY));
    assert_eq!(error, GmgError::NoSuchJob(NOBODY));
    assert_eq!(error.to_string(), "job 5v3 does not exist (any more)");

    let waiting = gmg.submit(iteration(CHAIN, 2)).unwrap();
    let error = reason(&mut gmg, Action::run(waiting, 4..7, lane(0, 0)));
    assert_eq!(error, GmgError::NoSuchOps { job: waiting, ops: 4..7, count: OPS });
    assert_eq!(error.to_string(), "operators 4..7 of job 0v0 do not exist, it has 6");
    let error = reason(&mut gmg, Action::run(waiting, 3..3, lane(0, 0)));
    assert_eq!(error, GmgError::NoSuchOps { job: waiting, ops: 3..3, count: OPS });

    let error = reason(&mut gmg, Action::run(waiting, 2..OPS, lane(0, 0)));
    assert_eq!(error, GmgError::OutOfOrder { job: waiting, op: 2, lane: lane(0, 0) });
    let message = "operators before 2 of job 0v0 are neither done nor queued ahead of it on lane 0.0";
    assert_eq!(error.to_string(), message);

    let error = reason(&mut gmg, Action::run(waiting, 0..OPS, lane(0, 7)));
    assert_eq!(error, GmgError::NoSuchLane(lane(0, 7)));
    assert_eq!(error.to_string(), "lane 0.7 does not exist");

    let after = gmg.submit(iteration(CHAIN, 2).after(waiting).after(NOBODY)).unwrap();
    let error = reason(&mut gmg, whole(after));
    assert_eq!(error, GmgError::NotReady { job: after, count: 1 });
    assert_eq!(error.to_string(), "job 1v0 waits for 1 other jobs");

    accept(&mut gmg, whole(waiting));
    let error = reason(&mut gmg, whole(waiting));
    assert_eq!(error, GmgError::NotPending { job: waiting, ops: 0..OPS });
    assert_eq!(error.to_string(), "operators 0..6 of job 0v0 are not all pending");
}

#[test]
fn later_operators_do_not_overtake_earlier_ones() {
    let mut gmg = gmg();
    let job = gmg.submit(iteration(CHAIN, 2)).unwrap();
    accept(&mut gmg, Action::run(job, 0..2, lane(0, 0)).with_rank(Rank::OwnerBestEffort));
    let next = |lane, rank| Action::run(job, 2..4, lane).with_rank(rank);
    let refused = GmgError::OutOfOrder { job, op: 2, lane: lane(0, 0) };
    assert_eq!(reason(&mut gmg, next(lane(0, 0), Rank::OwnerLatency)), refused);
    let refused = GmgError::OutOfOrder { job, op: 2, lane: lane(0, 1) };
    assert_eq!(reason(&mut gmg, next(lane(0, 1), Rank::OwnerBestEffort)), refused);
    accept(&mut gmg, next(lane(0, 0), Rank::GuestBestEffort));
    gmg.apply(finished(job, 0..4, lane(0, 0), 1)).unwrap();
    accept(&mut gmg, Action::run(job, 4..OPS, lane(0, 1)).with_rank(Rank::OwnerLatency));
}

#[test]
fn a_recall_or_cancellation_that_comes_at_the_wrong_time_is_dropped() {
    let mut gmg = gmg();
    let recall = |job| Action::Recall { job, fate: Fate::Keep };
    assert_eq!(reason(&mut gmg, recall(NOBODY)), GmgError::NoSuchJob(NOBODY));
    assert_eq!(reason(&mut gmg, Action::Cancel { job: NOBODY }), GmgError::NoSuchJob(NOBODY));

    let waiting = gmg.submit(iteration(CHAIN, 2)).unwrap();
    let error = reason(&mut gmg, recall(waiting));
    assert_eq!(error, GmgError::NotDispatched(waiting));
    assert_eq!(error.to_string(), "job 0v0 is not on a lane");

    let running = running(&mut gmg);
    let error = reason(&mut gmg, Action::Cancel { job: running });
    assert_eq!(error, GmgError::StillDispatched(running));
    assert_eq!(error.to_string(), "job 1v0 has operators on a lane");

    accept(&mut gmg, Action::Cancel { job: waiting });
    assert!(gmg.view().job(waiting).is_none());
}

/// A rank that is done does not keep the others from being given up with it.
#[test]
fn a_gang_is_given_up_whole_whichever_of_its_ranks_is_named() {
    for named in 0..2 {
        let mut gmg = gmg();
        let specs = [0, 1].map(|rank| Arc::new(iteration(CHAIN, 2).rank(rank, 2)));
        let Effect::Gang(ranks) = gmg.apply(Intent::SubmitGang(specs.into())).unwrap().effect else { panic!() };
        dispatch(&mut gmg, ranks[1], 0..OPS, lane(0, 0)).unwrap();
        assert_eq!(reason(&mut gmg, Action::Cancel { job: ranks[named] }), GmgError::StillDispatched(ranks[1]));
        gmg.apply(finished(ranks[1], 0..OPS, lane(0, 0), 1)).unwrap();
        accept(&mut gmg, Action::Cancel { job: ranks[named] });
        assert!(ranks.iter().all(|&rank| gmg.view().job(rank).is_none()));
    }
}

#[test]
fn a_job_that_was_cut_goes_on_where_its_activations_are() {
    let mut gmg = gmg();
    accept(&mut gmg, Action::prefetch(CHAIN, GPU_2, Source::Device(GPU_0)));
    gmg.apply(Event::WeightsLoaded { model: CHAIN, device: GPU_2, at: Nanos(1) }).unwrap();
    let job = running(&mut gmg);
    gmg.apply(recalled(job, lane(0, 0), 0..2, OPS, Fate::Keep)).unwrap();
    let error = reason(&mut gmg, Action::run(job, 2..OPS, lane(2, 0)));
    assert_eq!(error, GmgError::ActivationsElsewhere { job, on: GPU_0, to: GPU_2 });
    assert_eq!(error.to_string(), "job 0v0 has activations on device 0, it cannot continue on device 2");
    accept(&mut gmg, Action::run(job, 2..OPS, lane(0, 1)));
}

#[test]
fn work_without_a_model_or_its_dims_is_dropped() {
    let mut gmg = gmg();
    let unknown = ModelId(7);
    let error = reason(&mut gmg, Action::run_new(iteration(unknown, 1), lane(0, 0)));
    assert_eq!(error, GmgError::NoSuchModel(unknown));
    assert_eq!(error.to_string(), "model 7 does not exist");
    let prefetch = Action::prefetch(unknown, GPU_0, Source::Host);
    assert_eq!(reason(&mut gmg, prefetch), GmgError::NoSuchModel(unknown));

    let unbound = iteration(CHAIN, 1).bind(Binding::new());
    let error = reason(&mut gmg, Action::run_new(unbound, lane(0, 0)));
    assert!(matches!(error, GmgError::Graph(_)));
    assert_eq!(error.to_string(), "graph \"chain\" needs a value for \"tokens\", which is not bound");

    let earlier = gmg.submit(iteration(CHAIN, 1)).unwrap();
    let next = JobId { slot: 1, generation: 0 };
    let error = reason(&mut gmg, Action::run_new(iteration(CHAIN, 1).after(earlier), lane(0, 0)));
    assert_eq!(error, GmgError::NotReady { job: next, count: 1 });
}

#[test]
fn weights_are_moved_only_when_they_can_be() {
    let mut gmg = gmg();
    let error = reason(&mut gmg, Action::run_new(iteration(CHAIN, 1), lane(2, 0)));
    assert_eq!(error, GmgError::WeightsAbsent { model: CHAIN, device: GPU_2 });
    assert_eq!(error.to_string(), "the weights of model 0 are not on device 2");
    let evict = |device| Action::EvictWeights { model: CHAIN, device };
    assert_eq!(reason(&mut gmg, evict(GPU_2)), GmgError::WeightsAbsent { model: CHAIN, device: GPU_2 });

    let error = reason(&mut gmg, Action::prefetch(CHAIN, GPU_0, Source::Host));
    assert_eq!(error, GmgError::WeightsPresent { model: CHAIN, device: GPU_0 });
    assert_eq!(error.to_string(), "the weights of model 0 are on device 0 already");

    let error = reason(&mut gmg, Action::prefetch(CHAIN, GPU_2, Source::Device(GPU_1)));
    assert_eq!(error, GmgError::NoSource(Source::Device(GPU_1), CHAIN));
    assert_eq!(error.to_string(), "device 1 has no weights of model 0 to copy");

    let error = reason(&mut gmg, Action::prefetch(CHAIN, DeviceId(9), Source::Host));
    assert_eq!(error, GmgError::NoSuchDevice(DeviceId(9), 3));
    assert_eq!(error.to_string(), "device 9 does not exist, the cluster has 3");

    let job = running(&mut gmg);
    let error = reason(&mut gmg, evict(GPU_0));
    assert_eq!(error, GmgError::WeightsInUse { model: CHAIN, device: GPU_0, job });
    assert_eq!(error.to_string(), "the weights of model 0 on device 0 are in use by job 0v0");

    accept(&mut gmg, Action::prefetch(CHAIN, GPU_2, Source::Host));
    let early = reason(&mut gmg, Action::run_new(iteration(CHAIN, 1), lane(2, 0)));
    assert_eq!(early, GmgError::WeightsAbsent { model: CHAIN, device: GPU_2 });
}

#[test]
fn a_lost_device_takes_no_work() {
    let mut gmg = gmg();
    lose(&mut gmg, GPU_0);
    let error = reason(&mut gmg, Action::run_new(iteration(CHAIN, 1), lane(0, 0)));
    assert_eq!(error, GmgError::DeviceLost(GPU_0));
    assert_eq!(error.to_string(), "device 0 is lost");
    let prefetch = Action::prefetch(CHAIN, GPU_0, Source::Host);
    assert_eq!(reason(&mut gmg, prefetch), GmgError::DeviceLost(GPU_0));
    let evict = Action::EvictWeights { model: CHAIN, device: GPU_0 };
    assert_eq!(reason(&mut gmg, evict), GmgError::DeviceLost(GPU_0));
}

/// Hand calculation: 20 tokens of 64 B are 1,280 B, a multiple of the alignment; a chain needs two
/// such buffers, 2,560 B, and the arena has 4,096 B.
#[test]
fn memory_is_never_promised_twice() {
    let mut gmg = gmg();
    accept(&mut gmg, Action::run_new(iteration(CHAIN, 20), lane(0, 0)));
    let error = reason(&mut gmg, Action::run_new(iteration(CHAIN, 20), lane(0, 1)));
    let (wanted, available) = (Bytes(2560), Bytes(1536));
    assert_eq!(error, GmgError::NoMemory { device: GPU_0, what: "activations", wanted, available });
    assert_eq!(error.to_string(), "device 0 has 1.5 KiB of activations left, 2.5 KiB are wanted");

    let first = request(&mut gmg, CHAT);
    let action = Action::run_new(batch(CHAIN, &[first], BLOCKS + 1), lane(0, 1));
    let error = reason(&mut gmg, action);
    let (wanted, available) = (Bytes::kib(u64::from(BLOCKS) + 1), Bytes::kib(u64::from(BLOCKS)));
    assert_eq!(error, GmgError::NoMemory { device: GPU_0, what: "KV blocks", wanted, available });
    assert_eq!(error.to_string(), "device 0 has 12.0 KiB of KV blocks left, 13.0 KiB are wanted");

    // 14 KiB for weights: one chain (6 KiB) and one diamond (3 KiB) leave 5 KiB.
    accept(&mut gmg, Action::prefetch(DIAMOND, GPU_0, Source::Host));
    lose(&mut gmg, GPU_2);
    gmg.apply(Intent::ReturnDevice { device: GPU_2 }).unwrap();
    accept(&mut gmg, Action::prefetch(CHAIN, GPU_1, Source::Host));
    let late = slicescheduler_gmg::Model::new("late", support::chain());
    let late = gmg.add_model(CHAT, late, slicescheduler_gmg::Container::replicas([2])).unwrap();
    let error = reason(&mut gmg, Action::prefetch(late, GPU_0, Source::Host));
    let refused =
        GmgError::NoMemory { device: GPU_0, what: "weights", wanted: Bytes::kib(6), available: Bytes::kib(5) };
    assert_eq!(error, refused);
    assert_eq!(error.to_string(), "device 0 has 5.0 KiB of weights left, 6.0 KiB are wanted");
}

#[test]
fn a_batch_runs_only_with_requests_that_live_and_sequences_that_lie_there() {
    let mut gmg = gmg();
    let ghost = RequestId(40);
    let error = reason(&mut gmg, Action::run_new(batch(CHAIN, &[ghost], 1), lane(0, 0)));
    assert_eq!(error, GmgError::NoSuchRequest(ghost));
    assert_eq!(error.to_string(), "request 40 does not exist or has ended");
    // A row that needs no further block is as stale as one that does.
    let error = reason(&mut gmg, Action::run_new(batch(CHAIN, &[ghost], 0), lane(0, 0)));
    assert_eq!(error, GmgError::NoSuchRequest(ghost));

    let request = request(&mut gmg, CHAT);
    let first = accept(&mut gmg, Action::run_new(batch(CHAIN, &[request], 2), lane(0, 0)));
    let job = first.applied[0].effect.job().unwrap();
    let error = reason(&mut gmg, Action::run_new(batch(DIAMOND, &[request], 0), lane(1, 0)));
    assert_eq!(error, GmgError::SequenceElsewhere { request, on: GPU_0, to: GPU_1 });
    assert_eq!(error.to_string(), "the sequence of request 0 lies on device 0, not on device 1");

    let error = reason(&mut gmg, Action::ReleaseKv { request, device: GPU_0 });
    assert_eq!(error, GmgError::RequestInUse { request, job });
    assert_eq!(error.to_string(), "request 0 is part of job 0v0, which is on a lane");
    let error = reason(&mut gmg, Action::ReleaseKv { request, device: GPU_1 });
    assert_eq!(error, GmgError::SequenceElsewhere { request, on: GPU_0, to: GPU_1 });

    let error = reason(&mut gmg, Action::Reject { request, reason: "overload" });
    assert_eq!(error, GmgError::RequestStarted { request, device: GPU_0 });
    assert_eq!(error.to_string(), "request 0 was begun on device 0; only a waiting request can be rejected");

    gmg.apply(recalled(job, lane(0, 0), 0..1, OPS, Fate::Keep)).unwrap();
    accept(&mut gmg, Action::ReleaseKv { request, device: GPU_0 });
    let error = reason(&mut gmg, Action::run(job, 1..OPS, lane(0, 0)));
    assert_eq!(error, GmgError::SequenceGone { request, device: GPU_0 });
    let message = "the sequence of request 0 is not on device 0 any more, where the iteration grew it; form a new one";
    assert_eq!(error.to_string(), message);
}

#[test]
fn ended_requests_cannot_be_released_or_rejected() {
    let mut gmg = gmg();
    let request = request(&mut gmg, CHAT);
    let accepted = accept(&mut gmg, Action::run_new(batch(CHAIN, &[request], 1), lane(0, 0)));
    let job = accepted.applied[0].effect.job().unwrap();
    gmg.apply(finished_with(job, 0..OPS, lane(0, 0), &[request])).unwrap();
    let gone = GmgError::NoSuchRequest(request);
    assert_eq!(reason(&mut gmg, Action::ReleaseKv { request, device: GPU_0 }), gone);
    assert_eq!(reason(&mut gmg, Action::Reject { request, reason: "late" }), gone);
}

#[test]
fn what_batching_must_carry_out_first_is_dropped() {
    let mut gmg = gmg();
    let replica = ReplicaId { tenant: CHAT, index: 0 };
    let limits = BatchLimits { tokens: 1, sequences: 1, new_blocks: 1, keep_free: 0, not_due_before: Nanos::ZERO };
    let form = Action::FormBatch { replica, lane: lane(0, 0), limits, rank: Rank::OwnerLatency };
    let error = reason(&mut gmg, form);
    assert_eq!(error, GmgError::NotMaterialized("forming a batch"));
    assert_eq!(error.to_string(), "forming a batch is for batching to carry out before the plan is accepted");
    let error = reason(&mut gmg, Action::EvictSequences { replica, blocks: 1 });
    assert_eq!(error, GmgError::NotMaterialized("evicting sequences"));
}

#[test]
fn commands_follow_the_order_of_the_plan_and_skip_what_was_dropped() {
    let mut gmg = gmg();
    let first = gmg.submit(iteration(CHAIN, 1)).unwrap();
    let actions = [
        Action::run(first, 0..3, lane(0, 0)),
        Action::run(NOBODY, 0..OPS, lane(0, 0)),
        Action::prefetch(CHAIN, GPU_1, Source::Device(GPU_0)),
        Action::Recall { job: first, fate: Fate::Drop },
        Action::run_new(iteration(DIAMOND, 1), lane(1, 0)).with_rank(Rank::OwnerBestEffort),
        Action::EvictWeights { model: DIAMOND, device: GPU_1 },
        Action::run(first, 3..OPS, lane(0, 0)),
    ];
    let accepted = gmg.accept(plan(&gmg, actions.clone()));
    let told: Vec<_> = accepted
        .commands
        .iter()
        .map(|command| match command {
            Command::Launch(launch) => {
                format!("{} {}..{} on {}", launch.job, launch.ops.start, launch.ops.end, launch.lane)
            }
            Command::Recall { job, lane, fate } => format!("recall {job} from {lane}, {fate:?}"),
            Command::Prefetch { model, device, region, .. } => format!("{model} to {device} at {}", region.offset),
            other => format!("{other:?}"),
        })
        .collect();
    let expected = [
        "job 0v0 0..3 on lane 0.0",
        // Behind the diamond's 3 KiB.
        "model 0 to device 1 at 3.0 KiB",
        "recall job 0v0 from lane 0.0, Drop",
        "job 1v0 0..4 on lane 1.0",
        "job 0v0 3..6 on lane 0.0",
    ];
    assert_eq!(told, expected);
    let dropped: Vec<_> = accepted.dropped.iter().map(|dropped| (dropped.index, dropped.action.clone())).collect();
    assert_eq!(dropped, [(1, actions[1].clone()), (5, actions[5].clone())]);
    assert_eq!(gmg.view().memory(GPU_1).unwrap().weight_state(CHAIN), Some(WeightState::Loading));
}

#[test]
fn a_launch_names_the_memory_that_was_reserved_for_it() {
    let mut gmg = gmg();
    let accepted = accept(&mut gmg, Action::run_new(iteration(CHAIN, 2), lane(0, 1)));
    let [Command::Launch(launch)] = &accepted.commands[..] else { panic!("{:?}", accepted.commands) };
    let job = gmg.view().job(launch.job).unwrap().arena;
    assert_eq!(job, Some((GPU_0, launch.arena)));
    assert_eq!(launch.arena.offset, Bytes::kib(14));
    assert_eq!((launch.ops.clone(), launch.lane, launch.rank), (0..OPS, lane(0, 1), Rank::GuestBestEffort));
}

/// What a step of a stream would be as an action of a plan.
fn action(delta: &Delta) -> Option<Action> {
    let Delta::Intent(intent) = delta else {
        return match *delta {
            Delta::Observed(Event::Recalled { job, fate, .. }) => Some(Action::Recall { job, fate }),
            _ => None,
        };
    };
    Some(match intent.clone() {
        Intent::SubmitJob(spec) => {
            let device = u16::try_from(spec.key.iteration % 6).unwrap_or(0);
            Action::run_new((*spec).clone(), lane(u32::from(device / 2), device % 2))
        }
        Intent::Dispatch { job, ops, lane, rank } => Action::run(job, ops, lane).with_rank(rank),
        Intent::Cancel { job } | Intent::Retire { job } => Action::Cancel { job },
        Intent::LoadWeights { model, device, source } => Action::prefetch(model, device, source),
        Intent::EvictWeights { model, device } => Action::EvictWeights { model, device },
        Intent::ReleaseKv { request, device } => Action::ReleaseKv { request, device },
        Intent::Reject { request } => Action::Reject { request, reason: "overload" },
        _ => return None,
    })
}

/// Applies a step to the graph, the stream and the reference.
fn apply(gmg: &mut Gmg, stream: &mut Stream, reference: &mut Reference, step: Step) {
    let delta = stream.next(step, gmg.state());
    reference.apply(&delta);
    if let Ok(applied) = gmg.apply(delta) {
        stream.note(&applied.effect);
    }
}

proptest! {
    #![proptest_config(support::cases(200))]

    /// The deltas of an accepted plan follow the rules of the model, dropped actions come back
    /// equal, and the plan without them has the same outcome.
    #[test]
    fn a_plan_does_what_it_does_without_its_stale_actions(rounds in prop::collection::vec((steps(0..15), steps(1..8)), 1..12)) {
        let mut gmg = gmg();
        let mut reference = Reference::of(gmg.state());
        let mut stream = Stream::default();
        for (before, wishes) in rounds {
            before.into_iter().for_each(|step| apply(&mut gmg, &mut stream, &mut reference, step));
            let wishes = wishes.into_iter().filter_map(|step| action(&stream.next(step, gmg.state())));
            let wanted = plan(&gmg, wishes);
            let mut again = Gmg::restore(&gmg.publish());
            let accepted = gmg.accept(wanted.clone());

            for applied in &accepted.applied {
                prop_assert_eq!(reference.apply(&applied.delta), Verdict::Applied, "{:?}", applied.delta);
                stream.note(&applied.effect);
            }
            reference.assert_equals(gmg.state());

            let mut kept = wanted.clone();
            for dropped in accepted.dropped.iter().rev() {
                prop_assert_eq!(&kept.actions.remove(dropped.index), &dropped.action);
            }
            let clean = again.accept(kept);
            prop_assert!(clean.dropped.is_empty(), "{:?}", clean.dropped);
            prop_assert_eq!(format!("{:?}", clean.commands), format!("{:?}", accepted.commands));
            prop_assert_eq!(digest(again.state()), digest(gmg.state()));
        }
    }
}

#[test]
fn existing_work_is_launched_like_new_work() {
    let mut gmg = gmg();
    let job = gmg.submit(iteration(CHAIN, 2)).unwrap();
    dispatch(&mut gmg, job, 0..1, lane(0, 0)).unwrap();
    let accepted = accept(&mut gmg, Action::run(job, 1..OPS, lane(0, 0)));
    let [Command::Launch(launch)] = &accepted.commands[..] else { panic!("{:?}", accepted.commands) };
    assert_eq!((launch.job, launch.ops.clone()), (job, 1..OPS));
    assert_eq!(accepted.applied.len(), 1);
}
