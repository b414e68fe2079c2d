//! The tables of one version of the graph.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::id::{ContainerId, DeviceId, JobId, LaneId, RequestId, Version};
use crate::id_map::IdMap;
use crate::job::Job;
use crate::memory::{DeviceLayout, DeviceMemory};
use crate::request::Request;
use crate::tenant::{Container, Model, Tenant};
use crate::view::{GmgView, Lane};

/// What changes rarely: copied as a whole when it changes, shared otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Statics {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) tenants: Vec<Arc<Tenant>>,
    pub(crate) models: Vec<Arc<Model>>,
    pub(crate) containers: Vec<Arc<Container>>,
    pub(crate) container_of: Vec<Option<ContainerId>>,
    pub(crate) lost: Vec<bool>,
    lane_offset: Vec<u32>,
}

impl Statics {
    /// The lane's place in the table of lanes.
    fn lane_index(&self, lane: LaneId) -> Option<usize> {
        let device = lane.device.index();
        let (first, end) = (*self.lane_offset.get(device)?, *self.lane_offset.get(device + 1)?);
        let index = first + u32::from(lane.index);
        (index < end).then_some(index as usize)
    }
}

#[derive(Clone, Debug, Default)]
struct Slot {
    generation: u32,
    job: Option<Job>,
}

/// One version of the graph. [`Gmg`](crate::Gmg) owns the live one; a
/// [`Snapshot`](crate::Snapshot) shares a published one.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) version: Version,
    statics: Arc<Statics>,
    requests: IdMap<RequestId, Request>,
    next_request: u64,
    jobs: Vec<Slot>,
    free_slots: Vec<u32>,
    lanes: Vec<Lane>,
    memory: Vec<DeviceMemory>,
}

impl State {
    pub(crate) fn new(cluster: Cluster) -> Self {
        let mut lane_offset = vec![0u32];
        let mut memory = Vec::new();
        for device in cluster.devices() {
            let last = lane_offset[lane_offset.len() - 1];
            lane_offset.push(last + u32::from(device.spec.lanes));
            memory.push(DeviceMemory::new(DeviceLayout::of(device.spec.memory)));
        }
        let devices = memory.len();
        let lanes = vec![Lane::default(); lane_offset[devices] as usize];
        let statics = Statics {
            cluster: Arc::new(cluster),
            tenants: Vec::new(),
            models: Vec::new(),
            containers: Vec::new(),
            container_of: vec![None; devices],
            lost: vec![false; devices],
            lane_offset,
        };
        Self {
            version: Version(0),
            statics: Arc::new(statics),
            requests: IdMap::default(),
            next_request: 0,
            jobs: Vec::new(),
            free_slots: Vec::new(),
            lanes,
            memory,
        }
    }

    /// The slot and generation that the next job gets.
    pub(crate) fn next_job(&self) -> JobId {
        self.free_slot(0).unwrap_or(JobId { slot: self.jobs.len() as u32, generation: 0 })
    }

    /// The id that a job gets in the `nth` free slot, counted from the one to be used first.
    pub(crate) fn free_slot(&self, nth: usize) -> Option<JobId> {
        let &slot = self.free_slots.iter().rev().nth(nth)?;
        Some(JobId { slot, generation: self.jobs[slot as usize].generation })
    }

    pub(crate) fn statics_arc(&self) -> &Arc<Statics> {
        &self.statics
    }

    pub(crate) fn next_request_id(&self) -> RequestId {
        RequestId(self.next_request)
    }

    pub(crate) fn slots(&self) -> usize {
        self.jobs.len()
    }
}

impl GmgView for State {
    fn version(&self) -> Version {
        self.version
    }
    fn cluster(&self) -> &Cluster {
        &self.statics.cluster
    }
    fn tenants(&self) -> &[Arc<Tenant>] {
        &self.statics.tenants
    }
    fn models(&self) -> &[Arc<Model>] {
        &self.statics.models
    }
    fn containers(&self) -> &[Arc<Container>] {
        &self.statics.containers
    }
    fn container_of(&self, device: DeviceId) -> Option<ContainerId> {
        self.statics.container_of.get(device.index()).copied().flatten()
    }
    fn request(&self, id: RequestId) -> Option<&Request> {
        self.requests.get(&id)
    }
    fn job(&self, id: JobId) -> Option<&Job> {
        let slot = self.jobs.get(id.slot as usize)?;
        slot.job.as_ref().filter(|_| slot.generation == id.generation)
    }
    fn jobs(&self, into: &mut Vec<JobId>) {
        let live = self.jobs.iter().enumerate().filter(|(_, slot)| slot.job.is_some());
        into.extend(live.map(|(index, slot)| JobId { slot: index as u32, generation: slot.generation }));
    }
    fn lane(&self, id: LaneId) -> Option<&Lane> {
        self.lanes.get(self.statics.lane_index(id)?)
    }
    fn memory(&self, device: DeviceId) -> Option<&DeviceMemory> {
        self.memory.get(device.index())
    }
    fn is_lost(&self, device: DeviceId) -> bool {
        self.statics.lost.get(device.index()).copied().unwrap_or(false)
    }
}

/// The writing half of a graph: what transitions need, and nothing that could break a table.
pub(crate) trait Store: GmgView {
    fn set_version(&mut self, version: Version);
    fn statics(&self) -> &Statics;
    fn statics_mut(&mut self) -> &mut Statics;
    fn insert_request(&mut self, request: Request) -> RequestId;
    fn request_mut(&mut self, id: RequestId) -> Option<&mut Request>;
    fn remove_request(&mut self, id: RequestId);
    fn insert_job(&mut self, job: Job) -> JobId;
    fn job_mut(&mut self, id: JobId) -> Option<&mut Job>;
    fn remove_job(&mut self, id: JobId);
    fn lane_mut(&mut self, id: LaneId) -> Option<&mut Lane>;
    fn memory_mut(&mut self, device: DeviceId) -> Option<&mut DeviceMemory>;
}

impl Store for State {
    fn set_version(&mut self, version: Version) {
        self.version = version;
    }
    fn statics(&self) -> &Statics {
        &self.statics
    }
    fn statics_mut(&mut self) -> &mut Statics {
        Arc::make_mut(&mut self.statics)
    }
    fn insert_request(&mut self, request: Request) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        if let Entry::Vacant(vacant) = self.requests.entry(id) {
            vacant.insert(request);
        }
        id
    }
    fn request_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        self.requests.get_mut(&id)
    }
    fn remove_request(&mut self, id: RequestId) {
        self.requests.remove(&id);
    }
    fn insert_job(&mut self, job: Job) -> JobId {
        let id = self.next_job();
        if self.free_slots.pop().is_none() {
            self.jobs.push(Slot::default());
        }
        self.jobs[id.slot as usize].job = Some(job);
        id
    }
    fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        let slot = self.jobs.get_mut(id.slot as usize)?;
        slot.job.as_mut().filter(|_| slot.generation == id.generation)
    }
    fn remove_job(&mut self, id: JobId) {
        if self.job(id).is_some() {
            let slot = &mut self.jobs[id.slot as usize];
            slot.job = None;
            slot.generation = slot.generation.wrapping_add(1);
            self.free_slots.push(id.slot);
        }
    }
    fn lane_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        let index = self.statics.lane_index(id)?;
        self.lanes.get_mut(index)
    }
    fn memory_mut(&mut self, device: DeviceId) -> Option<&mut DeviceMemory> {
        self.memory.get_mut(device.index())
    }
}
