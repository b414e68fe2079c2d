//! Best-effort operators where they do not get in the way of high-priority ones.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, LaneId};
use slicescheduler_gmg::plan::{Action, Event, Forecast, Plan, Rank};
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::baseline::candidates::Candidate;
use crate::baseline::forecasts;
use crate::baseline::harvest::{Busy, Harvest, busy};
use crate::baseline::queues::plan_after;
use crate::baseline::room::{RESERVE, Room};
use crate::baseline::{Baseline, Parameter, Settings, owners_and_best_effort};
use crate::policy::{Context, Policy, Residency, TenantShape};

const DURATION: Parameter = Parameter {
    name: "duration_per_mille",
    what: "the longest best-effort iteration beside a high-priority one, in thousandths of its time to first token",
    default: 25,
    least: 1,
    most: 1000,
    grid: &[10, 25, 50, 100],
};

const TOKENS: Parameter = Parameter {
    name: "guest_tokens",
    what: "most tokens of a best-effort iteration",
    default: 2048,
    least: 1,
    most: 1_000_000,
    grid: &[256, 512, 1024, 2048],
};

pub(super) const ENTRY: Baseline = Baseline {
    name: "orion",
    rule: "best-effort operators run while no high-priority one does, or beside one of the other profile",
    source: "Strati et al., Orion: interference-aware, fine-grained GPU sharing, EuroSys 2024",
    parameters: &[DURATION, TOKENS, RESERVE],
    build: |settings| Box::new(Orion::new(settings)),
};

/// Orion: high-priority operators are submitted at once; a best-effort one only while no high-priority operator
/// runs, or, if the device has a second lane, beside one of the other profile (bound by arithmetic against
/// bound by memory) and only for a small share of a high-priority request's time (`DUR_THRESHOLD`, 2.5 % there).
///
/// High priority means latency-sensitive. The decision is made per iteration: one that computes prompts is bound
/// by arithmetic, one that computes answers by memory. Between operators the lane itself makes best-effort work
/// give way, which is the interception of kernels that Orion has. The substrate has no count of the SMs that an
/// operator fills, so Orion's threshold on them is the share of the second lane.
#[derive(Debug)]
pub struct Orion {
    duration_per_mille: u64,
    guest_tokens: u32,
    harvest: Harvest,
    forecast: Forecast,
}

impl Default for Orion {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

impl Orion {
    fn new(settings: &Settings) -> Self {
        Self {
            duration_per_mille: settings.get(&DURATION),
            guest_tokens: settings.get_u32(&TOKENS),
            harvest: Harvest { room: Room::of(settings), ..Harvest::default() },
            forecast: Forecast::default(),
        }
    }

    fn fill(&mut self, context: &mut Context<'_>, device: DeviceId, plan: &mut Plan) {
        let state = busy(context.view, device);
        if state == Busy::Latency {
            return;
        }
        if let Some(owner) = self.harvest.owner_before_guests(context, device, plan) {
            owner.start(context, plan);
            self.beside(context, device, &owner, plan);
        } else if state == Busy::Free {
            self.harvest.start_best_effort(context, device, self.guest_tokens, plan);
        }
    }

    /// Starts a best-effort iteration of the other profile on the second lane of the device, if it has one.
    fn beside(&mut self, context: &mut Context<'_>, device: DeviceId, owner: &Candidate, plan: &mut Plan) {
        let second = LaneId::new(device, 1);
        if context.view.lane(second).is_none_or(|lane| !lane.is_empty()) {
            return;
        }
        let Some(guest) = self.harvest.best_effort(context, device, self.guest_tokens, plan) else { return };
        let slo = context.view.tenant(owner.tenant()).and_then(|tenant| tenant.slo);
        let longest = slo.map_or(Nanos::ZERO, |slo| slo.ttft.scale(self.duration_per_mille, 1000));
        if guest.prefills == owner.prefills {
            return;
        }
        let duration = forecasts::duration(context, &guest, &mut self.forecast);
        if duration.is_some_and(|duration| duration <= longest) {
            let (replica, limits, rank) = (guest.replica.id, guest.limits, Rank::GuestBestEffort);
            plan.actions.push(Action::FormBatch { replica, lane: second, limits, rank });
        }
    }
}

impl Policy for Orion {
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

    fn rig(lanes: u16) -> Rig {
        Rig::with_lanes(ENTRY.build([]).unwrap(), lanes)
    }

    #[test]
    fn a_high_priority_arrival_is_submitted_at_once_and_best_effort_work_goes_on_after_it() {
        let mut rig = rig(1);
        rig.arrive(BATCH, 64);
        let batch = rig.job(0);
        rig.arrive(CHAT, 64);
        assert_eq!((rig.running(0), rig.queued(0)), (Some(CHAT), 2), "the guest is to give way");
        rig.recall(0, BATCH);
        rig.end(0);
        assert_eq!(rig.job(0), batch, "it was not formed anew");
    }

    #[test]
    fn best_effort_work_waits_while_the_owner_has_any() {
        let mut rig = rig(1);
        rig.arrive(CHAT, 64);
        rig.arrive(BATCH, 64);
        rig.finish(0);
        assert_eq!(rig.running(0), Some(CHAT), "its next token");
        rig.end(0);
        assert_eq!(rig.running(0), Some(BATCH));
    }

    /// 2.5 % of 400 ms are 10 ms; a token takes 100 us.
    #[test]
    fn on_a_second_lane_work_of_the_other_profile_runs_beside_if_it_is_short() {
        let beside = |tokens| {
            let mut rig = rig(2);
            rig.arrive(CHAT, 64);
            rig.arrive(BATCH, tokens);
            let alike = rig.queued_on(0, 1);
            rig.finish(0);
            (alike, rig.queued_on(0, 1))
        };
        assert_eq!(beside(100), (0, 1), "prompts are alike; a prompt beside an answer is not: 10 ms");
        assert_eq!(beside(101), (0, 0), "too long");
    }
}
