//! Cost models over measured tables: what they say about templates, and that compiled tables say
//! the same.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail by them, in its helpers too"
)]

use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::semantics::{Collective, OpKind};
use slicescheduler_gmg::shape::{Binding, Shape, TOKENS};
use slicescheduler_gmg::templates::{DenseSpec, dense};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_simulator::JobCost;
use slicescheduler_simulator::cost::{Chain, Confidence, CostModel, CostTable, Coverage, Measured, Roofline};
use slicescheduler_simulator::profile::{AttentionShape, DeviceProfile, Measure, Scaling, Table, vidur};

/// Products, decoding, prompts and norms of an H100 that somebody might have measured: `m` us and
/// more for products, and so on; any numbers will do here.
fn profile() -> DeviceProfile {
    let fill = |measure: &Measure, grids: &[&[f64]], nanos: &dyn Fn(&[f64]) -> f64| {
        let mut table = Table::builder(measure.axes());
        let mut points = vec![vec![]];
        for grid in grids {
            points = points
                .iter()
                .flat_map(|point: &Vec<f64>| grid.iter().map(move |&at| [&point[..], &[at]].concat()))
                .collect();
        }
        points.iter().for_each(|point| table.sample(point, nanos(point)).unwrap());
        table.build().unwrap()
    };
    let matmul = Measure::MatMul { weight: DType::BF16, scaling: Scaling::Whole };
    let products = fill(&matmul, &[&[1.0, 64.0, 256.0, 2048.0], &[4096.0, 32_768.0], &[4096.0, 16_384.0]], &|p| {
        3_000.0 + p[1] * p[2] / 1_500.0 + p[0] * p[1] * p[2] / 350_000.0
    });
    let shape = AttentionShape { head_dim: 128, kv: DType::BF16, window: 0 };
    let heads: [&[f64]; 2] = [&[16.0, 64.0], &[2.0, 8.0]];
    let decode = fill(&Measure::Decode(shape), &[&[1.0, 8.0, 64.0], &[1.0, 512.0, 8192.0], heads[0], heads[1]], &|p| {
        9_000.0 + p[0] * p[1] * p[3] / 6.0
    });
    let prefill = fill(&Measure::Prefill(shape), &[&[1.0, 4.0], &[64.0, 1024.0, 8192.0], heads[0], heads[1]], &|p| {
        11_000.0 + p[0] * p[1] * p[1] * p[2] / 1_700.0
    });
    let norm = Measure::Elementwise("rms_norm".into());
    let norms = fill(&norm, &[&[8192.0, 1e6, 1e8]], &|p| 2_000.0 + p[0] / 2_500.0);
    DeviceProfile::new(DeviceSpec::h100_sxm())
        .with(matmul, products)
        .with(Measure::Decode(shape), decode)
        .with(Measure::Prefill(shape), prefill)
        .with(norm, norms)
}

fn model() -> Chain {
    Chain::new(Roofline::default()).after(Measured::new([profile()]))
}

fn template() -> Arc<OpGraph> {
    dense(&DenseSpec::llama3_8b()).unwrap().into()
}

/// The stored operator called `name` in the first layer, or outside of it.
fn index(template: &OpGraph, name: &str) -> u32 {
    let names =
        (0..template.op_count()).map(|op| template.op(slicescheduler_gmg::id::OpIndex(op)).unwrap().name().to_string());
    let found = names.enumerate().find(|(_, known)| known == name);
    found.unwrap_or_else(|| panic!("no operator {name}")).0 as u32
}

/// A layer's output projection, 4096 by 4096, for 64 rows: 3000 + 2^24 / 1500 + 64 * 2^24 / 350000
/// = 3000 + 11184.8 + 3067.8 ns. Its norm, 64 * 4096 elements of two bytes read and written and
/// 4096 of the weight read, 1,056,768 bytes: linear between 1e6 and 1e8, 2000 + 422.7 ns.
#[test]
fn operators_take_what_their_tables_say() {
    let template = template();
    let batch = Binding::iteration(64, 64, 64 * 512, 64 * 512);
    let cost = JobCost::bind(&model(), &template, &batch, &DeviceSpec::h100_sxm());
    assert_eq!(cost.duration(index(&template, "layers.0.attn.o")), Nanos(17_253));
    assert_eq!(cost.duration(index(&template, "layers.0.attn.norm")), Nanos(2_423));
    // 9000 + 64 * 512 * 8 / 6: a sample between 16 and 64 heads, on which it does not depend.
    assert_eq!(cost.duration(index(&template, "layers.0.attn.attend")), Nanos(9_000 + 43_691));
}

#[test]
fn what_no_table_covers_is_left_to_the_roofline() {
    let template = template();
    let batch = Binding::iteration(64, 64, 64 * 512, 64 * 512);
    let bound = |device: &DeviceSpec| JobCost::bind(&model(), &template, &batch, device);
    let roofline = |device: &DeviceSpec| JobCost::bind(&Roofline::default(), &template, &batch, device);
    // The logits of 128,256 tokens lie more than a factor of two beyond the widest product.
    let head = index(&template, "lm_head");
    let h100 = DeviceSpec::h100_sxm();
    assert_eq!(bound(&h100).duration(head), roofline(&h100).duration(head));
    assert_ne!(
        bound(&h100).duration(index(&template, "layers.0.attn.o")),
        roofline(&h100).duration(index(&template, "layers.0.attn.o"))
    );
    assert_eq!(bound(&DeviceSpec::l4()), roofline(&DeviceSpec::l4()));
    let lanes = DeviceSpec::h100_sxm().with_lanes(2);
    assert_eq!(bound(&lanes), roofline(&lanes));
    assert_eq!(bound(&h100).confidence(), Confidence::Modelled);
}

