//! Operators of jobs that exist already, also where one job is spread over several devices.
//!
//! As long as a job stays on one device, each of its pieces is a macro-operator that waits for the
//! piece before it. A piece on another device is expanded: every operator is a node of its own,
//! ordered by the edges of the template, and every tensor that crosses between devices is a
//! transfer. Inputs of the graph are taken to be on every device, and KV to lie where the operators
//! that use it run.

use std::ops::Range;

use smallvec::SmallVec;

use slicescheduler_gmg::cluster::Endpoint;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, OpIndex};
use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::{Action, Rank, WhatIfError, Work};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::Bytes;

use super::mirror::JobMirror;
use super::scratch::{Origin, Run};
use super::simulation::{Simulation, refuse};
use crate::engine::{DeviceRef, Hold, Node, NodeRef};

/// Bytes of one operator's results on their way to a device.
#[derive(Clone, Copy, Debug)]
struct Crossing {
    producer: u32,
    to: DeviceId,
    transfer: NodeRef,
}

/// The other pieces of `job` in a question.
fn pieces_of(actions: &[Action], job: JobId) -> impl Iterator<Item = (&Range<u32>, LaneId)> {
    actions.iter().filter_map(move |action| match action {
        Action::Run { work: Work::Existing { job: other, ops }, lane, .. } if *other == job => Some((ops, *lane)),
        _ => None,
    })
}

