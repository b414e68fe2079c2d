//! The tables as records, and back. The order of the records is part of the form; see
//! [`wire::save`](crate::wire::save).
//!
//! Reading trusts nothing: what a record says of another one is looked up, and what could be told in two
//! ways is told in one. A graph that is read is one that deltas could have made, as far as deltas that
//! come later rely on it.

mod jobs;

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::jobs::SavedSlot;
use super::{Slot, State, Statics};
use crate::cluster::Cluster;
use crate::gang::Members;
use crate::id::{ContainerId, DeviceId, JobId, LaneId, LinkId, RequestId, TenantId, Version};
use crate::memory::{DeviceMemory, LayoutFault, SavedDevice};
use crate::request::{Request, RequestState};
use crate::tenant::{Container, Model, Tenant};
use crate::view::{GmgView, Lane, LaneEntry};
use crate::wire::snapshot::{Reader, Refusal, Writer};
use crate::wire::{ModelForm, Templates, WireError};

#[derive(Serialize, Deserialize)]
struct Head {
    /// The fingerprint of the cluster.
    resources: u64,
    failed: Vec<LinkId>,
    lost: Vec<DeviceId>,
    version: Version,
    next_request: u64,
    /// The number of the first page of requests.
    first_page: u64,
}

/// What no counter has reached when it is restored, so that none overflows afterwards.
const MOST_COUNTED: u64 = u64::MAX / 2;

/// The most pages from the first that a request lives on to that of the next request. The table of requests
/// has a word for each.
const MOST_PAGES: u64 = 1 << 24;

impl State {
    pub(crate) fn save(&self, into: &mut Writer) -> Result<(), WireError> {
        let cluster = self.cluster();
        let links = (0..cluster.links().len() as u32).map(LinkId);
        let devices = (0..cluster.devices().len() as u32).map(DeviceId);
        let (first_page, pages) = self.requests.pages();
        into.put(&Head {
            resources: cluster.fingerprint(),
            failed: links.filter(|&link| cluster.is_failed(link)).collect(),
            lost: devices.filter(|&device| self.is_lost(device)).collect(),
            version: self.version,
            next_request: self.next_request,
            first_page,
        })?;
        into.put_all(self.tenants().iter())?;
        into.put_all(self.models().iter().map(|model| (model.tenant, ModelForm::of(model))))?;
        into.put_all(self.containers().iter())?;
        into.put_all(pages.iter())?;
        for request in self.request_ids().into_iter().filter_map(|id| self.request(id)) {
            into.put(request)?;
        }
        let gangs = self.gangs();
        into.put_all(gangs.iter().map(|(_, members)| (members.jobs(), members.broken, members.shared_batch)))?;
        let gang_of = |members: &Members| {
            let first = members.jobs().first().copied();
            gangs.binary_search_by_key(&first, |&(first, _)| Some(first)).ok().map(|place| place as u32)
        };
        into.put_all(self.jobs.iter().map(|slot| SavedSlot::of(slot, gang_of)))?;
        into.put(&self.free_slots)?;
        for lane in &self.lanes {
            into.put(&lane.queue.as_slice())?;
        }
        self.memory.iter().try_for_each(|memory| into.put(&memory.save()))
    }

    /// The gangs that have a job left, by the id of rank 0, ascending.
    fn gangs(&self) -> Vec<(JobId, &Members)> {
        let members = self.jobs.iter().filter_map(|slot| slot.job.as_ref()?.gang.as_ref());
        let mut gangs: Vec<_> = members.filter_map(|members| Some((*members.jobs().first()?, members))).collect();
        gangs.sort_by_key(|&(first, _)| first);
        gangs.dedup_by_key(|&mut (first, _)| first);
        gangs
    }

    pub(crate) fn restored<T: Templates + ?Sized>(
        from: &mut Reader<'_>,
        cluster: Cluster,
        templates: &T,
    ) -> Result<Self, WireError> {
        let head: Head = from.get("head")?;
        let found = cluster.fingerprint();
        if found != head.resources {
            return Err(WireError::Resources { found, expected: head.resources });
        }
        let cluster = cluster.with_failed(&head.failed).ok_or_else(|| from.refuse("a link that there is not"))?;
        let mut state = Self::new(cluster);
        if head.version.0.max(head.next_request) > MOST_COUNTED {
            return Err(from.refuse("a version or a number of requests that no graph reaches"));
        }
        (state.version, state.next_request) = (head.version, head.next_request);
        let statics = Arc::make_mut(&mut state.statics);
        for device in head.lost {
            *statics.lost.get_mut(device.index()).ok_or_else(|| from.refuse("a device that there is not"))? = true;
        }
        read_mapping(from, statics, templates)?;
        state.read_requests(from, head.first_page)?;
        state.read_jobs(from)?;
        state.read_lanes(from)?;
        state.read_memory(from)?;
        Ok(state)
    }

