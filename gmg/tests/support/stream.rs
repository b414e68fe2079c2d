//! Random streams of deltas: mostly sensible, sometimes wrong in one way, sometimes nonsense.

use std::ops::Range;
use std::sync::Arc;

use proptest::prelude::*;
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::id::{ContainerId, DeviceId, JobId, LaneId, LinkId, ModelId, RequestId, TenantId, TransferId};
use slicescheduler_gmg::job::{Job, JobSpec, KvGrowth, Row, StoredState};
use slicescheduler_gmg::memory::WeightState;
use slicescheduler_gmg::plan::{DeviceReport, Ended, Event, Failure, Fate, Rank, Source};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::tenant::Slo;
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_gmg::{Container, Delta, Effect, GmgView, Intent, Model, Tenant};

use super::{DEVICES, LANES, chain, diamond, iteration, layout};

/// One step, before it is known what there is to act on.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    kind: u8,
    a: u16,
    b: u16,
    c: u16,
    /// Below 48: something about the delta is wrong.
    odd: u8,
}

pub fn steps(count: Range<usize>) -> impl Strategy<Value = Vec<Step>> {
    let step = (any::<u8>(), any::<u16>(), any::<u16>(), any::<u16>(), any::<u8>())
        .prop_map(|(kind, a, b, c, odd)| Step { kind, a, b, c, odd });
    prop::collection::vec(step, count)
}

/// Turns steps into deltas for the graph as it is. Times are counted up.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// Every job there ever was.
    seen: Vec<JobId>,
    requests: u64,
    at: u64,
}

const RANKS: [Rank; 4] = [Rank::GuestBestEffort, Rank::OwnerBestEffort, Rank::GuestLatency, Rank::OwnerLatency];

impl Stream {
    /// Remembers what a delta made.
    pub fn note(&mut self, effect: &Effect) {
        match effect {
            Effect::Job(job) => self.seen.push(*job),
            Effect::Gang(jobs) => self.seen.extend(jobs.iter()),
            Effect::Request(request) => self.requests = request.0 + 1,
            _ => {}
        }
    }

    pub fn next(&mut self, step: Step, view: &impl GmgView) -> Delta {
        self.at += 1;
        let mut jobs = Vec::new();
        view.jobs(&mut jobs);
        let on_lane: Vec<_> = jobs.iter().copied().filter(|&id| view.job(id).is_some_and(Job::is_dispatched)).collect();
        match step.kind % 72 {
            0..=7 => self.dispatch(step, view, &jobs).into(),
            8..=14 => self.finished(step, view, &on_lane).into(),
            15..=16 => Event::Started { job: self.job(step, &on_lane), at: self.now() }.into(),
            17..=20 => self.recalled(step, view, &on_lane).into(),
            21 => self.failed(step, view, &on_lane).into(),
            22..=27 => Intent::SubmitJob(Arc::new(self.spec(step, &jobs))).into(),
            28..=30 => Intent::Submit(self.request(step)).into(),
            31 => Intent::ReleaseKv { request: self.any_request(step), device: device(step.b, step.odd) }.into(),
            32..=34 => Intent::Retire { job: self.job(step, &jobs) }.into(),
            35 if step.b & 3 == 0 => Intent::Cancel { job: self.job(step, &jobs) }.into(),
            36 => Intent::RetireRequest { request: self.any_request(step) }.into(),
            37 if step.b & 3 == 0 => Intent::Reject { request: self.any_request(step) }.into(),
            38..=39 => load(step, view).into(),
            41 => {
                Intent::EvictWeights { model: ModelId(u32::from(step.a % 4)), device: device(step.b, step.odd) }.into()
            }
            40 => staging(step).into(),
            42 => external(step).into(),
            43 if step.b.is_multiple_of(3) => {
                Event::DeviceLost { device: device(step.a, step.odd), at: self.now() }.into()
            }
            44..=45 => Intent::ReturnDevice { device: device(step.a, step.odd) }.into(),
            46 => structure(step),
            47 if step.b & 3 == 0 => Event::Timer { at: self.now() }.into(),
            47 => {
                let slo = Slo { ttft: Nanos(u64::from(step.b)), tpot: Nanos(u64::from(step.c)) };
                Intent::SetSlo { request: self.any_request(step), slo }.into()
            }
            48..=50 => part(step).into(),
            51 => {
                let (model, ops, device) = some_part(step, view);
                Intent::EvictOps { model, ops, device }.into()
            }
            52 => {
                let (model, ops, device) = some_part(step, view);
                Event::OpsLoaded { model, ops, device, at: self.now() }.into()
            }
            53 => {
                let (model, ops, device) = some_part(step, view);
                Event::WeightsProgress { model, ops, device, loaded: Bytes(u64::from(step.c % 4096)), at: self.now() }
                    .into()
            }
            54 if step.b & 7 == 0 => {
                Intent::DrainWeights { model: ModelId(u32::from(step.a % 3)), device: device(step.c, step.odd) }.into()
            }
            54 => {
                let draining = |device: &DeviceId| {
                    let memory = view.memory(*device);
                    memory.is_some_and(|memory| memory.models().any(|(_, state)| state == WeightState::Evicting))
                };
                let device = (0..DEVICES).map(DeviceId).find(draining).unwrap_or(device(step.c, step.odd));
                Event::WeightsEvicted { model: ModelId(u32::from(step.a % 3)), device, at: self.now() }.into()
            }
            55 => {
                let link = LinkId(u32::from(step.a) % (view.cluster().links().len() as u32 + 1));
                let at = self.now();
                if step.c & 1 == 0 { Event::LinkFailed { link, at } } else { Event::LinkReturned { link, at } }.into()
            }
            56..=58 => Intent::SubmitGang(self.gang(step, &jobs)).into(),
            59 => Event::Resync { devices: reports(step, view), at: self.now() }.into(),
            60 if step.b & 3 == 0 => pipeline(step).into(),
            60 => {
                let (tenant, container) = (TenantId(u32::from(step.a % 3)), ContainerId(u32::from(step.b % 4)));
                Intent::ShareContainer { tenant, model: Arc::new(Model::new("guest", diamond())), container }.into()
            }
            61..=70 => self.sharing(step, view).into(),
            _ => loaded(step, view).into(),
        }
    }

