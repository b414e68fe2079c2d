//! What events do.

use std::ops::Range;

use slicescheduler_gmg::id::{DeviceId, JobId, LaneId};
use slicescheduler_gmg::memory::WeightState;
use slicescheduler_gmg::plan::{Ended, Event, Fate};
use slicescheduler_gmg::request::RequestState;

use super::pool::Pool;
use super::{Job, Op, Reference};

impl Reference {
    /// False if the event contradicts the graph.
    pub(super) fn observe(&mut self, event: &Event) -> bool {
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
                self.abandon(*id);
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
                self.sever(*id);
                expected
            }
            Event::WeightsLoaded { model, device, .. } => {
                let Some(device) = self.devices.get_mut(device.index()) else { return false };
                match device.weights.get_mut(model) {
                    Some((_, _, state)) if *state == WeightState::Loading => {
                        *state = WeightState::Resident;
                        device.loaded.remove(model);
                        true
                    }
                    _ => false,
                }
            }
            Event::DeviceLost { device, .. } => self.lose(*device),
            Event::WeightsProgress { model, ops, device, loaded, .. } => {
                let Some(device) = self.devices.get_mut(device.index()) else { return false };
                if let Some(&(_, length, WeightState::Loading)) = device.weights.get(model) {
                    let before = device.loaded.entry(*model).or_default();
                    let grows = loaded.get() >= *before;
                    *before = if grows { loaded.get().min(length) } else { *before };
                    return grows;
                }
                match device.parts.get_mut(&(*model, ops.start)) {
                    Some((end, (_, length), WeightState::Loading, before))
                        if *end == ops.end && loaded.get() >= *before =>
                    {
                        *before = loaded.get().min(*length);
                        true
                    }
                    _ => false,
                }
            }
            Event::OpsLoaded { model, ops, device, .. } => {
                let device = self.devices.get_mut(device.index());
                match device.and_then(|device| device.parts.get_mut(&(*model, ops.start))) {
                    Some((end, _, state, loaded)) if *end == ops.end && *state == WeightState::Loading => {
                        (*state, *loaded) = (WeightState::Resident, 0);
                        true
                    }
                    _ => false,
                }
            }
            Event::WeightsEvicted { model, device: id, .. } => {
                let Some(device) = self.devices.get_mut(id.index()) else { return false };
                device.loaded.remove(model);
                let state = device.weights.remove(model).map(|(_, _, state)| state);
                let uses = |(job, _, _): &(JobId, u32, _)| self.jobs[job].spec.model == *model;
                let used = self.lanes.iter().any(|(lane, queue)| lane.device == *id && queue.iter().any(uses));
                state == Some(WeightState::Evicting) && !used
            }
            Event::LinkFailed { link, .. } | Event::LinkReturned { link, .. } => {
                let failed = matches!(event, Event::LinkFailed { .. });
                match self.failed_links.get_mut(link.index()) {
                    Some(state) if *state != failed => {
                        *state = failed;
                        true
                    }
                    _ => false,
                }
            }
            Event::Resync { devices, .. } => {
                let mut expected = true;
                for report in devices {
                    expected &= self.resync(report);
                }
                expected
            }
            _ => true,
        }
    }

    /// Every operator of `ops` that is on a lane becomes `next`. False if not all were on `lane`.
    pub(super) fn leave(&mut self, id: JobId, ops: Range<u32>, lane: LaneId, next: Op) -> bool {
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
        device.parts.clear();
        device.loaded.clear();
        device.staging.clear();
        device.external = 0;
        let sequences: Vec<_> = device.kv.tables.keys().copied().collect();
        sequences.into_iter().for_each(|request| self.forget_sequence(request));
        let device = &mut self.devices[id.index()];
        device.kv = Pool::new(device.layout.kv_blocks(), device.owner);
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
        let lost: Vec<_> = self.jobs.iter().filter(|(_, job)| job.is_broken()).map(|(&id, _)| id).collect();
        lost.into_iter().for_each(|job| self.sever(job));
        self.lanes.iter_mut().filter(|(lane, _)| lane.device == id).for_each(|(_, queue)| queue.clear());
        true
    }
}
