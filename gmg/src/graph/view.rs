//! Reading operators, tensors and segments of a graph.

use std::fmt;
use std::ops::Range;

use super::{Location, OpGraph, OpSlot, Operand, Role, SegmentRange, StoredOp, Tensor};
use crate::id::{OpIndex, TensorId};
use crate::semantics::{OpCost, OpKind};
use crate::shape::Binding;
use crate::units::Bytes;

/// A run of operators that is repeated as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'g> {
    range: &'g SegmentRange,
}

impl<'g> Segment<'g> {
    pub(super) fn of(range: &'g SegmentRange) -> Self {
        Self { range }
    }

    /// The block's name; `None` for operators outside blocks.
    pub fn block(&self) -> Option<&'g str> {
        self.range.block.as_deref()
    }

    /// How often the run is repeated; 1 for operators outside blocks.
    pub fn repeat(&self) -> u32 {
        self.range.repeat
    }

    /// The slots of one repetition, in order.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = OpSlot> + DoubleEndedIterator + use<'g> {
        let Range { start, end } = self.range.slots;
        (start as usize..end as usize).map(|slot| OpSlot(slot as u32))
    }

    /// The operators of all repetitions: `start..end` as indices.
    pub fn op_range(&self) -> Range<u32> {
        self.range.first_op..self.range.first_op + self.range.repeat * self.range.slot_count()
    }

    /// The operator of `slot` in `repetition`, if both are of this segment.
    pub fn op(&self, slot: OpSlot, repetition: u32) -> Option<OpIndex> {
        let known = self.range.slots.contains(&slot.0) && repetition < self.range.repeat;
        known.then(|| self.range.op(slot.0, repetition))
    }
}

/// One operator of a graph.
#[derive(Clone, Copy, Debug)]
pub struct OpView<'g> {
    graph: &'g OpGraph,
    index: OpIndex,
}

impl<'g> OpView<'g> {
    /// `index` must be an operator of `graph`.
    pub(super) fn of(graph: &'g OpGraph, index: OpIndex) -> Self {
        Self { graph, index }
    }

    /// Its index.
    pub fn index(&self) -> OpIndex {
        self.index
    }

    /// The stored operator it is a repetition of.
    pub fn slot(&self) -> OpSlot {
        OpSlot(self.location().map_or(0, |location| location.slot))
    }

    /// Its repetition; 0 outside blocks.
    pub fn repetition(&self) -> u32 {
        self.location().map_or(0, |location| location.repetition)
    }

    /// The name of its block; `None` outside blocks.
    pub fn block(&self) -> Option<&'g str> {
        self.location().and_then(|location| location.segment.block.as_deref())
    }

    /// Its qualified name, such as `layers.7.attn.qkv`.
    pub fn name(&self) -> QualifiedName<'g> {
        QualifiedName { block: self.block(), repetition: self.repetition(), local: &self.stored().name }
    }

    /// What it computes.
    pub fn kind(&self) -> &'g OpKind {
        &self.stored().kind
    }

    /// What it reads, in the order of its kind.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = TensorId> + use<'g> {
        self.resolve(&self.stored().inputs)
    }

    /// What it writes.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = TensorId> + use<'g> {
        self.resolve(&self.stored().outputs)
    }

    /// The weights it reads.
    pub fn weights(&self) -> impl Iterator<Item = TensorView<'g>> + use<'g> {
        let graph = self.graph;
        self.inputs().filter_map(|id| graph.tensor(id)).filter(|view| view.tensor.role == Role::Weight)
    }

    /// Its work under `binding`.
    pub fn cost(&self, binding: &Binding) -> OpCost {
        self.graph.cost(self.slot(), binding)
    }

    fn location(&self) -> Option<Location<'g>> {
        self.graph.locate(self.index)
    }

    fn stored(&self) -> &'g StoredOp {
        &self.graph.ops[self.slot().index()]
    }

    fn resolve(&self, operands: &'g [Operand]) -> impl ExactSizeIterator<Item = TensorId> + use<'g> {
        let location = self.location();
        operands.iter().map(move |&operand| location.map_or(TensorId(0), |location| location.resolve(operand)))
    }
}

/// One tensor of a graph.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'g> {
    /// Its id.
    pub id: TensorId,
    /// Its type and role, shared by all repetitions.
    pub tensor: &'g Tensor,
    /// The name of its block; `None` outside blocks.
    pub block: Option<&'g str>,
    /// Its repetition; 0 outside blocks.
    pub repetition: u32,
}

impl<'g> TensorView<'g> {
    /// Its qualified name, such as `layers.7.attn.qkv.weight`.
    pub fn name(&self) -> QualifiedName<'g> {
        QualifiedName { block: self.block, repetition: self.repetition, local: &self.tensor.name }
    }

    /// Its size under `binding`.
    pub fn bytes(&self, binding: &Binding) -> Bytes {
        self.tensor.bytes(binding)
    }
}

/// A name with its block and repetition: `layers.7.attn.qkv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QualifiedName<'g> {
    block: Option<&'g str>,
    repetition: u32,
    local: &'g str,
}

impl<'g> QualifiedName<'g> {
    /// The name within the block: `attn.qkv`.
    pub fn local(&self) -> &'g str {
        self.local
    }
}

impl fmt::Display for QualifiedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(block) = self.block {
            write!(f, "{block}.{}.", self.repetition)?;
        }
        f.write_str(self.local)
    }
}
