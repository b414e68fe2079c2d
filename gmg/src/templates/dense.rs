//! The dense decoder of the Llama family.

use std::borrow::Cow;

use crate::dtype::DType;
use crate::graph::{GraphError, OpGraph, OpGraphBuilder, TensorRef};
use crate::semantics::OpKind;
use crate::shape::{CONTEXT, SEQUENCES, Shape, TOKENS};
use crate::units::Bytes;

/// The configuration of a dense decoder.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DenseSpec {
    /// The model's name.
    pub name: Cow<'static, str>,
    /// Transformer layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Width of the feed-forward network.
    pub intermediate: u64,
    /// Tokens of the vocabulary.
    pub vocab: u64,
    /// The type of the weights. Norm weights of a quantized model are `F32`.
    pub dtype: DType,
    /// The type of the embedding table, and of the output projection if that is the table; files of
    /// quantized models often keep it finer than the rest.
    pub embedding_dtype: DType,
    /// The type of the activations.
    pub activation_dtype: DType,
    /// The type of the KV cache.
    pub kv_dtype: DType,
    /// True if the output projection is the embedding table.
    pub tied_embeddings: bool,
    /// The base of the rotation frequencies.
    pub rope_theta: f32,
    /// Added to the mean square in the norms.
    pub norm_epsilon: f32,
    /// The longest sequence that the model was trained for, in tokens.
    pub max_context: u32,
}

impl DenseSpec {
    /// Llama 3 8B, `BF16`: 8,030,261,248 parameters.
    pub fn llama3_8b() -> Self {
        Self {
            name: "llama3-8b".into(),
            layers: 32,
            hidden: 4096,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            intermediate: 14_336,
            vocab: 128_256,
            dtype: DType::BF16,
            embedding_dtype: DType::BF16,
            activation_dtype: DType::BF16,
            kv_dtype: DType::BF16,
            tied_embeddings: false,
            rope_theta: 500_000.0,
            norm_epsilon: 1e-5,
            max_context: 8192,
        }
    }

    /// Llama 3 70B, `BF16`: 70,553,706,496 parameters.
    pub fn llama3_70b() -> Self {
        Self {
            name: "llama3-70b".into(),
            layers: 80,
            hidden: 8192,
            heads: 64,
            intermediate: 28_672,
            ..Self::llama3_8b()
        }
    }

    /// Llama 2 7B, `F16`: 6,738,415,616 parameters.
    pub fn llama2_7b() -> Self {
        Self {
            name: "llama2-7b".into(),
            kv_heads: 32,
            intermediate: 11_008,
            vocab: 32_000,
            rope_theta: 10_000.0,
            max_context: 4096,
            ..Self::llama3_8b()
        }
        .with_dtype(DType::F16)
    }

    /// Llama 2 13B, `F16`: 13,015,864,320 parameters.
    pub fn llama2_13b() -> Self {
        Self {
            name: "llama2-13b".into(),
            layers: 40,
            hidden: 5120,
            heads: 40,
            kv_heads: 40,
            intermediate: 13_824,
            ..Self::llama2_7b()
        }
    }

    /// SmolLM2 135M, `BF16`: 134,515,008 parameters.
    pub fn smollm2_135m() -> Self {
        Self {
            name: "smollm2-135m".into(),
            layers: 30,
            hidden: 576,
            heads: 9,
            kv_heads: 3,
            head_dim: 64,
            intermediate: 1536,
            vocab: 49_152,
            tied_embeddings: true,
            rope_theta: 100_000.0,
            ..Self::llama3_8b()
        }
    }

    /// A model of two layers, `F32`, that a test runs in no time.
    pub fn tiny() -> Self {
        Self {
            name: "tiny".into(),
            layers: 2,
            hidden: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            intermediate: 128,
            vocab: 256,
            rope_theta: 10_000.0,
            max_context: 512,
            ..Self::llama3_8b()
        }
        .with_dtype(DType::F32)
    }

