//! Requests that end early: withdrawn by whoever asked, or with nobody left to compute them.

use slicescheduler_gmg::id::{RequestId, TenantId};
use slicescheduler_gmg::plan::{Event, Observer, World};
use slicescheduler_gmg::{GmgView, Intent};
use slicescheduler_scheduler::batching::ReplicaState;

use crate::driver::{Driver, DriverError, RequestError};

impl<W: World> Driver<W> {
    /// Withdraws a request. It ends at once, or, if its replica has an iteration under way, at the
    /// end of that iteration, and is then [lost](Self::take_lost) as
    /// [`Cancelled`](RequestError::Cancelled); it may still be answered before. No effect on a
    /// request that has ended.
    ///
    /// # Errors
    /// If the world is broken.
    pub fn cancel(&mut self, request: RequestId, observer: &mut dyn Observer) -> Result<(), DriverError> {
        if self.gmg.view().request(request).is_some() && !self.cancelled.contains(&request) {
            self.cancelled.push(request);
        }
        if self.end_cancelled()? {
            self.decide(&Event::Timer { at: self.now }, observer)?;
        }
        Ok(())
    }

    /// Refuses a request that waits. One that runs already is not refused any more.
    pub(super) fn reject(&mut self, request: RequestId, reason: &'static str) -> Result<(), DriverError> {
        let tenant = self.gmg.view().request(request).map(|request| request.tenant);
        let batcher = tenant.and_then(|tenant| self.batching.get_mut(tenant.index()));
        let (Some(tenant), Some(_)) = (tenant, batcher.and_then(|batcher| batcher.withdraw(request))) else {
            self.counters.dropped += 1;
            return Ok(());
        };
        self.apply(Intent::Reject { request })?;
        self.lose(request, tenant, RequestError::Rejected { reason })
    }

    /// Ends requests that wait although nothing runs, nothing is on its way and no timer is set,
    /// which a policy may cause that reserves more memory than a device has. The policy is asked
    /// once more before. They are [lost](Self::take_lost) as [`Starved`](RequestError::Starved).
    ///
    /// # Errors
    /// If the world is broken.
    pub fn end_starved(&mut self, observer: &mut dyn Observer) -> Result<(), DriverError> {
        if !self.is_starved() {
            return Ok(());
        }
        self.end_cancelled()?;
        self.decide(&Event::Timer { at: self.now }, observer)?;
        if !self.is_starved() {
            return Ok(());
        }
        let mut jobs = Vec::new();
        self.gmg.view().jobs(&mut jobs);
        for &job in &jobs {
            self.apply(Intent::Cancel { job })?;
        }
        for job in jobs {
            self.apply(Intent::Retire { job })?;
        }
        for index in 0..self.batching.len() {
            let batcher = &mut self.batching[index];
            let mut starved: Vec<RequestId> = batcher.waiting().iter().map(|waiting| waiting.request).collect();
            for &request in &starved {
                batcher.withdraw(request);
            }
            for replica in 0..batcher.replicas().len() as u32 {
                let running = batcher.replicas()[replica as usize].running();
                let running: Vec<RequestId> = running.iter().map(|running| running.request).collect();
                batcher.abandon(replica);
                batcher.drop_running(replica, &running);
                starved.extend(running);
            }
            let policy = self.policy.name();
            for request in starved {
                self.lose(request, TenantId(index as u32), RequestError::Starved { policy })?;
            }
        }
        Ok(())
    }

    fn is_starved(&self) -> bool {
        self.world.is_idle() && self.wake_at.is_none() && !self.is_idle()
    }

    /// Ends cancelled requests whose replica has nothing under way. True if one ended.
    pub(super) fn end_cancelled(&mut self) -> Result<bool, DriverError> {
        let mut ended = false;
        for request in std::mem::take(&mut self.cancelled) {
            let Some(tenant) = self.gmg.view().request(request).map(|request| request.tenant) else { continue };
            let Some(batcher) = self.batching.get_mut(tenant.index()) else { continue };
            if batcher.withdraw(request).is_none() {
                let runs = |replica: &ReplicaState| replica.running().iter().any(|one| one.request == request);
                let replica = batcher.replicas().iter().position(runs);
                let Some(replica) = replica else { continue };
                if batcher.replicas()[replica].is_in_flight() {
                    self.cancelled.push(request);
                    continue;
                }
                batcher.drop_running(replica as u32, &[request]);
            }
            self.lose(request, tenant, RequestError::Cancelled)?;
            ended = true;
        }
        Ok(ended)
    }

    /// Ends what waits for a tenant that has lost all of its devices. What runs for it elsewhere
    /// goes on.
    pub(super) fn end_homeless(&mut self) -> Result<(), DriverError> {
        for index in 0..self.batching.len() {
            let tenant = TenantId(index as u32);
            if !self.is_homeless(tenant) {
                continue;
            }
            while let Some(request) = self.batching[index].waiting().front().map(|waiting| waiting.request) {
                self.batching[index].withdraw(request);
                self.lose(request, tenant, RequestError::NoDevice)?;
            }
        }
        Ok(())
    }

    /// True if every device of the tenant's container is lost, or of every group one is.
    pub(super) fn is_homeless(&self, tenant: TenantId) -> bool {
        let view = self.gmg.view();
        let own = self.homes.get(tenant.index()).map_or(&[][..], |homes| homes);
        !own.is_empty()
            && own
                .iter()
                .all(|&device| view.is_lost(device) || view.group(device).iter().any(|&rank| view.is_lost(rank)))
    }
}
