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
use slicescheduler_gmg::plan::{Action, Fate, Plan, Rank, Source};
use slicescheduler_gmg::units::{Bandwidth, Nanos};

use crate::demand::{ReplicaInfo, Waiting};
use crate::explain::{Reason, What};
use crate::placing::lane_of;
use crate::policy::Context;
use crate::slice_fill::SliceFill;
use crate::slice_fill::overflow::prompt_action;

/// Devices that are looked at for a slot at one time.
const LOOKS: u32 = 64;

impl SliceFill {
    /// Fetches the tenant's weights to the device where waiting requests would be computed first,
    /// if that is in time. One copy at a time per tenant.
    pub(super) fn fetch(&mut self, context: &mut Context<'_>, tenant: TenantId, waiting: &Waiting, plan: &mut Plan) {
        let Some(model) = self.home_model(context, tenant).filter(|&model| !self.is_coming(context, tenant, model))
        else {
            return;
        };
        let tokens = u64::from(context.demand.token_budget(tenant)).min(waiting.tokens).max(1);
        let mut best: Option<(Nanos, DeviceId, SmallVec<[Action; 3]>)> = None;
        let mut borrowed: Option<(u32, DeviceId, Source)> = None;
        for device in self.next_devices(context) {
            let Some(replica) = self.could_fetch(context, tenant, model, device) else { continue };
            let Some(source) = source(context, self.places.homes(tenant), model, device) else { continue };
            let mut actions: SmallVec<[Action; 3]> = match room(context, model, device) {
                Some(Room::Free) => SmallVec::new(),
                Some(Room::InPlaceOf(model)) => SmallVec::from_iter([Action::EvictWeights { model, device }]),
                Some(Room::Borrowed { used }) => {
                    if borrowed.is_none_or(|(least, ..)| used < least) {
                        borrowed = Some((used, device, source));
                    }
                    continue;
                }
                None => continue,
            };
            if !context.budget.take() {
                break;
            }
            actions.push(Action::Prefetch { model, device, source });
            actions.push(prompt_action(context, &replica, tokens, waiting, Rank::GuestLatency));
            let Some(finish) = self.finish_of_last(context, &actions) else { continue };
            let rejected = match self.forecast.first_shortage() {
                Some(_) => Some(Reason::NoMemory),
                None => (finish > waiting.last_due).then_some(Reason::TooLate),
            };
            context.say(device, tenant, What::Fetch { model }, rejected, Some(finish));
            if rejected.is_none() && best.as_ref().is_none_or(|&(other, ..)| finish < other) {
                actions.pop();
                best = Some((finish, device, actions));
            }
        }
        if let Some((_, device, actions)) = best {
            self.devices[device.index()].guest_since = context.now;
            self.places.fetching[tenant.index()] = Some(device);
            plan.actions.extend(actions);
        } else if let Some((_, device, source)) = borrowed {
            self.ask_for_slot(context, device, (model, source), waiting, plan);
        }
    }

    /// The weights come to a device whose KV pool has their slot, as soon as nothing is on its lane, if
    /// waiting requests can still be in time behind twice the time of the copy.
    fn ask_for_slot(
        &mut self,
        context: &mut Context<'_>,
        device: DeviceId,
        (model, source): (ModelId, Source),
        waiting: &Waiting,
        plan: &mut Plan,
    ) {
        let Some(bytes) = context.view.model(model).map(|model| model.weights) else { return };
        let copy = bandwidth(context, source, device).time_for(bytes);
        if context.now + copy.times(2) > waiting.last_due {
            return;
        }
        self.devices[device.index()].space.asked = Some((model, source));
        if let Some(tenant) = context.view.model(model).map(|model| model.tenant()) {
            self.places.fetching[tenant.index()] = Some(device);
        }
        match context.view.lane(lane_of(device)).and_then(|lane| lane.queue().first()) {
            Some(entry) => plan.actions.push(Action::Recall { job: entry.job, fate: Fate::Keep }),
            None => self.look_again(context, device),
        }
    }

