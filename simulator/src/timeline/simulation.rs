//! From a question to work for the engine, and back to an answer.

use std::fmt::Display;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use slicescheduler_gmg::cluster::Endpoint;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, RequestId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::memory::{ByteKind, WeightState};
use slicescheduler_gmg::plan::{
    Action, Continuation, Fate, Forecast, MemoryForecast, Rank, RunForecast, Shortage, Source, WhatIfError, Work,
};
use slicescheduler_gmg::units::{Bytes, Nanos};

use super::mirror::{DeviceMirror, Mirror};
use super::scratch::{Origin, Run, Scratch, Weights};
use crate::engine::{DeviceRef, Drained, Hold, LaneRef, LinkRef, Node, NodeRef};

/// One question on its way through the engine.
#[derive(Debug)]
pub(super) struct Simulation<'a> {
    pub(super) mirror: &'a Mirror,
    pub(super) scratch: &'a mut Scratch,
    pub(super) actions: &'a [Action],
    /// By action: false if it is left out, as if it had not been asked for. All take part that this does not reach.
    pub(super) takes_part: &'a [bool],
    pub(super) now: Nanos,
}

pub(super) fn refuse<T>(index: usize, reason: impl Display) -> Result<T, WhatIfError> {
    Err(WhatIfError::Action { index, reason: reason.to_string() })
}

impl<'a> Simulation<'a> {
    pub(super) fn new(
        mirror: &'a Mirror,
        scratch: &'a mut Scratch,
        actions: &'a [Action],
        now: Nanos,
        window: Nanos,
    ) -> Self {
        scratch.clear();
        scratch.engine.reset(now);
        scratch.engine.set_launched_window(window);
        Self { mirror, scratch, actions, takes_part: &[], now }
    }

