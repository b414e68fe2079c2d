//! How deltas change the tables.
//!
//! The code is generic over the store, so the live graph, a published copy that catches up and a
//! branch go through the same transitions.

mod containers;
mod gang;
mod intent;
mod observation;
mod prefixes;
mod residency;
mod resync;
mod sequences;

pub(crate) use intent::{refuse_job, refuse_placement};
pub(crate) use sequences::Part;

use crate::delta::{Delta, Effect};
use crate::error::GmgError;
use crate::id::{JobId, Version};
use crate::state::Store;
use intent::intend;
use observation::observe;

/// Carries `delta` out and counts it.
pub(crate) fn change<S: Store>(store: &mut S, delta: &Delta) -> Result<Effect, GmgError> {
    let effect = match delta {
        Delta::Intent(intent) => intend(store, intent)?,
        Delta::Observed(event) => observe(store, event),
    };
    store.set_version(Version(store.version().0 + 1));
    Ok(effect)
}

/// Everything of `job` is done: its activations go, and jobs that waited for it wait no longer.
fn complete<S: Store>(store: &mut S, id: JobId) {
    let Some(job) = store.job_mut(id) else { return };
    let (dependents, arena) = (std::mem::take(&mut job.dependents), job.arena.take());
    if let Some((device, region)) = arena {
        store.release_arena(device, region);
    }
    for dependent in dependents {
        if let Some(job) = store.job_mut(dependent) {
            job.waiting_for = job.waiting_for.saturating_sub(1);
        }
    }
}

fn free_activations<S: Store>(store: &mut S, id: JobId) {
    let Some((device, region)) = store.job_mut(id).and_then(|job| job.arena.take()) else { return };
    store.release_arena(device, region);
}
