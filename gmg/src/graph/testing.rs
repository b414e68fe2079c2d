//! Random graphs for tests, each in two forms: with a repeated block, and written out.

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
    (1u32..8, any::<[usize; 2]>(), steps(1), steps(0), steps(0))
        .prop_map(|(repeat, carried, before, within, after)| Program { repeat, carried, before, within, after })
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

/// The tensors that steps may read, with the places of those that nobody has read yet.
struct Pool<'p> {
    graph: &'p mut OpGraphBuilder,
    prefix: String,
    known: Vec<(TensorRef, usize)>,
    unread: Vec<usize>,
    steps: usize,
}

impl Pool<'_> {
    fn make(&mut self, reads: &[usize], shaped: usize) -> usize {
        let (prefix, number) = (&self.prefix, self.steps);
        let made = self.graph.activation(&format!("{prefix}t{number}"), DType::F32, shape(shaped));
        let inputs: Vec<_> = reads.iter().map(|&read| self.known[read].0).collect();
        self.graph.op(&format!("{prefix}op{number}"), OpKind::custom(&format!("mix{shaped}")), &inputs, &[made]);
        self.steps += 1;
        self.unread.retain(|place| !reads.contains(place));
        self.unread.push(self.known.len());
        self.known.push((made, shaped));
        self.known.len() - 1
    }

    fn run(&mut self, steps: &[Step]) {
        for step in steps {
            let reads = step.reads.map(|read| read % self.known.len());
            self.make(&reads, step.shape);
        }
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
    let known = taken.into_iter().chain(outer.iter().copied()).collect();
    let mut pool = Pool { graph, prefix, known, unread: vec![0, 1], steps: 0 };
    pool.run(&program.within);
    let rest = pool.unread.clone();
    let first = pool.make(&rest, taken[0].1);
    let second = pool.make(&[first], taken[1].1);
    [pool.known[first].0, pool.known[second].0]
}

impl Program {
    /// The graph, with its block written out if `unrolled`.
    pub(super) fn graph(&self, unrolled: bool) -> OpGraph {
        let mut graph = OpGraph::builder("random");
        for index in 0..4 {
            graph.semantics(&format!("mix{index}"), Arc::new(Mix(shape(index))));
        }
        let input = graph.input("input", DType::F32, shape(0));
        let mut pool =
            Pool { graph: &mut graph, prefix: String::new(), known: vec![(input, 0)], unread: vec![0], steps: 0 };
        pool.run(&self.before);
        let Pool { known, mut unread, steps, .. } = pool;
        let first = self.carried[0] % known.len();
        let second = (first + 1 + self.carried[1] % (known.len() - 1)) % known.len();
        unread.retain(|&place| place != first && place != second);
        let mut taken = [known[first], known[second]];
        let shapes = taken.map(|(_, shape)| shape);
        // The block may read what outlives it; to the rest those tensors stay unread.
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
        unread.extend([known.len(), known.len() + 1]);
        let known = known.into_iter().chain([(given[0], shapes[0]), (given[1], shapes[1])]).collect();
        let mut pool = Pool { graph: &mut graph, prefix: String::new(), known, unread, steps };
        pool.run(&self.after);
        let rest: Vec<_> = pool.unread.iter().map(|&place| pool.known[place].0).collect();
        let result = graph.output("result", DType::F32, shape(2));
        graph.op("finish", OpKind::custom("mix2"), &rest, &[result]);
        graph.build().unwrap()
    }
}
