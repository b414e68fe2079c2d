//! Jobs that run one iteration on several ranks: entered together, broken together, with sequences
//! that have a part on every rank.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use std::sync::Arc;

use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::gang::GangError;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, RequestId, TenantId};
use slicescheduler_gmg::job::{JobSpec, StoredState};
use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::{Action, Command, Event, Failure, Fate, Rank};
use slicescheduler_gmg::request::RequestState;
use slicescheduler_gmg::semantics::{Collective, OpKind};
use slicescheduler_gmg::shape::{Binding, Shape, TOKENS};
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_gmg::{Container, Effect, Gmg, GmgError, GmgView, Intent, Model, Tenant};
use support::digest::digest;
use support::{batch, cluster, dispatch, finished_with, lane, layout, plan, recalled};

const SHARDED: ModelId = ModelId(0);

/// A product, then these collectives, then a sum of what came last and the product; 1 KiB of weights.
/// What is received is added to what there is.
fn exchanges(of: &[Collective]) -> Arc<OpGraph> {
    let mut graph = OpGraph::builder("exchanges");
    let x = graph.input("x", DType::F32, Shape::matrix(TOKENS, 16));
    let weight = graph.weight("w", DType::F32, Shape::matrix(16, 16));
    let product = graph.activation("product", DType::F32, Shape::matrix(TOKENS, 16));
    graph.op("project", OpKind::MatMul, &[x, weight], &[product]);
    let mut x = product;
    for (index, &collective) in of.iter().enumerate() {
        let y = match collective {
            Collective::Send { .. } => None,
            _ => Some(graph.activation(&format!("y{index}"), DType::F32, Shape::matrix(TOKENS, 16))),
        };
        let inputs = if let Collective::Receive { .. } = collective { vec![] } else { vec![x] };
        graph.op(&format!("op{index}"), OpKind::Collective(collective), &inputs, &y.into_iter().collect::<Vec<_>>());
        x = match (collective, y) {
            (_, None) => x,
            (Collective::Receive { .. }, Some(received)) => {
                let sum = graph.activation(&format!("sum{index}"), DType::F32, Shape::matrix(TOKENS, 16));
                graph.op(&format!("add{index}"), OpKind::Add, &[x, received], &[sum]);
                sum
            }
            (_, Some(y)) => y,
        };
    }
    let y = graph.output("y", DType::F32, Shape::matrix(TOKENS, 16));
    graph.op("last", OpKind::Add, &[x, product], &[y]);
    graph.build().unwrap().into()
}

const REDUCE: Collective = Collective::AllReduce { ranks: 2 };
/// Two reductions between a product and a sum.
const OPS: u32 = 4;

/// One tenant whose model is spread over devices 0 and 1.
fn gmg_of(graphs: &[Arc<OpGraph>]) -> Gmg {
    let mut gmg = Gmg::new(cluster());
    (0..3).for_each(|device| gmg.lay_out(DeviceId(device), layout()).unwrap());
    let tenant = gmg.add_tenant(Tenant::latency_sensitive("chat")).unwrap();
    for (index, graph) in (0u32..).zip(graphs) {
        gmg.add_model(tenant, Model::new("part", graph.clone()), Container::replicas([index])).unwrap();
    }
    gmg
}

fn gmg() -> Gmg {
    gmg_of(&[exchanges(&[REDUCE, REDUCE])])
}

fn specs(size: u32, spec: &JobSpec) -> Vec<JobSpec> {
    (0..size).map(|rank| spec.clone().rank(rank, size)).collect()
}

fn submit(gmg: &mut Gmg, specs: Vec<JobSpec>) -> Result<Arc<[JobId]>, GmgError> {
    let specs: Arc<[Arc<JobSpec>]> = specs.into_iter().map(Arc::new).collect();
    match gmg.apply(Intent::SubmitGang(specs))?.effect {
        Effect::Gang(jobs) => Ok(jobs),
        other => panic!("{other:?}"),
    }
}

fn request(gmg: &mut Gmg) -> RequestId {
    support::request(gmg, TenantId(0))
}

fn placed(gmg: &mut Gmg, requests: &[RequestId]) -> Arc<[JobId]> {
    let jobs = submit(gmg, specs(2, &batch(SHARDED, requests, 2))).unwrap();
    dispatch(gmg, jobs[0], 0..OPS, lane(0, 0)).unwrap();
    dispatch(gmg, jobs[1], 0..OPS, lane(1, 0)).unwrap();
    jobs
}

