//! How deltas change the tables.
//!
//! The code is generic over the store, so the live graph, a published copy that catches up and a
//! branch go through the same transitions.

mod intent;
mod observation;

pub(crate) use intent::{intend, refuse_placement};
pub(crate) use observation::observe;

use crate::id::JobId;
use crate::state::Store;

/// Everything of `job` is done: its activations go, and jobs that waited for it wait no longer.
fn complete<S: Store>(store: &mut S, id: JobId) {
    let Some(job) = store.job_mut(id) else { return };
    let dependents = std::mem::take(&mut job.dependents);
    free_activations(store, id);
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