    /// Mostly two ranks of one model, with one batch for both or for the first only.
    fn gang(&self, step: Step, jobs: &[JobId]) -> Arc<[Arc<JobSpec>]> {
        let size = if (16..24).contains(&step.odd) { u32::from(step.b % 4) } else { 2 };
        let spec = self.spec(step, jobs);
        let mut specs: Vec<_> = (0..size).map(|rank| spec.clone().rank(rank, size)).collect();
        if let [_, rest @ ..] = &mut specs[..]
            && step.a & 0x30 == 0
        {
            rest.iter_mut().for_each(|spec| (spec.rows, spec.growth) = (vec![], vec![]));
        }
        if (24..32).contains(&step.odd) {
            specs.reverse();
        }
        if let (Some(spec), 32..40) = (specs.last_mut(), step.odd) {
            spec.key.iteration += 1;
        }
        specs.into_iter().map(Arc::new).collect()
    }

    fn running(&self, step: Step, view: &impl GmgView) -> Option<(RequestId, DeviceId)> {
        let placed = |id| Some((id, view.request(id)?.device?));
        let running: Vec<_> = (0..self.requests).map(RequestId).filter_map(placed).collect();
        pick(&running, step.a).filter(|_| step.odd >= 24)
    }

    /// Contents are few, so that sequences meet.
    fn sharing(&self, step: Step, view: &impl GmgView) -> Intent {
        let hashes = |first: u16, count: u16| {
            (first..first + count).map(|block| u64::from(block * 2 + (step.c >> 4) % 2)).collect::<Arc<[u64]>>()
        };
        let (running, anywhere) = (self.running(step, view), device(step.b, step.odd));
        let (request, home) = running.unwrap_or((self.any_request(step), anywhere));
        match step.c % 10 {
            0..=2 => {
                let device = if step.odd & 1 == 0 { DeviceId(u32::from(step.b % 2)) } else { anywhere };
                Intent::SharePrefix { request: self.any_request(step), device, hashes: hashes(0, 1 + step.b % 4) }
            }
            3..=6 => {
                let count = view.memory(home).map_or(0, |memory| memory.kv().table(request).len()) as u16;
                let first = if step.odd & 3 == 0 { step.b % 5 } else { 0 };
                let count = if step.odd < 32 { step.b % 6 } else { count.saturating_sub(first) };
                Intent::PublishBlocks { request, device: home, first: first.into(), hashes: hashes(first, count) }
            }
            7 => Intent::ForkSequence { of: request, request: RequestId(u64::from(step.b) % (self.requests + 1)) },
            8 => Intent::OwnBlock { request, device: home, block: u32::from(step.b % 4) },
            _ => Intent::DropPrefixes { tenant: TenantId(u32::from(step.a % 3)), device: anywhere },
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.at)
    }