    /// The actions that take part, by number.
    pub(super) fn chosen(&self) -> impl Iterator<Item = (usize, &'a Action)> + use<'a> {
        let (actions, takes_part) = (self.actions, self.takes_part);
        actions.iter().enumerate().filter(move |(index, _)| takes_part.get(*index).is_none_or(|takes_part| *takes_part))
    }

    /// Takes in everything that is queued anywhere.
    pub(super) fn add_all_lanes(&mut self) {
        for lane in &self.mirror.lanes {
            self.lane(lane.id);
        }
    }

    pub(super) fn carry_out_actions(&mut self) -> Result<(), WhatIfError> {
        let (mut pieces, mut waits) = (false, false);
        for (index, action) in self.chosen() {
            match action {
                Action::Run { work: Work::New(spec), lane, rank } => {
                    waits |= !spec.after.is_empty();
                    self.run_new(index, spec, *lane, *rank)?;
                }
                Action::Run { work: Work::Existing { job, ops }, lane, rank } => {
                    pieces = true;
                    self.run_existing(index, *job, ops.clone(), *lane, *rank)?;
                }
                Action::RunGang { members, rank } => {
                    waits |= members.iter().any(|(spec, _)| !spec.after.is_empty());
                    self.run_gang(index, members, *rank)?;
                }
                Action::Recall { job, fate } => self.recall(index, *job, *fate)?,
                Action::Prefetch { model, device, source } => self.prefetch(index, *model, *device, *source)?,
                Action::EvictWeights { model, device } => self.evict_weights(index, *model, *device)?,
                Action::ReleaseKv { request, device } => self.release_kv(index, *request, *device)?,
                Action::Reject { .. } => {}
                Action::FormBatch { .. } => return refuse(index, "a batch must be formed before it can be forecast"),
                Action::EvictSequences { .. } => {
                    return refuse(index, "batching must choose the sequences before their eviction can be forecast");
                }
                _ => return refuse(index, "this forecast does not know that kind of action"),
            }
        }
        if pieces {
            self.connect_pieces()?;
            self.connect_gangs()?;
        }
        if waits { self.connect_new() } else { Ok(()) }
    }

    /// Orders new jobs behind those that they wait for.
    fn connect_new(&mut self) -> Result<(), WhatIfError> {
        for (index, action) in self.chosen() {
            let specs: SmallVec<[&JobSpec; 1]> = match action {
                Action::Run { work: Work::New(spec), .. } => smallvec![&**spec],
                Action::RunGang { members, .. } => members.iter().map(|(spec, _)| spec).collect(),
                _ => continue,
            };
            let runs = self.scratch.runs.iter().filter(|run| run.origin == Origin::Action(index));
            let nodes: SmallVec<[NodeRef; 1]> = runs.map(Run::first).collect();
            for (spec, node) in specs.into_iter().zip(nodes) {
                for &job in &spec.after {
                    self.wait_for(index, job, node)?;
                }
            }
        }
        Ok(())
    }

    /// Takes in the lanes of the continuations.
    pub(super) fn watch(&mut self, continuations: &[(LaneId, Box<dyn Continuation>)]) {
        for (lane, _) in continuations {
            if let Some(lane) = self.lane(*lane) {
                self.scratch.engine.watch(lane);
            }
        }
    }

    /// Runs to the horizon, asking the continuations, which are [watched](Self::watch), for more whenever their lane has
    /// nothing left.
    pub(super) fn run(&mut self, horizon: Nanos, continuations: &mut [(LaneId, Box<dyn Continuation>)]) {
        while let Some(drained) = self.scratch.engine.run(horizon) {
            self.continue_lane(drained, continuations);
        }
    }

    /// Takes in the other lanes of the devices that are in use: they share its memory.
    pub(super) fn complete_devices(&mut self) {
        let mut place = 0;
        while let Some(&device) = self.scratch.in_use.get(place) {
            let mut index = 0;
            while self.lane(LaneId::new(device, index)).is_some() {
                index += 1;
            }
            place += 1;
        }
    }

    /// How many devices take part so far.
    pub(super) fn devices_in_use(&self) -> usize {
        self.scratch.in_use.len()
    }

    /// Leaves out of the answer what is not about the first `devices` that took part.
    pub(super) fn leave_out_all_but(&mut self, devices: usize) {
        let Scratch { runs, in_use, devices: known, .. } = &mut *self.scratch;
        in_use.truncate(devices);
        runs.retain(|run| known.get(run.lane.device.index()).is_some_and(|number| (number as usize) < devices));
    }

    pub(super) fn answer(&mut self, answer: &mut Forecast) {
        let Self { mirror, scratch, now, .. } = self;
        answer.reset(mirror.version, *now);
        for run in &scratch.runs {
            let (Some(first), Some(last)) = (scratch.engine.ran(run.first()), scratch.engine.ran(run.last())) else {
                continue;
            };
            answer.runs.push(RunForecast {
                action: if let Origin::Action(index) = run.origin { Some(index) } else { None },
                job: run.job,
                lane: run.lane,
                start: first.start,
                finish: last.finish,
                recalled: first.cuts > 0,
            });
        }
        // No two pieces of work start on one lane at one time, so there are no ties.
        answer.runs.sort_unstable_by_key(|run| (run.start, run.lane));
        scratch.in_use.sort_unstable();
        for &device in &scratch.in_use {
            let Some(known) = scratch.devices.get(device.index()).map(DeviceRef) else { continue };
            let peak = scratch.engine.peak(known);
            if peak.is_zero() {
                continue;
            }
            // Reservations of actions are counted from the start of the simulation, which may lie
            // in the past.
            let shortage = scratch.engine.shortage(known).map(|s| Shortage { at: s.at.max(*now), ..s });
            answer.memory.push(MemoryForecast { device, peak, shortage });
        }
        answer.operators = scratch.engine.operators();
    }

    /// The lane in the engine, with everything that is queued on it; [`None`] if the cluster has
    /// no such lane.
    pub(super) fn lane(&mut self, id: LaneId) -> Option<LaneRef> {
        let mirror = self.mirror;
        let index = mirror.lane_index(id)?;
        if let Some(known) = self.scratch.lanes.get(index) {
            return Some(LaneRef(known));
        }
        let device = self.device(id.device)?;
        let lane = self.scratch.engine.add_lane();
        self.scratch.lanes.set(index, lane.0);
        let entries = &mirror.lanes[index].entries;
        for entry in entries {
            let cost = self.scratch.engine.add_cost(entry.cost.clone());
            let node = Node::operators(lane, cost, entry.ops.clone()).rank(entry.rank).release(entry.release);
            let node = self.scratch.engine.add(node);
            let job = mirror.job(entry.job);
            if let Some(freed) = job.filter(|job| job.op_count() == entry.ops.end).and_then(|job| job.arena) {
                let hold = Hold { device, kind: ByteKind::Activations, taken: Bytes::ZERO, freed: freed.1 };
                self.scratch.engine.hold(node, hold);
            }
            self.record(Origin::Queued, Some(entry.job), id, entry.rank, node, entry.ops.clone());
        }
        for entry in entries.iter().filter(|entry| entry.in_gang) {
            self.gang_of_queued(entry.job);
        }
        Some(lane)
    }

    pub(super) fn device(&mut self, id: DeviceId) -> Option<DeviceRef> {
        if let Some(known) = self.scratch.devices.get(id.index()) {
            return Some(DeviceRef(known));
        }
        let device = self.scratch.engine.add_device(self.mirror.devices.get(id.index())?.memory);
        self.scratch.devices.set(id.index(), device.0);
        self.scratch.in_use.push(id);
        Some(device)
    }

    pub(super) fn record(
        &mut self,
        origin: Origin,
        job: Option<JobId>,
        lane: LaneId,
        rank: Rank,
        node: NodeRef,
        ops: std::ops::Range<u32>,
    ) {
        self.scratch.runs.push(Run { origin, job, lane, rank, nodes: node.0..node.0 + 1, ops });
    }

    /// A device that can be used.
    pub(super) fn usable(&self, index: usize, device: DeviceId) -> Result<&'a DeviceMirror, WhatIfError> {
        match self.mirror.devices.get(device.index()) {
            None => refuse(index, format_args!("there is no {device}; the cluster has {}", self.mirror.devices.len())),
            Some(found) if found.lost => refuse(index, format_args!("{device} is lost")),
            Some(device) => Ok(device),
        }
    }

