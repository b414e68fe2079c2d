//! From nodes in any order to a graph.
//!
//! Readers add nodes as they come, with the ids of what they depend on; ids are resolved when all
//! are there. Operators are then put in an order in which each comes after what it depends on, the
//! earlier in the file the earlier, so that numbers here become
//! [`OpIndex`](crate::id::OpIndex)es as they are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Account, Format, Import, ImportError, Limits, OpRecord, Options, Position, Reason};
use crate::dtype::DType;
use crate::graph::{OpGraph, Role, TensorRef};
use crate::semantics::{OpCost, Recorded};
use crate::shape::Shape;
use crate::units::Nanos;

/// Nodes that a cycle is reported with.
const NAMED: usize = 32;

/// A tensor of the draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DraftTensor(u32);

/// An operator as a reader knows it.
#[derive(Debug, Default)]
pub(super) struct Node<'n> {
    pub(super) id: u64,
    pub(super) name: &'n str,
    pub(super) kind: &'n str,
    pub(super) cost: OpCost,
    pub(super) record: OpRecord,
    /// Ids of nodes that come first.
    pub(super) after: SmallVec<[u64; 4]>,
    /// Ids of nodes that come first unless that contradicts `after` of any node.
    pub(super) control: SmallVec<[u64; 2]>,
    pub(super) inputs: SmallVec<[DraftTensor; 3]>,
    pub(super) outputs: SmallVec<[DraftTensor; 1]>,
}

#[derive(Debug)]
struct Op {
    name: Box<str>,
    kind: Arc<str>,
    cost: OpCost,
    record: OpRecord,
    after: Box<[u64]>,
    control: Box<[u64]>,
    inputs: SmallVec<[DraftTensor; 3]>,
    outputs: SmallVec<[DraftTensor; 1]>,
    /// The record of the file that it was.
    number: u64,
}

#[derive(Debug)]
struct Stored {
    name: String,
    dtype: DType,
    shape: Shape,
    read: bool,
    written: bool,
}

/// Collects operators.
#[derive(Debug)]
pub(super) struct Draft {
    format: Format,
    limits: Limits,
    refuse_dangling: bool,
    ops: Vec<Op>,
    by_id: HashMap<u64, u32>,
    names: HashSet<Box<str>>,
    kinds: HashMap<Box<str>, Arc<str>>,
    lanes: Vec<Box<str>>,
    lane_of: HashMap<Box<str>, u32>,
    tensors: Vec<Stored>,
    edges: u64,
    dropped: BTreeMap<Reason, u64>,
}

impl Draft {
    pub(super) fn new(format: Format, options: &Options) -> Self {
        Self {
            format,
            limits: options.limits,
            refuse_dangling: options.refuse_dangling,
            ops: Vec::new(),
            by_id: HashMap::new(),
            names: HashSet::new(),
            kinds: HashMap::new(),
            lanes: Vec::new(),
            lane_of: HashMap::new(),
            tensors: Vec::new(),
            edges: 0,
            dropped: BTreeMap::new(),
        }
    }

    pub(super) fn drop(&mut self, reason: Reason) {
        self.drop_many(reason, 1);
    }

    pub(super) fn drop_many(&mut self, reason: Reason, count: u64) {
        if count > 0 {
            *self.dropped.entry(reason).or_insert(0) += count;
        }
    }

    /// `is_in_range`, and if not, counts a value that is left out.
    pub(super) fn in_range(&mut self, is_in_range: bool) -> bool {
        if !is_in_range {
            self.drop(Reason::OutOfRange);
        }
        is_in_range
    }

    /// The number of the lane called `name`.
    pub(super) fn lane(&mut self, name: &str) -> u32 {
        let name = cut(name, self.limits.name_bytes);
        if let Some(&lane) = self.lane_of.get(name) {
            return lane;
        }
        let lane = self.lanes.len() as u32;
        self.lanes.push(name.into());
        self.lane_of.insert(name.into(), lane);
        lane
    }