    /// A job of `of`; if the step is odd, one that there was, or one that never is.
    fn job(&self, step: Step, of: &[JobId]) -> JobId {
        match pick(of, step.a) {
            Some(job) if step.odd >= 16 => job,
            _ => pick(&self.seen, step.b).unwrap_or(JobId { slot: 7, generation: u32::from(step.c) }),
        }
    }

    fn any_request(&self, step: Step) -> RequestId {
        RequestId(u64::from(step.a) % (self.requests + 1))
    }

    fn request(&self, step: Step) -> NewRequest {
        let tenant = TenantId(if step.odd < 16 { 9 } else { u32::from(step.a % 2) });
        NewRequest { tenant, arrival: self.now(), prompt: u32::from(step.b % 9), max_output: 8 }
    }

    fn spec(&self, step: Step, jobs: &[JobId]) -> JobSpec {
        let model = ModelId(if step.odd < 8 { 9 } else { u32::from(step.a % 2) });
        let mut spec = iteration(model, u64::from(step.b % 14));
        if (8..16).contains(&step.odd) {
            spec.binding = Binding::new();
        }
        spec.key.iteration = self.at;
        if step.c & 7 == 0 {
            spec.after.extend(pick(jobs, step.b));
            spec.after.extend(pick(&self.seen, step.c));
        }
        let count = if step.c & 4 == 0 { 0 } else { step.c / 8 % 3 };
        for index in 0..count {
            let request = RequestId((u64::from(step.a) + u64::from(index)) % (self.requests + 1));
            spec.rows.push(Row { request, position: 0, tokens: 1, emits: true });
            if step.b & 1 == 0 {
                spec.growth.push(KvGrowth { request, blocks: u32::from(step.b / 2 % 5) });
            }
        }
        spec
    }

    fn dispatch(&self, step: Step, view: &impl GmgView, jobs: &[JobId]) -> Intent {
        let waits = |id: &JobId| {
            let pending = |job: &Job| job.segments.iter().any(|segment| segment.state == StoredState::Pending);
            view.job(*id).is_some_and(|job| pending(job) && (job.waiting_for == 0 || step.c & 0x3000 == 0))
        };
        let pending: Vec<_> = jobs.iter().copied().filter(waits).collect();
        let id = self.job(step, &pending);
        let job = view.job(id);
        let count = job.map_or(4, Job::op_count);
        let first = job.and_then(|job| job.segments.iter().find(|segment| segment.state == StoredState::Pending));
        let first = first.map_or(0, |segment| segment.first);
        let mut ops = first..first + 1 + u32::from(step.b) % (count - first).max(1);
        if step.b & 0x4000 == 0 {
            ops.end = count;
        }
        let mut to = any_lane(step.c, step.odd);
        if let Some(device) = job.and_then(|job| Some(job.arena?.0).or(job.kv_on))
            && step.odd >= 24
        {
            to.device = device;
        } else if let Some(job) = job.filter(|_| step.odd >= 24)
            && step.c & 0xc000 != 0
        {
            // Later ranks go elsewhere than the first, where they can.
            let mut homes = (0..DEVICES).map(DeviceId).filter(|&device| view.is_resident(job.spec.model, device));
            let first = job.spec.gang.is_none_or(|gang| gang.rank == 0);
            to.device = if first { homes.next() } else { homes.next_back() }.unwrap_or(to.device);
        }
        if let Some(on) = job.and_then(lane_of).filter(|_| step.odd >= 24) {
            to = on;
        }
        if (32..48).contains(&step.odd) {
            ops = odd_range(step);
        }
        Intent::Dispatch { job: id, ops, lane: to, rank: RANKS[usize::from(step.a >> 4) % 4] }
    }

    fn finished(&self, step: Step, view: &impl GmgView, on_lane: &[JobId]) -> Event {
        let id = self.job(step, on_lane);
        let (mut ops, mut lane) = on_lane_ops(view.job(id));
        if step.c & 1 == 0 {
            ops.end = ops.start + 1 + u32::from(step.b) % (ops.end - ops.start).max(1);
        }
        if (16..32).contains(&step.odd) {
            ops = odd_range(step);
        }
        if (32..40).contains(&step.odd) {
            lane = any_lane(step.c, step.odd);
        }
        let batch = view.job(id).map(|job| job.spec.clone());
        let mut ended: Vec<Ended> = Vec::new();
        if let Some(batch) = batch.filter(|_| step.c & 2 == 0) {
            ended.extend(batch.rows.iter().map(|row| Ended { request: row.request, produced: u32::from(step.b) }));
        }
        if (40..48).contains(&step.odd) {
            ended.push(Ended { request: self.any_request(step), produced: 1 });
        }
        Event::Finished { job: id, ops, lane, started: self.now(), at: Nanos(self.at + 1), tokens: vec![], ended }
    }

