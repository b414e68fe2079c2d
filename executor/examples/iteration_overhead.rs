//! What the world costs beside its kernels: decode iterations of the tiny decoder, with 1 and with
//! 64 sequences, once as direct calls of the kernels in a loop and once through the graph, the world
//! and a lane.
//!
//! `cargo run --release -p slicescheduler-executor --example iteration_overhead`

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use slicescheduler_executor::cpu_world::{CpuWorld, CpuWorldOptions};
use slicescheduler_executor::kernels::{
    AttentionDims, KvCache, KvLayout, Output, OwnedPanels, RotaryTable, TokenRows, argmax_rows, attention,
    embed_panels, gather_rows, matmul, rms_norm, rotary_frequencies, rotate_and_store, swiglu,
};
use slicescheduler_executor::lane::StdThreads;
use slicescheduler_executor::model::{CpuModel, SeededWeights, Shard, WeightSource};
use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::id::{DeviceId, LaneId, ModelId, RequestId};
use slicescheduler_gmg::job::{JobSpec, KvGrowth, Row};
use slicescheduler_gmg::memory::DeviceLayout;
use slicescheduler_gmg::plan::{Action, Clock, Event, Plan, Rank, Work, World};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::templates::{DenseSpec, dense};
use slicescheduler_gmg::units::{Bandwidth, Bytes, FlopRate, Nanos};
use slicescheduler_gmg::{Container, Gmg, Intent, Model, Tenant};

const SEED: u64 = 7;
const BLOCK_TOKENS: u32 = 16;
/// Contexts grow from 1 token to this many.
const STEPS: u32 = 256;
/// The best of so many runs is reported: other programs disturb a run, and only ever make it longer.
const RUNS: u32 = 10;

type Outcome<T> = Result<T, Box<dyn Error>>;

#[derive(Debug)]
struct SinceStart(Instant);

impl Clock for SinceStart {
    fn now(&self) -> Nanos {
        self.0.elapsed().into()
    }
}

fn main() -> Outcome<()> {
    println!("sequences   kernels alone   on the lane   with graph and hand-over   (us per iteration, best of {RUNS})");
    for sequences in [1, 64] {
        let (mut alone, mut on_lane, mut whole) = (f64::MAX, f64::MAX, f64::MAX);
        for _ in 0..RUNS {
            let (direct_time, direct_tokens) = direct(sequences)?;
            let (lane_time, whole_time, tokens) = through_the_world(sequences)?;
            if tokens != direct_tokens {
                return Err("the two ways give other tokens".into());
            }
            (alone, on_lane, whole) = (alone.min(direct_time), on_lane.min(lane_time), whole.min(whole_time));
        }
        println!("{sequences:>9}   {alone:>13.1}   {on_lane:>11.1}   {whole:>24.1}");
    }
    Ok(())
}

/// The first tokens of the sequences.
fn first_tokens(sequences: u32) -> Vec<u32> {
    (0..sequences).map(|sequence| sequence * 3 % 256).collect()
}

struct Layer {
    attention_norm: Vec<f32>,
    qkv: OwnedPanels,
    o: OwnedPanels,
    mlp_norm: Vec<f32>,
    gate_up: OwnedPanels,
    down: OwnedPanels,
}

