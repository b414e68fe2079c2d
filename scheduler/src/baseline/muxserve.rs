//! Colocated models that share KV cache by quotas, prompts before answers.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::plan::{BatchLimits, Event, Plan};
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::baseline::candidates::{Candidate, candidate_in, ready_replica};
use crate::baseline::placement::replicated;
use crate::baseline::queues::plan_free_after;
use crate::baseline::room::{RESERVE, Room};
use crate::baseline::turns::{BEST_EFFORT_LAST, groups};
use crate::baseline::{Baseline, Parameter, Settings, candidates};
use crate::batching::Iteration;
use crate::placing::total_blocks;
use crate::policy::{Context, Policy, Residency, TenantShape};

const PERIOD: Parameter = Parameter {
    name: "adapt_ms",
    what: "how often quotas of KV blocks are moved from models that do not use theirs to models that do",
    default: 1000,
    least: 1,
    most: 1_000_000,
    grid: &[250, 1000, 5000],
};

const THRESHOLD: Parameter = Parameter {
    name: "steal_percent",
    what: "a model that uses this share of its quota takes blocks from the others",
    default: 90,
    least: 1,
    most: 100,
    grid: &[70, 80, 90],
};

pub(super) const ENTRY: Baseline = Baseline {
    name: "muxserve",
    rule: "colocated models in turn, prompts before answers, KV cache by quotas that follow its use (ADBS)",
    source: "Duan et al., MuxServe: flexible spatial-temporal multiplexing for LLM serving, ICML 2024",
    parameters: &[PERIOD, THRESHOLD, BEST_EFFORT_LAST, RESERVE],
    build: |settings| Box::new(MuxServe::new(settings)),
};

/// MuxServe's adaptive batch scheduling (ADBS, algorithm 3): on a device, an iteration with new prompts has
/// precedence, the models in turn, as long as the model's quota of KV blocks holds them; otherwise answers go on,
/// the models in turn. Periodically, models that use nearly all of their quota take blocks from those that do
/// not, in proportion to what these leave unused.
///
/// MuxServe runs the prompts of one model and the answers of others side by side on shares of the SMs; here a
/// device runs one iteration at a time. Its placement by a search over meshes is that of
/// equal replicas. An iteration with new prompts carries the answers of the same model along, as batching does.
#[derive(Debug)]
pub struct MuxServe {
    period: Nanos,
    steal_percent: u64,
    best_effort_last: bool,
    room: Room,
    devices: Vec<State>,
    scratch: Iteration,
}

#[derive(Clone, Debug, Default)]
struct State {
    prefill: Option<TenantId>,
    decode: Option<TenantId>,
    quotas: Vec<u32>,
    adapted: Nanos,
}

impl Default for MuxServe {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

impl MuxServe {
    fn new(settings: &Settings) -> Self {
        Self {
            period: Nanos::ms(settings.get(&PERIOD)),
            steal_percent: settings.get(&THRESHOLD),
            best_effort_last: settings.is_on(&BEST_EFFORT_LAST),
            room: Room::of(settings),
            devices: Vec::new(),
            scratch: Iteration::default(),
        }
    }

    fn fill(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) {
        self.adapt(context, device);
        let State { prefill, decode, .. } = self.devices[device.index()];
        let prefills = groups(context.view, prefill, self.best_effort_last);
        let decodes = groups(context.view, decode, self.best_effort_last);
        for (mut prefills, mut decodes) in prefills.zip(decodes) {
            if let Some(found) = prefills.find_map(|tenant| self.prompts(context, tenant, device, plan)) {
                self.devices[device.index()].prefill = Some(found.tenant());
                return found.start(context, plan);
            }
            if let Some(found) = decodes.find_map(|tenant| self.answers(context, tenant, device, plan)) {
                self.devices[device.index()].decode = Some(found.tenant());
                return found.start(context, plan);
            }
        }
    }

    /// An iteration that computes prompts within the tenant's quota.
    fn prompts(
        &mut self,
        context: &Context<'_>,
        tenant: TenantId,
        device: DeviceId,
        plan: &mut Plan,
    ) -> Option<Candidate> {
        ready_replica(context, tenant, device)?;
        let used = used_by(context, tenant, device);
        let quota = self.devices[device.index()].quotas.get(tenant.index()).copied().unwrap_or(0);
        let limits = self.room.limits(context, tenant, device, plan);
        let limits = BatchLimits { new_blocks: limits.new_blocks.min(quota.saturating_sub(used)), ..limits };
        let found = candidates::candidate(context, tenant, device, limits, plan, &mut self.scratch)?;
        (found.prefills && self.scratch.preempted == 0).then_some(found)
    }

    /// An iteration of sequences that run already; they may grow beyond the quota.
    fn answers(
        &mut self,
        context: &Context<'_>,
        tenant: TenantId,
        device: DeviceId,
        plan: &mut Plan,
    ) -> Option<Candidate> {
        let running = ready_replica(context, tenant, device)?.running;
        candidate_in(context, tenant, device, &mut self.room, running, plan, &mut self.scratch)
    }

