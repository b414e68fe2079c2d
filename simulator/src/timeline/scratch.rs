//! Buffers that one question hands to the next.

use std::ops::Range;
use std::sync::Arc;

use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::Rank;

use crate::engine::{Engine, LinkRef, NodeRef};

/// A sparse table over dense numbers that is emptied in O(1).
#[derive(Clone, Debug, Default)]
pub(super) struct Sparse {
    epoch: u32,
    entries: Vec<(u32, u32)>,
}

impl Sparse {
    pub(super) fn clear(&mut self) {
        if self.epoch == u32::MAX {
            self.entries.clear();
            self.epoch = 0;
        }
        self.epoch += 1;
    }

    pub(super) fn get(&self, index: usize) -> Option<u32> {
        self.entries.get(index).filter(|(epoch, _)| *epoch == self.epoch).map(|(_, value)| *value)
    }

    pub(super) fn set(&mut self, index: usize, value: u32) {
        if self.entries.len() <= index {
            self.entries.resize(index + 1, (0, 0));
        }
        self.entries[index] = (self.epoch, value);
    }
}

/// Where the description of a piece of work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It was on its lane already.
    Queued,
    /// An action asked for it.
    Action(usize),
    /// A continuation made it.
    Made(usize),
}

/// Work that will be in the answer.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) origin: Origin,
    pub(super) job: Option<JobId>,
    pub(super) lane: LaneId,
    pub(super) rank: Rank,
    /// Its nodes, from the first to the last: one for a macro-operator, else one per operator.
    pub(super) nodes: Range<u32>,
    pub(super) ops: Range<u32>,
}

impl Run {
    pub(super) fn first(&self) -> NodeRef {
        NodeRef(self.nodes.start)
    }

    pub(super) fn last(&self) -> NodeRef {
        NodeRef(self.nodes.end.saturating_sub(1))
    }

    /// The node that runs `op`.
    pub(super) fn node(&self, op: u32) -> NodeRef {
        if self.nodes.len() == 1 { self.first() } else { NodeRef(self.nodes.start + (op - self.ops.start)) }
    }
}

/// What becomes of the weights of a model on a device in the course of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weights {
    /// They arrive when this transfer ends.
    Arriving(NodeRef),
    Evicted,
}

/// Buffers of a simulation.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) engine: Engine,
    /// Lanes, devices and links of the cluster to those of the engine.
    pub(super) lanes: Sparse,
    pub(super) devices: Sparse,
    pub(super) links: Sparse,
    pub(super) in_use: Vec<DeviceId>,
    pub(super) runs: Vec<Run>,
    pub(super) made: Vec<Arc<JobSpec>>,
    pub(super) weights: Vec<(ModelId, DeviceId, Weights)>,
    pub(super) loads_begun: bool,
    /// True if bytes move over links.
    pub(super) moves: bool,
    /// The first jobs of the gangs that the engine knows.
    pub(super) gangs: Vec<JobId>,
    pub(super) route: Vec<LinkRef>,
}

impl Scratch {
    pub(super) fn clear(&mut self) {
        self.lanes.clear();
        self.devices.clear();
        self.links.clear();
        self.in_use.clear();
        self.runs.clear();
        self.made.clear();
        self.weights.clear();
        self.loads_begun = false;
        self.moves = false;
        self.gangs.clear();
    }
}
