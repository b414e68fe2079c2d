//! PyTorch execution traces.
//!
//! A trace is a tree of calls: modules, autograd functions, operators that call operators. Kept are
//! the calls that compute, at the innermost level: those with a schema that are neither views nor
//! allocations, and that call no other such one. A matrix product is kept even so.
//!
//! Edges are the flow of data. Tensors of the graph are states of a storage: an operator reads the
//! state that its input has when it starts (ids count in the order of starts), whichever view it
//! reads it through, and makes a new one of everything that it writes. Who writes in place waits for
//! the readers of the state that it replaces.
//!
//! Arithmetic is that of matrix products, from shapes; traffic is the size of the tensors that go in
//! and out. Traces have no durations, unless a linker added them (`ts`, `dur`).

mod node;
mod storage;
mod value;

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use super::draft::{Draft, cut};
use super::json::{Records, Scalar};
use super::{Format, Import, ImportError, Options, Pattern, Position, Reason, products};
use crate::dtype::DType;
use crate::units::{Flops, Nanos};
use node::{Io, Node};
use storage::Storages;
use value::TensorUse;

/// Calls per operator that are kept in mind; a training step has about four.
const CALLS_PER_OP: u64 = 64;

/// Operators that hand out memory or change what a tensor is, without touching elements.
const ALLOCATIONS: [&str; 10] = [
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
    "resize",
    "set",
    "record_stream",
    "detach",
];

/// Views by name, for traces without schemas.
const VIEWS: [&str; 26] = [
    "alias",
    "as_strided",
    "broadcast_to",
    "chunk",
    "detach",
    "diagonal",
    "expand",
    "expand_as",
    "flatten",
    "lift_fresh",
    "narrow",
    "permute",
    "real",
    "_reshape_alias",
    "reshape",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "transpose",
    "unbind",
    "unfold",
    "unsqueeze",
    "view",
];

/// A tensor that a call reads or writes.
#[derive(Debug)]
struct Used {
    storage: u64,
    elements: u64,
    element_bytes: u64,
    dtype: Option<DType>,
    shape: SmallVec<[u64; 4]>,
}

/// A call that computes, unless calls within it do.
#[derive(Debug)]
struct Worker {
    id: u64,
    position: Position,
    name: Box<str>,
    reads: Vec<Used>,
    writes: Vec<Used>,
    /// For each written tensor: true if something was there before.
    in_place: Vec<bool>,
    flops: Option<Flops>,
    pattern: Option<Pattern>,
    lane: u32,
    start: Option<Nanos>,
    duration: Option<Nanos>,
    /// Of these two, those that the call has and that can not be.
    impossible_times: u8,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    caller: Option<u64>,
    /// A call within it computes.
    calls_worker: bool,
    /// A call within it is a matrix product.
    calls_product: bool,
}

#[derive(Debug)]
pub(super) struct Reader {
    draft: Draft,
    options: Options,
    calls: HashMap<u64, Call>,
    workers: Vec<Worker>,
    /// Tensors that workers read and write, and what their shapes take: a dimension in four counts.
    uses: u64,
    annotations: u64,
    idle: u64,
}