    /// Divides the blocks of a device alike at first, and moves them to where they are used once per period.
    fn adapt(&mut self, context: &Context<'_>, device: DeviceId) {
        let state = &mut self.devices[device.index()];
        let tenants = context.view.tenants().len();
        let there = |tenant: &TenantId| {
            let replica = context.demand.replica_on(*tenant, device);
            replica.is_some_and(|replica| context.view.is_resident(replica.model, device))
        };
        let here: Vec<TenantId> = (0..tenants as u32).map(TenantId).filter(there).collect();
        let total = total_blocks(context.view, device);
        let known = |tenant: &TenantId| state.quotas.get(tenant.index()).is_some_and(|&quota| quota > 0);
        let granted: u32 = here.iter().filter_map(|tenant| state.quotas.get(tenant.index())).sum();
        if !here.iter().all(known) || granted != total {
            state.quotas = vec![0; tenants];
            let (share, rest) = (total / (here.len() as u32).max(1), total % (here.len() as u32).max(1));
            for (index, tenant) in (0u32..).zip(&here) {
                state.quotas[tenant.index()] = share + u32::from(index < rest);
            }
            state.adapted = context.now;
        } else if context.now >= state.adapted + self.period {
            state.adapted = context.now;
            let used = |tenant: TenantId| used_by(context, tenant, device);
            let usage: Vec<_> = here.iter().map(|&tenant| (tenant, used(tenant))).collect();
            steal(&mut state.quotas, &usage, self.steal_percent);
        }
    }
}

fn used_by(context: &Context<'_>, tenant: TenantId, device: DeviceId) -> u32 {
    context.view.memory(device).map_or(0, |memory| memory.kv().used_by(tenant))
}

/// Those that use `percent` of their quota share half of what the others leave unused, each of which gives in
/// proportion. The sum of the quotas stays.
fn steal(quotas: &mut [u32], usage: &[(TenantId, u32)], percent: u64) {
    let is_needy =
        |&&(tenant, used): &&(TenantId, u32)| u64::from(used) * 100 >= u64::from(quotas[tenant.index()]) * percent;
    let needy: Vec<TenantId> = usage.iter().filter(is_needy).map(|&(tenant, _)| tenant).collect();
    if needy.is_empty() || needy.len() == usage.len() {
        return;
    }
    let mut taken = 0;
    for &(tenant, used) in usage.iter().filter(|(tenant, _)| !needy.contains(tenant)) {
        let quota = &mut quotas[tenant.index()];
        let given = (quota.saturating_sub(used) / 2).min(quota.saturating_sub(1));
        *quota -= given;
        taken += given;
    }
    let (share, rest) = (taken / needy.len() as u32, taken % needy.len() as u32);
    for (index, tenant) in (0u32..).zip(&needy) {
        quotas[tenant.index()] += share + u32::from(index < rest);
    }
}

impl Policy for MuxServe {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        replicated(tenants, memory)
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        self.devices.resize(context.view.cluster().devices().len(), State::default());
        self.room.note(context, event);
        plan_free_after(context, event, |context, device, plan| self.fill(context, device, plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::rig::{BATCH, CHAT, MAIL, Rig};

    #[test]
    fn prompts_go_before_answers_and_models_take_turns() {
        let mut rig = Rig::new(ENTRY.build([("best_effort_last", 0)]).unwrap(), 1);
        rig.arrive(CHAT, 64);
        rig.arrive(CHAT, 32);
        rig.arrive(MAIL, 64);
        rig.arrive(BATCH, 64);
        let mut order = Vec::new();
        for _ in 0..6 {
            rig.finish(0);
            order.push((rig.running(0).unwrap(), rig.tokens(0)));
        }
        let prompts = [(MAIL, 64), (BATCH, 64), (CHAT, 33)];
        assert_eq!(order[..3], prompts, "MAIL and BATCH had no turn yet; CHAT's answer is carried along");
        assert_eq!(order[3..], [(CHAT, 2), (MAIL, 1), (BATCH, 1)], "no prompt waits");
    }

    /// 60 blocks, 20 for each of three models.
    #[test]
    fn a_prompt_that_exceeds_the_quota_waits_while_blocks_are_free() {
        let mut rig = Rig::with_blocks(ENTRY.build([]).unwrap(), 1, 60);
        rig.arrive(CHAT, 160);
        rig.finish(0);
        rig.arrive(CHAT, 160);
        rig.finish(0);
        assert_eq!((rig.running(0), rig.tokens(0)), (Some(CHAT), 1), "10 + 1 of 20 blocks are taken, 49 are free");
        rig.pass(Nanos::secs(1));
        rig.finish(0);
        assert_eq!(rig.tokens(0), 1, "11 of 20 blocks are not 90 %");
    }

    #[test]
    fn models_that_use_their_quota_share_half_of_what_others_leave_unused() {
        let mut quotas = [20, 20, 20];
        steal(&mut quotas, &[(CHAT, 18), (MAIL, 10), (BATCH, 0)], 90);
        assert_eq!(quotas, [20 + 5 + 10, 20 - 5, 20 - 10]);
        steal(&mut quotas, &[(CHAT, 0), (MAIL, 0), (BATCH, 0)], 90);
        assert_eq!(quotas, [35, 15, 10], "nobody is short");
    }
}