impl Simulation<'_> {
    pub(super) fn run_existing(
        &mut self,
        index: usize,
        id: JobId,
        ops: Range<u32>,
        lane: LaneId,
        rank: Rank,
    ) -> Result<(), WhatIfError> {
        self.usable(index, lane.device)?;
        let Some(job) = self.mirror.job(id) else { return refuse(index, format_args!("there is no {id}")) };
        let count = job.op_count();
        if ops.start >= ops.end || ops.end > count {
            let Range { start, end } = ops;
            return refuse(index, format_args!("{id} has no operators {start}..{end}; it has {count}"));
        }
        if !job.alive {
            return refuse(index, format_args!("{id} has operators that will never run"));
        }
        let weights = self.weights(index, job.spec.model, lane.device)?;
        if let Some(queued) = job.lane {
            self.lane(queued);
        }
        let (Some(lane_ref), Some(device_ref)) = (self.lane(lane), self.device(lane.device)) else {
            return refuse(index, format_args!("there is no {lane}"));
        };
        let elsewhere = |on: DeviceId| on != lane.device;
        let split = job.arena.is_some_and(|(on, _)| elsewhere(on))
            || pieces_of(self.actions, id).any(|(_, other)| elsewhere(other.device));
        let holds = self.reserve_piece(index, job, &ops, lane, device_ref);
        let Some(cost) = self.mirror.bind(&job.spec, lane.device) else {
            return refuse(index, format_args!("there is no {}", job.spec.model));
        };
        let engine = &mut self.scratch.engine;
        let cost = engine.add_cost(cost);
        let release = job.spec.release.max(self.now);
        let mut nodes: Option<Range<u32>> = None;
        let parts = if split { ops.end - ops.start } else { 1 };
        for part in 0..parts {
            let of_part = if split { ops.start + part..ops.start + part + 1 } else { ops.clone() };
            let node = engine.add(Node::operators(lane_ref, cost, of_part).rank(rank).release(release));
            nodes = Some(nodes.map_or(node.0, |nodes| nodes.start)..node.0 + 1);
            if part + 1 == parts {
                holds.iter().for_each(|&hold| engine.hold(node, hold));
            }
        }
        let Some(nodes) = nodes else { return Ok(()) };
        if let Some(weights) = weights {
            engine.add_edge(weights, NodeRef(nodes.start));
        }
        self.scratch.runs.push(Run { origin: Origin::Action(index), job: Some(id), lane, rank, nodes, ops });
        Ok(())
    }

    /// Reserves what the graph would reserve when the piece is dispatched, and says what its last
    /// operator frees.
    fn reserve_piece(
        &mut self,
        index: usize,
        job: &JobMirror,
        ops: &Range<u32>,
        lane: LaneId,
        device: DeviceRef,
    ) -> SmallVec<[Hold; 2]> {
        let kind = ByteKind::Activations;
        let activations = job.template.activation_bytes(&job.spec.binding);
        let earlier = self.actions.get(..index).unwrap_or_default();
        let grows = !job.has_grown && pieces_of(earlier, job.id).next().is_none();
        let has_arena = job.arena.is_some_and(|(on, _)| on == lane.device);
        let new_here = !has_arena && pieces_of(earlier, job.id).all(|(_, other)| other.device != lane.device);
        if new_here {
            self.scratch.engine.reserve(device, kind, activations);
        }
        if grows {
            let block = self.mirror.devices.get(lane.device.index()).map_or(Bytes::ZERO, |device| device.kv_block);
            self.scratch.engine.reserve(device, ByteKind::Kv, block.times(job.spec.new_blocks()));
        }
        let mut holds = SmallVec::new();
        let ends_job = ops.end == job.op_count();
        let guest = job.arena.is_some_and(|(on, _)| on != lane.device);
        let last_here =
            pieces_of(self.actions, job.id).all(|(other, on)| on.device != lane.device || other.start <= ops.start);
        if !has_arena && (ends_job || (guest && last_here)) {
            holds.push(Hold { device, kind, taken: Bytes::ZERO, freed: activations });
        }
        if ends_job
            && let Some((on, bytes)) = job.arena
            && let Some(device) = self.device(on)
        {
            holds.push(Hold { device, kind, taken: Bytes::ZERO, freed: bytes });
        }
        holds
    }

    /// Orders the pieces of every job behind what they need.
    pub(super) fn connect_pieces(&mut self) -> Result<(), WhatIfError> {
        let mut connected: SmallVec<[JobId; 2]> = SmallVec::new();
        for (_, action) in self.chosen() {
            let Action::Run { work: Work::Existing { job, .. }, .. } = action else { continue };
            if !connected.contains(job) {
                connected.push(*job);
                self.connect(*job)?;
            }
        }
        Ok(())
    }

    fn connect(&mut self, id: JobId) -> Result<(), WhatIfError> {
        let Some(job) = self.mirror.job(id) else { return Ok(()) };
        let mut pieces: SmallVec<[Run; 2]> =
            self.scratch.runs.iter().filter(|run| run.job == Some(id)).cloned().collect();
        pieces.sort_by_key(|piece| piece.ops.start);
        let mut placed = job.progress;
        for piece in &pieces {
            let Range { start, end } = piece.ops;
            if let Origin::Action(index) = piece.origin {
                if start > placed {
                    let reason = format_args!("operators {placed}..{start} of {id} are neither done nor placed");
                    return refuse(index, reason);
                }
                if start < placed {
                    let twice = placed.min(end);
                    let reason = format_args!("operators {start}..{twice} of {id} are done or placed already");
                    return refuse(index, reason);
                }
            }
            placed = end;
        }
        if let Some(Run { origin: Origin::Action(index), nodes, .. }) = pieces.first() {
            for &other in &job.spec.after {
                self.wait_for(*index, other, NodeRef(nodes.start))?;
            }
        }
        if pieces.iter().all(|piece| piece.nodes.len() == 1)
            && pieces.iter().all(|p| p.lane.device == pieces[0].lane.device)
        {
            for pair in pieces.windows(2) {
                self.scratch.engine.add_edge(pair[0].last(), pair[1].first());
            }
            return Ok(());
        }
        self.connect_operators(job, &pieces)
    }

    fn connect_operators(&mut self, job: &JobMirror, pieces: &[Run]) -> Result<(), WhatIfError> {
        let mut crossings: Vec<Crossing> = Vec::new();
        for piece in pieces {
            let Origin::Action(index) = piece.origin else { continue };
            for op in piece.ops.clone() {
                for producer in job.template.predecessors(OpIndex(op)) {
                    let from = pieces.iter().find(|other| other.ops.contains(&producer.0));
                    let on = match (from, job.arena) {
                        (Some(from), _) => from.lane.device,
                        (None, Some((device, _))) => device,
                        (None, None) => piece.lane.device,
                    };
                    let before = from.map(|from| from.node(producer.0));
                    let to = piece.lane.device;
                    let node = piece.node(op);
                    let bytes = shared_bytes(&job.template, producer, OpIndex(op), &job.spec.binding);
                    if on == to || bytes.is_zero() {
                        before
                            .filter(|before| *before != node)
                            .into_iter()
                            .for_each(|b| self.scratch.engine.add_edge(b, node));
                        continue;
                    }
                    let known = crossings.iter().find(|known| known.producer == producer.0 && known.to == to);
                    let transfer = match known {
                        Some(known) => known.transfer,
                        None => {
                            let transfer = self.cross(index, on, to, bytes, before)?;
                            crossings.push(Crossing { producer: producer.0, to, transfer });
                            transfer
                        }
                    };
                    self.scratch.engine.add_edge(transfer, node);
                }
            }
        }
        Ok(())
    }

    /// Moves the results of an operator; they lie on both sides while they are under way.
    fn cross(
        &mut self,
        index: usize,
        from: DeviceId,
        to: DeviceId,
        bytes: Bytes,
        before: Option<NodeRef>,
    ) -> Result<NodeRef, WhatIfError> {
        let Some(transfer) = self.add_transfer(Endpoint::Device(from), to, bytes, self.now) else {
            return refuse(index, format_args!("there is no route from {from} to {to}"));
        };
        if let Some(device) = self.device(to) {
            let hold = Hold { device, kind: ByteKind::Staging, taken: bytes, freed: bytes };
            self.scratch.engine.hold(transfer, hold);
        }
        before.into_iter().for_each(|before| self.scratch.engine.add_edge(before, transfer));
        Ok(transfer)
    }
}

/// Bytes of what `producer` writes and `consumer` reads.
fn shared_bytes(template: &OpGraph, producer: OpIndex, consumer: OpIndex, binding: &Binding) -> Bytes {
    let (Some(producer), Some(consumer)) = (template.op(producer), template.op(consumer)) else {
        return Bytes::ZERO;
    };
    let read = |id: &_| consumer.inputs().any(|input| input == *id);
    let tensors = producer.outputs().filter(read).filter_map(|id| template.tensor(id));
    tensors.map(|tensor| tensor.bytes(binding)).sum()
}
