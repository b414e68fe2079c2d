//! Jobs as records.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Slot, State};
use crate::gang::Members;
use crate::id::{DeviceId, JobId};
use crate::job::{Job, JobSpec, Segment, Segments};
use crate::memory::Region;
use crate::view::GmgView;
use crate::wire::snapshot::Refusal;

#[derive(Serialize, Deserialize)]
pub(super) struct SavedSlot {
    pub(super) generation: u32,
    job: Option<SavedJob>,
}

/// A job without its template, which is that of its model, and what follows from it.
#[derive(Serialize, Deserialize)]
struct SavedJob {
    spec: Arc<JobSpec>,
    segments: Vec<Segment>,
    arena: Option<(DeviceId, Region)>,
    kv_on: Option<DeviceId>,
    departures: u32,
    waiting_for: u32,
    dependents: Vec<JobId>,
    /// Which of the gangs.
    gang: Option<u32>,
}

impl SavedSlot {
    pub(super) fn of(slot: &Slot, gang_of: impl Fn(&Members) -> Option<u32>) -> Self {
        let job = slot.job.as_ref().map(|job| SavedJob {
            spec: job.spec.clone(),
            segments: job.segments.iter().collect(),
            arena: job.arena,
            kv_on: job.kv_on,
            departures: job.departures,
            waiting_for: job.waiting_for,
            dependents: job.dependents.to_vec(),
            gang: job.gang.as_ref().and_then(gang_of),
        });
        Self { generation: slot.generation, job }
    }

    /// The slot of the job `id`, in a state that has all but jobs, lanes and memory.
    pub(super) fn restored(self, id: JobId, state: &State, gangs: &[Members]) -> Result<Slot, Refusal> {
        let Self { generation, job } = self;
        let Some(saved) = job else { return Ok(Slot { generation, job: None }) };
        let template = state.model(saved.spec.model).ok_or("a job of a model that there is not")?.template.clone();
        template.check_binding(&saved.spec.binding).map_err(|_| "a job with a symbol that has no value")?;
        let segments = Segments::of(template.op_count(), &saved.segments).ok_or("states of other operators")?;
        let on_device = |device: DeviceId| device.index() < state.memory.len();
        let lanes = segments.iter().filter_map(|segment| segment.lane);
        let places = saved.arena.iter().map(|&(device, _)| device).chain(saved.kv_on);
        if !places.into_iter().all(on_device) || !lanes.into_iter().all(|lane| state.lane(lane).is_some()) {
            return Err("a job on a device or a lane that there is not".into());
        }
        if segments.iter().any(|segment| segment.state.is_on_lane() && segment.lane.is_none()) {
            return Err("operators on no lane".into());
        }
        let gang = match (saved.gang, saved.spec.gang) {
            (None, None) if !template.exchanges() => None,
            (Some(index), Some(place)) => {
                let found = gangs.get(index as usize).filter(|found| found.jobs().len() == place.size as usize);
                let found = found.filter(|found| found.jobs().get(place.rank as usize) == Some(&id));
                Some(found.ok_or("a job of a gang that it is not in")?.clone())
            }
            _ => return Err("a job with collectives that is in no gang, or in one that it does not name".into()),
        };
        if saved.waiting_for as usize > saved.spec.after.len() {
            return Err("a job that waits for more than it comes after".into());
        }
        let job = Job {
            activations: template.activation_bytes(&saved.spec.binding),
            spec: saved.spec,
            template,
            segments,
            arena: saved.arena,
            kv_on: saved.kv_on,
            departures: saved.departures,
            waiting_for: saved.waiting_for,
            dependents: saved.dependents.into(),
            gang,
        };
        Ok(Slot { generation, job: Some(job) })
    }
}