    /// This model with weights of `dtype`, and activations and KV of the same type if it can hold
    /// them: those of a quantized model are `F32`.
    #[must_use]
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        let plain = plain(dtype);
        self.dtype = dtype;
        self.embedding_dtype = dtype;
        self.activation_dtype = plain;
        self.kv_dtype = plain;
        self
    }

    /// Elements of the queries, and of the keys and values of one token and layer.
    fn attention_widths(&self) -> (u64, u64) {
        let head_dim = u64::from(self.head_dim);
        (u64::from(self.heads) * head_dim, (u64::from(self.kv_heads) * head_dim).saturating_mul(2))
    }

    /// Elements of the matrices of one layer, and of all the norms.
    fn layer_parameters(&self) -> u64 {
        let (queries, keys_and_values) = self.attention_widths();
        let attention = queries.saturating_mul(2).saturating_add(keys_and_values);
        attention.saturating_add(self.intermediate.saturating_mul(3)).saturating_mul(self.hidden)
    }

    fn norm_parameters(&self) -> u64 {
        u64::from(self.layers).saturating_mul(2).saturating_add(1).saturating_mul(self.hidden)
    }

    fn table_parameters(&self) -> u64 {
        self.vocab.saturating_mul(self.hidden)
    }

    /// Elements of the matrices besides the embedding table.
    fn matrix_parameters(&self) -> u64 {
        let head = if self.tied_embeddings { 0 } else { self.table_parameters() };
        self.layer_parameters().saturating_mul(u64::from(self.layers)).saturating_add(head)
    }

    /// The number of parameters; tied embeddings count once.
    pub fn parameters(&self) -> u64 {
        let matrices = self.matrix_parameters().saturating_add(self.table_parameters());
        matrices.saturating_add(self.norm_parameters())
    }

    /// The size of all weights.
    pub fn weight_bytes(&self) -> Bytes {
        let (matrices, table) = (self.dtype.bytes(self.matrix_parameters()), self.table_parameters());
        matrices + self.embedding_dtype.bytes(table) + plain(self.dtype).bytes(self.norm_parameters())
    }

    /// KV bytes of one token over all layers.
    pub fn kv_bytes_per_token(&self) -> Bytes {
        let (_, keys_and_values) = self.attention_widths();
        self.kv_dtype.bytes(keys_and_values).times(u64::from(self.layers))
    }
}

/// `dtype`, or `F32` in place of a quantized or integer type.
fn plain(dtype: DType) -> DType {
    if dtype.is_float() && dtype.block_elements() == 1 { dtype } else { DType::F32 }
}

/// The graph of one iteration of a dense decoder with paged KV: a mixed batch of prompt chunks and
/// decoding sequences goes in, the greedy next token of each sequence that emits one comes out.
///
/// ```text
/// token_ids [tokens] -> embed -> layers x L -> gather [sequences] -> norm -> lm_head -> sample -> next_ids
///
/// layers.i:  x -> attn.norm -> attn.qkv -> attn.rotary (writes kv) -> attn.attend (reads kv) -> attn.o (+ x) -> h
///            h -> mlp.norm -> mlp.gate_up -> mlp.swiglu -> mlp.down (+ h) -> x of the next layer
/// ```
///
/// Inputs: `token_ids` and `positions`, one per row, and `logit_rows`, the rows that emit a token.
/// Every layer has its own `kv`. A weight is named after its operator: `layers.7.attn.qkv.weight`
/// is `[(heads + 2 * kv_heads) * head_dim, hidden]` with queries, keys and values in this order,
/// and `layers.7.mlp.gate_up.weight` is `[2 * intermediate, hidden]` with the gate first.
///
/// # Errors
///
/// A specification that no model can have, such as heads that the KV heads do not divide.
pub fn dense(spec: &DenseSpec) -> Result<OpGraph, GraphError> {
    let mut graph = OpGraph::builder(&spec.name);
    let token_ids = graph.input("token_ids", DType::U32, Shape::vector(TOKENS));
    let positions = graph.input("positions", DType::U32, Shape::vector(TOKENS));
    let logit_rows = graph.input("logit_rows", DType::U32, Shape::vector(SEQUENCES));

    let table = graph.weight("embed.weight", spec.embedding_dtype, Shape::matrix(spec.vocab, spec.hidden));
    let embedded = rows(&mut graph, spec, "embedded", spec.hidden);
    graph.op("embed", OpKind::Embedding, &[token_ids, table], &[embedded]);

    let [last] = graph.repeat("layers", spec.layers, [embedded], |block, [x]| {
        let h = attention(block, spec, x, positions);
        [feed_forward(block, spec, h)]
    });

    let emitted = |graph: &mut OpGraphBuilder, name, columns| {
        graph.activation(name, spec.activation_dtype, Shape::matrix(SEQUENCES, columns))
    };
    let selected = emitted(&mut graph, "selected", spec.hidden);
    graph.op("gather", OpKind::Gather, &[last, logit_rows], &[selected]);
    let normed = emitted(&mut graph, "normed", spec.hidden);
    norm(&mut graph, spec, "norm", selected, normed);
    let head = if spec.tied_embeddings {
        table
    } else {
        graph.weight("lm_head.weight", spec.dtype, Shape::matrix(spec.vocab, spec.hidden))
    };
    let logits = emitted(&mut graph, "logits", spec.vocab);
    graph.op("lm_head", OpKind::MatMul, &[normed, head], &[logits]);
    let next_ids = graph.output("next_ids", DType::U32, Shape::vector(SEQUENCES));
    graph.op("sample", OpKind::Sample, &[logits], &[next_ids]);
    graph.build()
}