    pub(super) fn run_new(
        &mut self,
        index: usize,
        spec: &JobSpec,
        lane: LaneId,
        rank: Rank,
    ) -> Result<(), WhatIfError> {
        self.usable(index, lane.device)?;
        let Some(model) = self.mirror.models.get(spec.model.index()) else {
            return refuse(index, format_args!("there is no {}", spec.model));
        };
        if let Err(unbound) = model.template.check_binding(&spec.binding) {
            return refuse(index, unbound);
        }
        let weights = self.weights(index, spec.model, lane.device)?;
        let Some(lane_ref) = self.lane(lane) else { return refuse(index, format_args!("there is no {lane}")) };
        let node = self.add_job(spec, lane, lane_ref, rank, self.now);
        let count = model.template.op_count();
        self.record(Origin::Action(index), None, lane, rank, node, 0..count);
        if let Some(weights) = weights {
            self.scratch.engine.add_edge(weights, node);
        }
        Ok(())
    }

    /// A whole job as one node that is submitted at `at`, when its bytes are reserved.
    pub(super) fn add_job(
        &mut self,
        spec: &JobSpec,
        lane: LaneId,
        lane_ref: LaneRef,
        rank: Rank,
        at: Nanos,
    ) -> NodeRef {
        let mirror = self.mirror;
        let (Some(model), Some(device)) =
            (mirror.models.get(spec.model.index()), mirror.devices.get(lane.device.index()))
        else {
            return NodeRef(u32::MAX);
        };
        let Some(cost) = mirror.bind(spec, lane.device) else { return NodeRef(u32::MAX) };
        let activations = model.template.activation_bytes(&spec.binding);
        let engine = &mut self.scratch.engine;
        let cost = engine.add_cost(cost);
        let release = spec.release.max(at);
        let node = Node::operators(lane_ref, cost, 0..model.template.op_count()).rank(rank).release(release);
        let node = engine.add(node);
        if let Some(known) = self.scratch.devices.get(lane.device.index()).map(DeviceRef) {
            let kind = ByteKind::Activations;
            engine.hold(node, Hold { device: known, kind, taken: Bytes::ZERO, freed: activations });
            engine.reserve(known, kind, activations);
            engine.reserve(known, ByteKind::Kv, device.kv_block.times(spec.new_blocks()));
        }
        node
    }

    /// `node` starts after `job` is done.
    pub(super) fn wait_for(&mut self, index: usize, job: JobId, node: NodeRef) -> Result<(), WhatIfError> {
        let Some(known) = self.mirror.job(job) else { return Ok(()) };
        if known.progress >= known.op_count() {
            return Ok(());
        }
        if let Some(lane) = known.lane {
            self.lane(lane);
        }
        let count = known.op_count();
        let last = self.scratch.runs.iter().find(|run| run.job == Some(job) && run.ops.end == count);
        let Some(last) = last.map(Run::last) else {
            return refuse(index, format_args!("it waits for {job}, whose last operators are not placed"));
        };
        self.scratch.engine.add_edge(last, node);
        Ok(())
    }

