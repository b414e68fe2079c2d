//! Observations: always absorbed.
//!
//! What was reported is true, so the tables are made to agree with it; what contradicts them is
//! returned as a [`Divergence`].

use std::ops::Range;

use crate::apply::{complete, free_activations};
use crate::delta::{Divergence, Effect};
use crate::id::{DeviceId, JobId, LaneId, ModelId};
use crate::job::StoredState;
use crate::memory::DeviceMemory;
use crate::plan::{Ended, Event, Fate};
use crate::request::RequestState;
use crate::state::Store;
use crate::units::Nanos;

pub(crate) fn observe<S: Store>(store: &mut S, event: &Event) -> Effect {
    let divergence = match event {
        Event::Arrived { .. } | Event::Timer { .. } => None,
        Event::Started { job, at } => started(store, *job, *at),
        Event::Finished { job, ops, lane, started, at, ended, .. } => {
            let odd = set(store, *job, ops.clone(), StoredState::Done, "finished", |finish| (*started, finish), *at);
            leave_lane(store, *lane, *job, ops);
            if store.job(*job).is_some_and(|job| job.segments.all_done()) {
                complete(store, *job);
            }
            odd.or(end_requests(store, ended))
        }
        Event::Recalled { job, lane, done, end, fate, started, at } => {
            recalled(store, *job, *lane, done, *end, *fate, (*started, *at))
        }
        Event::Failed { job, lane, at, .. } => failed(store, *job, *lane, *at),
        Event::WeightsLoaded { model, device, .. } => weights_loaded(store, *model, *device),
        Event::DeviceLost { device, .. } => device_lost(store, *device),
    };
    divergence.map_or(Effect::None, Effect::Diverged)
}

/// Puts `ops` into `state`, whatever they were.
fn set<S: Store>(
    store: &mut S,
    id: JobId,
    ops: Range<u32>,
    state: StoredState,
    what: &'static str,
    times: impl Fn(Nanos) -> (Nanos, Nanos),
    at: Nanos,
) -> Option<Divergence> {
    let Some(job) = store.job_mut(id) else { return Some(Divergence::UnknownJob(id)) };
    let mut expected = ops.end <= job.op_count();
    job.segments.update(ops.clone(), |segment| {
        expected &= segment.state.may_become(state);
        segment.state = state;
        (segment.start, segment.finish) = times(at);
    });
    (!expected).then_some(Divergence::Unexpected { job: id, ops, what })
}

fn leave_lane<S: Store>(store: &mut S, lane: LaneId, job: JobId, ops: &Range<u32>) {
    if let Some(lane) = store.lane_mut(lane) {
        lane.remove(job, ops);
    }
}

/// The first dispatched run of operators begins.
fn started<S: Store>(store: &mut S, id: JobId, at: Nanos) -> Option<Divergence> {
    let Some(job) = store.job(id) else { return Some(Divergence::UnknownJob(id)) };
    let Some(segment) = job.segments.iter().find(|segment| segment.state == StoredState::Dispatched) else {
        let ops = 0..job.op_count();
        return Some(Divergence::Unexpected { job: id, ops, what: "started" });
    };
    let ops = segment.first..segment.end;
    set(store, id, ops, StoredState::Running, "started", |at| (at, Nanos::ZERO), at)
}

fn end_requests<S: Store>(store: &mut S, ended: &[Ended]) -> Option<Divergence> {
    let mut divergence = None;
    for &Ended { request: id, produced } in ended {
        let Some(request) = store.request_mut(id).filter(|request| request.state == RequestState::Running) else {
            divergence = divergence.or(Some(Divergence::UnknownRequest(id)));
            continue;
        };
        request.state = RequestState::Done;
        request.produced = produced;
        if let Some(device) = request.device.take()
            && let Some(memory) = store.memory_mut(device)
        {
            memory.release_kv(id);
        }
    }
    divergence
}

fn recalled<S: Store>(
    store: &mut S,
    id: JobId,
    lane: LaneId,
    done: &Range<u32>,
    end: u32,
    fate: Fate,
    (started, at): (Nanos, Nanos),
) -> Option<Divergence> {
    let odd = set(store, id, done.clone(), StoredState::Done, "finished", |finish| (started, finish), at);
    leave_lane(store, lane, id, &(done.start..end));
    let Some(job) = store.job_mut(id) else { return odd };
    let back = if fate == Fate::Drop { 0..end } else { done.end..end };
    let mut expected = true;
    job.segments.update(back.clone(), |segment| {
        let was_running = segment.state == StoredState::Running;
        expected &= was_running || segment.state.may_become(StoredState::Pending) || fate == Fate::Drop;
        segment.state = StoredState::Pending;
        segment.lane = None;
        (segment.start, segment.finish) = (Nanos::ZERO, Nanos::ZERO);
    });
    if fate == Fate::Drop {
        free_activations(store, id);
    }
    odd.or((!expected).then_some(Divergence::Unexpected { job: id, ops: back, what: "recalled" }))
}

fn failed<S: Store>(store: &mut S, id: JobId, lane: LaneId, at: Nanos) -> Option<Divergence> {
    let Some(job) = store.job_mut(id) else { return Some(Divergence::UnknownJob(id)) };
    let count = job.op_count();
    job.segments.update(0..count, |segment| {
        if segment.state != StoredState::Done {
            segment.state = StoredState::Failed;
            segment.finish = at;
        }
    });
    free_activations(store, id);
    leave_lane(store, lane, id, &(0..count));
    None
}

fn weights_loaded<S: Store>(store: &mut S, model: ModelId, device: DeviceId) -> Option<Divergence> {
    let expected = store.memory_mut(device).is_some_and(|memory| memory.weights_arrived(model));
    (!expected).then_some(Divergence::UnexpectedWeights { model, device })
}

/// Everything on the device is gone: weights, sequences, activations, and what ran there.
fn device_lost<S: Store>(store: &mut S, device: DeviceId) -> Option<Divergence> {
    let Some(memory) = store.memory(device) else { return Some(Divergence::UnknownDevice(device)) };
    let (layout, sequences) = (*memory.layout(), memory.kv().sequences());
    for id in sequences {
        if let Some(request) = store.request_mut(id) {
            request.state = RequestState::Waiting;
            request.device = None;
        }
    }
    let mut jobs = Vec::new();
    store.jobs(&mut jobs);
    for id in jobs {
        let Some(job) = store.job_mut(id) else { continue };
        if !job.segments.iter().any(|s| s.lane.is_some_and(|lane| lane.device == device)) {
            continue;
        }
        if job.segments.all_done() && job.arena.is_none() {
            continue;
        }
        let count = job.op_count();
        job.segments.update(0..count, |segment| {
            if segment.lane.is_some_and(|lane| lane.device == device) {
                segment.state = StoredState::Lost;
            }
        });
        if job.arena.is_some_and(|(on, _)| on == device) {
            job.arena = None;
        }
    }
    let lanes = store.cluster().devices()[device.index()].spec.lanes;
    for index in 0..lanes {
        if let Some(lane) = store.lane_mut(LaneId::new(device, index)) {
            lane.queue.clear();
        }
    }
    if let Some(memory) = store.memory_mut(device) {
        *memory = DeviceMemory::new(layout);
    }
    store.statics_mut().lost[device.index()] = true;
    None
}