    fn recalled(&self, step: Step, view: &impl GmgView, on_lane: &[JobId]) -> Event {
        let id = self.job(step, on_lane);
        let (ops, mut lane) = on_lane_ops(view.job(id));
        let mut done = ops.start..ops.start + u32::from(step.b) % (ops.end - ops.start + 1);
        let mut end = ops.end;
        if (16..32).contains(&step.odd) {
            done = odd_range(step);
            end = u32::from(step.b % 10);
        }
        if (32..40).contains(&step.odd) {
            lane = any_lane(step.c, step.odd);
        }
        let fate = if step.c & 1 == 0 { Fate::Keep } else { Fate::Drop };
        Event::Recalled { job: id, lane, done, end, fate, started: self.now(), at: Nanos(self.at + 1) }
    }

    fn failed(&self, step: Step, view: &impl GmgView, on_lane: &[JobId]) -> Event {
        let id = self.job(step, on_lane);
        let (ops, mut lane) = on_lane_ops(view.job(id));
        if (32..40).contains(&step.odd) {
            lane = any_lane(step.c, step.odd);
        }
        let failure = Failure::Kernel { op: ops.start, message: "out of registers".to_owned() };
        Event::Failed { job: id, lane, at: self.now(), failure }
    }
}

fn pick<T: Copy>(of: &[T], index: u16) -> Option<T> {
    of.get(usize::from(index).checked_rem(of.len())?).copied()
}

fn device(index: u16, odd: u8) -> DeviceId {
    DeviceId(u32::from(index) % if odd < 8 { DEVICES + 1 } else { DEVICES })
}

fn any_lane(index: u16, odd: u8) -> LaneId {
    let lanes = if odd < 8 { LANES + 1 } else { LANES };
    LaneId::new(device(index / 4, odd), index % lanes)
}

fn odd_range(step: Step) -> Range<u32> {
    u32::from(step.b % 8)..u32::from(step.b / 8 % 9)
}

fn lane_of(job: &Job) -> Option<LaneId> {
    job.segments.iter().find(|segment| segment.state.is_on_lane())?.lane
}

/// The first run of operators on a lane, and the lane.
fn on_lane_ops(job: Option<&Job>) -> (Range<u32>, LaneId) {
    let segment = job.and_then(|job| job.segments.iter().find(|segment| segment.state.is_on_lane()));
    match segment.and_then(|segment| Some((segment.first..segment.end, segment.lane?))) {
        Some(found) => found,
        None => (0..1, LaneId::new(DeviceId(0), 0)),
    }
}

/// Loads weights where their tenant has its container, or anywhere.
fn load(step: Step, view: &impl GmgView) -> Intent {
    let absent = |device: DeviceId| {
        let container = view.container_of(device)?;
        let model = ModelId(container.0);
        (!view.is_lost(device) && view.memory(device)?.weight_state(model).is_none()).then_some((model, device))
    };
    if step.odd >= 48
        && let Some((model, device)) = (0..DEVICES).map(DeviceId).find_map(absent)
    {
        return Intent::LoadWeights { model, device, source: Source::Host };
    }
    let source = match step.c % 4 {
        0 => Source::Device(device(step.c / 4, step.odd)),
        _ => Source::Host,
    };
    Intent::LoadWeights { model: ModelId(u32::from(step.a % 3)), device: device(step.b, step.odd), source }
}

/// Weights arrive where some are awaited, or anywhere.
fn loaded(step: Step, view: &impl GmgView) -> Event {
    let awaited = |device: DeviceId| {
        let memory = view.memory(device)?;
        memory.models().find(|&(_, state)| state == WeightState::Loading).map(|(model, _)| (model, device))
    };
    let somewhere = (ModelId(u32::from(step.a % 3)), device(step.b, step.odd));
    let found = (0..DEVICES).map(DeviceId).find_map(awaited).filter(|_| step.odd >= 48);
    let (model, device) = found.unwrap_or(somewhere);
    Event::WeightsLoaded { model, device, at: Nanos(1) }
}

fn staging(step: Step) -> Intent {
    let (transfer, device) = (TransferId(u64::from(step.a % 5)), device(step.a / 8, step.odd));
    match step.c % 3 {
        0 => Intent::ReleaseStaging { transfer, device },
        _ => Intent::ReserveStaging { transfer, device, bytes: Bytes(u64::from(step.b % 1500)) },
    }
}

