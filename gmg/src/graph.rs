//! Operator graphs: what one iteration of a model computes, as an immutable template.
//!
//! A repeated block, such as a transformer layer, is stored once; every repetition of it is
//! addressable all the same. There are two numberings:
//!
//! - [`OpIndex`] counts operators over all repetitions, in an order in which every operator comes
//!   after everything it depends on. Jobs, placements and states speak of these.
//! - [`OpSlot`] counts the operators that are stored. All repetitions of an operator share its
//!   slot, its shapes and its costs, so per-operator tables are kept per slot.
//!
//! Tensors are numbered in the same way: a [`TensorId`] names one repetition's tensor, such as the
//! weight `layers.7.attn.qkv.weight`.

mod builder;
mod critical_path;
mod dependencies;
mod edges;
mod error;
mod layout;
#[cfg(test)]
mod refusals;
mod resolve;
mod tensor;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod topological;
mod validate;
mod view;
mod visit;

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

pub use builder::{OpGraphBuilder, OpRef, TensorRef};
pub use critical_path::CriticalPath;
pub use edges::{Predecessors, Successors};
pub use error::GraphError;
pub use layout::ActivationLayout;
pub use tensor::{Role, Tensor};
pub use topological::{Circle, TopologicalOrder};
pub use view::{OpView, QualifiedName, Segment, TensorView};
pub use visit::{Edge, Edges, EdgesOf, Kinds, Neighbors, OpSet};

use crate::id::{OpIndex, TensorId};
use crate::semantics::builtin::{CostFormula, GroupedCost};
use crate::semantics::{OpCost, OpKind, OpSemantics};
use crate::shape::{Binding, Symbol, SymbolTable};
use crate::units::{Bytes, Flops};
use edges::{PredecessorEdge, SuccessorEdge};
use layout::BufferPlan;

/// A stored operator, shared by all its repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct OpSlot(pub u32);

impl OpSlot {
    /// The slot as an index into tables with one row per stored operator.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// An immutable template of operators and tensors. Users share it in an [`Arc`].
///
/// # Example
///
/// ```
/// use slicescheduler_gmg::dtype::DType;
/// use slicescheduler_gmg::graph::OpGraph;
/// use slicescheduler_gmg::semantics::OpKind;
/// use slicescheduler_gmg::shape::{Binding, Shape, TOKENS};
///
/// let mut graph = OpGraph::builder("projections");
/// let x = graph.input("x", DType::F32, Shape::matrix(TOKENS, 64));
/// let last = graph.repeat("layers", 3, [x], |block, [x]| {
///     let weight = block.weight("weight", DType::F32, Shape::matrix(64, 64));
///     let y = block.activation("y", DType::F32, Shape::matrix(TOKENS, 64));
///     block.op("project", OpKind::MatMul, &[x, weight], &[y]);
///     [y]
/// });
/// let y = graph.output("y", DType::F32, Shape::matrix(TOKENS, 64));
/// graph.op("softmax", OpKind::Softmax, &[last[0]], &[y]);
/// let graph = graph.build()?;
///
/// assert_eq!(graph.op_count(), 4);
/// let project = graph.find_op("layers.2.project").unwrap();
/// assert_eq!(graph.predecessors(project).collect::<Vec<_>>(), [graph.find_op("layers.1.project").unwrap()]);
/// assert_eq!(graph.cost(graph.slot(project).unwrap(), &Binding::new().bind(TOKENS, 10)).flops.get(), 2 * 10 * 64 * 64);
/// # Ok::<(), slicescheduler_gmg::graph::GraphError>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpGraph {
    name: Box<str>,
    symbols: SymbolTable,
    /// True if an operator waits for other ranks.
    exchanges: bool,
    /// One bit per symbol that a shape or a cost refers to.
    used_symbols: u8,
    /// In order; together they cover all slots and all operators.
    segments: Vec<SegmentRange>,
    ops: Vec<StoredOp>,
    /// Tensors outside blocks first, then those of each block.
    tensors: Vec<Tensor>,
    outer_tensors: u32,
    op_count: u32,
    tensor_count: u32,
    predecessors: Vec<PredecessorEdge>,
    successors: Vec<SuccessorEdge>,
    /// The operators whose cost is a polynomial together, over all repetitions.
    total: CostFormula,
    weight_bytes: Bytes,
    buffers: BufferPlan,
}

