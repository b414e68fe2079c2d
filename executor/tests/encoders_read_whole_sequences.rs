//! An encoder on a CPU lane: the vector of a sequence depends on that sequence alone.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail by them, in its helpers too"
)]

use std::sync::Arc;
use std::time::Instant;

use slicescheduler_executor::cpu_world::{CpuWorld, CpuWorldOptions};
use slicescheduler_executor::lane::StdThreads;
use slicescheduler_executor::model::{CpuModel, SeededWeights};
use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::id::{DeviceId, LaneId};
use slicescheduler_gmg::job::{JobSpec, Row};
use slicescheduler_gmg::memory::DeviceLayout;
use slicescheduler_gmg::plan::{Action, Clock, Event, Plan, Rank, Work, World};
use slicescheduler_gmg::shape::{Binding, PAIRS, SEQUENCES, TOKENS};
use slicescheduler_gmg::templates::{EncoderSpec, Pooling, encoder};
use slicescheduler_gmg::units::{Bandwidth, Bytes, FlopRate, Nanos};
use slicescheduler_gmg::{Container, Gmg, Model, Tenant};

#[derive(Debug)]
struct SinceStart(Instant);

impl Clock for SinceStart {
    fn now(&self) -> Nanos {
        self.0.elapsed().into()
    }
}

fn spec(pooling: Pooling) -> EncoderSpec {
    let mut spec = EncoderSpec::tiny();
    spec.pooling = pooling;
    spec
}

/// The vectors of sequences that one job computes.
fn embed(pooling: Pooling, sequences: &[&[u32]]) -> Vec<Arc<[f32]>> {
    let spec = spec(pooling);
    let device = DeviceSpec::cpu(1, Bytes::mib(16), Bandwidth::gb_per_s(10), FlopRate::gflops(50));
    let cluster = Cluster::builder().node("host", |node| node.devices(1, device)).build().unwrap();
    let mut gmg = Gmg::new(cluster);
    let template = Arc::new(encoder(&spec).unwrap());
    let model = CpuModel::encoder(&spec, template.clone(), &SeededWeights::new(3)).unwrap();
    let layout = DeviceLayout {
        usable: Bytes::mib(16),
        weights: model.slot_bytes().align_up(256),
        arena: Bytes::mib(4),
        staging: Bytes::ZERO,
        kv_block: Bytes::kib(4),
        kv_block_tokens: 4,
    };
    gmg.lay_out(DeviceId(0), layout).unwrap();
    let tenant = gmg.add_tenant(Tenant::latency_sensitive("embed")).unwrap();
    let of_graph = Model::new("tiny-encoder", template).weights(model.slot_bytes());
    let id = gmg.add_model(tenant, of_graph, Container::replicas([0])).unwrap();
    let clock = Arc::new(SinceStart(Instant::now()));
    let options = CpuWorldOptions::default();
    let mut world = CpuWorld::new(gmg.view(), vec![(id, model)], clock, &StdThreads, options).unwrap();

    let (mut rows, mut tokens, mut pairs) = (Vec::new(), 0, 0);
    for sequence in sequences {
        let length = sequence.len() as u32;
        let new = NewRequest { tenant, arrival: Nanos::ZERO, prompt: length, max_output: 1 };
        let request = gmg.submit_request(new).unwrap();
        world.prompt(request, sequence, 1, None).unwrap();
        rows.push(Row { request, position: 0, tokens: length, emits: true });
        tokens += u64::from(length);
        pairs += u64::from(length).pow(2);
    }
    let dims = Binding::new().bind(TOKENS, tokens).bind(SEQUENCES, rows.len() as u64).bind(PAIRS, pairs);
    let requests: Vec<_> = rows.iter().map(|row| row.request).collect();
    let spec = JobSpec { rows, ..JobSpec::of(id).bind(dims) };
    let (work, lane) = (Work::New(Box::new(spec)), LaneId::new(DeviceId(0), 0));
    let action = Action::Run { work, lane, rank: Rank::OwnerLatency };
    let accepted = gmg.accept(Plan { actions: [action].into_iter().collect(), ..Plan::nothing(gmg.version()) });
    assert!(accepted.dropped.is_empty(), "{:?}", accepted.dropped);
    for command in &accepted.commands {
        world.enqueue(command, gmg.view()).unwrap();
    }
    let mut events = Vec::new();
    world.poll(Nanos::secs(60), &mut events).unwrap();
    let [Event::Finished { ended, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(ended.len(), requests.len());
    requests.into_iter().map(|request| world.embedding(request).unwrap()).collect()
}

const SEQUENCES_OF_TOKENS: [&[u32]; 4] = [&[5, 9, 77, 3], &[1], &[100, 101, 102, 103, 104, 105, 106], &[9, 5, 77, 3]];

#[test]
fn the_vector_of_a_sequence_does_not_depend_on_its_company() {
    for pooling in [Pooling::Mean, Pooling::First] {
        let together = embed(pooling, &SEQUENCES_OF_TOKENS);
        for (sequence, vector) in SEQUENCES_OF_TOKENS.iter().zip(&together) {
            assert_eq!(embed(pooling, &[sequence])[0], *vector, "{pooling:?} {sequence:?}");
        }
        assert_ne!(together[0], together[3], "the order of tokens matters");
    }
}

#[test]
fn mean_vectors_have_length_one() {
    for vector in embed(Pooling::Mean, &SEQUENCES_OF_TOKENS) {
        let length: f32 = vector.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
        assert_eq!(vector.len(), 32);
    }
}
