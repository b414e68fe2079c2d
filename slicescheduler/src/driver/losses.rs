//! What fails and what is lost, and whom it takes along: the requests of a failed iteration, the sequences of a lost
//! device.

use slicescheduler_gmg::id::{DeviceId, JobId, JobKey, RequestId, TenantId};
use slicescheduler_gmg::job::{Job, JobSpec, StoredState};
use slicescheduler_gmg::plan::World;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, Intent};

use crate::driver::{Driver, DriverError, RequestError};

/// A request that ended without its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Lost {
    /// The request.
    pub request: RequestId,
    /// Its tenant.
    pub tenant: TenantId,
    /// When it arrived.
    pub arrival: Nanos,
    /// Why.
    pub reason: RequestError,
}

impl<W: World> Driver<W> {
    /// Ends what `job` is a part of, if that has failed and nothing of it is on a lane any more.
    pub(super) fn end_failed(&mut self, job: JobId) -> Result<(), DriverError> {
        if self.failing.is_empty() {
            return Ok(());
        }
        let Some(spec) = self.gmg.view().job(job).map(|job| job.spec.clone()) else { return Ok(()) };
        let ranks = self.ranks(job);
        let on_lane = |rank: &JobId| self.gmg.view().job(*rank).is_some_and(Job::is_dispatched);
        let Some(at) = self.failing.iter().position(|(key, _)| *key == spec.key) else { return Ok(()) };
        if ranks.iter().any(on_lane) {
            return Ok(());
        }
        let (_, failure) = self.failing.swap_remove(at);
        for rank in ranks {
            self.apply(Intent::Retire { job: rank })?;
        }
        self.fail_rows(&spec, &RequestError::Failed(failure))
    }

    /// The requests of a failed job end with an error; nobody else notices.
    fn fail_rows(&mut self, spec: &JobSpec, reason: &RequestError) -> Result<(), DriverError> {
        let tenant = TenantId(spec.key.tenant);
        let Some(batcher) = self.batching.get_mut(tenant.index()) else { return Ok(()) };
        batcher.abandon(spec.key.replica);
        let failed: Vec<RequestId> = spec.rows.iter().map(|row| row.request).collect();
        batcher.drop_running(spec.key.replica, &failed);
        for request in failed {
            self.lose(request, tenant, reason.clone())?;
        }
        Ok(())
    }

    pub(super) fn lose(
        &mut self,
        request: RequestId,
        tenant: TenantId,
        reason: RequestError,
    ) -> Result<(), DriverError> {
        let Some(arrival) = self.gmg.view().request(request).map(|request| request.arrival) else { return Ok(()) };
        self.apply(Intent::RetireRequest { request })?;
        self.lost.push(Lost { request, tenant, arrival, reason });
        Ok(())
    }

    /// Sequences on a lost device are recomputed elsewhere; jobs that were lost go, and those of the other ranks
    /// with them.
    pub(super) fn device_lost(&mut self, device: DeviceId) -> Result<(), DriverError> {
        let mut jobs = Vec::new();
        self.gmg.view().jobs(&mut jobs);
        for &id in &jobs {
            let lost = |state| state == StoredState::Lost;
            if self.gmg.view().job(id).is_some_and(|job| job.segments.iter().any(|segment| lost(segment.state))) {
                let ranks = self.ranks(id);
                self.apply(Intent::Cancel { job: id })?;
                for rank in ranks {
                    self.apply(Intent::Retire { job: rank })?;
                }
            }
        }
        let view = self.gmg.view();
        let there = |key: &JobKey| jobs.iter().any(|&id| view.job(id).is_some_and(|job| job.spec.key == *key));
        self.failing.retain(|(key, _)| there(key));
        for batcher in &mut self.batching {
            let view = self.gmg.view();
            // A group is lost with any of its devices.
            let group = view.group(device).first().filter(|_| view.is_home(batcher.tenant(), device));
            let place = group.copied().unwrap_or(device);
            while let Some(replica) = batcher.replica_on(place).filter(|replica| batcher.holds_sequences(replica.index))
            {
                batcher.lose(replica.index);
            }
        }
        self.end_homeless()
    }
}
