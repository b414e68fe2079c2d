//! Intents: checked in full, then carried out.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::containers;
use super::gang::{sever, submit_gang};
use super::prefixes;
use super::residency::{self, refuse_weights};
use super::sequences::{self, Part};
use crate::apply::free_activations;
use crate::delta::{Effect, Intent, NewRequest};
use crate::error::GmgError;
use crate::gang::GangError;
use crate::graph::OpGraph;
use crate::id::{DeviceId, JobId, LaneId, ModelId, RequestId, TenantId, TransferId};
use crate::job::{Job, JobSpec, Segments, StoredState};
use crate::memory::{ByteKind, DeviceLayout, DeviceMemory, LayoutFault, WeightState};
use crate::plan::{Rank, Source};
use crate::request::{Request, RequestState};
use crate::state::Store;
use crate::tenant::{Slo, Tenant};
use crate::units::Bytes;
use crate::view::LaneEntry;

/// Carries out `intent`, or refuses it and leaves the store as it was.
pub(crate) fn intend<S: Store>(store: &mut S, intent: &Intent) -> Result<Effect, GmgError> {
    match intent {
        Intent::LayOut { device, layout } => lay_out(store, *device, *layout),
        Intent::AddTenant(tenant) => add_tenant(store, tenant),
        Intent::AddModel { tenant, model, container } => containers::add_model(store, *tenant, model, container),
        Intent::AddPipeline { tenant, stages, container } => {
            containers::add_pipeline(store, *tenant, stages, container)
        }
        Intent::ShareContainer { tenant, model, container } => {
            containers::share_container(store, *tenant, model, *container)
        }
        Intent::Submit(request) => submit(store, request),
        Intent::SetSlo { request, slo } => set_slo(store, *request, *slo),
        Intent::SubmitJob(spec) => submit_job(store, spec),
        Intent::SubmitGang(specs) => submit_gang(store, specs),
        Intent::Dispatch { job, ops, lane, rank } => dispatch(store, *job, ops.clone(), *lane, *rank),
        Intent::Cancel { job } => cancel(store, *job),
        Intent::Retire { job } => retire(store, *job),
        Intent::RetireRequest { request } => retire_request(store, *request),
        Intent::Reject { request } => reject(store, *request),
        Intent::ReleaseKv { request, device } => release_kv(store, *request, *device),
        Intent::LoadWeights { model, device, source } => load_weights(store, *model, *device, *source),
        Intent::EvictWeights { model, device } => evict_weights(store, *model, *device),
        Intent::DrainWeights { model, device } => residency::drain_weights(store, *model, *device),
        Intent::LoadOps { model, ops, device, source } => {
            residency::load_ops(store, (*model, ops.clone()), *device, *source)
        }
        Intent::EvictOps { model, ops, device } => residency::evict_ops(store, (*model, ops.clone()), *device),
        Intent::ReserveStaging { transfer, device, bytes } => reserve_staging(store, *transfer, *device, *bytes),
        Intent::ReleaseStaging { transfer, device } => release_staging(store, *transfer, *device),
        Intent::ReserveExternal { device, bytes } => {
            usable_device(store, *device)?;
            memory(store, *device)?.reserve_external(*bytes);
            Ok(Effect::None)
        }
        Intent::ReleaseExternal { device, bytes } => {
            let memory = memory(store, *device)?;
            let reserved = memory.ledger().of(ByteKind::External);
            if *bytes > reserved {
                return Err(GmgError::NotReserved { device: *device, bytes: *bytes, reserved });
            }
            memory.release_external(*bytes);
            Ok(Effect::None)
        }
        Intent::SharePrefix { request, device, hashes } => prefixes::share(store, *request, *device, hashes),
        Intent::PublishBlocks { request, device, first, hashes } => {
            prefixes::publish(store, *request, (*device, *first), hashes)
        }
        Intent::ForkSequence { of, request } => prefixes::fork(store, *of, *request),
        Intent::OwnBlock { request, device, block } => prefixes::own(store, *request, *device, *block),
        Intent::DropPrefixes { tenant, device } => prefixes::drop_cached(store, *tenant, *device),
        Intent::BorrowSlots { device, blocks } => borrow_slots(store, *device, *blocks),
        Intent::ReturnDevice { device } => {
            memory(store, *device)?;
            if !store.is_lost(*device) {
                return Err(GmgError::NotLost(*device));
            }
            store.statics_mut().lost[device.index()] = false;
            Ok(Effect::None)
        }
    }
}

