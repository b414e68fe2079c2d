//! The tables of one version of the graph.

mod changes;
mod recorded;
mod requests;
#[cfg(feature = "serde")]
mod saved;
mod store;

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::id::{ContainerId, DeviceId, JobId, LaneId, RequestId, Version};
use crate::job::Job;
use crate::memory::{DeviceLayout, DeviceMemory};
use crate::request::Request;
use crate::snapshot::ScratchPool;
use crate::tenant::{Container, Model, Tenant};
use crate::units::Bytes;
use crate::view::{GmgView, Lane};

pub(crate) use changes::Changes;
pub(crate) use recorded::Recorded;
use requests::Requests;
pub(crate) use store::Store;

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
    pub(crate) fn lane_index(&self, lane: LaneId) -> Option<usize> {
        let device = lane.device.index();
        let (first, end) = (*self.lane_offset.get(device)?, *self.lane_offset.get(device + 1)?);
        let index = first + u32::from(lane.index);
        (index < end).then_some(index as usize)
    }
}

/// The place of a job, and how many jobs had it before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) job: Option<Job>,
}

impl Slot {
    pub(crate) fn get(&self, id: JobId) -> Option<&Job> {
        self.job.as_ref().filter(|_| self.generation == id.generation)
    }

    pub(crate) fn get_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.job.as_mut().filter(|_| self.generation == id.generation)
    }

    pub(crate) fn vacate(&mut self) {
        self.job = None;
        self.generation = self.generation.wrapping_add(1);
    }
}

/// One version of the graph. [`Gmg`](crate::Gmg) owns the live one; a
/// [`Snapshot`](crate::Snapshot) shares a published one.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) version: Version,
    statics: Arc<Statics>,
    requests: Requests,
    next_request: u64,
    jobs: Vec<Slot>,
    free_slots: Vec<u32>,
    lanes: Vec<Lane>,
    memory: Vec<DeviceMemory>,
    scratch: Arc<ScratchPool>,
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
            requests: Requests::default(),
            next_request: 0,
            jobs: Vec::new(),
            free_slots: Vec::new(),
            lanes,
            memory,
            scratch: Arc::default(),
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

    /// Bytes that the jobs of this version take: their slots, and what does not lie in them. Templates
    /// and specifications, which all versions share, are not counted. O(slots).
    pub fn job_bytes(&self) -> Bytes {
        let heap = self.jobs.iter().filter_map(|slot| slot.job.as_ref()).map(|job| job.segments.heap_bytes());
        Bytes((self.jobs.len() * size_of::<Slot>() + heap.sum::<usize>()) as u64)
    }

    /// The ids of all requests, ascending.
    pub(crate) fn request_ids(&self) -> Vec<RequestId> {
        self.requests.ids().collect()
    }

    pub(crate) fn statics_arc(&self) -> &Arc<Statics> {
        &self.statics
    }

    pub(crate) fn next_request_id(&self) -> RequestId {
        RequestId(self.next_request)
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.jobs
    }

    pub(crate) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// Where branches leave what they need not allocate again.
    pub(crate) fn scratch(&self) -> &Arc<ScratchPool> {
        &self.scratch
    }

    pub(crate) fn free_slots(&self) -> usize {
        self.free_slots.len()
    }

    /// Becomes equal to `live`, from which it differs by `changes`, given in order.
    /// O(changes), and nothing is read of what did not change.
    pub(crate) fn catch_up<'c>(&mut self, live: &Self, changes: impl Iterator<Item = &'c Changes> + Clone) {
        self.version = live.version;
        self.next_request = live.next_request;
        if changes.clone().any(|changes| changes.statics) {
            self.statics = live.statics.clone();
        }
        self.jobs.resize_with(live.jobs.len(), Slot::default);
        let kept = changes.clone().map(|changes| changes.free_slots).min().unwrap_or(0);
        self.free_slots.truncate(kept);
        self.free_slots.extend_from_slice(&live.free_slots[self.free_slots.len()..]);
        for changes in changes.clone() {
            for slot in changes.jobs.iter() {
                self.jobs[slot as usize].clone_from(&live.jobs[slot as usize]);
            }
            for lane in changes.lanes.iter() {
                self.lanes[lane as usize].clone_from(&live.lanes[lane as usize]);
            }
            for &request in &changes.requests {
                self.requests.set(request, live.requests.get(request));
            }
            for device in changes.devices.iter() {
                self.memory[device as usize].clone_from(&live.memory[device as usize]);
            }
        }
        let whole = |device: DeviceId| changes.clone().any(|changes| changes.devices.contains(device.0));
        for &(device, change) in changes.clone().flat_map(|changes| &changes.memory) {
            if !whole(device) {
                change.repeat(&mut self.memory[device.index()]);
            }
        }
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
        self.requests.get(id)
    }
    fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(id.slot as usize)?.get(id)
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
