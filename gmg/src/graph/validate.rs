//! Checking a graph before it is made.
//!
//! Checks come in an order in which each may rely on those before it: names, references, blocks,
//! producers, types, order.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use super::builder::{Definition, DraftOp, OpAt, TensorAt};
use super::dependencies::{Dependency, dependencies, order};
use super::{GraphError, OpGraphBuilder, Role, Tensor};
use crate::semantics::{OpKind, Outputs, builtin};

/// What the checks found out.
#[derive(Debug)]
pub(super) struct Checked {
    /// The operators of each segment, in an order in which each comes after what it depends on.
    pub(super) order: Vec<Vec<OpAt>>,
    /// By operator.
    pub(super) dependencies: Vec<Vec<Dependency>>,
}

pub(super) fn check(draft: &OpGraphBuilder) -> Result<Checked, GraphError> {
    if draft.ops.is_empty() {
        return Err(GraphError::Empty { graph: draft.name.to_string() });
    }
    names(draft)?;
    references(draft)?;
    let producers = producers(draft)?;
    blocks(draft, &producers)?;
    tensors(draft, &producers)?;
    for op in &draft.ops {
        types(draft, op)?;
    }
    let dependencies = dependencies(draft, &producers)?;
    let order = order(draft, &dependencies)?;
    Ok(Checked { order, dependencies })
}

fn names(draft: &OpGraphBuilder) -> Result<(), GraphError> {
    let duplicate = |what, name: String| GraphError::DuplicateName { graph: draft.name.to_string(), what, name };
    let mut blocks = HashMap::new();
    for block in &draft.blocks {
        if blocks.insert(&*block.name, block.repeat).is_some() {
            return Err(duplicate("blocks", block.name.to_string()));
        }
    }
    // A name outside blocks may look like the qualified name of something inside one.
    let qualified = |name: &str| {
        name.char_indices().filter(|&(_, letter)| letter == '.').find_map(|(dot, _)| {
            let repeat = blocks.get(&name[..dot])?;
            let (repetition, local) = name[dot + 1..].split_once('.')?;
            let block = &name[..dot];
            (repetition.parse::<u32>().ok()? < *repeat).then_some((block.to_owned(), local.to_owned()))
        })
    };
    let block_of = |scope: Option<u32>| scope.map(|block| draft.blocks[block as usize].name.to_string());
    let ops = draft.ops.iter().map(|op| (block_of(op.scope), &op.name));
    let tensors = draft.tensors.iter().filter_map(|tensor| match &tensor.definition {
        Definition::Declared(declared) => Some((block_of(tensor.scope), &declared.name)),
        Definition::CarriedIn { .. } | Definition::CarriedOut { .. } => None,
    });
    let distinct = |what, things: &mut dyn Iterator<Item = (Option<String>, &Box<str>)>| {
        let mut known = HashSet::new();
        let mut outside = Vec::new();
        for (block, name) in things {
            if block.is_none() {
                outside.push(name);
            }
            if !known.insert((block, name.to_string())) {
                return Err(duplicate(what, name.to_string()));
            }
        }
        let clash = outside
            .into_iter()
            .find(|name| qualified(name).is_some_and(|(block, local)| known.contains(&(Some(block), local))));
        clash.map_or(Ok(()), |name| Err(duplicate(what, name.to_string())))
    };
    distinct("operators", &mut { ops })?;
    distinct("tensors", &mut { tensors })
}

