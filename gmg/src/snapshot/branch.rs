//! Private continuations of a snapshot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::apply::change;
use crate::cluster::Cluster;
use crate::delta::{Applied, Delta, Effect};
use crate::error::GmgError;
use crate::id::{ContainerId, DeviceId, JobId, LaneId, RequestId, Version};
use crate::job::Job;
use crate::memory::DeviceMemory;
use crate::request::Request;
use crate::snapshot::scratch::{Marked, Scratch};
use crate::state::{Slot, State, Statics, Store};
use crate::tenant::{Container, Model, Tenant};
use crate::view::{GmgView, Lane, View};

/// A private continuation of a snapshot.
///
/// Jobs get the ids that the same deltas would have given them on the live graph: slots that were
/// freed on the branch first, then the base's free ones, then new ones.
#[derive(Debug)]
pub struct Branch {
    base: Arc<State>,
    version: Version,
    /// [`None`]: those of the base.
    statics: Option<Arc<Statics>>,
    next_request: u64,
    next_slot: u32,
    /// How many of the base's free slots are used up, counted from the one to be used first.
    taken: usize,
    /// The mark under which changes are made; zero without one.
    mark: u64,
    /// [`None`]: nothing was changed yet.
    scratch: Option<Box<Scratch>>,
}

/// A moment that a branch can go back to. It is of one branch, and is used up by going back:
///
/// ```compile_fail,E0382
/// # use slicescheduler_gmg::{Branch, snapshot::StaleMark};
/// fn twice(branch: &mut Branch) -> Result<(), StaleMark> {
///     let mark = branch.mark();
///     branch.rollback(mark)?;
///     branch.rollback(mark)
/// }
/// ```
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    serial: u64,
    depth: usize,
}

/// A mark that a branch cannot go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the mark is of another branch, or the branch has gone back to a mark before it; the branch is as it was")]
pub struct StaleMark;

/// Marks are numbered in the process, so that one of another branch is told.
static MARKS: AtomicU64 = AtomicU64::new(1);

impl Branch {
    pub(super) fn of(base: Arc<State>) -> Self {
        Self {
            version: base.version(),
            statics: None,
            next_request: base.next_request_id().0,
            next_slot: base.slots().len() as u32,
            taken: 0,
            mark: 0,
            scratch: None,
            base,
        }
    }

    /// Applies one change to the branch; see [`Gmg::apply`](crate::Gmg::apply).
    ///
    /// # Errors
    /// As on the live graph.
    #[inline]
    pub fn apply(&mut self, delta: impl Into<Delta>) -> Result<Applied, GmgError> {
        let delta = delta.into();
        let effect = self.change(&delta)?;
        Ok(Applied { version: self.version, delta, effect })
    }

    fn change(&mut self, delta: &Delta) -> Result<Effect, GmgError> {
        change(self, delta)
    }

    /// Remembers this moment. Marks nest: the last one set is the first to be rolled back.
    pub fn mark(&mut self) -> Mark {
        let serial = MARKS.fetch_add(1, Ordering::Relaxed);
        let marked = Marked {
            serial,
            version: self.version,
            statics: self.statics.clone(),
            next_request: self.next_request,
            next_slot: self.next_slot,
            taken: self.taken,
            freed_journal: self.own().freed_journal.len(),
            extents: self.own().extents(),
        };
        let marks = &mut self.own().marks;
        marks.push(marked);
        let depth = marks.len();
        self.mark = serial;
        Mark { serial, depth }
    }

    /// Goes back to `mark` and forgets it, together with every mark set after it. O(changes since).
    ///
    /// # Errors
    /// If the mark is of another branch, or was forgotten.
    pub fn rollback(&mut self, mark: Mark) -> Result<(), StaleMark> {
        let scratch = self.scratch.as_mut().ok_or(StaleMark)?;
        let at = mark.depth.wrapping_sub(1);
        if scratch.marks.get(at).is_none_or(|marked| marked.serial != mark.serial) {
            return Err(StaleMark);
        }
        scratch.marks.truncate(mark.depth);
        let Some(marked) = scratch.marks.pop() else { return Err(StaleMark) };
        scratch.go_back(marked.extents);
        for change in scratch.freed_journal.drain(marked.freed_journal..).rev() {
            match change {
                Some(taken) => scratch.freed.push(taken),
                None => {
                    scratch.freed.pop();
                }
            }
        }
        self.mark = scratch.marks.last().map_or(0, |marked| marked.serial);
        (self.version, self.statics) = (marked.version, marked.statics);
        (self.next_request, self.next_slot, self.taken) = (marked.next_request, marked.next_slot, marked.taken);
        Ok(())
    }

    /// The branch as it is now.
    pub fn view(&self) -> View<'_> {
        View::from(self)
    }

    fn own(&mut self) -> &mut Scratch {
        self.scratch.get_or_insert_with(|| self.base.scratch().take())
    }

    /// The table entry of a slot, to be written.
    fn slot_mut(&mut self, slot: u32) -> Option<&mut Slot> {
        let (mark, base) = (self.mark, &self.base);
        let scratch = self.scratch.get_or_insert_with(|| base.scratch().take());
        scratch.jobs.write(slot, mark, || Some(base.slots().get(slot as usize).cloned().unwrap_or_default()))
    }

    /// The slot that the next job gets.
    fn take_slot(&mut self) -> u32 {
        let marked = self.mark > 0;
        let own = self.own();
        if let Some(slot) = own.freed.pop() {
            if marked {
                own.freed_journal.push(Some(slot));
            }
            return slot;
        }
        if let Some(free) = self.base.free_slot(self.taken) {
            self.taken += 1;
            return free.slot;
        }
        self.next_slot += 1;
        self.next_slot - 1
    }
}

