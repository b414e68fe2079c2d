//! What every policy needs to place an iteration on a device.
//!
//! A replica of a model that is spread over several devices, a *group*, is on the first of them as far as policies are
//! concerned, and takes the lanes of all of them whenever it runs. What must stay true: nothing of the owner is ever
//! placed on another device of the group by itself, and an iteration of it only where it goes first on every rank.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ReplicaId, TenantId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::{Action, BatchLimits, Event, Plan, Rank, Work};
use slicescheduler_gmg::tenant::Class;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::view::LaneEntry;
use slicescheduler_gmg::{GmgView, View};

use crate::batching::Iteration;
use crate::demand::{Demand, ReplicaInfo};
use crate::policy::Context;

/// The lane that iterations of a device run on. Policies here use one lane per device.
pub(crate) fn lane_of(device: DeviceId) -> LaneId {
    LaneId::new(device, 0)
}

/// The device that the replicas of the owner of `device` are on: the first of its group.
pub(crate) fn leader_of(view: View<'_>, device: DeviceId) -> DeviceId {
    view.group(device).first().copied().unwrap_or(device)
}

/// The devices of the group of `device`, by rank, or `device` alone.
pub(crate) fn group_of(view: View<'_>, device: DeviceId) -> SmallVec<[DeviceId; 8]> {
    match view.group(device) {
        [] => smallvec![device],
        group => group.into(),
    }
}

/// The devices that an iteration of `replica` runs on, by rank.
pub(crate) fn ranks_of(view: View<'_>, replica: &ReplicaInfo) -> SmallVec<[DeviceId; 8]> {
    match view.group(replica.device) {
        [first, ..] if *first == replica.device && view.is_home(replica.id.tenant, *first) => {
            group_of(view, replica.device)
        }
        _ => smallvec![replica.device],
    }
}

/// A job of `replica`, or those of all ranks, as an action for forecasts.
pub(crate) fn run_action(view: View<'_>, replica: &ReplicaInfo, spec: JobSpec, rank: Rank) -> Action {
    match &ranks_of(view, replica)[..] {
        [device] => Action::Run { work: Work::New(Box::new(spec)), lane: lane_of(*device), rank },
        devices => {
            let size = devices.len() as u32;
            let member = |(place, &device)| (spec.clone().rank(place, size), lane_of(device));
            Action::RunGang { members: (0..).zip(devices).map(member).collect(), rank }
        }
    }
}

/// Lets a job go on that was recalled on `device`, or the jobs of all ranks.
pub(crate) fn resume_actions(
    view: View<'_>,
    job: JobId,
    ops: &Range<u32>,
    device: DeviceId,
    rank: Rank,
) -> SmallVec<[Action; 4]> {
    let jobs = jobs_with(view, job);
    let devices = if jobs.len() > 1 { group_of(view, device) } else { smallvec![device] };
    let resume =
        |(job, device)| Action::Run { work: Work::Existing { job, ops: ops.clone() }, lane: lane_of(device), rank };
    jobs.into_iter().zip(devices).map(resume).collect()
}

/// A job, or the jobs of all ranks that it runs with, by rank.
fn jobs_with(view: View<'_>, job: JobId) -> SmallVec<[JobId; 8]> {
    match view.job(job).and_then(|found| found.gang.as_ref()) {
        Some(members) => members.jobs().into(),
        None => smallvec![job],
    }
}

/// What was recalled when a job came back from a lane: the job itself, or, when the last rank is back, the first of all
/// ranks, and where it goes on. [`None`] while others are still on their lanes.
pub(crate) fn recalled(view: View<'_>, job: JobId, lane: LaneId) -> Option<(JobId, DeviceId)> {
    let jobs = jobs_with(view, job);
    if jobs.len() < 2 {
        return Some((job, lane.device));
    }
    let is_back = |rank: &JobId| view.job(*rank).is_some_and(|found| !found.is_dispatched() && !found.is_broken());
    Some((*jobs.first().filter(|_| jobs.iter().all(is_back))?, leader_of(view, lane.device)))
}

/// True if an iteration of `replica` with `rank` would go first on the devices of its other ranks, and could
/// run there: they live and have the weights.
pub(crate) fn is_open(view: View<'_>, plan: &Plan, replica: &ReplicaInfo, rank: Rank) -> bool {
    if view.group(replica.device).is_empty() {
        return true;
    }
    ranks_of(view, replica).iter().skip(1).all(|&device| {
        let lane = lane_of(device);
        let below = |queue: &[LaneEntry]| queue.iter().all(|entry| entry.rank < rank);
        !view.is_lost(device)
            && view.is_resident(replica.model, device)
            && view.lane(lane).is_some_and(|lane| below(lane.queue()))
            && plan.actions.iter().all(|action| match action {
                Action::FormBatch { lane: on, rank: taken, .. } | Action::Run { lane: on, rank: taken, .. } => {
                    *on != lane || *taken < rank
                }
                _ => true,
            })
    })
}

