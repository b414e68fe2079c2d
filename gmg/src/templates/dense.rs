//! The dense decoder of the Llama family.

use std::borrow::Cow;

use super::decoder::{decoder, norm, project, project_back, rows};
use crate::dtype::DType;
use crate::graph::{GraphError, OpGraph};
use crate::semantics::OpKind;
use crate::units::Bytes;

/// Which part of a model one rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// Ranks over which heads, feed-forward columns and vocabulary are spread. The ranks of a stage
    /// are consecutive.
    pub tensor_ranks: u32,
    /// Which run of layers.
    pub stage: u32,
    /// How many runs the layers are cut into.
    pub stages: u32,
}

impl Shard {
    /// All of the model.
    pub const WHOLE: Self = Self { tensor_ranks: 1, stage: 0, stages: 1 };

    /// Ranks of the whole model.
    pub const fn ranks(self) -> u32 {
        self.tensor_ranks.saturating_mul(self.stages)
    }

    pub(super) const fn is_first(self) -> bool {
        self.stage == 0
    }

    pub(super) const fn is_last(self) -> bool {
        self.stage + 1 == self.stages
    }
}

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
    /// True if each head of queries and keys is normalized before its rotation.
    pub qk_norm: bool,
    /// The part of the model that is meant. All numbers above are those of the whole.
    pub shard: Shard,
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
            qk_norm: false,
            shard: Shard::WHOLE,
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

    /// Code Llama 34B, `BF16`: 33,743,970,304 parameters.
    pub fn codellama_34b() -> Self {
        Self {
            name: "codellama-34b".into(),
            layers: 48,
            hidden: 8192,
            heads: 64,
            intermediate: 22_016,
            vocab: 32_000,
            rope_theta: 1_000_000.0,
            max_context: 16_384,
            ..Self::llama3_8b()
        }
    }

    /// Yi 34B, `BF16`: 34,388,917,248 parameters.
    pub fn yi_34b() -> Self {
        Self {
            name: "yi-34b".into(),
            layers: 60,
            hidden: 7168,
            heads: 56,
            intermediate: 20_480,
            vocab: 64_000,
            rope_theta: 5_000_000.0,
            max_context: 4096,
            ..Self::llama3_8b()
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

    /// One rank's part of this model when it is spread over `ranks` ranks: attention heads and the
    /// columns of the feed-forward network go one part to each, as does the vocabulary; norms are
    /// on all. With more ranks than KV heads, several ranks have the same ones.
    #[must_use]
    pub fn tensor_parallel(mut self, ranks: u32) -> Self {
        self.shard.tensor_ranks = ranks;
        self
    }

    /// The stages of this model when its layers are cut into `stages` runs of consecutive ones, of
    /// equal length or, for the first `layers % stages` of them, one more. The first stage has the
    /// embedding, the last one the head.
    #[must_use]
    pub fn pipeline(&self, stages: u32) -> Vec<Self> {
        let of = |stage| {
            let name = format!("{} stage {}/{stages}", self.name, stage + 1).into();
            Self { name, shard: Shard { stage, stages, ..self.shard }, ..self.clone() }
        };
        (0..stages).map(of).collect()
    }

    pub(super) fn check(&self) -> Result<(), GraphError> {
        let Shard { tensor_ranks, stage, stages } = self.shard;
        let refuse =
            |what, count: u64, ranks| Err(GraphError::Shard { graph: self.name.to_string(), what, count, ranks });
        let last = u64::from(stages.saturating_sub(1));
        super::within(
            &self.name,
            &[
                ("layers", u64::from(self.layers), 1, super::MOST_LAYERS),
                ("tensor ranks", u64::from(tensor_ranks), 1, u64::from(self.heads.max(1))),
                ("stages", u64::from(stages), 1, u64::from(self.layers)),
                ("as the number of the stage, counted from 0", u64::from(stage), 0, last),
            ],
        )?;
        let ranks = u64::from(tensor_ranks);
        let parts = [
            ("heads", u64::from(self.heads)),
            ("feed-forward columns", self.intermediate),
            ("tokens of the vocabulary", self.vocab),
        ];
        match parts.into_iter().find(|(_, count)| !count.is_multiple_of(ranks)) {
            Some((what, count)) => refuse(what, count, tensor_ranks),
            None if !self.kv_heads.is_multiple_of(tensor_ranks)
                && !tensor_ranks.is_multiple_of(self.kv_heads.max(1)) =>
            {
                refuse("KV heads", u64::from(self.kv_heads), tensor_ranks)
            }
            None => Ok(()),
        }
    }

    /// The layers of this rank.
    pub fn own_layers(&self) -> u32 {
        let Shard { stage, stages, .. } = self.shard;
        let stages = stages.max(1);
        self.layers / stages + u32::from(stage < self.layers % stages)
    }

    /// The number of the first layer of this rank in the whole model.
    pub fn first_layer(&self) -> u32 {
        let Shard { stage, stages, .. } = self.shard;
        let stages = stages.max(1);
        stage.saturating_mul(self.layers / stages) + stage.min(self.layers % stages)
    }

    pub(super) fn own_heads(&self) -> u32 {
        self.heads / self.shard.tensor_ranks.max(1)
    }

    pub(super) fn own_kv_heads(&self) -> u32 {
        let kv_heads = self.kv_heads / self.shard.tensor_ranks.max(1);
        if self.kv_heads == 0 { 0 } else { kv_heads.max(1) }
    }

    pub(super) fn own_intermediate(&self) -> u64 {
        self.intermediate / u64::from(self.shard.tensor_ranks.max(1))
    }

    pub(super) fn own_vocab(&self) -> u64 {
        self.vocab / u64::from(self.shard.tensor_ranks.max(1))
    }

    /// Elements of the queries, and of the keys and values of one token and layer.
    pub(super) fn attention_widths(&self) -> (u64, u64) {
        let head_dim = u64::from(self.head_dim);
        let keys_and_values = (u64::from(self.own_kv_heads()) * head_dim).saturating_mul(2);
        (u64::from(self.own_heads()) * head_dim, keys_and_values)
    }

    /// Elements of the attention matrices of one layer.
    fn attention_parameters(&self) -> u64 {
        let (queries, keys_and_values) = self.attention_widths();
        queries.saturating_mul(2).saturating_add(keys_and_values).saturating_mul(self.hidden)
    }

    /// Elements of all norms.
    pub(super) fn norm_parameters(&self) -> u64 {
        let heads = if self.qk_norm { u64::from(self.head_dim).saturating_mul(2) } else { 0 };
        let layer = self.hidden.saturating_mul(2).saturating_add(heads);
        let last = if self.shard.is_last() { self.hidden } else { 0 };
        u64::from(self.own_layers()).saturating_mul(layer).saturating_add(last)
    }

    /// Elements of all copies of the embedding table that this rank has.
    pub(super) fn table_parameters(&self) -> u64 {
        let (first, last) = (self.shard.is_first(), self.shard.is_last());
        let tables = u64::from(first) + u64::from(last && !first && self.tied_embeddings);
        self.own_vocab().saturating_mul(self.hidden).saturating_mul(tables)
    }

    /// Elements of all matrices but the embedding table, if the feed-forward network of a layer has
    /// `feed_forward` of them.
    pub(super) fn matrix_parameters(&self, feed_forward: u64) -> u64 {
        let head = self.shard.is_last() && !self.tied_embeddings;
        let head = if head { self.own_vocab().saturating_mul(self.hidden) } else { 0 };
        let layer = self.attention_parameters().saturating_add(feed_forward);
        layer.saturating_mul(u64::from(self.own_layers())).saturating_add(head)
    }

    fn feed_forward_parameters(&self) -> u64 {
        self.own_intermediate().saturating_mul(3).saturating_mul(self.hidden)
    }

    /// The number of parameters of this rank; tied embeddings count once where first and last layer
    /// are on one rank.
    pub fn parameters(&self) -> u64 {
        let matrices = self.matrix_parameters(self.feed_forward_parameters()).saturating_add(self.table_parameters());
        matrices.saturating_add(self.norm_parameters())
    }

    /// The size of all weights of this rank.
    pub fn weight_bytes(&self) -> Bytes {
        let matrices = self.matrix_parameters(self.feed_forward_parameters());
        self.dtype.bytes(matrices)
            + self.embedding_dtype.bytes(self.table_parameters())
            + plain(self.dtype).bytes(self.norm_parameters())
    }

    /// KV bytes of one token over all layers of this rank.
    pub fn kv_bytes_per_token(&self) -> Bytes {
        let (_, keys_and_values) = self.attention_widths();
        self.kv_dtype.bytes(keys_and_values).times(u64::from(self.own_layers()))
    }
}

/// `dtype`, or `F32` in place of a quantized or integer type.
pub(super) fn plain(dtype: DType) -> DType {
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
/// A rank of several has its part of the heads, columns and vocabulary; a stage of several begins with
/// `receive` or ends with `send`, and only the first takes `token_ids`, only the last `logit_rows`.
///
/// # Errors
///
/// A specification that no model can have, such as heads that the KV heads do not divide, more than 16,384 layers or
/// 1 PiB of weights on one rank; a shard that does not come out even.
pub fn dense(spec: &DenseSpec) -> Result<OpGraph, GraphError> {
    super::check_weights(&spec.name, spec.weight_bytes())?;
    decoder(spec, |block, h| {
        let width = spec.own_intermediate();
        let normed = rows(block, spec, "mlp.normed", spec.hidden);
        norm(block, spec, "mlp.norm", h, normed);
        let gate_up = project(block, spec, "mlp.gate_up", (normed, None), (spec.hidden, width.saturating_mul(2)));
        let activated = rows(block, spec, "mlp.activated", width);
        block.op("mlp.swiglu", OpKind::SwiGlu, &[gate_up], &[activated]);
        project_back(block, spec, "mlp.down", activated, h, width)
    })
}

#[cfg(test)]
mod tests;
