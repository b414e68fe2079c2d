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
use petgraph::data::DataMap;
use petgraph::visit::{
    Data, EdgeRef, GraphBase, GraphProp, IntoEdgeReferences, IntoEdges, IntoEdgesDirected, IntoNeighbors,
    IntoNeighborsDirected, IntoNodeIdentifiers, IntoNodeReferences, NodeCompactIndexable, NodeCount, NodeIndexable,
    VisitMap, Visitable,
};

use super::{OpGraph, Predecessors, Successors};
use crate::id::OpIndex;
use crate::semantics::OpKind;

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
    type NodeWeight = OpKind;
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

/// An edge, from an operator to one that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edge {
    /// What comes first.
    pub from: OpIndex,
    /// What waits for it.
    pub to: OpIndex,
}

impl EdgeRef for Edge {
    type NodeId = OpIndex;
    type EdgeId = (OpIndex, OpIndex);
    type Weight = ();

    fn source(&self) -> OpIndex {
        self.from
    }

    fn target(&self) -> OpIndex {
        self.to
    }

    fn weight(&self) -> &() {
        &()
    }

    fn id(&self) -> (OpIndex, OpIndex) {
        (self.from, self.to)
    }
}

/// All edges of a graph; see [`IntoEdgeReferences`].
#[derive(Clone, Debug)]
pub struct Edges<'g> {
    graph: &'g OpGraph,
    /// Whose edges are handed out, and those that are left.
    from: OpIndex,
    left: Successors<'g>,
}

impl Iterator for Edges<'_> {
    type Item = Edge;

    fn next(&mut self) -> Option<Edge> {
        loop {
            if let Some(to) = self.left.next() {
                return Some(Edge { from: self.from, to });
            }
            if self.from.0 + 1 >= self.graph.op_count {
                return None;
            }
            self.from.0 += 1;
            self.left = self.graph.successors(self.from);
        }
    }
}

/// The edges of one operator; see [`IntoEdgesDirected`].
#[derive(Clone, Debug)]
pub struct EdgesOf<'g> {
    op: OpIndex,
    others: Neighbors<'g>,
}

impl Iterator for EdgesOf<'_> {
    type Item = Edge;

    fn next(&mut self) -> Option<Edge> {
        let other = self.others.next()?;
        Some(match self.others {
            Neighbors::Incoming(_) => Edge { from: other, to: self.op },
            Neighbors::Outgoing(_) => Edge { from: self.op, to: other },
        })
    }
}

impl<'g> IntoEdgeReferences for &'g OpGraph {
    type EdgeRef = Edge;
    type EdgeReferences = Edges<'g>;

    fn edge_references(self) -> Edges<'g> {
        Edges { graph: self, from: OpIndex(0), left: self.successors(OpIndex(0)) }
    }
}

impl<'g> IntoEdges for &'g OpGraph {
    type Edges = EdgesOf<'g>;

    fn edges(self, op: OpIndex) -> EdgesOf<'g> {
        self.edges_directed(op, Direction::Outgoing)
    }
}

impl<'g> IntoEdgesDirected for &'g OpGraph {
    type EdgesDirected = EdgesOf<'g>;

    fn edges_directed(self, op: OpIndex, direction: Direction) -> EdgesOf<'g> {
        EdgesOf { op, others: self.neighbors_directed(op, direction) }
    }
}

impl DataMap for OpGraph {
    fn node_weight(&self, op: OpIndex) -> Option<&OpKind> {
        self.op(op).map(|view| view.kind())
    }

    fn edge_weight(&self, (from, to): (OpIndex, OpIndex)) -> Option<&()> {
        self.successors(from).any(|after| after == to).then_some(&())
    }
}

/// The operators of a graph with their kinds; see [`IntoNodeReferences`].
#[derive(Clone, Debug)]
pub struct Kinds<'g> {
    graph: &'g OpGraph,
    left: Range<u32>,
}

impl<'g> Iterator for Kinds<'g> {
    type Item = (OpIndex, &'g OpKind);

    fn next(&mut self) -> Option<Self::Item> {
        let op = self.left.next().map(OpIndex)?;
        self.graph.op(op).map(|view| (op, view.kind()))
    }
}

impl<'g> IntoNodeReferences for &'g OpGraph {
    type NodeRef = (OpIndex, &'g OpKind);
    type NodeReferences = Kinds<'g>;

    fn node_references(self) -> Kinds<'g> {
        Kinds { graph: self, left: 0..self.op_count }
    }
}
