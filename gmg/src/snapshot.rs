//! Published versions and private what-ifs.
//!
//! *Publishing.* The publisher keeps the last two published states. A new publication takes the
//! older one, replays on it the deltas since, and hands it out; readers that still hold the older
//! one cost a copy of the tables instead. Deltas are deterministic, so a replayed state equals the
//! live one.
//!
//! *Branching.* A [`Branch`] shares a snapshot and keeps the entities that it changed beside it.
//! Every first change since a mark puts the former entry into a journal; rolling back takes the
//! journal from the end. Taking a branch costs one reference count, whatever the size of the
//! graph; a roll-back costs what was changed.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::apply::{intend, observe};
use crate::cluster::Cluster;
use crate::delta::{Applied, Delta};
use crate::error::GmgError;
use crate::id::{ContainerId, DeviceId, JobId, LaneId, RequestId, Version};
use crate::id_map::IdMap;
use crate::job::Job;
use crate::memory::DeviceMemory;
use crate::request::Request;
use crate::state::{State, Statics, Store};
use crate::tenant::{Container, Model, Tenant};
use crate::view::{GmgView, Lane, View};

/// A published version: immutable, cheap to clone, shared between threads.
#[derive(Clone, Debug)]
pub struct Snapshot(Arc<State>);

impl Snapshot {
    /// The tables, for code that is generic over [`GmgView`].
    pub fn state(&self) -> &State {
        &self.0
    }

    /// The graph as it was published.
    pub fn view(&self) -> View<'_> {
        View::from(&*self.0)
    }

    /// A private copy to try things on. O(1).
    pub fn branch(&self) -> Branch {
        Branch {
            base: self.0.clone(),
            version: self.0.version,
            statics: None,
            requests: Overlay::default(),
            next_request: self.0.next_request_id().0,
            jobs: Overlay::default(),
            slots: Slots { next: self.0.slots() as u32, taken: 0, freed: Vec::new() },
            lanes: Overlay::default(),
            memory: Overlay::default(),
            journal: Vec::new(),
            marks: 0,
        }
    }
}

/// Deltas that are kept for the next publication at most. Whoever publishes more rarely pays for a copy
/// of the tables, and nobody pays for a log that is never replayed.
const MAX_TAIL: usize = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct Publisher {
    /// The published states, older first, with the version each had.
    published: VecDeque<Arc<State>>,
    /// Deltas since the older one; its first is number `tail_from + 1`.
    tail: VecDeque<Delta>,
    tail_from: u64,
}

impl Publisher {
    pub(crate) fn record(&mut self, delta: &Delta) {
        if self.published.is_empty() {
            return;
        }
        if self.tail.len() == MAX_TAIL {
            self.published.clear();
            self.tail.clear();
            return;
        }
        self.tail.push_back(delta.clone());
    }

    pub(crate) fn publish(&mut self, live: &State) -> Snapshot {
        if let Some(last) = self.published.back()
            && last.version == live.version
        {
            return Snapshot(last.clone());
        }
        let state = if self.published.len() == 2 { self.published.pop_front().and_then(Arc::into_inner) } else { None };
        let state = match state {
            Some(mut state) => {
                for delta in self.tail.iter().skip((state.version.0 - self.tail_from) as usize) {
                    replay(&mut state, delta);
                }
                Arc::new(state)
            }
            None => Arc::new(live.clone()),
        };
        self.published.push_back(state.clone());
        let oldest = self.published[0].version.0;
        if self.published.len() == 1 {
            self.tail.clear();
        } else {
            self.tail.drain(..(oldest - self.tail_from) as usize);
        }
        self.tail_from = oldest;
        Snapshot(state)
    }
}

/// Applies a delta that was applied to the live graph before, with the same result.
fn replay(state: &mut State, delta: &Delta) {
    match delta {
        Delta::Intent(intent) => {
            let replayed = intend(state, intent);
            debug_assert!(replayed.is_ok(), "a delta that was applied once applies again: {replayed:?}");
        }
        Delta::Observed(event) => {
            observe(state, event);
        }
    }
    state.set_version(Version(state.version.0 + 1));
}

/// Which slots the branch gives to jobs: those freed in it, then the base's free ones, then new
/// ones. So a job gets the id that the same delta would have given it on the live graph.
#[derive(Debug)]
struct Slots {
    next: u32,
    /// How many of the base's free slots are used up, counted from the one to be used first.
    taken: usize,
    freed: Vec<JobId>,
}

