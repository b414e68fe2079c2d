//! Who waits for whom, across repetitions.
//!
//! Edges are stored per slot, relative to the repetition, and resolved while they are walked: a
//! block of 80 layers has the edges of one.

use super::{Location, OpGraph, SegmentRange};
use crate::id::OpIndex;

/// An edge to something that must be done before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PredecessorEdge {
    /// The operator of this slot in the same repetition.
    Same(u32),
    /// The operator of this slot in the repetition before; nothing in the first one.
    Previous(u32),
    /// An operator of an earlier segment, in the first repetition only.
    AtStart(OpIndex),
    /// An operator of an earlier segment, in every repetition.
    Always(OpIndex),
}

/// An edge to something that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SuccessorEdge {
    /// The operator of this slot in the same repetition.
    Same(u32),
    /// The operator of this slot in the next repetition; nothing in the last one.
    Next(u32),
    /// An operator of a later segment, from the last repetition only.
    AtEnd(OpIndex),
    /// All repetitions of a slot of a later segment, from the last repetition only.
    AtEndAll { first: OpIndex, stride: u32, repeat: u32 },
}

/// The operators that an operator waits for; see [`OpGraph::predecessors`].
#[derive(Clone, Debug)]
pub struct Predecessors<'g> {
    location: Option<Location<'g>>,
    edges: std::slice::Iter<'g, PredecessorEdge>,
}

/// The operators that wait for an operator; see [`OpGraph::successors`].
#[derive(Clone, Debug)]
pub struct Successors<'g> {
    location: Option<Location<'g>>,
    edges: std::slice::Iter<'g, SuccessorEdge>,
    /// What is left of an edge to all repetitions: the next operator, the stride, how many.
    all: (OpIndex, u32, u32),
}

impl OpGraph {
    /// The operators that `op` waits for, each once: those that produce its inputs and those named
    /// by control edges. Empty for an index that the graph does not have. Allocates nothing.
    pub fn predecessors(&self, op: OpIndex) -> Predecessors<'_> {
        let location = self.locate(op);
        let edges = location.map_or(&[][..], |location| {
            let range = &self.ops[location.slot as usize].predecessors;
            &self.predecessors[range.start as usize..range.end as usize]
        });
        Predecessors { location, edges: edges.iter() }
    }

    /// The operators that wait for `op`, each once. Empty for an index that the graph does not
    /// have. Allocates nothing.
    pub fn successors(&self, op: OpIndex) -> Successors<'_> {
        let location = self.locate(op);
        let edges = location.map_or(&[][..], |location| {
            let range = &self.ops[location.slot as usize].successors;
            &self.successors[range.start as usize..range.end as usize]
        });
        Successors { location, edges: edges.iter(), all: (OpIndex(0), 0, 0) }
    }
}

impl Iterator for Predecessors<'_> {
    type Item = OpIndex;

    fn next(&mut self) -> Option<OpIndex> {
        let Location { segment, repetition, .. } = self.location?;
        self.edges.by_ref().find_map(|edge| match *edge {
            PredecessorEdge::Same(slot) => Some(segment.op(slot, repetition)),
            PredecessorEdge::Previous(slot) => Some(segment.op(slot, repetition.checked_sub(1)?)),
            PredecessorEdge::AtStart(op) => (repetition == 0).then_some(op),
            PredecessorEdge::Always(op) => Some(op),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.edges.len()))
    }
}

impl Iterator for Successors<'_> {
    type Item = OpIndex;

    fn next(&mut self) -> Option<OpIndex> {
        let (next, stride, left) = self.all;
        if left > 0 {
            self.all = (OpIndex(next.0.saturating_add(stride)), stride, left - 1);
            return Some(next);
        }
        let Location { segment, repetition, .. } = self.location?;
        let last = repetition + 1 == segment.repeat;
        for edge in self.edges.by_ref() {
            match *edge {
                SuccessorEdge::Same(slot) => return Some(segment.op(slot, repetition)),
                SuccessorEdge::Next(slot) if !last => {
                    return Some(segment.op(slot, repetition + 1));
                }
                SuccessorEdge::AtEnd(op) if last => return Some(op),
                SuccessorEdge::AtEndAll { first, stride, repeat } if last => {
                    self.all = (OpIndex(first.0.saturating_add(stride)), stride, repeat - 1);
                    return Some(first);
                }
                SuccessorEdge::Next(_) | SuccessorEdge::AtEnd(_) | SuccessorEdge::AtEndAll { .. } => {}
            }
        }
        None
    }
}

/// The successor edges that mirror `predecessors`, by slot.
pub(super) fn mirror(segments: &[SegmentRange], predecessors: &[Vec<PredecessorEdge>]) -> Vec<Vec<SuccessorEdge>> {
    let mut successors = vec![Vec::new(); predecessors.len()];
    let slot_of = |op: OpIndex| {
        let segment = segments.iter().rfind(|segment| segment.first_op <= op.0);
        segment.map_or(0, |segment| segment.slots.start + (op.0 - segment.first_op) % segment.slot_count())
    };
    for segment in segments {
        for slot in segment.slots.clone() {
            for edge in &predecessors[slot as usize] {
                let (from, edge) = match *edge {
                    PredecessorEdge::Same(from) => (from, SuccessorEdge::Same(slot)),
                    PredecessorEdge::Previous(from) => (from, SuccessorEdge::Next(slot)),
                    PredecessorEdge::AtStart(from) => (slot_of(from), SuccessorEdge::AtEnd(segment.op(slot, 0))),
                    PredecessorEdge::Always(from) => {
                        let (first, stride) = (segment.op(slot, 0), segment.slot_count());
                        (slot_of(from), SuccessorEdge::AtEndAll { first, stride, repeat: segment.repeat })
                    }
                };
                successors[from as usize].push(edge);
            }
        }
    }
    successors
}