    /// A duration in a unit of `nanos` nanoseconds, if it can be one.
    pub(super) fn duration(&self, value: f64, nanos: f64) -> Option<Nanos> {
        let duration = value * nanos;
        let possible = duration.is_finite() && duration >= 0.0 && duration <= self.limits.duration.get() as f64;
        possible.then_some(Nanos((duration + 0.5) as u64))
    }

    /// A tensor; some operator must read or write it, and at most one may write it.
    pub(super) fn tensor(&mut self, name: String, dtype: DType, shape: Shape) -> DraftTensor {
        let tensor = DraftTensor(self.tensors.len() as u32);
        self.tensors.push(Stored { name, dtype, shape, read: false, written: false });
        tensor
    }

    /// Adds an operator.
    pub(super) fn add(&mut self, node: Node<'_>, position: Position) -> Result<(), ImportError> {
        let number = position.record.unwrap_or_default();
        if self.ops.len() as u64 >= self.limits.ops.min(u64::from(u32::MAX / 2)) {
            return Err(ImportError::Limit { position, what: "operators", most: self.limits.ops, limit: "ops" });
        }
        let index = self.ops.len() as u32;
        if self.by_id.insert(node.id, index).is_some() {
            return Err(ImportError::DuplicateNode { position, node: node.id });
        }
        if node.after.contains(&node.id) {
            return Err(ImportError::SelfDependency { position, node: node.id });
        }
        self.edges += (node.after.len() + node.control.len() + node.inputs.len()) as u64;
        if self.edges > self.limits.edges {
            return Err(ImportError::Limit { position, what: "dependencies", most: self.limits.edges, limit: "edges" });
        }
        for &input in &node.inputs {
            self.tensors[input.0 as usize].read = true;
        }
        for &output in &node.outputs {
            self.tensors[output.0 as usize].written = true;
        }
        let name = self.distinct(node.name, node.id);
        let kind = self.kind(node.kind);
        self.ops.push(Op {
            name,
            kind,
            cost: node.cost,
            record: OpRecord { id: node.id, ..node.record },
            after: node.after.into_vec().into_boxed_slice(),
            control: node.control.into_vec().into_boxed_slice(),
            inputs: node.inputs,
            outputs: node.outputs,
            number,
        });
        Ok(())
    }

    /// `name`, or with the node's id behind it if another operator has that name already.
    fn distinct(&mut self, name: &str, id: u64) -> Box<str> {
        let kept = cut(name, self.limits.name_bytes);
        if kept.len() < name.len() {
            self.drop(Reason::NameTail);
        }
        let mut distinct: Box<str> = if kept.is_empty() { format!("#{id}").into() } else { kept.into() };
        if self.names.contains(&distinct) {
            // Within the limit, so that the graph is read back equal when it was exported.
            let suffix = format!("#{id}");
            let room = self.limits.name_bytes.saturating_sub(suffix.len());
            distinct = format!("{}{suffix}", cut(kept, room)).into();
        }
        // Somebody may have called an operator just that.
        while self.names.contains(&distinct) {
            distinct = format!("{distinct}'").into();
        }
        self.names.insert(distinct.clone());
        distinct
    }

    fn kind(&mut self, kind: &str) -> Arc<str> {
        let kind = cut(kind, self.limits.name_bytes);
        if let Some(known) = self.kinds.get(kind) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = kind.into();
        self.kinds.insert(kind.into(), Arc::clone(&shared));
        shared
    }

