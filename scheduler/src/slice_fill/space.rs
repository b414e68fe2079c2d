//! Whose bytes a device has: guests' weights or KV blocks.
//!
//! An idle slot for weights is worth more as KV cache. So the weights of a guest go, and the KV pool has
//! their bytes, when the owner lacks blocks, or when best-effort work does and the guest has not run yet or not
//! for a while. They come back when the guest is needed (a burst, or a device that nobody else has work for) or
//! the owner's need has passed; what best-effort sequences have too much then goes first, and what is left moves
//! together.
//!
//! What must stay true: the owner's weights stay; weights change at most once per [`SLOT_STAY`] for anybody but
//! a latency-sensitive owner; slots are given up from the end of the part for weights, so that what is free is
//! in one piece.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, ModelId, TenantId};
use slicescheduler_gmg::memory::{DeviceMemory, WeightState};
use slicescheduler_gmg::plan::{Action, Plan, Source};
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::explain::{Reason, What};
use crate::placing::{free_blocks_after, is_latency, owner_replica, promised_by};
use crate::policy::Context;
use crate::slice_fill::agenda::tenants_on;
use crate::slice_fill::fetch::source;
use crate::slice_fill::overflow::fetches;
use crate::slice_fill::{REPLAN, SliceFill};

/// How long weights stay on a device, or away from it, before best-effort work has them changed: a
/// hundred times what a copy over a fast link takes.
const SLOT_STAY: Nanos = Nanos::secs(10);

/// How long a latency-sensitive guest has not run when its weights give way to best-effort work: bursts
/// of a tenant come again within two minutes.
const GUEST_STAY: Nanos = Nanos::secs(120);

/// The same, where that work is its owner's.
const OWNER_WAIT: Nanos = Nanos::secs(30);

/// How long nobody has had best-effort work for a device when another tenant's weights are brought.
const PATIENCE: Nanos = Nanos::secs(1);

/// What a device remembers about its part for weights.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    /// Guests whose weights gave way to an owner, to come back when its need has passed.
    gone: Vec<ModelId>,
    /// When the owner last lacked blocks.
    short_at: Nanos,
    /// When weights last came or went.
    changed_at: Option<Nanos>,
    /// When a latency-sensitive guest last ran, or its weights were asked for.
    pub(super) guest_at: Option<Nanos>,
    /// Since when no best-effort tenant with weights here has had work.
    pub(super) out_of_work: Option<Nanos>,
    /// Weights that come as soon as there is room.
    pub(super) asked: Option<(ModelId, Source)>,
    /// True while the owner lacks blocks although guests have given way.
    pub(super) owner_lacks: bool,
}

impl Space {
    /// When something may change by itself.
    pub(super) fn wake(&self) -> Option<Nanos> {
        let settled = self.changed_at.map_or(Nanos::ZERO, |at| at + SLOT_STAY);
        let back = (!self.gone.is_empty()).then(|| settled.max(self.short_at + SLOT_STAY));
        let invited = self.out_of_work.map(|since| settled.max(since + PATIENCE));
        back.into_iter().chain(invited).min()
    }

    /// True if weights may come or go for best-effort work.
    fn is_settled(&self, now: Nanos) -> bool {
        self.changed_at.is_none_or(|at| at + SLOT_STAY <= now)
    }

    /// True if no latency-sensitive guest ran for `time`.
    fn is_unused(&self, now: Nanos, time: Nanos) -> bool {
        self.guest_at.is_none_or(|at| at + time <= now)
    }
}

/// Who lacks blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// A latency-sensitive owner.
    Owner,
    /// Best-effort work.
    BestEffort,
}

