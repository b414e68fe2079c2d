//! Weights of whole models and of runs of operators, links that fail, containers of several layouts,
//! and agents that say what they hold.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use std::ops::Range;
use std::sync::Arc;

use slicescheduler_gmg::cluster::{Cluster, DeviceSpec, Endpoint};
use slicescheduler_gmg::delta::Divergence;
use slicescheduler_gmg::id::{ContainerId, DeviceId, JobId, LinkId, ModelId, TenantId};
use slicescheduler_gmg::job::OpState;
use slicescheduler_gmg::memory::{ByteKind, DeviceLayout, Residency, WeightState};
use slicescheduler_gmg::plan::{Action, Command, DeviceReport, Event, Rank, Source};
use slicescheduler_gmg::request::RequestState;
use slicescheduler_gmg::tenant::Layout;
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_gmg::{Container, Effect, Gmg, GmgError, GmgView, Intent, Model, Tenant};
use support::digest::digest;
use support::{
    BATCH, CHAIN, CHAT, DIAMOND, OPS, batch, chain, cluster, dispatch, gmg, iteration, lane, layout, plan, request,
};

const GPU_2: DeviceId = DeviceId(2);

fn divergence(gmg: &mut Gmg, event: Event) -> Option<Divergence> {
    match gmg.apply(event).unwrap().effect {
        Effect::Diverged(divergence) => Some(divergence),
        _ => None,
    }
}

fn load(gmg: &mut Gmg, ops: Range<u32>) {
    gmg.apply(Intent::LoadOps { model: CHAIN, ops: ops.clone(), device: GPU_2, source: Source::Host }).unwrap();
    assert_eq!(divergence(gmg, Event::OpsLoaded { model: CHAIN, ops, device: GPU_2, at: Nanos(1) }), None);
}

fn residency(gmg: &Gmg, ops: Range<u32>) -> Residency {
    gmg.state().residency(CHAIN, &ops, GPU_2)
}

fn weights(gmg: &Gmg, device: DeviceId) -> Bytes {
    gmg.state().memory(device).unwrap().ledger().of(ByteKind::Weights)
}

#[test]
fn operators_run_where_their_weights_are_and_no_further() {
    let mut gmg = gmg();
    let job = gmg.submit(iteration(CHAIN, 2)).unwrap();
    let absent = dispatch(&mut gmg, job, 0..2, lane(2, 0)).unwrap_err();
    assert_eq!(absent, GmgError::WeightsAbsent { model: CHAIN, device: GPU_2 });
    load(&mut gmg, 0..2);
    load(&mut gmg, 2..4);
    assert_eq!(weights(&gmg, GPU_2), Bytes::kib(4), "a kibibyte per operator");
    assert_eq!((residency(&gmg, 0..4), residency(&gmg, 1..3)), (Residency::Resident, Residency::Resident));
    assert_eq!((residency(&gmg, 3..5), residency(&gmg, 4..6)), (Residency::Absent, Residency::Absent));
    let beyond = dispatch(&mut gmg, job, 0..5, lane(2, 0)).unwrap_err();
    assert_eq!(beyond, GmgError::OpsAbsent { model: CHAIN, ops: 0..5, device: GPU_2, state: Residency::Absent });
    dispatch(&mut gmg, job, 0..3, lane(2, 0)).unwrap();
    let evict = |ops| Intent::EvictOps { model: CHAIN, ops, device: GPU_2 };
    let used = gmg.apply(evict(2..4)).unwrap_err();
    assert_eq!(used, GmgError::WeightsInUse { model: CHAIN, device: GPU_2, job });
    gmg.apply(support::finished(job, 0..3, lane(2, 0), 1)).unwrap();
    gmg.apply(evict(2..4)).unwrap();
    assert_eq!((residency(&gmg, 0..2), residency(&gmg, 2..4)), (Residency::Resident, Residency::Absent));
    assert_eq!(weights(&gmg, GPU_2), Bytes::kib(2));
}

