//! From a plan to the world: batching forms and evicts, the graph accepts, the world is told.

use smallvec::{SmallVec, smallvec};

use slicescheduler_gmg::id::{DeviceId, JobId, JobKey, LaneId, ReplicaId, RequestId};
use slicescheduler_gmg::memory::KvPool;
use slicescheduler_gmg::plan::{Action, BatchLimits, Fate, Observer, Plan, Rank, Work, World};
use slicescheduler_gmg::{Gmg, GmgError, GmgView, Intent};
use slicescheduler_scheduler::batching::{Batcher, Sequence};

use crate::driver::{Driver, DriverError};

impl<W: World> Driver<W> {
    pub(super) fn carry_out(&mut self, plan: Plan, observer: &mut dyn Observer) -> Result<(), DriverError> {
        let based_on = plan.based_on;
        for action in plan.actions {
            let action = match action {
                Action::FormBatch { replica, lane, limits, rank } => match self.form(replica, lane, limits, rank)? {
                    Some(action) => action,
                    None => continue,
                },
                Action::EvictSequences { replica, blocks } => {
                    self.evict(replica, blocks)?;
                    continue;
                }
                Action::Reject { request, reason } => {
                    self.reject(request, reason)?;
                    continue;
                }
                Action::Cancel { job } => {
                    // Of a gang, all ranks or none: the graph keeps one of which a part is on a lane.
                    let key = self.gmg.view().job(job).map(|job| job.spec.key);
                    if let Some(key) = key.filter(|_| self.ranks(job).iter().all(|&rank| self.is_off_lanes(rank))) {
                        self.abandon(key);
                    }
                    action
                }
                action => action,
            };
            self.accept(Plan { based_on, actions: [action].into_iter().collect(), wake_at: None }, observer)?;
        }
        Ok(())
    }

    /// The iteration that a job stands for will not be completed.
    fn abandon(&mut self, key: JobKey) {
        if let Some(batcher) = self.batching.get_mut(key.tenant as usize) {
            batcher.abandon_iteration(key);
        }
    }

    /// A job that was recalled and cannot go on is given up: its iteration is formed again. If other ranks of it are
    /// on their lanes already, they come back, and then all of them may go on.
    fn give_up(&mut self, job: JobId, observer: &mut dyn Observer) -> Result<(), DriverError> {
        let ranks = self.ranks(job);
        let action = match ranks.iter().find(|&&rank| !self.is_off_lanes(rank)) {
            _ if ranks.is_empty() => return Ok(()),
            Some(&placed) if placed == job => return Ok(()),
            Some(&placed) => Action::Recall { job: placed, fate: Fate::Keep },
            None => Action::Cancel { job },
        };
        let based_on = self.gmg.version();
        self.carry_out(Plan { based_on, actions: [action].into_iter().collect(), wake_at: None }, observer)
    }

    /// A job of the graph and those of the other ranks, as far as they are still there.
    pub(super) fn ranks(&self, id: JobId) -> Vec<JobId> {
        let view = self.gmg.view();
        let members = view.job(id).and_then(|job| job.gang.as_ref());
        let ranks = members.map_or_else(|| vec![id], |members| members.jobs().to_vec());
        ranks.into_iter().filter(|&rank| view.job(rank).is_some()).collect()
    }

    fn is_off_lanes(&self, job: JobId) -> bool {
        self.gmg.view().job(job).is_some_and(|job| !job.is_dispatched())
    }

    fn accept(&mut self, plan: Plan, observer: &mut dyn Observer) -> Result<(), DriverError> {
        if self.forecasts_memory {
            self.what_if.forecast_memory(self.now, &plan.actions);
        }
        let accepted = self.gmg.accept(plan);
        for applied in &accepted.applied {
            self.follow(applied)?;
        }
        for dropped in accepted.dropped {
            self.counters.dropped += 1;
            if let Action::Run { work: Work::Existing { job, .. }, .. } = dropped.action {
                self.give_up(job, observer)?;
                continue;
            }
            let (spec, rank) = match &dropped.action {
                Action::Run { work: Work::New(spec), rank, .. } => (&**spec, rank),
                Action::RunGang { members, rank } => match members.first() {
                    Some((spec, _)) => (spec, rank),
                    None => continue,
                },
                _ => continue,
            };
            if let Some(batcher) = self.batching.get_mut(spec.key.tenant as usize) {
                batcher.withdraw_iteration(spec);
            }
            let owner = matches!(rank, Rank::OwnerLatency | Rank::OwnerBestEffort);
            if owner && matches!(dropped.reason, GmgError::NoMemory { .. }) {
                self.counters.memory_violations += 1;
            }
        }
        for command in &accepted.commands {
            self.world.enqueue(command, self.gmg.view())?;
            observer.on_command(self.now, command, self.gmg.view());
            if let Some(log) = &mut self.log {
                log.on_command(self.now, command, self.gmg.view());
            }
        }
        Ok(())
    }

