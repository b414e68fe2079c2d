//! An independent check of plans, for tests and debug builds.
//!
//! It knows the rules, not how any policy works: a plan is gone through action by action, with only what the
//! graph and the tenants' demand say, and what earlier actions of the plan change.

use std::collections::{BTreeMap, BTreeSet};

use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, ReplicaId, TenantId};
use slicescheduler_gmg::memory::WeightState;
use slicescheduler_gmg::plan::{Action, BatchLimits, Plan, Rank, Work};
use slicescheduler_gmg::{GmgView, View};

use crate::demand::{Demand, ReplicaInfo};

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("action {action} of the plan: {fault}")]
pub struct PlanError {
    /// Which action.
    pub action: usize,
    /// What is wrong with it.
    pub fault: PlanFault,
}

/// What is wrong with an action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFault {
    /// Two things at once on one lane.
    #[error("{0} gets a second entry that does not outrank what is there")]
    DoubleBooked(LaneId),
    /// No such lane, or its device is lost.
    #[error("{0} cannot be used")]
    NoLane(LaneId),
    /// No such replica.
    #[error("there is no {0}")]
    NoReplica(ReplicaId),
    /// The replica is on another device than the lane.
    #[error("{replica} is on {home}, not on {lane}")]
    Elsewhere {
        /// The replica.
        replica: ReplicaId,
        /// Where it is.
        home: DeviceId,
        /// Where it was to run.
        lane: LaneId,
    },
    /// An iteration depends on one that has not ended.
    #[error("{0} has an iteration under way that comes first")]
    InFlight(ReplicaId),
    /// The right of way is not the tenant's.
    #[error("{tenant} has {right:?} on {device}, not {taken:?}")]
    RightOfWay {
        /// The tenant.
        tenant: TenantId,
        /// Where.
        device: DeviceId,
        /// What it has.
        right: Rank,
        /// What it was given.
        taken: Rank,
    },
    /// Weights that are not usable when they are needed.
    #[error("the weights of {0} are not on {1}")]
    WeightsAbsent(ModelId, DeviceId),
    /// Weights that something uses, or that are an owner's.
    #[error("the weights of {0} are needed on {1}")]
    WeightsNeeded(ModelId, DeviceId),
    /// More KV blocks than are free.
    #[error("{wanted} KV blocks of {device} are promised, {free} are free")]
    NoBlocks {
        /// Where.
        device: DeviceId,
        /// How many the action may take.
        wanted: u32,
        /// How many there are.
        free: u32,
    },
    /// No such job, or not in the state that the action needs.
    #[error("{0} cannot be run, recalled or given up now")]
    Job(JobId),
    /// Some ranks of an iteration without the others.
    #[error("{0} goes on without all of the ranks that it meets")]
    Incomplete(JobId),
    /// The slots have no room for that.
    #[error("{0} has no room among its weights for that")]
    NoSlot(DeviceId),
}

/// What earlier actions of a plan have changed.
struct Checker<'a> {
    view: View<'a>,
    demand: &'a dyn Demand,
    booked: BTreeMap<LaneId, Rank>,
    formed: BTreeSet<ReplicaId>,
    /// Replicas whose recalled job is given up.
    released: BTreeSet<ReplicaId>,
    gone: BTreeSet<JobId>,
    /// Jobs that go on, with their action and the first operator of it.
    resumed: BTreeMap<JobId, (usize, u32)>,
    evicted: BTreeSet<(ModelId, DeviceId)>,
    loading: BTreeSet<(ModelId, DeviceId)>,
    /// Blocks that are free beyond what the graph says.
    blocks: BTreeMap<DeviceId, i64>,
    changed_slots: BTreeSet<DeviceId>,
}

/// Checks a plan against the graph that it was made for: no double booking, iterations in order, weights and
/// blocks there, right of way as the graph has it, owners' weights untouched. An iteration of a model that is spread
/// over a group of devices takes a lane, weights and blocks on each of them, and goes on on all of them or none.
///
/// # Errors
/// The first action that breaks a rule. O(actions x what is on their devices).
pub fn check_plan(view: View<'_>, demand: &dyn Demand, plan: &Plan) -> Result<(), PlanError> {
    let mut checker = Checker {
        view,
        demand,
        booked: BTreeMap::new(),
        formed: BTreeSet::new(),
        released: BTreeSet::new(),
        gone: BTreeSet::new(),
        resumed: BTreeMap::new(),
        evicted: BTreeSet::new(),
        loading: BTreeSet::new(),
        blocks: BTreeMap::new(),
        changed_slots: BTreeSet::new(),
    };
    for (action, wanted) in plan.actions.iter().enumerate() {
        checker.check(action, wanted).map_err(|fault| PlanError { action, fault })?;
    }
    checker.check_gangs()
}