    fn recall(&mut self, index: usize, job: JobId, fate: Fate) -> Result<(), WhatIfError> {
        let Some(known) = self.mirror.job(job) else { return refuse(index, format_args!("there is no {job}")) };
        if let Some(lane) = known.lane {
            self.lane(lane);
        }
        let (now, engine) = (self.now, &mut self.scratch.engine);
        let mut found = false;
        for run in self.scratch.runs.iter().filter(|run| run.job == Some(job) && run.origin == Origin::Queued) {
            engine.recall(run.first(), now, fate == Fate::Drop);
            found = true;
        }
        if found { Ok(()) } else { refuse(index, format_args!("{job} is not on a lane")) }
    }

    fn prefetch(&mut self, index: usize, model: ModelId, device: DeviceId, source: Source) -> Result<(), WhatIfError> {
        let state = self.usable(index, device)?;
        let Some(known) = self.mirror.models.get(model.index()) else {
            return refuse(index, format_args!("there is no {model}"));
        };
        let changed = self.changed_weights(model, device);
        let resident = state.weights.iter().any(|(other, _)| *other == model);
        if matches!(changed, Some(Weights::Arriving(_))) || (resident && changed != Some(Weights::Evicted)) {
            return refuse(index, format_args!("the weights of {model} are on {device} already, or on their way"));
        }
        if let Source::Device(from) = source {
            let there = self.usable(index, from)?.weights.contains(&(model, WeightState::Resident));
            if !there || self.changed_weights(model, from) == Some(Weights::Evicted) {
                return refuse(index, format_args!("{from} has no weights of {model} to copy"));
            }
        }
        self.begin_loads();
        let Some(flow) = self.add_load(device, source, known.weights, self.now) else {
            return refuse(index, format_args!("there is no route from {source:?} to {device}"));
        };
        self.scratch.weights.push((model, device, Weights::Arriving(flow)));
        if let Some(device) = self.device(device) {
            self.scratch.engine.reserve(device, ByteKind::Weights, known.weights);
        }
        Ok(())
    }

    fn evict_weights(&mut self, index: usize, model: ModelId, device: DeviceId) -> Result<(), WhatIfError> {
        let state = self.usable(index, device)?;
        let resident = state.weights.contains(&(model, WeightState::Resident));
        if !resident || self.changed_weights(model, device) == Some(Weights::Evicted) {
            return refuse(index, format_args!("the weights of {model} are not on {device}"));
        }
        self.scratch.weights.push((model, device, Weights::Evicted));
        let bytes = self.mirror.models.get(model.index()).map_or(Bytes::ZERO, |model| model.weights);
        if let Some(device) = self.device(device) {
            self.scratch.engine.release(device, ByteKind::Weights, bytes);
        }
        Ok(())
    }

    fn release_kv(&mut self, index: usize, request: RequestId, device: DeviceId) -> Result<(), WhatIfError> {
        let state = self.usable(index, device)?;
        let blocks = match self.mirror.sequences.get(&request) {
            None => return Ok(()),
            Some((on, _)) if *on != device => {
                return refuse(index, format_args!("the sequence of {request} lies on {on}, not on {device}"));
            }
            Some((_, blocks)) => *blocks,
        };
        if let Some(device) = self.device(device) {
            self.scratch.engine.release(device, ByteKind::Kv, state.kv_block.times(u64::from(blocks)));
        }
        Ok(())
    }

    /// The transfer that work of `model` on `device` has to wait for, if any.
    pub(super) fn weights(
        &mut self,
        index: usize,
        model: ModelId,
        device: DeviceId,
    ) -> Result<Option<NodeRef>, WhatIfError> {
        let state = self.usable(index, device)?;
        let weightless = self.mirror.models.get(model.index()).is_some_and(|model| model.weights.is_zero());
        let there = weightless || state.weights.contains(&(model, WeightState::Resident));
        if there && self.scratch.weights.is_empty() {
            return Ok(None);
        }
        if state.weights.contains(&(model, WeightState::Loading)) {
            self.begin_loads();
        }
        match self.changed_weights(model, device) {
            Some(Weights::Arriving(transfer)) => Ok(Some(transfer)),
            None if there => Ok(None),
            _ => refuse(index, format_args!("the weights of {model} are not on {device}; prefetch them first")),
        }
    }

