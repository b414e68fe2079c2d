//! What every policy needs to place an iteration on a device.

use slicescheduler_gmg::id::{DeviceId, LaneId, ReplicaId, TenantId};
use slicescheduler_gmg::plan::{Action, BatchLimits, Event, Plan};
use slicescheduler_gmg::tenant::Class;
use slicescheduler_gmg::units::Nanos;
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

/// Tokens of a replica's sequences that a KV block of its device holds; at least one.
pub(crate) fn block_tokens(view: View<'_>, replica: &ReplicaInfo) -> u64 {
    let Some(layout) = view.memory(replica.device).map(|memory| memory.layout()) else { return 1 };
    let width = view.model(replica.model).map_or(0, |model| model.kv_bytes_per_token.get());
    layout.kv_block.get().checked_div(width).unwrap_or(u64::from(layout.kv_block_tokens)).max(1)
}

/// As large as the tenant's options and the free blocks allow.
pub(crate) fn unlimited(new_blocks: u32) -> BatchLimits {
    BatchLimits { tokens: u32::MAX, sequences: u32::MAX, new_blocks, keep_free: 0, not_due_before: Nanos::ZERO }
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

/// Blocks that earlier actions of the plan take from `replica`.
pub(crate) fn promised_by(plan: &Plan, replica: ReplicaId) -> u32 {
    let from = |action: &Action| match action {
        Action::EvictSequences { replica: from, blocks } if *from == replica => *blocks,
        _ => 0,
    };
    plan.actions.iter().map(from).sum()
}

/// Blocks of a device that will be free once the plan is carried out. Those that the KV pool is to have
/// beyond what it has do not count: weights have to go first.
pub(crate) fn free_blocks_after(context: &Context<'_>, device: DeviceId, plan: &Plan) -> u32 {
    let borrowed = context.view.memory(device).map_or(0, |memory| memory.borrowed_blocks());
    plan.actions.iter().fold(free_blocks(context.view, device), |free, action| match action {
        Action::EvictSequences { replica, blocks } => {
            let there = context.demand.replica(*replica).is_some_and(|replica| replica.device == device);
            free + if there { *blocks } else { 0 }
        }
        Action::BorrowSlots { device: on, blocks } if *on == device => {
            free.saturating_sub(borrowed.saturating_sub(*blocks))
        }
        _ => free,
    })
}

/// Guests of one class give back blocks to the owner of a device: the youngest sequences of replicas
/// that have nothing under way, or whose job the plan gives up already. Returns the blocks that were asked for.
pub(crate) fn reclaim(context: &Context<'_>, device: DeviceId, class: Class, wanted: u32, plan: &mut Plan) -> u32 {
    let (view, owner) = (context.view, context.view.owner(device));
    let mut asked = 0;
    // Sequences are only where their weights are.
    let models = view.memory(device).into_iter().flat_map(|memory| memory.models());
    for tenant in models.filter_map(|(model, _)| Some(view.model(model)?.tenant())) {
        let of_class = view.tenant(tenant).is_some_and(|tenant| tenant.class == class);
        if asked >= wanted || Some(tenant) == owner || !of_class {
            continue;
        }
        let held = view.memory(device).map_or(0, |memory| memory.kv().used_by(tenant));
        let Some(replica) = context.demand.replica_on(tenant, device) else { continue };
        let promised = promised_by(plan, replica.id);
        let held = held.saturating_sub(promised);
        if (!replica.in_flight || promised > 0) && held > 0 {
            let blocks = held.min(wanted - asked);
            plan.actions.push(Action::EvictSequences { replica: replica.id, blocks });
            asked += blocks;
        }
    }
    asked
}