#[test]
fn coverage_adds_up_and_says_how_far_it_reaches() {
    let template = template();
    let device = DeviceSpec::h100_sxm();
    let mut coverage = Coverage::default();
    // 4096 rows are 100 % beyond the 2048 that were measured.
    let batch = Binding::iteration(4096, 4, 4096, 4 * 1024 * 1025 / 2);
    coverage.add(&model(), &template, &batch, &device);
    let cost = JobCost::bind(&model(), &template, &batch, &device);
    assert_eq!(coverage.total(), cost.total(0..cost.op_count()));
    assert_eq!(coverage.farthest_percent, 100);
    assert!(coverage.extrapolated > coverage.interpolated && coverage.modelled > Nanos::ZERO, "{coverage}");
}

/// A sum over 8 ranks of 4096 halves per token: 8 KiB.
fn reduction() -> Arc<OpGraph> {
    let mut graph = OpGraph::builder("sum");
    let part = graph.input("part", DType::BF16, Shape::matrix(TOKENS, 4096u64));
    let sum = graph.output("sum", DType::BF16, Shape::matrix(TOKENS, 4096u64));
    graph.op("reduce", OpKind::Collective(Collective::AllReduce { ranks: 8 }), &[part], &[sum]);
    graph.build().unwrap().into()
}

/// Rows of Vidur's file for 8 workers: medians of 0.034, 0.074 and 0.322 ms at sizes of 1048576,
/// 8388608 and 67108864.
#[test]
fn collectives_take_what_was_measured_and_nearly_that_without_measurements() {
    let default = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data"));
    let folder = std::env::var_os("SLICESCHEDULER_DATA").map_or(default, PathBuf::from);
    let file = folder.join("profiles/vidur/vidur_net_h100_dgx_all_reduce.csv");
    if !file.exists() {
        assert!(std::env::var_os("CI").is_none(), "{} is missing", file.display());
        println!("skipped: {} is missing", file.display());
        return;
    }
    let device = DeviceSpec::h100_sxm();
    let profile = vidur::read_network(&file, &device).unwrap();
    let measured: Arc<Chain> = Chain::new(Roofline::default()).after(Measured::new([profile])).into();
    let template = reduction();
    for (tokens, micros) in [(128, 34), (1024, 74), (8192, 322)] {
        let batch = Binding::iteration(tokens, 1, tokens, tokens);
        let asked = JobCost::bind(&measured, &template, &batch, &device);
        assert_eq!((asked.total(0..1), asked.confidence()), (Nanos::us(micros), Confidence::Measured));
        let modelled = JobCost::bind(&Roofline::default(), &template, &batch, &device).total(0..1);
        let ratio = modelled.get() as f64 / (micros * 1_000) as f64;
        assert!((0.65..1.5).contains(&ratio), "{modelled} instead of {micros} us");
        for model in [Arc::clone(&measured) as Arc<dyn CostModel>, Arc::new(Roofline::default())] {
            let table = CostTable::new(Arc::clone(&model), Arc::clone(&template), device.clone().into());
            assert!(table.is_compiled());
            assert_eq!(table.bind(&batch), JobCost::bind(&model, &template, &batch, &device));
        }
    }
}

proptest! {
    #[test]
    fn a_compiled_table_gives_the_durations_of_the_chain(
        chunks in prop::collection::vec((1u64..3000, 0u64..20_000, any::<bool>()), 0..6),
        contexts in prop::collection::vec(1u64..30_000, 0..80),
    ) {
        let mut batch = Binding::iteration(0, 0, 0, 0);
        chunks.iter().for_each(|&(new, cached, emits)| batch.add_chunk(new, cached, emits));
        contexts.iter().for_each(|&context| batch.add_chunk(1, context, true));
        let (template, device) = (template(), DeviceSpec::h100_sxm());
        let table = CostTable::new(Arc::new(model()), Arc::clone(&template), device.clone().into());
        prop_assert!(table.is_compiled());
        prop_assert_eq!(table.bind(&batch), JobCost::bind(&model(), &template, &batch, &device));
    }

    #[test]
    fn a_compiled_table_gives_the_durations_of_the_chain_for_every_binding(
        values in prop::array::uniform4(prop_oneof![0u64..100_000, any::<u64>()]),
    ) {
        let batch = Binding::iteration(values[0], values[1], values[2], values[3]);
        let (template, device) = (template(), DeviceSpec::h100_sxm());
        let table = CostTable::new(Arc::new(model()), Arc::clone(&template), device.clone().into());
        prop_assert_eq!(table.bind(&batch), JobCost::bind(&model(), &template, &batch, &device));
    }
}
