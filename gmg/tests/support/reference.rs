//! The rules of the graph once more, as plainly as possible: one state per operator, one queue entry
//! per operator, memory as lists of intervals. It shares no code with the graph.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, OpIndex, RequestId};
use slicescheduler_gmg::job::{JobSpec, OpState, StoredState};
use slicescheduler_gmg::memory::{ByteKind, DeviceLayout, WeightState};
use slicescheduler_gmg::plan::{Ended, Event, Fate, Rank, Source};
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

#[derive(Debug)]
struct Device {
    layout: DeviceLayout,
    weights: BTreeMap<ModelId, (u64, u64, WeightState)>,
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
        let taken = self.weights.values().map(|&(offset, length, _)| (offset, length));
        best_fit(0..self.layout.weights.get(), taken, align(bytes))
    }
    fn free_blocks(&self) -> u32 {
        self.layout.kv_blocks() - self.kv.values().sum::<u32>()
    }
    fn has(&self, model: ModelId) -> bool {
        self.weights.get(&model).is_some_and(|&(_, _, state)| state == WeightState::Resident)
    }
    fn is_empty(&self) -> bool {
        self.kv.is_empty() && self.external == 0 && self.weights.values().all(|&(_, length, _)| length == 0)
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
            Intent::Cancel { job } => {
                let job = self.jobs.get_mut(job)?;
                for op in &mut job.ops {
                    if matches!(op, Op::Pending | Op::Lost) {
                        *op = Op::Cancelled;
                    }
                }
                if !job.on_lane() {
                    job.arena = None;
                }
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
                if target.weights.contains_key(model) {
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
        if bytes > 0 && !device.has(job.spec.model) {
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

    /// False if the event contradicts the graph.
    fn observe(&mut self, event: &Event) -> bool {
        match event {
            Event::Started { job, at } => {
                let Some(job) = self.jobs.get_mut(job) else { return false };
                let Some(first) = job.ops.iter().position(|op| matches!(op, Op::Dispatched(_))) else { return false };
                let lane = job.ops[first].lane();
                for op in &mut job.ops[first..] {
                    match *op {
                        Op::Dispatched(on) if Some(on) == lane => *op = Op::Running(on, at.0),
                        _ => break,
                    }
                }
                true
            }
            Event::Finished { job, ops, lane, started, ended, .. } => {
                let expected = self.leave(*job, ops.clone(), *lane, Op::Done(started.0)) && !ops.is_empty();
                self.complete(*job);
                self.end(ended) && expected
            }
            Event::Recalled { job: id, lane, done, end, fate, started, .. } => {
                let Some(job) = self.jobs.get(id) else { return false };
                let count = job.ops.len() as u32;
                let named = done.start..(*end).min(count);
                let was_on_lane = named.clone().any(|op| job.ops[op as usize].lane().is_some());
                let mut expected = done.start <= done.end && done.end <= *end && done.start < *end;
                if !done.is_empty() {
                    expected &= self.leave(*id, done.clone(), *lane, Op::Done(started.0));
                }
                if done.end < *end {
                    expected &= self.leave(*id, done.end..*end, *lane, Op::Pending);
                }
                self.complete(*id);
                if let Some(job) = self.jobs.get_mut(id)
                    && *fate == Fate::Drop
                    && was_on_lane
                    && !job.is_done()
                    && !job.on_lane()
                {
                    job.arena = None;
                    for op in &mut job.ops {
                        if matches!(op, Op::Done(_)) {
                            *op = Op::Pending;
                        }
                    }
                }
                expected
            }
            Event::Failed { job: id, lane, .. } => {
                let Some(job) = self.jobs.get_mut(id) else { return false };
                let mut expected = job.on_lane();
                for op in &mut job.ops {
                    match op {
                        Op::Pending => *op = Op::Cancelled,
                        Op::Dispatched(on) | Op::Running(on, _) => {
                            expected &= on == lane;
                            *op = Op::Failed;
                        }
                        _ => {}
                    }
                }
                job.arena = None;
                self.lanes.values_mut().for_each(|queue| queue.retain(|(job, _, _)| job != id));
                expected
            }
            Event::WeightsLoaded { model, device, .. } => {
                let device = self.devices.get_mut(device.index());
                match device.and_then(|device| device.weights.get_mut(model)) {
                    Some((_, _, state)) if *state == WeightState::Loading => {
                        *state = WeightState::Resident;
                        true
                    }
                    _ => false,
                }
            }
            Event::DeviceLost { device, .. } => self.lose(*device),
            _ => true,
        }
    }

    /// Every operator of `ops` that is on a lane becomes `next`. False if not all were on `lane`.
    fn leave(&mut self, id: JobId, ops: Range<u32>, lane: LaneId, next: Op) -> bool {
        let Some(job) = self.jobs.get_mut(&id) else { return false };
        let mut expected = ops.end as usize <= job.ops.len() && ops.start <= ops.end;
        for op in ops {
            let Some(state) = job.ops.get_mut(op as usize) else { break };
            match state.lane() {
                Some(on) => {
                    expected &= on == lane;
                    *state = next;
                    self.lanes.get_mut(&on).unwrap().retain(|&(job, other, _)| job != id || op != other);
                }
                None => expected = false,
            }
        }
        expected
    }

    fn complete(&mut self, id: JobId) {
        if self.jobs.get(&id).is_some_and(Job::is_done) {
            self.jobs.values_mut().for_each(|job| job.waits.retain(|&other| other != id));
            self.jobs.get_mut(&id).unwrap().arena = None;
        }
    }

    fn end(&mut self, ended: &[Ended]) -> bool {
        let mut expected = true;
        for &Ended { request: id, produced } in ended {
            match self.requests.get_mut(&id).filter(|request| request.state == RequestState::Running) {
                Some(request) => {
                    request.state = RequestState::Done;
                    request.device = None;
                    request.produced = produced;
                    self.forget_blocks(id);
                }
                None => expected = false,
            }
        }
        expected
    }

    fn lose(&mut self, id: DeviceId) -> bool {
        let Some(device) = self.devices.get_mut(id.index()) else { return false };
        device.lost = true;
        device.weights.clear();
        device.external = 0;
        let sequences: Vec<_> = device.kv.keys().copied().collect();
        sequences.into_iter().for_each(|request| self.forget_sequence(request));
        for job in self.jobs.values_mut() {
            let arena = job.arena.is_some_and(|(on, _, _)| on == id);
            if arena || (job.batch_on == Some(id) && job.any(|op| op == Op::Pending)) {
                job.arena = None;
                for op in &mut job.ops {
                    if !matches!(op, Op::Failed | Op::Cancelled) {
                        *op = Op::Lost;
                    }
                }
            }
        }
        self.lanes.iter_mut().filter(|(lane, _)| lane.device == id).for_each(|(_, queue)| queue.clear());
        true
    }
}

// Comparing.
impl Reference {
    /// Panics where `view` says something else than the rules.
    pub fn assert_equals(&self, view: &impl GmgView) {
        assert_eq!(view.version().0, self.version);
        let mut ids = Vec::new();
        view.jobs(&mut ids);
        assert_eq!(ids, self.jobs.keys().copied().collect::<Vec<_>>());
        for (&id, job) in &self.jobs {
            self.assert_job(id, job, view);
        }
        for id in (0..self.next_request).map(RequestId) {
            let found = view.request(id).map(|request| (request.state, request.device, request.produced));
            let expected = self.requests.get(&id).map(|request| (request.state, request.device, request.produced));
            assert_eq!(found, expected, "{id}");
        }
        for (&lane, expected) in &self.lanes {
            let queue = view.lane(lane).unwrap().queue();
            let ops = queue.iter().flat_map(|entry| entry.ops.clone().map(|op| (entry.job, op, entry.rank)));
            assert_eq!(ops.collect::<Vec<_>>(), *expected, "{lane}");
            assert!(queue.iter().all(|entry| !entry.ops.is_empty()), "{lane}");
        }
        for (device, expected) in (0..).map(DeviceId).zip(&self.devices) {
            self.assert_device(device, expected, view);
        }
    }

    fn assert_job(&self, id: JobId, expected: &Job, view: &impl GmgView) {
        let job = view.job(id).unwrap();
        let mut next = 0;
        for segment in job.segments.iter() {
            assert!(segment.first == next && segment.end > segment.first, "{id}: {:?}", job.segments);
            next = segment.end;
        }
        assert_eq!(next as usize, expected.ops.len(), "{id}");
        for (index, &op) in expected.ops.iter().enumerate() {
            let index = OpIndex(index as u32);
            let segment = job.segments.at(index.0).unwrap();
            let found = (segment.state, segment.lane.filter(|_| segment.state.is_on_lane()));
            let done = |op: OpIndex| matches!(expected.ops[op.index()], Op::Done(_));
            let ready = || expected.waits.is_empty() && job.template.predecessors(index).all(done);
            let (state, shown) = match op {
                Op::Pending => (StoredState::Pending, if ready() { OpState::Ready } else { OpState::Blocked }),
                Op::Dispatched(_) => (StoredState::Dispatched, OpState::Dispatched),
                Op::Running(..) => (StoredState::Running, OpState::Running),
                Op::Done(_) => (StoredState::Done, OpState::Done),
                Op::Failed => (StoredState::Failed, OpState::Failed),
                Op::Cancelled => (StoredState::Cancelled, OpState::Cancelled),
                Op::Lost => (StoredState::Lost, OpState::Lost),
            };
            assert_eq!(found, (state, op.lane()), "{index} of {id}");
            assert_eq!(job.op_state(index), Some(shown), "{index} of {id}");
            if let Op::Running(_, start) | Op::Done(start) = op {
                assert_eq!(segment.start.0, start, "{index} of {id}");
            }
        }
        let arena = job.arena.map(|(on, region)| (on, region.offset.get(), region.bytes.get()));
        assert_eq!(arena, expected.arena, "{id}");
        assert_eq!(job.kv_on, expected.batch_on, "{id}");
        assert_eq!(job.waiting_for as usize, expected.waits.len(), "{id}");
    }

    fn assert_device(&self, id: DeviceId, expected: &Device, view: &impl GmgView) {
        let memory = view.memory(id).unwrap();
        assert_eq!(view.is_lost(id), expected.lost, "{id}");
        assert_eq!(view.container_of(id).is_some(), expected.owned, "{id}");
        assert_eq!(*memory.layout(), expected.layout, "{id}");
        let weights = memory.models().map(|(model, state)| {
            let region = memory.weight_region(model).unwrap();
            (model, (region.offset.get(), region.bytes.get(), state))
        });
        assert_eq!(weights.collect::<BTreeMap<_, _>>(), expected.weights, "{id}");

        let arenas = self.jobs.values().filter_map(|job| job.arena).filter(|&(on, _, _)| on == id);
        let arenas: Vec<_> =
            arenas.map(|(_, offset, length)| (offset, length)).filter(|&(_, length)| length > 0).collect();
        let weights: Vec<_> = expected.weights.values().map(|&(offset, length, _)| (offset, length)).collect();
        let mut regions: Vec<_> = arenas.iter().chain(&weights).copied().filter(|&(_, length)| length > 0).collect();
        regions.sort_unstable();
        assert!(regions.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{id}: {regions:?}");
        let kv_from = expected.layout.kv_offset().get();
        assert!(regions.iter().all(|&(offset, length)| offset + length <= kv_from), "{id}: {regions:?}");

        let mut blocks = BTreeSet::new();
        assert_eq!(memory.kv().sequences(), expected.kv.keys().copied().collect::<Vec<_>>(), "{id}");
        for (&request, &count) in &expected.kv {
            let table = memory.kv().table(request);
            assert_eq!(table.len() as u32, count, "{id}, {request}");
            assert!(
                table.iter().all(|&block| block < memory.kv().total() && blocks.insert(block)),
                "{id}: shared block"
            );
        }
        assert_eq!(memory.kv().free_blocks(), expected.free_blocks(), "{id}");

        let sum = |regions: &[(u64, u64)]| regions.iter().map(|&(_, length)| length).sum::<u64>();
        let kv = expected.layout.kv_block.get() * blocks.len() as u64;
        let by_kind = [
            (ByteKind::Weights, sum(&weights)),
            (ByteKind::Kv, kv),
            (ByteKind::Activations, sum(&arenas)),
            (ByteKind::Staging, 0),
            (ByteKind::External, expected.external),
        ];
        for (kind, bytes) in by_kind {
            assert_eq!(memory.ledger().of(kind).get(), bytes, "{id}, {}", kind.name());
            assert!(memory.ledger().peak_of(kind).get() >= bytes, "{id}, {}", kind.name());
        }
        let total = by_kind.iter().fold(0, |total: u64, &(_, bytes)| total.saturating_add(bytes));
        assert_eq!(memory.ledger().total().get(), total, "{id}");
        assert_eq!(memory.weight_slots().used().get(), sum(&weights), "{id}");
        assert_eq!(memory.arena().used().get(), sum(&arenas), "{id}");
    }
}
