//! Best-effort work whenever a device is idle.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::plan::{Event, Plan};
use slicescheduler_gmg::tenant::Class;
use slicescheduler_gmg::units::Bytes;

use crate::baseline::room::{RESERVE, Reserve};
use crate::baseline::{Baseline, owners_and_best_effort};
use crate::batching::Iteration;
use crate::placing::{form, free_blocks, is_free, is_latency, reclaim, run_owner, touched, unlimited};
use crate::policy::{Context, Policy, Residency, TenantShape};

pub(super) const ENTRY: Baseline = Baseline {
    name: "idle-priority",
    rule: "best-effort iterations whenever a device is idle, without forecast or recall",
    source: "the usual co-location of priorities, for instance Wu et al., TGS, NSDI 2023",
    parameters: &[RESERVE],
    build: |settings| Box::new(IdlePriority { reserve: Reserve::of(settings), ..IdlePriority::default() }),
};

/// Idle-priority co-location: best-effort tenants have a replica wherever their weights fit, and
/// run an iteration whenever the owner of a device has nothing to run. No forecast, no recall: an
/// owner that comes back waits for the guest's iteration.
#[derive(Debug, Default)]
pub struct IdlePriority {
    reserve: Reserve,
    scratch: Iteration,
}

impl Policy for IdlePriority {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        owners_and_best_effort(tenants, memory)
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        let mut plan = context.plan();
        match touched(context.view, event) {
            Some(device) => self.fill(context, device, &mut plan),
            None => context.devices().for_each(|device| self.fill(context, device, &mut plan)),
        }
        plan
    }
}

impl IdlePriority {
    fn fill(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) {
        let view = context.view;
        if !is_free(view, device) {
            return;
        }
        let reserve = self.reserve.blocks(view, device);
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
