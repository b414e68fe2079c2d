//! What the shards of a model have in common with the whole.

use std::sync::Arc;

use super::*;
use crate::dtype::DType;
use crate::gang;
use crate::graph::{OpGraph, Role};
use crate::id::ModelId;
use crate::job::JobSpec;
use crate::semantics::{Collective, OpKind};
use crate::shape::{Binding, CONTEXT};
use crate::units::Bytes;

fn batch(tokens: u64) -> Binding {
    let mut batch = Binding::new();
    batch.add_chunk(tokens, 100, true);
    batch
}

/// Arithmetic of the operators that are cut: products and attention.
fn products(graph: &OpGraph, binding: &Binding) -> u64 {
    let cut = |kind: &OpKind| matches!(kind, OpKind::MatMul | OpKind::GroupedMatMul { .. } | OpKind::Attention { .. });
    graph.ops().filter(|op| cut(op.kind())).map(|op| op.cost(binding).flops.get()).sum()
}

/// The same graph on several ranks.
fn copies(graph: OpGraph, ranks: u32) -> Vec<Arc<OpGraph>> {
    let graph = Arc::new(graph);
    (0..ranks).map(|_| graph.clone()).collect()
}

fn is_gang(templates: &[Arc<OpGraph>]) {
    let size = templates.len() as u32;
    let specs: Vec<_> = (0..size).map(|rank| JobSpec::of(ModelId(rank)).rank(rank, size)).collect();
    let members: Vec<_> = specs.iter().zip(templates).collect();
    gang::check(&members).unwrap();
}

#[test]
fn tensor_ranks_have_equal_parts_of_products_attention_and_cache() {
    for (ranks, spec) in [(2, DenseSpec::llama3_8b()), (8, DenseSpec::llama3_70b()), (2, DenseSpec::tiny())] {
        let (whole, rank) = (dense(&spec).unwrap(), dense(&spec.clone().tensor_parallel(ranks)).unwrap());
        // The residual that a whole model adds in the product is added after the sum.
        let residuals = 2 * u64::from(spec.layers) * 50 * spec.hidden;
        let batch = batch(50);
        assert_eq!(products(&rank, &batch) * u64::from(ranks), products(&whole, &batch) - residuals, "{}", spec.name);
        let norms = (2 * u64::from(spec.layers) + 1) * spec.hidden;
        assert_eq!((rank.parameters() - norms) * u64::from(ranks), whole.parameters() - norms, "{}", spec.name);
        let kv = |graph: &OpGraph| -> Bytes {
            let caches = graph.tensors().filter(|view| view.tensor.role == Role::KvCache);
            caches.map(|view| view.bytes(&Binding::new().bind(CONTEXT, 1))).sum()
        };
        assert_eq!(kv(&rank).times(u64::from(ranks)), kv(&whole));
        assert_eq!(kv(&rank), spec.clone().tensor_parallel(ranks).kv_bytes_per_token());
        is_gang(&copies(rank, ranks));
    }
}

#[test]
fn more_ranks_than_kv_heads_share_them() {
    // 8 KV heads on 16 ranks: one each, every one of them twice.
    let rank = DenseSpec::llama3_70b().tensor_parallel(16);
    assert_eq!(rank.kv_bytes_per_token(), Bytes(2 * 2 * 128 * 80));
    let graph = dense(&rank).unwrap();
    assert_eq!(graph.parameters(), rank.parameters());
    let odd = dense(&DenseSpec::llama3_8b().tensor_parallel(3)).unwrap_err().to_string();
    assert!(odd.contains("32 heads") && odd.contains("3 ranks"), "{odd}");
    assert!(dense(&DenseSpec::llama3_8b().tensor_parallel(0)).is_err());
}