#[test]
fn weights_arrive_bit_by_bit_and_go_when_their_users_have_ended() {
    let mut gmg = gmg();
    let load = |model, ops: Range<u32>| Intent::LoadOps { model, ops, device: GPU_2, source: Source::Host };
    gmg.apply(load(CHAIN, 1..4)).unwrap();
    let progress = |ops: Range<u32>, kib| Event::WeightsProgress {
        model: CHAIN,
        ops,
        device: GPU_2,
        loaded: Bytes::kib(kib),
        at: Nanos(1),
    };
    let loading = |kib| Residency::Loading { loaded: Bytes::kib(kib), of: Bytes::kib(3) };
    assert_eq!(residency(&gmg, 1..3), loading(0));
    assert_eq!(divergence(&mut gmg, progress(1..4, 2)), None);
    assert_eq!(residency(&gmg, 1..3), loading(2));
    let unexpected = Some(Divergence::UnexpectedWeights { model: CHAIN, device: GPU_2 });
    assert_eq!(divergence(&mut gmg, progress(1..4, 1)), unexpected, "nothing that has arrived is gone again");
    assert_eq!(divergence(&mut gmg, progress(0..4, 3)), unexpected, "nobody asked for these operators");
    assert_eq!(residency(&gmg, 1..3), loading(2));
    let again = gmg.apply(load(CHAIN, 3..5)).unwrap_err();
    assert_eq!(again, GmgError::WeightsPresent { model: CHAIN, device: GPU_2 });
    let whole = Intent::LoadWeights { model: CHAIN, device: GPU_2, source: Source::Host };
    assert_eq!(gmg.apply(whole).unwrap_err(), GmgError::WeightsPresent { model: CHAIN, device: GPU_2 });
    let none = gmg.apply(load(CHAIN, 4..9)).unwrap_err();
    assert_eq!(none, GmgError::NoSuchModelOps { model: CHAIN, ops: 4..9, count: OPS });
    let elsewhere = Intent::LoadOps { model: DIAMOND, ops: 0..2, device: GPU_2, source: Source::Device(DeviceId(0)) };
    assert_eq!(gmg.apply(elsewhere).unwrap_err(), GmgError::NoSource(Source::Device(DeviceId(0)), DIAMOND));

    let home = DeviceId(0);
    let job = gmg.submit(iteration(CHAIN, 2)).unwrap();
    dispatch(&mut gmg, job, 0..OPS, lane(0, 0)).unwrap();
    gmg.apply(Intent::DrainWeights { model: CHAIN, device: home }).unwrap();
    assert_eq!(gmg.state().residency(CHAIN, &(0..OPS), home), Residency::Evicting);
    let next = gmg.submit(iteration(CHAIN, 2)).unwrap();
    let refused = dispatch(&mut gmg, next, 0..OPS, lane(0, 0)).unwrap_err();
    assert_eq!(refused, GmgError::WeightsAbsent { model: CHAIN, device: home });
    gmg.apply(support::finished(job, 0..OPS, lane(0, 0), 1)).unwrap();
    assert_eq!(weights(&gmg, home), Bytes::kib(6));
    assert_eq!(divergence(&mut gmg, Event::WeightsEvicted { model: CHAIN, device: home, at: Nanos(3) }), None);
    assert_eq!(weights(&gmg, home), Bytes::ZERO);
    let gone = Event::WeightsEvicted { model: CHAIN, device: home, at: Nanos(3) };
    assert_eq!(divergence(&mut gmg, gone), Some(Divergence::UnexpectedWeights { model: CHAIN, device: home }));
}

#[test]
fn a_plan_fetches_some_operators_of_a_model() {
    let mut gmg = gmg();
    let fetch = Action::PrefetchOps { model: CHAIN, ops: 2..4, device: GPU_2, source: Source::Host };
    let accepted = gmg.accept(plan(&gmg, [fetch.clone(), fetch]));
    let [Command::PrefetchOps { region, ops, .. }] = &accepted.commands[..] else { panic!("{accepted:?}") };
    assert_eq!((region.bytes, ops.clone()), (Bytes::kib(2), 2..4));
    assert_eq!(accepted.dropped[0].reason, GmgError::WeightsPresent { model: CHAIN, device: GPU_2 });
    gmg.apply(Event::OpsLoaded { model: CHAIN, ops: 2..4, device: GPU_2, at: Nanos(1) }).unwrap();
    let evict = Action::EvictOps { model: CHAIN, ops: 2..4, device: GPU_2 };
    assert!(gmg.accept(plan(&gmg, [evict])).dropped.is_empty());
    assert_eq!(weights(&gmg, GPU_2), Bytes::ZERO);
}

