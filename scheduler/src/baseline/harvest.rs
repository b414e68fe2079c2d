//! Owners first, best-effort guests in what they leave: the frame of the rules that harvest.

use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::plan::{Action, BatchLimits, Fate, Plan, Rank};
use slicescheduler_gmg::{GmgView, View};

use crate::baseline::candidates::{Candidate, candidate, candidate_in, ready_replica};
use crate::baseline::room::Room;
use crate::batching::Iteration;
use crate::placing::{group_runs, is_latency, lane_of};
use crate::policy::Context;

/// What a harvesting policy knows of its devices.
#[derive(Debug, Default)]
pub(super) struct Harvest {
    pub(super) room: Room,
    pub(super) scratch: Iteration,
}

impl Harvest {
    /// The next iteration of the device's owner, if it has due times; it takes blocks from guests where it is
    /// short of them.
    pub(super) fn owner(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) -> Option<Candidate> {
        let owner = context.view.owner(device).filter(|&owner| is_latency(context.view, owner))?;
        candidate_in(context, owner, device, &mut self.room, u32::MAX, plan, &mut self.scratch)
    }

    /// As [`owner`](Self::owner); an owner that has to wait for blocks which a guest on the lane holds has the
    /// guest recalled, so that it can give them back.
    pub(super) fn owner_before_guests(
        &mut self,
        context: &Context<'_>,
        device: DeviceId,
        plan: &mut Plan,
    ) -> Option<Candidate> {
        let found = self.owner(context, device, plan);
        let is_latency_owner = context.view.owner(device).is_some_and(|owner| is_latency(context.view, owner));
        if found.is_none() && is_latency_owner && self.scratch.short_of_blocks {
            let queue = context.view.lane(lane_of(device)).map_or(&[][..], |lane| lane.queue());
            if let Some(guest) = queue.iter().find(|entry| entry.rank == Rank::GuestBestEffort) {
                plan.actions.push(Action::Recall { job: guest.job, fate: Fate::Keep });
            }
        }
        found
    }

    /// The next best-effort iteration of at most `tokens` tokens: the owner's, if it is best-effort, then those
    /// of the others in the order of their ids.
    pub(super) fn best_effort(
        &mut self,
        context: &Context<'_>,
        device: DeviceId,
        tokens: u32,
        plan: &mut Plan,
    ) -> Option<Candidate> {
        let owner = context.view.owner(device);
        let tenants = (0..context.view.tenants().len() as u32).map(TenantId);
        let order = owner.into_iter().chain(tenants.filter(|&tenant| Some(tenant) != owner));
        for tenant in order.filter(|&tenant| !is_latency(context.view, tenant)) {
            if ready_replica(context, tenant, device).is_none() {
                continue;
            }
            let limits = BatchLimits { tokens, ..self.room.limits(context, tenant, device, plan) };
            if let Some(found) = candidate(context, tenant, device, limits, plan, &mut self.scratch) {
                return Some(found);
            }
        }
        None
    }

    /// Starts best-effort work on a device whose lane is free: what was recalled goes on first. False if there
    /// is none.
    pub(super) fn start_best_effort(
        &mut self,
        context: &Context<'_>,
        device: DeviceId,
        tokens: u32,
        plan: &mut Plan,
    ) -> bool {
        if self.room.resume(context, device, |tenant| !is_latency(context.view, tenant), plan) {
            return true;
        }
        let found = self.best_effort(context, device, tokens, plan);
        if let Some(found) = &found {
            found.start(context, plan);
        }
        found.is_some()
    }
}

/// What a lane has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Busy {
    /// Nothing.
    Free,
    /// Best-effort work only.
    BestEffort,
    /// Work with due times, or of a group that is about to end; or the device is lost.
    Latency,
}

pub(super) fn busy(view: View<'_>, device: DeviceId) -> Busy {
    let Some(lane) = view.lane(lane_of(device)).filter(|_| !view.is_lost(device)) else { return Busy::Latency };
    match lane.queue() {
        [] if group_runs(view, device) => Busy::Latency,
        [] => Busy::Free,
        queue if queue.iter().any(|entry| entry.rank >= Rank::GuestLatency) => Busy::Latency,
        _ => Busy::BestEffort,
    }
}
