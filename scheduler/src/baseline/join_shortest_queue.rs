//! Replication, the shortest queue, and the earliest due time.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::plan::{Event, Plan};
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::baseline::candidates::{Candidate, candidate_in, ready_replica};
use crate::baseline::placement::replicated;
use crate::baseline::queues::{Queues, plan_free_after};
use crate::baseline::room::{RESERVE, Room};
use crate::baseline::turns::{BEST_EFFORT_EVERY, BestEffortDue};
use crate::baseline::{Baseline, Settings};
use crate::batching::Iteration;
use crate::placing::is_latency;
use crate::policy::{Context, Policy, Residency, TenantShape};

pub(super) const ENTRY: Baseline = Baseline {
    name: "jsq-edf",
    rule: "every model replicated; a request joins the shortest queue; the earliest due time goes first",
    source: "Winston, Optimality of the shortest line discipline, 1977; Liu and Layland, 1973",
    parameters: &[BEST_EFFORT_EVERY, RESERVE],
    build: |settings| Box::new(JoinShortestQueue::new(settings)),
};

/// Replication + join-shortest-queue + earliest due time first: every model has a replica wherever its weights
/// fit; an arriving request joins the device with the fewest requests and stays there; a device that becomes
/// free runs the iteration whose most urgent token is due first. Best-effort work, which has no due times, is due a while after it last ran on the device, so that
/// it has the slack of what is due later.
///
/// Among requests of one tenant the earliest due time is the earliest arrival, which is the order of batching.
#[derive(Debug)]
pub struct JoinShortestQueue {
    room: Room,
    best_effort: BestEffortDue,
    queues: Queues,
    scratch: Iteration,
}

impl Default for JoinShortestQueue {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

impl JoinShortestQueue {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            room: Room::of(settings),
            best_effort: BestEffortDue::of(settings),
            queues: Queues::default(),
            scratch: Iteration::default(),
        }
    }

    fn fill(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) {
        let mut first: Option<(Nanos, Candidate)> = None;
        for tenant in (0..context.view.tenants().len() as u32).map(TenantId) {
            let Some(replica) = ready_replica(context, tenant, device) else { continue };
            let sequences = replica.running.saturating_add(self.queues.of(tenant, device));
            let found = candidate_in(context, tenant, device, &mut self.room, sequences, plan, &mut self.scratch);
            let Some(found) = found else { continue };
            let due = if is_latency(context.view, tenant) { found.due } else { self.best_effort.on(device) };
            if first.as_ref().is_none_or(|&(earliest, _)| due < earliest) {
                first = Some((due, found));
            }
        }
        if let Some((_, first)) = first {
            self.queues.take(first.tenant(), device, first.admitted);
            first.start(context, plan);
        }
    }
}

impl Policy for JoinShortestQueue {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        replicated(tenants, memory)
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        self.room.note(context, event);
        self.best_effort.note(context, event);
        self.queues.join(context);
        plan_free_after(context, event, |context, device, plan| self.fill(context, device, plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::rig::{BATCH, CHAT, MAIL, Rig};

    fn rig(devices: u32) -> Rig {
        Rig::new(ENTRY.build([("best_effort_every_ms", 0)]).unwrap(), devices)
    }

    #[test]
    fn best_effort_work_is_due_a_while_after_it_last_ran() {
        let mut rig = Rig::new(ENTRY.build([("best_effort_every_ms", 500)]).unwrap(), 1);
        rig.arrive(BATCH, 64);
        rig.arrive(CHAT, 64);
        rig.arrive(MAIL, 64);
        rig.finish(0);
        assert_eq!(rig.running(0), Some(CHAT), "due at 400 ms, BATCH at 500 ms, MAIL at 1000 ms");
        rig.end(0);
        assert_eq!(rig.running(0), Some(BATCH));
    }

    #[test]
    fn a_request_joins_the_device_with_the_fewest_requests_and_stays_there() {
        let mut rig = rig(2);
        rig.arrive(CHAT, 64);
        rig.arrive(CHAT, 64);
        assert_eq!((rig.running(0), rig.running(1)), (Some(CHAT), Some(CHAT)));
        rig.arrive(MAIL, 64);
        rig.end(1);
        assert_eq!(rig.running(1), None, "both had one request, so it joined the first, and waits for it");
        rig.end(0);
        assert_eq!(rig.running(0), Some(MAIL));
    }

    /// MAIL has 1 s to its first token, CHAT 400 ms.
    #[test]
    fn the_earliest_due_time_goes_first_and_best_effort_work_last() {
        let mut rig = rig(1);
        rig.arrive(BATCH, 64);
        rig.arrive(MAIL, 64);
        rig.pass(Nanos::ms(100));
        rig.arrive(CHAT, 64);
        rig.end(0);
        assert_eq!(rig.running(0), Some(CHAT), "due at 500 ms, MAIL at 1000 ms");
        rig.arrive(BATCH, 64);
        rig.end(0);
        assert_eq!(rig.running(0), Some(MAIL));
        rig.end(0);
        assert_eq!(rig.running(0), Some(BATCH));
    }
}
