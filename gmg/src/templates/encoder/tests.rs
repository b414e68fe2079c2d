//! Against published figures and hand calculations.

use super::*;
use crate::semantics::OpCost;
use crate::shape::{Binding, PAIRS};
use crate::units::Flops;

#[test]
fn parameter_counts_are_the_published_ones() {
    // The totals of the safetensors metadata of google-bert/bert-base-uncased without its heads and of
    // sentence-transformers/all-MiniLM-L6-v2, 109,482,240 and 22,713,216; the second one includes the 384 * 384 + 384 of a pooling layer that sentence-transformers does not use.
    for (spec, published) in
        [(EncoderSpec::bert_base(), 109_482_240), (EncoderSpec::all_minilm_l6_v2(), 22_713_216 - 147_840)]
    {
        assert_eq!(spec.parameters(), published, "{}", spec.name);
        let graph = encoder(&spec).unwrap();
        assert_eq!(graph.parameters(), published, "{}", spec.name);
        assert_eq!(graph.weight_bytes(), spec.weight_bytes(), "{}", spec.name);
    }
    let pooled = EncoderSpec { pooling: Pooling::First, ..EncoderSpec::all_minilm_l6_v2() };
    assert_eq!(encoder(&pooled).unwrap().parameters(), 22_713_216);
}

#[test]
fn costs_are_those_of_a_hand_calculation() {
    let graph = encoder(&EncoderSpec::all_minilm_l6_v2()).unwrap();
    // Two sequences of 10 and 20 tokens: 30 rows, 100 + 400 pairs.
    let batch = Binding::new().bind(TOKENS, 30).bind(SEQUENCES, 2).bind(PAIRS, 500);
    let cost = |name: &str| graph.op(graph.find_op(name).unwrap()).unwrap().cost(&batch);
    assert_eq!(
        cost("layers.4.attn.qkv"),
        OpCost {
            flops: Flops(2 * 30 * 384 * 1152 + 30 * 1152),
            weights: Bytes(4 * (384 * 1152 + 1152)),
            read: Bytes(4 * 30 * 384),
            written: Bytes(4 * 30 * 1152),
        }
    );
    assert_eq!(
        cost("layers.4.attn.attend"),
        OpCost {
            flops: Flops(4 * 384 * 500),
            weights: Bytes::ZERO,
            read: Bytes(4 * 30 * 1152 + 4 * 2),
            written: Bytes(4 * 30 * 384),
        }
    );
    assert_eq!(
        cost("layers.4.mlp.down"),
        OpCost {
            flops: Flops(2 * 30 * 1536 * 384 + 2 * 30 * 384),
            weights: Bytes(4 * (1536 * 384 + 384)),
            read: Bytes(4 * 30 * (1536 + 384)),
            written: Bytes(4 * 30 * 384),
        }
    );
    assert_eq!(cost("layers.4.mlp.norm").flops, Flops(7 * 30 * 384));
    assert_eq!(cost("layers.4.mlp.gelu").flops, Flops(5 * 30 * 1536));
    assert_eq!(cost("pool").flops, Flops(30 * 384 + 2 * 384));
    assert_eq!(cost("normalize").flops, Flops(3 * 2 * 384));
    assert_eq!(cost("embed.words").weights, Bytes(4 * 30 * 384));
}

#[test]
fn the_total_is_the_sum_over_all_operators() {
    for spec in [EncoderSpec::bert_base(), EncoderSpec::all_minilm_l6_v2(), EncoderSpec::tiny()] {
        let graph = encoder(&spec).unwrap();
        let batch = Binding::new().bind(TOKENS, 70).bind(SEQUENCES, 3).bind(PAIRS, 2000);
        let mut sum = OpCost::default();
        graph.ops().for_each(|op| sum += op.cost(&batch));
        assert_eq!(graph.total_cost(&batch), sum, "{}", spec.name);
    }
}

#[test]
fn a_job_without_pairs_is_refused_since_attention_would_be_free() {
    let graph = encoder(&EncoderSpec::tiny()).unwrap();
    let error = graph.check_binding(&Binding::new().bind(TOKENS, 3).bind(SEQUENCES, 1)).unwrap_err();
    assert!(error.to_string().contains("\"pairs\""), "{error}");
}

#[test]
fn a_specification_that_no_model_can_have_is_refused_before_anything_is_built() {
    let base = EncoderSpec::bert_base();
    let cases = [
        (EncoderSpec { heads: 5, ..base.clone() }, "768 columns do not come out even on 5 heads: expected a multiple"),
        (EncoderSpec { heads: 0, ..base.clone() }, "768 columns do not come out even on 0 heads: expected a multiple"),
        (EncoderSpec { layers: 0, ..base.clone() }, "0 layers: expected 1 to 16384"),
        (EncoderSpec { layers: 1 << 24, ..base.clone() }, "16777216 layers: expected 1 to 16384"),
        (
            EncoderSpec { intermediate: u64::MAX, ..base },
            "bytes of weights on one rank: expected 0 to 1125899906842624",
        ),
    ];
    for (spec, expected) in cases {
        let error = encoder(&spec).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
