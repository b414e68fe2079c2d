//! Observations: always absorbed.
//!
//! What was reported is true as far as it can be: operators that can become what they were reported
//! to be become it, wherever the report says they were. The rest of a report, about operators that
//! were not on a lane or do not exist, changes nothing and is returned as a [`Divergence`], so that
//! no report brings the tables into a state that no run can reach.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::gang::{cancel_pending, sever};
use super::{residency, resync, sequences};
use crate::apply::{complete, free_activations};
use crate::delta::{Divergence, Effect};
use crate::id::{DeviceId, JobId, LaneId, LinkId, ModelId};
use crate::job::{Job, Segment, StoredState};
use crate::plan::{Ended, Event, Fate};
use crate::request::RequestState;
use crate::state::Store;
use crate::units::Nanos;

pub(crate) fn observe<S: Store>(store: &mut S, event: &Event) -> Effect {
    let divergence = match event {
        Event::Arrived { .. } | Event::Timer { .. } => None,
        Event::Started { job, at } => started(store, *job, *at),
        Event::Finished { job, ops, lane, started, at, ended, .. } => {
            let (odd, all_done) = finished(store, Report { job: *job, ops, lane: *lane }, (*started, *at));
            if all_done {
                complete(store, *job);
            }
            if ended.is_empty() { odd } else { odd.or(end_requests(store, ended)) }
        }
        Event::Recalled { job, lane, done, end, fate, started, at } => {
            recalled(store, (*job, *lane), done, *end, *fate, (*started, *at))
        }
        Event::Failed { job, lane, at, .. } => failed(store, *job, *lane, *at),
        Event::WeightsLoaded { model, device, .. } => weights_loaded(store, *model, *device),
        Event::DeviceLost { device, .. } => device_lost(store, *device),
        Event::WeightsProgress { model, ops, device, loaded, .. } => {
            residency::progress(store, (*model, ops), *device, *loaded)
        }
        Event::OpsLoaded { model, ops, device, .. } => residency::ops_loaded(store, (*model, ops), *device),
        Event::WeightsEvicted { model, device, .. } => residency::evicted(store, *model, *device),
        Event::LinkFailed { link, .. } => link_changed(store, *link, true),
        Event::LinkReturned { link, .. } => link_changed(store, *link, false),
        Event::Resync { devices, .. } => resync::resync(store, devices),
    };
    divergence.map_or(Effect::None, Effect::Diverged)
}

/// Operators that are said to have left a lane.
#[derive(Clone, Copy)]
pub(super) struct Report<'a> {
    pub(super) job: JobId,
    pub(super) ops: &'a Range<u32>,
    pub(super) lane: LaneId,
}

/// Takes those operators of the report that are on a lane off it and applies `change` to them. Says what was odd about
/// the report, and whether all operators of the job are done now.
pub(super) fn leave_lane<S: Store>(
    store: &mut S,
    Report { job: id, ops, lane }: Report<'_>,
    what: &'static str,
    mut change: impl FnMut(&mut Segment),
) -> (Option<Divergence>, bool) {
    let Some(job) = store.job_mut(id) else { return (Some(Divergence::UnknownJob(id)), false) };
    let mut expected = ops.start < ops.end && ops.end <= job.op_count();
    let mut lanes: SmallVec<[LaneId; 2]> = SmallVec::new();
    job.segments.update(ops.clone(), |segment| {
        if !segment.state.is_on_lane() {
            expected = false;
            return;
        }
        expected &= segment.lane == Some(lane);
        if let Some(on) = segment.lane
            && !lanes.contains(&on)
        {
            lanes.push(on);
        }
        change(segment);
    });
    let all_done = job.segments.all_done();
    for on in lanes {
        if let Some(lane) = store.lane_mut(on) {
            lane.remove(id, ops);
        }
    }
    ((!expected).then(|| Divergence::Unexpected { job: id, ops: ops.clone(), what }), all_done)
}

