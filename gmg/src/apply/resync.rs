//! What the graph says about a device gives way to what the device's agent says.

use std::ops::Range;

use super::observation::{Report, abandon, leave_lane, start_over, take_back};
use super::sequences;
use crate::delta::Divergence;
use crate::id::{DeviceId, JobId, LaneId, ModelId, RequestId};
use crate::plan::DeviceReport;
use crate::request::RequestState;
use crate::state::Store;

/// How far the graph was from a report.
#[derive(Default)]
struct Gap {
    recalled: u32,
    jobs: u32,
    models: u32,
    sequences: u32,
    unknown: u32,
}

impl Gap {
    fn is_none(&self) -> bool {
        matches!(self, Self { recalled: 0, jobs: 0, models: 0, sequences: 0, unknown: 0 })
    }
}

pub(super) fn resync<S: Store>(store: &mut S, reports: &[DeviceReport]) -> Option<Divergence> {
    let mut divergence = None;
    for report in reports {
        let device = report.device;
        let found = match store.memory(device) {
            None => Some(Divergence::UnknownDevice(device)),
            Some(_) => {
                let gap = follow(store, report);
                let Gap { recalled, jobs, models, sequences, unknown } = gap;
                (!gap.is_none()).then_some(Divergence::OutOfDate { device, recalled, jobs, models, sequences, unknown })
            }
        };
        divergence = divergence.or(found);
    }
    divergence
}

fn follow<S: Store>(store: &mut S, report: &DeviceReport) -> Gap {
    let mut gap = Gap::default();
    lanes(store, report, &mut gap);
    activations(store, report, &mut gap);
    weights(store, report, &mut gap);
    kv(store, report, &mut gap);
    gap
}

/// Operators that the agent does not have on its lanes go back to pending.
fn lanes<S: Store>(store: &mut S, report: &DeviceReport, gap: &mut Gap) {
    let device = report.device;
    let count = store.cluster().device(device).map_or(0, |device| device.spec.lanes);
    let mut known = 0;
    for lane in (0..count).map(|index| LaneId::new(device, index)) {
        let queue: Vec<(JobId, Range<u32>)> = store
            .lane(lane)
            .map_or_else(Vec::new, |lane| lane.queue().iter().map(|entry| (entry.job, entry.ops.clone())).collect());
        for (job, ops) in queue {
            let mut next = ops.start;
            let mut held: Vec<Range<u32>> = report
                .queued
                .iter()
                .filter(|(on, of, _)| *on == lane && *of == job)
                .map(|(_, _, held)| held.start.max(ops.start)..held.end.min(ops.end))
                .filter(|held| held.start < held.end)
                .collect();
            held.sort_unstable_by_key(|held| held.start);
            for held in held.into_iter().chain(std::iter::once(ops.end..ops.end)) {
                if next < held.start {
                    let gone = next..held.start;
                    gap.recalled += gone.end - gone.start;
                    leave_lane(store, Report { job, ops: &gone, lane }, "gone", take_back);
                    abandon(store, job);
                }
                known += held.end.saturating_sub(held.start.max(next));
                next = next.max(held.end);
            }
        }
    }
    let reported: u32 =
        report.queued.iter().map(|(_, _, ops)| ops.end.saturating_sub(ops.start)).fold(0, u32::saturating_add);
    gap.unknown = gap.unknown.saturating_add(reported.saturating_sub(known));
}

/// Jobs whose activations the agent does not have start over.
fn activations<S: Store>(store: &mut S, report: &DeviceReport, gap: &mut Gap) {
    let on = |store: &S, id: JobId| store.job(id).and_then(|job| job.arena).is_some_and(|(on, _)| on == report.device);
    let mut jobs = Vec::new();
    store.jobs(&mut jobs);
    for id in jobs {
        if on(store, id) && !report.jobs.contains(&id) && store.job(id).is_some_and(|job| !job.is_dispatched()) {
            gap.jobs += 1;
            start_over(store, id);
        }
    }
    gap.unknown += report.jobs.iter().filter(|&&id| !on(store, id)).count() as u32;
}

fn weights<S: Store>(store: &mut S, report: &DeviceReport, gap: &mut Gap) {
    let device = report.device;
    let Some(memory) = store.memory_mut(device) else { return };
    let whole: Vec<ModelId> = memory.models().map(|(model, _)| model).collect();
    let parts: Vec<(ModelId, Range<u32>)> =
        memory.weight_parts().iter().map(|part| (part.model, part.ops.clone())).collect();
    for &model in whole.iter().filter(|model| !report.models.contains(model)) {
        gap.models += 1;
        memory.release_weights(model);
    }
    for (model, ops) in parts.iter().filter(|(model, _)| !report.models.contains(model)) {
        gap.models += 1;
        memory.release_part(*model, ops);
    }
    let known = |model: &&ModelId| whole.contains(model) || parts.iter().any(|(of, _)| of == *model);
    gap.unknown += report.models.iter().filter(|model| !known(model)).count() as u32;
}

fn kv<S: Store>(store: &mut S, report: &DeviceReport, gap: &mut Gap) {
    let device: DeviceId = report.device;
    let known: Vec<RequestId> = store.memory(device).map_or_else(Vec::new, |memory| memory.kv().sequences());
    for &id in known.iter().filter(|id| !report.sequences.contains(id)) {
        gap.sequences += 1;
        let home = store.request(id).and_then(|request| request.device);
        sequences::release(store, id, home.unwrap_or(device));
        if let Some(request) = store.request_mut(id).filter(|request| !request.state.is_final()) {
            request.state = RequestState::Waiting;
            request.device = None;
        }
    }
    gap.unknown += report.sequences.iter().filter(|id| !known.contains(id)).count() as u32;
    // An agent reports sequences; it may have kept nothing else.
    if let Some(memory) = store.memory_mut(device).filter(|memory| memory.kv().cachers().next().is_some()) {
        memory.drop_cached_kv(None);
    }
}