    fn changed_weights(&self, model: ModelId, device: DeviceId) -> Option<Weights> {
        let is_it = |(m, d, _): &&(ModelId, DeviceId, Weights)| *m == model && *d == device;
        self.scratch.weights.iter().rev().find(is_it).map(|(_, _, weights)| *weights)
    }

    /// Takes in the transfers that are under way: new ones share their links.
    fn begin_loads(&mut self) {
        if std::mem::replace(&mut self.scratch.loads_begun, true) {
            return;
        }
        let mirror = self.mirror;
        for load in &mirror.loads {
            let bytes = mirror.models.get(load.model.index()).map_or(Bytes::ZERO, |model| model.weights);
            if let Some(flow) = self.add_load(load.device, load.source, bytes, load.since) {
                self.scratch.weights.push((load.model, load.device, Weights::Arriving(flow)));
            }
        }
    }

    fn add_load(&mut self, device: DeviceId, source: Source, bytes: Bytes, at: Nanos) -> Option<NodeRef> {
        let from = match source {
            Source::Device(from) => Endpoint::Device(from),
            Source::Host => Endpoint::Host(self.mirror.cluster.device(device)?.node),
        };
        self.add_transfer(from, device, bytes, at)
    }

    /// A transfer of `bytes` that may begin at `at`; [`None`] without a route.
    pub(super) fn add_transfer(&mut self, from: Endpoint, to: DeviceId, bytes: Bytes, at: Nanos) -> Option<NodeRef> {
        let cluster = &self.mirror.cluster;
        let route = cluster.route(from, Endpoint::Device(to))?;
        self.scratch.moves = true;
        let Scratch { engine, links, route: buffer, .. } = &mut *self.scratch;
        buffer.clear();
        for id in route.links() {
            let bandwidth = cluster.link(id)?.bandwidth;
            let known = links.get(id.index()).map(LinkRef);
            let link = known.unwrap_or_else(|| {
                let link = engine.add_link(bandwidth);
                links.set(id.index(), link.0);
                link
            });
            buffer.push(link);
        }
        Some(engine.add_flow(buffer, bytes, route.latency(cluster), at))
    }

    /// The last work of a lane ended: its continuation says what follows.
    /// Which continuation made something, if one did.
    pub(super) fn continue_lane(
        &mut self,
        drained: Drained,
        continuations: &mut [(LaneId, Box<dyn Continuation>)],
    ) -> Option<usize> {
        let ended = |run: &&Run| run.nodes.contains(&drained.node.0);
        let run = self.scratch.runs.iter().rev().find(ended).cloned()?;
        let place = continuations.iter().position(|(lane, _)| *lane == run.lane)?;
        let (_, continuation) = continuations.get_mut(place)?;
        let finished = match run.origin {
            Origin::Made(index) => self.scratch.made.get(index).map(|made| &**made),
            Origin::Queued => run.job.and_then(|job| self.mirror.job(job)).map(|job| &*job.spec),
            Origin::Action(index) => match (self.actions.get(index), run.job) {
                (Some(Action::Run { work: Work::New(spec), .. }), _) => Some(&**spec),
                (Some(Action::RunGang { members, .. }), _) => {
                    members.iter().find(|(_, lane)| *lane == run.lane).map(|(spec, _)| spec)
                }
                (_, Some(job)) => self.mirror.job(job).map(|job| &*job.spec),
                _ => None,
            },
        };
        let finished = finished?;
        let ranks = finished.gang.map_or(1, |gang| gang.size);
        let next = continuation.next(finished, drained.at)?;
        if ranks > 1 {
            self.continue_gang(&run, next, ranks, drained.at);
            return Some(place);
        }
        let node = self.add_job(&next, run.lane, drained.lane, run.rank, drained.at);
        let count = self.mirror.models.get(next.model.index()).map_or(0, |model| model.template.op_count());
        let origin = Origin::Made(self.scratch.made.len());
        self.scratch.made.push(Arc::new(next));
        if count > 0 {
            self.record(origin, None, run.lane, run.rank, node, 0..count);
        }
        Some(place)
    }
}
