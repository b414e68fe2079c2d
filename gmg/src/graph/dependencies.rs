//! What operators wait for, and an order that respects it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};

use super::builder::{Definition, OpAt, TensorAt};
use super::{GraphError, OpGraphBuilder, Role};

/// What `op` must wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Dependency {
    /// An operator of the same repetition.
    Same(OpAt),
    /// An operator of the repetition before.
    Previous(OpAt),
    /// An operator of an earlier segment, in the first repetition only.
    AtStart(OpAt),
    /// An operator of an earlier segment, in every repetition.
    Always(OpAt),
}

/// By operator: what it waits for.
pub(super) fn dependencies(
    draft: &OpGraphBuilder,
    producers: &[Option<OpAt>],
) -> Result<Vec<Vec<Dependency>>, GraphError> {
    let mut dependencies = vec![Vec::new(); draft.ops.len()];
    let segment = |op: OpAt| draft.ops[op.index()].segment;
    let from = |user: OpAt, on: OpAt| {
        if segment(user) == segment(on) { Dependency::Same(on) } else { Dependency::Always(on) }
    };
    for (index, op) in draft.ops.iter().enumerate() {
        let user = OpAt(index as u32);
        for &input in &op.inputs {
            match draft.tensors[input.index()].definition {
                Definition::Declared(_) => {
                    dependencies[index].extend(producers[input.index()].map(|on| from(user, on)));
                }
                Definition::CarriedIn { block, position } => {
                    let block = &draft.blocks[block as usize];
                    let first = source(draft, producers, block.taken[position as usize]);
                    let next = producers[block.given[position as usize].index()];
                    dependencies[index].extend(first.map(Dependency::AtStart));
                    dependencies[index].extend(next.map(Dependency::Previous));
                }
                Definition::CarriedOut { .. } => {
                    dependencies[index].extend(source(draft, producers, input).map(|on| from(user, on)));
                }
            }
        }
    }
    for &(before, after) in &draft.controls {
        dependencies[after.index()].push(from(after, before));
    }
    caches(draft, &mut dependencies);
    for (index, needed) in dependencies.iter_mut().enumerate() {
        let user = OpAt(index as u32);
        for dependency in needed.iter() {
            if let Dependency::AtStart(on) | Dependency::Always(on) = *dependency
                && segment(on) >= segment(user)
            {
                return Err(GraphError::OutOfOrder { op: draft.op_name(user), on: draft.op_name(on) });
            }
        }
        reduce(needed);
    }
    Ok(dependencies)
}

/// The operator that produces what a tensor outside blocks stands for.
fn source(draft: &OpGraphBuilder, producers: &[Option<OpAt>], reference: TensorAt) -> Option<OpAt> {
    match draft.tensors[reference.index()].definition {
        Definition::CarriedOut { block, position } => {
            producers[draft.blocks[block as usize].given[position as usize].index()]
        }
        Definition::Declared(_) | Definition::CarriedIn { .. } => producers[reference.index()],
    }
}

/// A cache is updated in place, so its users run one after the other.
fn caches(draft: &OpGraphBuilder, dependencies: &mut [Vec<Dependency>]) {
    let mut users: BTreeMap<TensorAt, Vec<OpAt>> = BTreeMap::new();
    for (index, op) in (0u32..).zip(&draft.ops) {
        for &input in &op.inputs {
            let definition = &draft.tensors[input.index()].definition;
            if matches!(definition, Definition::Declared(declared) if declared.role == Role::KvCache) {
                users.entry(input).or_default().push(OpAt(index));
            }
        }
    }
    for (cache, mut users) in users {
        users.dedup();
        let segment = |op: &OpAt| draft.ops[op.index()].segment;
        let mut before: Option<OpAt> = None;
        for users in users.chunk_by(|left, right| segment(left) == segment(right)) {
            for pair in users.windows(2) {
                dependencies[pair[1].index()].push(Dependency::Same(pair[0]));
            }
            let (Some(&first), Some(&last)) = (users.first(), users.last()) else {
                continue;
            };
            dependencies[first.index()].extend(before.map(Dependency::AtStart));
            // One cache for all repetitions chains them; one per repetition does not.
            if draft.ops[first.index()].scope.is_some() && draft.tensors[cache.index()].scope.is_none() {
                dependencies[first.index()].push(Dependency::Previous(last));
            }
            before = Some(last);
        }
    }
}

/// Removes what is said twice, so that every operator is named once in every repetition.
fn reduce(dependencies: &mut Vec<Dependency>) {
    let all: HashSet<Dependency> = dependencies.iter().copied().collect();
    let mut kept = HashSet::with_capacity(all.len());
    dependencies.retain(|&dependency| {
        let implied = matches!(dependency, Dependency::AtStart(on) if all.contains(&Dependency::Always(on)));
        !implied && kept.insert(dependency)
    });
}

/// Kahn's algorithm per segment; among operators that are ready, the one that was added first.
pub(super) fn order(draft: &OpGraphBuilder, dependencies: &[Vec<Dependency>]) -> Result<Vec<Vec<OpAt>>, GraphError> {
    let mut waiting = vec![0usize; draft.ops.len()];
    let mut waiters = vec![Vec::new(); draft.ops.len()];
    for (index, needed) in dependencies.iter().enumerate() {
        for dependency in needed {
            if let Dependency::Same(on) = *dependency {
                waiting[index] += 1;
                waiters[on.index()].push(index as u32);
            }
        }
    }
    let mut order = vec![Vec::new(); draft.segments.len()];
    let mut ready: BinaryHeap<Reverse<u32>> =
        (0..draft.ops.len() as u32).filter(|&op| waiting[op as usize] == 0).map(Reverse).collect();
    let mut placed = 0;
    while let Some(Reverse(op)) = ready.pop() {
        placed += 1;
        order[draft.ops[op as usize].segment as usize].push(OpAt(op));
        for &waiter in &waiters[op as usize] {
            waiting[waiter as usize] -= 1;
            if waiting[waiter as usize] == 0 {
                ready.push(Reverse(waiter));
            }
        }
    }
    if placed == draft.ops.len() { Ok(order) } else { Err(cycle(draft, dependencies, &waiting)) }
}

/// A cycle among the operators that still wait: from one of them, back along what it waits for.
fn cycle(draft: &OpGraphBuilder, dependencies: &[Vec<Dependency>], waiting: &[usize]) -> GraphError {
    let mut path: Vec<OpAt> = Vec::new();
    let mut next = waiting.iter().position(|&count| count > 0).map(|index| OpAt(index as u32));
    while let Some(op) = next {
        if let Some(start) = path.iter().position(|&known| known == op) {
            path.drain(..start);
            path.push(op);
            break;
        }
        path.push(op);
        next = dependencies[op.index()].iter().find_map(|dependency| match *dependency {
            Dependency::Same(on) if waiting[on.index()] > 0 => Some(on),
            _ => None,
        });
    }
    GraphError::Cycle { ops: path.iter().rev().map(|&op| draft.op_name(op)).collect() }
}
