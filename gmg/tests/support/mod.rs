//! A small cluster, streams of deltas for it, and two ways to say what a graph holds.

#![allow(dead_code, unreachable_pub, reason = "every test file uses another part of this")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

pub mod digest;
pub mod reference;
pub mod stream;

use std::sync::Arc;

use proptest::prelude::ProptestConfig;
use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, RequestId, TenantId};
use slicescheduler_gmg::job::{JobSpec, KvGrowth, Row};
use slicescheduler_gmg::memory::DeviceLayout;
use slicescheduler_gmg::plan::{Action, Ended, Event, Fate, Plan, Rank};
use slicescheduler_gmg::semantics::OpKind;
use slicescheduler_gmg::shape::{Binding, Shape, TOKENS};
use slicescheduler_gmg::units::{Bandwidth, Bytes, FlopRate, Nanos};
use slicescheduler_gmg::{Applied, Container, Gmg, GmgError, GmgView, Intent, Model, Tenant};

/// `cases` cases, or `PROPTEST_CASES` where that is set. Seeds are not kept: a failure prints its
/// shrunk steps, which make a test of their own.
pub fn cases(cases: u32) -> ProptestConfig {
    let default = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() { default } else { ProptestConfig { cases, ..default } }
}

pub const DEVICES: u32 = 3;
pub const LANES: u16 = 2;
/// Operators of [`chain`].
pub const OPS: u32 = 6;
/// KV blocks of a device.
pub const BLOCKS: u32 = 12;
/// The tenant of the chain, latency-sensitive, on device 0.
pub const CHAT: TenantId = TenantId(0);
/// The tenant of the diamond, best-effort, on device 1; device 2 is nobody's.
pub const BATCH: TenantId = TenantId(1);
/// The model of [`CHAT`].
pub const CHAIN: ModelId = ModelId(0);
/// The model of [`BATCH`].
pub const DIAMOND: ModelId = ModelId(1);

/// Six matrix products in a row; 1 KiB of weights each, 64 B of activations per token and buffer.
pub fn chain() -> Arc<OpGraph> {
    let mut graph = OpGraph::builder("chain");
    let mut x = graph.input("x", DType::F32, Shape::matrix(TOKENS, 16));
    for op in 0..OPS {
        let weight = graph.weight(&format!("w{op}"), DType::F32, Shape::matrix(16, 16));
        let shape = Shape::matrix(TOKENS, 16);
        let y = if op + 1 == OPS {
            graph.output("y", DType::F32, shape)
        } else {
            graph.activation(&format!("y{op}"), DType::F32, shape)
        };
        graph.op(&format!("op{op}"), OpKind::MatMul, &[x, weight], &[y]);
        x = y;
    }
    graph.build().unwrap().into()
}

/// One product, two of its result, and their sum; 3 KiB of weights.
pub fn diamond() -> Arc<OpGraph> {
    let mut graph = OpGraph::builder("diamond");
    let x = graph.input("x", DType::F32, Shape::matrix(TOKENS, 16));
    let [top, left, right] =
        ["top", "left", "right"].map(|name| graph.activation(name, DType::F32, Shape::matrix(TOKENS, 16)));
    let y = graph.output("y", DType::F32, Shape::matrix(TOKENS, 16));
    for (name, from, to) in [("top.op", x, top), ("left.op", top, left), ("right.op", top, right)] {
        let weight = graph.weight(&format!("{name}.w"), DType::F32, Shape::matrix(16, 16));
        graph.op(name, OpKind::MatMul, &[from, weight], &[to]);
    }
    graph.op("sum", OpKind::Add, &[left, right], &[y]);
    graph.build().unwrap().into()
}

pub fn cluster() -> Cluster {
    let mut spec = DeviceSpec::custom("tiny", Bytes::kib(64), Bandwidth::gb_per_s(1), FlopRate::gflops(1));
    spec.lanes = LANES;
    Cluster::builder().node("a", |node| node.devices(DEVICES, spec)).build().unwrap()
}

/// Room for two chains and a bit of weights, 4 KiB of activations, 2 KiB of transfers, [`BLOCKS`] blocks
/// of 1 KiB.
pub fn layout() -> DeviceLayout {
    DeviceLayout {
        usable: Bytes::kib(14 + 4 + 2 + u64::from(BLOCKS)),
        weights: Bytes::kib(14),
        arena: Bytes::kib(4),
        staging: Bytes::kib(2),
        kv_block: Bytes::kib(1),
        kv_block_tokens: 4,
    }
}

/// Two tenants on three devices; the weights of each are where its container is.
pub fn gmg() -> Gmg {
    let mut gmg = Gmg::new(cluster());
    for device in 0..DEVICES {
        gmg.lay_out(DeviceId(device), layout()).unwrap();
    }
    gmg.add_tenant(Tenant::latency_sensitive("chat")).unwrap();
    gmg.add_tenant(Tenant::best_effort("batch")).unwrap();
    gmg.add_model(CHAT, Model::new("chain", chain()), Container::replicas([0])).unwrap();
    gmg.add_model(BATCH, Model::new("diamond", diamond()), Container::replicas([1])).unwrap();
    gmg
}

pub fn lane(device: u32, index: u16) -> LaneId {
    LaneId::new(DeviceId(device), index)
}

/// An iteration of `tokens` tokens without a batch.
pub fn iteration(model: ModelId, tokens: u64) -> JobSpec {
    JobSpec::of(model).bind(Binding::new().bind(TOKENS, tokens))
}

/// An iteration of one token for each of `requests`, whose sequences grow by `blocks` blocks each.
pub fn batch(model: ModelId, requests: &[RequestId], blocks: u32) -> JobSpec {
    let row = |&request: &RequestId| Row { request, position: 0, tokens: 1, emits: true };
    let growth = |&request: &RequestId| KvGrowth { request, blocks };
    JobSpec {
        rows: requests.iter().map(row).collect(),
        growth: requests.iter().filter(|_| blocks > 0).map(growth).collect(),
        ..iteration(model, requests.len() as u64)
    }
}

pub fn request(gmg: &mut Gmg, tenant: TenantId) -> RequestId {
    gmg.submit_request(NewRequest { tenant, arrival: Nanos(0), prompt: 4, max_output: 4 }).unwrap()
}

pub fn dispatch(gmg: &mut Gmg, job: JobId, ops: std::ops::Range<u32>, lane: LaneId) -> Result<Applied, GmgError> {
    gmg.apply(Intent::Dispatch { job, ops, lane, rank: Rank::OwnerLatency })
}

pub fn finished(job: JobId, ops: std::ops::Range<u32>, lane: LaneId, at: u64) -> Event {
    Event::Finished { job, ops, lane, started: Nanos(at), at: Nanos(at + 1), tokens: vec![], ended: vec![] }
}

pub fn finished_with(job: JobId, ops: std::ops::Range<u32>, lane: LaneId, requests: &[RequestId]) -> Event {
    let ended = requests.iter().map(|&request| Ended { request, produced: 1 }).collect();
    Event::Finished { job, ops, lane, started: Nanos(1), at: Nanos(2), tokens: vec![], ended }
}

pub fn recalled(job: JobId, lane: LaneId, done: std::ops::Range<u32>, end: u32, fate: Fate) -> Event {
    Event::Recalled { job, lane, done, end, fate, started: Nanos(1), at: Nanos(2) }
}

pub fn plan(gmg: &Gmg, actions: impl IntoIterator<Item = Action>) -> Plan {
    let mut plan = Plan::nothing(gmg.view().version());
    plan.actions.extend(actions);
    plan
}
