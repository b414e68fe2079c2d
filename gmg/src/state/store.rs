//! The writing half of a graph.

use std::sync::Arc;

use crate::id::{DeviceId, JobId, LaneId, RequestId, TenantId, Version};
use crate::job::Job;
use crate::memory::{DeviceMemory, Region};
use crate::request::Request;
use crate::state::{Slot, State, Statics};
use crate::units::Bytes;
use crate::view::{GmgView, Lane};

/// What transitions need of the graph that they change, and nothing that could break a table.
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
    /// For changes of any kind, at the price of a copy of what the device does not share with
    /// other versions. What happens all the time has methods of its own.
    fn memory_mut(&mut self, device: DeviceId) -> Option<&mut DeviceMemory>;

    fn reserve_arena(&mut self, device: DeviceId, bytes: Bytes) -> Option<Region> {
        self.memory_mut(device)?.reserve_arena(bytes)
    }
    fn release_arena(&mut self, device: DeviceId, region: Region) {
        if let Some(memory) = self.memory_mut(device) {
            memory.release_arena(region);
        }
    }
    fn grow_kv(&mut self, device: DeviceId, request: RequestId, tenant: TenantId, blocks: u32) {
        if let Some(memory) = self.memory_mut(device) {
            memory.grow_kv(request, tenant, blocks);
        }
    }
    fn release_kv(&mut self, device: DeviceId, request: RequestId) {
        if let Some(memory) = self.memory_mut(device) {
            memory.release_kv(request);
        }
    }
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
        self.requests.set(id, Some(&request));
        id
    }
    fn request_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        self.requests.get_mut(id)
    }
    fn remove_request(&mut self, id: RequestId) {
        self.requests.set(id, None);
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
        self.jobs.get_mut(id.slot as usize)?.get_mut(id)
    }
    fn remove_job(&mut self, id: JobId) {
        if self.job(id).is_some() {
            self.jobs[id.slot as usize].vacate();
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
