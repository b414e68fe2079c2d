//! Against published figures and hand calculations.

use super::*;
use crate::semantics::OpCost;
use crate::shape::Binding;
use crate::units::Flops;

fn specs() -> [MoeSpec; 4] {
    [
        MoeSpec::mixtral_8x7b(),
        MoeSpec::qwen3_30b_a3b(),
        MoeSpec::tiny(),
        MoeSpec::mixtral_8x7b().with_dtype(DType::Q4_0),
    ]
}

fn batch(tokens: u64) -> Binding {
    let mut batch = Binding::new();
    batch.add_chunk(tokens, 0, true);
    batch
}

#[test]
fn parameter_counts_are_the_published_ones() {
    // The totals of the safetensors metadata of mistralai/Mixtral-8x7B-v0.1 and Qwen/Qwen3-30B-A3B.
    for (spec, published) in specs().into_iter().zip([46_702_792_704, 30_532_122_624]) {
        assert_eq!(spec.parameters(), published, "{}", spec.name());
        assert_eq!(moe(&spec).unwrap().parameters(), published, "{}", spec.name());
    }
    for spec in specs() {
        assert_eq!(moe(&spec).unwrap().weight_bytes(), spec.weight_bytes(), "{}", spec.name());
    }
    // "12.9B active parameters" (Jiang et al. 2024), "3.3B activated" (Qwen3 30B A3B's model card).
    assert_eq!(MoeSpec::mixtral_8x7b().active_parameters() / 10_000_000, 1287);
    assert_eq!(MoeSpec::qwen3_30b_a3b().active_parameters() / 100_000_000, 33);
}

#[test]
fn costs_are_those_of_a_hand_calculation() {
    let graph = moe(&MoeSpec::mixtral_8x7b()).unwrap();
    let cost = |name: &str, tokens| graph.op(graph.find_op(name).unwrap()).unwrap().cost(&batch(tokens));
    // One token: two experts of 2 * 14,336 x 4,096 two-byte elements.
    assert_eq!(
        cost("layers.5.mlp.gate_up", 1),
        OpCost {
            flops: Flops(2 * 2 * 4096 * 28_672),
            weights: Bytes(2 * 2 * 4096 * 28_672),
            read: Bytes(2 * 2 * 4096 + 4 * 2),
            written: Bytes(2 * 2 * 28_672),
        }
    );
    // Two tokens miss an expert with probability (3/4)^2, so 7/16 of all eight are read.
    assert_eq!(cost("layers.5.mlp.gate_up", 2).weights, Bytes(2 * 8 * 4096 * 28_672 * 7 / 16));
    let many = cost("layers.5.mlp.down", 512);
    assert_eq!(many.flops, Flops(2 * 512 * 2 * 14_336 * 4096));
    assert_eq!(many.weights, Bytes(2 * 8 * 14_336 * 4096));
    assert_eq!(cost("layers.5.mlp.router", 512).flops, Flops(2 * 512 * 4096 * 8));
    assert_eq!(cost("layers.5.mlp.combine", 512).flops, Flops(2 * 512 * 2 * 4096 + 512 * 4096));
    assert_eq!(
        cost("layers.5.mlp.permute", 512),
        OpCost {
            flops: Flops::ZERO,
            weights: Bytes::ZERO,
            read: Bytes(2 * 1024 * 4096 + 4 * 1024),
            written: Bytes(2 * 1024 * 4096),
        }
    );
}

#[test]
fn the_total_is_the_sum_over_all_operators() {
    for spec in specs() {
        let graph = moe(&spec).unwrap();
        let mut sum = OpCost::default();
        graph.ops().for_each(|op| sum += op.cost(&batch(300)));
        assert_eq!(graph.total_cost(&batch(300)), sum, "{}", spec.name());
    }
}

#[test]
fn spread_experts_are_whole_ones_and_their_ranks_have_everything_else() {
    let whole = MoeSpec::qwen3_30b_a3b();
    let rank = whole.clone().expert_parallel(8);
    let graph = moe(&rank).unwrap();
    let shared = whole.parameters() - 48 * 128 * 3 * 2048 * 768;
    assert_eq!(graph.parameters(), shared + 48 * 16 * 3 * 2048 * 768);
    assert_eq!(rank.parameters(), graph.parameters());
    assert_eq!(graph.collectives().count(), 2 * 48);
    assert!(graph.collectives().all(|of| of == Collective::AllToAll { ranks: 8 }));
    // 100 tokens to 8 experts each: 800 rows of 4,096 bytes, of which 7 of 8 parts leave the rank.
    let scatter = graph.slot(graph.find_op("layers.0.mlp.scatter").unwrap()).unwrap();
    assert_eq!(graph.payload_bytes(scatter, &batch(100)), Bytes(800 * 4096));
    assert_eq!(graph.wire_bytes(scatter, &batch(100)), Bytes(700 * 4096));
    assert!(moe(&whole.clone().expert_parallel(3)).is_err());
    assert!(moe(&whole.clone().expert_parallel(2).tensor_parallel(2)).is_err());
    assert!(moe(&MoeSpec { top: 5, ..MoeSpec::tiny() }).is_err());
}
