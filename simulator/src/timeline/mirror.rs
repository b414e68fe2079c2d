//! What the forecast knows of the graph.
//!
//! Questions come without the graph, so everything that they may refer to is kept here, in the form
//! in which a simulation wants it. Every delta refreshes what it touched from the graph itself, so
//! the mirror agrees with the graph also where an observation contradicted what was expected.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::delta::{Applied, Delta, Effect, Intent};
use slicescheduler_gmg::gang::Members;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, RequestId, TenantId, Version};
use slicescheduler_gmg::job::{JobSpec, StoredState};
use slicescheduler_gmg::memory::WeightState;
use slicescheduler_gmg::plan::{Event, Rank, Source};
use slicescheduler_gmg::semantics::OpKind;
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_gmg::{GmgView, Model, Tenant, View};

use super::lanes::LaneMirror;
use crate::cost::{CostModel, CostTable, JobCost};
use crate::engine::{Engine, MemoryState};

/// A job of the graph.
#[derive(Clone, Debug)]
pub(super) struct JobMirror {
    pub(super) id: JobId,
    pub(super) spec: Arc<JobSpec>,
    pub(super) template: Arc<OpGraph>,
    /// Where its activations lie, and how many bytes they are.
    pub(super) arena: Option<(DeviceId, Bytes)>,
    /// Operators done from the front.
    pub(super) progress: u32,
    /// Where its operators were last dispatched.
    pub(super) lane: Option<LaneId>,
    /// True if its sequences have grown.
    pub(super) has_grown: bool,
    /// True if every operator that is not done may still run.
    pub(super) alive: bool,
    /// The jobs of all ranks, if it is one of several.
    pub(super) gang: Option<Members>,
}

impl JobMirror {
    pub(super) fn op_count(&self) -> u32 {
        self.template.op_count()
    }
}

/// A device of the graph.
#[derive(Clone, Debug)]
pub(super) struct DeviceMirror {
    /// Which row of the cost tables is its own.
    kind: usize,
    pub(super) memory: MemoryState,
    pub(super) kv_block: Bytes,
    pub(super) weights: SmallVec<[(ModelId, WeightState); 4]>,
    pub(super) lost: bool,
    pub(super) owner: Option<TenantId>,
}

/// Weights on their way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) model: ModelId,
    pub(super) device: DeviceId,
    pub(super) source: Source,
    pub(super) since: Nanos,
}

/// How long jobs take.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    model: Arc<dyn CostModel>,
    /// The model's version that the tables are of; [`None`] if they are of another model.
    version: Option<u64>,
    /// How often the durations have changed.
    pub(super) epoch: u64,
    /// The different kinds of devices.
    kinds: Vec<Arc<DeviceSpec>>,
    /// By model, then by kind.
    tables: Vec<CostTable>,
    /// By model: the operators that ranks carry out together, ascending.
    collectives: Vec<Vec<u32>>,
}

impl Costs {
    /// The tables for `models` from `known` on.
    fn compile(&mut self, models: &[Arc<Model>]) {
        let known = self.tables.len() / self.kinds.len().max(1);
        for model in models.iter().skip(known) {
            let table =
                |kind: &Arc<DeviceSpec>| CostTable::new(self.model.clone(), model.template.clone(), kind.clone());
            self.tables.extend(self.kinds.iter().map(table));
        }
        for model in models.iter().skip(self.collectives.len()) {
            self.collectives.push(collectives(&model.template));
        }
    }

    /// The operators of `model` that ranks carry out together, ascending.
    pub(super) fn collectives(&self, model: ModelId) -> &[u32] {
        self.collectives.get(model.index()).map_or(&[], Vec::as_slice)
    }

    /// The durations of a job of `model` on a device of kind `kind`.
    fn bind(&self, model: ModelId, kind: usize, binding: &Binding) -> Option<JobCost> {
        self.tables.get(model.index() * self.kinds.len() + kind).map(|table| table.bind(binding))
    }
}

