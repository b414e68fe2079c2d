//! Everything that a version of the graph says, as a value that can be compared.

use std::sync::Arc;

use slicescheduler_gmg::id::{DeviceId, JobId, RequestId};
use slicescheduler_gmg::job::{JobSpec, OpState, Segments};
use slicescheduler_gmg::memory::{DeviceMemory, Region};
use slicescheduler_gmg::request::Request;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::view::LaneEntry;
use slicescheduler_gmg::{Container, GmgView, Tenant};

/// Requests that are asked for; tests have fewer.
const REQUESTS: u64 = 64;

#[derive(Debug, PartialEq)]
pub struct Digest {
    version: u64,
    tenants: Vec<Arc<Tenant>>,
    models: Vec<String>,
    containers: Vec<Arc<Container>>,
    requests: Vec<(u64, Request)>,
    jobs: Vec<(JobId, JobDigest)>,
    lanes: Vec<Vec<LaneEntry>>,
    devices: Vec<(DeviceMemory, bool, Option<u32>)>,
}

#[derive(Debug, PartialEq)]
struct JobDigest {
    spec: Arc<JobSpec>,
    template: String,
    segments: Segments,
    states: Vec<Option<OpState>>,
    ready: Vec<u32>,
    progress: u32,
    arena: Option<(DeviceId, Region)>,
    kv_on: Option<DeviceId>,
    waiting_for: u32,
    dependents: Vec<JobId>,
}

impl Digest {
    /// The same content, one delta later.
    pub fn next_version(&mut self) {
        self.version += 1;
    }

    /// The same content, told operator by operator: it does not say in how many deltas it came, nor which
    /// operators were handed out together. With `times`, runs of operators that ran at the same time stay.
    pub fn per_operator(mut self, times: bool) -> Self {
        self.version = 0;
        for queue in &mut self.lanes {
            let entries = std::mem::take(queue).into_iter();
            *queue =
                entries.flat_map(|entry| entry.ops.map(move |op| LaneEntry { ops: op..op + 1, ..entry })).collect();
        }
        if !times {
            self.jobs.iter_mut().for_each(|(_, job)| job.segments = Segments::pending(0));
        }
        self
    }
}

pub fn digest(view: &impl GmgView) -> Digest {
    let mut ids = Vec::new();
    view.jobs(&mut ids);
    let devices = (0..view.cluster().devices().len() as u32).map(DeviceId);
    let device = |device| {
        let owner = view.container_of(device).map(|container| container.0);
        (view.memory(device).unwrap().clone(), view.is_lost(device), owner)
    };
    let model = |model: &Arc<slicescheduler_gmg::Model>| {
        format!("{} {} {} {}", model.name, model.tenant(), model.weights, model.template.name())
    };
    Digest {
        version: view.version().0,
        tenants: view.tenants().to_vec(),
        models: view.models().iter().map(model).collect(),
        containers: view.containers().to_vec(),
        requests: (0..REQUESTS).filter_map(|id| Some((id, *view.request(RequestId(id))?))).collect(),
        jobs: ids.into_iter().map(|id| (id, job_digest(view, id))).collect(),
        lanes: view.cluster().lanes().map(|lane| view.lane(lane).unwrap().queue().to_vec()).collect(),
        devices: devices.map(device).collect(),
    }
}

fn job_digest(view: &impl GmgView, id: JobId) -> JobDigest {
    let job = view.job(id).unwrap();
    let mut ready = Vec::new();
    view.ready(id, Nanos::MAX, &mut ready);
    JobDigest {
        spec: job.spec.clone(),
        template: job.template.name().to_owned(),
        segments: job.segments.clone(),
        states: (0..job.op_count()).map(|op| job.op_state(slicescheduler_gmg::id::OpIndex(op))).collect(),
        ready: ready.into_iter().map(|op| op.0).collect(),
        progress: job.progress(),
        arena: job.arena,
        kv_on: job.kv_on,
        waiting_for: job.waiting_for,
        dependents: job.dependents.to_vec(),
    }
}
