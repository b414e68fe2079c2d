//! What decoders have in common: everything but the feed-forward network.

use super::DenseSpec;
use super::dense::plain;
use crate::dtype::DType;
use crate::graph::{GraphError, OpGraph, OpGraphBuilder, TensorRef};
use crate::semantics::{Collective, OpKind};
use crate::shape::{CONTEXT, SEQUENCES, Shape, TOKENS};

/// The graph of one iteration on one rank; `feed_forward` adds the second half of a layer, from the
/// residual stream to the residual stream.
pub(super) fn decoder(
    spec: &DenseSpec,
    feed_forward: impl FnOnce(&mut OpGraphBuilder, TensorRef) -> TensorRef,
) -> Result<OpGraph, GraphError> {
    spec.check()?;
    let mut graph = OpGraph::builder(&spec.name);
    let token_ids = spec.shard.is_first().then(|| graph.input("token_ids", DType::U32, Shape::vector(TOKENS)));
    let positions = graph.input("positions", DType::U32, Shape::vector(TOKENS));
    let logit_rows = spec.shard.is_last().then(|| graph.input("logit_rows", DType::U32, Shape::vector(SEQUENCES)));

    let mut table = None;
    let first = match token_ids {
        Some(token_ids) => {
            let weight = vocabulary(&mut graph, spec, "embed.weight", spec.embedding_dtype);
            table = Some(weight);
            let embedded = rows(&mut graph, spec, "embedded", spec.hidden);
            graph.op("embed", OpKind::Embedding, &[token_ids, weight], &[embedded]);
            reduced(&mut graph, spec, "embed", embedded)
        }
        None => {
            let received = rows(&mut graph, spec, "received", spec.hidden);
            let distance = spec.shard.tensor_ranks;
            graph.op("receive", OpKind::Collective(Collective::Receive { distance }), &[], &[received]);
            received
        }
    };

    let [last] = graph.repeat("layers", spec.own_layers(), [first], |block, [x]| {
        let h = attention(block, spec, x, positions);
        [feed_forward(block, h)]
    });

    let Some(logit_rows) = logit_rows else {
        let distance = spec.shard.tensor_ranks;
        graph.op("send", OpKind::Collective(Collective::Send { distance }), &[last], &[]);
        return graph.build();
    };
    let selected = emitted(&mut graph, spec, "selected", spec.hidden);
    graph.op("gather", OpKind::Gather, &[last, logit_rows], &[selected]);
    let normed = emitted(&mut graph, spec, "normed", spec.hidden);
    norm(&mut graph, spec, "norm", selected, normed);
    let head = match table.filter(|_| spec.tied_embeddings) {
        Some(table) => table,
        None => {
            let dtype = if spec.tied_embeddings { spec.embedding_dtype } else { spec.dtype };
            vocabulary(&mut graph, spec, "lm_head.weight", dtype)
        }
    };
    let logits = emitted(&mut graph, spec, "logits", spec.own_vocab());
    graph.op("lm_head", OpKind::MatMul, &[normed, head], &[logits]);
    let logits = match spec.shard.tensor_ranks {
        1 => logits,
        ranks => {
            let all = emitted(&mut graph, spec, "all_logits", spec.own_vocab().saturating_mul(u64::from(ranks)));
            graph.op("logits.gather", OpKind::Collective(Collective::AllGather { ranks }), &[logits], &[all]);
            all
        }
    };
    let next_ids = graph.output("next_ids", DType::U32, Shape::vector(SEQUENCES));
    graph.op("sample", OpKind::Sample, &[logits], &[next_ids]);
    graph.build()
}

