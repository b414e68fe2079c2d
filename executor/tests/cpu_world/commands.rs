//! Commands that can not be carried out, and waiting.

use std::sync::Arc;
use std::time::Instant;

use slicescheduler_executor::ExecutorError;
use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, LaneId, ModelId, RequestId};
use slicescheduler_gmg::plan::{Action, Fate};
use slicescheduler_gmg::plan::{Command, Launch, Plan, Rank, Source, Work, World, WorldError};
use slicescheduler_gmg::templates::{DenseSpec, dense};
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::gate::Gate;
use crate::rig::{Rig, prompt};

const LANE: LaneId = LaneId::new(DeviceId(0), 0);

/// The launch of a request's next iteration, accepted by the graph and not handed to the world.
fn accepted(rig: &mut Rig, request: RequestId) -> Launch {
    let work = Work::New(Box::new(rig.iteration(&[(request, u32::MAX)])));
    let actions = [Action::Run { work, lane: LANE, rank: Rank::OwnerLatency }].into_iter().collect();
    let accepted = rig.gmg.accept(Plan { actions, ..Plan::nothing(rig.gmg.version()) });
    match accepted.commands.into_iter().next() {
        Some(Command::Launch(launch)) => launch,
        other => panic!("{other:?}"),
    }
}

fn refused(rig: &mut Rig, launch: Launch) -> WorldError {
    rig.world.enqueue(&Command::Launch(launch), rig.gmg.view()).unwrap_err()
}

