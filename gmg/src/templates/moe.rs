//! The mixture-of-experts decoder of the Mixtral and Qwen families.

use std::borrow::Cow;

use super::DenseSpec;
use super::decoder::{add_reduced, decoder, norm, rows};
use super::dense::plain;
use crate::dtype::DType;
use crate::graph::{GraphError, OpGraph, OpGraphBuilder, TensorRef};
use crate::semantics::{Collective, OpKind};
use crate::shape::{Dim, Shape, TOKENS};
use crate::units::Bytes;

/// The configuration of a mixture of experts: a dense decoder whose feed-forward network is replaced
/// by `experts` of them, of which a router chooses `top` for every token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MoeSpec {
    /// Everything but the feed-forward networks. Its `intermediate` is the width of one expert.
    pub base: DenseSpec,
    /// Experts of a layer.
    pub experts: u32,
    /// Experts per token.
    pub top: u32,
    /// Ranks over which the experts are spread, each of which serves requests of its own.
    pub expert_ranks: u32,
}

impl MoeSpec {
    /// Mixtral 8x7B, `BF16`: 46,702,792,704 parameters, 12.9 billion of them for a token (Jiang et
    /// al. 2024).
    pub fn mixtral_8x7b() -> Self {
        let base = DenseSpec {
            name: "mixtral-8x7b".into(),
            vocab: 32_000,
            rope_theta: 1_000_000.0,
            max_context: 32_768,
            ..DenseSpec::llama3_8b()
        };
        Self { base, experts: 8, top: 2, expert_ranks: 1 }
    }

    /// Qwen3 30B A3B, `BF16`: 30,532,122,624 parameters, 3.3 billion of them for a token (Qwen team
    /// 2025).
    pub fn qwen3_30b_a3b() -> Self {
        let base = DenseSpec {
            name: "qwen3-30b-a3b".into(),
            layers: 48,
            hidden: 2048,
            heads: 32,
            kv_heads: 4,
            head_dim: 128,
            intermediate: 768,
            vocab: 151_936,
            rope_theta: 1_000_000.0,
            norm_epsilon: 1e-6,
            max_context: 40_960,
            qk_norm: true,
            ..DenseSpec::llama3_8b()
        };
        Self { base, experts: 128, top: 8, expert_ranks: 1 }
    }

    /// A model of two layers and four experts, `F32`, that a test runs in no time.
    pub fn tiny() -> Self {
        let base = DenseSpec { name: "tiny-moe".into(), intermediate: 32, ..DenseSpec::tiny() };
        Self { base, experts: 4, top: 2, expert_ranks: 1 }
    }

    /// The model's name.
    pub fn name(&self) -> &Cow<'static, str> {
        &self.base.name
    }

    /// This model with weights of `dtype`; see [`DenseSpec::with_dtype`].
    #[must_use]
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.base = self.base.with_dtype(dtype);
        self
    }

    /// One rank's part when every expert is spread over `ranks` ranks; see
    /// [`DenseSpec::tensor_parallel`].
    #[must_use]
    pub fn tensor_parallel(mut self, ranks: u32) -> Self {
        self.base = self.base.tensor_parallel(ranks);
        self
    }

    /// The stages of this model; see [`DenseSpec::pipeline`].
    #[must_use]
    pub fn pipeline(&self, stages: u32) -> Vec<Self> {
        self.base.pipeline(stages).into_iter().map(|base| Self { base, ..self.clone() }).collect()
    }

    /// One rank's part when the experts are spread over `ranks` ranks, whole ones on each. Everything
    /// else is on every rank, which serves requests of its own: its job binds its own tokens.
    #[must_use]
    pub fn expert_parallel(mut self, ranks: u32) -> Self {
        self.expert_ranks = ranks;
        self
    }

    /// Experts of a layer on this rank.
    pub fn own_experts(&self) -> u32 {
        self.experts / self.expert_ranks.max(1)
    }

    /// Elements of the routers, of one expert.
    fn layer_parameters(&self) -> (u64, u64) {
        let router = u64::from(self.experts).saturating_mul(self.base.hidden);
        (router, self.base.own_intermediate().saturating_mul(3).saturating_mul(self.base.hidden))
    }

    fn router_parameters(&self) -> u64 {
        self.layer_parameters().0.saturating_mul(u64::from(self.base.own_layers()))
    }

    /// Elements of routers, norms and embedding tables.
    fn other_parameters(&self) -> u64 {
        let small = self.router_parameters().saturating_add(self.base.norm_parameters());
        small.saturating_add(self.base.table_parameters())
    }

    fn matrix_parameters(&self, experts: u32) -> u64 {
        self.base.matrix_parameters(self.layer_parameters().1.saturating_mul(u64::from(experts)))
    }

    /// The number of parameters of this rank.
    pub fn parameters(&self) -> u64 {
        let plain = self.other_parameters();
        self.matrix_parameters(self.own_experts()).saturating_add(plain)
    }

    /// The parameters that one token uses, on all ranks of its stage together if the experts are
    /// spread: those of `top` experts and of everything else.
    pub fn active_parameters(&self) -> u64 {
        let plain = self.other_parameters();
        self.matrix_parameters(self.top).saturating_add(plain)
    }

    /// The size of all weights of this rank.
    pub fn weight_bytes(&self) -> Bytes {
        let small = self.router_parameters().saturating_add(self.base.norm_parameters());
        self.base.dtype.bytes(self.matrix_parameters(self.own_experts()))
            + self.base.embedding_dtype.bytes(self.base.table_parameters())
            + plain(self.base.dtype).bytes(small)
    }

    /// KV bytes of one token over all layers of this rank.
    pub fn kv_bytes_per_token(&self) -> Bytes {
        self.base.kv_bytes_per_token()
    }

    fn check(&self) -> Result<(), GraphError> {
        let even = self.expert_ranks > 0 && self.experts.is_multiple_of(self.expert_ranks);
        if !even || (self.expert_ranks > 1 && self.base.shard.tensor_ranks > 1) {
            let ranks = self.expert_ranks.saturating_mul(self.base.shard.tensor_ranks);
            let (graph, count) = (self.base.name.to_string(), u64::from(self.experts));
            return Err(GraphError::Shard { graph, what: "experts, whole or in parts", count, ranks });
        }
        Ok(())
    }
}

