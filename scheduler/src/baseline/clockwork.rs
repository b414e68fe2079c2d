//! Predictable iterations, one at a time, in windows; what cannot make it is dropped.

use std::collections::{BTreeMap, VecDeque};

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, ModelId, RequestId, TenantId};
use slicescheduler_gmg::plan::{Action, Event, Forecast, Plan};
use slicescheduler_gmg::request::RequestState;
use slicescheduler_gmg::shape::TOKENS;
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::baseline::candidates::{Candidate, candidate_in};
use crate::baseline::forecasts;
use crate::baseline::placement::replicated;
use crate::baseline::queues::plan_free_after;
use crate::baseline::room::{RESERVE, Room};
use crate::baseline::switching::fetch_for_waiting;
use crate::baseline::turns::{BEST_EFFORT_EVERY, BestEffortDue};
use crate::baseline::{Baseline, Parameter, Settings};
use crate::batching::Iteration;
use crate::placing::is_latency;
use crate::policy::{Context, Policy, Residency, TenantShape};

const MARGIN: Parameter = Parameter {
    name: "margin_percent",
    what: "what is added to the longest of the latest measurements",
    default: 10,
    least: 0,
    most: 1000,
    grid: &[0, 10, 25, 50],
};

const DROP: Parameter = Parameter {
    name: "drop",
    what: "1: requests that can not have their first token in time are rejected; 0: they are served late",
    default: 1,
    least: 0,
    most: 1,
    grid: &[0, 1],
};

pub(super) const ENTRY: Baseline = Baseline {
    name: "clockwork",
    rule: "one iteration at a time, the latest possible start first, by worst-case estimates; the hopeless are dropped",
    source: "Gujarati et al., Serving DNNs like clockwork, OSDI 2020",
    parameters: &[MARGIN, DROP, BEST_EFFORT_EVERY, RESERVE],
    build: |settings| Box::new(Clockwork::new(settings)),
};

/// Measurements that the worst case is taken of, as in Clockwork.
const MEASUREMENTS: usize = 10;

/// Clockwork: a central controller knows how long every action takes (the longest of the last ten of its kind),
/// gives each a window of start times that ends at the due time less that, starts the one whose window ends
/// first, one at a time per device, and rejects requests whose window is over. Weights are loaded to devices
/// that have nothing to do while requests wait.
///
/// A kind of action is a model with a number of tokens, rounded up to a power of two; one that was never measured is
/// estimated by the forecast. Clockwork serves models that answer at once: here the window of an iteration follows
/// from its most urgent token, a request that has begun is never dropped, and best-effort work, which has no due
/// times, is due a while after it last ran.
#[derive(Debug)]
pub struct Clockwork {
    margin_percent: u64,
    drops: bool,
    best_effort: BestEffortDue,
    room: Room,
    scratch: Iteration,
    forecast: Forecast,
    measured: BTreeMap<(ModelId, u32), VecDeque<Nanos>>,
    /// By tenant: requests that may still be dropped, in the order of arrival.
    arrived: Vec<VecDeque<RequestId>>,
}

impl Default for Clockwork {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

fn kind(model: ModelId, tokens: u64) -> (ModelId, u32) {
    (model, tokens.max(1).next_power_of_two().ilog2())
}

impl Clockwork {
    fn new(settings: &Settings) -> Self {
        Self {
            margin_percent: settings.get(&MARGIN),
            drops: settings.is_on(&DROP),
            best_effort: BestEffortDue::of(settings),
            room: Room::of(settings),
            scratch: Iteration::default(),
            forecast: Forecast::default(),
            measured: BTreeMap::new(),
            arrived: Vec::new(),
        }
    }

    fn note(&mut self, context: &Context<'_>, event: &Event) {
        self.arrived.resize(context.view.tenants().len(), VecDeque::new());
        match *event {
            Event::Arrived { request, .. } => {
                let tenant = context.view.request(request).map(|request| request.tenant);
                let tenant = tenant.filter(|&tenant| is_latency(context.view, tenant));
                if let Some(arrived) = tenant.and_then(|tenant| self.arrived.get_mut(tenant.index())) {
                    arrived.push_back(request);
                }
            }
            Event::Finished { job, started, at, .. } => {
                let Some(job) = context.view.job(job) else { return };
                let measured = self.measured.entry(kind(job.spec.model, job.spec.binding.value(TOKENS))).or_default();
                if measured.len() == MEASUREMENTS {
                    measured.pop_front();
                }
                measured.push_back(at - started);
            }
            _ => {}
        }
    }

    /// How long the iteration takes at worst.
    fn worst_case(&mut self, context: &mut Context<'_>, candidate: &Candidate) -> Option<Nanos> {
        let measured = self.measured.get(&kind(candidate.replica.model, candidate.binding.value(TOKENS)));
        let longest = match measured.and_then(|measured| measured.iter().max()) {
            Some(&longest) => longest,
            None => forecasts::duration(context, candidate, &mut self.forecast)?,
        };
        Some(longest.scale(100 + self.margin_percent, 100))
    }

