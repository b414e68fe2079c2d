//! Offline tokens as many as the online latency budget has room for.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::DeviceId;
use slicescheduler_gmg::plan::{Event, Forecast, Plan};
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::baseline::candidates::Candidate;
use crate::baseline::forecasts;
use crate::baseline::harvest::{Busy, Harvest, busy};
use crate::baseline::queues::plan_after;
use crate::baseline::room::{RESERVE, Room};
use crate::baseline::{Baseline, Parameter, Settings, owners_and_best_effort};
use crate::placing::is_latency;
use crate::policy::{Context, Policy, Residency, TenantShape};

const BUDGET: Parameter = Parameter {
    name: "budget_percent",
    what: "how long online and offline work of a round may take together, as a share of the time per output token",
    default: 80,
    least: 1,
    most: 1000,
    grid: &[40, 60, 80, 95],
};

pub(super) const ENTRY: Baseline = Baseline {
    name: "hygen",
    rule: "each round adds as many offline tokens to the online batch as a latency predictor allows",
    source: "Sun et al., HyGen: efficient LLM serving via elastic online-offline request co-location, arXiv 2501.14808",
    parameters: &[BUDGET, RESERVE],
    build: |settings| Box::new(HyGen::new(settings)),
};

/// Times that the offline batch is halved before there is none.
const HALVINGS: u32 = 6;

/// HyGen: every round, offline (best-effort) tokens are added to the online (latency-sensitive) batch up to the
/// number for which a latency predictor says that the round stays within a budget. Without online work the
/// budget bounds the offline batch alone, so that an arrival waits no longer than that.
///
/// HyGen serves one model, so online and offline rows share a batch; here they are of different models, and
/// a round is an online iteration with an offline one after it. The predictor is the forecast. Its order of
/// offline requests by shared prefixes is not expressible: batching is first come, first served.
#[derive(Debug)]
pub struct HyGen {
    budget_percent: u64,
    harvest: Harvest,
    forecast: Forecast,
    /// By device: true if the round still lacks its offline part.
    open: Vec<bool>,
}

impl Default for HyGen {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

impl HyGen {
    fn new(settings: &Settings) -> Self {
        Self {
            budget_percent: settings.get(&BUDGET),
            harvest: Harvest { room: Room::of(settings), ..Harvest::default() },
            forecast: Forecast::default(),
            open: Vec::new(),
        }
    }

    fn fill(&mut self, context: &mut Context<'_>, device: DeviceId, plan: &mut Plan) {
        if busy(context.view, device) != Busy::Free {
            return;
        }
        let online = self.harvest.owner(context, device, plan);
        let open = std::mem::replace(&mut self.open[device.index()], false);
        if online.is_none() || open {
            let taken = match &online {
                Some(online) => forecasts::duration(context, online, &mut self.forecast),
                None => Some(Nanos::ZERO),
            };
            let offline = taken.and_then(|taken| self.offline(context, device, taken, plan));
            if let Some(offline) = offline {
                offline.start(context, plan);
                return;
            }
        }
        if let Some(online) = online {
            online.start(context, plan);
            self.open[device.index()] = true;
        }
    }

    /// The largest offline iteration that keeps the round within its budget, of which `taken` is spent.
    fn offline(
        &mut self,
        context: &mut Context<'_>,
        device: DeviceId,
        taken: Nanos,
        plan: &mut Plan,
    ) -> Option<Candidate> {
        let owner = context.view.owner(device).filter(|&owner| is_latency(context.view, owner));
        let slo = owner.and_then(|owner| context.view.tenant(owner)?.slo);
        let Some(budget) = slo.map(|slo| slo.tpot.scale(self.budget_percent, 100)) else {
            return self.harvest.best_effort(context, device, u32::MAX, plan);
        };
        let largest = self.harvest.best_effort(context, device, u32::MAX, plan)?;
        let mut tokens = context.demand.token_budget(largest.tenant());
        let mut candidate = largest;
        for _ in 0..HALVINGS {
            let duration = forecasts::duration(context, &candidate, &mut self.forecast)?;
            if taken + duration <= budget {
                return Some(candidate);
            }
            tokens /= 2;
            candidate = self.harvest.best_effort(context, device, tokens, plan)?;
        }
        None
    }
}

impl Policy for HyGen {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        owners_and_best_effort(tenants, memory)
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        self.open.resize(context.view.cluster().devices().len(), false);
        self.harvest.room.note(context, event);
        plan_after(context, event, |context, device, plan| self.fill(context, device, plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::rig::{BATCH, CHAT, Rig};

    /// 80 % of 40 ms are 32 ms: 320 tokens of 100 us; the halves of a budget of 512 tokens are 256 and 128.
    #[test]
    fn an_offline_batch_alone_takes_no_longer_than_the_budget() {
        let mut rig = Rig::new(ENTRY.build([]).unwrap(), 1);
        rig.arrive(BATCH, 2000);
        assert_eq!((rig.running(0), rig.tokens(0)), (Some(BATCH), 256));
    }

    #[test]
    fn offline_tokens_follow_an_online_iteration_as_far_as_the_budget_goes() {
        let mut rig = Rig::new(ENTRY.build([]).unwrap(), 1);
        rig.arrive(CHAT, 300);
        rig.arrive(BATCH, 2000);
        assert_eq!((rig.running(0), rig.tokens(0)), (Some(CHAT), 300));
        rig.finish(0);
        assert_eq!((rig.running(0), rig.tokens(0)), (Some(BATCH), 256), "beside one token of the answer: 25.7 ms");
        rig.finish(0);
        assert_eq!((rig.running(0), rig.tokens(0)), (Some(CHAT), 1), "rounds alternate");
        for _ in 0..6 {
            rig.arrive(CHAT, 64);
        }
        rig.finish(0);
        assert_eq!(rig.running(0), Some(CHAT), "the next online iteration alone takes 385 tokens");
    }
}