/// The first dispatched run of operators begins.
fn started<S: Store>(store: &mut S, id: JobId, at: Nanos) -> Option<Divergence> {
    let Some(job) = store.job_mut(id) else { return Some(Divergence::UnknownJob(id)) };
    let Some(segment) = job.segments.iter().find(|segment| segment.state == StoredState::Dispatched) else {
        let ops = 0..job.op_count();
        return Some(Divergence::Unexpected { job: id, ops, what: "started" });
    };
    job.segments.update(segment.first..segment.end, |segment| {
        segment.state = StoredState::Running;
        segment.start = at;
    });
    None
}

fn finished<S: Store>(
    store: &mut S,
    report: Report<'_>,
    (start, finish): (Nanos, Nanos),
) -> (Option<Divergence>, bool) {
    leave_lane(store, report, "finished", |segment| {
        segment.state = StoredState::Done;
        (segment.start, segment.finish) = (start, finish);
    })
}

fn end_requests<S: Store>(store: &mut S, ended: &[Ended]) -> Option<Divergence> {
    let mut divergence = None;
    for &Ended { request: id, produced } in ended {
        let running = store.request(id).is_some_and(|request| request.state == RequestState::Running);
        let Some(request) = store.request_mut(id).filter(|_| running) else {
            divergence = divergence.or(Some(Divergence::UnknownRequest(id)));
            continue;
        };
        request.state = RequestState::Done;
        request.produced = produced;
        if let Some(device) = request.device.take() {
            sequences::release(store, id, device);
        }
    }
    divergence
}

fn recalled<S: Store>(
    store: &mut S,
    (id, lane): (JobId, LaneId),
    done: &Range<u32>,
    end: u32,
    fate: Fate,
    times: (Nanos, Nanos),
) -> Option<Divergence> {
    let Some(job) = store.job(id) else { return Some(Divergence::UnknownJob(id)) };
    let (whole, back) = (done.start..end, done.end..end);
    let mut all_done = job.segments.all_done();
    let was_on_lane = fate == Fate::Drop && !job.segments.all(whole.clone(), |segment| !segment.state.is_on_lane());
    let mut odd = None;
    if done.start > done.end || done.end > end || whole.is_empty() {
        odd = Some(Divergence::Unexpected { job: id, ops: whole, what: "recalled" });
    }
    if !done.is_empty() {
        let (contradicts, all) = finished(store, Report { job: id, ops: done, lane }, times);
        (odd, all_done) = (odd.or(contradicts), all);
    }
    if !back.is_empty() {
        let (contradicts, all) = leave_lane(store, Report { job: id, ops: &back, lane }, "recalled", take_back);
        (odd, all_done) = (odd.or(contradicts), all);
    }
    if all_done {
        complete(store, id);
    } else if was_on_lane {
        start_over(store, id);
    }
    abandon(store, id);
    odd
}

/// What came back from a lane to a job whose gang is broken is cancelled.
pub(super) fn abandon<S: Store>(store: &mut S, id: JobId) {
    let broken = |job: &Job| job.gang.as_ref().is_some_and(|gang| gang.broken);
    if store.job(id).is_some_and(broken) && cancel_pending(store, id) {
        sever(store, id);
    }
}

pub(super) fn take_back(segment: &mut Segment) {
    segment.state = StoredState::Pending;
    segment.lane = None;
    (segment.start, segment.finish) = (Nanos::ZERO, Nanos::ZERO);
}

/// Drops the activations of a job, and with them what it computed; not while some of its operators
/// are on a lane, where they use them.
pub(super) fn start_over<S: Store>(store: &mut S, id: JobId) {
    let Some(job) = store.job_mut(id).filter(|job| !job.is_dispatched()) else { return };
    let count = job.op_count();
    job.segments.update(0..count, |segment| {
        if segment.state == StoredState::Done {
            take_back(segment);
        }
    });
    free_activations(store, id);
}