fn states(gmg: &Gmg, job: JobId) -> Vec<StoredState> {
    gmg.state().job(job).unwrap().segments.iter().map(|segment| segment.state).collect()
}

fn kv(gmg: &Gmg, device: u32) -> Bytes {
    gmg.state().memory(DeviceId(device)).unwrap().ledger().of(ByteKind::Kv)
}

#[test]
fn what_exchanges_data_is_entered_as_a_whole_gang_or_not_at_all() {
    let mut gmg = gmg();
    let spec = JobSpec::of(SHARDED).bind(Binding::new().bind(TOKENS, 1));
    assert_eq!(gmg.submit(spec.clone()), Err(GangError::Alone.into()));
    assert_eq!(gmg.submit(spec.clone().rank(0, 1)), Err(GangError::Alone.into()));
    assert_eq!(submit(&mut gmg, vec![]), Err(GangError::Empty.into()));
    let group = GangError::Group { rank: 0, ranks: 2, size: 3 };
    assert_eq!(submit(&mut gmg, specs(3, &spec)), Err(group.into()));
    let mut odd = specs(2, &spec);
    odd.swap(0, 1);
    assert!(matches!(submit(&mut gmg, odd), Err(GmgError::Gang(GangError::Rank { position: 0, size: 2, .. }))));
    let mut odd = specs(2, &spec);
    odd[1].key.iteration = 7;
    assert!(matches!(submit(&mut gmg, odd), Err(GmgError::Gang(GangError::Key { rank: 1, .. }))));
    assert_eq!(gmg.version().0, 3 + 2, "nothing was entered");
    let jobs = submit(&mut gmg, specs(4, &spec)).unwrap();
    assert_eq!(gmg.state().job(jobs[2]).unwrap().gang.as_ref().unwrap().jobs(), &*jobs);
}

#[test]
fn ranks_that_disagree_about_what_they_exchange_are_refused() {
    let gather = Collective::Broadcast { ranks: 2, root: 0 };
    let graphs = [exchanges(&[REDUCE, gather]), exchanges(&[gather, REDUCE]), exchanges(&[REDUCE])];
    let mut gmg = gmg_of(&graphs);
    let member = |model: u32, rank| JobSpec::of(ModelId(model)).bind(Binding::new().bind(TOKENS, 1)).rank(rank, 2);
    let refused = submit(&mut gmg, vec![member(0, 0), member(1, 1)]).unwrap_err();
    let unmatched = GangError::Unmatched { rank: 1, peer: 0, index: 0, found: Some(gather), other: Some(REDUCE) };
    assert_eq!(refused, unmatched.into());
    let refused = submit(&mut gmg, vec![member(0, 0), member(2, 1)]).unwrap_err();
    let unmatched = GangError::Unmatched { rank: 1, peer: 0, index: 1, found: None, other: Some(gather) };
    assert_eq!(refused, unmatched.into());
    submit(&mut gmg, vec![member(0, 0), member(0, 1)]).unwrap();
}

#[test]
fn every_message_needs_both_of_its_ends() {
    let (send, receive) = (Collective::Send { distance: 1 }, Collective::Receive { distance: 1 });
    let graphs = [exchanges(&[send]), exchanges(&[receive]), exchanges(&[receive, receive])];
    let mut gmg = gmg_of(&graphs);
    let member = |model: u32, rank| JobSpec::of(ModelId(model)).bind(Binding::new().bind(TOKENS, 1)).rank(rank, 2);
    let mut refused = |members| submit(&mut gmg, members).unwrap_err();
    let unmatched = GangError::Unmatched { rank: 0, peer: 1, index: 0, found: Some(send), other: None };
    assert_eq!(refused(vec![member(0, 0), member(0, 1)]), unmatched.into());
    let nobody = GangError::Peer { rank: 0, collective: receive, size: 2 };
    assert_eq!(refused(vec![member(1, 0), member(0, 1)]), nobody.into());
    assert!(matches!(
        refused(vec![member(0, 0), member(2, 1)]),
        GmgError::Gang(GangError::Unmatched { rank: 0, peer: 1, index: 1, found: None, .. })
    ));
    submit(&mut gmg, vec![member(0, 0), member(1, 1)]).unwrap();
}

