//! Oracle tests: a graph with a repeated block is the same graph as the one written out.

use std::collections::BTreeSet;

use petgraph::algo::{is_cyclic_directed, toposort};
use petgraph::visit::{Dfs, NodeCount};
use proptest::prelude::*;

use super::testing::{binding, programs};
use super::*;
use crate::dtype::DType;
use crate::shape::{CONTEXT, SEQUENCES, Shape, TOKENS};
use crate::templates::{DenseSpec, dense};

fn names(graph: &OpGraph, ops: impl Iterator<Item = OpIndex>) -> BTreeSet<String> {
    let ops: Vec<_> = ops.collect();
    let names: BTreeSet<_> = ops.iter().map(|&op| graph.op(op).unwrap().name().to_string()).collect();
    assert_eq!(names.len(), ops.len(), "an operator is named twice");
    names
}

fn tensor_names(graph: &OpGraph, tensors: impl Iterator<Item = TensorId>) -> Vec<String> {
    tensors.map(|id| graph.tensor(id).unwrap().name().to_string()).collect()
}

proptest! {
    #[test]
    fn a_repeated_block_equals_the_block_written_out(program in programs(), binding in binding()) {
        let (folded, flat) = (program.graph(false), program.graph(true));
        prop_assert_eq!(folded.op_count(), flat.op_count());
        prop_assert_eq!(folded.tensor_count(), flat.tensor_count());
        for expected in flat.ops() {
            let name = expected.name().to_string();
            let op = folded.op(folded.find_op(&name).unwrap()).unwrap();
            prop_assert_eq!(op.name().to_string(), name);
            prop_assert_eq!(op.kind(), expected.kind());
            prop_assert_eq!(op.cost(&binding), expected.cost(&binding));
            prop_assert_eq!(tensor_names(&folded, op.inputs()), tensor_names(&flat, expected.inputs()));
            prop_assert_eq!(tensor_names(&folded, op.outputs()), tensor_names(&flat, expected.outputs()));
            prop_assert_eq!(
                names(&folded, folded.predecessors(op.index())),
                names(&flat, flat.predecessors(expected.index()))
            );
            prop_assert_eq!(
                names(&folded, folded.successors(op.index())),
                names(&flat, flat.successors(expected.index()))
            );
        }
        for expected in flat.tensors() {
            let name = expected.name().to_string();
            let tensor = folded.tensor(folded.find_tensor(&name).unwrap()).unwrap();
            prop_assert_eq!(tensor.name().to_string(), name);
            prop_assert_eq!(&tensor.tensor.shape, &expected.tensor.shape);
        }
        prop_assert_eq!(folded.total_cost(&binding), flat.total_cost(&binding));
    }

    #[test]
    fn index_order_is_a_topological_order(program in programs()) {
        let graph = program.graph(false);
        for op in graph.ops() {
            prop_assert!(graph.predecessors(op.index()).all(|before| before < op.index()));
            prop_assert!(graph.successors(op.index()).all(|after| after > op.index()));
        }
        let order = toposort(&graph, None);
        prop_assert_eq!(order.map(|order| order.len()).ok(), Some(graph.node_count()));
    }
}

#[test]
fn petgraphs_algorithms_run_on_a_graph() {
    let graph = dense(&DenseSpec::tiny()).unwrap();
    assert!(!is_cyclic_directed(&graph));
    let order = toposort(&graph, None).unwrap();
    let place = |op: OpIndex| order.iter().position(|&other| other == op).unwrap();
    for op in graph.ops() {
        assert!(graph.predecessors(op.index()).all(|before| place(before) < place(op.index())));
    }
    let mut reached = 0;
    let mut search = Dfs::new(&graph, OpIndex(0));
    while search.next(&graph).is_some() {
        reached += 1;
    }
    assert_eq!(reached, graph.node_count());
}

#[test]
fn every_repetition_is_addressable() {
    let graph = dense(&DenseSpec::llama3_8b()).unwrap();
    assert_eq!(graph.op_count(), 1 + 32 * 9 + 4);
    assert_eq!(graph.slot_count(), 1 + 9 + 4);
    let qkv = graph.op(graph.find_op("layers.7.attn.qkv").unwrap()).unwrap();
    assert_eq!((qkv.index(), qkv.repetition(), qkv.block()), (OpIndex(1 + 7 * 9 + 1), 7, Some("layers")));
    let weights: Vec<_> = qkv.weights().map(|weight| weight.name().to_string()).collect();
    assert_eq!(weights, ["layers.7.attn.qkv.weight"]);
    let repeats: Vec<_> =
        graph.segments().map(|segment| (segment.block(), segment.repeat(), segment.slots().len())).collect();
    assert_eq!(repeats, [(None, 1, 1), (Some("layers"), 32, 9), (None, 1, 4)]);
    let layers = graph.segments().nth(1).unwrap();
    assert_eq!(layers.op(qkv.slot(), 7), Some(qkv.index()));
    assert_eq!(layers.op(qkv.slot(), 32), None);
    for missing in ["layers.32.attn.qkv", "layers.attn.qkv", "attn.qkv", "layers.7", "layers.-1.attn.qkv", ""] {
        assert_eq!(graph.find_op(missing), None, "{missing}");
    }
    assert!(graph.op(OpIndex(graph.op_count())).is_none());
    assert!(graph.tensor(TensorId(u32::MAX)).is_none());
    assert_eq!(graph.predecessors(OpIndex(u32::MAX)).count(), 0);
}

