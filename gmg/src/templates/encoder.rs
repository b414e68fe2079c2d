//! The bidirectional encoder of the BERT family.

use std::borrow::Cow;

use super::dense::plain;
use crate::dtype::DType;
use crate::graph::{GraphError, OpGraph, OpGraphBuilder, TensorRef};
use crate::semantics::OpKind;
use crate::shape::{SEQUENCES, Shape, TOKENS};
use crate::units::Bytes;

/// How the rows of a sequence become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pooling {
    /// Their mean, scaled to length 1 (Reimers & Gurevych 2019).
    Mean,
    /// The first one, through a product and a hyperbolic tangent (Devlin et al. 2019).
    First,
}

/// The configuration of an encoder.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EncoderSpec {
    /// The model's name.
    pub name: Cow<'static, str>,
    /// Transformer layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Attention heads; they divide `hidden`.
    pub heads: u32,
    /// Width of the feed-forward network.
    pub intermediate: u64,
    /// Tokens of the vocabulary.
    pub vocab: u64,
    /// Positions that have an embedding: the longest sequence.
    pub positions: u64,
    /// Token types, such as first and second sentence.
    pub types: u64,
    /// The type of the weights. Norms, biases and the small tables of a quantized model are `F32`.
    pub dtype: DType,
    /// The type of the activations.
    pub activation_dtype: DType,
    /// Added to the variance in the norms.
    pub norm_epsilon: f32,
    /// What the answer is.
    pub pooling: Pooling,
}

impl EncoderSpec {
    /// BERT base, uncased, `F32`: 109,482,240 parameters.
    pub fn bert_base() -> Self {
        Self {
            name: "bert-base".into(),
            layers: 12,
            hidden: 768,
            heads: 12,
            intermediate: 3072,
            vocab: 30_522,
            positions: 512,
            types: 2,
            dtype: DType::F32,
            activation_dtype: DType::F32,
            norm_epsilon: 1e-12,
            pooling: Pooling::First,
        }
    }

    /// all-MiniLM-L6-v2, `F32`: 22,565,376 parameters that are used. The checkpoint has 147,840 more,
    /// of a pooling layer that mean pooling passes over.
    pub fn all_minilm_l6_v2() -> Self {
        Self {
            name: "all-minilm-l6-v2".into(),
            layers: 6,
            hidden: 384,
            intermediate: 1536,
            pooling: Pooling::Mean,
            ..Self::bert_base()
        }
    }

    /// A model of two layers that a test runs in no time.
    pub fn tiny() -> Self {
        Self {
            name: "tiny-encoder".into(),
            layers: 2,
            hidden: 32,
            heads: 4,
            intermediate: 64,
            vocab: 128,
            positions: 64,
            pooling: Pooling::Mean,
            ..Self::bert_base()
        }
    }

    /// This model with weights of `dtype`, and activations of the same type if it can hold them.
    #[must_use]
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self.activation_dtype = plain(dtype);
        self
    }

    /// Elements of the matrices, and of the norms, biases and tables of positions and types.
    fn counts(&self) -> (u64, u64) {
        let (hidden, wide) = (self.hidden, self.intermediate);
        let square = hidden.saturating_mul(hidden);
        let layer = square.saturating_mul(4).saturating_add(hidden.saturating_mul(wide).saturating_mul(2));
        let small = hidden.saturating_mul(9).saturating_add(wide);
        let layers = u64::from(self.layers);
        let first = self.pooling == Pooling::First;
        let matrices = layer
            .saturating_mul(layers)
            .saturating_add(self.vocab.saturating_mul(hidden))
            .saturating_add(if first { square } else { 0 });
        let tables = self.positions.saturating_add(self.types).saturating_add(2).saturating_mul(hidden);
        let rest = small.saturating_mul(layers).saturating_add(tables).saturating_add(if first { hidden } else { 0 });
        (matrices, rest)
    }

    /// The number of parameters.
    pub fn parameters(&self) -> u64 {
        let (matrices, rest) = self.counts();
        matrices.saturating_add(rest)
    }

    /// The size of all weights.
    pub fn weight_bytes(&self) -> Bytes {
        let (matrices, rest) = self.counts();
        self.dtype.bytes(matrices) + plain(self.dtype).bytes(rest)
    }
}

