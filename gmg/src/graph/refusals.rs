//! Every mistake is refused with the names, types and numbers that it is about.

use super::*;
use crate::dtype::DType;
use crate::shape::{CONTEXT, Shape, TOKENS};

fn rows(columns: u64) -> Shape {
    Shape::matrix(TOKENS, columns)
}

/// The message of the error that a graph gives.
fn refusal(describe: impl FnOnce(&mut OpGraphBuilder)) -> String {
    let mut graph = OpGraph::builder("g");
    describe(&mut graph);
    graph.build().unwrap_err().to_string()
}

/// A graph that is right: x -> softmax -> y.
fn softmax(graph: &mut OpGraphBuilder) -> (TensorRef, TensorRef) {
    let x = graph.input("x", DType::F32, rows(8));
    let y = graph.output("y", DType::F32, rows(8));
    graph.op("softmax", OpKind::Softmax, &[x], &[y]);
    (x, y)
}

#[test]
fn an_empty_graph() {
    assert_eq!(refusal(|_| {}), "graph \"g\" has no operators: expected at least one");
}

#[test]
fn names_given_twice() {
    let twice = refusal(|graph| {
        let (x, _) = softmax(graph);
        let z = graph.output("z", DType::F32, rows(8));
        graph.op("softmax", OpKind::Softmax, &[x], &[z]);
    });
    assert_eq!(twice, "graph \"g\" has two operators named \"softmax\"");
    let tensors = refusal(|graph| {
        softmax(graph);
        graph.input("x", DType::F32, rows(8));
    });
    assert_eq!(tensors, "graph \"g\" has two tensors named \"x\"");
    let qualified = refusal(|graph| {
        let (x, _) = softmax(graph);
        let [last] = graph.repeat("block", 2, [x], |block, [x]| {
            let inner = block.activation("t", DType::F32, rows(8));
            block.op("op", OpKind::Softmax, &[x], &[inner]);
            [inner]
        });
        let out = graph.output("out", DType::F32, rows(8));
        graph.op("block.1.op", OpKind::Softmax, &[last], &[out]);
    });
    assert_eq!(qualified, "graph \"g\" has two operators named \"block.1.op\"");
}

#[test]
fn inputs_of_the_wrong_type() {
    let shape = refusal(|graph| {
        let x = graph.input("x", DType::BF16, rows(8));
        let weight = graph.weight("w", DType::BF16, Shape::matrix(4, 16));
        let y = graph.output("y", DType::BF16, rows(4));
        graph.op("product", OpKind::MatMul, &[x, weight], &[y]);
    });
    assert_eq!(shape, "operator \"product\" (matmul): input \"w\" is bf16 [4, 16]: expected the shape [4, 8]");
    let dtype = refusal(|graph| {
        let x = graph.input("x", DType::F32, rows(8));
        let z = graph.input("z", DType::F16, rows(8));
        let y = graph.output("y", DType::F32, rows(8));
        graph.op("sum", OpKind::Add, &[x, z], &[y]);
    });
    assert_eq!(dtype, "operator \"sum\" (add): input \"z\" is f16 [tokens, 8]: expected f32");
    let arity = refusal(|graph| {
        let (x, _) = softmax(graph);
        let y = graph.output("z", DType::F32, rows(8));
        graph.op("sum", OpKind::Add, &[x], &[y]);
    });
    assert_eq!(arity, "operator \"sum\" (add): it has 1 inputs: expected two of equal shape");
    let role = refusal(|graph| {
        let x = graph.input("x", DType::F32, rows(8));
        let not_kv = graph.input("k", DType::F32, Shape::matrix(CONTEXT, 16));
        let y = graph.output("y", DType::F32, rows(8));
        graph.op("attend", OpKind::Attention { heads: 1, kv_heads: 1, head_dim: 8 }, &[x, not_kv], &[y]);
    });
    assert_eq!(role, "operator \"attend\" (attention): input \"k\" is an input of the graph: expected a KV cache");
    let heads = refusal(|graph| {
        let x = graph.input("x", DType::F32, rows(24));
        let kv = graph.kv_cache("kv", DType::F32, Shape::matrix(CONTEXT, 32));
        let y = graph.output("y", DType::F32, rows(24));
        graph.op("attend", OpKind::Attention { heads: 3, kv_heads: 2, head_dim: 8 }, &[x, kv], &[y]);
    });
    assert!(heads.contains("3 heads of 8 elements over 2 KV heads"), "{heads}");
}

#[test]
fn outputs_of_the_wrong_type_or_number() {
    let shape = refusal(|graph| {
        let x = graph.input("x", DType::F32, rows(8));
        let y = graph.output("y", DType::F32, rows(9));
        graph.op("softmax", OpKind::Softmax, &[x], &[y]);
    });
    assert_eq!(
        shape,
        "operator \"softmax\" (softmax): output \"y\" is declared f32 [tokens, 9]: expected f32 [tokens, 8]"
    );
    let count = refusal(|graph| {
        let x = graph.input("x", DType::F32, rows(8));
        graph.op("softmax", OpKind::Softmax, &[x], &[]);
    });
    assert_eq!(count, "operator \"softmax\" (softmax) has 0 outputs: expected 1");
    let kind = refusal(|graph| {
        let x = graph.input("x", DType::F32, rows(8));
        graph.op("op", OpKind::custom("flash"), &[x], &[]);
    });
    assert_eq!(kind, "operator \"op\" has the custom kind \"flash\": register its semantics with the builder");
}

