//! Jobs whose fates hang together: gangs, and jobs that come after others.

use std::sync::Arc;

use smallvec::SmallVec;

use super::intent::{enter_job, refuse_job};
use crate::delta::Effect;
use crate::error::GmgError;
use crate::gang::{self, Members};
use crate::id::JobId;
use crate::job::{JobSpec, StoredState};
use crate::state::Store;

pub(super) fn submit_gang<S: Store>(store: &mut S, specs: &[Arc<JobSpec>]) -> Result<Effect, GmgError> {
    let mut templates: SmallVec<[_; 8]> = SmallVec::new();
    for spec in specs {
        templates.push(refuse_job(store, spec)?);
    }
    let members: SmallVec<[_; 8]> = specs.iter().map(|spec| &**spec).zip(&templates).collect();
    gang::check(&members)?;
    let shared_batch = gang::shares_batch(specs.iter().map(|spec| &**spec));
    let jobs: Arc<[JobId]> =
        specs.iter().zip(&templates).map(|(spec, template)| enter_job(store, spec, template)).collect();
    for &job in jobs.iter() {
        if let Some(job) = store.job_mut(job) {
            job.gang = Some(Members { jobs: jobs.clone(), broken: false, shared_batch });
        }
    }
    Ok(Effect::Gang(jobs))
}

/// The job will never be done. What its peers have not dispatched is cancelled, and every job that
/// comes after one of them: what they would read is never computed. O(jobs that this reaches).
pub(super) fn sever<S: Store>(store: &mut S, id: JobId) {
    let mut severed: SmallVec<[JobId; 4]> = SmallVec::new();
    severed.push(id);
    while let Some(id) = severed.pop() {
        let Some(job) = store.job_mut(id) else { continue };
        let mut waiting = std::mem::take(&mut job.dependents);
        for dependent in waiting.drain(..) {
            if cancel_pending(store, dependent) {
                severed.push(dependent);
            }
        }
        let members = match store.job_mut(id).and_then(|job| job.gang.as_mut()) {
            Some(gang) if !gang.broken => {
                gang.broken = true;
                gang.jobs.clone()
            }
            _ => continue,
        };
        for &peer in members.iter().filter(|&&peer| peer != id) {
            if let Some(gang) = store.job_mut(peer).and_then(|job| job.gang.as_mut()) {
                gang.broken = true;
            }
            if cancel_pending(store, peer) {
                severed.push(peer);
            }
        }
    }
}

/// Cancels what was not dispatched. True if there was something.
pub(super) fn cancel_pending<S: Store>(store: &mut S, id: JobId) -> bool {
    if !store.job(id).is_some_and(|job| job.segments.any_state(|state| state == StoredState::Pending)) {
        return false;
    }
    let Some(job) = store.job_mut(id) else { return false };
    let count = job.op_count();
    job.segments.update(0..count, |segment| {
        if segment.state == StoredState::Pending {
            segment.state = StoredState::Cancelled;
        }
    });
    if !job.is_dispatched() {
        super::free_activations(store, id);
    }
    true
}
