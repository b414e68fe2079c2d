//! The rules of the graph once more, as plainly as possible: one state per operator, one queue entry
//! per operator, memory as lists of intervals. Of the graph's code it uses ids, values and templates only.

mod compare;
mod observe;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, OpIndex, RequestId, TransferId};
use slicescheduler_gmg::job::{JobSpec, StoredState};
use slicescheduler_gmg::memory::{DeviceLayout, WeightState};
use slicescheduler_gmg::plan::{Rank, Source};
use slicescheduler_gmg::request::RequestState;
use slicescheduler_gmg::shape::TOKENS;
use slicescheduler_gmg::units::Bytes;
use slicescheduler_gmg::{Delta, GmgView, Intent};

use super::{DEVICES, LANES};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Pending,
    Dispatched(LaneId),
    Running(LaneId, u64),
    Done(u64),
    Failed,
    Cancelled,
    Lost,
}

impl Op {
    fn lane(self) -> Option<LaneId> {
        match self {
            Self::Dispatched(lane) | Self::Running(lane, _) => Some(lane),
            _ => None,
        }
    }
}

/// Every pair of states of which the second may follow the first within one delta.
pub fn is_legal(from: StoredState, to: StoredState) -> bool {
    use StoredState::{Cancelled, Dispatched, Done, Failed, Lost, Pending, Running};
    let next: &[StoredState] = match from {
        Pending => &[Dispatched, Cancelled, Lost],
        Dispatched => &[Running, Done, Pending, Failed, Lost],
        Running => &[Done, Pending, Failed, Lost],
        Done => &[Pending, Lost],
        Lost => &[Cancelled],
        Failed | Cancelled => &[],
    };
    from == to || next.contains(&to)
}

#[derive(Debug)]
struct Job {
    spec: JobSpec,
    ops: Vec<Op>,
    /// Offset and length, once reserved.
    arena: Option<(DeviceId, u64, u64)>,
    batch_on: Option<DeviceId>,
    waits: Vec<JobId>,
}

impl Job {
    fn all(&self, op: impl Fn(Op) -> bool) -> bool {
        self.ops.iter().all(|&state| op(state))
    }
    fn any(&self, op: impl Fn(Op) -> bool) -> bool {
        self.ops.iter().any(|&state| op(state))
    }
    fn is_done(&self) -> bool {
        self.all(|op| matches!(op, Op::Done(_)))
    }
    fn is_broken(&self) -> bool {
        self.any(|op| matches!(op, Op::Failed | Op::Cancelled | Op::Lost))
    }
    fn on_lane(&self) -> bool {
        self.any(|op| op.lane().is_some())
    }
    fn requests(&self) -> BTreeSet<RequestId> {
        self.spec.rows.iter().map(|row| row.request).chain(self.spec.growth.iter().map(|grown| grown.request)).collect()
    }
}

#[derive(Debug)]
struct Request {
    state: RequestState,
    device: Option<DeviceId>,
    produced: u32,
}

/// One past the last operator; offset and length; state; what has arrived.
type Part = (u32, (u64, u64), WeightState, u64);

#[derive(Debug)]
struct Device {
    layout: DeviceLayout,
    weights: BTreeMap<ModelId, (u64, u64, WeightState)>,
    /// What has arrived of whole models.
    loaded: BTreeMap<ModelId, u64>,
    /// By model and first operator.
    parts: BTreeMap<(ModelId, u32), Part>,
    staging: BTreeMap<TransferId, (u64, u64)>,
    kv: BTreeMap<RequestId, u32>,
    external: u64,
    lost: bool,
    owned: bool,
}

#[derive(Debug)]
pub struct Reference {
    version: u64,
    tenants: Vec<String>,
    /// Bytes of weights, and the operators.
    models: Vec<(u64, Arc<OpGraph>)>,
    requests: BTreeMap<RequestId, Request>,
    next_request: u64,
    jobs: BTreeMap<JobId, Job>,
    slots: Vec<u32>,
    free_slots: Vec<u32>,
    lanes: BTreeMap<LaneId, Vec<(JobId, u32, Rank)>>,
    failed_links: Vec<bool>,
    devices: Vec<Device>,
}

/// What the rules say about a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Refused,
    Applied,
    Diverged,
}

fn align(bytes: u64) -> u64 {
    bytes.div_ceil(256) * 256
}