/// Microseconds per iteration, and the last tokens.
fn direct(sequences: u32) -> Outcome<(f64, Vec<u32>)> {
    let spec = DenseSpec::tiny();
    let (hidden, intermediate, vocab) = (spec.hidden as usize, spec.intermediate as usize, spec.vocab as usize);
    let (layers, kv_heads, head_dim) = (spec.layers as usize, spec.kv_heads as usize, spec.head_dim as usize);
    let dims = AttentionDims::new(spec.heads as usize, kv_heads, head_dim);
    let source = SeededWeights::new(SEED);
    let vector = |name: &str, length| -> Outcome<Vec<f32>> {
        let mut elements = vec![0.0; length];
        source.fill(Shard { name, shape: &[length] }, &mut elements)?;
        Ok(elements)
    };
    let matrix = |name: &str, n, k| -> Outcome<OwnedPanels> {
        let mut elements = vec![0.0; n * k];
        source.fill(Shard { name, shape: &[n, k] }, &mut elements)?;
        Ok(OwnedPanels::pack(&elements, n, k)?)
    };
    let (embeddings, head) = (matrix("embed.weight", vocab, hidden)?, matrix("lm_head.weight", vocab, hidden)?);
    let norm = vector("norm.weight", hidden)?;
    let mut stack = Vec::new();
    for layer in 0..layers {
        let name = |part: &str| format!("layers.{layer}.{part}.weight");
        stack.push(Layer {
            attention_norm: vector(&name("attn.norm"), hidden)?,
            qkv: matrix(&name("attn.qkv"), dims.qkv_width(), hidden)?,
            o: matrix(&name("attn.o"), hidden, dims.out_width())?,
            mlp_norm: vector(&name("mlp.norm"), hidden)?,
            gate_up: matrix(&name("mlp.gate_up"), 2 * intermediate, hidden)?,
            down: matrix(&name("mlp.down"), hidden, intermediate)?,
        });
    }
    let table = RotaryTable::new(&rotary_frequencies(f64::from(spec.rope_theta), head_dim), STEPS as usize)?;
    let rows = sequences as usize;
    let layout = KvLayout { layers, kv_heads, head_dim, block_tokens: BLOCK_TOKENS as usize };
    let per_sequence = STEPS.div_ceil(BLOCK_TOKENS);
    let mut pool = vec![0.0; (per_sequence * sequences) as usize * layout.block_elements()];
    let mut cache = KvCache::new(&mut pool, layout)?;
    let numbers: Vec<u32> = (0..sequences).collect();
    let blocks: Vec<u32> = (0..per_sequence * sequences).collect();
    let starts: Vec<u32> = (0..=sequences).map(|sequence| sequence * per_sequence).collect();
    let buffer = |width: usize| vec![0.0f32; rows * width];
    let (mut x, mut normed, mut h) = (buffer(hidden), buffer(hidden), buffer(hidden));
    let (mut qkv, mut queries, mut attended) =
        (buffer(dims.qkv_width()), buffer(dims.out_width()), buffer(dims.out_width()));
    let (mut gate_up, mut activated, mut logits) = (buffer(2 * intermediate), buffer(intermediate), buffer(vocab));
    let epsilon = spec.norm_epsilon;
    let mut tokens = first_tokens(sequences);
    let begun = Instant::now();
    for step in 0..STEPS {
        let positions = vec![step; rows];
        let batch = TokenRows { sequences: &numbers, positions: &positions, blocks: &blocks, table_starts: &starts };
        embed_panels(&tokens, embeddings.view(), &mut x)?;
        for (index, layer) in stack.iter().enumerate() {
            rms_norm(&x, &layer.attention_norm, epsilon, &mut normed)?;
            matmul(&normed, rows, layer.qkv.view(), Output::Overwrite, &mut qkv)?;
            rotate_and_store(&qkv, batch, dims, &table, index, &mut cache, &mut queries)?;
            attention(&queries, batch, dims, index, &cache, &mut attended)?;
            h.copy_from_slice(&x);
            matmul(&attended, rows, layer.o.view(), Output::Accumulate, &mut h)?;
            rms_norm(&h, &layer.mlp_norm, epsilon, &mut normed)?;
            matmul(&normed, rows, layer.gate_up.view(), Output::Overwrite, &mut gate_up)?;
            swiglu(&gate_up, intermediate, &mut activated)?;
            x.copy_from_slice(&h);
            matmul(&activated, rows, layer.down.view(), Output::Accumulate, &mut x)?;
        }
        gather_rows(&x, hidden, &numbers, &mut h)?;
        rms_norm(&h, &norm, epsilon, &mut normed)?;
        matmul(&normed, rows, head.view(), Output::Overwrite, &mut logits)?;
        argmax_rows(&logits, vocab, &mut tokens)?;
    }
    Ok((begun.elapsed().as_secs_f64() * 1e6 / f64::from(STEPS), tokens))
}