    fn read_requests(&mut self, from: &mut Reader<'_>, first_page: u64) -> Result<(), WireError> {
        if first_page > self.next_request / u64::from(u64::BITS) {
            return Err(from.refuse("a first page of requests that have not arrived"));
        }
        let pages = from.get_all("requests of a page", Ok::<u64, Refusal>)?;
        let to_come = self.next_request / u64::from(u64::BITS) - first_page;
        if pages.iter().any(|&page| page != 0) && to_come > MOST_PAGES {
            return Err(from.refuse("requests too far behind the next one"));
        }
        for (number, page) in (first_page..).zip(pages) {
            for bit in (0..u64::BITS).filter(|bit| page >> bit & 1 == 1) {
                let request: Request = from.get("request")?;
                let id = number.checked_mul(64).and_then(|first| first.checked_add(bit.into()));
                let id = id.filter(|&id| id < self.next_request).map(RequestId);
                let id = id.ok_or_else(|| from.refuse("a request that has not arrived"))?;
                let known = self.tenant(request.tenant).is_some();
                let placed = request.device.is_none_or(|device| device.index() < self.memory.len());
                if !known || !placed || (request.state == RequestState::Running) != request.device.is_some() {
                    return Err(from.refuse("a request of nobody, or one that runs nowhere"));
                }
                self.requests.set(id, Some(&request));
            }
        }
        Ok(())
    }

    fn read_jobs(&mut self, from: &mut Reader<'_>) -> Result<(), WireError> {
        let gangs: Vec<Members> = from.get_all("gang", |(jobs, broken, shared_batch): (Vec<JobId>, bool, bool)| {
            Ok(Members { jobs: jobs.into(), broken, shared_batch })
        })?;
        let mut next = 0;
        self.jobs = from.get_all("job", |saved: SavedSlot| {
            let id = JobId { slot: next, generation: saved.generation };
            next += 1;
            saved.restored(id, self, &gangs)
        })?;
        self.free_slots = from.get("free slots")?;
        let mut seen = HashSet::new();
        let vacant = |slot: &u32| self.jobs.get(*slot as usize).is_some_and(|slot| slot.job.is_none());
        let all_vacant = self.free_slots.iter().all(|slot| vacant(slot) && seen.insert(*slot));
        if !all_vacant || self.jobs.iter().filter(|slot| slot.job.is_none()).count() != seen.len() {
            return Err(
                from.refuse("a free slot that has a job, or that is free twice, or a vacant one that is not free")
            );
        }
        Ok(())
    }

