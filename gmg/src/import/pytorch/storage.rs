//! States of storages, and who made and read them.

use std::collections::HashMap;

use super::{Used, Worker};
use crate::dtype::DType;
use crate::import::draft::{Draft, DraftTensor, Node};
use crate::import::{Communication, ImportError, OpRecord};
use crate::semantics::OpCost;
use crate::shape::{Dim, Shape};
use crate::units::Bytes;

/// What a storage holds at some point of the trace.
#[derive(Debug)]
struct State {
    tensor: DraftTensor,
    version: u32,
    /// The worker that wrote it; [`None`] for what was there before.
    by: Option<u64>,
    readers: Vec<u64>,
}

/// All storages, at the point of the trace that is reached.
#[derive(Debug, Default)]
pub(super) struct Storages {
    states: HashMap<u64, State>,
}

impl Storages {
    /// Adds a worker as an operator; workers come in the order of their starts.
    pub(super) fn run(&mut self, worker: Worker, draft: &mut Draft) -> Result<(), ImportError> {
        let id = worker.id;
        let mut node = Node { id, name: &worker.name, kind: &worker.name, ..Node::default() };
        let mut cost = OpCost { flops: worker.flops.unwrap_or_default(), ..OpCost::default() };
        let mut communicated = Bytes::ZERO;
        for used in &worker.reads {
            cost.read += used.bytes();
            communicated += used.bytes();
            let state = self.states.entry(used.storage).or_insert_with(|| State {
                tensor: used.tensor(draft, 0),
                version: 0,
                by: None,
                readers: Vec::new(),
            });
            if state.readers.last() != Some(&id) {
                state.readers.push(id);
                node.inputs.push(state.tensor);
            }
        }
        for (used, &in_place) in worker.writes.iter().zip(&worker.in_place) {
            cost.written += used.bytes();
            if self.states.get(&used.storage).is_some_and(|state| state.by == Some(id)) {
                continue;
            }
            let version = match self.states.remove(&used.storage) {
                Some(state) => {
                    if in_place {
                        let reads_it = state.readers.last() == Some(&id);
                        node.after.extend(state.readers.into_iter().filter(|&reader| reader != id));
                        if !reads_it {
                            node.inputs.push(state.tensor);
                        }
                    }
                    state.version + 1
                }
                None => 0,
            };
            let tensor = used.tensor(draft, version);
            node.outputs.push(tensor);
            self.states.insert(used.storage, State { tensor, version, by: Some(id), readers: Vec::new() });
        }
        let communication = worker.pattern.map(|pattern| Box::new(Communication::new(Some(pattern), communicated)));
        node.cost = cost;
        node.record =
            OpRecord { id, duration: worker.duration, start: worker.start, lane: Some(worker.lane), communication };
        if let Some(pattern) = worker.pattern {
            node.kind = pattern.name();
        }
        draft.add(node, worker.position)
    }
}

impl Used {
    fn bytes(&self) -> Bytes {
        Bytes(self.elements).times(self.element_bytes)
    }

    /// The state of the storage as a tensor. What has no type here is so many bytes per element.
    fn tensor(&self, draft: &mut Draft, version: u32) -> DraftTensor {
        let dims = self.shape.iter().copied().map(Dim::fixed);
        let (dtype, shape) = match self.dtype.filter(|dtype| dtype.block_bytes() == Bytes(self.element_bytes)) {
            Some(dtype) => (dtype, Shape::new(dims)),
            None => (DType::U8, Shape::new(dims.chain([Dim::fixed(self.element_bytes)]))),
        };
        let name = match version {
            0 => format!("storage {}", self.storage),
            version => format!("storage {} state {version}", self.storage),
        };
        draft.tensor(name, dtype, shape)
    }
}