impl Reader {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            draft: Draft::new(Format::PyTorch, options),
            options: options.clone(),
            calls: HashMap::new(),
            workers: Vec::new(),
            uses: 0,
            annotations: 0,
            idle: 0,
        }
    }

    /// Tells every call that something within it computes. Each call is told once, so circles of
    /// callers end.
    fn tell_callers(&mut self) {
        for worker in &self.workers {
            let product = worker.flops.is_some();
            let mut at = self.calls.get(&worker.id).and_then(|call| call.caller);
            while let Some(id) = at {
                let Some(call) = self.calls.get_mut(&id) else { break };
                if call.calls_worker && (call.calls_product || !product) {
                    break;
                }
                call.calls_worker = true;
                call.calls_product |= product;
                at = call.caller;
            }
        }
    }

    pub(super) fn finish(mut self, name: &str, records: u64) -> Result<Import, ImportError> {
        self.tell_callers();
        let mut workers = std::mem::take(&mut self.workers);
        let before = workers.len();
        workers.retain(|worker| {
            let call = self.calls.get(&worker.id);
            call.is_none_or(|call| if worker.flops.is_some() { !call.calls_product } else { !call.calls_worker })
        });
        self.draft.drop_many(Reason::Caller, (before - workers.len()) as u64);
        let impossible = workers.iter().map(|worker| u64::from(worker.impossible_times)).sum();
        self.draft.drop_many(Reason::OutOfRange, impossible);
        self.draft.drop_many(Reason::Annotation, self.annotations);
        self.draft.drop_many(Reason::NoWork, self.idle);
        self.calls = HashMap::new();
        workers.sort_by_key(|worker| worker.id);
        let mut storages = Storages::default();
        for worker in workers {
            storages.run(worker, &mut self.draft)?;
        }
        self.draft.finish(name, records)
    }

    fn worker(&mut self, id: u64, node: Node, position: Position) -> Worker {
        let written = node.attrs.schema.as_deref().map(written_arguments).unwrap_or_default();
        let generated = node.attrs.kernel_backend.as_deref().is_some_and(|backend| !backend.is_empty());
        let device = {
            let mut tensors = node.outputs.values.tensors.iter().chain(&node.inputs.values.tensors);
            tensors.next().map_or_else(|| "no device".into(), |(_, tensor)| tensor.device.clone())
        };
        let lane = self.draft.lane(&format!("{device} thread {}", node.attrs.thread));
        let pattern = communication(&node);
        let (reads, writes) = (used(node.inputs), used(node.outputs));
        let shapes = |used: &[(u32, Used)]| -> Vec<SmallVec<[u64; 4]>> {
            let count = used.iter().map(|(position, _)| *position as usize + 1).max().unwrap_or_default().min(8);
            let at = |position| used.iter().find(|(of, _)| *of as usize == position);
            (0..count).map(|position| at(position).map_or_else(SmallVec::new, |(_, used)| used.shape.clone())).collect()
        };
        let (into, out) = (shapes(&reads), shapes(&writes));
        let inputs: Vec<&[u64]> = into.iter().map(|shape| &shape[..]).collect();
        let outputs: Vec<&[u64]> = out.iter().map(|shape| &shape[..]).collect();
        let flops = products::flops(&node.name, &inputs, &outputs);
        let flops = flops.filter(|&flops| self.draft.in_range(flops != Flops::MAX));
        let read = storages(reads.iter().map(|(_, input)| input.storage));
        let made = storages(writes.iter().map(|(_, output)| output.storage));
        let mut in_place: Vec<bool> =
            writes.iter().map(|(_, output)| read.binary_search(&output.storage).is_ok()).collect();
        let mut writes: Vec<Used> = writes.into_iter().map(|(_, used)| used).collect();
        let mut more = HashSet::new();
        for (position, input) in &reads {
            let writes_it = generated || pattern.is_some() || written.binary_search(position).is_ok();
            if writes_it && made.binary_search(&input.storage).is_err() && more.insert(input.storage) {
                in_place.push(true);
                writes.push(Used { shape: input.shape.clone(), ..*input });
            }
        }
        let start = node.ts.as_micros();
        let duration = node.dur.as_f64().and_then(|micros| self.draft.duration(micros, 1e3));
        let is_impossible = |given: &Scalar, time: Option<Nanos>| u8::from(!given.is_nothing() && time.is_none());
        Worker {
            id,
            position,
            name: cut(&node.name, self.options.limits.name_bytes.saturating_mul(2)).into(),
            reads: reads.into_iter().map(|(_, used)| used).collect(),
            writes,
            in_place,
            flops,
            pattern,
            lane,
            start,
            duration,
            impossible_times: is_impossible(&node.ts, start) + is_impossible(&node.dur, duration),
        }
    }
}

impl Records for Reader {
    type Record = Node;

    fn record(&mut self, mut node: Node, position: Position) -> Result<(), ImportError> {
        node.unify();
        let id = node.id.require_u64("id", None, position)?;
        let limit = self.options.limits.ops.saturating_mul(CALLS_PER_OP);
        if self.calls.len() as u64 >= limit {
            return Err(ImportError::Limit { position, what: "calls", most: limit, limit: "ops" });
        }
        // The root names itself as its caller.
        let caller = node.caller.as_u64().filter(|&caller| caller != id);
        let call = Call { caller, calls_worker: false, calls_product: false };
        if self.calls.insert(id, call).is_some() {
            return Err(ImportError::DuplicateNode { position, node: id });
        }
        match class(&node) {
            Class::Annotation => self.annotations += 1,
            Class::Idle => self.idle += 1,
            Class::Worker => {
                if self.workers.len() as u64 >= self.options.limits.ops {
                    let most = self.options.limits.ops;
                    return Err(ImportError::Limit { position, what: "operators", most, limit: "ops" });
                }
                let worker = self.worker(id, node, position);
                let uses = worker.reads.iter().chain(&worker.writes).map(|used| 1 + used.shape.len() as u64 / 4);
                self.uses = self.uses.saturating_add(uses.sum());
                if self.uses > self.options.limits.edges {
                    let most = self.options.limits.edges;
                    return Err(ImportError::Limit { position, what: "tensors that calls use", most, limit: "edges" });
                }
                self.workers.push(worker);
            }
        }
        Ok(())
    }
}

enum Class {
    /// A label: no operator at all.
    Annotation,
    /// An operator that touches no elements.
    Idle,
    Worker,
}