impl SliceFill {
    /// Gives the slot of a guest's weights to the KV pool, if the guest is not in the way. True if it did: there
    /// are more blocks when the plan has been carried out.
    pub(super) fn give_up_slot(
        &mut self,
        context: &mut Context<'_>,
        device: DeviceId,
        need: Need,
        plan: &mut Plan,
    ) -> bool {
        let view = context.view;
        let Some(memory) = view.memory(device).filter(|_| context.shares_slots) else { return false };
        let space = &mut self.devices[device.index()].space;
        if need == Need::Owner {
            space.short_at = context.now;
        }
        if is_planned(plan, device) {
            return false;
        }
        let Some((model, state)) = last_slot(memory) else { return false };
        let Some(tenant) = view.model(model).map(|model| model.tenant()) else { return false };
        let guest = is_latency(view, tenant);
        let stay = stay(context, device);
        let may_go = match need {
            Need::Owner => !guest || space.is_unused(context.now, REPLAN + Nanos(1)),
            Need::BestEffort => guest && space.is_settled(context.now) && space.is_unused(context.now, stay),
        };
        if state != WeightState::Resident || view.owner(device) == Some(tenant) {
            return false;
        }
        if !may_go {
            if guest {
                context.say(device, tenant, What::GiveUpSlot { model }, Some(Reason::Settling), None);
            }
            return false;
        }
        let Some(replica) = context.demand.replica_on(tenant, device) else { return false };
        let held = memory.kv().used_by(tenant).saturating_sub(promised_by(plan, replica.id));
        let waits = self.devices[device.index()].suspended.iter().any(|one| one.replica.tenant == tenant);
        if replica.in_flight || held > 0 || waits {
            return false;
        }
        let behind = memory.models().filter(|&(other, _)| other != model);
        let behind = behind.filter_map(|(other, _)| Some(memory.weight_region(other)?.end())).max();
        let blocks = memory.layout().borrowable_from(behind.unwrap_or(Bytes::ZERO));
        plan.actions.push(Action::EvictWeights { model, device });
        plan.actions.push(Action::BorrowSlots { device, blocks });
        context.say(device, tenant, What::GiveUpSlot { model }, None, None);
        self.look_again(context, device);
        let space = &mut self.devices[device.index()].space;
        space.changed_at = Some(context.now);
        if !guest {
            space.gone.push(model);
        }
        let wake = space.wake();
        self.slots.set(device, wake);
        true
    }

    /// Brings weights back to a device with an empty lane: those that a burst asked for, or those that had to
    /// give way to the owner, when it has not lacked blocks for a while and would not lack them then.
    pub(super) fn take_slot_back(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) {
        if is_planned(plan, device) {
            return;
        }
        let space = &mut self.devices[device.index()].space;
        if let Some((model, source)) = space.asked.take() {
            // Best-effort work waits for a burst, not for other best-effort work.
            let burst = context.view.model(model).is_some_and(|model| is_latency(context.view, model.tenant()));
            self.load(context, device, (model, source), burst, plan);
            return;
        }
        let settled = space.short_at + SLOT_STAY <= context.now && space.is_settled(context.now);
        let Some(&model) = space.gone.last().filter(|_| settled) else { return };
        let Some(tenant) = context.view.model(model).map(|model| model.tenant()) else { return };
        let from = source(context, self.places.homes(tenant), model, device);
        let space = &mut self.devices[device.index()].space;
        space.changed_at = Some(context.now);
        if let Some(from) = from {
            self.load(context, device, (model, from), false, plan);
        }
    }

    /// Plans to load weights behind those that are there. With `evict`, best-effort sequences give way.
    fn load(
        &mut self,
        context: &Context<'_>,
        device: DeviceId,
        (model, source): (ModelId, Source),
        evict: bool,
        plan: &mut Plan,
    ) -> bool {
        let view = context.view;
        let Some((memory, described)) = view.memory(device).zip(view.model(model)) else { return false };
        let layout = memory.layout();
        let end = memory.weight_slots().free_from() + described.weights;
        if end > layout.weights || memory.weight_state(model).is_some() {
            return false;
        }
        let blocks = layout.borrowable_from(end).min(memory.borrowed_blocks());
        let goes = memory.borrowed_blocks() - blocks;
        let reserve = if evict { 0 } else { self.reserve_blocks(context, device) };
        let free = free_blocks_after(context, device, plan);
        if free < goes + reserve {
            let wanted = goes + reserve - free;
            if !evict || self.clear_best_effort(context, device, wanted, plan) < wanted {
                return false;
            }
        }
        if goes > 0 {
            plan.actions.push(Action::BorrowSlots { device, blocks });
        }
        plan.actions.push(Action::Prefetch { model, device, source });
        let state = &mut self.devices[device.index()];
        state.space.changed_at = Some(context.now);
        state.space.gone.retain(|&gone| gone != model);
        state.guest_since = context.now;
        if is_latency(view, described.tenant()) {
            state.space.guest_at = Some(context.now);
        }
        true
    }