pub(super) fn memory<S: Store>(store: &mut S, device: DeviceId) -> Result<&mut DeviceMemory, GmgError> {
    let devices = store.statics().lost.len();
    store.memory_mut(device).ok_or(GmgError::NoSuchDevice(device, devices))
}

pub(super) fn usable_device<S: Store>(store: &S, device: DeviceId) -> Result<&DeviceMemory, GmgError> {
    let memory = store.memory(device).ok_or(GmgError::NoSuchDevice(device, store.statics().lost.len()))?;
    if store.is_lost(device) {
        return Err(GmgError::DeviceLost(device));
    }
    Ok(memory)
}

fn lay_out<S: Store>(store: &mut S, device: DeviceId, layout: DeviceLayout) -> Result<Effect, GmgError> {
    let memory_now = usable_device(store, device)?;
    let used = memory_now.ledger().total();
    if !used.is_zero() || !memory_now.kv().is_empty() {
        return Err(GmgError::DeviceInUse(device, used));
    }
    let capacity = store.cluster().devices()[device.index()].spec.memory;
    match layout.fault(capacity) {
        Some(LayoutFault::TooLarge) => {
            let wanted = layout.kv_offset();
            return Err(GmgError::LayoutTooLarge { device, wanted, usable: layout.usable, memory: capacity });
        }
        Some(LayoutFault::Part { what, bytes }) => return Err(GmgError::PartTooLarge { device, what, bytes }),
        Some(LayoutFault::Blocks(blocks)) => {
            return Err(GmgError::TooManyBlocks { device, blocks, kv_block: layout.kv_block });
        }
        None => {}
    }
    let memory = memory(store, device)?;
    *memory = memory.emptied(layout);
    Ok(Effect::None)
}

fn borrow_slots<S: Store>(store: &mut S, device: DeviceId, blocks: u32) -> Result<Effect, GmgError> {
    let found = usable_device(store, device)?;
    let (layout, available) = (*found.layout(), found.borrowable_blocks());
    let (used, shrinks) = (found.kv().used_blocks(), blocks < found.borrowed_blocks());
    let bytes = |blocks: u32| layout.kv_block.times(u64::from(blocks));
    if blocks > available {
        let (wanted, available) = (bytes(blocks), bytes(available));
        return Err(GmgError::NoMemory { device, what: "weight slots for KV blocks", wanted, available });
    }
    let lanes = store.cluster().devices()[device.index()].spec.lanes;
    let busy = |index| store.lane(LaneId::new(device, index)).is_some_and(|lane| !lane.is_empty());
    if shrinks && (0..lanes).any(busy) {
        return Err(GmgError::DeviceInUse(device, bytes(used)));
    }
    let what = "KV blocks in use, beside weights";
    let moves = memory(store, device)?.borrow_slots(blocks).ok_or(GmgError::NoMemory {
        device,
        what,
        wanted: bytes(used),
        available: bytes(layout.kv_blocks().saturating_add(blocks)),
    })?;
    Ok(if moves.is_empty() { Effect::None } else { Effect::Moved(moves.into()) })
}

fn add_tenant<S: Store>(store: &mut S, tenant: &Arc<Tenant>) -> Result<Effect, GmgError> {
    if store.tenants().iter().any(|other| other.name == tenant.name) {
        return Err(GmgError::DuplicateTenant(tenant.name.clone()));
    }
    let id = TenantId(store.tenants().len() as u32);
    store.statics_mut().tenants.push(tenant.clone());
    Ok(Effect::Tenant(id))
}

fn submit<S: Store>(store: &mut S, request: &NewRequest) -> Result<Effect, GmgError> {
    let tenant = store.tenant(request.tenant).ok_or(GmgError::NoSuchTenant(request.tenant))?;
    let slo = tenant.slo;
    let id = store.insert_request(Request {
        tenant: request.tenant,
        arrival: request.arrival,
        prompt: request.prompt,
        max_output: request.max_output,
        state: RequestState::Waiting,
        device: None,
        produced: 0,
        slo,
    });
    Ok(Effect::Request(id))
}

fn set_slo<S: Store>(store: &mut S, id: RequestId, slo: Slo) -> Result<Effect, GmgError> {
    let request = store.request(id).filter(|request| !request.state.is_final()).ok_or(GmgError::NoSuchRequest(id))?;
    let tenant = request.tenant;
    if store.tenant(tenant).is_none_or(|tenant| tenant.slo.is_none()) {
        return Err(GmgError::NoDueTimes(tenant));
    }
    if let Some(request) = store.request_mut(id) {
        request.slo = Some(slo);
    }
    Ok(Effect::None)
}