fn attention(block: &mut OpGraphBuilder, spec: &DenseSpec, x: TensorRef, positions: TensorRef) -> TensorRef {
    let (heads, kv_heads, head_dim) = (spec.own_heads(), spec.own_kv_heads(), spec.head_dim);
    let (queries, keys_and_values) = spec.attention_widths();
    let kv = block.kv_cache("kv", spec.kv_dtype, Shape::matrix(CONTEXT, keys_and_values));
    let normed = rows(block, spec, "attn.normed", spec.hidden);
    norm(block, spec, "attn.norm", x, normed);
    let width = queries.saturating_add(keys_and_values);
    let mut fused = project(block, spec, "attn.qkv", (normed, None), (spec.hidden, width));
    if spec.qk_norm {
        let [of_queries, of_keys] = ["attn.q_norm.weight", "attn.k_norm.weight"]
            .map(|name| block.weight(name, plain(spec.dtype), Shape::vector(u64::from(head_dim))));
        let normed = rows(block, spec, "attn.qk_normed", width);
        let kind = OpKind::HeadNorm { heads, kv_heads, head_dim, epsilon: spec.norm_epsilon };
        block.op("attn.qk_norm", kind, &[fused, of_queries, of_keys], &[normed]);
        fused = normed;
    }
    let rotated = rows(block, spec, "attn.queries", queries);
    let rotary = OpKind::Rotary { heads, kv_heads, head_dim, theta: spec.rope_theta };
    block.op("attn.rotary", rotary, &[fused, positions, kv], &[rotated]);
    let attended = rows(block, spec, "attn.attended", queries);
    block.op("attn.attend", OpKind::Attention { heads, kv_heads, head_dim }, &[rotated, kv], &[attended]);
    project_back(block, spec, "attn.o", attended, x, queries)
}

/// A product that brings a shard's columns back to the residual stream: with the residual on one
/// rank; on several, the ranks' parts are summed first.
pub(super) fn project_back(
    block: &mut OpGraphBuilder,
    spec: &DenseSpec,
    name: &str,
    x: TensorRef,
    residual: TensorRef,
    depth: u64,
) -> TensorRef {
    if spec.shard.tensor_ranks == 1 {
        return project(block, spec, name, (x, Some(residual)), (depth, spec.hidden));
    }
    let part = project(block, spec, name, (x, None), (depth, spec.hidden));
    add_reduced(block, spec, name, part, residual)
}

/// The sum of all ranks' `part`, plus the residual.
pub(super) fn add_reduced(
    block: &mut OpGraphBuilder,
    spec: &DenseSpec,
    name: &str,
    part: TensorRef,
    residual: TensorRef,
) -> TensorRef {
    let sum = reduced(block, spec, name, part);
    let y = rows(block, spec, &format!("{name}.added"), spec.hidden);
    block.op(&format!("{name}.add"), OpKind::Add, &[sum, residual], &[y]);
    y
}

/// The sum of all ranks' `part`.
fn reduced(graph: &mut OpGraphBuilder, spec: &DenseSpec, name: &str, part: TensorRef) -> TensorRef {
    let ranks = spec.shard.tensor_ranks;
    if ranks == 1 {
        return part;
    }
    let sum = rows(graph, spec, &format!("{name}.reduced"), spec.hidden);
    graph.op(&format!("{name}.reduce"), OpKind::Collective(Collective::AllReduce { ranks }), &[part], &[sum]);
    sum
}

fn vocabulary(graph: &mut OpGraphBuilder, spec: &DenseSpec, name: &str, dtype: DType) -> TensorRef {
    graph.weight(name, dtype, Shape::matrix(spec.own_vocab(), spec.hidden))
}

pub(super) fn rows(graph: &mut OpGraphBuilder, spec: &DenseSpec, name: &str, columns: u64) -> TensorRef {
    graph.activation(name, spec.activation_dtype, Shape::matrix(TOKENS, columns))
}

fn emitted(graph: &mut OpGraphBuilder, spec: &DenseSpec, name: &str, columns: u64) -> TensorRef {
    graph.activation(name, spec.activation_dtype, Shape::matrix(SEQUENCES, columns))
}

pub(super) fn norm(graph: &mut OpGraphBuilder, spec: &DenseSpec, name: &str, x: TensorRef, y: TensorRef) {
    let weight = graph.weight(&format!("{name}.weight"), plain(spec.dtype), Shape::vector(spec.hidden));
    graph.op(name, OpKind::RmsNorm { epsilon: spec.norm_epsilon }, &[x, weight], &[y]);
}

/// A matrix product from `depth` to `columns` elements, plus the residual.
pub(super) fn project(
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