fn class(node: &Node) -> Class {
    let schema = node.attrs.schema.as_deref().unwrap_or_default();
    if node.attrs.kernel_backend.as_deref().is_some_and(|backend| !backend.is_empty()) || communication(node).is_some()
    {
        return Class::Worker;
    }
    let operator = match node.attrs.schema {
        Some(_) => !schema.is_empty(),
        None => node.name.contains("::") && !node.name.contains("autograd::") && !node.name.contains(": "),
    };
    if !operator {
        return Class::Annotation;
    }
    let name = plain_name(&node.name);
    let (inputs, outputs) = (&node.inputs.values.tensors, &node.outputs.values.tensors);
    let reads_element = name == "_local_scalar_dense";
    let writes = !written_arguments(schema).is_empty();
    let allocates = ALLOCATIONS.contains(&name);
    let within = || {
        let read = storages(inputs.iter().map(|(_, input)| input.storage));
        outputs.iter().all(|(_, output)| read.binary_search(&output.storage).is_ok())
    };
    let views = !writes
        && (VIEWS.contains(&name) || schema.split("->").nth(1).is_some_and(|results| results.contains("(a")))
        && within();
    let idle = allocates || views || (outputs.is_empty() && !writes);
    if idle && !reads_element { Class::Idle } else { Class::Worker }
}

/// Each storage once, ascending.
fn storages(used: impl Iterator<Item = u64>) -> SmallVec<[u64; 8]> {
    let mut storages: SmallVec<[u64; 8]> = used.collect();
    storages.sort_unstable();
    storages.dedup();
    storages
}

/// `aten::add_` is `add`.
fn plain_name(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name).trim_end_matches('_')
}

/// What the node communicates, if it is where a process group records that.
fn communication(node: &Node) -> Option<Pattern> {
    let records = node.name == "record_param_comms" || node.name.starts_with("nccl:");
    records.then(|| node.inputs.values.pattern.or_else(|| Pattern::of_name(&node.name))).flatten()
}

/// The positions of the arguments that a schema says are written, ascending: `Tensor(a!) self`.
fn written_arguments(schema: &str) -> SmallVec<[u32; 2]> {
    let arguments = schema.split(" -> ").next().unwrap_or_default();
    let Some((_, arguments)) = arguments.split_once('(') else { return SmallVec::new() };
    let (mut depth, mut position, mut written) = (0u32, 0, SmallVec::new());
    let mut start = 0;
    for (at, letter) in arguments.char_indices().chain([(arguments.len(), ',')]) {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                let argument = arguments[start..at].trim();
                start = (at + 1).min(arguments.len());
                if argument == "*" {
                    continue;
                }
                if argument.contains("!)") {
                    written.push(position);
                }
                position += 1;
            }
            _ => {}
        }
    }
    written
}

/// The tensors of inputs or outputs with shapes and types, where the trace has as many of them.
fn used(io: Io) -> Vec<(u32, Used)> {
    let Io { values, shapes, types } = io;
    let types = if types.0.len() == values.tensors.len() { types.0 } else { Vec::new() };
    let mut shapes = shapes.0.into_iter().peekable();
    let mut tensors = values.tensors.into_iter().enumerate().peekable();
    let mut used = Vec::with_capacity(tensors.len());
    while let Some(&(_, (position, _))) = tensors.peek() {
        while shapes.next_if(|&(of, _)| of < position).is_some() {}
        let of: SmallVec<[SmallVec<[u64; 4]>; 2]> =
            std::iter::from_fn(|| shapes.next_if(|&(of, _)| of == position)).map(|(_, shape)| shape).collect();
        let here: SmallVec<[(usize, TensorUse); 2]> =
            std::iter::from_fn(|| tensors.next_if(|&(_, (of, _))| of == position))
                .map(|(index, (_, tensor))| (index, tensor))
                .collect();
        let paired = of.len() == here.len();
        for (place, (index, tensor)) in here.into_iter().enumerate() {
            let TensorUse { storage, elements, element_bytes, .. } = tensor;
            let shape = if paired { of[place].clone() } else { SmallVec::from_slice(&[elements]) };
            let dtype = types.get(index).copied().flatten();
            used.push((position, Used { storage, elements, element_bytes, dtype, shape }));
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_say_what_is_written() {
        let cases: [(&str, &[u32]); 5] = [
            ("aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)", &[0]),
            ("aten::arange.start_out(Scalar start, Scalar end, Scalar step=1, *, Tensor(a!) out) -> Tensor(a!)", &[3]),
            ("aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other, *, Scalar alpha=1) -> ()", &[0]),
            ("aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)", &[]),
            ("", &[]),
        ];
        for (schema, written) in cases {
            assert_eq!(&written_arguments(schema)[..], written, "{schema}");
        }
    }
}