#[test]
fn dangling_tensors() {
    let produced = refusal(|graph| {
        let x = graph.activation("x", DType::F32, rows(8));
        let y = graph.output("y", DType::F32, rows(8));
        graph.op("softmax", OpKind::Softmax, &[x], &[y]);
    });
    assert_eq!(produced, "tensor \"x\" (f32 [tokens, 8]) is an activation, but no operator produces it");
    let consumed = refusal(|graph| {
        let x = graph.input("x", DType::F32, rows(8));
        let y = graph.activation("y", DType::F32, rows(8));
        graph.op("softmax", OpKind::Softmax, &[x], &[y]);
    });
    assert_eq!(consumed, "tensor \"y\" (f32 [tokens, 8]) is an activation, but no operator consumes it");
    let last = refusal(|graph| {
        let (x, _) = softmax(graph);
        graph.repeat("once", 1, [x], |block, [x]| {
            let t = block.activation("t", DType::F32, rows(8));
            block.op("op", OpKind::Softmax, &[x], &[t]);
            [t]
        });
    });
    assert_eq!(last, "tensor \"once.t\" (f32 [tokens, 8]) is an activation, but no operator consumes it");
    let twice = refusal(|graph| {
        let (x, y) = softmax(graph);
        graph.op("again", OpKind::Softmax, &[x], &[y]);
    });
    assert_eq!(twice, "tensor \"y\" is produced by operator \"softmax\" and again by \"again\"");
    let source = refusal(|graph| {
        let (x, y) = softmax(graph);
        graph.op("again", OpKind::Softmax, &[y], &[x]);
    });
    assert!(source.starts_with("operator \"again\" produces tensor \"x\", which is an input of the graph"), "{source}");
}

#[test]
fn operators_that_wait_for_each_other() {
    let cycle = refusal(|graph| {
        let x = graph.activation("x", DType::F32, rows(8));
        let y = graph.activation("y", DType::F32, rows(8));
        graph.op("a", OpKind::Softmax, &[x], &[y]);
        graph.op("b", OpKind::Softmax, &[y], &[x]);
    });
    assert!(cycle == "operators wait for each other: a -> b -> a" || cycle.ends_with("b -> a -> b"), "{cycle}");
    let alone = refusal(|graph| {
        let x = graph.activation("x", DType::F32, rows(8));
        graph.op("a", OpKind::Softmax, &[x], &[x]);
    });
    assert_eq!(alone, "operators wait for each other: a -> a");
    let later = refusal(|graph| {
        let x = graph.input("x", DType::F32, rows(8));
        let y = graph.activation("y", DType::F32, rows(8));
        let out = graph.output("out", DType::F32, rows(8));
        graph.op("early", OpKind::Softmax, &[y], &[out]);
        let [last] = graph.repeat("block", 2, [x], |block, [x]| {
            let t = block.activation("t", DType::F32, rows(8));
            block.op("op", OpKind::Softmax, &[x], &[t]);
            [t]
        });
        graph.op("late", OpKind::Softmax, &[last], &[y]);
    });
    assert_eq!(later, "operator \"early\" depends on \"late\", which comes in a later segment of the graph");
}

#[test]
fn blocks_that_can_not_be_repeated() {
    let never = refusal(|graph| {
        let (x, _) = softmax(graph);
        graph.repeat("block", 0, [x], |block, [x]| {
            let t = block.activation("t", DType::F32, rows(8));
            block.op("op", OpKind::Softmax, &[x], &[t]);
            [t]
        });
    });
    assert_eq!(never, "block \"block\" has 1 operators repeated 0 times: expected at least one of each");
    let mismatch = refusal(|graph| {
        let (x, _) = softmax(graph);
        graph.repeat("block", 2, [x], |block, [x]| {
            let t = block.activation("t", DType::F32, rows(4));
            block.op("op", OpKind::SwiGlu, &[x], &[t]);
            [t]
        });
    });
    assert_eq!(
        mismatch,
        "block \"block\" takes \"x\" f32 [tokens, 8] and carries out \"block.t\" f32 [tokens, 4]: expected the same type"
    );
    let passed_on = refusal(|graph| {
        let (x, y) = softmax(graph);
        graph.repeat("block", 2, [x], |block, [x]| {
            let t = block.activation("t", DType::F32, rows(8));
            block.op("op", OpKind::Softmax, &[x], &[t]);
            [y]
        });
    });
    assert_eq!(passed_on, "block \"block\" carries out tensor \"y\", which no operator of the block produces");
    let nested = refusal(|graph| {
        let (x, _) = softmax(graph);
        graph.repeat("outer", 2, [x], |block, [x]| block.repeat("inner", 2, [x], |_, x| x));
    });
    assert_eq!(nested, "block \"inner\" is declared within block \"outer\": blocks do not nest");
    let input = refusal(|graph| {
        let (x, _) = softmax(graph);
        graph.repeat("block", 2, [x], |block, [x]| {
            let side = block.input("side", DType::F32, rows(8));
            let t = block.activation("t", DType::F32, rows(8));
            block.op("op", OpKind::Add, &[x, side], &[t]);
            [t]
        });
    });
    assert_eq!(
        input,
        "tensor \"side\" of block \"block\" is an input of the graph: declare it outside the block"
            .replace("\"side\"", "\"block.side\"")
    );
}

