//! Durations of an iteration of Llama 3 8B on an H100, bound to the dims of a batch: what every job of
//! every forecast costs before anything is simulated. Compiled tables beside asking the model
//! operator by operator, for a roofline, the simulated world and measured tables of the size of
//! published ones (74 rows of products, 12 by 17 of decoding, 9 by 17 of prompts).

use std::hint::black_box;
use std::sync::Arc;

use slicescheduler_benches::Target;
use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::templates::{DenseSpec, dense};
use slicescheduler_simulator::cost::{Chain, CostModel, CostTable, JobCost, Measured, Roofline};
use slicescheduler_simulator::profile::{AttentionShape, DeviceProfile, Measure, Scaling, Table, TableError};
use slicescheduler_simulator::world::WorldCost;

use crate::Outcome;
use crate::support::{Random, nanos_per, shortest};

const BATCHES: usize = 1_000;
const REPETITIONS: u32 = 50;

pub(crate) fn rows() -> Outcome<Vec<Target>> {
    let template: Arc<OpGraph> = dense(&DenseSpec::llama3_8b())?.into();
    let batches = batches();
    let measured = Chain::new(Roofline::default()).after(Measured::new([profile()?]));
    let models: [(&str, Arc<dyn CostModel>); 3] = [
        ("bind an iteration, roofline", Arc::new(Roofline::default())),
        ("bind an iteration, simulated world", Arc::new(WorldCost::default())),
        ("bind an iteration, measured tables", Arc::new(measured)),
    ];
    let device: Arc<DeviceSpec> = DeviceSpec::h100_sxm().into();
    let rows = models.map(|(name, model)| {
        let table = CostTable::new(Arc::clone(&model), Arc::clone(&template), Arc::clone(&device));
        let compiled = time(&batches, |batch| table.bind(batch));
        let asked = time(&batches, |batch| JobCost::bind(&*model, &template, batch, &device));
        Target { peer: Some(("asking the model", asked)), ..Target::at_most(name, compiled, "ns", 114.0) }
    });
    Ok(rows.to_vec())
}

fn time(batches: &[Binding], bind: impl Fn(&Binding) -> JobCost) -> f64 {
    let time =
        shortest(REPETITIONS, || (), |()| batches.iter().for_each(|batch| drop(black_box(bind(black_box(batch))))));
    nanos_per(time, batches.len() as u64)
}

/// Up to 200 decoding sequences, and a chunk of a prompt in every fourth batch.
fn batches() -> Vec<Binding> {
    let mut random = Random(11);
    let batch = |index: usize| {
        let mut batch = Binding::iteration(0, 0, 0, 0);
        (0..1 + random.below(200)).for_each(|_| batch.add_chunk(1, random.below(4000), true));
        if index.is_multiple_of(4) {
            batch.add_chunk(256 + random.below(1792), random.below(4000), false);
        }
        batch
    };
    (0..BATCHES).map(batch).collect()
}

/// Any durations will do; the size of the tables matters.
fn profile() -> Result<DeviceProfile, TableError> {
    let steps = |count: u32, first: f64, factor: f64| (0..count).map(move |step| first * factor.powi(step as i32));
    let matmul = Measure::MatMul { weight: DType::BF16, scaling: Scaling::Whole };
    let mut products = Table::builder(matmul.axes());
    for m in steps(74, 1.0, 1.15) {
        for (n, k) in [4096.0, 6144.0, 28_672.0, 131_072.0].iter().flat_map(|n| [(*n, 4096.0), (*n, 14_336.0)]) {
            products.sample(&[m.round(), n, k], 3_000.0 + n * k / 1_500.0 + m * n * k / 350_000.0)?;
        }
    }
    let shape = AttentionShape { head_dim: 128, kv: DType::BF16, window: 0 };
    let (mut decode, mut prefill) =
        (Table::builder(Measure::Decode(shape).axes()), Table::builder(Measure::Prefill(shape).axes()));
    for length in steps(17, 1.0, 2.0) {
        for batch in steps(12, 1.0, 2.0) {
            decode.sample(&[batch, length, 32.0, 8.0], 9_000.0 + batch * length * 1.3)?;
        }
        for batch in steps(9, 1.0, 2.0) {
            prefill.sample(&[batch, length, 32.0, 8.0], 11_000.0 + batch * length * length * 0.02)?;
        }
    }
    Ok(DeviceProfile::new(DeviceSpec::h100_sxm())
        .with(matmul, products.build()?)
        .with(Measure::Decode(shape), decode.build()?)
        .with(Measure::Prefill(shape), prefill.build()?))
}