/// Every reference leads to something that is in scope. The builder has refused those of other graphs, so they lead
/// somewhere.
fn references(draft: &OpGraphBuilder) -> Result<(), GraphError> {
    let visible =
        |what, user: &str, reference: TensorAt, scope: Option<u32>| match draft.tensors[reference.index()].scope {
            Some(block) if scope != Some(block) => Err(GraphError::OutOfScope {
                what,
                user: user.to_owned(),
                tensor: draft.tensor_name(reference),
                block: draft.blocks[block as usize].name.to_string(),
            }),
            _ => Ok(()),
        };
    for tensor in &draft.tensors {
        match tensor.definition {
            Definition::Declared(_) => {}
            Definition::CarriedIn { block, position } => {
                let block = &draft.blocks[block as usize];
                visible("block", &block.name, block.taken[position as usize], None)?;
            }
            Definition::CarriedOut { block: scope, position } => {
                let block = &draft.blocks[scope as usize];
                visible("block", &block.name, block.given[position as usize], Some(scope))?;
            }
        }
    }
    for (index, op) in draft.ops.iter().enumerate() {
        let name = draft.op_name(OpAt(index as u32));
        for &reference in op.inputs.iter().chain(&op.outputs) {
            visible("operator", &name, reference, op.scope)?;
        }
    }
    Ok(())
}

/// The operator that produces each tensor.
fn producers(draft: &OpGraphBuilder) -> Result<Vec<Option<OpAt>>, GraphError> {
    let mut producers = vec![None; draft.tensors.len()];
    for (index, op) in draft.ops.iter().enumerate() {
        let producer = OpAt(index as u32);
        for &output in &op.outputs {
            let tensor = &draft.tensors[output.index()];
            let refuse =
                |role| GraphError::NotWritable { op: draft.op_name(producer), tensor: draft.tensor_name(output), role };
            match &tensor.definition {
                Definition::Declared(declared) if matches!(declared.role, Role::Activation | Role::Output) => {
                    if tensor.scope != op.scope {
                        return Err(refuse("declared outside the operator's block"));
                    }
                }
                Definition::Declared(declared) => return Err(refuse(declared.role.in_words())),
                Definition::CarriedIn { .. } => {
                    return Err(refuse("carried from the repetition before"));
                }
                Definition::CarriedOut { .. } => return Err(refuse("the result of a block")),
            }
            if let Some(first) = producers[output.index()].replace(producer) {
                return Err(GraphError::ProducedTwice {
                    tensor: draft.tensor_name(output),
                    first: draft.op_name(first),
                    second: draft.op_name(producer),
                });
            }
        }
    }
    Ok(producers)
}

fn blocks(draft: &OpGraphBuilder, producers: &[Option<OpAt>]) -> Result<(), GraphError> {
    for (scope, block) in (0u32..).zip(&draft.blocks) {
        let ops = draft.ops.iter().filter(|op| op.scope == Some(scope)).count();
        if ops == 0 || block.repeat == 0 {
            return Err(GraphError::EmptyBlock { block: block.name.to_string(), ops, repeat: block.repeat });
        }
        for (&taken, &given) in block.taken.iter().zip(&block.given) {
            if producers[given.index()].is_none() || draft.tensors[given.index()].scope != Some(scope) {
                return Err(GraphError::CarriedNotProduced {
                    block: block.name.to_string(),
                    tensor: draft.tensor_name(given),
                });
            }
            let (first, next) = (draft.type_of(taken), draft.type_of(given));
            if first.dtype != next.dtype || first.shape != next.shape {
                return Err(GraphError::CarriedMismatch {
                    block: block.name.to_string(),
                    taken: draft.tensor_name(taken),
                    taken_dtype: first.dtype,
                    taken_shape: Box::new(first.shape.clone()),
                    given: draft.tensor_name(given),
                    given_dtype: next.dtype,
                    given_shape: Box::new(next.shape.clone()),
                });
            }
        }
    }
    Ok(())
}