/// The graph of one pass over a batch of whole sequences, whose rows lie one sequence after the other.
///
/// ```text
/// token_ids, positions, token_types [tokens] -> embed.* -> layers x L -> pool [sequences] -> embeddings
///
/// layers.i:  x -> attn.qkv -> attn.attend -> attn.o (+ x) -> attn.norm -> h
///            h -> mlp.up -> mlp.gelu -> mlp.down (+ h) -> mlp.norm -> x of the next layer
/// ```
///
/// Inputs: `token_ids`, `positions` (from 0 in each sequence) and `token_types`, one per row;
/// `lengths`, the rows of each sequence; for [`Pooling::First`] also `first_rows`, the row at which
/// each begins. A job binds its pairs to the sum of the squared lengths. Weights and biases are named
/// after their operator: `layers.3.attn.qkv.weight` is `[3 * hidden, hidden]` with queries, keys and
/// values in this order, `layers.3.attn.qkv.bias` `[3 * hidden]`.
///
/// # Errors
///
/// A specification that no model can have, such as heads that do not divide the width, more than 16,384 layers or
/// 1 PiB of weights.
pub fn encoder(spec: &EncoderSpec) -> Result<OpGraph, GraphError> {
    if spec.heads == 0 || !spec.hidden.is_multiple_of(u64::from(spec.heads)) {
        let graph = spec.name.to_string();
        return Err(GraphError::Heads { graph, columns: spec.hidden, heads: spec.heads });
    }
    super::within(&spec.name, &[("layers", u64::from(spec.layers), 1, super::MOST_LAYERS)])?;
    super::check_weights(&spec.name, spec.weight_bytes())?;
    let mut graph = OpGraph::builder(&spec.name);
    let [token_ids, positions, token_types] =
        ["token_ids", "positions", "token_types"].map(|name| graph.input(name, DType::U32, Shape::vector(TOKENS)));
    let lengths = graph.input("lengths", DType::U32, Shape::vector(SEQUENCES));

    let small = plain(spec.dtype);
    let words = embed(&mut graph, spec, "embed.words", token_ids, (spec.vocab, spec.dtype));
    let places = embed(&mut graph, spec, "embed.positions", positions, (spec.positions, small));
    let types = embed(&mut graph, spec, "embed.types", token_types, (spec.types, small));
    let placed = rows(&mut graph, spec, "embed.placed", spec.hidden);
    graph.op("embed.place", OpKind::Add, &[words, places], &[placed]);
    let typed = rows(&mut graph, spec, "embed.typed", spec.hidden);
    graph.op("embed.type", OpKind::Add, &[placed, types], &[typed]);
    let embedded = norm(&mut graph, spec, "embed.norm", typed);

    let [last] = graph.repeat("layers", spec.layers, [embedded], |block, [x]| {
        let h = attention(block, spec, x, lengths);
        let up = linear(block, spec, "mlp.up", (h, None), (spec.hidden, spec.intermediate));
        let activated = rows(block, spec, "mlp.activated", spec.intermediate);
        block.op("mlp.gelu", OpKind::Gelu, &[up], &[activated]);
        let down = linear(block, spec, "mlp.down", (activated, Some(h)), (spec.intermediate, spec.hidden));
        [norm(block, spec, "mlp.norm", down)]
    });

    let pooled = Shape::matrix(SEQUENCES, spec.hidden);
    let embeddings = graph.output("embeddings", spec.activation_dtype, pooled.clone());
    match spec.pooling {
        Pooling::Mean => {
            let mean = graph.activation("pool.mean", spec.activation_dtype, pooled);
            graph.op("pool", OpKind::MeanPool, &[last, lengths], &[mean]);
            graph.op("normalize", OpKind::Normalize, &[mean], &[embeddings]);
        }
        Pooling::First => {
            let first_rows = graph.input("first_rows", DType::U32, Shape::vector(SEQUENCES));
            let first = graph.activation("pool.first", spec.activation_dtype, pooled.clone());
            graph.op("pool", OpKind::Gather, &[last, first_rows], &[first]);
            let weight = graph.weight("pooler.weight", spec.dtype, Shape::matrix(spec.hidden, spec.hidden));
            let bias = graph.weight("pooler.bias", small, Shape::vector(spec.hidden));
            let projected = graph.activation("pooler.out", spec.activation_dtype, pooled);
            graph.op("pooler", OpKind::Linear, &[first, weight, bias], &[projected]);
            graph.op("tanh", OpKind::Tanh, &[projected], &[embeddings]);
        }
    }
    graph.build()
}