impl Drop for Branch {
    fn drop(&mut self) {
        if let Some(scratch) = self.scratch.take() {
            self.base.scratch().put(scratch);
        }
    }
}

impl GmgView for Branch {
    fn version(&self) -> Version {
        self.version
    }
    fn cluster(&self) -> &Cluster {
        &self.statics().cluster
    }
    fn tenants(&self) -> &[Arc<Tenant>] {
        &self.statics().tenants
    }
    fn models(&self) -> &[Arc<Model>] {
        &self.statics().models
    }
    fn containers(&self) -> &[Arc<Container>] {
        &self.statics().containers
    }
    fn container_of(&self, device: DeviceId) -> Option<ContainerId> {
        self.statics().container_of.get(device.index()).copied().flatten()
    }
    fn request(&self, id: RequestId) -> Option<&Request> {
        match self.scratch.as_ref().and_then(|own| own.requests.get(id)) {
            Some(own) => own.as_ref(),
            None => self.base.request(id),
        }
    }
    fn job(&self, id: JobId) -> Option<&Job> {
        match self.scratch.as_ref().and_then(|own| own.jobs.get(id.slot)) {
            Some(own) => own.get(id),
            None => self.base.job(id),
        }
    }
    fn jobs(&self, into: &mut Vec<JobId>) {
        let from = into.len();
        self.base.jobs(into);
        let Some(own) = &self.scratch else { return };
        let changed = own.jobs.iter().filter(|(_, slot)| slot.job.is_some());
        into.extend(changed.map(|(slot, found)| JobId { slot, generation: found.generation }));
        let mut live: Vec<_> = into.drain(from..).filter(|&id| self.job(id).is_some()).collect();
        live.sort_unstable();
        live.dedup();
        into.append(&mut live);
    }
    fn lane(&self, id: LaneId) -> Option<&Lane> {
        let index = self.statics().lane_index(id)?;
        match self.scratch.as_ref().and_then(|own| own.lanes.get(index as u32)) {
            Some(own) => Some(own),
            None => self.base.lanes().get(index),
        }
    }
    fn memory(&self, device: DeviceId) -> Option<&DeviceMemory> {
        match self.scratch.as_ref().and_then(|own| own.memory.get(device.0)) {
            Some(own) => Some(own),
            None => self.base.memory(device),
        }
    }
    fn is_lost(&self, device: DeviceId) -> bool {
        self.statics().lost.get(device.index()).copied().unwrap_or(false)
    }
}

impl Store for Branch {
    fn set_version(&mut self, version: Version) {
        self.version = version;
    }
    fn statics(&self) -> &Statics {
        self.statics.as_ref().unwrap_or(self.base.statics_arc())
    }
    fn statics_mut(&mut self) -> &mut Statics {
        Arc::make_mut(self.statics.get_or_insert_with(|| self.base.statics_arc().clone()))
    }
    fn insert_request(&mut self, request: Request) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let mark = self.mark;
        self.own().requests.write(id, mark, || Some(Some(request)));
        id
    }
    fn request_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        let (mark, base) = (self.mark, &self.base);
        let scratch = self.scratch.get_or_insert_with(|| base.scratch().take());
        scratch.requests.write(id, mark, || base.request(id).map(|request| Some(*request)))?.as_mut()
    }
    fn remove_request(&mut self, id: RequestId) {
        let (mark, base) = (self.mark, &self.base);
        let scratch = self.scratch.get_or_insert_with(|| base.scratch().take());
        if let Some(request) = scratch.requests.write(id, mark, || base.request(id).map(|request| Some(*request))) {
            *request = None;
        }
    }
    fn insert_job(&mut self, job: Job) -> JobId {
        let slot = self.take_slot();
        let Some(place) = self.slot_mut(slot) else { return JobId { slot, generation: 0 } };
        place.job = Some(job);
        JobId { slot, generation: place.generation }
    }
    fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        let (mark, base) = (self.mark, &self.base);
        let scratch = self.scratch.get_or_insert_with(|| base.scratch().take());
        // One look-up; a row that is not of this job is not copied.
        let of_job = || base.slots().get(id.slot as usize).filter(|slot| slot.get(id).is_some()).cloned();
        scratch.jobs.write(id.slot, mark, of_job)?.get_mut(id)
    }
    fn remove_job(&mut self, id: JobId) {
        if self.job(id).is_none() {
            return;
        }
        if let Some(slot) = self.slot_mut(id.slot) {
            slot.vacate();
        }
        let marked = self.mark > 0;
        let own = self.own();
        own.freed.push(id.slot);
        if marked {
            own.freed_journal.push(None);
        }
    }
    fn lane_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        let index = self.statics().lane_index(id)?;
        let (mark, base) = (self.mark, &self.base);
        let scratch = self.scratch.get_or_insert_with(|| base.scratch().take());
        scratch.lanes.write(index as u32, mark, || base.lanes().get(index).cloned())
    }
    fn memory_mut(&mut self, device: DeviceId) -> Option<&mut DeviceMemory> {
        let (mark, base) = (self.mark, &self.base);
        let scratch = self.scratch.get_or_insert_with(|| base.scratch().take());
        scratch.memory.write(device.0, mark, || base.memory(device).cloned())
    }
}