fn submit_job<S: Store>(store: &mut S, spec: &Arc<JobSpec>) -> Result<Effect, GmgError> {
    let template = refuse_job(store, spec)?;
    if spec.gang.is_some() || template.exchanges() {
        return Err(GangError::Alone.into());
    }
    Ok(Effect::Job(enter_job(store, spec, &template)))
}

/// Why a job cannot be entered; its template if it can.
pub(crate) fn refuse_job<S: Store>(store: &S, spec: &JobSpec) -> Result<Arc<OpGraph>, GmgError> {
    let template = store.model(spec.model).ok_or(GmgError::NoSuchModel(spec.model))?.template.clone();
    template.check_binding(&spec.binding)?;
    match spec.after.iter().find(|&&job| store.job(job).is_some_and(Job::is_broken)) {
        Some(&job) => Err(GmgError::NeverDone(job)),
        None => Ok(template),
    }
}

pub(super) fn enter_job<S: Store>(store: &mut S, spec: &Arc<JobSpec>, template: &Arc<OpGraph>) -> JobId {
    let unfinished: SmallVec<[JobId; 2]> =
        spec.after.iter().copied().filter(|&job| store.job(job).is_some_and(|job| !job.segments.all_done())).collect();
    let segments = Segments::pending(template.op_count());
    let activations = template.activation_bytes(&spec.binding);
    let id = store.insert_job(Job {
        spec: spec.clone(),
        template: template.clone(),
        segments,
        activations,
        arena: None,
        kv_on: None,
        departures: 0,
        waiting_for: unfinished.len() as u32,
        dependents: SmallVec::new(),
        gang: None,
    });
    for job in unfinished {
        if let Some(job) = store.job_mut(job) {
            job.dependents.push(id);
        }
    }
    id
}

/// Why a job of `spec` that was not placed before cannot be placed on `lane`.
pub(crate) fn refuse_placement<S: Store>(
    store: &S,
    spec: &JobSpec,
    lane: LaneId,
    ops: &Range<u32>,
    part: Part,
) -> Result<(), GmgError> {
    let model = store.model(spec.model).ok_or(GmgError::NoSuchModel(spec.model))?;
    model.template.check_binding(&spec.binding)?;
    let activations = model.template.activation_bytes(&spec.binding);
    let memory = refuse_activations(store, (spec.model, ops), activations, lane)?;
    refuse_batch(store, spec, memory, lane.device, part)
}

/// Why the sequences of a batch that was not placed before cannot grow in `memory`.
fn refuse_batch<S: Store>(
    store: &S,
    spec: &JobSpec,
    memory: &DeviceMemory,
    device: DeviceId,
    part: Part,
) -> Result<(), GmgError> {
    let wanted = spec.new_blocks();
    if wanted > u64::from(memory.kv().free_blocks()) {
        let block = memory.layout().kv_block;
        let available = block.times(u64::from(memory.kv().free_blocks()));
        return Err(GmgError::NoMemory { device, what: "KV blocks", wanted: block.times(wanted), available });
    }
    spec.requests().try_for_each(|request| sequences::refuse_part(store, request, part, device))
}

/// Why a job that needs `activations` and has none cannot get them for operators of its model on
/// `lane`.
fn refuse_activations<'s, S: Store>(
    store: &'s S,
    (id, ops): (ModelId, &Range<u32>),
    activations: Bytes,
    lane: LaneId,
) -> Result<&'s DeviceMemory, GmgError> {
    let model = store.model(id).ok_or(GmgError::NoSuchModel(id))?;
    store.lane(lane).ok_or(GmgError::NoSuchLane(lane))?;
    let device = lane.device;
    let memory = usable_device(store, device)?;
    refuse_weights(memory, id, model, ops, device)?;
    let available = memory.arena().largest_gap();
    if activations > available {
        return Err(GmgError::NoMemory { device, what: "activations", wanted: activations, available });
    }
    Ok(memory)
}