/// Every tensor is well formed, comes from somewhere and is of use to somebody.
fn tensors(draft: &OpGraphBuilder, producers: &[Option<OpAt>]) -> Result<(), GraphError> {
    let consumed = consumed(draft);
    for (index, tensor) in draft.tensors.iter().enumerate() {
        let Definition::Declared(declared) = &tensor.definition else {
            continue;
        };
        let name = draft.tensor_name(TensorAt(index as u32));
        let (dtype, shape, role) = (declared.dtype, || Box::new(declared.shape.clone()), declared.role.in_words());
        if let (Some(block), Role::Input | Role::Output) = (tensor.scope, declared.role) {
            let block = draft.blocks[block as usize].name.to_string();
            return Err(GraphError::RoleInBlock { block, tensor: name, role });
        }
        if declared.role == Role::Weight && declared.shape.fixed_elements().is_none() {
            return Err(GraphError::SymbolicWeight { tensor: name, shape: shape() });
        }
        let block = dtype.block_elements();
        if declared.shape.dims().last().map_or(1, |dim| dim.coefficient) % block != 0 {
            return Err(GraphError::PartialBlock { tensor: name, dtype, shape: shape(), block });
        }
        let produced = producers[index].is_some();
        match declared.role {
            Role::Activation | Role::Output if !produced => {
                return Err(GraphError::NeverProduced { tensor: name, dtype, shape: shape(), role });
            }
            Role::Output => {}
            _ if !consumed[index] => {
                return Err(GraphError::NeverConsumed { tensor: name, dtype, shape: shape(), role });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Which tensors an operator reads, directly or through what carries them.
fn consumed(draft: &OpGraphBuilder) -> Vec<bool> {
    let mut consumed = vec![false; draft.tensors.len()];
    let mut pending: Vec<TensorAt> = draft.ops.iter().flat_map(|op| op.inputs.iter().copied()).collect();
    while let Some(reference) = pending.pop() {
        if std::mem::replace(&mut consumed[reference.index()], true) {
            continue;
        }
        match draft.tensors[reference.index()].definition {
            Definition::Declared(_) => {}
            Definition::CarriedIn { block, position } => {
                let block = &draft.blocks[block as usize];
                pending.push(block.taken[position as usize]);
                // Only a repetition after the first takes what the block gives.
                if block.repeat > 1 {
                    pending.push(block.given[position as usize]);
                }
            }
            Definition::CarriedOut { block, position } => {
                pending.push(draft.blocks[block as usize].given[position as usize]);
            }
        }
    }
    consumed
}

fn types(draft: &OpGraphBuilder, op: &DraftOp) -> Result<(), GraphError> {
    let name = || match op.scope {
        None => op.name.to_string(),
        Some(block) => format!("{}.{}", draft.blocks[block as usize].name, op.name),
    };
    let kind = || op.kind.to_string();
    let inputs: SmallVec<[&Tensor; 8]> = op.inputs.iter().map(|&input| draft.type_of(input)).collect();
    let declared: SmallVec<[&Tensor; 2]> = op.outputs.iter().map(|&output| draft.type_of(output)).collect();
    let given: Result<Outputs, _> = match (&op.kind, builtin::outputs(&op.kind, &inputs, &declared)) {
        (OpKind::Custom(_), _) => match draft.semantics_of(op) {
            Some(semantics) => semantics.outputs(&inputs),
            None => {
                return Err(GraphError::UnknownKind { op: name(), kind: kind() });
            }
        },
        (_, Some(outputs)) => outputs,
        (_, None) => {
            return Err(GraphError::UnknownKind { op: name(), kind: kind() });
        }
    };
    let given = given.map_err(|reason| GraphError::Operator { op: name(), kind: kind(), reason: Box::new(reason) })?;
    if given.len() != op.outputs.len() {
        let (found, expected) = (op.outputs.len(), given.len());
        return Err(GraphError::OutputCount { op: name(), kind: kind(), found, expected });
    }
    for (&output, given) in op.outputs.iter().zip(given) {
        let declared = draft.type_of(output);
        if !given.dtype.allows(declared.dtype) || given.shape != declared.shape {
            return Err(GraphError::OutputType {
                op: name(),
                kind: kind(),
                tensor: draft.tensor_name(output),
                dtype: declared.dtype,
                shape: Box::new(declared.shape.clone()),
                expected_dtype: given.dtype,
                expected_shape: Box::new(given.shape),
            });
        }
    }
    Ok(())
}
