//! The rules of the graph once more, as plainly as possible: one state per operator, one queue entry
//! per operator, memory as lists of intervals. Of the graph's code it uses ids, values and templates only.

mod compare;
mod gangs;
mod models;
mod observe;
mod pool;
mod prefixes;
mod resync;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, RequestId, TenantId, TransferId};
use slicescheduler_gmg::job::{JobSpec, StoredState};
use slicescheduler_gmg::memory::{DeviceLayout, WeightState};
use slicescheduler_gmg::plan::{Rank, Source};
use slicescheduler_gmg::request::RequestState;
use slicescheduler_gmg::tenant::Slo;
use slicescheduler_gmg::units::Bytes;
use slicescheduler_gmg::{Delta, GmgView, Intent};

use self::gangs::Gang;
use self::models::Model;
use self::pool::Pool;
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
        // What comes back to a job of a broken gang is cancelled at once.
        Dispatched => &[Running, Done, Pending, Failed, Lost, Cancelled],
        Running => &[Done, Pending, Failed, Lost, Cancelled],
        Done => &[Pending, Lost, Cancelled],
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
    /// Which of the gangs.
    gang: Option<usize>,
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
    tenant: TenantId,
    state: RequestState,
    device: Option<DeviceId>,
    /// Where the other ranks of a gang have their parts of the sequence.
    parts: Vec<DeviceId>,
    produced: u32,
    slo: Option<Slo>,
}

impl Request {
    fn has_part(&self, device: DeviceId) -> bool {
        self.device == Some(device) || self.parts.contains(&device)
    }
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
    kv: Pool,
    external: u64,
    lost: bool,
    owner: Option<TenantId>,
}

#[derive(Debug)]
pub struct Reference {
    version: u64,
    tenants: Vec<String>,
    /// By tenant.
    levels: Vec<Option<Slo>>,
    models: Vec<Model>,
    /// Their devices; true for a pipeline.
    containers: Vec<(Vec<DeviceId>, bool)>,
    gangs: Vec<Gang>,
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
            && self.kv.tables.is_empty()
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
                kv: Pool::new(memory.layout().kv_blocks(), view.owner(id)),
                external: 0,
                lost: false,
                owner: view.owner(id),
            });
        }
        Self {
            version: view.version().0,
            tenants: view.tenants().iter().map(|tenant| tenant.name.to_string()).collect(),
            levels: view.tenants().iter().map(|tenant| tenant.slo).collect(),
            models: view.models().iter().map(|model| Model::of(model, model.tenant())).collect(),
            containers: view.containers().iter().map(|container| (container.devices.clone(), false)).collect(),
            gangs: Vec::new(),
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
                target.kv = Pool::new(layout.kv_blocks(), target.owner);
            }
            Intent::AddTenant(tenant) => {
                if self.tenants.iter().any(|name| **name == *tenant.name) {
                    return None;
                }
                self.tenants.push(tenant.name.to_string());
                self.levels.push(tenant.slo);
            }
            Intent::AddModel { tenant, model, container } => self.add_model(*tenant, model, container)?,
            Intent::AddPipeline { tenant, stages, container } => self.add_pipeline(*tenant, stages, container)?,
            Intent::ShareContainer { tenant, model, container } => self.share_container(*tenant, model, *container)?,
            Intent::Submit(request) => {
                self.tenants.get(request.tenant.index())?;
                let (tenant, state) = (request.tenant, RequestState::Waiting);
                let slo = self.levels.get(request.tenant.index()).copied().flatten();
                let new = Request { tenant, state, device: None, parts: vec![], produced: 0, slo };
                self.requests.insert(RequestId(self.next_request), new);
                self.next_request += 1;
            }
            Intent::SetSlo { request, slo } => {
                let request = self.requests.get_mut(request).filter(|request| !request.state.is_final())?;
                request.slo = request.slo.and(Some(*slo));
                request.slo?;
            }
            Intent::SubmitJob(spec) => {
                self.check_job(spec).filter(|_| spec.gang.is_none())?;
                self.enter_job(spec, None);
            }
            Intent::SubmitGang(specs) => self.submit_gang(specs)?,
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
                self.forget_blocks(*request);
                self.requests.remove(request);
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
                // A job there that has none of its blocks yet uses it all the same.
                if request.device.is_some_and(|on| on != *device) || self.in_use(*id) || self.runs_on(*id, *device) {
                    return None;
                }
                self.forget_sequence(*id);
            }
            Intent::LoadWeights { model, device, source } => {
                let bytes = self.models.get(model.index())?.weights;
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
                self.device(*device).filter(|found| bytes.get() <= found.external)?;
                self.devices[device.index()].external -= bytes.get();
            }
            Intent::ReturnDevice { device } => {
                self.device(*device).filter(|found| found.lost)?;
                self.devices[device.index()].lost = false;
            }
            other => self.intend_sharing(other)?,
        }
        Some(())
    }

    fn dispatch(&mut self, id: JobId, ops: Range<u32>, lane: LaneId, rank: Rank) -> Option<()> {
        let job = self.jobs.get(&id)?;
        let device = self.usable(lane.device).filter(|_| lane.index < LANES)?;
        let Model { weights: bytes, template, tenant } = self.models.get(job.spec.model.index())?.clone();
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
                    Some(on) => request.has_part(on) && on == lane.device,
                    None => self.may_hold(job, request, lane.device),
                };
                if !as_before {
                    return None;
                }
            }
        }
        let first = job.batch_on.is_none();
        let wanted: u32 = job.spec.growth.iter().map(|growth| growth.blocks).sum();
        if first && job.arena.is_none() && wanted as usize > device.kv.queue.len() {
            return None;
        }
        if arena.is_some() && first && !job.requests().is_empty() {
            let (requests, growth) = (job.requests(), job.spec.growth.clone());
            let pool = &mut self.devices[lane.device.index()].kv;
            for id in requests {
                let request = self.requests.get_mut(&id)?;
                request.state = RequestState::Running;
                if *request.device.get_or_insert(lane.device) != lane.device && !request.has_part(lane.device) {
                    request.parts.push(lane.device);
                }
                pool.grow(id, tenant, 0);
            }
            growth.iter().for_each(|growth| pool.grow(growth.request, tenant, growth.blocks));
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

    fn in_use(&self, request: RequestId) -> bool {
        (0..self.devices.len() as u32)
            .map(DeviceId)
            .any(|device| self.requests[&request].has_part(device) && self.runs_on(request, device))
    }

    fn runs_on(&self, request: RequestId, device: DeviceId) -> bool {
        let uses = |(id, _, _): &(JobId, u32, Rank)| self.jobs[id].requests().contains(&request);
        self.lanes.iter().any(|(lane, queue)| lane.device == device && queue.iter().any(uses))
    }

    fn forget_blocks(&mut self, id: RequestId) {
        for device in &mut self.devices {
            device.kv.release(id);
        }
        if let Some(request) = self.requests.get_mut(&id) {
            request.parts.clear();
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