/// The start of the smallest gap that holds `length` bytes, the lowest among equals.
fn best_fit(range: Range<u64>, taken: impl Iterator<Item = (u64, u64)>, length: u64) -> Option<u64> {
    if length == 0 {
        return Some(range.start);
    }
    let mut taken: Vec<_> = taken.filter(|&(_, length)| length > 0).collect();
    taken.sort_unstable();
    taken.push((range.end, 0));
    let mut gaps = Vec::new();
    let mut from = range.start;
    for (offset, length) in taken {
        gaps.push((offset - from, from));
        from = offset + length;
    }
    gaps.into_iter().filter(|&(gap, _)| gap >= length).min().map(|(_, start)| start)
}

impl Device {
    fn weight_slot(&self, bytes: u64) -> Option<u64> {
        let whole = self.weights.values().map(|&(offset, length, _)| (offset, length));
        let taken = whole.chain(self.parts.values().map(|&(_, place, _, _)| place));
        best_fit(0..self.layout.weights.get(), taken, align(bytes))
    }
    fn staging_slot(&self, bytes: u64) -> Option<u64> {
        let start = (self.layout.weights + self.layout.arena).get();
        let end = (start + self.layout.staging.get()) / 256 * 256;
        best_fit(align(start)..end.max(align(start)), self.staging.values().copied(), align(bytes))
    }
    fn free_blocks(&self) -> u32 {
        self.layout.kv_blocks() - self.kv.values().sum::<u32>()
    }
    /// True if every one of these operators finds its weights.
    fn has_ops(&self, model: ModelId, mut ops: Range<u32>) -> bool {
        let holds = |op: u32| {
            let parts = self.parts.iter().filter(|((of, _), _)| *of == model);
            let mut resident = parts.filter(|(_, (_, _, state, _))| *state == WeightState::Resident);
            resident.any(|(&(_, first), &(end, ..))| (first..end).contains(&op))
        };
        self.has(model) || (!self.weights.contains_key(&model) && ops.all(holds))
    }
    fn overlaps(&self, model: ModelId, ops: &Range<u32>) -> bool {
        let mut parts = self.parts.iter().filter(|((of, _), _)| *of == model);
        self.weights.contains_key(&model) || parts.any(|(&(_, first), &(end, ..))| first < ops.end && ops.start < end)
    }
    fn has(&self, model: ModelId) -> bool {
        self.weights.get(&model).is_some_and(|&(_, _, state)| state == WeightState::Resident)
    }
    fn is_empty(&self) -> bool {
        let staged = self.staging.values().any(|&(_, length)| length > 0);
        !staged
            && self.kv.is_empty()
            && self.external == 0
            && self.weights.values().all(|&(_, length, _)| length == 0)
            && self.parts.values().all(|&(_, (_, length), _, _)| length == 0)
    }
}

