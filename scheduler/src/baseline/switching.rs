//! Weights that come and go while the system runs, for rules that have that.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, ModelId, TenantId};
use slicescheduler_gmg::memory::WeightState;
use slicescheduler_gmg::plan::{Action, Plan, Source};

use crate::placing::is_latency;
use crate::policy::Context;

/// Brings weights from host memory to a device that has nothing to do: those of the latency-sensitive tenant for
/// which most tokens wait, in place of a model that nobody uses there if need be. One model at a time per device
/// and per tenant; owners keep their weights at home. False if nothing is worth it or fits.
pub(super) fn fetch_for_waiting(context: &Context<'_>, device: DeviceId, plan: &mut Plan) -> bool {
    let view = context.view;
    let Some(memory) = view.memory(device) else { return false };
    if memory.models().any(|(_, state)| state != WeightState::Resident) {
        return false;
    }
    let absent = |tenant: TenantId| {
        let replica = context.demand.replica_on(tenant, device)?;
        let waiting = context.demand.waiting(tenant)?;
        let missing = is_latency(view, tenant)
            && memory.weight_state(replica.model).is_none()
            && !is_loading(context, replica.model)
            && !plan
                .actions
                .iter()
                .any(|action| matches!(action, Action::Prefetch { model, .. } if *model == replica.model));
        missing.then_some((waiting.tokens, replica.model))
    };
    let tenants = (0..view.tenants().len() as u32).map(TenantId);
    let Some((_, model)) = tenants.filter_map(absent).max_by_key(|&(tokens, model)| (tokens, std::cmp::Reverse(model)))
    else {
        return false;
    };
    let Some(wanted) = view.model(model).map(|model| model.weights) else { return false };
    if memory.weight_slots().largest_gap() < wanted {
        let unused = |&(resident, _): &(ModelId, WeightState)| {
            view.model(resident).is_some_and(|described| {
                let tenant = described.tenant();
                let idle = context.demand.replica_on(tenant, device).is_some_and(|r| r.running == 0 && !r.in_flight);
                described.weights >= wanted
                    && !view.is_home(tenant, device)
                    && is_latency(view, tenant)
                    && idle
                    && context.demand.waiting(tenant).is_none()
            })
        };
        let Some((victim, _)) = memory.models().find(unused) else { return false };
        plan.actions.push(Action::EvictWeights { model: victim, device });
    }
    plan.actions.push(Action::Prefetch { model, device, source: Source::Host });
    true
}

fn is_loading(context: &Context<'_>, model: ModelId) -> bool {
    context.devices().any(|device| {
        context.view.memory(device).is_some_and(|memory| memory.weight_state(model) == Some(WeightState::Loading))
    })
}