/// True if a rank of an iteration of the group of `device` is on a lane. The others are there too, or were and are
/// back in the same moment, so nothing else starts on them meanwhile.
pub(crate) fn group_runs(view: View<'_>, device: DeviceId) -> bool {
    view.group(device).iter().any(|&rank| {
        let queue = view.lane(lane_of(rank)).map_or(&[][..], |lane| lane.queue());
        queue.iter().any(|entry| view.job(entry.job).is_some_and(|job| job.spec.gang.is_some()))
    })
}

/// True if an earlier action of the plan takes the lane, or all lanes of its group.
pub(crate) fn takes(view: View<'_>, plan: &Plan, taken: LaneId) -> bool {
    plan.actions.iter().any(|action| match action {
        Action::FormBatch { replica, lane, .. } => {
            *lane == taken
                || (lane.device == leader_of(view, taken.device) && view.is_home(replica.tenant, taken.device))
        }
        Action::Run { lane, .. } => *lane == taken,
        _ => false,
    })
}

/// True if the device lives and nothing is queued on its lane.
pub(crate) fn is_free(view: View<'_>, device: DeviceId) -> bool {
    let is_empty = view.lane(lane_of(device)).is_some_and(|lane| lane.is_empty());
    is_empty && !view.is_lost(device) && !group_runs(view, device)
}

/// KV blocks of a device that no sequence holds.
pub(crate) fn free_blocks(view: View<'_>, device: DeviceId) -> u32 {
    view.memory(device).map_or(0, |memory| memory.kv().free_blocks())
}

/// KV blocks that the sequences of a replica may take: as many are free on every device of it.
pub(crate) fn free_blocks_for(view: View<'_>, replica: &ReplicaInfo) -> u32 {
    ranks_of(view, replica).into_iter().map(|device| free_blocks(view, device)).min().unwrap_or(0)
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

/// The device on which `event` may have changed what should run, the first of its group; [`None`] means any.
pub(crate) fn touched(view: View<'_>, event: &Event) -> Option<DeviceId> {
    let device = match event {
        Event::Finished { lane, .. } | Event::Recalled { lane, .. } | Event::Failed { lane, .. } => Some(lane.device),
        Event::WeightsLoaded { device, .. } => Some(*device),
        _ => None,
    };
    device.map(|device| leader_of(view, device))
}

/// Places the next iteration of `replica` on its device.
pub(crate) fn form(view: View<'_>, replica: &ReplicaInfo, limits: BatchLimits, plan: &mut Plan) {
    let rank = view.rank(replica.id.tenant, replica.device);
    plan.actions.push(Action::FormBatch { replica: replica.id, lane: lane_of(replica.device), limits, rank });
}

/// The replica of the device's owner, if the device has one; of a group, the one that all of its devices have.
pub(crate) fn owner_replica(view: View<'_>, demand: &dyn Demand, device: DeviceId) -> Option<ReplicaInfo> {
    demand.replica_on(view.owner(device)?, leader_of(view, device))
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
    let replica = owner_replica(context.view, context.demand, device).filter(|replica| replica.device == device)?;
    if !is_open(context.view, plan, &replica, context.view.rank(replica.id.tenant, device)) {
        return None;
    }
    let limits = unlimited(free_blocks_for(context.view, &replica));
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
            let there =
                |replica: &ReplicaInfo| replica.device == device || ranks_of(context.view, replica).contains(&device);
            let there = context.demand.replica(*replica).as_ref().is_some_and(there);
            free + if there { *blocks } else { 0 }
        }
        Action::BorrowSlots { device: on, blocks } if *on == device => {
            free.saturating_sub(borrowed.saturating_sub(*blocks))
        }
        _ => free,
    })
}

/// As [`free_blocks_after`], for the sequences of a replica: as many will be free on every device of it.
pub(crate) fn free_blocks_after_for(context: &Context<'_>, replica: &ReplicaInfo, plan: &Plan) -> u32 {
    let ranks = ranks_of(context.view, replica).into_iter();
    ranks.map(|device| free_blocks_after(context, device, plan)).min().unwrap_or(0)
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