fn attention(block: &mut OpGraphBuilder, spec: &DenseSpec, x: TensorRef, positions: TensorRef) -> TensorRef {
    let &DenseSpec { heads, kv_heads, head_dim, .. } = spec;
    let (queries, keys_and_values) = spec.attention_widths();
    let kv = block.kv_cache("kv", spec.kv_dtype, Shape::matrix(CONTEXT, keys_and_values));
    let normed = rows(block, spec, "attn.normed", spec.hidden);
    norm(block, spec, "attn.norm", x, normed);
    let fused =
        project(block, spec, "attn.qkv", (normed, None), (spec.hidden, queries.saturating_add(keys_and_values)));
    let rotated = rows(block, spec, "attn.queries", queries);
    let rotary = OpKind::Rotary { heads, kv_heads, head_dim, theta: spec.rope_theta };
    block.op("attn.rotary", rotary, &[fused, positions, kv], &[rotated]);
    let attended = rows(block, spec, "attn.attended", queries);
    block.op("attn.attend", OpKind::Attention { heads, kv_heads, head_dim }, &[rotated, kv], &[attended]);
    project(block, spec, "attn.o", (attended, Some(x)), (queries, spec.hidden))
}

fn feed_forward(block: &mut OpGraphBuilder, spec: &DenseSpec, h: TensorRef) -> TensorRef {
    let normed = rows(block, spec, "mlp.normed", spec.hidden);
    norm(block, spec, "mlp.norm", h, normed);
    let gate_up =
        project(block, spec, "mlp.gate_up", (normed, None), (spec.hidden, spec.intermediate.saturating_mul(2)));
    let activated = rows(block, spec, "mlp.activated", spec.intermediate);
    block.op("mlp.swiglu", OpKind::SwiGlu, &[gate_up], &[activated]);
    project(block, spec, "mlp.down", (activated, Some(h)), (spec.intermediate, spec.hidden))
}

fn rows(graph: &mut OpGraphBuilder, spec: &DenseSpec, name: &str, columns: u64) -> TensorRef {
    graph.activation(name, spec.activation_dtype, Shape::matrix(TOKENS, columns))
}

fn norm(graph: &mut OpGraphBuilder, spec: &DenseSpec, name: &str, x: TensorRef, y: TensorRef) {
    let weight = graph.weight(&format!("{name}.weight"), plain(spec.dtype), Shape::vector(spec.hidden));
    graph.op(name, OpKind::RmsNorm { epsilon: spec.norm_epsilon }, &[x, weight], &[y]);
}

/// A matrix product from `depth` to `columns` elements, plus the residual.
fn project(
    graph: &mut OpGraphBuilder,
    spec: &DenseSpec,
    name: &str,
    (x, residual): (TensorRef, Option<TensorRef>),
    (depth, columns): (u64, u64),
) -> TensorRef {
    let weight = graph.weight(&format!("{name}.weight"), spec.dtype, Shape::matrix(columns, depth));
    let y = rows(graph, spec, &format!("{name}.out"), columns);
    match residual {
        None => graph.op(name, OpKind::MatMul, &[x, weight], &[y]),
        Some(residual) => graph.op(name, OpKind::MatMul, &[x, weight, residual], &[y]),
    };
    y
}

#[cfg(test)]
mod tests;
