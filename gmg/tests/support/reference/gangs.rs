//! Jobs that are entered, broken and placed together.

use std::collections::BTreeSet;
use std::sync::Arc;

use slicescheduler_gmg::id::{DeviceId, JobId, RequestId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::shape::TOKENS;

use super::{Job, Op, Reference, Request};

#[derive(Debug)]
pub(super) struct Gang {
    pub(super) jobs: Vec<JobId>,
    pub(super) broken: bool,
    /// True if all ranks have the same requests.
    shared: bool,
}

fn requests(spec: &JobSpec) -> BTreeSet<RequestId> {
    spec.rows.iter().map(|row| row.request).chain(spec.growth.iter().map(|grown| grown.request)).collect()
}

impl Reference {
    pub(super) fn check_job(&self, spec: &JobSpec) -> Option<()> {
        self.models.get(spec.model.index())?;
        let broken = spec.after.iter().any(|id| self.jobs.get(id).is_some_and(Job::is_broken));
        (spec.binding.is_bound(TOKENS) && !broken).then_some(())
    }

    pub(super) fn enter_job(&mut self, spec: &JobSpec, gang: Option<usize>) -> JobId {
        let unfinished = |id: &JobId| self.jobs.get(id).is_some_and(|job| !job.is_done());
        let waits = spec.after.iter().copied().filter(unfinished).collect();
        let ops = vec![Op::Pending; self.models[spec.model.index()].template.op_count() as usize];
        let job = Job { spec: spec.clone(), ops, arena: None, batch_on: None, waits, gang };
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(0);
            self.slots.len() as u32 - 1
        });
        let id = JobId { slot, generation: self.slots[slot as usize] };
        self.jobs.insert(id, job);
        id
    }

    /// The templates of the streams exchange nothing, so ranks, keys and batches are all there is to check.
    pub(super) fn submit_gang(&mut self, specs: &[Arc<JobSpec>]) -> Option<()> {
        specs.iter().try_for_each(|spec| self.check_job(spec))?;
        let first = specs.first()?;
        for (rank, spec) in specs.iter().enumerate() {
            let place = spec.gang?;
            if (place.rank, place.size) != (rank as u32, specs.len() as u32) || spec.key != first.key {
                return None;
            }
        }
        let batches: Vec<_> = specs.iter().map(|spec| requests(spec)).collect();
        let shared = batches.len() > 1 && !batches[0].is_disjoint(&batches[1]);
        let fits = if shared {
            batches.iter().all(|batch| *batch == batches[0])
        } else {
            batches.iter().map(BTreeSet::len).sum::<usize>() == batches.iter().flatten().collect::<BTreeSet<_>>().len()
        };
        if !fits {
            return None;
        }
        let gang = self.gangs.len();
        let jobs = specs.iter().map(|spec| self.enter_job(spec, Some(gang))).collect();
        self.gangs.push(Gang { jobs, broken: false, shared });
        Some(())
    }

    /// True if the part of the sequence that `job` needs is on `device`, or can begin there.
    pub(super) fn may_hold(&self, job: &Job, request: &Request, device: DeviceId) -> bool {
        let rank = match (job.gang, job.spec.gang) {
            (Some(gang), Some(place)) if self.gangs[gang].shared => place.rank as usize,
            _ => 0,
        };
        let placed: Vec<_> = request.device.iter().chain(&request.parts).copied().collect();
        match placed.get(rank) {
            Some(&on) => on == device,
            None => placed.len() == rank && !placed.contains(&device),
        }
    }

    /// What was not dispatched never will be. True if there was something.
    fn cancel_pending(&mut self, id: JobId) -> bool {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.any(|op| op == Op::Pending)) else { return false };
        job.ops.iter_mut().filter(|op| **op == Op::Pending).for_each(|op| *op = Op::Cancelled);
        if !job.on_lane() {
            job.arena = None;
        }
        true
    }

    /// What comes after a job that will never be done is cancelled, and what it was to meet.
    pub(super) fn sever(&mut self, id: JobId) {
        if !self.jobs.get(&id).is_some_and(Job::is_broken) {
            return;
        }
        let mut reached: Vec<_> =
            self.jobs.iter().filter(|(_, job)| job.waits.contains(&id)).map(|(&id, _)| id).collect();
        if let Some(gang) = self.jobs[&id].gang.filter(|&gang| !self.gangs[gang].broken) {
            self.gangs[gang].broken = true;
            reached.extend(self.gangs[gang].jobs.iter().copied().filter(|&peer| peer != id));
        }
        for id in reached {
            if self.cancel_pending(id) {
                self.sever(id);
            }
        }
    }

    /// What came back to a job of a broken gang is cancelled.
    pub(super) fn abandon(&mut self, id: JobId) {
        let gang = self.jobs.get(&id).and_then(|job| job.gang);
        if gang.is_some_and(|gang| self.gangs[gang].broken) && self.cancel_pending(id) {
            self.sever(id);
        }
    }
}