/// Why a job whose batch was reserved before, and which left its lane since, cannot go on: its
/// sequences must be as it left them.
fn refuse_sequences<S: Store>(store: &S, spec: &JobSpec, reserved: DeviceId, to: DeviceId) -> Result<(), GmgError> {
    for request in spec.requests() {
        match store.request(request).filter(|found| !found.state.is_final()) {
            None => return Err(GmgError::NoSuchRequest(request)),
            Some(found) if !sequences::has_part(store, request, found, reserved) => {
                return Err(GmgError::SequenceGone { request, device: reserved });
            }
            Some(_) if reserved != to => {
                return Err(GmgError::SequenceElsewhere { request, on: reserved, to });
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn dispatch<S: Store>(store: &mut S, id: JobId, ops: Range<u32>, lane: LaneId, rank: Rank) -> Result<Effect, GmgError> {
    let job = store.job(id).ok_or(GmgError::NoSuchJob(id))?;
    let count = job.op_count();
    if ops.start >= ops.end || ops.end > count {
        return Err(GmgError::NoSuchOps { job: id, ops, count });
    }
    if job.waiting_for > 0 {
        return Err(GmgError::NotReady { job: id, count: job.waiting_for });
    }
    if !job.segments.all(ops.clone(), |segment| segment.state == StoredState::Pending) {
        return Err(GmgError::NotPending { job: id, ops });
    }
    let in_order = job.segments.all(0..ops.start, |segment| match segment.state {
        StoredState::Done => true,
        StoredState::Dispatched | StoredState::Running => segment.lane == Some(lane),
        _ => false,
    });
    let on_lane = job.is_dispatched();
    let overtakes = on_lane
        && store.lane(lane).is_some_and(|lane| {
            lane.queue().iter().any(|entry| entry.job == id && entry.ops.start < ops.start && entry.rank < rank)
        });
    if !in_order || overtakes {
        return Err(GmgError::OutOfOrder { job: id, op: ops.start, lane });
    }
    if let Some(reserved) = job.kv_on.filter(|_| !on_lane)
        && (reserved != lane.device || departures(store, reserved) != job.departures)
    {
        refuse_sequences(store, &job.spec, reserved, lane.device)?;
    }
    match job.arena {
        Some((on, _)) if on != lane.device => {
            return Err(GmgError::ActivationsElsewhere { job: id, on, to: lane.device });
        }
        Some(_) => {
            store.lane(lane).ok_or(GmgError::NoSuchLane(lane))?;
            let memory = usable_device(store, lane.device)?;
            if let Some(model) = store.model(job.spec.model) {
                refuse_weights(memory, job.spec.model, model, &ops, lane.device)?;
            }
        }
        None => {
            let memory = refuse_activations(store, (job.spec.model, &ops), job.activations, lane)?;
            if job.kv_on.is_none() {
                refuse_batch(store, &job.spec, memory, lane.device, Part::of(job))?;
            }
            reserve(store, id, lane.device);
        }
    }
    // What is on the lane was not looked at again.
    let departures = (!on_lane).then(|| departures(store, lane.device));
    if let Some(job) = store.job_mut(id) {
        job.departures = departures.unwrap_or(job.departures);
        job.segments.update(ops.clone(), |segment| {
            segment.state = StoredState::Dispatched;
            segment.lane = Some(lane);
        });
    }
    if let Some(lane) = store.lane_mut(lane) {
        lane.push(LaneEntry { job: id, ops, rank });
    }
    Ok(Effect::None)
}

fn departures<S: Store>(store: &S, device: DeviceId) -> u32 {
    store.memory(device).map_or(0, DeviceMemory::departures)
}

/// Reserves what was found to fit: activations, and at the first placement the batch.
fn reserve<S: Store>(store: &mut S, id: JobId, device: DeviceId) {
    let Some(activations) = store.job(id).map(|job| job.activations) else { return };
    let region = store.reserve_arena(device, activations);
    let Some(job) = store.job_mut(id) else { return };
    job.arena = region.map(|region| (device, region));
    let has_batch = !(job.spec.rows.is_empty() && job.spec.growth.is_empty());
    if has_batch && job.kv_on.is_none() {
        job.kv_on = Some(device);
        let spec = job.spec.clone();
        sequences::grow(store, &spec, device);
    }
}

fn cancel<S: Store>(store: &mut S, id: JobId) -> Result<Effect, GmgError> {
    let job = store.job_mut(id).ok_or(GmgError::NoSuchJob(id))?;
    let count = job.op_count();
    job.segments.update(0..count, |segment| {
        if segment.state.may_become(StoredState::Cancelled) {
            segment.state = StoredState::Cancelled;
        }
    });
    let broken = job.is_broken();
    if !job.is_dispatched() {
        free_activations(store, id);
    }
    if broken {
        sever(store, id);
    }
    Ok(Effect::None)
}

fn retire<S: Store>(store: &mut S, id: JobId) -> Result<Effect, GmgError> {
    let job = store.job(id).ok_or(GmgError::NoSuchJob(id))?;
    let may_run = |state: StoredState| state == StoredState::Pending || state.is_on_lane();
    if job.segments.any_state(may_run) {
        return Err(GmgError::NotFinished(id));
    }
    free_activations(store, id);
    store.remove_job(id);
    Ok(Effect::None)
}

fn retire_request<S: Store>(store: &mut S, id: RequestId) -> Result<Effect, GmgError> {
    let device = store.request(id).ok_or(GmgError::NoSuchRequest(id))?.device;
    if let Some(device) = device {
        sequences::refuse_in_use(store, id, device)?;
        sequences::release(store, id, device);
    }
    store.remove_request(id);
    Ok(Effect::None)
}

fn reject<S: Store>(store: &mut S, id: RequestId) -> Result<Effect, GmgError> {
    let request = store.request(id).filter(|request| !request.state.is_final());
    if let Some(device) = request.ok_or(GmgError::NoSuchRequest(id))?.device {
        return Err(GmgError::RequestStarted { request: id, device });
    }
    if let Some(request) = store.request_mut(id) {
        request.state = RequestState::Rejected;
    }
    Ok(Effect::None)
}

fn release_kv<S: Store>(store: &mut S, id: RequestId, device: DeviceId) -> Result<Effect, GmgError> {
    let request = store.request(id).filter(|request| !request.state.is_final());
    let request = request.ok_or(GmgError::NoSuchRequest(id))?;
    if let Some(on) = request.device.filter(|&on| on != device) {
        return Err(GmgError::SequenceElsewhere { request: id, on, to: device });
    }
    sequences::refuse_in_use(store, id, device)?;
    store.memory(device).ok_or(GmgError::NoSuchDevice(device, store.statics().lost.len()))?;
    sequences::release(store, id, device);
    if let Some(request) = store.request_mut(id) {
        request.state = RequestState::Waiting;
        request.device = None;
    }
    Ok(Effect::None)
}

fn load_weights<S: Store>(store: &mut S, id: ModelId, device: DeviceId, source: Source) -> Result<Effect, GmgError> {
    let bytes = store.model(id).ok_or(GmgError::NoSuchModel(id))?.weights;
    let target = usable_device(store, device)?;
    if target.has_any_of(id, &(0..u32::MAX)) {
        return Err(GmgError::WeightsPresent { model: id, device });
    }
    let available = target.weight_slots().largest_gap();
    if available < bytes {
        return Err(GmgError::NoMemory { device, what: "weights", wanted: bytes, available });
    }
    if let Source::Device(from) = source
        && (!store.is_resident(id, from) || store.is_lost(from))
    {
        return Err(GmgError::NoSource(source, id));
    }
    memory(store, device)?.reserve_weights(id, bytes, WeightState::Loading);
    Ok(Effect::None)
}

fn reserve_staging<S: Store>(
    store: &mut S,
    transfer: TransferId,
    device: DeviceId,
    bytes: Bytes,
) -> Result<Effect, GmgError> {
    let target = usable_device(store, device)?;
    if target.staging_region(transfer).is_some() {
        return Err(GmgError::DuplicateTransfer { transfer, device });
    }
    let available = target.staging().largest_gap();
    if bytes > available {
        return Err(GmgError::NoMemory { device, what: "staging", wanted: bytes, available });
    }
    memory(store, device)?.reserve_staging(transfer, bytes);
    Ok(Effect::None)
}

fn release_staging<S: Store>(store: &mut S, transfer: TransferId, device: DeviceId) -> Result<Effect, GmgError> {
    let target = store.memory(device).ok_or(GmgError::NoSuchDevice(device, store.statics().lost.len()))?;
    if target.staging_region(transfer).is_none() {
        return Err(GmgError::NoSuchTransfer { transfer, device });
    }
    memory(store, device)?.release_staging(transfer);
    Ok(Effect::None)
}

fn evict_weights<S: Store>(store: &mut S, id: ModelId, device: DeviceId) -> Result<Effect, GmgError> {
    let target = usable_device(store, device)?;
    if target.weight_state(id) != Some(WeightState::Resident) {
        return Err(GmgError::WeightsAbsent { model: id, device });
    }
    let lanes = store.cluster().devices()[device.index()].spec.lanes;
    for index in 0..lanes {
        let Some(lane) = store.lane(LaneId::new(device, index)) else { continue };
        let user = lane.queue().iter().find(|entry| store.job(entry.job).is_some_and(|job| job.spec.model == id));
        if let Some(user) = user {
            return Err(GmgError::WeightsInUse { model: id, device, job: user.job });
        }
    }
    memory(store, device)?.release_weights(id);
    Ok(Effect::None)
}