/// Operators of a model, not always there.
fn part(step: Step) -> Intent {
    let first = u32::from(step.b % 6);
    let ops = first..first + u32::from(step.b / 8 % 3) + u32::from(step.odd >= 16);
    let source = match step.c % 4 {
        0 => Source::Device(device(step.c / 4, step.odd)),
        _ => Source::Host,
    };
    Intent::LoadOps { model: ModelId(u32::from(step.a % 3)), ops, device: device(step.a / 4, step.odd), source }
}

/// A part of a model that is on a device, or something like one.
fn some_part(step: Step, view: &impl GmgView) -> (ModelId, Range<u32>, DeviceId) {
    let of = |device: DeviceId| {
        let parts = view.memory(device).map_or(&[][..], |memory| memory.weight_parts());
        parts.iter().map(move |part| (part.model, part.ops.clone(), device))
    };
    let parts: Vec<_> = (0..DEVICES).map(DeviceId).flat_map(of).collect();
    match parts.get(usize::from(step.a) % parts.len().max(1)) {
        Some(part) if step.odd >= 32 => part.clone(),
        _ => (ModelId(u32::from(step.a % 3)), 0..u32::from(step.b % 7), device(step.c, step.odd)),
    }
}

fn external(step: Step) -> Intent {
    let bytes = if step.odd < 4 { Bytes(u64::MAX) } else { Bytes(u64::from(step.b)) };
    let device = device(step.a, step.odd);
    if step.c & 1 == 0 { Intent::ReserveExternal { device, bytes } } else { Intent::ReleaseExternal { device, bytes } }
}

/// What an agent would say, or something near it.
fn reports(step: Step, view: &impl GmgView) -> Vec<DeviceReport> {
    let device = device(step.a, step.odd);
    let Some(memory) = view.memory(device) else {
        return vec![DeviceReport { device, queued: vec![], jobs: vec![], models: vec![], sequences: vec![] }];
    };
    let mut jobs = Vec::new();
    view.jobs(&mut jobs);
    jobs.retain(|&id| view.job(id).and_then(|job| job.arena).is_some_and(|(on, _)| on == device));
    let mut queued = Vec::new();
    for lane in (0..LANES).map(|index| LaneId::new(device, index)) {
        let queue = view.lane(lane).map_or(&[][..], |lane| lane.queue());
        queued.extend(queue.iter().map(|entry| (lane, entry.job, entry.ops.clone())));
    }
    let mut models: Vec<_> = memory.models().map(|(model, _)| model).collect();
    models.extend(memory.weight_parts().iter().map(|part| part.model));
    let mut sequences = memory.kv().sequences();
    // One thing in four is not what the graph says.
    match step.c % 16 {
        0 => drop(queued.pop()),
        1 => queued.extend(queued.first().cloned()),
        2 => queued.iter_mut().for_each(|(_, _, ops)| ops.end -= u32::from(ops.end - ops.start > 1)),
        3 => drop(jobs.pop()),
        4 => drop(models.pop()),
        5 => models.push(ModelId(u32::from(step.b % 4))),
        6 => drop(sequences.pop()),
        7 => sequences.push(RequestId(u64::from(step.b % 8))),
        _ => {}
    }
    vec![DeviceReport { device, queued, jobs, models, sequences }]
}

/// A pipeline on the device that is nobody's, or one that does not fit.
fn pipeline(step: Step) -> Intent {
    let stages = (0..1 + step.c % 2).map(|_| Arc::new(Model::new("stage", diamond()))).collect::<Arc<[_]>>();
    let devices = if step.odd < 64 { u32::from(step.a % 3)..3 } else { 2..3 };
    let container = Arc::new(Container::pipeline(devices, if step.odd < 32 { 2 } else { stages.len() as u32 }));
    Intent::AddPipeline { tenant: TenantId(u32::from(step.a % 3)), stages, container }
}

/// What changes rarely.
fn structure(step: Step) -> Delta {
    match step.a % 3 {
        0 => {
            let mut wanted = layout();
            wanted.arena = Bytes::kib(u64::from(step.b % 16));
            Intent::LayOut { device: device(step.c, step.odd), layout: wanted }.into()
        }
        1 => Intent::AddTenant(Arc::new(Tenant::best_effort(&format!("t{}", step.b % 4)))).into(),
        _ => {
            let container = Container::replicas((0..u32::from(step.b % 3)).map(|nth| nth + u32::from(step.c % 3)));
            let model = Model::new("late", chain());
            let tenant = TenantId(u32::from(step.c / 4 % 5));
            Intent::AddModel { tenant, model: Arc::new(model), container: Arc::new(container) }.into()
        }
    }
}