impl Reference {
    /// The graph of [`super::gmg`], read from it once.
    pub fn of(view: &impl GmgView) -> Self {
        let mut devices = Vec::new();
        for id in (0..DEVICES).map(DeviceId) {
            let memory = view.memory(id).unwrap();
            let region = |model| memory.weight_region(model).unwrap();
            let weights = memory
                .models()
                .map(|(model, state)| (model, (region(model).offset.get(), region(model).bytes.get(), state)));
            devices.push(Device {
                layout: *memory.layout(),
                weights: weights.collect(),
                loaded: BTreeMap::new(),
                parts: BTreeMap::new(),
                staging: BTreeMap::new(),
                kv: BTreeMap::new(),
                external: 0,
                lost: false,
                owned: view.container_of(id).is_some(),
            });
        }
        Self {
            version: view.version().0,
            tenants: view.tenants().iter().map(|tenant| tenant.name.to_string()).collect(),
            models: view.models().iter().map(|model| (model.weights.get(), model.template.clone())).collect(),
            requests: BTreeMap::new(),
            next_request: 0,
            jobs: BTreeMap::new(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            failed_links: vec![false; view.cluster().links().len()],
            lanes: view.cluster().lanes().map(|lane| (lane, Vec::new())).collect(),
            devices,
        }
    }

    pub fn apply(&mut self, delta: &Delta) -> Verdict {
        let verdict = match delta {
            Delta::Intent(intent) => match self.intend(intent) {
                Some(()) => Verdict::Applied,
                None => return Verdict::Refused,
            },
            Delta::Observed(event) if self.observe(event) => Verdict::Applied,
            Delta::Observed(_) => Verdict::Diverged,
        };
        self.version += 1;
        verdict
    }

    fn device(&self, id: DeviceId) -> Option<&Device> {
        self.devices.get(id.index())
    }

    fn usable(&self, id: DeviceId) -> Option<&Device> {
        self.device(id).filter(|device| !device.lost)
    }

    fn arena_slot(&self, id: DeviceId, bytes: u64) -> Option<u64> {
        let layout = self.device(id)?.layout;
        let start = align(layout.weights.get());
        let end = (layout.weights + layout.arena).get() / 256 * 256;
        let taken = self.jobs.values().filter_map(|job| job.arena).filter(|&(on, _, _)| on == id);
        best_fit(start..end.max(start), taken.map(|(_, offset, length)| (offset, length)), align(bytes))
    }

    /// A kibibyte for every weight of these operators, if the model has them.
    fn ops_bytes(&self, model: ModelId, ops: &Range<u32>) -> Option<u64> {
        let (_, template) = self.models.get(model.index())?;
        if ops.is_empty() || ops.end > template.op_count() {
            return None;
        }
        let weights = |op: u32| template.op(OpIndex(op)).map_or(0, |op| op.weights().count() as u64);
        Some(ops.clone().map(weights).sum::<u64>() * 1024)
    }

    fn check_job(&self, spec: &JobSpec) -> Option<(u64, Arc<OpGraph>)> {
        let model = self.models.get(spec.model.index())?.clone();
        spec.binding.is_bound(TOKENS).then_some(model)
    }

    // `None` is a refusal; nothing is changed before the last check.
    fn intend(&mut self, intent: &Intent) -> Option<()> {
        match intent {
            Intent::LayOut { device, layout } => {
                let target = self.usable(*device)?;
                let arenas = self.jobs.values().filter_map(|job| job.arena);
                let in_use = arenas.into_iter().any(|(on, _, length)| on == *device && length > 0);
                let needed = layout.weights.get() + layout.arena.get() + layout.staging.get();
                if !target.is_empty() || in_use || needed > layout.usable.get() || layout.usable > Bytes::kib(64) {
                    return None;
                }
                let target = &mut self.devices[device.index()];
                target.layout = *layout;
                target.weights.clear();
                target.parts.clear();
                target.loaded.clear();
                target.staging.clear();
            }
            Intent::AddTenant(tenant) => {
                if self.tenants.iter().any(|name| **name == *tenant.name) {
                    return None;
                }
                self.tenants.push(tenant.name.to_string());
            }
            Intent::AddModel { tenant, model, container } => {
                self.tenants.get(tenant.index())?;
                if container.devices.is_empty() {
                    return None;
                }
                for &device in &container.devices {
                    let device = self.usable(device)?;
                    if device.owned {
                        return None;
                    }
                    device.weight_slot(model.weights.get())?;
                }
                let id = ModelId(self.models.len() as u32);
                for &device in &container.devices {
                    let device = &mut self.devices[device.index()];
                    let offset = device.weight_slot(model.weights.get())?;
                    device.weights.insert(id, (offset, align(model.weights.get()), WeightState::Resident));
                    device.owned = true;
                }
                self.models.push((model.weights.get(), model.template.clone()));
            }
            Intent::Submit(request) => {
                self.tenants.get(request.tenant.index())?;
                let new = Request { state: RequestState::Waiting, device: None, produced: 0 };
                self.requests.insert(RequestId(self.next_request), new);
                self.next_request += 1;
            }
            Intent::SubmitJob(spec) => {
                let (_, template) = self.check_job(spec)?;
                if spec.after.iter().any(|id| self.jobs.get(id).is_some_and(Job::is_broken)) {
                    return None;
                }
                let unfinished = |id: &JobId| self.jobs.get(id).is_some_and(|job| !job.is_done());
                let waits = spec.after.iter().copied().filter(unfinished).collect();
                let ops = vec![Op::Pending; template.op_count() as usize];
                let job = Job { spec: (**spec).clone(), ops, arena: None, batch_on: None, waits };
                let slot = self.free_slots.pop().unwrap_or_else(|| {
                    self.slots.push(0);
                    self.slots.len() as u32 - 1
                });
                self.jobs.insert(JobId { slot, generation: self.slots[slot as usize] }, job);
            }
            Intent::Dispatch { job, ops, lane, rank } => self.dispatch(*job, ops.clone(), *lane, *rank)?,
            Intent::Cancel { job: id } => {
                let job = self.jobs.get_mut(id)?;
                for op in &mut job.ops {
                    if matches!(op, Op::Pending | Op::Lost) {
                        *op = Op::Cancelled;
                    }
                }
                if !job.on_lane() {
                    job.arena = None;
                }
                self.sever(*id);
            }
            Intent::Retire { job: id } => {
                let job = self.jobs.get(id)?;
                if job.any(|op| op == Op::Pending) || job.on_lane() {
                    return None;
                }
                self.jobs.remove(id);
                self.slots[id.slot as usize] += 1;
                self.free_slots.push(id.slot);
            }
            Intent::RetireRequest { request } => {
                self.requests.get(request)?;
                if self.in_use(*request) {
                    return None;
                }
                self.requests.remove(request);
                self.forget_blocks(*request);
            }
            Intent::Reject { request } => {
                let request = self.requests.get_mut(request)?;
                if request.state != RequestState::Waiting {
                    return None;
                }
                request.state = RequestState::Rejected;
            }
            Intent::ReleaseKv { request: id, device } => {
                self.device(*device)?;
                let request = self.requests.get(id).filter(|request| !request.state.is_final())?;
                if request.device.is_some_and(|on| on != *device) || self.in_use(*id) {
                    return None;
                }
                self.forget_sequence(*id);
            }
            Intent::LoadWeights { model, device, source } => {
                let bytes = self.models.get(model.index())?.0;
                let target = self.usable(*device)?;
                if target.overlaps(*model, &(0..u32::MAX)) {
                    return None;
                }
                let offset = target.weight_slot(bytes)?;
                if let Source::Device(from) = source
                    && !self.usable(*from)?.has(*model)
                {
                    return None;
                }
                let slot = (offset, align(bytes), WeightState::Loading);
                self.devices[device.index()].weights.insert(*model, slot);
            }
            Intent::EvictWeights { model, device } => {
                let uses = |(id, _, _): &(JobId, u32, Rank)| self.jobs[id].spec.model == *model;
                let in_use = |(lane, queue): (&LaneId, &Vec<_>)| lane.device == *device && queue.iter().any(uses);
                if !self.usable(*device)?.has(*model) || self.lanes.iter().any(in_use) {
                    return None;
                }
                self.devices[device.index()].weights.remove(model);
            }
            Intent::DrainWeights { model, device } => {
                self.models.get(model.index())?;
                if !self.usable(*device)?.has(*model) {
                    return None;
                }
                self.devices[device.index()].weights.get_mut(model)?.2 = WeightState::Evicting;
            }
            Intent::LoadOps { model, ops, device, source } => {
                let bytes = self.ops_bytes(*model, ops)?;
                let target = self.usable(*device)?;
                if target.overlaps(*model, ops) {
                    return None;
                }
                let offset = target.weight_slot(bytes)?;
                if let Source::Device(from) = source
                    && !self.usable(*from)?.has_ops(*model, ops.clone())
                {
                    return None;
                }
                let part = (ops.end, (offset, align(bytes)), WeightState::Loading, 0);
                self.devices[device.index()].parts.insert((*model, ops.start), part);
            }
            Intent::EvictOps { model, ops, device } => {
                self.ops_bytes(*model, ops)?;
                let &(end, _, state, _) = self.usable(*device)?.parts.get(&(*model, ops.start))?;
                let uses = |(id, op, _): &(JobId, u32, Rank)| self.jobs[id].spec.model == *model && ops.contains(op);
                let in_use = |(lane, queue): (&LaneId, &Vec<_>)| lane.device == *device && queue.iter().any(uses);
                if end != ops.end || state == WeightState::Loading || self.lanes.iter().any(in_use) {
                    return None;
                }
                self.devices[device.index()].parts.remove(&(*model, ops.start));
            }
            Intent::ReserveStaging { transfer, device, bytes } => {
                let target = self.usable(*device)?;
                if target.staging.contains_key(transfer) {
                    return None;
                }
                let slot = (target.staging_slot(bytes.get())?, align(bytes.get()));
                self.devices[device.index()].staging.insert(*transfer, slot);
            }
            Intent::ReleaseStaging { transfer, device } => {
                self.device(*device)?.staging.get(transfer)?;
                self.devices[device.index()].staging.remove(transfer);
            }
            Intent::ReserveExternal { device, bytes } => {
                self.usable(*device)?;
                let device = &mut self.devices[device.index()];
                device.external = device.external.saturating_add(bytes.get());
            }
            Intent::ReleaseExternal { device, bytes } => {
                self.device(*device)?;
                let device = &mut self.devices[device.index()];
                device.external = device.external.saturating_sub(bytes.get());
            }
            Intent::ReturnDevice { device } => {
                self.device(*device)?;
                self.devices[device.index()].lost = false;
            }
            other => unreachable!("the streams have no {other:?}"),
        }
        Some(())
    }

    fn dispatch(&mut self, id: JobId, ops: Range<u32>, lane: LaneId, rank: Rank) -> Option<()> {
        let job = self.jobs.get(&id)?;
        let device = self.usable(lane.device).filter(|_| lane.index < LANES)?;
        let (bytes, template) = self.check_job(&job.spec)?;
        if ops.is_empty() || ops.end > template.op_count() || !job.waits.is_empty() {
            return None;
        }
        for op in ops.clone() {
            if job.ops[op as usize] != Op::Pending {
                return None;
            }
        }
        for op in 0..ops.start {
            let state = job.ops[op as usize];
            if !matches!(state, Op::Done(_)) && state.lane() != Some(lane) {
                return None;
            }
        }
        let queued_lower = |&(other, op, with): &(JobId, u32, Rank)| other == id && op < ops.start && with < rank;
        if job.on_lane() && self.lanes[&lane].iter().any(queued_lower) {
            return None;
        }
        if bytes > 0 && !device.has_ops(job.spec.model, ops.clone()) {
            return None;
        }
        let arena = match job.arena {
            Some((on, _, _)) if on != lane.device => return None,
            Some(_) => None,
            None => {
                let bytes = template.activation_bytes(&job.spec.binding).get();
                Some((lane.device, self.arena_slot(lane.device, bytes)?, align(bytes)))
            }
        };
        if !job.on_lane() {
            for request in job.requests() {
                let request = self.requests.get(&request).filter(|request| !request.state.is_final())?;
                let as_before = match job.batch_on {
                    Some(on) => request.device == Some(on) && on == lane.device,
                    None => request.device.is_none_or(|on| on == lane.device),
                };
                if !as_before {
                    return None;
                }
            }
        }
        let first = job.batch_on.is_none();
        let wanted: u32 = job.spec.growth.iter().map(|growth| growth.blocks).sum();
        if first && job.arena.is_none() && wanted > device.free_blocks() {
            return None;
        }
        if arena.is_some() && first && !job.requests().is_empty() {
            for id in job.requests() {
                let request = self.requests.get_mut(&id)?;
                request.state = RequestState::Running;
                request.device = Some(lane.device);
                self.devices[lane.device.index()].kv.entry(id).or_default();
            }
            for growth in &job.spec.growth {
                *self.devices[lane.device.index()].kv.entry(growth.request).or_default() += growth.blocks;
            }
        }
        let job = self.jobs.get_mut(&id)?;
        if arena.is_some() {
            job.arena = arena;
            if first && !job.requests().is_empty() {
                job.batch_on = Some(lane.device);
            }
        }
        let queue = self.lanes.get_mut(&lane)?;
        let mut at = 0;
        while at < queue.len() && queue[at].2 >= rank {
            at += 1;
        }
        for (nth, op) in ops.enumerate() {
            queue.insert(at + nth, (id, op, rank));
            job.ops[op as usize] = Op::Dispatched(lane);
        }
        Some(())
    }

    /// What comes after a job that will never be done is cancelled.
    fn sever(&mut self, id: JobId) {
        if !self.jobs[&id].is_broken() {
            return;
        }
        let waiting: Vec<_> = self.jobs.iter().filter(|(_, job)| job.waits.contains(&id)).map(|(&id, _)| id).collect();
        for id in waiting {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let pending = job.any(|op| op == Op::Pending);
            job.ops.iter_mut().filter(|op| **op == Op::Pending).for_each(|op| *op = Op::Cancelled);
            if pending {
                self.sever(id);
            }
        }
    }

    fn in_use(&self, request: RequestId) -> bool {
        let uses = |(id, _, _): &(JobId, u32, Rank)| self.jobs[id].requests().contains(&request);
        let device = self.requests[&request].device;
        self.lanes.iter().any(|(lane, queue)| Some(lane.device) == device && queue.iter().any(uses))
    }

    fn forget_blocks(&mut self, id: RequestId) {
        for device in &mut self.devices {
            device.kv.remove(&id);
        }
    }

    fn forget_sequence(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.state = RequestState::Waiting;
            request.device = None;
        }
        self.forget_blocks(id);
    }
}