#[test]
fn a_layer_waits_for_what_its_inputs_come_from() {
    let graph = dense(&DenseSpec::tiny()).unwrap();
    let before = |name: &str| names(&graph, graph.predecessors(graph.find_op(name).unwrap()));
    let after = |name: &str| names(&graph, graph.successors(graph.find_op(name).unwrap()));
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(before("layers.0.attn.o"), set(&["layers.0.attn.attend", "embed"]));
    assert_eq!(before("layers.1.attn.o"), set(&["layers.1.attn.attend", "layers.0.mlp.down"]));
    assert_eq!(before("gather"), set(&["layers.1.mlp.down"]));
    assert_eq!(after("embed"), set(&["layers.0.attn.norm", "layers.0.attn.o"]));
    assert_eq!(after("layers.1.mlp.down"), set(&["gather"]));
    assert_eq!(after("sample"), set(&[]));
}

#[test]
fn a_binding_must_have_every_symbol_of_the_graph() {
    let graph = dense(&DenseSpec::tiny()).unwrap();
    let binding = Binding::new().bind(TOKENS, 1).bind(SEQUENCES, 1).bind(CONTEXT, 1);
    let error = graph.check_binding(&binding).unwrap_err();
    assert_eq!(error.to_string(), "graph \"tiny\" needs a value for \"pairs\", which is not bound");
    assert_eq!(graph.check_binding(&Binding::iteration(1, 1, 1, 1)), Ok(()));
}

#[test]
fn operators_of_a_segment_may_be_added_in_any_order() {
    let mut graph = OpGraph::builder("backwards");
    let rows = || Shape::matrix(TOKENS, 8);
    let x = graph.input("x", DType::F32, rows());
    let y = graph.activation("y", DType::F32, rows());
    let z = graph.output("z", DType::F32, rows());
    graph.op("second", OpKind::Softmax, &[y], &[z]);
    graph.op("first", OpKind::Softmax, &[x], &[y]);
    let graph = graph.build().unwrap();
    let order: Vec<_> = graph.ops().map(|op| op.name().to_string()).collect();
    assert_eq!(order, ["first", "second"]);
}

#[test]
fn control_edges_order_operators_that_share_no_data() {
    let mut graph = OpGraph::builder("control");
    let rows = || Shape::matrix(TOKENS, 8);
    let x = graph.input("x", DType::F32, rows());
    let side = graph.output("side", DType::F32, rows());
    let early = graph.op("early", OpKind::Softmax, &[x], &[side]);
    let mut inner = None;
    let [last] = graph.repeat("block", 3, [x], |block, [x]| {
        let y = block.activation("y", DType::F32, rows());
        inner = Some(block.op("step", OpKind::Softmax, &[x], &[y]));
        [y]
    });
    let z = graph.output("z", DType::F32, rows());
    graph.op("end", OpKind::Softmax, &[last], &[z]);
    graph.control(early, inner.unwrap());
    let graph = graph.build().unwrap();
    let steps = names(&graph, graph.successors(graph.find_op("early").unwrap()));
    assert_eq!(steps.len(), 3);
    let second = graph.find_op("block.1.step").unwrap();
    assert_eq!(names(&graph, graph.predecessors(second)).into_iter().collect::<Vec<_>>(), ["block.0.step", "early"]);
}

#[test]
fn operators_that_share_a_cache_run_one_after_the_other() {
    let mut graph = OpGraph::builder("cache");
    let x = graph.input("x", DType::F32, Shape::matrix(TOKENS, 8));
    let cache = graph.kv_cache("kv", DType::F32, Shape::matrix(CONTEXT, 16));
    let attend = || OpKind::Attention { heads: 1, kv_heads: 1, head_dim: 8 };
    for name in ["a", "b"] {
        let y = graph.output(&format!("{name}.y"), DType::F32, Shape::matrix(TOKENS, 8));
        graph.op(name, attend(), &[x, cache], &[y]);
    }
    let graph = graph.build().unwrap();
    assert_eq!(graph.predecessors(OpIndex(1)).collect::<Vec<_>>(), [OpIndex(0)]);
}

#[test]
fn graphs_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<OpGraph>();
    shared::<GraphError>();
}
