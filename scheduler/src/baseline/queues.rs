//! Requests in queues of devices, where batching has one queue per tenant.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::plan::{Event, Plan};

use crate::placing::{is_free, is_latency, touched};
use crate::policy::Context;

/// All devices, that of the event first: it has just become free. The first of a group comes before the others.
pub(super) fn devices_after(context: &Context<'_>, event: &Event) -> impl Iterator<Item = DeviceId> + use<> {
    let first = touched(context.view, event);
    first.into_iter().chain(context.devices().filter(move |&device| Some(device) != first))
}

/// What `fill` plans for the devices, in the order of [`devices_after`].
pub(super) fn plan_after(
    context: &mut Context<'_>,
    event: &Event,
    mut fill: impl FnMut(&mut Context<'_>, DeviceId, &mut Plan),
) -> Plan {
    let mut plan = context.plan();
    devices_after(context, event).for_each(|device| fill(context, device, &mut plan));
    plan
}

/// As [`plan_after`], for devices whose lane is free.
pub(super) fn plan_free_after(
    context: &mut Context<'_>,
    event: &Event,
    mut fill: impl FnMut(&mut Context<'_>, DeviceId, &mut Plan),
) -> Plan {
    plan_after(context, event, |context, device, plan| {
        if is_free(context.view, device) {
            fill(context, device, plan);
        }
    })
}

/// How many of the waiting requests of each tenant are in the queue of each device.
///
/// Requests of a tenant are served first come, first served, so which of them is in which queue makes no
/// difference: only numbers are kept. What must stay true after [`join`](Self::join): those of a tenant that has
/// a live replica add up to what waits for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    /// By tenant, then by device.
    assigned: Vec<Vec<u32>>,
}

impl Queues {
    /// Puts requests that are in no queue yet into the shortest, and takes those that are gone from the longest.
    /// O(tenants x devices), and O(devices) per request that came or went.
    pub(super) fn join(&mut self, context: &Context<'_>) {
        let (view, devices) = (context.view, context.view.cluster().devices().len());
        self.assigned.resize(view.tenants().len(), Vec::new());
        for tenant in (0..view.tenants().len() as u32).map(TenantId) {
            self.assigned[tenant.index()].resize(devices, 0);
            for device in context.devices().filter(|&device| !serves(context, tenant, device)) {
                self.assigned[tenant.index()][device.index()] = 0;
            }
            let waiting = context.demand.waiting(tenant).map_or(0, |waiting| waiting.requests as u64);
            let mut queued: u64 = self.assigned[tenant.index()].iter().map(|&count| u64::from(count)).sum();
            while queued < waiting {
                let Some(shortest) = self.shortest(context, tenant) else { break };
                self.assigned[tenant.index()][shortest.index()] += 1;
                queued += 1;
            }
            while queued > waiting {
                let longest = self.assigned[tenant.index()].iter_mut().max();
                let Some(longest) = longest.filter(|count| **count > 0) else { break };
                *longest -= 1;
                queued -= 1;
            }
        }
    }

    /// Requests of `tenant` in the queue of `device`.
    pub(super) fn of(&self, tenant: TenantId, device: DeviceId) -> u32 {
        self.assigned.get(tenant.index()).and_then(|counts| counts.get(device.index())).copied().unwrap_or(0)
    }

    /// An iteration on `device` takes `count` requests of `tenant` out of its queue.
    pub(super) fn take(&mut self, tenant: TenantId, device: DeviceId, count: u32) {
        let queued = self.assigned.get_mut(tenant.index()).and_then(|counts| counts.get_mut(device.index()));
        if let Some(queued) = queued {
            *queued = queued.saturating_sub(count);
        }
    }

    /// The device with the fewest requests, waiting or running, that go before one of `tenant`.
    fn shortest(&self, context: &Context<'_>, tenant: TenantId) -> Option<DeviceId> {
        let serving = context.devices().filter(|&device| serves(context, tenant, device));
        serving.min_by_key(|&device| (self.length(context, tenant, device), device))
    }

    fn length(&self, context: &Context<'_>, tenant: TenantId, device: DeviceId) -> u64 {
        let best_effort = !is_latency(context.view, tenant);
        let before = |&other: &TenantId| best_effort || is_latency(context.view, other);
        let count = |other: TenantId| {
            let running = context.demand.replica_on(other, device).map_or(0, |replica| replica.running);
            u64::from(running) + u64::from(self.of(other, device))
        };
        (0..context.view.tenants().len() as u32).map(TenantId).filter(before).map(count).sum()
    }
}

/// True if the tenant has a replica with its weights on a live device.
pub(super) fn serves(context: &Context<'_>, tenant: TenantId, device: DeviceId) -> bool {
    let replica = context.demand.replica_on(tenant, device);
    !context.view.is_lost(device) && replica.is_some_and(|replica| context.view.is_resident(replica.model, device))
}
