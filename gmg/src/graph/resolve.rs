//! From a checked draft to a graph: numbering, edges, totals.

use super::builder::{Definition, OpAt, TensorAt};
use super::dependencies::Dependency;
use super::edges::{PredecessorEdge, mirror};
use super::layout::BufferPlan;
use super::validate::Checked;
use super::{GraphError, OpGraph, OpGraphBuilder, Operand, Role, SegmentRange, SlotCost, StoredOp};
use crate::id::{OpIndex, TensorId};
use crate::semantics::OpKind;
use crate::semantics::builtin::{self, CostFormula};
use crate::shape::{Dim, PAIRS, Symbol};
use crate::units::Bytes;

/// Where the operators and tensors of a draft went.
struct Numbering {
    /// By draft operator.
    slots: Vec<u32>,
    /// By draft tensor: its number among those outside blocks, or its offset within its block.
    tensors: Vec<u32>,
    segments: Vec<SegmentRange>,
    /// By block.
    segment_of_block: Vec<usize>,
}

pub(super) fn graph(draft: OpGraphBuilder, checked: &Checked) -> Result<OpGraph, GraphError> {
    let outer = draft
        .tensors
        .iter()
        .filter(|tensor| tensor.scope.is_none() && matches!(tensor.definition, Definition::Declared(_)));
    let outer_tensors = outer.count() as u32;
    let (numbering, op_count, tensor_count) = number(&draft, checked, outer_tensors)?;

    let mut predecessors = vec![Vec::new(); draft.ops.len()];
    for (op, needed) in checked.dependencies.iter().enumerate() {
        let edges = needed.iter().map(|&dependency| numbering.edge(&draft, dependency));
        predecessors[numbering.slots[op] as usize] = edges.collect();
    }
    let successors = mirror(&numbering.segments, &predecessors);

    let mut stored = Vec::with_capacity(draft.ops.len());
    let (mut before, mut after) = (0, 0);
    for &op in checked.order.iter().flatten() {
        let slot = stored.len();
        let from = &draft.ops[op.index()];
        let (first_before, first_after) = (before, after);
        before += predecessors[slot].len() as u32;
        after += successors[slot].len() as u32;
        stored.push(StoredOp {
            name: from.name.clone(),
            kind: from.kind.clone(),
            inputs: from.inputs.iter().map(|&input| numbering.operand(&draft, input)).collect(),
            outputs: from.outputs.iter().map(|&output| numbering.operand(&draft, output)).collect(),
            cost: cost(&draft, op)?,
            predecessors: first_before..before,
            successors: first_after..after,
        });
    }

    let mut total = CostFormula::default();
    for segment in &numbering.segments {
        for slot in segment.slots.clone() {
            if let SlotCost::Formula(formula) = &stored[slot as usize].cost {
                total.add_times(formula, u64::from(segment.repeat));
            }
        }
    }

    let tensors = stored_tensors(&draft, outer_tensors, &numbering);
    let used_symbols = used_symbols(&tensors, &stored);
    let repeats = |stored: usize| {
        let block = numbering.segments.iter().find(|segment| segment.tensors.contains(&(stored as u32)));
        block.map_or(1, |segment| u64::from(segment.repeat))
    };
    let weights = tensors.iter().enumerate().filter(|(_, tensor)| tensor.role == Role::Weight);
    let weight_bytes: Bytes =
        weights.map(|(stored, tensor)| tensor.bytes(&crate::shape::Binding::new()).times(repeats(stored))).sum();

    let exchanges = stored.iter().any(|op| matches!(op.kind, OpKind::Collective(_)));
    let mut graph = OpGraph {
        name: draft.name,
        exchanges,
        symbols: draft.symbols,
        used_symbols,
        segments: numbering.segments,
        ops: stored,
        tensors,
        outer_tensors,
        op_count,
        tensor_count,
        predecessors: predecessors.into_iter().flatten().collect(),
        successors: successors.into_iter().flatten().collect(),
        total,
        weight_bytes,
        buffers: BufferPlan::default(),
    };
    graph.buffers = BufferPlan::of(&graph);
    Ok(graph)
}

fn number(draft: &OpGraphBuilder, checked: &Checked, outer_tensors: u32) -> Result<(Numbering, u32, u32), GraphError> {
    let mut slots = vec![0; draft.ops.len()];
    for (slot, op) in (0u32..).zip(checked.order.iter().flatten()) {
        slots[op.index()] = slot;
    }
    let mut tensors = vec![0; draft.tensors.len()];
    let mut in_block = vec![0u32; draft.blocks.len()];
    let mut outside = 0;
    for (number, tensor) in tensors.iter_mut().zip(&draft.tensors) {
        if let Definition::Declared(_) = tensor.definition {
            let next = match tensor.scope {
                None => &mut outside,
                Some(block) => &mut in_block[block as usize],
            };
            *number = *next;
            *next += 1;
        }
    }
    let mut segments = Vec::with_capacity(draft.segments.len());
    let mut segment_of_block = vec![0; draft.blocks.len()];
    let (mut slot, mut stored) = (0u32, outer_tensors);
    let (mut ops, mut ids) = (0u64, u64::from(outer_tensors));
    for (block, order) in draft.segments.iter().zip(&checked.order) {
        let (name, repeat, count) = match *block {
            None => (None, 1, 0),
            Some(block) => {
                segment_of_block[block as usize] = segments.len();
                let declared = &draft.blocks[block as usize];
                (Some(declared.name.clone()), declared.repeat, in_block[block as usize])
            }
        };
        segments.push(SegmentRange {
            block: name,
            repeat,
            slots: slot..slot + order.len() as u32,
            first_op: ops as u32,
            tensors: stored..stored + count,
            first_tensor: ids as u32,
        });
        slot += order.len() as u32;
        stored += count;
        ops += order.len() as u64 * u64::from(repeat);
        ids += u64::from(count) * u64::from(repeat);
    }
    for (what, count) in [("operators", ops), ("tensors", ids)] {
        // A repetition past the end must not wrap either.
        let most = u64::from(u32::MAX / 2);
        if count > most {
            return Err(GraphError::TooLarge { graph: draft.name.to_string(), what, count, most });
        }
    }
    Ok((Numbering { slots, tensors, segments, segment_of_block }, ops as u32, ids as u32))
}