    /// Every operator on a lane is in its queue, once.
    fn read_lanes(&mut self, from: &mut Reader<'_>) -> Result<(), WireError> {
        let mut queued: Vec<(JobId, u32, u32)> = Vec::new();
        let lanes: Vec<LaneId> = self.cluster().lanes().collect();
        for (id, place) in lanes.into_iter().zip(0..) {
            let queue: Vec<LaneEntry> = from.get("lane")?;
            let on_lane = |entry: &LaneEntry| {
                let Some(job) = self.job(entry.job).filter(|job| entry.ops.end <= job.op_count()) else { return false };
                let here = |segment: &crate::job::Segment| segment.state.is_on_lane() && segment.lane == Some(id);
                !entry.ops.is_empty() && job.segments.all(entry.ops.clone(), here)
            };
            if !queue.iter().all(on_lane) || queue.windows(2).any(|pair| pair[0].rank < pair[1].rank) {
                return Err(from.refuse("operators that are not on this lane, or a lower rank ahead of a higher one"));
            }
            queued.extend(queue.iter().map(|entry| (entry.job, entry.ops.start, entry.ops.end)));
            self.lanes[place] = Lane { queue: queue.into() };
        }
        queued.sort_unstable();
        let twice = queued.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[1].1 < pair[0].2);
        let jobs = self.jobs.iter().filter_map(|slot| slot.job.as_ref());
        let on_lanes = jobs.flat_map(|job| job.segments.iter()).filter(|segment| segment.state.is_on_lane());
        let count: u64 = on_lanes.map(|segment| u64::from(segment.end - segment.first)).sum();
        if twice || queued.iter().map(|&(_, start, end)| u64::from(end - start)).sum::<u64>() != count {
            return Err(from.refuse("an operator that is queued twice, or on a lane and not queued"));
        }
        Ok(())
    }

    fn read_memory(&mut self, from: &mut Reader<'_>) -> Result<(), WireError> {
        let mut arenas = vec![Vec::new(); self.memory.len()];
        for (device, region) in self.jobs.iter().filter_map(|slot| slot.job.as_ref()?.arena) {
            if let Some(arenas) = arenas.get_mut(device.index()) {
                arenas.push(region);
            }
        }
        let known = (self.models().len(), self.tenants().len());
        for (device, arenas) in (0..).map(DeviceId).zip(arenas) {
            let saved: SavedDevice = from.get("device")?;
            let capacity = self.cluster().device(device).map_or(crate::units::Bytes::ZERO, |device| device.spec.memory);
            match saved.layout.fault(capacity) {
                Some(LayoutFault::TooLarge) => return Err(from.refuse("a layout larger than the device")),
                Some(LayoutFault::Part { .. }) => return Err(from.refuse("a part of a device that is too large")),
                Some(LayoutFault::Blocks(_)) => return Err(from.refuse("a layout in too many KV blocks")),
                None => {}
            }
            let memory = DeviceMemory::restored(saved, arenas.into_iter(), known);
            let mut memory = memory.map_err(|what| from.refuse(what))?;
            self.owner(device).into_iter().for_each(|owner| memory.keep_kv_for(owner));
            self.memory[device.index()] = memory;
        }
        let homes = self.request_ids().into_iter().filter_map(|id| Some((id, self.request(id)?.device?)));
        let mut parts = HashSet::new();
        for (id, home) in homes {
            let others = self.memory(home).map_or(&[][..], |memory| memory.kv().parts(id));
            parts.extend(std::iter::once(&home).chain(others).map(|&device| (id, device)));
        }
        for (device, memory) in (0..).map(DeviceId).zip(&self.memory) {
            if memory.kv().sequences().into_iter().any(|id| !parts.remove(&(id, device))) {
                return Err(from.refuse("a sequence of a request that has none there"));
            }
        }
        if parts.is_empty() { Ok(()) } else { Err(from.refuse("a request that runs where it has no sequence")) }
    }
}

/// Tenants, models and containers.
fn read_mapping<T: Templates + ?Sized>(
    from: &mut Reader<'_>,
    statics: &mut Statics,
    templates: &T,
) -> Result<(), WireError> {
    let mut names = HashSet::new();
    statics.tenants = from.get_all("tenant", |tenant: Tenant| {
        if names.insert(tenant.name.clone()) {
            Ok(Arc::new(tenant))
        } else {
            Err("a second tenant of that name".into())
        }
    })?;
    let tenants = statics.tenants.len();
    let known = |tenant: &TenantId| tenant.index() < tenants;
    statics.models = from.get_all("model", |(tenant, model): (TenantId, ModelForm)| {
        let model = Model { tenant, ..Model::clone(&*model.with(templates)?) };
        if known(&tenant) { Ok(Arc::new(model)) } else { Err("a model of nobody".into()) }
    })?;
    let container_of = &mut statics.container_of;
    let mut next = 0;
    statics.containers = from.get_all("container", |container: Container| {
        let ranks = container.layout.ranks() as usize;
        if ranks == 0 || container.devices.is_empty() || !container.devices.len().is_multiple_of(ranks) {
            return Err("a container without a whole number of replicas".into());
        }
        if !known(&container.tenant) || !container.sharers.iter().all(known) {
            return Err("a container of nobody".into());
        }
        if !container.devices.is_sorted() {
            return Err("a container whose devices are not in order".into());
        }
        for device in &container.devices {
            match container_of.get_mut(device.index()) {
                Some(none @ None) => *none = Some(ContainerId(next)),
                _ => return Err("a container's device that another one has, or that there is not".into()),
            }
        }
        next += 1;
        Ok(Arc::new(container))
    })?;
    Ok(())
}
