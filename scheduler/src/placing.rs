//! What every policy needs to place an iteration on a device.

use slicescheduler_gmg::id::{DeviceId, LaneId, ReplicaId, TenantId};
use slicescheduler_gmg::plan::{Action, BatchLimits, Event, Plan};
use slicescheduler_gmg::{GmgView, View};

use crate::batching::Iteration;
use crate::demand::{Demand, ReplicaInfo};
use crate::policy::Context;

/// The lane that iterations of a device run on. Policies here use one lane per device.
pub(crate) fn lane_of(device: DeviceId) -> LaneId {
    LaneId::new(device, 0)
}

/// True if the device lives and nothing is queued on its lane.
pub(crate) fn is_free(view: View<'_>, device: DeviceId) -> bool {
    !view.is_lost(device) && view.lane(lane_of(device)).is_some_and(|lane| lane.is_empty())
}

/// KV blocks of a device that no sequence holds.
pub(crate) fn free_blocks(view: View<'_>, device: DeviceId) -> u32 {
    view.memory(device).map_or(0, |memory| memory.kv().free_blocks())
}

/// All KV blocks of a device.
pub(crate) fn total_blocks(view: View<'_>, device: DeviceId) -> u32 {
    view.memory(device).map_or(0, |memory| memory.kv().total())
}

/// As large as the tenant's options and the free blocks allow.
pub(crate) fn unlimited(new_blocks: u32) -> BatchLimits {
    BatchLimits { tokens: u32::MAX, sequences: u32::MAX, new_blocks, keep_free: 0 }
}

/// The devices on which `event` may have changed what should run; [`None`] means any.
pub(crate) fn touched(event: &Event) -> Option<DeviceId> {
    match event {
        Event::Finished { lane, .. } | Event::Recalled { lane, .. } | Event::Failed { lane, .. } => Some(lane.device),
        Event::WeightsLoaded { device, .. } => Some(*device),
        _ => None,
    }
}

/// Places the next iteration of `replica` on its device.
pub(crate) fn form(view: View<'_>, replica: &ReplicaInfo, limits: BatchLimits, plan: &mut Plan) {
    let rank = view.rank(replica.id.tenant, replica.device);
    plan.actions.push(Action::FormBatch { replica: replica.id, lane: lane_of(replica.device), limits, rank });
}

/// The replica of the device's owner, if the device has one.
pub(crate) fn owner_replica(view: View<'_>, demand: &dyn Demand, device: DeviceId) -> Option<ReplicaInfo> {
    demand.replica_on(view.owner(device)?, device)
}

/// True if tenant `id` has due times.
pub(crate) fn is_latency(view: View<'_>, id: TenantId) -> bool {
    view.tenant(id).is_some_and(|tenant| tenant.is_latency_sensitive())
}

/// Places an iteration of the device's owner, if it has one to run and the lane is free.
pub(crate) fn run_owner(
    context: &Context<'_>,
    device: DeviceId,
    scratch: &mut Iteration,
    plan: &mut Plan,
) -> Option<ReplicaId> {
    let replica = owner_replica(context.view, context.demand, device)?;
    let limits = unlimited(free_blocks(context.view, device));
    context.demand.peek(replica.id, limits, scratch);
    if scratch.is_empty() && scratch.preempted == 0 {
        return None;
    }
    form(context.view, &replica, limits, plan);
    Some(replica.id)
}

/// Guests give back blocks when the owner of the device runs short: the youngest sequences of
/// best-effort guests go first. Returns the blocks that were asked for.
pub(crate) fn reclaim(context: &Context<'_>, device: DeviceId, mut wanted: u32, plan: &mut Plan) -> u32 {
    let (view, owner) = (context.view, context.view.owner(device));
    let mut asked = 0;
    for latency in [false, true] {
        for tenant in (0..view.tenants().len() as u32).map(TenantId) {
            if wanted == 0 {
                return asked;
            }
            if Some(tenant) == owner || is_latency(view, tenant) != latency {
                continue;
            }
            let held = view.memory(device).map_or(0, |memory| memory.kv().used_by(tenant));
            let Some(replica) = context.demand.replica_on(tenant, device).filter(|_| held > 0) else { continue };
            if replica.in_flight {
                continue;
            }
            let blocks = wanted.min(held);
            plan.actions.push(Action::EvictSequences { replica: replica.id, blocks });
            wanted -= blocks;
            asked += blocks;
        }
    }
    asked
}
