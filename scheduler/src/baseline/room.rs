//! Who may take KV blocks of a device, and whose recalled work can go on.

use std::ops::Range;

use slicescheduler_gmg::id::{DeviceId, JobId, ReplicaId, TenantId};
use slicescheduler_gmg::plan::{Action, BatchLimits, Event, Plan};
use slicescheduler_gmg::{GmgView, View};

use crate::baseline::{Parameter, Settings};
use crate::placing::{
    free_blocks_after, free_blocks_after_for, is_latency, is_open, promised_by, recalled, resume_actions, total_blocks,
    unlimited,
};
use crate::policy::Context;

/// The parameter behind [`Reserve`].
pub(super) const RESERVE: Parameter = Parameter {
    name: "reserve_one_in",
    what: "best-effort guests leave one in so many KV blocks of a device to latency-sensitive work",
    default: 16,
    least: 1,
    most: 1_000_000,
    grid: &[4, 8, 16, 64],
};

/// The share of a device's KV blocks that best-effort work leaves free for latency-sensitive work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserve {
    one_in: u32,
}

impl Default for Reserve {
    fn default() -> Self {
        Self::of(&Settings::default())
    }
}

impl Reserve {
    pub(super) fn of(settings: &Settings) -> Self {
        Self { one_in: settings.get_u32(&RESERVE).max(1) }
    }

    /// Blocks of `device` that stay free.
    pub(super) fn blocks(self, view: View<'_>, device: DeviceId) -> u32 {
        total_blocks(view, device) / self.one_in
    }
}

/// A job that a lane took back, with the operators that are left of it.
#[derive(Clone, Debug)]
struct Paused {
    job: JobId,
    replica: ReplicaId,
    ops: Range<u32>,
}

/// The reserve, and what was recalled on each device. What must stay true: a paused job is on no lane.
#[derive(Clone, Debug, Default)]
pub(super) struct Room {
    reserve: Reserve,
    paused: Vec<Vec<Paused>>,
}

impl Room {
    pub(super) fn of(settings: &Settings) -> Self {
        Self { reserve: Reserve::of(settings), paused: Vec::new() }
    }

    /// Blocks of `device` that best-effort work leaves free.
    pub(super) fn reserved(&self, view: View<'_>, device: DeviceId) -> u32 {
        self.reserve.blocks(view, device)
    }

    /// What an iteration of `tenant` may take on `device` once `plan` is carried out: everything that is
    /// free; best-effort work leaves the reserve where latency-sensitive tenants have their weights.
    pub(super) fn limits(&self, context: &Context<'_>, tenant: TenantId, device: DeviceId, plan: &Plan) -> BatchLimits {
        let free = match context.demand.replica_on(tenant, device) {
            Some(replica) => free_blocks_after_for(context, &replica, plan),
            None => free_blocks_after(context, device, plan),
        };
        if is_latency(context.view, tenant) || !hosts_latency(context.view, device) {
            return unlimited(free);
        }
        unlimited(free.saturating_sub(self.reserved(context.view, device)))
    }

    /// Keeps the table of recalled jobs true. Call it for every event.
    pub(super) fn note(&mut self, context: &Context<'_>, event: &Event) {
        self.paused.resize(context.view.cluster().devices().len(), Vec::new());
        match event {
            Event::Recalled { job, lane, end, .. } => {
                let Some((job, device)) = recalled(context.view, *job, *lane) else { return };
                let Some(found) = context.view.job(job) else { return };
                let key = found.spec.key;
                let replica = ReplicaId { tenant: TenantId(key.tenant), index: key.replica };
                let ops = found.progress()..*end;
                if let Some(paused) = self.paused.get_mut(device.index()).filter(|_| !ops.is_empty()) {
                    paused.retain(|other| other.job != job);
                    paused.push(Paused { job, replica, ops });
                }
            }
            Event::DeviceLost { device, .. } => {
                if let Some(paused) = self.paused.get_mut(device.index()) {
                    paused.clear();
                }
            }
            _ => {}
        }
    }

    /// Lets the job go on that was recalled first on `device` and that `allowed` allows. False if there is none.
    pub(super) fn resume(
        &mut self,
        context: &Context<'_>,
        device: DeviceId,
        allowed: impl Fn(TenantId) -> bool,
        plan: &mut Plan,
    ) -> bool {
        let Some(paused) = self.paused.get_mut(device.index()) else { return false };
        paused.retain(|paused| context.view.job(paused.job).is_some());
        let view = context.view;
        let can_go_on = |paused: &Paused| {
            let replica = context.demand.replica(paused.replica);
            let rank = view.rank(paused.replica.tenant, device);
            allowed(paused.replica.tenant) && replica.is_none_or(|replica| is_open(view, plan, &replica, rank))
        };
        let Some(next) = paused.iter().position(can_go_on) else { return false };
        let Paused { job, replica, ops } = paused.remove(next);
        let rank = view.rank(replica.tenant, device);
        plan.actions.extend(resume_actions(view, job, &ops, device, rank));
        true
    }

    /// Best-effort sequences that nothing computes at the moment go, the youngest of a replica first, until
    /// `wanted` blocks of `device` are free; recalled work of theirs is given up. Returns the blocks that were
    /// asked for.
    pub(super) fn evict_best_effort(
        &mut self,
        context: &Context<'_>,
        device: DeviceId,
        wanted: u32,
        plan: &mut Plan,
    ) -> u32 {
        let view = context.view;
        let mut asked = 0;
        for tenant in (0..view.tenants().len() as u32).map(TenantId).filter(|&tenant| !is_latency(view, tenant)) {
            let Some(replica) = context.demand.replica_on(tenant, device) else { continue };
            let held = view.memory(device).map_or(0, |memory| memory.kv().used_by(tenant));
            let blocks = held.saturating_sub(promised_by(plan, replica.id)).min(wanted.saturating_sub(asked));
            if blocks == 0 || (!self.give_up(replica.id, device, plan) && replica.in_flight) {
                continue;
            }
            plan.actions.push(Action::EvictSequences { replica: replica.id, blocks });
            asked += blocks;
        }
        asked
    }

    /// Cancels the recalled job of a replica. False if it has none.
    fn give_up(&mut self, replica: ReplicaId, device: DeviceId, plan: &mut Plan) -> bool {
        let Some(paused) = self.paused.get_mut(device.index()) else { return false };
        let Some(found) = paused.iter().position(|paused| paused.replica == replica) else { return false };
        plan.actions.push(Action::Cancel { job: paused.remove(found).job });
        true
    }
}

fn hosts_latency(view: View<'_>, device: DeviceId) -> bool {
    view.memory(device).is_some_and(|memory| {
        memory.models().any(|(model, _)| view.model(model).is_some_and(|model| is_latency(view, model.tenant())))
    })
}