    /// Resolves ids and makes the graph. O(n log n) in operators and dependencies.
    pub(super) fn finish(mut self, name: &str, records: u64) -> Result<Import, ImportError> {
        if self.ops.is_empty() {
            return Err(ImportError::NoOperators { records, dropped: self.dropped });
        }
        let mut after = self.resolve(|op| &mut op.after)?;
        let order = self.order(&after)?;
        let mut place = vec![0u32; self.ops.len()];
        for (to, &from) in (0u32..).zip(&order) {
            place[from as usize] = to;
        }
        self.add_control(&mut after, &place)?;
        self.rebase_starts();
        self.drop_unused_lanes();

        let mut graph = OpGraph::builder(name);
        let mut tensors: Vec<TensorRef> = Vec::with_capacity(self.tensors.len());
        for Stored { name, dtype, shape, read, written } in &self.tensors {
            let role = match (written, read) {
                (false, _) => Role::Input,
                (true, true) => Role::Activation,
                (true, false) => Role::Output,
            };
            tensors.push(graph.tensor(name, *dtype, shape.clone(), role));
        }
        let mut ops: Vec<Option<Op>> = self.ops.into_iter().map(Some).collect();
        let mut refs = Vec::with_capacity(order.len());
        let mut records_of = Vec::with_capacity(order.len());
        for op in order.iter().filter_map(|&from| ops[from as usize].take()) {
            let meaning = op.outputs.iter().fold(Recorded::new(op.cost), |meaning, &DraftTensor(output)| {
                let Stored { dtype, shape, .. } = &self.tensors[output as usize];
                meaning.output(*dtype, shape.clone())
            });
            let inputs: SmallVec<[_; 8]> = op.inputs.iter().map(|input| tensors[input.0 as usize]).collect();
            let outputs: SmallVec<[_; 4]> = op.outputs.iter().map(|output| tensors[output.0 as usize]).collect();
            refs.push(graph.op_with(&op.name, &op.kind, Arc::new(meaning), &inputs, &outputs));
            records_of.push(op.record);
        }
        for (index, after) in after.iter().enumerate() {
            for &before in after {
                graph.control(refs[place[before as usize] as usize], refs[place[index] as usize]);
            }
        }
        let graph = graph.build()?;
        let edges = graph.ops().map(|op| graph.predecessors(op.index()).count() as u64).sum();
        let account =
            Account { format: self.format, records, ops: u64::from(graph.op_count()), edges, dropped: self.dropped };
        Ok(Import { graph, ops: records_of, lanes: self.lanes, account })
    }

    /// Adds the control dependencies that agree with the order that data asks for.
    fn add_control(&mut self, after: &mut [Vec<u32>], place: &[u32]) -> Result<(), ImportError> {
        let control = self.resolve(|op| &mut op.control)?;
        self.by_id = HashMap::new();
        self.names = HashSet::new();
        let (mut contradicting, mut repeated) = (0, 0);
        for (index, control) in control.into_iter().enumerate() {
            let data = after[index].len();
            for before in control {
                if place[before as usize] >= place[index] {
                    contradicting += 1;
                } else if after[index][..data].binary_search(&before).is_ok() {
                    repeated += 1;
                } else {
                    after[index].push(before);
                }
            }
        }
        self.drop_many(Reason::Contradicting, contradicting);
        self.drop_many(Reason::Repeated, repeated);
        Ok(())
    }

    /// By operator: the operators that the ids of `of` stand for, ascending, each once.
    fn resolve(&mut self, of: impl Fn(&mut Op) -> &mut Box<[u64]>) -> Result<Vec<Vec<u32>>, ImportError> {
        let mut resolved = Vec::with_capacity(self.ops.len());
        let (mut dangling, mut repeated) = (0, 0);
        for op in &mut self.ops {
            let ids = std::mem::take(of(op));
            let mut after = Vec::with_capacity(ids.len());
            for &id in &ids {
                match self.by_id.get(&id) {
                    Some(&before) => after.push(before),
                    None if self.refuse_dangling => {
                        return Err(ImportError::Dangling { record: op.number, node: op.record.id, on: id });
                    }
                    None => dangling += 1,
                }
            }
            let named = after.len();
            after.sort_unstable();
            after.dedup();
            repeated += (named - after.len()) as u64;
            resolved.push(after);
        }
        self.drop_many(Reason::Dangling, dangling);
        self.drop_many(Reason::Repeated, repeated);
        Ok(resolved)
    }