#[derive(Clone, Debug)]
struct StoredOp {
    name: Box<str>,
    kind: OpKind,
    inputs: SmallVec<[Operand; 3]>,
    outputs: SmallVec<[Operand; 1]>,
    cost: SlotCost,
    predecessors: Range<u32>,
    successors: Range<u32>,
}

#[derive(Clone, Debug)]
enum SlotCost {
    Formula(CostFormula),
    Grouped(GroupedCost),
    Custom(Arc<dyn OpSemantics>),
}

/// A tensor as a stored operator sees it, whatever its repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    /// The same tensor in every repetition.
    Fixed(TensorId),
    /// The tensor at this offset among those of the operator's own repetition.
    Local(u32),
    /// `first` in the first repetition, then the tensor at offset `previous` of the repetition
    /// before.
    Carried { first: TensorId, previous: u32 },
}

/// A run of operators that is repeated; plain runs between blocks are repeated once.
#[derive(Clone, Debug)]
struct SegmentRange {
    block: Option<Box<str>>,
    repeat: u32,
    slots: Range<u32>,
    first_op: u32,
    /// The stored tensors of a block; empty for a plain run.
    tensors: Range<u32>,
    first_tensor: u32,
}

impl SegmentRange {
    fn slot_count(&self) -> u32 {
        self.slots.end - self.slots.start
    }

    fn stride(&self) -> u32 {
        self.tensors.end - self.tensors.start
    }

    fn op(&self, slot: u32, repetition: u32) -> OpIndex {
        OpIndex(self.first_op + repetition * self.slot_count() + (slot - self.slots.start))
    }

    fn tensor(&self, offset: u32, repetition: u32) -> TensorId {
        TensorId(self.first_tensor + repetition * self.stride() + offset)
    }
}

/// Where an operator is: its segment, its slot, its repetition.
#[derive(Clone, Copy, Debug)]
struct Location<'g> {
    segment: &'g SegmentRange,
    slot: u32,
    repetition: u32,
}

impl OpGraph {
    /// Starts a graph called `name`.
    pub fn builder(name: &str) -> OpGraphBuilder {
        OpGraphBuilder::new(name)
    }

    /// The graph's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if some operator exchanges data with other ranks, so that a job of this graph is one of a
    /// [gang](crate::gang).
    pub fn exchanges(&self) -> bool {
        self.exchanges
    }

    /// The symbols that shapes and costs refer to.
    pub fn symbols(&self) -> &SymbolTable {
        &self.symbols
    }

    /// Checks that `binding` has a value for every symbol that the graph refers to. Everything
    /// that takes a binding afterwards is infallible.
    pub fn check_binding(&self, binding: &Binding) -> Result<(), GraphError> {
        let missing =
            Symbol::all().find(|symbol| self.used_symbols & (1 << symbol.index()) != 0 && !binding.is_bound(*symbol));
        match missing {
            None => Ok(()),
            Some(symbol) => Err(GraphError::Unbound {
                graph: self.name.to_string(),
                symbol: self.symbols.name(symbol).unwrap_or_default().to_owned(),
            }),
        }
    }

    /// Operators over all repetitions; every [`OpIndex`] below it is one.
    pub fn op_count(&self) -> u32 {
        self.op_count
    }

    /// Operators that are stored; every [`OpSlot`] below it is one.
    pub fn slot_count(&self) -> u32 {
        self.ops.len() as u32
    }

    /// Tensors over all repetitions; every [`TensorId`] below it is one.
    pub fn tensor_count(&self) -> u32 {
        self.tensor_count
    }