/// What was on a lane failed, and what had not been dispatched never will be.
fn failed<S: Store>(store: &mut S, id: JobId, lane: LaneId, at: Nanos) -> Option<Divergence> {
    let Some(job) = store.job_mut(id) else { return Some(Divergence::UnknownJob(id)) };
    let count = job.op_count();
    let mut odd = (!job.is_dispatched()).then_some(Divergence::Unexpected { job: id, ops: 0..count, what: "failed" });
    job.segments.update(0..count, |segment| {
        if segment.state == StoredState::Pending {
            segment.state = StoredState::Cancelled;
        }
    });
    let on_lane = |job: &Job| job.segments.iter().find(|segment| segment.state.is_on_lane());
    while let Some(segment) = store.job(id).and_then(on_lane) {
        let ops = segment.first..segment.end;
        let (contradicts, _) = leave_lane(store, Report { job: id, ops: &ops, lane }, "failed", |segment| {
            segment.state = StoredState::Failed;
            segment.finish = at;
        });
        odd = odd.or(contradicts);
    }
    free_activations(store, id);
    if store.job(id).is_some_and(Job::is_broken) {
        sever(store, id);
    }
    odd
}

/// Routes go around what has failed.
fn link_changed<S: Store>(store: &mut S, link: LinkId, failed: bool) -> Option<Divergence> {
    match store.cluster().with_link(link, failed) {
        Some(cluster) => {
            store.statics_mut().cluster = Arc::new(cluster);
            None
        }
        None => Some(Divergence::UnexpectedLink { link, what: if failed { "failed" } else { "returned" } }),
    }
}

fn weights_loaded<S: Store>(store: &mut S, model: ModelId, device: DeviceId) -> Option<Divergence> {
    let expected = store.memory_mut(device).is_some_and(|memory| memory.weights_arrived(model));
    (!expected).then_some(Divergence::UnexpectedWeights { model, device })
}

/// Everything on the device is gone: weights, sequences, activations, and every unfinished job that
/// had some of them.
fn device_lost<S: Store>(store: &mut S, device: DeviceId) -> Option<Divergence> {
    let Some(memory) = store.memory(device) else { return Some(Divergence::UnknownDevice(device)) };
    let (layout, sequences) = (*memory.layout(), memory.kv().sequences());
    for id in sequences {
        let home = store.request(id).and_then(|request| request.device);
        sequences::release(store, id, home.unwrap_or(device));
        if let Some(request) = store.request_mut(id) {
            request.state = RequestState::Waiting;
            request.device = None;
        }
    }
    let mut jobs = Vec::new();
    store.jobs(&mut jobs);
    // All that is lost before anything that hangs on it, so that the order of slots does not count.
    jobs.retain(|&id| lose(store, id, device));
    jobs.into_iter().for_each(|id| sever(store, id));
    let lanes = store.cluster().devices()[device.index()].spec.lanes;
    for index in 0..lanes {
        let lane = LaneId::new(device, index);
        if store.lane(lane).is_some_and(|lane| !lane.is_empty())
            && let Some(lane) = store.lane_mut(lane)
        {
            lane.queue.clear();
        }
    }
    if let Some(memory) = store.memory_mut(device) {
        *memory = memory.emptied(layout);
    }
    store.statics_mut().lost[device.index()] = true;
    None
}

/// The part of a job that `device` had is gone. False if it had none.
fn lose<S: Store>(store: &mut S, id: JobId, device: DeviceId) -> bool {
    let Some(job) = store.job(id) else { return false };
    let pending = || job.segments.any_state(|state| state == StoredState::Pending);
    let had_memory = job.arena.is_some_and(|(on, _)| on == device) || (job.kv_on == Some(device) && pending());
    if !had_memory {
        return false;
    }
    let count = job.op_count();
    let Some(job) = store.job_mut(id) else { return false };
    job.arena = None;
    job.segments.update(0..count, |segment| {
        if segment.state.may_become(StoredState::Lost) {
            segment.state = StoredState::Lost;
        }
    });
    true
}