    /// Kahn's algorithm over ids and tensors; of those that could come next, the first of the file.
    fn order(&self, after: &[Vec<u32>]) -> Result<Vec<u32>, ImportError> {
        let count = self.ops.len();
        let mut producer = vec![u32::MAX; self.tensors.len()];
        for (index, op) in (0u32..).zip(&self.ops) {
            for output in &op.outputs {
                producer[output.0 as usize] = index;
            }
        }
        let before = |index: usize| {
            let tensors = self.ops[index].inputs.iter().map(|input| producer[input.0 as usize]);
            after[index].iter().copied().chain(tensors.filter(|&producer| producer != u32::MAX))
        };
        // Successors in one array: a vector for each would double the memory.
        let mut first = vec![0u32; count + 1];
        let mut waiting = vec![0u32; count];
        for (index, waits) in waiting.iter_mut().enumerate() {
            for before in before(index) {
                first[before as usize + 1] += 1;
                *waits += 1;
            }
        }
        for index in 0..count {
            first[index + 1] += first[index];
        }
        let mut next = first.clone();
        let mut successors = vec![0u32; first[count] as usize];
        for index in 0..count {
            for before in before(index) {
                let slot = &mut next[before as usize];
                successors[*slot as usize] = index as u32;
                *slot += 1;
            }
        }
        let mut ready: BinaryHeap<Reverse<u32>> =
            (0..count as u32).filter(|&op| waiting[op as usize] == 0).map(Reverse).collect();
        let mut order = Vec::with_capacity(count);
        while let Some(Reverse(op)) = ready.pop() {
            order.push(op);
            for &successor in &successors[first[op as usize] as usize..first[op as usize + 1] as usize] {
                waiting[successor as usize] -= 1;
                if waiting[successor as usize] == 0 {
                    ready.push(Reverse(successor));
                }
            }
        }
        if order.len() == count {
            return Ok(order);
        }
        let Some(start) = waiting.iter().position(|&waits| waits > 0) else {
            return Ok(order);
        };
        let back = |index: u32| before(index as usize).find(|&before| waiting[before as usize] > 0);
        Err(ImportError::Cycle { nodes: self.cycle(start as u32, back) })
    }

    /// A cycle that walking `back` from `start` runs into.
    fn cycle(&self, start: u32, back: impl Fn(u32) -> Option<u32>) -> Vec<u64> {
        let mut seen = HashMap::new();
        let mut path = Vec::new();
        let mut at = Some(start);
        while let Some(op) = at {
            if let Some(&entry) = seen.get(&op) {
                path.drain(..entry);
                break;
            }
            seen.insert(op, path.len());
            path.push(op);
            at = back(op);
        }
        path.iter().rev().take(NAMED).map(|&op| self.ops[op as usize].record.id).collect()
    }

    /// Renumbers the lanes that operators are on.
    fn drop_unused_lanes(&mut self) {
        let mut numbers = vec![None; self.lanes.len()];
        let mut used = Vec::new();
        for lane in self.ops.iter_mut().filter_map(|op| op.record.lane.as_mut()) {
            *lane = *numbers[*lane as usize].get_or_insert_with(|| {
                used.push(std::mem::take(&mut self.lanes[*lane as usize]));
                used.len() as u32 - 1
            });
        }
        self.lanes = used;
    }

    /// Counts starts from the first of them.
    fn rebase_starts(&mut self) {
        let first = self.ops.iter().filter_map(|op| op.record.start).min().unwrap_or_default();
        for op in &mut self.ops {
            op.record.start = op.record.start.map(|start| start - first);
        }
    }
}

/// The beginning of `text` that has at most `most` bytes.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