#[test]
fn a_layer_of_a_tensor_rank_reduces_twice() {
    let graph = dense(&DenseSpec::llama3_8b().tensor_parallel(4)).unwrap();
    let reductions = graph.collectives().filter(|of| *of == Collective::AllReduce { ranks: 4 }).count();
    assert_eq!((reductions, graph.collectives().count()), (2 * 32 + 1, 2 * 32 + 2));
    let mut decode = Binding::new();
    (0..16).for_each(|_| decode.add_chunk(1, 500, true));
    // 65 sums of 16 rows of 8,192 bytes, of which a ring sends 3/4 twice; 16 rows of 256,512 bytes of
    // logits, of which 3/4 come from elsewhere.
    let expected = 65 * (16 * 8192 * 3 / 2) + 16 * 256_512 * 3 / 4;
    assert_eq!(graph.total_wire_bytes(&decode), Bytes(expected));
    let whole = dense(&DenseSpec::llama3_8b()).unwrap();
    assert_eq!((whole.total_wire_bytes(&decode), whole.exchanges()), (Bytes::ZERO, false));
}

#[test]
fn stages_make_up_the_model() {
    for (stages, spec) in [(4, DenseSpec::llama3_8b()), (3, DenseSpec::yi_34b()), (7, DenseSpec::codellama_34b())] {
        let parts = spec.pipeline(stages);
        let graphs: Vec<_> = parts.iter().map(|part| Arc::new(dense(part).unwrap())).collect();
        let layers: Vec<_> = parts.iter().map(|part| (part.first_layer(), part.own_layers())).collect();
        let next = layers.iter().fold(0, |next, &(first, count)| {
            assert_eq!(first, next, "{layers:?}");
            first + count
        });
        assert_eq!(next, spec.layers);
        let parameters: u64 = graphs.iter().map(|graph| graph.parameters()).sum();
        assert_eq!(parameters, spec.parameters(), "{}", spec.name);
        let weights: Bytes = parts.iter().map(DenseSpec::weight_bytes).sum();
        assert_eq!(weights, spec.weight_bytes(), "{}", spec.name);
        let flops: u64 = graphs.iter().map(|graph| graph.flops(&batch(64)).get()).sum();
        assert_eq!(flops, dense(&spec).unwrap().flops(&batch(64)).get(), "{}", spec.name);
        // 64 rows of two-byte elements to the next stage.
        let sent = graphs[0].total_wire_bytes(&batch(64));
        assert_eq!(sent, Bytes(64 * 2 * spec.hidden));
        is_gang(&graphs);
    }
}

#[test]
fn a_model_with_one_table_has_it_on_the_first_and_the_last_stage() {
    let spec = DenseSpec::smollm2_135m();
    let parts = spec.pipeline(2);
    let parameters: u64 = parts.iter().map(|part| dense(part).unwrap().parameters()).sum();
    assert_eq!(parameters, spec.parameters() + spec.vocab * spec.hidden);
    assert_eq!(parameters, parts.iter().map(DenseSpec::parameters).sum::<u64>());
    let none = spec.pipeline(31);
    assert!(dense(&none[0]).is_err(), "30 layers are not 31 stages");
}

#[test]
fn stages_of_tensor_ranks_are_one_gang() {
    let of = |spec: DenseSpec| spec.pipeline(2).into_iter().map(|part| Arc::new(dense(&part).unwrap()));
    let ranks: Vec<_> = of(DenseSpec::llama3_70b().tensor_parallel(4)).flat_map(|stage| vec![stage; 4]).collect();
    is_gang(&ranks);
    let experts = MoeSpec::mixtral_8x7b().tensor_parallel(2).pipeline(2);
    let ranks: Vec<_> = experts.iter().flat_map(|part| copies(moe(part).unwrap(), 2)).collect();
    is_gang(&ranks);
    is_gang(&copies(moe(&MoeSpec::qwen3_30b_a3b().expert_parallel(4)).unwrap(), 4));
}

#[test]
fn tensor_ranks_of_experts_have_equal_parts_of_each() {
    let (whole, rank) = (MoeSpec::mixtral_8x7b(), MoeSpec::mixtral_8x7b().tensor_parallel(4));
    let graph = moe(&rank).unwrap();
    assert_eq!(graph.parameters(), rank.parameters());
    let replicated = 32 * (8 * 4096 + 2 * 4096) + 4096;
    assert_eq!((rank.parameters() - replicated) * 4, whole.parameters() - replicated);
    assert_eq!(graph.collectives().count(), 2 * 32 + 2);
    let quantized = moe(&whole.with_dtype(DType::Q4_0).tensor_parallel(4)).unwrap();
    assert_eq!(quantized.op_count(), graph.op_count());
}