    fn candidate(
        &mut self,
        context: &Context<'_>,
        tenant: TenantId,
        device: DeviceId,
        plan: &mut Plan,
    ) -> Option<Candidate> {
        candidate_in(context, tenant, device, &mut self.room, u32::MAX, plan, &mut self.scratch)
    }

    /// Rejects the oldest waiting requests of `tenant` as long as an iteration of `length` would come too late.
    fn drop_hopeless(&mut self, context: &Context<'_>, tenant: TenantId, length: Nanos, plan: &mut Plan) -> bool {
        let arrived = &mut self.arrived[tenant.index()];
        let mut dropped = false;
        while let Some(&oldest) = arrived.front() {
            let request = context.view.request(oldest).filter(|request| request.state == RequestState::Waiting);
            match request {
                Some(request) if context.now + length <= request.due(0) => break,
                Some(_) => {
                    plan.actions.push(Action::Reject { request: oldest, reason: "its first token would be late" });
                    dropped = true;
                }
                None => {}
            }
            arrived.pop_front();
        }
        dropped
    }

    fn fill(&mut self, context: &mut Context<'_>, device: DeviceId, plan: &mut Plan) {
        let mut first: Option<(Nanos, Candidate)> = None;
        let tenants = (0..context.view.tenants().len() as u32).map(TenantId);
        for tenant in tenants.clone().filter(|&tenant| is_latency(context.view, tenant)).collect::<Vec<_>>() {
            let Some(found) = self.candidate(context, tenant, device, plan) else { continue };
            let length = self.worst_case(context, &found).unwrap_or(Nanos::ZERO);
            if self.drops && found.admitted > 0 && self.drop_hopeless(context, tenant, length, plan) {
                // What is left is looked at when the rejections are carried out.
                plan.wake(context.now);
                continue;
            }
            let latest = found.due - length;
            if first.as_ref().is_none_or(|(other, _)| latest < *other) {
                first = Some((latest, found));
            }
        }
        let due = self.best_effort.on(device);
        let first = first.filter(|&(latest, _)| latest <= due).map(|(_, first)| first).or_else(|| {
            let mut best_effort = tenants.filter(|&tenant| !is_latency(context.view, tenant));
            let found = best_effort.find_map(|tenant| self.candidate(context, tenant, device, plan));
            found.or(first.map(|(_, first)| first))
        });
        match first {
            Some(first) => first.start(context, plan),
            None => {
                fetch_for_waiting(context, device, plan);
            }
        }
    }
}

impl Policy for Clockwork {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        replicated(tenants, memory)
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        self.room.note(context, event);
        self.best_effort.note(context, event);
        self.note(context, event);
        plan_free_after(context, event, |context, device, plan| self.fill(context, device, plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::rig::{BATCH, CHAT, MAIL, Rig};

    fn rig() -> Rig {
        Rig::new(ENTRY.build([("margin_percent", 0), ("best_effort_every_ms", 0)]).unwrap(), 1)
    }

    /// MAIL: due at 1000 ms, takes 51.2 ms, so it starts by 948.8 ms. CHAT: due at 960 ms, takes 1.6 ms: 958.4 ms.
    #[test]
    fn the_iteration_that_has_to_start_first_goes_first() {
        let mut rig = rig();
        rig.arrive(BATCH, 64);
        rig.arrive(MAIL, 512);
        rig.pass(Nanos::ms(560));
        rig.arrive(CHAT, 16);
        rig.end(0);
        assert_eq!(rig.running(0), Some(MAIL), "although CHAT is due first");
    }

    /// Due at 400 ms, takes 6.4 ms.
    #[test]
    fn a_request_that_can_not_be_in_time_is_rejected() {
        let mut rig = rig();
        rig.arrive(BATCH, 64);
        let (hopeless, hopeful) = (rig.arrive(CHAT, 64), {
            rig.pass(Nanos::ms(100));
            rig.arrive(CHAT, 64)
        });
        rig.pass(Nanos::ms(290));
        rig.end(0);
        assert_eq!(rig.rejected, [hopeless], "12.8 ms for both prompts would end at 402.8 ms");
        rig.timer();
        let first = rig.gmg.view().job(rig.job(0).unwrap()).unwrap().spec.rows[0].request;
        assert_eq!(first, hopeful);
    }

    #[test]
    fn the_worst_case_is_the_longest_of_the_latest_ten_measurements() {
        let mut rig = rig();
        for tenths in [50, 20] {
            rig.arrive(CHAT, 64);
            rig.pass(Nanos::ms(tenths));
            rig.end_after(0, Nanos::ms(tenths));
        }
        rig.arrive(BATCH, 64);
        let late = rig.arrive(CHAT, 64);
        rig.pass(Nanos::ms(351));
        rig.end(0);
        assert_eq!(rig.rejected, [late], "351 + 50 ms: the forecast of 6.4 ms does not count any more");
    }
}
