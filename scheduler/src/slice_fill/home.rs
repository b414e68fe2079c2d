//! Requests that were given away come home where that is sooner.
//!
//! A tenant's prompts that a guest's replica computes yield to the owner of that device. Meanwhile a device of the
//! tenant's own may have become free. Nothing that they have computed is worth keeping then, if by the forecast they
//! end sooner at home from the start than where they are from the middle.

use smallvec::SmallVec;

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::{Action, Event, Plan, Rank, Work};

use crate::demand::ReplicaInfo;
use crate::placing::{is_latency, is_open, lane_of, run_action, takes};
use crate::policy::Context;
use crate::slice_fill::overflow::runs_below;
use crate::slice_fill::{REPLAN, SliceFill, Suspended};

/// By tenant: devices of others where its prompts were recalled; they may have gone on since.
#[derive(Debug, Default)]
pub(super) struct Away(Vec<SmallVec<[DeviceId; 2]>>);

impl Away {
    fn insert(&mut self, tenant: TenantId, device: DeviceId) {
        if self.0.len() <= tenant.index() {
            self.0.resize(tenant.index() + 1, SmallVec::new());
        }
        if let Some(devices) = self.0.get_mut(tenant.index()).filter(|devices| !devices.contains(&device)) {
            devices.push(device);
        }
    }

    fn take(&mut self, tenant: TenantId) -> SmallVec<[DeviceId; 2]> {
        self.0.get_mut(tenant.index()).map(std::mem::take).unwrap_or_default()
    }
}

impl SliceFill {
    /// Notes prompts of a latency-sensitive guest that were recalled, and looks whether they should come home.
    pub(super) fn recalled(&mut self, context: &mut Context<'_>, event: &Event, plan: &mut Plan) {
        let Event::Recalled { job, lane, .. } = event else { return };
        let suspended = self.devices.get(lane.device.index()).and_then(|state| state.suspended.last());
        let Some(suspended) = suspended.filter(|last| last.job == *job && last.rank == Rank::GuestLatency) else {
            return;
        };
        let tenant = suspended.replica.tenant;
        self.away.insert(tenant, lane.device);
        if let Some(home) = self.free_home(context, tenant, plan) {
            self.bring_home(context, &home, plan);
        }
    }

    /// Gives up prompts of the tenant of `home` that were recalled on another device, if they end sooner at home, which
    /// runs nothing of its owner's and has no prompts waiting. True if it did: `home` takes them in a moment.
    pub(super) fn bring_home(&mut self, context: &mut Context<'_>, home: &ReplicaInfo, plan: &mut Plan) -> bool {
        let tenant = home.id.tenant;
        if home.in_flight || context.demand.waiting(tenant).is_some() || !is_latency(context.view, tenant) {
            return false;
        }
        for device in self.away.take(tenant) {
            let guest = |one: &&Suspended| one.rank == Rank::GuestLatency && one.replica.tenant == tenant;
            let Some(suspended) = self.devices[device.index()].suspended.iter().find(guest).cloned() else { continue };
            self.away.insert(tenant, device);
            if !self.is_sooner(context, home, device, &suspended) {
                continue;
            }
            let held = context.view.memory(device).map_or(0, |memory| memory.kv().used_by(tenant));
            plan.actions.push(Action::Cancel { job: suspended.job });
            plan.actions.push(Action::EvictSequences { replica: suspended.replica, blocks: held });
            self.devices[device.index()].suspended.retain(|one| one.job != suspended.job);
            self.starts.set(home.device, Some(context.now + REPLAN));
            return true;
        }
        false
    }

    /// True if the recalled job is of prompts alone, the only ones of its tenant there, and would end sooner from the
    /// start at home.
    fn is_sooner(
        &mut self,
        context: &mut Context<'_>,
        home: &ReplicaInfo,
        device: DeviceId,
        suspended: &Suspended,
    ) -> bool {
        let Some(job) = context.view.job(suspended.job) else { return false };
        let is_first = job.spec.rows.iter().all(|row| row.position == 0);
        let alone = context
            .demand
            .replica(suspended.replica)
            .is_some_and(|replica| replica.running as usize == job.spec.rows.len());
        if !is_first || !alone || !context.budget.take() || !context.budget.take() {
            return false;
        }
        let spec = JobSpec::of(home.model).bind(job.spec.binding);
        let going_on = Work::Existing { job: suspended.job, ops: suspended.ops.clone() };
        let at_home = run_action(context.view, home, spec, Rank::OwnerLatency);
        let there = Action::Run { work: going_on, lane: lane_of(device), rank: suspended.rank };
        let at_home = self.finish_of_last(context, &[at_home]);
        let there = self.finish_of_last(context, &[there]);
        at_home.zip(there).is_some_and(|(at_home, there)| at_home < there)
    }

    /// The tenant's own device that its next iteration should start on: one that runs nothing of the same right of way,
    /// if there is any, rather one that runs nothing latency-sensitive at all.
    pub(super) fn free_home(&self, context: &Context<'_>, tenant: TenantId, plan: &Plan) -> Option<ReplicaInfo> {
        self.places
            .homes(tenant)
            .iter()
            .copied()
            .filter(|&device| !takes(context.view, plan, lane_of(device)) && !context.view.is_lost(device))
            .filter(|&device| runs_below(context, device, Rank::OwnerLatency))
            .filter_map(|device| context.demand.replica_on(tenant, device))
            .filter(|replica| !replica.in_flight && is_open(context.view, plan, replica, Rank::OwnerLatency))
            .min_by_key(|replica| {
                (!runs_below(context, replica.device, Rank::GuestLatency), replica.running, replica.device)
            })
    }
}