    /// The devices to look at for a slot: all of a small cluster, some in turn of a large one.
    fn next_devices(&mut self, context: &Context<'_>) -> impl Iterator<Item = DeviceId> + use<> {
        let count = context.view.cluster().devices().len() as u32;
        let (begin, looks) = (self.cursor, count.min(LOOKS));
        self.cursor = if count > LOOKS { (begin + LOOKS) % count } else { 0 };
        (0..looks).map(move |index| DeviceId((begin + index) % count))
    }

    fn home_model(&self, context: &Context<'_>, tenant: TenantId) -> Option<ModelId> {
        let mut homes = self.places.homes(tenant).iter();
        homes.find_map(|&device| context.demand.replica_on(tenant, device)).map(|home| home.model)
    }

    /// True if weights of the tenant are on their way to where they were asked for last.
    pub(super) fn is_coming(&self, context: &Context<'_>, tenant: TenantId, model: ModelId) -> bool {
        let Some(device) = self.places.fetching.get(tenant.index()).copied().flatten() else { return false };
        let state = context.view.memory(device).and_then(|memory| memory.weight_state(model));
        let asked = self.devices.get(device.index()).and_then(|state| state.space.asked);
        state == Some(WeightState::Loading) || asked.is_some_and(|(other, _)| other == model)
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

/// How a model can get a slot.
enum Room {
    /// It fits.
    Free,
    /// It fits when the weights of this guest go, which has no sequence on the device and no request waiting.
    InPlaceOf(ModelId),
    /// It fits when the KV pool gives back blocks.
    Borrowed {
        /// KV blocks in use on the device.
        used: u32,
    },
}

fn room(context: &Context<'_>, model: ModelId, device: DeviceId) -> Option<Room> {
    let view = context.view;
    let memory = view.memory(device)?;
    let wanted = view.model(model)?.weights;
    if memory.weight_slots().largest_gap() >= wanted {
        return Some(Room::Free);
    }
    if memory.borrowed_blocks() > 0 {
        let fits = memory.weight_slots().free_from() + wanted <= memory.layout().weights;
        return fits.then(|| Room::Borrowed { used: memory.kv().used_blocks() });
    }
    let idle_guest = |&(guest, state): &(ModelId, WeightState)| {
        let Some(described) = view.model(guest) else { return false };
        let tenant = described.tenant();
        let unused = context.demand.replica_on(tenant, device).is_some_and(|r| r.running == 0 && !r.in_flight);
        state == WeightState::Resident
            && described.weights >= wanted
            && view.owner(device) != Some(tenant)
            && unused
            && context.demand.waiting(tenant).is_none()
    };
    memory.models().find(idle_guest).map(|(guest, _)| Room::InPlaceOf(guest))
}

/// Where the weights of a tenant with these homes come from fastest.
pub(super) fn source(context: &Context<'_>, homes: &[DeviceId], model: ModelId, device: DeviceId) -> Option<Source> {
    let view = context.view;
    let homes = homes.iter().copied().filter(|&home| !view.is_lost(home) && view.is_resident(model, home));
    let sources = homes.map(Source::Device).chain([Source::Host]);
    let sources = sources.map(|source| (bandwidth(context, source, device), source));
    let (bandwidth, source) = sources.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
    (!bandwidth.is_zero()).then_some(source)
}

fn bandwidth(context: &Context<'_>, source: Source, device: DeviceId) -> Bandwidth {
    let cluster = context.view.cluster();
    let from = match source {
        Source::Device(home) => Some(Endpoint::Device(home)),
        Source::Host => cluster.device(device).map(|device| Endpoint::Host(device.node)),
    };
    let route = from.and_then(|from| cluster.route(from, Endpoint::Device(device)));
    route.map_or(Bandwidth::ZERO, |route| route.bandwidth(cluster))
}