/// Entities that differ from the base. `None` means removed.
type Overlay<K, V> = IdMap<K, Option<V>>;

/// What an entry of an overlay was before a change; the outer [`None`] means that there was none.
#[derive(Debug)]
enum Undo {
    Version(Version),
    Statics(Option<Box<Statics>>),
    Request(RequestId, Option<Option<Request>>),
    NextRequest(u64),
    Job(JobId, Option<Option<Box<Job>>>),
    NextSlot,
    TakenSlot,
    FreedSlot,
    ReusedSlot(JobId),
    Lane(LaneId, Option<Option<Lane>>),
    Memory(DeviceId, Option<Option<Box<DeviceMemory>>>),
}

/// A private continuation of a snapshot.
#[derive(Debug)]
pub struct Branch {
    base: Arc<State>,
    version: Version,
    statics: Option<Box<Statics>>,
    requests: Overlay<RequestId, Request>,
    next_request: u64,
    jobs: Overlay<JobId, Box<Job>>,
    slots: Slots,
    lanes: Overlay<LaneId, Lane>,
    memory: Overlay<DeviceId, Box<DeviceMemory>>,
    journal: Vec<Undo>,
    marks: usize,
}

/// A moment that a branch can go back to.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    journal: usize,
    depth: usize,
}

impl Branch {
    /// Applies one change to the branch; see [`Gmg::apply`](crate::Gmg::apply).
    ///
    /// # Errors
    /// As on the live graph.
    pub fn apply(&mut self, delta: impl Into<Delta>) -> Result<Applied, GmgError> {
        let delta = delta.into();
        let effect = match &delta {
            Delta::Intent(intent) => intend(self, intent)?,
            Delta::Observed(event) => observe(self, event),
        };
        let version = Version(self.version.0 + 1);
        self.set_version(version);
        Ok(Applied { version, delta, effect })
    }

    /// Remembers this moment. Marks nest: the last one set is the first to be rolled back.
    pub fn mark(&mut self) -> Mark {
        self.marks += 1;
        Mark { journal: self.journal.len(), depth: self.marks }
    }

    /// Goes back to `mark` and forgets it, together with every mark set after it. O(changes since).
    pub fn rollback(&mut self, mark: Mark) {
        while self.journal.len() > mark.journal {
            if let Some(undo) = self.journal.pop() {
                self.undo(undo);
            }
        }
        self.marks = mark.depth.saturating_sub(1);
    }

    /// The branch as it is now.
    pub fn view(&self) -> View<'_> {
        View::from(self)
    }

    fn undo(&mut self, undo: Undo) {
        fn put<K: std::hash::Hash + Eq, V>(overlay: &mut Overlay<K, V>, key: K, before: Option<Option<V>>) {
            match before {
                Some(value) => overlay.insert(key, value),
                None => overlay.remove(&key),
            };
        }
        match undo {
            Undo::Version(version) => self.version = version,
            Undo::Statics(statics) => self.statics = statics,
            Undo::Request(id, before) => put(&mut self.requests, id, before),
            Undo::NextRequest(next) => self.next_request = next,
            Undo::Job(id, before) => put(&mut self.jobs, id, before),
            Undo::NextSlot => self.slots.next -= 1,
            Undo::TakenSlot => self.slots.taken -= 1,
            Undo::FreedSlot => {
                self.slots.freed.pop();
            }
            Undo::ReusedSlot(id) => self.slots.freed.push(id),
            Undo::Lane(id, before) => put(&mut self.lanes, id, before),
            Undo::Memory(id, before) => put(&mut self.memory, id, before),
        }
    }

    /// Keeps what is about to change, unless no mark could ever ask for it.
    fn remember(&mut self, undo: impl FnOnce(&Self) -> Undo) {
        if self.marks > 0 {
            let undo = undo(self);
            self.journal.push(undo);
        }
    }
}

