//! petgraph's visit traits: its algorithms run on a graph as it is.
//!
//! # Example
//!
//! ```
//! use petgraph::algo::toposort;
//! use slicescheduler_gmg::templates::{DenseSpec, dense};
//!
//! let graph = dense(&DenseSpec::tiny())?;
//! let order = toposort(&graph, None).expect("an operator graph has no cycles");
//! assert_eq!(order.len(), graph.op_count() as usize);
//! # Ok::<(), slicescheduler_gmg::graph::GraphError>(())
//! ```

use std::iter::Map;
use std::ops::Range;

use petgraph::Direction;
use petgraph::visit::{
    Data, GraphBase, GraphProp, IntoNeighbors, IntoNeighborsDirected, IntoNodeIdentifiers, NodeCompactIndexable,
    NodeCount, NodeIndexable, VisitMap, Visitable,
};

use super::{OpGraph, Predecessors, Successors};
use crate::id::OpIndex;

/// A set of operators of one graph, one bit for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpSet {
    bits: Vec<u64>,
}

impl OpSet {
    /// An empty set with room for the operators of a graph of `op_count`.
    pub fn with_capacity(op_count: u32) -> Self {
        Self { bits: vec![0; (op_count as usize).div_ceil(64)] }
    }
}

impl VisitMap<OpIndex> for OpSet {
    fn visit(&mut self, op: OpIndex) -> bool {
        let word = op.index() / 64;
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        let bit = 1 << (op.0 % 64);
        let new = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        new
    }

    fn is_visited(&self, op: &OpIndex) -> bool {
        self.bits.get(op.index() / 64).is_some_and(|word| word & (1 << (op.0 % 64)) != 0)
    }

    fn unvisit(&mut self, op: OpIndex) -> bool {
        let was = self.is_visited(&op);
        if was {
            self.bits[op.index() / 64] &= !(1 << (op.0 % 64));
        }
        was
    }
}

/// The operators before or after one; see [`IntoNeighborsDirected`].
#[derive(Clone, Debug)]
pub enum Neighbors<'g> {
    /// Those before it.
    Incoming(Predecessors<'g>),
    /// Those after it.
    Outgoing(Successors<'g>),
}

impl Iterator for Neighbors<'_> {
    type Item = OpIndex;

    fn next(&mut self) -> Option<OpIndex> {
        match self {
            Self::Incoming(before) => before.next(),
            Self::Outgoing(after) => after.next(),
        }
    }
}

impl GraphBase for OpGraph {
    type EdgeId = (OpIndex, OpIndex);
    type NodeId = OpIndex;
}

impl Data for OpGraph {
    type NodeWeight = ();
    type EdgeWeight = ();
}

impl GraphProp for OpGraph {
    type EdgeType = petgraph::Directed;
}

impl NodeCount for OpGraph {
    fn node_count(&self) -> usize {
        self.op_count as usize
    }
}

impl NodeIndexable for OpGraph {
    fn node_bound(&self) -> usize {
        self.op_count as usize
    }

    fn to_index(&self, op: OpIndex) -> usize {
        op.index()
    }

    fn from_index(&self, index: usize) -> OpIndex {
        OpIndex(index as u32)
    }
}

impl NodeCompactIndexable for OpGraph {}

impl Visitable for OpGraph {
    type Map = OpSet;

    fn visit_map(&self) -> OpSet {
        OpSet::with_capacity(self.op_count)
    }

    fn reset_map(&self, map: &mut OpSet) {
        map.bits.clear();
        map.bits.resize((self.op_count as usize).div_ceil(64), 0);
    }
}

impl IntoNodeIdentifiers for &OpGraph {
    type NodeIdentifiers = Map<Range<u32>, fn(u32) -> OpIndex>;

    fn node_identifiers(self) -> Self::NodeIdentifiers {
        (0..self.op_count).map(OpIndex)
    }
}

impl<'g> IntoNeighbors for &'g OpGraph {
    type Neighbors = Successors<'g>;

    fn neighbors(self, op: OpIndex) -> Successors<'g> {
        self.successors(op)
    }
}

impl<'g> IntoNeighborsDirected for &'g OpGraph {
    type NeighborsDirected = Neighbors<'g>;

    fn neighbors_directed(self, op: OpIndex, direction: Direction) -> Neighbors<'g> {
        match direction {
            Direction::Incoming => Neighbors::Incoming(self.predecessors(op)),
            Direction::Outgoing => Neighbors::Outgoing(self.successors(op)),
        }
    }
}