/// The operators of a template that ranks carry out together, ascending. O(operators).
fn collectives(template: &OpGraph) -> Vec<u32> {
    let mut found = Vec::new();
    for segment in template.segments() {
        let (range, length) = (segment.op_range(), segment.slots().len() as u32);
        for (place, slot) in (0..length).zip(segment.slots()) {
            if let Some(OpKind::Collective(_)) = template.kind(slot) {
                found.extend((range.start + place..range.end).step_by(length as usize));
            }
        }
    }
    found.sort_unstable();
    found
}

/// What a delta touches: one device, none, or, without an answer, possibly all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Touched(Option<Option<DeviceId>>);

impl Touched {
    /// Notes the version at the devices.
    pub(super) fn mark(self, devices: &mut [Version], version: Version) {
        match self.0 {
            None => devices.fill(version),
            Some(device) => {
                if let Some(known) = device.and_then(|device| devices.get_mut(device.index())) {
                    *known = version;
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Mirror {
    pub(super) version: Version,
    pub(super) costs: Costs,
    pub(super) cluster: Cluster,
    /// The latest time that anything was reported for.
    pub(super) clock: Nanos,
    pub(super) models: Vec<Arc<Model>>,
    latency_sensitive: Vec<bool>,
    pub(super) devices: Vec<DeviceMirror>,
    pub(super) lanes: Vec<LaneMirror>,
    first_lane: Vec<u32>,
    /// By slot.
    jobs: Vec<Option<JobMirror>>,
    /// How many of them are of a gang.
    gangs: usize,
    /// KV blocks per sequence. Looked up by key only, so its order does not matter.
    pub(super) sequences: HashMap<RequestId, (DeviceId, u32)>,
    pub(super) loads: Vec<Load>,
}

impl Mirror {
    pub(super) fn new(view: View<'_>, cost: Arc<dyn CostModel>) -> Self {
        let cluster = view.cluster().clone();
        let lanes: Vec<_> = cluster.lanes().map(LaneMirror::new).collect();
        let mut first_lane = vec![0u32];
        let mut devices = Vec::new();
        let mut kinds: Vec<Arc<DeviceSpec>> = Vec::new();
        for device in cluster.devices() {
            first_lane.push(first_lane[device.id.index()] + u32::from(device.spec.lanes));
            let kind = kinds.iter().position(|kind| *kind == device.spec).unwrap_or_else(|| {
                kinds.push(device.spec.clone());
                kinds.len() - 1
            });
            devices.push(DeviceMirror {
                kind,
                memory: MemoryState::of(device.spec.memory),
                kv_block: Bytes::ZERO,
                weights: SmallVec::new(),
                lost: false,
                owner: None,
            });
        }
        let mut costs = Costs {
            version: Some(cost.version()),
            model: cost,
            epoch: 0,
            kinds,
            tables: Vec::new(),
            collectives: Vec::new(),
        };
        costs.compile(view.models());
        let mut mirror = Self {
            version: view.version(),
            costs,
            cluster,
            clock: Nanos::ZERO,
            models: view.models().to_vec(),
            latency_sensitive: view.tenants().iter().map(|tenant| tenant.is_latency_sensitive()).collect(),
            devices,
            lanes,
            first_lane,
            jobs: Vec::new(),
            gangs: 0,
            sequences: HashMap::new(),
            loads: Vec::new(),
        };
        let mut jobs = Vec::new();
        view.jobs(&mut jobs);
        jobs.into_iter().for_each(|job| mirror.refresh_job(job, view));
        for device in (0..mirror.devices.len()).map(|index| DeviceId(index as u32)) {
            mirror.refresh_device(device, view);
            let Some(memory) = view.memory(device) else { continue };
            for request in memory.kv().sequences() {
                mirror.sequences.insert(request, (device, memory.kv().table(request).len() as u32));
            }
            for (model, _) in memory.models().filter(|(_, state)| *state == WeightState::Loading) {
                mirror.loads.push(Load { model, device, source: Source::Host, since: Nanos::ZERO });
            }
        }
        (0..mirror.lanes.len()).for_each(|lane| mirror.refresh_lane(lane, view));
        mirror
    }

    /// Everything whose start is not known started at `now`.
    pub(super) fn start_at(&mut self, now: Nanos) {
        self.clock = now;
        let unknown = |time: &&mut Nanos| **time == Nanos::ZERO;
        let entries = self.lanes.iter_mut().flat_map(|lane| &mut lane.entries);
        let releases = entries.map(|entry| &mut entry.release);
        let loads = self.loads.iter_mut().map(|load| &mut load.since);
        releases.chain(loads).filter(unknown).for_each(|time| *time = now);
    }

    /// Asks another cost model from the next question or report on.
    pub(super) fn set_cost(&mut self, model: Arc<dyn CostModel>) {
        (self.costs.model, self.costs.version) = (model, None);
    }

    /// Compiles again if the cost model has changed. True if it had.
    pub(super) fn follow_costs(&mut self) -> bool {
        let version = Some(self.costs.model.version());
        if version == self.costs.version {
            return false;
        }
        self.costs.version = version;
        self.costs.epoch += 1;
        self.costs.tables.clear();
        self.costs.compile(&self.models);
        for lane in 0..self.lanes.len() {
            for entry in 0..self.lanes[lane].entries.len() {
                let (device, job) = (self.lanes[lane].id.device, self.lanes[lane].entries[entry].job);
                let spec = self.job(job).map(|job| job.spec.clone());
                if let Some(cost) = spec.and_then(|spec| self.bind(&spec, device)) {
                    self.lanes[lane].entries[entry].cost = cost;
                }
            }
        }
        true
    }

    /// The durations of a job on a device.
    pub(super) fn bind(&self, spec: &JobSpec, device: DeviceId) -> Option<JobCost> {
        let kind = self.devices.get(device.index())?.kind;
        self.costs.bind(spec.model, kind, &spec.binding)
    }

    pub(super) fn job(&self, id: JobId) -> Option<&JobMirror> {
        self.jobs.get(id.slot as usize)?.as_ref().filter(|job| job.id == id)
    }

    pub(super) fn jobs(&self) -> impl Iterator<Item = &JobMirror> {
        self.jobs.iter().flatten()
    }

    pub(super) fn lane_index(&self, lane: LaneId) -> Option<usize> {
        let device = lane.device.index();
        let (first, end) = (*self.first_lane.get(device)?, *self.first_lane.get(device + 1)?);
        let index = first + u32::from(lane.index);
        (index < end).then_some(index as usize)
    }

    /// The lowest device that has the weights that a job needs; of a gang, one for each rank.
    pub(super) fn home(&self, spec: &JobSpec) -> Option<DeviceId> {
        let resident = |device: &DeviceMirror| device.weights.contains(&(spec.model, WeightState::Resident));
        let rank = spec.gang.map_or(0, |gang| gang.rank as usize);
        let homes = self.devices.iter().enumerate().filter(|(_, device)| resident(device));
        homes.map(|(index, _)| DeviceId(index as u32)).nth(rank)
    }

    pub(super) fn rank(&self, model: ModelId, device: DeviceId) -> Rank {
        let tenant = self.models.get(model.index()).map(|model| model.tenant());
        let owner = tenant.is_some() && self.devices.get(device.index()).and_then(|device| device.owner) == tenant;
        let latency = tenant.is_some_and(|tenant| self.latency_sensitive.get(tenant.index()) == Some(&true));
        match (owner, latency) {
            (true, true) => Rank::OwnerLatency,
            (false, true) => Rank::GuestLatency,
            (true, false) => Rank::OwnerBestEffort,
            (false, false) => Rank::GuestBestEffort,
        }
    }

    /// Follows a delta. `engine` is scratch.
    pub(super) fn observe(&mut self, applied: &Applied, view: View<'_>, engine: &mut Engine) {
        self.version = applied.version;
        match &applied.delta {
            Delta::Intent(intent) => self.intended(intent, &applied.effect, view),
            Delta::Observed(event) => {
                self.clock = self.clock.max(event.at());
                self.observed(event, view, engine);
            }
        }
    }

    /// The devices whose queues or bytes a delta changes. To be asked before it is observed. With gangs,
    /// what happens on one device may change what follows on others.
    pub(super) fn touched_by(&self, applied: &Applied, view: View<'_>) -> Touched {
        if self.gangs > 0 {
            return Touched(None);
        }
        let arena = |job: &JobId| self.job(*job).and_then(|job| job.arena).map(|(device, _)| device);
        let sequence = |request: &RequestId| self.sequences.get(request).map(|(device, _)| *device);
        let started = |job: &JobId| {
            let mut segments = view.job(*job)?.segments.iter();
            segments.find(|segment| segment.state == StoredState::Running)?.lane.map(|lane| lane.device)
        };
        Touched(match &applied.delta {
            Delta::Intent(intent) => match intent {
                // Blocks that are found, or not any more, are free all the same.
                Intent::Submit(_)
                | Intent::SetSlo { .. }
                | Intent::SubmitJob(_)
                | Intent::AddTenant(_)
                | Intent::PublishBlocks { .. }
                | Intent::DropPrefixes { .. } => Some(None),
                Intent::Dispatch { lane, .. } => Some(Some(lane.device)),
                Intent::Cancel { job } | Intent::Retire { job } => Some(arena(job)),
                Intent::RetireRequest { request } | Intent::ReleaseKv { request, .. } => Some(sequence(request)),
                Intent::LoadWeights { device, .. }
                | Intent::LayOut { device, .. }
                | Intent::EvictWeights { device, .. }
                | Intent::ReserveExternal { device, .. }
                | Intent::ReleaseExternal { device, .. }
                | Intent::BorrowSlots { device, .. }
                | Intent::SharePrefix { device, .. }
                | Intent::OwnBlock { device, .. }
                | Intent::ReturnDevice { device } => Some(Some(*device)),
                _ => None,
            },
            Delta::Observed(event) => match event {
                Event::Arrived { .. } | Event::Timer { .. } => Some(None),
                Event::Started { job, .. } => Some(started(job)),
                // The job may have bytes on another device than the one where it ran.
                Event::Finished { job, lane, .. }
                | Event::Recalled { job, lane, .. }
                | Event::Failed { job, lane, .. } => {
                    arena(job).is_none_or(|device| device == lane.device).then_some(Some(lane.device))
                }
                Event::WeightsLoaded { device, .. } => Some(Some(*device)),
                _ => None,
            },
        })
    }

    fn intended(&mut self, intent: &Intent, effect: &Effect, view: View<'_>) {
        match intent {
            Intent::AddTenant(tenant) => self.latency_sensitive.push(Tenant::is_latency_sensitive(tenant)),
            Intent::AddModel { container, .. } => {
                self.models.clear();
                self.models.extend_from_slice(view.models());
                self.costs.compile(&self.models);
                container.devices.iter().for_each(|&device| self.refresh_device(device, view));
            }
            Intent::SubmitJob(_) => {
                if let Effect::Job(job) = effect {
                    self.refresh_job(*job, view);
                }
            }
            Intent::SubmitGang(_) => {
                if let Effect::Gang(jobs) = effect {
                    jobs.iter().for_each(|&job| self.refresh_job(job, view));
                }
            }
            Intent::Dispatch { job, lane, .. } => {
                self.refresh_job(*job, view);
                if let Some(index) = self.lane_index(*lane) {
                    self.refresh_lane(index, view);
                }
                self.refresh_memory(lane.device, view);
                self.count_growth(*job, lane.device, view);
            }
            Intent::Cancel { job } | Intent::Retire { job } => {
                let ranks = self.job(*job).and_then(|job| job.gang.clone());
                self.forgo(*job, view);
                for &rank in ranks.iter().flat_map(Members::jobs).filter(|rank| *rank != job) {
                    self.forgo(rank, view);
                }
            }
            Intent::RetireRequest { request } | Intent::ReleaseKv { request, .. } => {
                if let Some((device, _)) = self.sequences.remove(request) {
                    self.refresh_group(device, view);
                }
            }
            Intent::SharePrefix { request, device, .. } => {
                if let Effect::Shared { blocks: 1.. } = effect {
                    self.count_sequence(*request, *device, view);
                    self.refresh_memory(*device, view);
                }
            }
            Intent::ForkSequence { request, .. } => {
                if let Some(device) = view.request(*request).and_then(|request| request.device) {
                    self.count_sequence(*request, device, view);
                }
            }
            Intent::OwnBlock { device, .. } => self.refresh_memory(*device, view),
            Intent::LoadWeights { model, device, source } => {
                self.loads.push(Load { model: *model, device: *device, source: *source, since: self.clock });
                self.refresh_device(*device, view);
            }
            Intent::LayOut { device, .. }
            | Intent::EvictWeights { device, .. }
            | Intent::ReserveExternal { device, .. }
            | Intent::ReleaseExternal { device, .. }
            | Intent::BorrowSlots { device, .. }
            | Intent::ReturnDevice { device } => self.refresh_device(*device, view),
            _ => {}
        }
    }

    fn observed(&mut self, event: &Event, view: View<'_>, engine: &mut Engine) {
        match event {
            Event::Started { job, at } => {
                let running = |job: &slicescheduler_gmg::job::Job| {
                    job.segments.iter().find(|segment| segment.state == StoredState::Running)?.lane
                };
                let lane = view.job(*job).and_then(running).and_then(|lane| self.lane_index(lane));
                if let Some(lane) = lane {
                    self.lanes[lane].started(*job, *at, engine);
                }
            }
            Event::Finished { job, lane, started, at, ended, .. } => {
                for ended in ended {
                    self.sequences.remove(&ended.request);
                }
                self.left(*job, *lane, Some((*started, *at)), view, engine);
            }
            Event::Recalled { job, lane, done, started, at, .. } => {
                let ran = (!done.is_empty()).then_some((*started, *at));
                self.left(*job, *lane, ran, view, engine);
            }
            Event::Failed { job, lane, at, .. } => self.left(*job, *lane, Some((*at, *at)), view, engine),
            Event::WeightsLoaded { model, device, .. } => {
                self.loads.retain(|load| load.model != *model || load.device != *device);
                self.refresh_device(*device, view);
            }
            Event::DeviceLost { device, .. } => self.lost(*device, view),
            _ => {}
        }
    }

    /// A job may have ended, and the device that had its bytes with it.
    fn forgo(&mut self, job: JobId, view: View<'_>) {
        let arena = self.job(job).and_then(|job| job.arena);
        self.refresh_job(job, view);
        if let Some((device, _)) = arena {
            self.refresh_memory(device, view);
        }
    }

    /// Operators of `job` are no longer on `lane`; `ran` says when they ran, if they did.
    fn left(&mut self, job: JobId, lane: LaneId, ran: Option<(Nanos, Nanos)>, view: View<'_>, engine: &mut Engine) {
        if let Some(index) = self.lane_index(lane) {
            if let Some((started, at)) = ran {
                self.lanes[index].ended(job, started, at, engine);
            }
            self.refresh_lane(index, view);
        }
        self.refresh_job(job, view);
        if let Some(members) = view.job(job).and_then(|job| job.gang.as_ref()).filter(|members| members.is_broken()) {
            members.jobs().iter().for_each(|&rank| self.refresh_job(rank, view));
        }
        self.refresh_group(lane.device, view);
    }

    /// Sequences of a model that is spread over devices have a part on each of them.
    fn refresh_group(&mut self, device: DeviceId, view: View<'_>) {
        self.refresh_memory(device, view);
        for &part in view.group(device) {
            self.refresh_memory(part, view);
        }
    }

    fn lost(&mut self, device: DeviceId, view: View<'_>) {
        let lanes = (0..self.lanes.len()).filter(|&lane| self.lanes[lane].id.device == device).collect::<Vec<_>>();
        lanes.into_iter().for_each(|lane| self.refresh_lane(lane, view));
        let on_it = |job: &JobMirror| {
            job.gang.is_some()
                || job.arena.is_some_and(|(on, _)| on == device)
                || job.lane.is_some_and(|lane| lane.device == device)
        };
        let jobs: Vec<_> = self.jobs().filter(|job| on_it(job)).map(|job| job.id).collect();
        jobs.into_iter().for_each(|job| self.refresh_job(job, view));
        self.sequences.retain(|_, (on, _)| *on != device);
        self.loads.retain(|load| load.device != device);
        self.refresh_device(device, view);
        self.refresh_group(device, view);
    }

    fn refresh_lane(&mut self, index: usize, view: View<'_>) {
        let lane = &mut self.lanes[index];
        if let Some(device) = self.devices.get(lane.id.device.index()) {
            lane.sync(view, self.clock, |job| self.costs.bind(job.model, device.kind, &job.binding));
        }
    }

    fn refresh_job(&mut self, id: JobId, view: View<'_>) {
        let slot = id.slot as usize;
        if self.jobs.len() <= slot {
            self.jobs.resize(slot + 1, None);
        }
        let Some(job) = view.job(id) else {
            let gone = self.jobs[slot].take_if(|job| job.id == id);
            self.gangs -= usize::from(gone.is_some_and(|job| job.gang.is_some()));
            return;
        };
        let known = self.jobs[slot].take();
        self.gangs -= usize::from(known.as_ref().is_some_and(|job| job.gang.is_some()));
        self.gangs += usize::from(job.gang.is_some());
        let known = known.filter(|known| known.id == id);
        let (spec, template) = match known {
            Some(known) => (known.spec, known.template),
            None => (job.spec.clone(), job.template.clone()),
        };
        let ended = |state| matches!(state, StoredState::Failed | StoredState::Cancelled | StoredState::Lost);
        self.jobs[slot] = Some(JobMirror {
            id,
            spec,
            template,
            arena: job.arena.map(|(device, region)| (device, region.bytes)),
            progress: job.progress(),
            lane: job.segments.iter().rev().find_map(|segment| segment.lane),
            has_grown: job.kv_on.is_some(),
            alive: !job.segments.iter().any(|segment| ended(segment.state)),
            gang: job.gang.clone(),
        });
    }

    fn refresh_memory(&mut self, device: DeviceId, view: View<'_>) {
        if let (Some(mirror), Some(memory)) = (self.devices.get_mut(device.index()), view.memory(device)) {
            mirror.memory.count(memory.ledger());
        }
    }

    fn refresh_device(&mut self, device: DeviceId, view: View<'_>) {
        if let (Some(mirror), Some(memory)) = (self.devices.get_mut(device.index()), view.memory(device)) {
            mirror.memory = MemoryState::from_graph(memory);
            mirror.kv_block = memory.layout().kv_block;
            mirror.weights.clear();
            mirror.weights.extend(memory.models());
            mirror.lost = view.is_lost(device);
            mirror.owner = view.owner(device);
        }
    }

    fn count_growth(&mut self, job: JobId, device: DeviceId, view: View<'_>) {
        let Some(job) = view.job(job) else { return };
        // A sequence whose parts are on several devices is named by its first.
        let shares = job.gang.as_ref().is_some_and(Members::shares_batch);
        if shares && job.spec.gang.is_some_and(|gang| gang.rank > 0) {
            return;
        }
        for growth in &job.spec.growth {
            self.count_sequence(growth.request, device, view);
        }
    }

    fn count_sequence(&mut self, request: RequestId, device: DeviceId, view: View<'_>) {
        if let Some(memory) = view.memory(device) {
            self.sequences.insert(request, (device, memory.kv().table(request).len() as u32));
        }
    }
}