impl GmgView for Branch {
    fn version(&self) -> Version {
        self.version
    }
    fn cluster(&self) -> &Cluster {
        self.base.cluster()
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
        match self.requests.get(&id) {
            Some(own) => own.as_ref(),
            None => self.base.request(id),
        }
    }
    fn job(&self, id: JobId) -> Option<&Job> {
        match self.jobs.get(&id) {
            Some(own) => own.as_deref(),
            None => self.base.job(id),
        }
    }
    fn jobs(&self, into: &mut Vec<JobId>) {
        let from = into.len();
        self.base.jobs(into);
        let mut own: Vec<_> = self.jobs.keys().copied().filter(|&id| self.base.job(id).is_none()).collect();
        into.append(&mut own);
        let mut live: Vec<_> = into.drain(from..).filter(|&id| self.job(id).is_some()).collect();
        live.sort_unstable();
        into.append(&mut live);
    }
    fn lane(&self, id: LaneId) -> Option<&Lane> {
        match self.lanes.get(&id) {
            Some(own) => own.as_ref(),
            None => self.base.lane(id),
        }
    }
    fn memory(&self, device: DeviceId) -> Option<&DeviceMemory> {
        match self.memory.get(&device) {
            Some(own) => own.as_deref(),
            None => self.base.memory(device),
        }
    }
    fn is_lost(&self, device: DeviceId) -> bool {
        self.statics().lost.get(device.index()).copied().unwrap_or(false)
    }
}

impl Store for Branch {
    fn set_version(&mut self, version: Version) {
        self.remember(|branch| Undo::Version(branch.version));
        self.version = version;
    }
    fn statics(&self) -> &Statics {
        self.statics.as_deref().unwrap_or(self.base.statics_arc())
    }
    fn statics_mut(&mut self) -> &mut Statics {
        self.remember(|branch| Undo::Statics(branch.statics.clone()));
        let base = &self.base;
        self.statics.get_or_insert_with(|| Box::new(Statics::clone(base.statics_arc())))
    }
    fn insert_request(&mut self, request: Request) -> RequestId {
        let id = RequestId(self.next_request);
        self.remember(|branch| Undo::NextRequest(branch.next_request));
        self.remember(|branch| Undo::Request(id, branch.requests.get(&id).copied()));
        self.next_request += 1;
        self.requests.insert(id, Some(request));
        id
    }
    fn request_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        let current = *self.request(id)?;
        self.remember(|branch| Undo::Request(id, branch.requests.get(&id).copied()));
        self.requests.entry(id).or_insert(Some(current)).as_mut()
    }
    fn remove_request(&mut self, id: RequestId) {
        self.remember(|branch| Undo::Request(id, branch.requests.get(&id).copied()));
        self.requests.insert(id, None);
    }
    fn insert_job(&mut self, job: Job) -> JobId {
        let id = if let Some(id) = self.slots.freed.pop() {
            self.remember(|_| Undo::ReusedSlot(id));
            id
        } else if let Some(id) = self.base.free_slot(self.slots.taken) {
            self.slots.taken += 1;
            self.remember(|_| Undo::TakenSlot);
            id
        } else {
            self.slots.next += 1;
            self.remember(|_| Undo::NextSlot);
            JobId { slot: self.slots.next - 1, generation: 0 }
        };
        self.remember(|branch| Undo::Job(id, branch.jobs.get(&id).cloned()));
        self.jobs.insert(id, Some(Box::new(job)));
        id
    }
    fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        if !self.jobs.contains_key(&id) {
            let copy = Box::new(self.base.job(id)?.clone());
            self.remember(|_| Undo::Job(id, None));
            return self.jobs.entry(id).or_insert(Some(copy)).as_deref_mut();
        }
        self.remember(|branch| Undo::Job(id, branch.jobs.get(&id).cloned()));
        self.jobs.get_mut(&id)?.as_deref_mut()
    }
    fn remove_job(&mut self, id: JobId) {
        if self.job(id).is_none() {
            return;
        }
        self.remember(|branch| Undo::Job(id, branch.jobs.get(&id).cloned()));
        self.jobs.insert(id, None);
        self.slots.freed.push(JobId { generation: id.generation.wrapping_add(1), ..id });
        self.remember(|_| Undo::FreedSlot);
    }
    fn lane_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        let current = self.lane(id)?.clone();
        self.remember(|branch| Undo::Lane(id, branch.lanes.get(&id).cloned()));
        self.lanes.entry(id).or_insert(Some(current)).as_mut()
    }
    fn memory_mut(&mut self, device: DeviceId) -> Option<&mut DeviceMemory> {
        if !self.memory.contains_key(&device) {
            let copy = Box::new(self.base.memory(device)?.clone());
            self.remember(|_| Undo::Memory(device, None));
            return self.memory.entry(device).or_insert(Some(copy)).as_deref_mut();
        }
        self.remember(|branch| Undo::Memory(device, branch.memory.get(&device).cloned()));
        self.memory.get_mut(&device)?.as_deref_mut()
    }
}