#[test]
fn routes_go_around_a_failed_link_and_come_back() {
    let cluster = Cluster::builder().node("a", |node| node.devices(2, DeviceSpec::h100_sxm())).build().unwrap();
    let [one, other] = [0, 1].map(|device| Endpoint::Device(DeviceId(device)));
    let nvlink = cluster.route(one, other).unwrap().links().next().unwrap();
    let mut gmg = Gmg::new(cluster);
    let bandwidth = |gmg: &Gmg| {
        let cluster = gmg.state().cluster();
        cluster.route(one, other).map(|route| route.bandwidth(cluster))
    };
    let (fast, slow) = (Some(Bandwidth::gb_per_s(450)), Some(Bandwidth::gb_per_s(50)));
    let branch = gmg.publish();
    assert_eq!(bandwidth(&gmg), fast);
    assert_eq!(divergence(&mut gmg, Event::LinkFailed { link: nvlink, at: Nanos(1) }), None);
    assert_eq!(bandwidth(&gmg), slow, "over the host");
    assert!(gmg.state().cluster().is_failed(nvlink));
    let twice = Divergence::UnexpectedLink { link: nvlink, what: "failed" };
    assert_eq!(divergence(&mut gmg, Event::LinkFailed { link: nvlink, at: Nanos(2) }), Some(twice));
    let old = branch.view().cluster().route(one, other).map(|route| route.bandwidth(branch.view().cluster()));
    assert_eq!(old, fast, "what was published stays");
    let host = gmg.state().cluster().route(one, Endpoint::Host(slicescheduler_gmg::id::NodeId(0))).unwrap();
    let host = host.links().next().unwrap();
    divergence(&mut gmg, Event::LinkFailed { link: host, at: Nanos(3) });
    assert_eq!(bandwidth(&gmg), None);
    for link in [nvlink, host] {
        assert_eq!(divergence(&mut gmg, Event::LinkReturned { link, at: Nanos(4) }), None);
    }
    assert_eq!(bandwidth(&gmg), fast);
    let unknown = Divergence::UnexpectedLink { link: LinkId(99), what: "returned" };
    assert_eq!(divergence(&mut gmg, Event::LinkReturned { link: LinkId(99), at: Nanos(5) }), Some(unknown));
}

/// Three devices laid out, one tenant, nothing else.
fn empty() -> (Gmg, TenantId) {
    let mut gmg = Gmg::new(cluster());
    (0..3).for_each(|device| gmg.lay_out(DeviceId(device), layout()).unwrap());
    let tenant = gmg.add_tenant(Tenant::latency_sensitive("chat")).unwrap();
    (gmg, tenant)
}

#[test]
fn tensor_ranks_and_stages_have_whole_replicas() {
    let (mut gmg, tenant) = empty();
    let part = || Model::new("part", chain());
    let uneven = gmg.add_model(tenant, part(), Container::tensor([0, 1, 2], 2)).unwrap_err();
    assert_eq!(uneven, GmgError::UnevenContainer { tenant: "chat".into(), devices: 3, ranks: 2 });
    assert!(matches!(
        gmg.add_model(tenant, part(), Container::pipeline([0, 1], 2)),
        Err(GmgError::WrongLayout { found: Layout::Pipeline(2), .. })
    ));
    let stages: Arc<[Arc<Model>]> = [part(), Model::new("last", support::diamond())].map(Arc::new).into();
    let pipeline = |stages, devices: &[u32]| Intent::AddPipeline {
        tenant,
        stages,
        container: Arc::new(Container::pipeline(devices.to_vec(), 2)),
    };
    let three: Arc<[Arc<Model>]> = [part(), part(), part()].map(Arc::new).into();
    assert!(matches!(gmg.apply(pipeline(three, &[0, 1])), Err(GmgError::WrongLayout { .. })));
    let added = gmg.apply(pipeline(stages, &[0, 1])).unwrap();
    assert_eq!(added.effect, Effect::Stages(0..2, ContainerId(0)));
    let resident = |model, device| gmg.state().is_resident(ModelId(model), DeviceId(device));
    assert_eq!([resident(0, 0), resident(1, 0), resident(0, 1), resident(1, 1)], [true, false, false, true]);
    let container = &gmg.state().containers()[0];
    assert_eq!((container.rank_of(DeviceId(1)), container.rank_of(GPU_2)), (Some(1), None));
    assert_eq!((container.tenant(), gmg.state().models()[1].tenant()), (tenant, tenant));
}

#[test]
fn tenants_that_share_a_pool_are_all_at_home_there() {
    let mut gmg = gmg();
    let share = |tenant, container| Intent::ShareContainer {
        tenant,
        model: Arc::new(Model::new("late", support::diamond())),
        container: ContainerId(container),
    };
    assert_eq!(gmg.apply(share(BATCH, 9)).unwrap_err(), GmgError::NoSuchContainer(ContainerId(9)));
    assert_eq!(gmg.state().rank(BATCH, DeviceId(0)), Rank::GuestBestEffort);
    let added = gmg.apply(share(BATCH, 0)).unwrap();
    assert_eq!(added.effect, Effect::Model(ModelId(2), ContainerId(0)));
    assert_eq!(gmg.state().rank(BATCH, DeviceId(0)), Rank::OwnerBestEffort);
    assert_eq!(gmg.state().rank(CHAT, DeviceId(0)), Rank::OwnerLatency);
    assert_eq!(gmg.state().owner(DeviceId(0)), Some(CHAT));
    assert!(gmg.state().is_resident(ModelId(2), DeviceId(0)));
    gmg.apply(share(CHAT, 0)).unwrap();
    let full = gmg.apply(share(BATCH, 0)).unwrap_err();
    assert!(matches!(full, GmgError::ModelDoesNotFit { .. }), "{full}");
}

