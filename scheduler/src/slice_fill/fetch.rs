//! Weights that are fetched for a burst.
//!
//! When the devices that hold a tenant's weights are not enough, one more may take them in place of
//! a guest's that nobody uses: over the fastest way from one of the tenant's own devices, or from
//! host memory. The slice has to be long enough: by the forecast, waiting requests are still in time after
//! the copy. A device that has just changed its guest keeps it for a while.

use smallvec::SmallVec;

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::cluster::Endpoint;
use slicescheduler_gmg::id::{DeviceId, ModelId, TenantId};
use slicescheduler_gmg::memory::WeightState;
use slicescheduler_gmg::plan::{Action, Plan, Rank, Source};
use slicescheduler_gmg::units::{Bandwidth, Nanos};

use crate::demand::{ReplicaInfo, Waiting};
use crate::placing::is_latency;
use crate::policy::Context;
use crate::slice_fill::SliceFill;
use crate::slice_fill::overflow::prompt_action;

impl SliceFill {
    /// Fetches the tenant's weights to the device where waiting requests would be computed first,
    /// if that is in time. One copy at a time per tenant.
    pub(super) fn fetch(&mut self, context: &mut Context<'_>, tenant: TenantId, waiting: &Waiting, plan: &mut Plan) {
        let Some(model) = home_model(context, tenant).filter(|&model| !is_loading(context, model)) else { return };
        let tokens = u64::from(context.demand.token_budget(tenant)).min(waiting.tokens).max(1);
        let mut best: Option<(Nanos, DeviceId, SmallVec<[Action; 3]>)> = None;
        for device in context.devices() {
            let Some(replica) = self.could_fetch(context, tenant, model, device) else { continue };
            let Some(source) = source(context, tenant, model, device) else { continue };
            let Some(room) = room(context, model, device) else { continue };
            if !context.budget.take() {
                break;
            }
            let mut actions: SmallVec<[Action; 3]> =
                room.map(|model| Action::EvictWeights { model, device }).into_iter().collect();
            actions.push(Action::Prefetch { model, device, source });
            actions.push(prompt_action(&replica, tokens, waiting, Rank::GuestLatency));
            let Some(finish) = self.finish_of_last(context, &actions) else { continue };
            let in_time = finish <= waiting.last_due && self.forecast.first_shortage().is_none();
            if in_time && best.as_ref().is_none_or(|&(other, ..)| finish < other) {
                actions.pop();
                best = Some((finish, device, actions));
            }
        }
        if let Some((_, device, actions)) = best {
            self.devices[device.index()].guest_since = context.now;
            plan.actions.extend(actions);
        }
    }

    /// The tenant's replica on a device that could host it but does not have its weights.
    fn could_fetch(
        &self,
        context: &Context<'_>,
        tenant: TenantId,
        model: ModelId,
        device: DeviceId,
    ) -> Option<ReplicaInfo> {
        let view = context.view;
        let settled = context.now - self.devices[device.index()].guest_since >= self.options.guest_stay;
        let absent = view.memory(device)?.weight_state(model).is_none();
        let foreign = view.owner(device) != Some(tenant);
        if !settled || !absent || !foreign || !self.can_host(context, device) {
            return None;
        }
        context.demand.replica_on(tenant, device)
    }
}

fn home_model(context: &Context<'_>, tenant: TenantId) -> Option<ModelId> {
    let home = |device: &DeviceId| context.view.owner(*device) == Some(tenant);
    context.devices().filter(home).find_map(|device| context.demand.replica_on(tenant, device)).map(|home| home.model)
}

fn is_loading(context: &Context<'_>, model: ModelId) -> bool {
    context.devices().any(|device| {
        context.view.memory(device).is_some_and(|memory| memory.weight_state(model) == Some(WeightState::Loading))
    })
}

/// What has to go for the model to fit: nothing, or the weights of a latency-sensitive guest that
/// has no sequence on the device and no request waiting. [`None`] if it would not fit even then.
fn room(context: &Context<'_>, model: ModelId, device: DeviceId) -> Option<Option<ModelId>> {
    let view = context.view;
    let memory = view.memory(device)?;
    let wanted = view.model(model)?.weights;
    if memory.weight_slots().largest_gap() >= wanted {
        return Some(None);
    }
    let idle_guest = |&(guest, state): &(ModelId, WeightState)| {
        let Some(described) = view.model(guest) else { return false };
        let tenant = described.tenant;
        let unused = context.demand.replica_on(tenant, device).is_some_and(|r| r.running == 0 && !r.in_flight);
        state == WeightState::Resident
            && described.weights >= wanted
            && is_latency(view, tenant)
            && view.owner(device) != Some(tenant)
            && unused
            && context.demand.waiting(tenant).is_none()
    };
    memory.models().find(idle_guest).map(|(guest, _)| Some(guest))
}

/// Where the weights come from fastest.
fn source(context: &Context<'_>, tenant: TenantId, model: ModelId, device: DeviceId) -> Option<Source> {
    let view = context.view;
    let cluster = view.cluster();
    let bandwidth = |from: Endpoint| {
        cluster.route(from, Endpoint::Device(device)).map_or(Bandwidth::ZERO, |route| route.bandwidth(cluster))
    };
    let home = context
        .devices()
        .filter(|&home| view.owner(home) == Some(tenant) && !view.is_lost(home) && view.is_resident(model, home));
    let host = (bandwidth(Endpoint::Host(cluster.device(device)?.node)), Source::Host);
    let homes = home.map(|home| (bandwidth(Endpoint::Device(home)), Source::Device(home)));
    let (bandwidth, source) = homes.chain([host]).reduce(|best, next| if next.0 > best.0 { next } else { best })?;
    (!bandwidth.is_zero()).then_some(source)
}