#[test]
fn references_that_lead_nowhere() {
    let mut other = OpGraph::builder("other");
    let foreign = (0..9).map(|number| other.input(&number.to_string(), DType::F32, rows(8))).last().unwrap();
    let unknown = refusal(|graph| {
        let y = graph.output("y", DType::F32, rows(8));
        graph.op("softmax", OpKind::Softmax, &[foreign], &[y]);
    });
    assert_eq!(unknown, "operator \"softmax\" refers to a tensor or operator that this graph does not have");
    // A number that this graph has, too, is still another's.
    let mut other = OpGraph::builder("other");
    let (same, into) = (other.input("x", DType::F32, rows(8)), other.output("y", DType::F32, rows(8)));
    let foreign_op = other.op("softmax", OpKind::Softmax, &[same], &[into]);
    let in_range = refusal(|graph| {
        let (_, y) = (graph.input("x", DType::F32, rows(8)), graph.output("y", DType::F32, rows(8)));
        graph.op("softmax", OpKind::Softmax, &[same], &[y]);
    });
    assert_eq!(in_range, unknown);
    let carried = refusal(|graph| {
        let (x, y) = (graph.input("x", DType::F32, rows(8)), graph.output("y", DType::F32, rows(8)));
        let op = graph.op("softmax", OpKind::Softmax, &[x], &[y]);
        graph.control(op, foreign_op);
    });
    assert_eq!(carried, "a control edge of \"softmax\" refers to a tensor or operator that this graph does not have");
    let given = refusal(|graph| {
        let x = graph.input("x", DType::F32, rows(8));
        graph.repeat("block", 2, [x], |block, [x]| {
            let t = block.activation("t", DType::F32, rows(8));
            block.op("op", OpKind::Softmax, &[x], &[t]);
            [same]
        });
    });
    assert_eq!(given, "block \"block\" refers to a tensor or operator that this graph does not have");
    let scope = refusal(|graph| {
        let (x, _) = softmax(graph);
        let mut inner = x;
        graph.repeat("block", 2, [x], |block, [x]| {
            inner = block.activation("t", DType::F32, rows(8));
            block.op("op", OpKind::Softmax, &[x], &[inner]);
            [inner]
        });
        let z = graph.output("z", DType::F32, rows(8));
        graph.op("end", OpKind::Softmax, &[inner], &[z]);
    });
    assert_eq!(
        scope,
        "operator \"end\" uses tensor \"block.t\" of block \"block\" from outside: carry it out of the block"
    );
}

#[test]
fn tensors_that_can_not_be_stored() {
    let weight = refusal(|graph| {
        let x = graph.input("x", DType::F32, rows(8));
        let weight = graph.weight("w", DType::F32, rows(8));
        let y = graph.output("y", DType::F32, rows(8));
        graph.op("sum", OpKind::Add, &[x, weight], &[y]);
    });
    assert_eq!(weight, "weight \"w\" has the shape [tokens, 8]: expected fixed dimensions");
    let block = refusal(|graph| {
        let x = graph.input("x", DType::F32, rows(40));
        let weight = graph.weight("w", DType::Q4_0, Shape::matrix(8, 40));
        let y = graph.output("y", DType::F32, rows(8));
        graph.op("product", OpKind::MatMul, &[x, weight], &[y]);
    });
    assert_eq!(block, "tensor \"w\" is q4_0 [8, 40]: expected a last dimension that is a multiple of 32");
    let symbols = refusal(|graph| {
        for name in ["a", "b", "c", "d", "e"] {
            graph.symbol(name);
        }
    });
    assert_eq!(symbols, "graph \"g\": symbol \"e\" is one too many: expected at most 8, the standard ones included");
    let large = refusal(|graph| {
        let (x, _) = softmax(graph);
        let [last] = graph.repeat("block", u32::MAX, [x], |block, [x]| {
            let t = block.activation("t", DType::F32, rows(8));
            block.op("op", OpKind::Softmax, &[x], &[t]);
            [t]
        });
        let z = graph.output("z", DType::F32, rows(8));
        graph.op("end", OpKind::Softmax, &[last], &[z]);
    });
    assert_eq!(large, "graph \"g\" has 4294967297 operators over all repetitions: expected at most 2147483647");
}