    /// Lets a replica form its next iteration.
    fn form(
        &mut self,
        replica: ReplicaId,
        lane: LaneId,
        limits: BatchLimits,
        rank: Rank,
    ) -> Result<Option<Action>, DriverError> {
        let Some(batcher) = self.batching.get_mut(replica.tenant.index()) else { return Ok(None) };
        let mut preempted = std::mem::take(&mut self.preempted);
        let pool = pool_of(&self.gmg, batcher, replica.index);
        // Blocks that are promised and not there cannot be shared. Without prefix caches the graph drops such a job.
        let free = pool.filter(|_| batcher.shares_blocks()).map_or(u32::MAX, KvPool::free_blocks);
        let limits = BatchLimits { new_blocks: limits.new_blocks.min(free), ..limits };
        let formed = batcher.form_in(replica.index, pool, limits, &mut preempted);
        let plan = batcher.latest_plan();
        let short = match rank {
            Rank::OwnerLatency => plan.preempted > 0 || plan.short_of_blocks,
            Rank::OwnerBestEffort => plan.preempted > 0,
            Rank::GuestLatency | Rank::GuestBestEffort => false,
        };
        if short {
            let view = self.gmg.view();
            let holds_guests = |device: DeviceId| {
                let kv = view.memory(device).map(|memory| memory.kv());
                kv.is_some_and(|kv| kv.used_blocks() > kv.used_by(replica.tenant))
            };
            if self.lanes_of(replica, lane).iter().any(|lane| holds_guests(lane.device)) {
                self.counters.memory_violations += 1;
            }
        }
        self.release(&mut preempted)?;
        self.preempted = preempted;
        let Some(spec) = formed else { return Ok(None) };
        self.share_prefixes(replica)?;
        let lanes = self.lanes_of(replica, lane);
        if lanes.len() < 2 {
            return Ok(Some(Action::Run { work: Work::New(Box::new(spec)), lane, rank }));
        }
        let size = lanes.len() as u32;
        let members = (0..).zip(lanes).map(|(place, lane)| (spec.clone().rank(place, size), lane)).collect();
        Ok(Some(Action::RunGang { members, rank }))
    }

    /// The lanes that an iteration of a replica takes when it is placed on `lane`: that, or one on each device of its
    /// group.
    fn lanes_of(&self, replica: ReplicaId, lane: LaneId) -> SmallVec<[LaneId; 8]> {
        let view = self.gmg.view();
        match view.group(lane.device) {
            [first, ..] if *first == lane.device && view.is_home(replica.tenant, lane.device) => {
                view.group(lane.device).iter().map(|&device| LaneId::new(device, lane.index)).collect()
            }
            _ => smallvec![lane],
        }
    }

    fn evict(&mut self, replica: ReplicaId, blocks: u32) -> Result<(), DriverError> {
        let Some(batcher) = self.batching.get_mut(replica.tenant.index()) else { return Ok(()) };
        let mut preempted = std::mem::take(&mut self.preempted);
        let pool = pool_of(&self.gmg, batcher, replica.index);
        batcher.evict_in(replica.index, pool, blocks, &mut preempted);
        self.release(&mut preempted)?;
        self.preempted = preempted;
        Ok(())
    }

    /// Frees the KV sequences of preempted requests, and ends those that grew beyond every device.
    fn release(&mut self, preempted: &mut Vec<(RequestId, DeviceId)>) -> Result<(), DriverError> {
        for (request, device) in preempted.drain(..) {
            let Some(tenant) = self.gmg.view().request(request).map(|request| request.tenant) else { continue };
            self.apply(Intent::ReleaseKv { request, device })?;
            let batcher = &self.batching[tenant.index()];
            let tokens = batcher.waiting().iter().find(|waiting| waiting.request == request).map(Sequence::tokens);
            if let Some(reason) = tokens.and_then(|tokens| self.never_fits(tenant, tokens)) {
                self.batching[tenant.index()].withdraw(request);
                self.lose(request, tenant, reason)?;
            }
        }
        Ok(())
    }
}

/// The pool of the device of a replica.
fn pool_of<'g>(gmg: &'g Gmg, batcher: &Batcher, replica: u32) -> Option<&'g KvPool> {
    let device = batcher.replicas().get(replica as usize)?.device;
    gmg.state().memory(device).map(|memory| memory.kv())
}