    /// All operators, each after everything it depends on.
    pub fn ops(&self) -> impl ExactSizeIterator<Item = OpView<'_>> + DoubleEndedIterator {
        (0..self.op_count as usize).map(|index| self.view(OpIndex(index as u32)))
    }

    /// The operator at `index`, if there is one.
    pub fn op(&self, index: OpIndex) -> Option<OpView<'_>> {
        (index.0 < self.op_count).then(|| self.view(index))
    }

    /// The slot of the operator at `index`, if there is one. O(number of blocks).
    pub fn slot(&self, index: OpIndex) -> Option<OpSlot> {
        self.locate(index).map(|location| OpSlot(location.slot))
    }

    /// The operator with this qualified name, such as `layers.7.attn.qkv`. O(stored operators).
    pub fn find_op(&self, name: &str) -> Option<OpIndex> {
        self.segments.iter().find_map(|segment| {
            let (repetition, local) = segment.split_name(name)?;
            let found = segment.slots.clone().find(|&slot| *self.ops[slot as usize].name == *local)?;
            Some(segment.op(found, repetition))
        })
    }

    /// The tensor called `id`, if there is one.
    pub fn tensor(&self, id: TensorId) -> Option<TensorView<'_>> {
        let (stored, repetition, segment) = self.locate_tensor(id)?;
        Some(TensorView {
            id,
            tensor: &self.tensors[stored as usize],
            block: segment.and_then(|segment| segment.block.as_deref()),
            repetition,
        })
    }

    /// All tensors, over all repetitions.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        (0..self.tensor_count).filter_map(|id| self.tensor(TensorId(id)))
    }

    /// The weights, over all repetitions, in the order of their ids.
    pub fn weights(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.tensors().filter(|view| view.tensor.role == Role::Weight)
    }

    /// The tensor with this qualified name, such as `layers.7.attn.qkv.weight`.
    /// O(stored tensors).
    pub fn find_tensor(&self, name: &str) -> Option<TensorId> {
        let named = |stored: &u32, local: &str| *self.tensors[*stored as usize].name == *local;
        let in_block = |segment: &SegmentRange| {
            let (repetition, local) = segment.split_name(name)?;
            let found = segment.tensors.clone().find(|stored| named(stored, local))?;
            Some(segment.tensor(found - segment.tensors.start, repetition))
        };
        let outer = (0..self.outer_tensors).find(|stored| named(stored, name)).map(TensorId);
        outer.or_else(|| self.segments.iter().filter(|segment| segment.block.is_some()).find_map(in_block))
    }

    /// The segments in order: what comes before the first block, the blocks with their number of
    /// repetitions, what is between and after them. Costs are evaluated once per slot and
    /// multiplied.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = Segment<'_>> + DoubleEndedIterator {
        self.segments.iter().map(Segment::of)
    }

    /// What the operator of `slot` does and costs under `binding`, in any repetition.
    ///
    /// Allocates nothing. A slot that the graph does not have costs nothing.
    pub fn cost(&self, slot: OpSlot, binding: &Binding) -> OpCost {
        let Some(op) = self.ops.get(slot.index()) else {
            return OpCost::default();
        };
        match &op.cost {
            SlotCost::Formula(formula) => formula.eval(binding),
            SlotCost::Grouped(grouped) => grouped.eval(binding),
            SlotCost::Custom(semantics) => {
                let inputs = self.stored_operands(slot.0, &op.inputs);
                let outputs = self.stored_operands(slot.0, &op.outputs);
                semantics.cost(&inputs, &outputs, binding)
            }
        }
    }

    /// The kind of the operator of `slot`, if the graph has it.
    pub fn kind(&self, slot: OpSlot) -> Option<&OpKind> {
        self.ops.get(slot.index()).map(|op| &op.kind)
    }

    /// The cost of all operators together. O(1) plus the stored operators whose cost is no polynomial:
    /// custom ones and products with experts.
    pub fn total_cost(&self, binding: &Binding) -> OpCost {
        let mut total = self.total.eval(binding);
        for segment in &self.segments {
            for slot in segment.slots.clone() {
                if !matches!(self.ops[slot as usize].cost, SlotCost::Formula(_)) {
                    total += self.cost(OpSlot(slot), binding).times(u64::from(segment.repeat));
                }
            }
        }
        total
    }

    /// The arithmetic of all operators together.
    pub fn flops(&self, binding: &Binding) -> Flops {
        self.total_cost(binding).flops
    }

    /// The memory traffic of all operators together.
    pub fn bytes(&self, binding: &Binding) -> Bytes {
        self.total_cost(binding).bytes()
    }

    /// The size of all weights; one that several operators use counts once.
    pub fn weight_bytes(&self) -> Bytes {
        self.weight_bytes
    }

    /// The weights that the operators `ops` read, ascending by id, each once. O(operators in the range
    /// and their weights).
    pub fn weights_of(&self, ops: Range<u32>) -> impl Iterator<Item = TensorView<'_>> {
        let ops = ops.start..ops.end.min(self.op_count);
        let mut ids: Vec<TensorId> = ops
            .flat_map(|op| self.view(OpIndex(op)).weights().map(|view| view.id).collect::<SmallVec<[_; 4]>>())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().filter_map(|id| self.tensor(id))
    }

    /// The size of the weights that the operators `ops` read; one that several of them use counts
    /// once.
    pub fn weight_bytes_of(&self, ops: Range<u32>) -> Bytes {
        if ops.start == 0 && ops.end >= self.op_count {
            return self.weight_bytes;
        }
        self.weights_of(ops).map(|view| view.bytes(&Binding::new())).sum()
    }

    /// The number of weight elements: the parameter count of the model.
    pub fn parameters(&self) -> u64 {
        self.weights().map(|view| view.tensor.shape.fixed_elements().unwrap_or(0)).sum()
    }

    fn view(&self, index: OpIndex) -> OpView<'_> {
        OpView::of(self, index)
    }

    fn locate(&self, index: OpIndex) -> Option<Location<'_>> {
        if index.0 >= self.op_count {
            return None;
        }
        let segment = self.segments.iter().rfind(|segment| segment.first_op <= index.0)?;
        let offset = index.0 - segment.first_op;
        Some(Location {
            segment,
            slot: segment.slots.start + offset % segment.slot_count(),
            repetition: offset / segment.slot_count(),
        })
    }

    /// The stored tensor, the repetition and the block of `id`.
    fn locate_tensor(&self, id: TensorId) -> Option<(u32, u32, Option<&SegmentRange>)> {
        if id.0 < self.outer_tensors {
            return Some((id.0, 0, None));
        }
        if id.0 >= self.tensor_count {
            return None;
        }
        let segment = self.segments.iter().rfind(|segment| segment.stride() > 0 && segment.first_tensor <= id.0)?;
        let offset = id.0 - segment.first_tensor;
        Some((segment.tensors.start + offset % segment.stride(), offset / segment.stride(), Some(segment)))
    }

    fn segment_of_slot(&self, slot: u32) -> Option<&SegmentRange> {
        self.segments.iter().find(|segment| segment.slots.contains(&slot))
    }

    fn stored_operands(&self, slot: u32, operands: &[Operand]) -> SmallVec<[&Tensor; 8]> {
        let start = self.segment_of_slot(slot).map_or(0, |segment| segment.tensors.start);
        let stored = |operand: &Operand| match *operand {
            Operand::Fixed(id) => self.locate_tensor(id).map_or(0, |(stored, ..)| stored),
            Operand::Local(offset) | Operand::Carried { previous: offset, .. } => start + offset,
        };
        operands.iter().map(|operand| &self.tensors[stored(operand) as usize]).collect()
    }
}

impl Location<'_> {
    fn resolve(&self, operand: Operand) -> TensorId {
        match operand {
            Operand::Fixed(id) => id,
            Operand::Local(offset) => self.segment.tensor(offset, self.repetition),
            Operand::Carried { first, previous } => match self.repetition.checked_sub(1) {
                None => first,
                Some(before) => self.segment.tensor(previous, before),
            },
        }
    }
}

impl SegmentRange {
    /// The repetition and the local name that a qualified name refers to, if it may be of this
    /// segment.
    fn split_name<'n>(&self, name: &'n str) -> Option<(u32, &'n str)> {
        let Some(block) = &self.block else {
            return Some((0, name));
        };
        let (repetition, local) = name.strip_prefix(&**block)?.strip_prefix('.')?.split_once('.')?;
        let repetition = repetition.parse::<u32>().ok()?;
        (repetition < self.repeat).then_some((repetition, local))
    }
}