    /// Brings the weights of a best-effort tenant that has requests waiting to a device with an empty lane for
    /// which no best-effort tenant has had work for a while, in place of a guest's if need be: whoever had least first.
    pub(super) fn invite(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) {
        let view = context.view;
        let Some(memory) = view.memory(device).filter(|_| context.shares_slots) else { return };
        let has_work = |tenant: TenantId| {
            let runs = context.demand.replica_on(tenant, device).is_some_and(|replica| replica.running > 0);
            !is_latency(view, tenant) && (runs || context.demand.waiting(tenant).is_some())
        };
        let space = &mut self.devices[device.index()].space;
        if tenants_on(view, device).into_iter().any(has_work) {
            space.out_of_work = None;
            return;
        }
        let since = *space.out_of_work.get_or_insert(context.now);
        if context.now < since + PATIENCE {
            let wake = space.wake();
            self.slots.set(device, wake);
            return;
        }
        let owner_is_short = !space.gone.is_empty() && context.now < space.short_at + SLOT_STAY;
        if !space.is_settled(context.now) || owner_is_short || space.asked.is_some() || is_planned(plan, device) {
            return;
        }
        let guests = (0..view.tenants().len() as u32).map(TenantId).filter_map(|tenant| {
            let replica = context.demand.replica_on(tenant, device)?;
            let wanted = !is_latency(view, tenant) && context.demand.waiting(tenant).is_some();
            let is_coming = fetches(plan, replica.model) || self.is_coming(context, tenant, replica.model);
            let absent = memory.weight_state(replica.model).is_none();
            (wanted && absent && !is_coming).then_some((self.turn_of(tenant), tenant, replica))
        });
        let Some((_, tenant, replica)) = guests.min_by_key(|&(turn, tenant, _)| (turn, tenant)) else { return };
        let Some(from) = source(context, self.places.homes(tenant), replica.model, device) else { return };
        if self.load(context, device, (replica.model, from), false, plan) {
            self.places.fetching[tenant.index()] = Some(device);
            return;
        }
        let Some((idle, WeightState::Resident)) = last_slot(memory) else { return };
        let Some(other) = view.model(idle).map(|model| model.tenant()) else { return };
        let unused = context.demand.replica_on(other, device).is_some_and(|one| one.running == 0 && !one.in_flight);
        let space = &mut self.devices[device.index()].space;
        let may_go = context.demand.waiting(other).is_none()
            && (!is_latency(view, other) || space.is_unused(context.now, stay(context, device)));
        if unused && may_go && view.owner(device) != Some(other) {
            plan.actions.push(Action::EvictWeights { model: idle, device });
            space.changed_at = Some(context.now);
            space.asked = Some((replica.model, from));
            self.places.fetching[tenant.index()] = Some(device);
            self.look_again(context, device);
        }
    }

    /// Lets best-effort sequences give back `wanted` blocks of a device with an empty lane, those of guests
    /// first, then those of its owner. Returns the blocks that they give.
    fn clear_best_effort(&mut self, context: &Context<'_>, device: DeviceId, wanted: u32, plan: &mut Plan) -> u32 {
        let given = self.make_room(context, device, wanted, plan);
        let owner = owner_replica(context.view, context.demand, device);
        let Some(owner) = owner.filter(|owner| given < wanted && !is_latency(context.view, owner.id.tenant)) else {
            return given;
        };
        let suspended = &mut self.devices[device.index()].suspended;
        if let Some(index) = suspended.iter().position(|one| one.replica == owner.id) {
            plan.actions.push(Action::Cancel { job: suspended.remove(index).job });
        } else if owner.in_flight {
            return given;
        }
        let held = context.view.memory(device).map_or(0, |memory| memory.kv().used_by(owner.id.tenant));
        let blocks = held.min(wanted - given);
        plan.actions.push(Action::EvictSequences { replica: owner.id, blocks });
        given + blocks
    }
}

/// How long a latency-sensitive guest has not run on a device when its weights give way to best-effort work.
fn stay(context: &Context<'_>, device: DeviceId) -> Nanos {
    let best_effort = context.view.owner(device).is_some_and(|owner| !is_latency(context.view, owner));
    if best_effort { OWNER_WAIT } else { GUEST_STAY }
}

/// The weights that lie last in the part for weights.
fn last_slot(memory: &DeviceMemory) -> Option<(ModelId, WeightState)> {
    memory.models().max_by_key(|&(model, _)| memory.weight_region(model).map(|region| region.end()))
}

/// True if an earlier action of the plan changes the weights of the device.
fn is_planned(plan: &Plan, device: DeviceId) -> bool {
    plan.actions.iter().any(|action| match action {
        Action::EvictWeights { device: on, .. }
        | Action::Prefetch { device: on, .. }
        | Action::BorrowSlots { device: on, .. } => *on == device,
        _ => false,
    })
}