/// The executor's error behind a world's.
fn cause(error: WorldError) -> ExecutorError {
    match error {
        WorldError::Other { source: Some(source), .. } => *source.downcast().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_launch_that_does_not_fit_the_world_is_refused_and_nothing_starts() {
    let mut rig = Rig::new();
    let request = rig.request(0, &prompt(1, 5), 2);
    let launch = accepted(&mut rig, request);
    let nowhere = LaneId::new(DeviceId(0), 7);
    let error = refused(&mut rig, Launch { lane: nowhere, ..launch.clone() });
    assert!(matches!(error, WorldError::NoSuchLane(lane) if lane == nowhere));

    let template = Arc::new(dense(&DenseSpec::tiny()).unwrap());
    let error = refused(&mut rig, Launch { template, ..launch.clone() });
    assert!(matches!(cause(error), ExecutorError::OtherTemplate(ModelId(0))));

    let mut arena = launch.arena;
    arena.offset = Bytes::ZERO;
    let error = refused(&mut rig, Launch { arena, ..launch.clone() });
    assert!(matches!(cause(error), ExecutorError::OutsidePart { what: "activations", .. }));

    let error = refused(&mut rig, Launch { lane: LaneId::new(DeviceId(1), 0), ..launch.clone() });
    assert!(matches!(cause(error), ExecutorError::NotLoaded { device: DeviceId(1), .. }));

    let error = refused(&mut rig, Launch { ops: 3..99, ..launch.clone() });
    assert!(matches!(cause(error), ExecutorError::OperatorRange { start: 3, end: 99, .. }));

    rig.world.forget(request);
    let error = refused(&mut rig, launch.clone());
    assert!(matches!(cause(error), ExecutorError::UnknownRequest(r) if r == request));
    assert!(rig.world.is_idle());

    rig.world.prompt(request, &prompt(1, 5), 2, None).unwrap();
    rig.world.enqueue(&Command::Launch(launch), rig.gmg.view()).unwrap();
    rig.event();
    assert_eq!(rig.world.tokens(request).len(), 1);
}

#[test]
fn bytes_that_another_lane_uses_are_refused() {
    let (gate, kernels) = Gate::new();
    let mut rig = Rig::with_kernels(kernels);
    let (first, second) = (rig.request(0, &prompt(1, 5), 1), rig.request(0, &prompt(2, 5), 1));
    gate.close();
    let running = accepted(&mut rig, first);
    rig.world.enqueue(&Command::Launch(running.clone()), rig.gmg.view()).unwrap();
    gate.begun();
    let lane = LaneId::new(DeviceId(0), 1);
    let other = accepted(&mut rig, second);
    let error = refused(&mut rig, Launch { lane, arena: running.arena, ..other.clone() });
    assert!(matches!(cause(error), ExecutorError::RegionInUse { offset, .. } if offset == running.arena.offset));
    let error = refused(&mut rig, Launch { lane, arena: other.arena, ..running });
    assert!(matches!(cause(error), ExecutorError::BlockInUse { block: 0, .. }));
    gate.open();
    rig.event();
    assert!(rig.world.is_idle());
}

#[test]
fn what_the_world_does_not_have_is_named() {
    let mut rig = Rig::new();
    let region = rig.gmg.view().memory(DeviceId(0)).unwrap().weight_region(rig.models[0]).unwrap();
    let mut fetch = |model, device, region| {
        let command = Command::Prefetch { model, device, source: Source::Host, region };
        rig.world.enqueue(&command, rig.gmg.view()).unwrap_err()
    };
    assert!(matches!(fetch(ModelId(0), DeviceId(9), region), WorldError::NoSuchDevice(DeviceId(9))));
    assert!(matches!(fetch(ModelId(9), DeviceId(0), region), WorldError::NoSuchModel(ModelId(9))));
    let mut small = region;
    small.bytes = Bytes(256);
    assert!(matches!(
        cause(fetch(ModelId(1), DeviceId(0), small)),
        ExecutorError::SlotTooSmall { model: ModelId(1), slot: Bytes(256), .. }
    ));
    let job = slicescheduler_gmg::id::JobId { slot: 5, generation: 5 };
    let gone = Command::Recall { job, lane: LANE, fate: Fate::Keep };
    rig.world.enqueue(&gone, rig.gmg.view()).unwrap();
    assert!(rig.world.is_idle(), "a job that has left its lane has nothing to recall");
}

/// What lanes of a CPU can not do is refused with its reason, and nothing is started, neither then nor later.
#[test]
fn weights_of_some_operators_and_borrowed_blocks_are_refused_and_not_passed_over() {
    let mut rig = Rig::new();
    let (model, device) = (rig.models[0], DeviceId(1));
    let fetch = Action::PrefetchOps { model, ops: 2..5, device, source: Source::Host };
    let plan = Plan { actions: [fetch].into_iter().collect(), ..Plan::nothing(rig.gmg.version()) };
    let accepted = rig.gmg.accept(plan);
    assert!(matches!(accepted.commands[..], [Command::PrefetchOps { .. }]), "{accepted:?}");
    let refused = |rig: &mut Rig, command: &Command| rig.world.enqueue(command, rig.gmg.view()).unwrap_err();
    for command in [accepted.commands[0].clone(), Command::EvictOps { model, ops: 2..5, device }] {
        let error = cause(refused(&mut rig, &command));
        assert!(matches!(error, ExecutorError::PartOfWeights { start: 2, end: 5, device: DeviceId(1), .. }), "{error}");
    }
    let blocks = rig.gmg.view().memory(device).unwrap().layout().kv_blocks();
    let moves = |device, pair| Command::MoveBlocks { device, moves: [pair].into() };
    let error = cause(refused(&mut rig, &moves(device, (blocks + 1, 3))));
    assert!(
        matches!(error, ExecutorError::NoBlock { block, blocks: have, .. } if (block, have) == (blocks + 1, blocks))
    );
    assert!(error.to_string().contains("BorrowSlots"), "{error}");

    let nowhere = DeviceId(9);
    let fetch = Command::EvictOps { model, ops: 2..5, device: nowhere };
    assert!(matches!(refused(&mut rig, &fetch), WorldError::NoSuchDevice(DeviceId(9))));
    assert!(matches!(refused(&mut rig, &moves(nowhere, (0, 1))), WorldError::NoSuchDevice(DeviceId(9))));
    assert!(rig.world.is_idle());
}

#[test]
fn a_wake_ends_a_wait_from_another_thread_and_one_before_it_ends_the_next() {
    let mut rig = Rig::new();
    let waker = rig.world.waker();
    let mut events = Vec::new();
    let far = Nanos::secs(3600);
    waker.wake();
    waker.wake();
    assert!(rig.world.poll(far, &mut events).unwrap() < far);
    let elsewhere = std::thread::spawn(move || waker.wake());
    assert!(rig.world.poll(far, &mut events).unwrap() < far);
    elsewhere.join().unwrap();
    assert_eq!(events, []);
}

#[test]
fn waiting_ends_with_its_time_or_at_once_if_nothing_can_happen() {
    let mut rig = Rig::new();
    let mut events = Vec::new();
    let begun = Instant::now();
    let now = rig.world.poll(Nanos::ZERO, &mut events).unwrap();
    let later = rig.world.poll(now + Nanos::ms(5), &mut events).unwrap();
    assert!(later >= now + Nanos::ms(5) && begun.elapsed().as_millis() >= 5);
    let endless = rig.world.poll(Nanos::MAX, &mut events).unwrap();
    assert!(endless >= later && endless < Nanos::MAX);
    assert_eq!(events, []);
}