/// The sharded model on devices 0 and 1.
fn two_ranks() -> Gmg {
    let mut gmg = Gmg::new(cluster());
    (0..3).for_each(|device| gmg.lay_out(DeviceId(device), layout()).unwrap());
    let tenant = gmg.add_tenant(Tenant::latency_sensitive("chat")).unwrap();
    gmg.add_model(tenant, Model::new("sharded", exchanges(&[REDUCE, REDUCE])), Container::replicas([0, 1])).unwrap();
    gmg
}

#[test]
fn a_sequence_has_a_part_on_every_rank_and_they_are_freed_together() {
    let mut gmg = two_ranks();
    let request = request(&mut gmg);
    let jobs = placed(&mut gmg, &[request]);
    assert_eq!((kv(&gmg, 0), kv(&gmg, 1)), (Bytes::kib(2), Bytes::kib(2)));
    assert_eq!(gmg.state().request(request).unwrap().device, Some(DeviceId(0)));
    let in_use = Intent::ReleaseKv { request, device: DeviceId(0) };
    gmg.apply(finished_with(jobs[0], 0..OPS, lane(0, 0), &[])).unwrap();
    let refused = gmg.apply(in_use.clone()).unwrap_err();
    assert_eq!(refused, GmgError::RequestInUse { request, job: jobs[1] }, "rank 1 still uses its part");
    gmg.apply(finished_with(jobs[1], 0..OPS, lane(1, 0), &[])).unwrap();

    let next = submit(&mut gmg, specs(2, &batch(SHARDED, &[request], 1))).unwrap();
    dispatch(&mut gmg, next[1], 0..OPS, lane(1, 0)).unwrap();
    let elsewhere = dispatch(&mut gmg, next[0], 0..OPS, lane(1, 0)).unwrap_err();
    assert_eq!(elsewhere, GmgError::SequenceElsewhere { request, on: DeviceId(0), to: DeviceId(1) });
    dispatch(&mut gmg, next[0], 0..OPS, lane(0, 0)).unwrap();
    assert_eq!((kv(&gmg, 0), kv(&gmg, 1)), (Bytes::kib(3), Bytes::kib(3)));
    gmg.apply(finished_with(next[0], 0..OPS, lane(0, 0), &[])).unwrap();
    gmg.apply(finished_with(next[1], 0..OPS, lane(1, 0), &[request])).unwrap();
    assert_eq!((kv(&gmg, 0), kv(&gmg, 1)), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn ranks_are_placed_in_order_the_first_time() {
    let mut gmg = two_ranks();
    let request = request(&mut gmg);
    let jobs = submit(&mut gmg, specs(2, &batch(SHARDED, &[request], 2))).unwrap();
    let refused = dispatch(&mut gmg, jobs[1], 0..OPS, lane(1, 0)).unwrap_err();
    assert_eq!(refused, GmgError::RankOutOfOrder { request, placed: 0, rank: 1 });
    dispatch(&mut gmg, jobs[0], 0..OPS, lane(0, 0)).unwrap();
    assert_eq!(dispatch(&mut gmg, jobs[1], 0..OPS, lane(0, 1)).unwrap_err(), GmgError::SharedDevice(DeviceId(0)));
    dispatch(&mut gmg, jobs[1], 0..OPS, lane(1, 0)).unwrap();
}

#[test]
fn ranks_with_requests_of_their_own_are_placed_in_any_order() {
    let mut gmg = two_ranks();
    let [one, other] = [request(&mut gmg), request(&mut gmg)];
    let members = vec![batch(SHARDED, &[one], 1).rank(0, 2), batch(SHARDED, &[other], 2).rank(1, 2)];
    let jobs = submit(&mut gmg, members).unwrap();
    dispatch(&mut gmg, jobs[1], 0..OPS, lane(1, 0)).unwrap();
    dispatch(&mut gmg, jobs[0], 0..OPS, lane(0, 0)).unwrap();
    assert_eq!((kv(&gmg, 0), kv(&gmg, 1)), (Bytes::kib(1), Bytes::kib(2)));
    let third = request(&mut gmg);
    let members = vec![batch(SHARDED, &[one, third], 1).rank(0, 2), batch(SHARDED, &[third], 1).rank(1, 2)];
    let refused = submit(&mut gmg, members).unwrap_err();
    assert_eq!(refused, GangError::Batch { request: one, rank: 0 }.into());
}

#[test]
fn a_failed_rank_breaks_its_gang_and_what_comes_after_it() {
    let mut gmg = two_ranks();
    let request = request(&mut gmg);
    let jobs = submit(&mut gmg, specs(2, &batch(SHARDED, &[request], 2))).unwrap();
    dispatch(&mut gmg, jobs[0], 0..2, lane(0, 0)).unwrap();
    dispatch(&mut gmg, jobs[1], 0..2, lane(1, 0)).unwrap();
    let mut after = specs(2, &batch(SHARDED, &[], 0));
    after[0].after.push(jobs[1]);
    let after = submit(&mut gmg, after).unwrap();
    let failure = Failure::Kernel { op: 1, message: "timeout".to_owned() };
    gmg.apply(Event::Failed { job: jobs[0], lane: lane(0, 0), at: Nanos(5), failure }).unwrap();

    use StoredState::{Cancelled, Dispatched, Failed};
    assert_eq!(states(&gmg, jobs[0]), [Failed, Cancelled]);
    assert_eq!(states(&gmg, jobs[1]), [Dispatched, Cancelled], "the world has it still");
    assert_eq!((states(&gmg, after[0]), states(&gmg, after[1])), (vec![Cancelled], vec![Cancelled]));
    gmg.apply(recalled(jobs[1], lane(1, 0), 0..0, 2, Fate::Keep)).unwrap();
    assert_eq!(states(&gmg, jobs[1]), [Cancelled]);
    assert_eq!(gmg.state().memory(DeviceId(1)).unwrap().ledger().of(ByteKind::Activations), Bytes::ZERO);
    let mut late = specs(2, &batch(SHARDED, &[], 0));
    late[1].after.push(jobs[0]);
    assert_eq!(submit(&mut gmg, late), Err(GmgError::NeverDone(jobs[0])));
    for &job in jobs.iter().chain(after.iter()) {
        gmg.apply(Intent::Retire { job }).unwrap();
    }
}

#[test]
fn a_lost_device_takes_all_parts_of_its_sequences_along() {
    for lost in [0, 1] {
        let mut gmg = two_ranks();
        let request = request(&mut gmg);
        let jobs = placed(&mut gmg, &[request]);
        gmg.apply(Event::DeviceLost { device: DeviceId(lost), at: Nanos(9) }).unwrap();
        assert_eq!((kv(&gmg, 0), kv(&gmg, 1)), (Bytes::ZERO, Bytes::ZERO), "device {lost}");
        let found = gmg.state().request(request).unwrap();
        assert_eq!((found.state, found.device), (RequestState::Waiting, None));
        assert_eq!(states(&gmg, jobs[lost as usize]), [StoredState::Lost]);
        assert_eq!(states(&gmg, jobs[1 - lost as usize]), [StoredState::Dispatched]);
    }
}

#[test]
fn a_plan_runs_all_ranks_or_none() {
    let mut gmg = two_ranks();
    let request = request(&mut gmg);
    let spec = batch(SHARDED, &[request], 2);
    let gang = |lanes: [LaneId; 2]| Action::RunGang {
        members: specs(2, &spec).into_iter().zip(lanes).collect(),
        rank: Rank::OwnerLatency,
    };
    let before = digest(gmg.state());
    for (lanes, reason) in [
        ([lane(0, 0), lane(0, 1)], GmgError::SharedDevice(DeviceId(0))),
        ([lane(0, 0), lane(2, 0)], GmgError::WeightsAbsent { model: SHARDED, device: DeviceId(2) }),
    ] {
        let dropped = gmg.accept(plan(&gmg, [gang(lanes)])).dropped;
        assert_eq!(dropped[0].reason, reason);
        assert_eq!(dropped[0].action, gang(lanes));
        assert_eq!(digest(gmg.state()), before);
    }
    let accepted = gmg.accept(plan(&gmg, [gang([lane(0, 0), lane(1, 1)])]));
    assert!(accepted.dropped.is_empty());
    let lanes: Vec<_> = accepted
        .commands
        .iter()
        .map(|command| match command {
            Command::Launch(launch) => (launch.spec.gang.unwrap().rank, launch.lane),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lanes, [(0, lane(0, 0)), (1, lane(1, 1))]);
    assert_eq!((kv(&gmg, 0), kv(&gmg, 1)), (Bytes::kib(2), Bytes::kib(2)));
}