#[test]
fn an_agent_that_holds_what_the_graph_says_changes_nothing() {
    let mut gmg = gmg();
    let request = request(&mut gmg, CHAT);
    let job = gmg.submit(batch(CHAIN, &[request], 2)).unwrap();
    dispatch(&mut gmg, job, 0..OPS, lane(0, 0)).unwrap();
    let report = DeviceReport {
        device: DeviceId(0),
        queued: vec![(lane(0, 0), job, 0..2), (lane(0, 0), job, 2..OPS)],
        jobs: vec![job],
        models: vec![CHAIN],
        sequences: vec![request],
    };
    let mut before = digest(gmg.state());
    assert_eq!(divergence(&mut gmg, Event::Resync { devices: vec![report], at: Nanos(5) }), None);
    before.next_version();
    assert_eq!(digest(gmg.state()), before);
}

#[test]
fn what_an_agent_does_not_hold_is_recalled_or_lost() {
    let mut gmg = gmg();
    let [kept, gone] = [request(&mut gmg, CHAT), request(&mut gmg, CHAT)];
    let job = gmg.submit(batch(CHAIN, &[kept], 2)).unwrap();
    let other = gmg.submit(batch(CHAIN, &[gone], 2)).unwrap();
    dispatch(&mut gmg, job, 0..OPS, lane(0, 0)).unwrap();
    dispatch(&mut gmg, other, 0..OPS, lane(0, 0)).unwrap();
    let report = DeviceReport {
        device: DeviceId(0),
        queued: vec![(lane(0, 0), job, 0..4)],
        jobs: vec![job],
        models: vec![CHAIN, DIAMOND],
        sequences: vec![kept],
    };
    let expected =
        Divergence::OutOfDate { device: DeviceId(0), recalled: 2 + OPS, jobs: 1, models: 0, sequences: 1, unknown: 1 };
    assert_eq!(divergence(&mut gmg, Event::Resync { devices: vec![report], at: Nanos(5) }), Some(expected));
    let states = |job| {
        let job = gmg.state().job(job).unwrap();
        (0..OPS).filter_map(|op| job.op_state(slicescheduler_gmg::id::OpIndex(op))).collect::<Vec<_>>()
    };
    use OpState::{Blocked, Dispatched, Ready};
    assert_eq!(states(job), [Dispatched, Dispatched, Dispatched, Dispatched, Blocked, Blocked]);
    assert_eq!(states(other), [Ready, Blocked, Blocked, Blocked, Blocked, Blocked]);
    assert_eq!(gmg.state().lane(lane(0, 0)).unwrap().queue().len(), 1);
    assert!(gmg.state().job(other).unwrap().arena.is_none());
    let request = gmg.state().request(gone).unwrap();
    assert_eq!((request.state, request.device), (RequestState::Waiting, None));
    let again = dispatch(&mut gmg, other, 0..OPS, lane(0, 0)).unwrap_err();
    assert_eq!(again, GmgError::SequenceGone { request: gone, device: DeviceId(0) });

    let nothing = DeviceReport { device: DeviceId(1), ..DeviceReport::default() };
    let absent = divergence(&mut gmg, Event::Resync { devices: vec![nothing], at: Nanos(6) });
    assert!(matches!(absent, Some(Divergence::OutOfDate { models: 1, recalled: 0, .. })), "{absent:?}");
    assert_eq!(gmg.state().memory(DeviceId(1)).unwrap().weight_state(DIAMOND), None::<WeightState>);
    let nowhere = DeviceReport { device: DeviceId(7), ..DeviceReport::default() };
    let unknown = divergence(&mut gmg, Event::Resync { devices: vec![nowhere], at: Nanos(7) });
    assert_eq!(unknown, Some(Divergence::UnknownDevice(DeviceId(7))));
}

fn one_device(memory: Bytes) -> Gmg {
    let mut spec = DeviceSpec::h100_sxm();
    spec.memory = memory;
    Gmg::new(Cluster::builder().node("a", |node| node.devices(1, spec)).build().unwrap())
}

