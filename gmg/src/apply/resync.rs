//! What the graph says about a device gives way to what the device's agent says.

use std::collections::HashSet;
use std::ops::Range;

use super::observation::{Report, abandon, leave_lane, start_over, take_back};
use super::sequences;
use crate::delta::Divergence;
use crate::id::{DeviceId, JobId, LaneId, ModelId, RequestId};
use crate::plan::DeviceReport;
use crate::request::RequestState;
use crate::state::Store;

/// How far the graph was from a report. Counts saturate: a report may be of any length.
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

/// The operators on the lanes of a report, in order: runs of one job on one lane neither overlap nor touch.
fn runs(report: &DeviceReport) -> Vec<(LaneId, JobId, Range<u32>)> {
    let mut runs: Vec<_> = report.queued.iter().filter(|(.., ops)| ops.start < ops.end).cloned().collect();
    runs.sort_unstable_by_key(|(lane, job, ops)| (*lane, *job, ops.start));
    runs.dedup_by(|(lane, job, ops), (before_lane, before_job, before)| {
        let joins = (&*lane, &*job) == (&*before_lane, &*before_job) && ops.start <= before.end;
        if joins {
            before.end = before.end.max(ops.end);
        }
        joins
    });
    runs
}

/// How many of `reported` the graph does not know.
fn unknown<'r, T: 'r>(reported: &'r [T], known: impl Fn(&T) -> bool) -> u32 {
    u32::try_from(reported.iter().filter(|item| !known(item)).count()).unwrap_or(u32::MAX)
}

/// Operators that the agent does not have on its lanes go back to pending.
fn lanes<S: Store>(store: &mut S, report: &DeviceReport, gap: &mut Gap) {
    let device = report.device;
    let count = store.cluster().device(device).map_or(0, |device| device.spec.lanes);
    let runs = runs(report);
    let mut known = 0_u32;
    for lane in (0..count).map(|index| LaneId::new(device, index)) {
        let queue: Vec<(JobId, Range<u32>)> = store
            .lane(lane)
            .map_or_else(Vec::new, |lane| lane.queue().iter().map(|entry| (entry.job, entry.ops.clone())).collect());
        for (job, ops) in queue {
            let mut next = ops.start;
            let first = runs.partition_point(|(on, of, held)| (*on, *of, held.end) <= (lane, job, ops.start));
            let held =
                runs[first..].iter().take_while(|(on, of, held)| (*on, *of) == (lane, job) && held.start < ops.end);
            let held = held.map(|(.., held)| held.start.max(ops.start)..held.end.min(ops.end));
            for held in held.chain(std::iter::once(ops.end..ops.end)) {
                if next < held.start {
                    let gone = next..held.start;
                    gap.recalled = gap.recalled.saturating_add(gone.end - gone.start);
                    leave_lane(store, Report { job, ops: &gone, lane }, "gone", take_back);
                    abandon(store, job);
                }
                known = known.saturating_add(held.end - held.start);
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
    let reported: HashSet<JobId> = report.jobs.iter().copied().collect();
    let mut jobs = Vec::new();
    store.jobs(&mut jobs);
    for id in jobs {
        if on(store, id) && !reported.contains(&id) && store.job(id).is_some_and(|job| !job.is_dispatched()) {
            gap.jobs = gap.jobs.saturating_add(1);
            start_over(store, id);
        }
    }
    gap.unknown = gap.unknown.saturating_add(unknown(&report.jobs, |&id| on(store, id)));
}

fn weights<S: Store>(store: &mut S, report: &DeviceReport, gap: &mut Gap) {
    let device = report.device;
    let Some(memory) = store.memory_mut(device) else { return };
    let whole: Vec<ModelId> = memory.models().map(|(model, _)| model).collect();
    let parts: Vec<(ModelId, Range<u32>)> =
        memory.weight_parts().iter().map(|part| (part.model, part.ops.clone())).collect();
    let reported: HashSet<ModelId> = report.models.iter().copied().collect();
    for &model in whole.iter().filter(|model| !reported.contains(model)) {
        gap.models = gap.models.saturating_add(1);
        memory.release_weights(model);
    }
    for (model, ops) in parts.iter().filter(|(model, _)| !reported.contains(model)) {
        gap.models = gap.models.saturating_add(1);
        memory.release_part(*model, ops);
    }
    let known: HashSet<ModelId> = whole.iter().copied().chain(parts.iter().map(|&(model, _)| model)).collect();
    gap.unknown = gap.unknown.saturating_add(unknown(&report.models, |model| known.contains(model)));
}

fn kv<S: Store>(store: &mut S, report: &DeviceReport, gap: &mut Gap) {
    let device: DeviceId = report.device;
    let known: Vec<RequestId> = store.memory(device).map_or_else(Vec::new, |memory| memory.kv().sequences());
    let reported: HashSet<RequestId> = report.sequences.iter().copied().collect();
    for &id in known.iter().filter(|id| !reported.contains(id)) {
        gap.sequences = gap.sequences.saturating_add(1);
        let home = store.request(id).and_then(|request| request.device);
        sequences::release(store, id, home.unwrap_or(device));
        if let Some(request) = store.request_mut(id).filter(|request| !request.state.is_final()) {
            request.state = RequestState::Waiting;
            request.device = None;
        }
    }
    let known: HashSet<RequestId> = known.into_iter().collect();
    gap.unknown = gap.unknown.saturating_add(unknown(&report.sequences, |id| known.contains(id)));
    // An agent reports sequences; it may have kept nothing else.
    if let Some(memory) = store.memory_mut(device).filter(|memory| memory.kv().cachers().next().is_some()) {
        memory.drop_cached_kv(None);
    }
}
