//! Policies to compare with, on the same substrate.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::plan::{Event, Plan};
use slicescheduler_gmg::tenant::Class;
use slicescheduler_gmg::units::Bytes;

use crate::batching::Iteration;
use crate::placing::{form, free_blocks, is_free, is_latency, reclaim, run_owner, total_blocks, touched, unlimited};
use crate::policy::{Context, Policy, Residency, TenantShape, owners_only};

/// Static containers: every tenant on its own devices, with continuous batching, and nowhere else.
#[derive(Debug, Default)]
pub struct StaticContainers {
    scratch: Iteration,
}

impl Policy for StaticContainers {
    fn name(&self) -> &'static str {
        "static"
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        let mut plan = context.plan();
        match touched(event) {
            Some(device) => self.fill(context, device, &mut plan),
            None => context.devices().for_each(|device| self.fill(context, device, &mut plan)),
        }
        plan
    }
}

impl StaticContainers {
    fn fill(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) {
        if is_free(context.view, device) {
            run_owner(context, device, &mut self.scratch, plan);
        }
    }
}

/// Idle-priority co-location: best-effort tenants have a replica wherever their weights fit, and
/// run an iteration whenever the owner of a device has nothing to run. No forecast, no recall: an
/// owner that comes back waits for the guest's iteration.
#[derive(Debug, Default)]
pub struct IdlePriority {
    scratch: Iteration,
}

impl Policy for IdlePriority {
    fn name(&self) -> &'static str {
        "idle-priority"
    }

    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        let mut residency = owners_only(tenants, memory.len());
        add_best_effort(&mut residency, tenants, memory);
        residency
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        let mut plan = context.plan();
        match touched(event) {
            Some(device) => self.fill(context, device, &mut plan),
            None => context.devices().for_each(|device| self.fill(context, device, &mut plan)),
        }
        plan
    }
}

/// The share of a device's KV blocks that best-effort guests leave free for the owner: 1 of this.
const OWNER_SHARE: u32 = 16;

impl IdlePriority {
    fn fill(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) {
        let view = context.view;
        if !is_free(view, device) {
            return;
        }
        let reserve = total_blocks(view, device) / OWNER_SHARE;
        let free = free_blocks(view, device);
        if view.owner(device).is_some_and(|owner| is_latency(view, owner)) && free < reserve {
            reclaim(context, device, Class::BestEffort, reserve - free, plan);
        }
        if run_owner(context, device, &mut self.scratch, plan).is_some() {
            return;
        }
        for tenant in (0..view.tenants().len() as u32).map(TenantId) {
            if is_latency(view, tenant) || view.owner(device) == Some(tenant) {
                continue;
            }
            let Some(replica) = context.demand.replica_on(tenant, device) else { continue };
            if !view.is_resident(replica.model, device) {
                continue;
            }
            let limits = unlimited(free.saturating_sub(reserve));
            context.demand.peek(replica.id, limits, &mut self.scratch);
            if !self.scratch.is_empty() {
                form(view, &replica, limits, plan);
                return;
            }
        }
    }
}

/// The share of a device's usable bytes that weights may take when guests' weights are added:
/// the rest is for KV cache, the dominant lever of throughput. In percent.
pub(crate) const WEIGHT_PERCENT: u64 = 70;

/// Adds every best-effort tenant to every device on which its weights fit.
pub(crate) fn add_best_effort(residency: &mut Residency, tenants: &[TenantShape<'_>], memory: &[Bytes]) {
    for (models, &memory) in residency.iter_mut().zip(memory) {
        for (index, shape) in tenants.iter().enumerate() {
            let tenant = TenantId(index as u32);
            let best_effort = shape.class == Class::BestEffort;
            if best_effort && !models.contains(&tenant) && fits(models, shape.weights, tenants, memory) {
                models.push(tenant);
            }
        }
    }
}

/// True if `weights` more fit beside `models` and leave room for KV cache.
pub(crate) fn fits(models: &[TenantId], weights: Bytes, tenants: &[TenantShape<'_>], memory: Bytes) -> bool {
    let used: Bytes = models.iter().filter_map(|tenant| tenants.get(tenant.index())).map(|shape| shape.weights).sum();
    used + weights <= memory.scale(WEIGHT_PERCENT, 100)
}
