//! Harvest that is preempted only where waiting would be late.

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
use crate::policy::{Context, Policy, Residency, TenantShape};

const SAFETY: Parameter = Parameter {
    name: "safety_percent",
    what: "share of the time to first token that must be left when online work waits for an offline iteration",
    default: 20,
    least: 0,
    most: 100,
    grid: &[10, 20, 40, 80],
};

const TOKENS: Parameter = Parameter {
    name: "offline_tokens",
    what: "most tokens of an offline iteration",
    default: 2048,
    least: 1,
    most: 1_000_000,
    grid: &[512, 1024, 2048],
};

pub(super) const ENTRY: Baseline = Baseline {
    name: "conserve",
    rule: "offline work harvests idle devices in large batches, preempted between layers where waiting would be late",
    source: "Qiao et al., ConServe: fine-grained GPU harvesting for LLM online and offline co-serving, arXiv 2410.01228",
    parameters: &[SAFETY, TOKENS, RESERVE],
    build: |settings| Box::new(ConServe::new(settings)),
};

/// ConServe: offline (best-effort) work harvests the devices that online (latency-sensitive) work leaves idle, in
/// large batches; an online iteration that would be late if it waited for the offline one preempts it between
/// two layers; one that would not be late waits.
///
/// Here preemption is between two operators, about ten to a layer. Online and offline requests are of
/// different models, so they do not share iterations. The incremental checkpoints of offline KV cache are missing:
/// sequences that give up their blocks are recomputed, which costs more than ConServe's copy from host memory.
#[derive(Debug)]
pub struct ConServe {
    safety_percent: u64,
    offline_tokens: u32,
    harvest: Harvest,
    forecast: Forecast,
}

impl Default for ConServe {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

impl ConServe {
    fn new(settings: &Settings) -> Self {
        Self {
            safety_percent: settings.get(&SAFETY),
            offline_tokens: settings.get_u32(&TOKENS),
            harvest: Harvest { room: Room::of(settings), ..Harvest::default() },
            forecast: Forecast::default(),
        }
    }

    fn fill(&mut self, context: &mut Context<'_>, device: DeviceId, plan: &mut Plan) {
        let state = busy(context.view, device);
        if state == Busy::Latency {
            return;
        }
        match self.harvest.owner_before_guests(context, device, plan) {
            Some(online) if state == Busy::Free || !self.can_wait(context, &online) => online.start(context, plan),
            None if state == Busy::Free => {
                self.harvest.start_best_effort(context, device, self.offline_tokens, plan);
            }
            _ => {}
        }
    }

    /// True if the iteration would be in time behind the offline one that runs.
    fn can_wait(&mut self, context: &mut Context<'_>, online: &Candidate) -> bool {
        let slo = context.view.tenant(online.tenant()).and_then(|tenant| tenant.slo);
        let safety = slo.map_or(Nanos::ZERO, |slo| slo.ttft.scale(self.safety_percent, 100));
        let finish = forecasts::finish(context, online, &mut self.forecast);
        finish.is_some_and(|finish| finish + safety <= online.due)
    }
}

impl Policy for ConServe {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        owners_and_best_effort(tenants, memory)
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        self.harvest.room.note(context, event);
        plan_after(context, event, |context, device, plan| self.fill(context, device, plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::rig::{BATCH, CHAT, Rig};

    fn rig(safety: u64) -> Rig {
        Rig::new(ENTRY.build([("safety_percent", safety)]).unwrap(), 1)
    }

    /// The offline iteration takes 51.2 ms, the online one 6.4 ms, due in 400 ms.
    #[test]
    fn online_work_waits_for_an_offline_iteration_if_that_is_in_time() {
        let mut rig = rig(80);
        rig.arrive(BATCH, 512);
        rig.arrive(CHAT, 64);
        assert_eq!((rig.running(0), rig.queued(0)), (Some(BATCH), 1), "57.6 ms + 320 ms of safety");
        rig.pass(Nanos(51_200_000));
        rig.finish(0);
        assert_eq!(rig.running(0), Some(CHAT));
    }

    #[test]
    fn online_work_preempts_an_offline_iteration_if_it_would_be_late_behind_it() {
        let mut rig = rig(90);
        rig.arrive(BATCH, 512);
        rig.arrive(CHAT, 64);
        assert_eq!((rig.running(0), rig.queued(0)), (Some(CHAT), 2), "57.6 ms + 360 ms are more than 400 ms");
    }

    /// 64 blocks: two offline prompts hold 33 + 25, the online one needs 30, and one is in reserve.
    #[test]
    fn offline_work_gives_back_its_blocks_when_online_work_is_short_of_them() {
        let mut rig = Rig::with_blocks(ENTRY.build([("reserve_one_in", 64)]).unwrap(), 1, 64);
        rig.arrive(BATCH, 512);
        rig.arrive(BATCH, 400);
        rig.finish(0);
        let offline = rig.job(0).unwrap();
        rig.arrive(CHAT, 480);
        assert_eq!((rig.running(0), &rig.recalls[..]), (Some(BATCH), &[offline][..]));
        rig.recall(0, BATCH);
        assert_eq!(rig.running(0), Some(CHAT));
        let held = rig.gmg.view().memory(DeviceId(0)).unwrap().kv().used_by(BATCH);
        assert_eq!(held, 33, "the youngest has lost its 25 blocks");
    }
}