impl Numbering {
    /// The operand that a reference is for the operators that may use it.
    fn operand(&self, draft: &OpGraphBuilder, reference: TensorAt) -> Operand {
        let number = self.tensors[reference.index()];
        match draft.tensors[reference.index()].definition {
            Definition::Declared(_) => match draft.tensors[reference.index()].scope {
                None => Operand::Fixed(TensorId(number)),
                Some(_) => Operand::Local(number),
            },
            Definition::CarriedIn { block, position } => {
                let block = &draft.blocks[block as usize];
                Operand::Carried {
                    first: self.outside(draft, block.taken[position as usize]),
                    previous: self.tensors[block.given[position as usize].index()],
                }
            }
            Definition::CarriedOut { .. } => Operand::Fixed(self.outside(draft, reference)),
        }
    }

    /// The tensor that a reference outside blocks stands for.
    fn outside(&self, draft: &OpGraphBuilder, reference: TensorAt) -> TensorId {
        match draft.tensors[reference.index()].definition {
            Definition::CarriedOut { block, position } => {
                let given = draft.blocks[block as usize].given[position as usize];
                let segment = &self.segments[self.segment_of_block[block as usize]];
                segment.tensor(self.tensors[given.index()], segment.repeat - 1)
            }
            Definition::Declared(_) | Definition::CarriedIn { .. } => TensorId(self.tensors[reference.index()]),
        }
    }

    fn edge(&self, draft: &OpGraphBuilder, dependency: Dependency) -> PredecessorEdge {
        let slot = |op: OpAt| self.slots[op.index()];
        let last = |op: OpAt| -> OpIndex {
            let segment = &self.segments[draft.ops[op.index()].segment as usize];
            segment.op(slot(op), segment.repeat - 1)
        };
        match dependency {
            Dependency::Same(op) => PredecessorEdge::Same(slot(op)),
            Dependency::Previous(op) => PredecessorEdge::Previous(slot(op)),
            Dependency::AtStart(op) => PredecessorEdge::AtStart(last(op)),
            Dependency::Always(op) => PredecessorEdge::Always(last(op)),
        }
    }
}

fn cost(draft: &OpGraphBuilder, op: OpAt) -> Result<SlotCost, GraphError> {
    let from = &draft.ops[op.index()];
    let inputs: Vec<_> = from.inputs.iter().map(|&input| draft.type_of(input)).collect();
    let outputs: Vec<_> = from.outputs.iter().map(|&output| draft.type_of(output)).collect();
    let custom = match &from.kind {
        OpKind::Custom(_) => draft.semantics_of(from).cloned().map(SlotCost::Custom),
        _ => None,
    };
    let grouped = || builtin::grouped(&from.kind, &inputs, &outputs).map(SlotCost::Grouped);
    custom
        .or_else(grouped)
        .or_else(|| builtin::cost(&from.kind, &inputs, &outputs).map(SlotCost::Formula))
        .ok_or_else(|| GraphError::UnknownKind { op: draft.op_name(op), kind: from.kind.to_string() })
}

/// The tensors outside blocks, then those of each block, as numbered.
fn stored_tensors(draft: &OpGraphBuilder, outer: u32, numbering: &Numbering) -> Vec<super::Tensor> {
    let mut placed: Vec<(u32, &super::Tensor)> = Vec::with_capacity(outer as usize);
    for (index, tensor) in draft.tensors.iter().enumerate() {
        if let Definition::Declared(declared) = &tensor.definition {
            let first = match tensor.scope {
                None => 0,
                Some(block) => numbering.segments[numbering.segment_of_block[block as usize]].tensors.start,
            };
            placed.push((first + numbering.tensors[index], declared));
        }
    }
    placed.sort_by_key(|&(place, _)| place);
    placed.into_iter().map(|(_, tensor)| tensor.clone()).collect()
}

fn used_symbols(tensors: &[super::Tensor], ops: &[StoredOp]) -> u8 {
    let bit = |symbol: Symbol| 1u8 << symbol.index();
    let dims = tensors.iter().flat_map(|tensor| tensor.shape.dims().iter().copied());
    let shapes = dims.filter_map(|dim: Dim| dim.symbol).fold(0, |bits, symbol| bits | bit(symbol));
    let attends = ops.iter().any(|op| matches!(op.kind, OpKind::Attention { .. } | OpKind::SelfAttention { .. }));
    if attends { shapes | bit(PAIRS) } else { shapes }
}
