//! Against published figures and hand calculations.

use super::*;
use crate::semantics::OpCost;
use crate::shape::{Binding, CONTEXT};
use crate::units::Flops;

fn specs() -> [DenseSpec; 9] {
    [
        DenseSpec::llama3_8b(),
        DenseSpec::llama3_70b(),
        DenseSpec::llama2_7b(),
        DenseSpec::llama2_13b(),
        DenseSpec::smollm2_135m(),
        DenseSpec::codellama_34b(),
        DenseSpec::yi_34b(),
        DenseSpec::tiny(),
        DenseSpec::llama3_8b().with_dtype(DType::Q4_0),
    ]
}

#[test]
fn parameter_counts_are_the_published_ones() {
    // The totals that the safetensors metadata of these checkpoints on Hugging Face states:
    // meta-llama/Meta-Llama-3-8B and -70B, meta-llama/Llama-2-7b-hf and -13b-hf, HuggingFaceTB/SmolLM2-135M,
    // codellama/CodeLlama-34b-hf, 01-ai/Yi-34B.
    let published =
        [8_030_261_248, 70_553_706_496, 6_738_415_616, 13_015_864_320, 134_515_008, 33_743_970_304, 34_388_917_248];
    for (spec, published) in specs().into_iter().zip(published) {
        assert_eq!(spec.parameters(), published, "{}", spec.name);
        assert_eq!(dense(&spec).unwrap().parameters(), published, "{}", spec.name);
    }
}

#[test]
fn the_graph_holds_the_bytes_that_the_specification_states() {
    for spec in specs() {
        let graph = dense(&spec).unwrap();
        assert_eq!(graph.weight_bytes(), spec.weight_bytes(), "{}", spec.name);
        let kv: Bytes = graph
            .tensors()
            .filter(|view| view.tensor.role == crate::graph::Role::KvCache)
            .map(|view| view.bytes(&Binding::new().bind(CONTEXT, 1)))
            .sum();
        assert_eq!(kv, spec.kv_bytes_per_token(), "{}", spec.name);
    }
    // 32 layers of keys and values of 8 heads of 128 two-byte elements; of 32 heads for Llama 2.
    assert_eq!(DenseSpec::llama3_8b().kv_bytes_per_token(), Bytes::kib(128));
    assert_eq!(DenseSpec::llama2_7b().kv_bytes_per_token(), Bytes::kib(512));
}

#[test]
fn costs_are_those_of_a_hand_calculation() {
    let graph = dense(&DenseSpec::llama3_8b()).unwrap();
    let mut batch = Binding::new();
    batch.add_chunk(512, 0, true);
    let cost = |name: &str| graph.op(graph.find_op(name).unwrap()).unwrap().cost(&batch);
    assert_eq!(
        cost("layers.3.attn.qkv"),
        OpCost {
            flops: Flops(2 * 512 * 4096 * 6144),
            weights: Bytes(2 * 4096 * 6144),
            read: Bytes(2 * 512 * 4096),
            written: Bytes(2 * 512 * 6144),
        }
    );
    assert_eq!(
        cost("layers.3.mlp.down"),
        OpCost {
            flops: Flops(2 * 512 * 14_336 * 4096 + 512 * 4096),
            weights: Bytes(2 * 14_336 * 4096),
            read: Bytes(2 * 512 * (14_336 + 4096)),
            written: Bytes(2 * 512 * 4096),
        }
    );
    // 512 * 513 / 2 pairs; keys and values of 512 tokens are 4096 bytes each.
    assert_eq!(
        cost("layers.3.attn.attend"),
        OpCost {
            flops: Flops(4 * 32 * 128 * 131_328),
            weights: Bytes::ZERO,
            read: Bytes(2 * 512 * 4096 + 512 * 4096),
            written: Bytes(2 * 512 * 4096),
        }
    );
    assert_eq!(
        cost("layers.3.attn.rotary"),
        OpCost {
            flops: Flops(3 * 512 * 40 * 128),
            weights: Bytes::ZERO,
            read: Bytes(2 * 512 * 6144 + 4 * 512),
            written: Bytes(2 * 512 * 4096 + 512 * 4096),
        }
    );
    assert_eq!(
        cost("embed"),
        OpCost {
            flops: Flops::ZERO,
            weights: Bytes(2 * 512 * 4096),
            read: Bytes(4 * 512),
            written: Bytes(2 * 512 * 4096),
        }
    );
    assert_eq!(cost("lm_head").flops, Flops(2 * 4096 * 128_256));
}

#[test]
fn the_total_is_the_sum_over_all_operators() {
    for spec in specs() {
        let graph = dense(&spec).unwrap();
        let mut batch = Binding::new();
        batch.add_chunk(300, 100, true);
        batch.add_chunk(1, 999, true);
        let mut sum = OpCost::default();
        for op in graph.ops() {
            sum += op.cost(&batch);
        }
        assert_eq!(graph.total_cost(&batch), sum, "{}", spec.name);
    }
}

#[test]
fn a_specification_that_no_model_can_have_is_refused() {
    let odd = DenseSpec { kv_heads: 3, ..DenseSpec::tiny() };
    let error = dense(&odd).unwrap_err().to_string();
    assert!(error.contains("4 heads of 16 elements over 3 KV heads"), "{error}");
    let shard =
        |tensor_ranks, stage, stages| DenseSpec { shard: Shard { tensor_ranks, stage, stages }, ..DenseSpec::tiny() };
    let wide = DenseSpec { hidden: 1 << 24, intermediate: 1 << 24, layers: 16_384, ..DenseSpec::tiny() };
    let cases = [
        (DenseSpec { layers: 0, ..DenseSpec::tiny() }, "0 layers: expected 1 to 16384"),
        (DenseSpec { layers: 1 << 24, ..DenseSpec::tiny() }, "16777216 layers: expected 1 to 16384"),
        (shard(0, 0, 1), "0 tensor ranks: expected 1 to 4"),
        (shard(1, 0, 0), "0 stages: expected 1 to 2"),
        (shard(1, 0, 3), "3 stages: expected 1 to 2"),
        (shard(1, 2, 2), "2 as the number of the stage, counted from 0: expected 0 to 1"),
        // 16,384 layers with three matrices of 2^48 elements of four bytes, and more: 2^65 bytes.
        (wide, "18446744073709551615 bytes of weights on one rank: expected 0 to 1125899906842624"),
    ];
    for (spec, expected) in cases {
        let error = dense(&spec).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let huge =
        DenseSpec { hidden: u64::MAX, heads: u32::MAX, kv_heads: u32::MAX, head_dim: u32::MAX, ..DenseSpec::tiny() };
    assert!(huge.parameters() > 0);
    drop(dense(&huge));
}
