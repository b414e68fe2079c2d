//! Random graphs for tests, each in two forms: with a repeated block, and written out.

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::{OpGraph, OpGraphBuilder, Tensor, TensorRef};
use crate::dtype::DType;
use crate::semantics::{DTypeRule, OpCost, OpKind, OpSemantics, OutputType, Outputs, SemanticsError};
use crate::shape::{Binding, Dim, SEQUENCES, Shape, TOKENS};
use crate::units::Flops;

/// Makes one tensor of a given shape out of any.
#[derive(Debug)]
struct Mix(Shape);

impl OpSemantics for Mix {
    fn outputs(&self, _: &[&Tensor]) -> Result<Outputs, SemanticsError> {
        Ok([OutputType { dtype: DTypeRule::Exactly(DType::F32), shape: self.0.clone() }].into_iter().collect())
    }

    fn cost(&self, inputs: &[&Tensor], outputs: &[&Tensor], binding: &Binding) -> OpCost {
        OpCost {
            flops: Flops(inputs.len() as u64 * outputs.iter().map(|out| out.shape.elements(binding)).sum::<u64>()),
            read: inputs.iter().map(|input| input.bytes(binding)).sum(),
            ..OpCost::default()
        }
    }
}

/// A step reads two tensors of those there are and makes one of some shape.
#[derive(Clone, Debug)]
pub(super) struct Step {
    reads: [usize; 2],
    shape: usize,
}

/// Steps before, within and after a block.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) repeat: u32,
    carried: [usize; 2],
    before: Vec<Step>,
    within: Vec<Step>,
    after: Vec<Step>,
}

pub(super) fn programs() -> impl Strategy<Value = Program> {
    let step = || (any::<[usize; 2]>(), 0usize..4).prop_map(|(reads, shape)| Step { reads, shape });
    let steps = |least| prop::collection::vec(step(), least..6);
    (1u32..8, any::<[usize; 2]>(), steps(1), steps(0), steps(0)).prop_map(|(repeat, carried, before, within, after)| {
        Program { repeat, carried, before, within, after }
    })
}

pub(super) fn binding() -> impl Strategy<Value = Binding> {
    (0u64..100, 0u64..100).prop_map(|(tokens, sequences)| Binding::iteration(tokens, sequences, 0, 0))
}

fn shape(index: usize) -> Shape {
    let dims: [[Dim; 2]; 4] = [
        [TOKENS.into(), Dim::fixed(8)],
        [TOKENS.into(), Dim::fixed(100)],
        [SEQUENCES.into(), Dim::fixed(1000)],
        [2 * TOKENS, Dim::fixed(64)],
    ];
    Shape::new(dims[index])
}

/// The tensors that steps may read, with those that nobody has read yet.
struct Pool<'p> {
    graph: &'p mut OpGraphBuilder,
    prefix: String,
    known: Vec<(TensorRef, usize)>,
    unread: HashSet<TensorRef>,
    steps: usize,
}

impl Pool<'_> {
    fn make(&mut self, reads: &[TensorRef], shaped: usize) -> TensorRef {
        let (prefix, number) = (&self.prefix, self.steps);
        let made = self.graph.activation(&format!("{prefix}t{number}"), DType::F32, shape(shaped));
        self.graph.op(&format!("{prefix}op{number}"), OpKind::custom(&format!("mix{shaped}")), reads, &[made]);
        self.steps += 1;
        for read in reads {
            self.unread.remove(read);
        }
        self.unread.insert(made);
        self.known.push((made, shaped));
        made
    }

    fn run(&mut self, steps: &[Step]) {
        for step in steps {
            let reads = step.reads.map(|read| self.known[read % self.known.len()].0);
            self.make(&reads, step.shape);
        }
    }

    fn rest(&self) -> Vec<TensorRef> {
        let mut rest: Vec<_> = self.unread.iter().copied().collect();
        rest.sort();
        rest
    }
}

/// One repetition of the block: what it takes and what outlives it go in, what it gives comes out.
fn body(
    graph: &mut OpGraphBuilder,
    prefix: String,
    program: &Program,
    taken: [(TensorRef, usize); 2],
    outer: &[(TensorRef, usize)],
) -> [TensorRef; 2] {
    let mut pool = Pool {
        graph,
        prefix,
        known: taken.into_iter().chain(outer.iter().copied()).collect(),
        unread: taken.iter().map(|&(tensor, _)| tensor).collect(),
        steps: 0,
    };
    pool.run(&program.within);
    let rest = pool.rest();
    let first = pool.make(&rest, taken[0].1);
    [first, pool.make(&[first], taken[1].1)]
}

impl Program {
    /// The graph, with its block written out if `unrolled`.
    pub(super) fn graph(&self, unrolled: bool) -> OpGraph {
        let mut graph = OpGraph::builder("random");
        for index in 0..4 {
            graph.semantics(&format!("mix{index}"), Arc::new(Mix(shape(index))));
        }
        let input = graph.input("input", DType::F32, shape(0));
        let mut pool = Pool {
            graph: &mut graph,
            prefix: String::new(),
            known: vec![(input, 0)],
            unread: HashSet::from([input]),
            steps: 0,
        };
        pool.run(&self.before);
        let (known, mut unread, steps) = (pool.known, pool.unread, pool.steps);
        let mut taken = self.carried.map(|index| known[index % known.len()]);
        let shapes = taken.map(|(_, shape)| shape);
        for (tensor, _) in &taken {
            unread.remove(tensor);
        }
        // The block may read what outlives it; those tensors stay unread, so that they do.
        let outer: Vec<_> = known.iter().copied().take(2).collect();
        let given = if unrolled {
            for repetition in 0..self.repeat {
                let given = body(&mut graph, format!("block.{repetition}."), self, taken, &outer);
                taken = [(given[0], shapes[0]), (given[1], shapes[1])];
            }
            taken.map(|(tensor, _)| tensor)
        } else {
            graph.repeat("block", self.repeat, taken.map(|(tensor, _)| tensor), |block, inner| {
                body(block, String::new(), self, [(inner[0], shapes[0]), (inner[1], shapes[1])], &outer)
            })
        };
        unread.extend(given);
        let results = [(given[0], shapes[0]), (given[1], shapes[1])];
        let known = known.into_iter().chain(results).collect();
        let mut pool = Pool { graph: &mut graph, prefix: String::new(), known, unread, steps };
        pool.run(&self.after);
        let rest = pool.rest();
        let result = graph.output("result", DType::F32, shape(2));
        graph.op("finish", OpKind::custom("mix2"), &rest, &[result]);
        graph.build().unwrap()
    }
}