/// The graph of one iteration of a mixture of experts; as [`dense`](super::dense()), with in every
/// layer
///
/// ```text
/// h -> mlp.norm -> mlp.router -> mlp.top_k -> mlp.permute [tokens * top]
///   -> mlp.gate_up -> mlp.swiglu -> mlp.down -> mlp.combine (+ h) -> x of the next layer
/// ```
///
/// `layers.7.mlp.gate_up.weight` is `[experts, 2 * intermediate, hidden]`, one expert after the other,
/// `layers.7.mlp.router.weight` is `[experts, hidden]`. With the experts on several ranks,
/// `mlp.scatter` and `mlp.gather` take the routed rows to their experts and back.
///
/// # Errors
///
/// As [`dense`](super::dense()); experts that do not come out even, or that are to be spread and cut
/// at once.
pub fn moe(spec: &MoeSpec) -> Result<OpGraph, GraphError> {
    spec.check()?;
    super::check_weights(&spec.base.name, spec.weight_bytes())?;
    decoder(&spec.base, |block, h| feed_forward(block, spec, h))
}

fn feed_forward(block: &mut OpGraphBuilder, spec: &MoeSpec, h: TensorRef) -> TensorRef {
    let base = &spec.base;
    let (top, width) = (u64::from(spec.top), base.own_intermediate());
    let chosen = Shape::matrix(TOKENS, top);
    let normed = rows(block, base, "mlp.normed", base.hidden);
    norm(block, base, "mlp.norm", h, normed);
    let router =
        block.weight("mlp.router.weight", plain(base.dtype), Shape::matrix(u64::from(spec.experts), base.hidden));
    let logits = rows(block, base, "mlp.logits", u64::from(spec.experts));
    block.op("mlp.router", OpKind::MatMul, &[normed, router], &[logits]);
    let weights = block.activation("mlp.weights", base.activation_dtype, chosen.clone());
    let ids = block.activation("mlp.experts", DType::U32, chosen);
    block.op("mlp.top_k", OpKind::TopK { top: spec.top }, &[logits], &[weights, ids]);

    let routed = |block: &mut OpGraphBuilder, name: &str, columns: u64| {
        let rows = Dim { coefficient: top, symbol: Some(TOKENS) };
        block.activation(name, base.activation_dtype, Shape::matrix(rows, columns))
    };
    let ranks = spec.expert_ranks;
    let exchange = |block: &mut OpGraphBuilder, name: &str, x: TensorRef| {
        if ranks == 1 {
            return x;
        }
        let y = routed(block, &format!("{name}.out"), base.hidden);
        block.op(name, OpKind::Collective(Collective::AllToAll { ranks }), &[x], &[y]);
        y
    };
    let experts = |block: &mut OpGraphBuilder, name: &str, x: TensorRef, (depth, columns): (u64, u64)| {
        let shape = Shape::new([u64::from(spec.own_experts()), columns, depth].map(Dim::fixed));
        let weight = block.weight(&format!("{name}.weight"), base.dtype, shape);
        let y = routed(block, &format!("{name}.out"), columns);
        let kind = OpKind::GroupedMatMul { experts: spec.own_experts(), top: spec.top, ranks };
        block.op(name, kind, &[x, ids, weight], &[y]);
        y
    };
    let permuted = routed(block, "mlp.permuted", base.hidden);
    block.op("mlp.permute", OpKind::Permute, &[normed, ids], &[permuted]);
    let received = exchange(block, "mlp.scatter", permuted);
    let gate_up = experts(block, "mlp.gate_up", received, (base.hidden, width.saturating_mul(2)));
    let activated = routed(block, "mlp.activated", width);
    block.op("mlp.swiglu", OpKind::SwiGlu, &[gate_up], &[activated]);
    let down = experts(block, "mlp.down", activated, (width, base.hidden));
    let returned = exchange(block, "mlp.gather", down);
    let y = rows(block, base, "mlp.out", base.hidden);
    if base.shard.tensor_ranks == 1 {
        block.op("mlp.combine", OpKind::Combine, &[returned, ids, weights, h], &[y]);
        return y;
    }
    block.op("mlp.combine", OpKind::Combine, &[returned, ids, weights], &[y]);
    add_reduced(block, base, "mlp", y, h)
}

#[cfg(test)]
mod tests;
