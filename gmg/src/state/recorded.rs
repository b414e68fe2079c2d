//! The live graph while a publisher listens.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::id::{ContainerId, DeviceId, JobId, LaneId, RequestId, TenantId, Version};
use crate::job::Job;
use crate::memory::{DeviceMemory, Region};
use crate::request::Request;
use crate::state::changes::MemoryChange;
use crate::state::{Changes, State, Statics, Store};
use crate::tenant::{Container, Model, Tenant};
use crate::units::Bytes;
use crate::view::{GmgView, Lane};

/// Writes to a state and keeps account of what was written.
pub(crate) struct Recorded<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) changes: &'a mut Changes,
}

impl GmgView for Recorded<'_> {
    fn version(&self) -> Version {
        self.state.version()
    }
    fn cluster(&self) -> &Cluster {
        self.state.cluster()
    }
    fn tenants(&self) -> &[Arc<Tenant>] {
        self.state.tenants()
    }
    fn models(&self) -> &[Arc<Model>] {
        self.state.models()
    }
    fn containers(&self) -> &[Arc<Container>] {
        self.state.containers()
    }
    fn container_of(&self, device: DeviceId) -> Option<ContainerId> {
        self.state.container_of(device)
    }
    fn request(&self, id: RequestId) -> Option<&Request> {
        self.state.request(id)
    }
    fn job(&self, id: JobId) -> Option<&Job> {
        self.state.job(id)
    }
    fn jobs(&self, into: &mut Vec<JobId>) {
        self.state.jobs(into);
    }
    fn lane(&self, id: LaneId) -> Option<&Lane> {
        self.state.lane(id)
    }
    fn memory(&self, device: DeviceId) -> Option<&DeviceMemory> {
        self.state.memory(device)
    }
    fn is_lost(&self, device: DeviceId) -> bool {
        self.state.is_lost(device)
    }
}

impl Store for Recorded<'_> {
    fn set_version(&mut self, version: Version) {
        self.state.set_version(version);
    }
    fn statics(&self) -> &Statics {
        self.state.statics()
    }
    fn statics_mut(&mut self) -> &mut Statics {
        self.changes.statics = true;
        self.state.statics_mut()
    }
    fn insert_request(&mut self, request: Request) -> RequestId {
        let id = self.state.insert_request(request);
        self.changes.request(id);
        id
    }
    fn request_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        let request = self.state.request_mut(id)?;
        self.changes.request(id);
        Some(request)
    }
    fn remove_request(&mut self, id: RequestId) {
        self.state.remove_request(id);
        self.changes.request(id);
    }
    fn insert_job(&mut self, job: Job) -> JobId {
        let id = self.state.insert_job(job);
        self.changes.jobs.insert(id.slot);
        self.changes.free_slots = self.changes.free_slots.min(self.state.free_slots.len());
        id
    }
    fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        let job = self.state.job_mut(id)?;
        self.changes.jobs.insert(id.slot);
        Some(job)
    }
    fn remove_job(&mut self, id: JobId) {
        if self.state.job(id).is_some() {
            self.state.remove_job(id);
            self.changes.jobs.insert(id.slot);
        }
    }
    fn lane_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        let index = self.state.statics.lane_index(id)?;
        self.changes.lanes.insert(index as u32);
        self.state.lanes.get_mut(index)
    }
    fn memory_mut(&mut self, device: DeviceId) -> Option<&mut DeviceMemory> {
        let memory = self.state.memory_mut(device)?;
        self.changes.devices.insert(device.0);
        Some(memory)
    }
    fn reserve_arena(&mut self, device: DeviceId, bytes: Bytes) -> Option<Region> {
        let region = self.state.reserve_arena(device, bytes)?;
        self.changes.memory(device, MemoryChange::ReserveArena(bytes));
        Some(region)
    }
    fn release_arena(&mut self, device: DeviceId, region: Region) {
        self.state.release_arena(device, region);
        self.changes.memory(device, MemoryChange::ReleaseArena(region));
    }
    fn grow_kv(&mut self, device: DeviceId, request: RequestId, tenant: TenantId, blocks: u32) {
        self.state.grow_kv(device, request, tenant, blocks);
        self.changes.memory(device, MemoryChange::GrowKv(request, tenant, blocks));
    }
    fn release_kv(&mut self, device: DeviceId, request: RequestId) {
        self.state.release_kv(device, request);
        self.changes.memory(device, MemoryChange::ReleaseKv(request));
    }
}