#[test]
fn a_layout_that_no_table_can_hold_is_refused() {
    let device = DeviceId(0);
    let mut gmg = one_device(Bytes::gib(4096));
    let layout = DeviceLayout::of(Bytes::gib(64));
    let bytewise = gmg.lay_out(device, DeviceLayout { kv_block: Bytes(1), ..layout }).unwrap_err();
    assert_eq!(bytewise, GmgError::TooManyBlocks { device, blocks: 64 << 30, kv_block: Bytes(1) });
    let bytes = Bytes::gib(1024);
    let wide = DeviceLayout { usable: Bytes::gib(2048), weights: bytes, ..layout };
    let wide = gmg.lay_out(device, wide).unwrap_err();
    assert_eq!(wide, GmgError::PartTooLarge { device, what: "weights", bytes });
    // 2^26 blocks of a kibibyte are 64 GiB.
    gmg.lay_out(device, DeviceLayout { kv_block: Bytes::kib(1), ..layout }).unwrap();
}

#[test]
fn a_device_of_any_size_lends_blocks_and_has_them_back() {
    let device = DeviceId(0);
    let mut gmg = one_device(Bytes::MAX);
    let blocks = |gmg: &Gmg| gmg.state().memory(device).unwrap().borrowed_blocks();
    gmg.apply(Intent::BorrowSlots { device, blocks: 1 }).unwrap();
    assert_eq!(blocks(&gmg), 1);
    gmg.apply(Intent::BorrowSlots { device, blocks: 0 }).unwrap();
    assert_eq!(blocks(&gmg), 0);
}

#[test]
fn only_what_is_reserved_is_released_and_only_what_was_lost_returns() {
    let (mut gmg, device) = (gmg(), DeviceId(0));
    gmg.apply(Intent::ReserveExternal { device, bytes: Bytes(3) }).unwrap();
    let more = gmg.apply(Intent::ReleaseExternal { device, bytes: Bytes(4) }).unwrap_err();
    assert_eq!(more, GmgError::NotReserved { device, bytes: Bytes(4), reserved: Bytes(3) });
    gmg.apply(Intent::ReleaseExternal { device, bytes: Bytes(3) }).unwrap();
    let here = gmg.apply(Intent::ReturnDevice { device }).unwrap_err();
    assert_eq!(here, GmgError::NotLost(device));
}

#[test]
fn a_container_names_its_devices_in_order() {
    let mut gmg = Gmg::new(cluster());
    let tenant = gmg.add_tenant(Tenant::best_effort("batch")).unwrap();
    let mut container = Container::replicas([]);
    container.devices.extend([2, 1].map(DeviceId));
    let unsorted = gmg.add_model(tenant, Model::new("chain", chain()), container).unwrap_err();
    let expected = GmgError::UnsortedContainer { tenant: "batch".into(), device: DeviceId(1), before: DeviceId(2) };
    assert_eq!(unsorted, expected);
}

/// Twenty-five thousand sequences that the graph has, as many models and jobs that it has not, and runs of
/// operators that count to more than 2^32.
#[test]
fn a_report_of_any_length_is_absorbed() {
    let mut gmg = one_device(Bytes::gib(80));
    let device = DeviceId(0);
    let tenant = gmg.add_tenant(Tenant::best_effort("batch")).unwrap();
    let model = gmg.add_model(tenant, Model::new("chain", chain()), Container::replicas([0])).unwrap();
    let requests: Vec<_> = (0..25_000).map(|_| request(&mut gmg, tenant)).collect();
    let mut spec = batch(model, &requests, 0);
    spec.binding = iteration(model, 1).binding;
    let job = gmg.submit(spec).unwrap();
    dispatch(&mut gmg, job, 0..OPS, lane(0, 0)).unwrap();
    let absent = JobId { slot: 9, generation: 9 };
    let report = DeviceReport {
        device,
        queued: vec![(lane(0, 0), job, 0..OPS), (lane(0, 0), absent, 0..u32::MAX), (lane(0, 0), absent, 0..u32::MAX)],
        jobs: std::iter::once(job).chain((0..25_000).map(|slot| JobId { slot, generation: 1 })).collect(),
        models: (0..25_000).map(ModelId).collect(),
        sequences: requests.iter().rev().copied().collect(),
    };
    let found = divergence(&mut gmg, Event::Resync { devices: vec![report], at: Nanos(5) });
    let expected = Divergence::OutOfDate { device, recalled: 0, jobs: 0, models: 0, sequences: 0, unknown: u32::MAX };
    assert_eq!(found, Some(expected));
}