impl Checker<'_> {
    fn check(&mut self, place: usize, action: &Action) -> Result<(), PlanFault> {
        match action {
            Action::FormBatch { replica, lane, limits, rank } => self.form(*replica, *lane, limits, *rank),
            Action::Run { work: Work::Existing { job, ops }, lane, rank } => {
                let found = self.view.job(*job).filter(|found| !found.is_dispatched());
                let found = found.filter(|found| found.progress() == ops.start && !self.gone.contains(job));
                let model = found.ok_or(PlanFault::Job(*job))?.spec.model;
                self.resumed.insert(*job, (place, ops.start));
                let tenant = self.view.model(model).ok_or(PlanFault::Job(*job))?.tenant();
                self.book(*lane, *rank)?;
                self.right(tenant, lane.device, *rank)?;
                self.weights(model, lane.device)
            }
            Action::Recall { job, .. } => {
                let there = self.view.job(*job).is_some_and(|job| job.is_dispatched());
                if there { Ok(()) } else { Err(PlanFault::Job(*job)) }
            }
            Action::Cancel { job } => {
                let found = self.view.job(*job).filter(|found| !found.is_dispatched());
                let found = found.filter(|_| self.gone.insert(*job)).ok_or(PlanFault::Job(*job))?;
                let tenant = TenantId(found.spec.key.tenant);
                self.released.insert(ReplicaId { tenant, index: found.spec.key.replica });
                Ok(())
            }
            Action::EvictSequences { replica, blocks } => {
                let found = self.replica(*replica)?;
                if found.in_flight && !self.released.contains(replica) {
                    return Err(PlanFault::InFlight(*replica));
                }
                for device in self.devices_of(&found) {
                    *self.blocks.entry(device).or_default() += i64::from(*blocks);
                }
                Ok(())
            }
            Action::EvictWeights { model, device } => self.evict(*model, *device),
            Action::BorrowSlots { device, blocks } => self.borrow_slots(*device, *blocks),
            Action::Prefetch { model, device, .. } => {
                let state = self.view.memory(*device).and_then(|memory| memory.weight_state(*model));
                let absent = state.is_none() || self.evicted.contains(&(*model, *device));
                if !absent || !self.loading.insert((*model, *device)) {
                    return Err(PlanFault::NoSlot(*device));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Jobs of a gang go on together, on lanes of their own, at the same operator.
    fn check_gangs(&self) -> Result<(), PlanError> {
        for (job, &(action, from)) in &self.resumed {
            let members = self.view.job(*job).and_then(|found| found.gang.as_ref());
            let together = |rank: &JobId| self.resumed.get(rank).is_some_and(|&(_, start)| start == from);
            if members.is_some_and(|members| !members.jobs().iter().all(together)) {
                return Err(PlanError { action, fault: PlanFault::Incomplete(*job) });
            }
        }
        Ok(())
    }

    /// Every device of a replica: of a container that is spread over several, those of the group of its first.
    fn devices_of(&self, replica: &ReplicaInfo) -> Vec<DeviceId> {
        let container = self.view.container_of(replica.device).and_then(|id| self.view.containers().get(id.index()));
        match container.filter(|container| container.is_home_of(replica.id.tenant)) {
            Some(container) => container.group_of(replica.device).to_vec(),
            None => vec![replica.device],
        }
    }

    fn replica(&self, id: ReplicaId) -> Result<ReplicaInfo, PlanFault> {
        self.demand.replica(id).ok_or(PlanFault::NoReplica(id))
    }

    fn form(&mut self, id: ReplicaId, lane: LaneId, limits: &BatchLimits, rank: Rank) -> Result<(), PlanFault> {
        let replica = self.replica(id)?;
        if replica.device != lane.device {
            return Err(PlanFault::Elsewhere { replica: id, home: replica.device, lane });
        }
        if (replica.in_flight && !self.released.contains(&id)) || !self.formed.insert(id) {
            return Err(PlanFault::InFlight(id));
        }
        for device in self.devices_of(&replica) {
            self.book(LaneId::new(device, lane.index), rank)?;
            self.right(id.tenant, device, rank)?;
            self.weights(replica.model, device)?;
            let free = self.view.memory(device).map_or(0, |memory| i64::from(memory.kv().free_blocks()));
            let free = (free + self.blocks.get(&device).copied().unwrap_or(0)).clamp(0, i64::from(u32::MAX)) as u32;
            if limits.new_blocks > free {
                return Err(PlanFault::NoBlocks { device, wanted: limits.new_blocks, free });
            }
        }
        Ok(())
    }

    /// A lane takes what outranks all that is queued there, or anything if nothing is.
    fn book(&mut self, lane: LaneId, rank: Rank) -> Result<(), PlanFault> {
        let found = self.view.lane(lane).filter(|_| !self.view.is_lost(lane.device)).ok_or(PlanFault::NoLane(lane))?;
        let queued = found.queue().iter().map(|entry| entry.rank).chain(self.booked.get(&lane).copied()).max();
        if queued.is_some_and(|queued| queued >= rank) {
            return Err(PlanFault::DoubleBooked(lane));
        }
        self.booked.insert(lane, rank);
        Ok(())
    }

    fn right(&self, tenant: TenantId, device: DeviceId, taken: Rank) -> Result<(), PlanFault> {
        let right = self.view.rank(tenant, device);
        if right == taken { Ok(()) } else { Err(PlanFault::RightOfWay { tenant, device, right, taken }) }
    }

    fn weights(&self, model: ModelId, device: DeviceId) -> Result<(), PlanFault> {
        let there = self.view.is_resident(model, device) && !self.evicted.contains(&(model, device));
        if there { Ok(()) } else { Err(PlanFault::WeightsAbsent(model, device)) }
    }

    fn evict(&mut self, model: ModelId, device: DeviceId) -> Result<(), PlanFault> {
        let tenant = self.view.model(model).map(|model| model.tenant());
        let resident = self.view.memory(device).and_then(|memory| memory.weight_state(model));
        let lanes = self.view.cluster().device(device).map_or(0, |device| device.spec.lanes);
        let uses = |lane: LaneId| {
            let queue = self.view.lane(lane).map(|lane| lane.queue());
            queue.into_iter().flatten().any(|entry| self.view.job(entry.job).is_some_and(|job| job.spec.model == model))
        };
        let used = (0..lanes).map(|index| LaneId::new(device, index)).any(uses);
        let of = |replica: &ReplicaId| {
            self.demand.replica(*replica).is_some_and(|one| (one.model, one.device) == (model, device))
        };
        let own = tenant.is_some() && self.view.owner(device) == tenant;
        if own || used || self.formed.iter().any(of) {
            return Err(PlanFault::WeightsNeeded(model, device));
        }
        if resident != Some(WeightState::Resident) || !self.evicted.insert((model, device)) {
            return Err(PlanFault::WeightsAbsent(model, device));
        }
        Ok(())
    }

    /// What the pool gives back has to be free; what it takes must not lie under weights that stay.
    fn borrow_slots(&mut self, device: DeviceId, blocks: u32) -> Result<(), PlanFault> {
        let memory = self.view.memory(device).ok_or(PlanFault::NoSlot(device))?;
        let stays = memory.models().filter(|&(model, _)| !self.evicted.contains(&(model, device)));
        let end = stays.filter_map(|(model, _)| Some(memory.weight_region(model)?.end())).max().unwrap_or_default();
        let before = memory.borrowed_blocks();
        let busy = self.booked.keys().any(|lane| lane.device == device);
        let lanes = self.view.cluster().device(device).map_or(0, |device| device.spec.lanes);
        let mut lanes = (0..lanes).filter_map(|index| self.view.lane(LaneId::new(device, index)));
        let shrinks = blocks < before;
        if blocks > memory.layout().borrowable_from(end)
            || !self.changed_slots.insert(device)
            || (shrinks && (busy || lanes.any(|lane| !lane.is_empty())))
        {
            return Err(PlanFault::NoSlot(device));
        }
        if shrinks {
            *self.blocks.entry(device).or_default() -= i64::from(before - blocks);
        }
        Ok(())
    }
}