fn attention(block: &mut OpGraphBuilder, spec: &EncoderSpec, x: TensorRef, lengths: TensorRef) -> TensorRef {
    let head_dim = u32::try_from(spec.hidden / u64::from(spec.heads.max(1))).unwrap_or(u32::MAX);
    let fused = linear(block, spec, "attn.qkv", (x, None), (spec.hidden, spec.hidden.saturating_mul(3)));
    let attended = rows(block, spec, "attn.attended", spec.hidden);
    let kind = OpKind::SelfAttention { heads: spec.heads, head_dim };
    block.op("attn.attend", kind, &[fused, lengths], &[attended]);
    let out = linear(block, spec, "attn.o", (attended, Some(x)), (spec.hidden, spec.hidden));
    norm(block, spec, "attn.norm", out)
}

fn embed(
    graph: &mut OpGraphBuilder,
    spec: &EncoderSpec,
    name: &str,
    ids: TensorRef,
    (count, dtype): (u64, DType),
) -> TensorRef {
    let table = graph.weight(&format!("{name}.weight"), dtype, Shape::matrix(count, spec.hidden));
    let y = rows(graph, spec, &format!("{name}.out"), spec.hidden);
    graph.op(name, OpKind::Embedding, &[ids, table], &[y]);
    y
}

fn rows(graph: &mut OpGraphBuilder, spec: &EncoderSpec, name: &str, columns: u64) -> TensorRef {
    graph.activation(name, spec.activation_dtype, Shape::matrix(TOKENS, columns))
}

fn norm(graph: &mut OpGraphBuilder, spec: &EncoderSpec, name: &str, x: TensorRef) -> TensorRef {
    let [weight, bias] = ["weight", "bias"]
        .map(|part| graph.weight(&format!("{name}.{part}"), plain(spec.dtype), Shape::vector(spec.hidden)));
    let y = rows(graph, spec, &format!("{name}.out"), spec.hidden);
    graph.op(name, OpKind::LayerNorm { epsilon: spec.norm_epsilon }, &[x, weight, bias], &[y]);
    y
}

fn linear(
    graph: &mut OpGraphBuilder,
    spec: &EncoderSpec,
    name: &str,
    (x, residual): (TensorRef, Option<TensorRef>),
    (depth, columns): (u64, u64),
) -> TensorRef {
    let weight = graph.weight(&format!("{name}.weight"), spec.dtype, Shape::matrix(columns, depth));
    let bias = graph.weight(&format!("{name}.bias"), plain(spec.dtype), Shape::vector(columns));
    let y = rows(graph, spec, &format!("{name}.out"), columns);
    match residual {
        None => graph.op(name, OpKind::Linear, &[x, weight, bias], &[y]),
        Some(residual) => graph.op(name, OpKind::Linear, &[x, weight, bias, residual], &[y]),
    };
    y
}

#[cfg(test)]
mod tests;