/// Microseconds per iteration from the start of the first operator to the end of the last, and from
/// the plan to the applied event; and the last tokens.
fn through_the_world(sequences: u32) -> Outcome<(f64, f64, Vec<u32>)> {
    let spec = DenseSpec::tiny();
    let memory = Bytes::mib(256);
    let cpu = DeviceSpec::cpu(1, memory, Bandwidth::gb_per_s(10), FlopRate::gflops(50));
    let mut gmg = Gmg::new(Cluster::builder().node("host", |node| node.devices(1, cpu)).build()?);
    let kv_block = spec.kv_bytes_per_token().times(u64::from(BLOCK_TOKENS));
    gmg.lay_out(DeviceId(0), DeviceLayout { kv_block, kv_block_tokens: BLOCK_TOKENS, ..DeviceLayout::of(memory) })?;
    let tenant = gmg.add_tenant(Tenant::best_effort("bench"))?;
    let template = Arc::new(dense(&spec)?);
    let decoder = CpuModel::decoder(&spec, template.clone(), &SeededWeights::new(SEED))?;
    let model = gmg.add_model(tenant, Model::new("tiny", template), Container::replicas([0]))?;
    let clock = Arc::new(SinceStart(Instant::now()));
    let options = CpuWorldOptions::default();
    let mut world = CpuWorld::new(gmg.view(), vec![(model, decoder)], clock, &StdThreads, options)?;
    let mut requests = Vec::new();
    for token in first_tokens(sequences) {
        let new = NewRequest { tenant, arrival: Nanos::ZERO, prompt: 1, max_output: STEPS };
        let request = gmg.submit_request(new)?;
        world.prompt(request, &[token], STEPS, None)?;
        requests.push(request);
    }
    let (mut events, mut on_lane) = (Vec::new(), Nanos::ZERO);
    let begun = Instant::now();
    for step in 0..STEPS {
        let work = Work::New(Box::new(iteration(model, &requests, step)));
        let run = Action::Run { work, lane: LaneId::new(DeviceId(0), 0), rank: Rank::OwnerBestEffort };
        let accepted = gmg.accept(Plan { actions: [run].into_iter().collect(), ..Plan::nothing(gmg.version()) });
        for command in &accepted.commands {
            world.enqueue(command, gmg.view())?;
        }
        world.poll(Nanos::MAX, &mut events)?;
        for event in events.drain(..) {
            let Event::Finished { job, started, at, .. } = event else {
                return Err(format!("unexpected: {event:?}").into());
            };
            on_lane += at - started;
            gmg.apply(event)?;
            gmg.apply(Intent::Retire { job })?;
        }
    }
    let whole = begun.elapsed().as_secs_f64() * 1e6 / f64::from(STEPS);
    let last = requests.iter().filter_map(|&request| world.tokens(request).last().copied()).collect();
    Ok((on_lane.as_secs_f64() * 1e6 / f64::from(STEPS), whole, last))
}

/// One more token of each request.
fn iteration(model: ModelId, requests: &[RequestId], position: u32) -> JobSpec {
    let mut dims = Binding::new();
    requests.iter().for_each(|_| dims.add_chunk(1, u64::from(position), true));
    let row = |&request: &RequestId| Row { request, position, tokens: 1, emits: true };
    let blocks = u32::from(position.is_multiple_of(BLOCK_TOKENS));
    let grows = requests.iter().filter(|_| blocks > 0);
    JobSpec {
        rows: requests.iter().map(row).collect(),
        growth: grows.map(|&request| KvGrowth { request, blocks }).collect(),
        ..JobSpec::of(model).bind(dims)
    }
}
