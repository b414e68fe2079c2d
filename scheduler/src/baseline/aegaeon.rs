//! Models take turns token by token: prompts in groups, answers in weighted rounds.

use std::collections::VecDeque;

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::plan::{Event, Plan};
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::baseline::candidates::{Candidate, candidate_in, ready_replica};
use crate::baseline::placement::replicated;
use crate::baseline::queues::{plan_free_after, serves};
use crate::baseline::room::{RESERVE, Room};
use crate::baseline::switching::fetch_for_waiting;
use crate::baseline::turns::{BEST_EFFORT_LAST, groups};
use crate::baseline::{Baseline, Parameter, Settings};
use crate::batching::Iteration;
use crate::placing::is_latency;
use crate::policy::{Context, Policy, Residency, TenantShape};

const GROUP: Parameter = Parameter {
    name: "group",
    what: "most requests of a group of prompts",
    default: 8,
    least: 1,
    most: 1000,
    grid: &[4, 8, 16],
};

const SWITCH: Parameter = Parameter {
    name: "switch_ms",
    what: "the time of a round of answers that switching between its models is taken to cost",
    default: 20,
    least: 1,
    most: 10_000,
    grid: &[5, 20, 100],
};

pub(super) const ENTRY: Baseline = Baseline {
    name: "aegaeon",
    rule: "prompts in groups by model, first come, first served; answers in rounds weighted by their slack",
    source: "Xiang et al., Aegaeon: effective GPU pooling for concurrent LLM serving on the market, SOSP 2025",
    parameters: &[GROUP, SWITCH, BEST_EFFORT_LAST, RESERVE],
    build: |settings| Box::new(Aegaeon::new(settings)),
};

/// The longest turn in a round.
const LONGEST_TURN: Nanos = Nanos::secs(4);
/// What `n` is taken to be, at least, where it is not known: the first turn of a model is short.
const UNMEASURED: f64 = 10.0;
/// The least share of a round that answers may wait for others, Aegaeon's bound on `alpha`.
const LEAST_ALPHA: f64 = 0.5;

/// Aegaeon's token-level scheduling. *Prompts*: an arriving request joins a group of its model that is not full, or
/// starts a group at the end of the queue of the device with the fewest requests; groups are computed first
/// come, first served. *Answers*: the models with running sequences take turns in rounds; model `i`, whose
/// iteration takes `t` of the `d` between two tokens that its users are promised, has `n = d / t` and the turn
/// `q = c / (n (alpha - sum(1 / n)))` with `alpha = max(c / (min(n) Q) + sum(1 / n), 0.5)`, where `c` is what
/// switching costs in a round and `Q` = 4 s is the longest turn.
///
/// Aegaeon computes prompts and answers on devices apart and moves KV cache between them. The substrate does not
/// move sequences, so a device computes both: prompts with due times first, then the round of answers, then a group of
/// best-effort prompts, and another round. A model without a promise has the `n` of the most relaxed one that has.
/// Switching models costs little here, since weights of several stay resident; `c` is a parameter. A device
/// with nothing to do loads the weights of a model for which requests wait.
#[derive(Debug)]
pub struct Aegaeon {
    group: u32,
    switch: Nanos,
    best_effort_last: bool,
    room: Room,
    scratch: Iteration,
    devices: Vec<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    prompts: VecDeque<Group>,
    /// Turns that are left of the round of answers, and when the first of them ends.
    turns: VecDeque<(TenantId, Nanos)>,
    turn_ends: Option<Nanos>,
    /// By tenant: how long its latest iteration of answers took.
    decode: Vec<Nanos>,
}

/// Requests of one model that are computed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    tenant: TenantId,
    requests: u32,
}

impl Default for Aegaeon {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

impl Aegaeon {
    fn new(settings: &Settings) -> Self {
        Self {
            group: settings.get_u32(&GROUP),
            switch: Nanos::ms(settings.get(&SWITCH)),
            best_effort_last: settings.is_on(&BEST_EFFORT_LAST),
            room: Room::of(settings),
            scratch: Iteration::default(),
            devices: Vec::new(),
        }
    }

    fn note(&mut self, context: &Context<'_>, event: &Event) {
        let tenants = context.view.tenants().len();
        self.devices.resize(context.view.cluster().devices().len(), State::default());
        self.devices.iter_mut().for_each(|state| state.decode.resize(tenants, Nanos::ZERO));
        let Event::Finished { job, lane, started, at, .. } = *event else { return };
        let Some(job) = context.view.job(job) else { return };
        let answers = job.spec.rows.iter().all(|row| row.tokens == 1);
        let state = self.devices.get_mut(lane.device.index());
        if let Some(latest) =
            state.and_then(|state| state.decode.get_mut(job.spec.key.tenant as usize)).filter(|_| answers)
        {
            *latest = at - started;
        }
    }

    /// Makes groups of what waits: new requests join, and what is gone leaves the last groups.
    fn regroup(&mut self, context: &Context<'_>) {
        for tenant in (0..context.view.tenants().len() as u32).map(TenantId) {
            for device in context.devices().filter(|&device| !serves(context, tenant, device)) {
                self.devices[device.index()].prompts.retain(|group| group.tenant != tenant);
            }
            let waiting = context.demand.waiting(tenant).map_or(0, |waiting| waiting.requests as u64);
            let of_tenant = |state: &State| -> u64 {
                state.prompts.iter().filter(|group| group.tenant == tenant).map(|group| u64::from(group.requests)).sum()
            };
            let mut grouped: u64 = self.devices.iter().map(of_tenant).sum();
            while grouped < waiting && self.add(context, tenant) {
                grouped += 1;
            }
            while grouped > waiting {
                let groups = self.devices.iter_mut().rev().flat_map(|state| state.prompts.iter_mut().rev());
                let Some(last) = groups.into_iter().find(|group| group.tenant == tenant && group.requests > 0) else {
                    break;
                };
                last.requests -= 1;
                grouped -= 1;
            }
        }
        self.devices.iter_mut().for_each(|state| state.prompts.retain(|group| group.requests > 0));
    }

    /// Puts one request of `tenant` into a group. False if no device serves it.
    fn add(&mut self, context: &Context<'_>, tenant: TenantId) -> bool {
        let most = self.group;
        let mut groups = self.devices.iter_mut().flat_map(|state| state.prompts.iter_mut());
        if let Some(open) = groups.find(|group| group.tenant == tenant && group.requests < most) {
            open.requests += 1;
            return true;
        }
        let length = |state: &State| state.prompts.iter().map(|group| u64::from(group.requests)).sum::<u64>();
        let running = |device: DeviceId| {
            let of = |tenant| context.demand.replica_on(tenant, device).map_or(0, |replica| u64::from(replica.running));
            (0..context.view.tenants().len() as u32).map(TenantId).map(of).sum::<u64>()
        };
        let serving = context.devices().filter(|&device| serves(context, tenant, device));
        let shortest = serving.min_by_key(|&device| (length(&self.devices[device.index()]), running(device), device));
        let Some(shortest) = shortest else { return false };
        self.devices[shortest.index()].prompts.push_back(Group { tenant, requests: 1 });
        true
    }

    fn fill(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) {
        let found = self.prompts(context, device, true, plan);
        let found = found.or_else(|| self.answers(context, device, plan));
        let found = found.or_else(|| self.prompts(context, device, false, plan));
        let found = found.or_else(|| {
            self.begin_round(context, device);
            self.answers(context, device, plan)
        });
        match found {
            Some(found) => found.start(context, plan),
            None => {
                fetch_for_waiting(context, device, plan);
            }
        }
    }

    /// The first group of prompts of a class that can be computed; a round of answers follows a best-effort one.
    fn prompts(
        &mut self,
        context: &Context<'_>,
        device: DeviceId,
        with_due_times: bool,
        plan: &mut Plan,
    ) -> Option<Candidate> {
        for at in 0..self.devices[device.index()].prompts.len() {
            let Group { tenant, requests } = self.devices[device.index()].prompts[at];
            if is_latency(context.view, tenant) != with_due_times {
                continue;
            }
            let Some(replica) = ready_replica(context, tenant, device) else { continue };
            let sequences = replica.running.saturating_add(requests);
            let found = candidate_in(context, tenant, device, &mut self.room, sequences, plan, &mut self.scratch);
            let Some(found) = found.filter(|found| found.prefills) else { continue };
            let group = &mut self.devices[device.index()].prompts[at];
            group.requests = group.requests.saturating_sub(found.admitted);
            if group.requests == 0 {
                self.devices[device.index()].prompts.remove(at);
                if !with_due_times {
                    self.begin_round(context, device);
                }
            }
            return Some(found);
        }
        None
    }

    /// The next iteration of the round of answers.
    fn answers(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) -> Option<Candidate> {
        while let Some(&(tenant, turn)) = self.devices[device.index()].turns.front() {
            let ends = *self.devices[device.index()].turn_ends.get_or_insert(context.now + turn);
            let running = ready_replica(context, tenant, device).map_or(0, |replica| replica.running);
            if context.now < ends && running > 0 {
                let found = candidate_in(context, tenant, device, &mut self.room, running, plan, &mut self.scratch);
                if found.is_some() {
                    return found;
                }
            }
            let state = &mut self.devices[device.index()];
            state.turns.pop_front();
            state.turn_ends = None;
        }
        None
    }

    /// Gives every model with running sequences its turn.
    fn begin_round(&mut self, context: &Context<'_>, device: DeviceId) {
        let runs = |tenant: &TenantId| context.demand.replica_on(*tenant, device).is_some_and(|one| one.running > 0);
        let mut first_class = groups(context.view, None, self.best_effort_last).map(|group| group.filter(runs));
        let models: Vec<TenantId> =
            first_class.find(|group| group.clone().next().is_some()).map(Iterator::collect).unwrap_or_default();
        let state = &mut self.devices[device.index()];
        let slack = |tenant: &TenantId| {
            let promised = context.view.tenant(*tenant).and_then(|tenant| tenant.slo).map(|slo| slo.tpot);
            let took = state.decode[tenant.index()].as_secs_f64();
            promised.filter(|_| took > 0.0).map(|promised| (promised.as_secs_f64() / took).max(1.0))
        };
        let known: Vec<Option<f64>> = models.iter().map(slack).collect();
        let relaxed = known.iter().flatten().copied().fold(UNMEASURED, f64::max);
        let slacks: Vec<f64> = known.into_iter().map(|slack| slack.unwrap_or(relaxed)).collect();
        state.turns = models.into_iter().zip(turns(&slacks, self.switch)).collect();
        state.turn_ends = None;
    }
}

/// How long each model's turn is, from its `n` and what switching costs in a round.
fn turns(slacks: &[f64], switch: Nanos) -> Vec<Nanos> {
    let switch = switch.as_secs_f64();
    let load: f64 = slacks.iter().map(|slack| 1.0 / slack).sum();
    let least = slacks.iter().copied().fold(f64::INFINITY, f64::min);
    let alpha = (switch / (least * LONGEST_TURN.as_secs_f64()) + load).max(LEAST_ALPHA);
    slacks.iter().map(|slack| Nanos::from_secs_f64(switch / (slack * (alpha - load)))).collect()
}

impl Policy for Aegaeon {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        replicated(tenants, memory)
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        self.room.note(context, event);
        self.note(context, event);
        self.regroup(context);
        plan_free_after(context, event, |context, device, plan| self.fill(context, device, plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::rig::{BATCH, CHAT, MAIL, Rig};

    /// sum(1 / n) = 0.15 and alpha = 0.5: 0.1 / (10 x 0.35) and 0.1 / (20 x 0.35) seconds.
    #[test]
    fn turns_are_inverse_to_slack() {
        let turns = turns(&[10.0, 20.0], Nanos::ms(100));
        assert_eq!(turns.iter().map(|turn| turn.get() / 1000).collect::<Vec<_>>(), [28_571, 14_285]);
    }

    /// sum(1 / n) = 0.5 leaves nothing of alpha = 0.5, so alpha = 1 / (4 x 4) + 0.5.
    #[test]
    fn under_load_the_tightest_model_has_the_longest_turn() {
        let turns = turns(&[4.0, 4.0], Nanos::secs(1));
        assert_eq!(turns, [Nanos::secs(4); 2]);
    }

    #[test]
    fn a_request_joins_the_group_of_its_model_before_older_groups_of_others() {
        let mut rig = Rig::new(ENTRY.build([]).unwrap(), 1);
        rig.arrive(BATCH, 16);
        rig.arrive(CHAT, 16);
        rig.arrive(MAIL, 16);
        rig.arrive(CHAT, 16);
        rig.end(0);
        assert_eq!((rig.running(0), rig.tokens(0)), (Some(CHAT), 32), "both requests of the group");
        rig.end(0);
        assert_eq!(rig.running(0), Some(MAIL));
    }

    #[test]
    fn a_full_group_takes_no_more() {
        let mut rig = Rig::new(ENTRY.build([("group", 4)]).unwrap(), 1);
        rig.arrive(BATCH, 16);
        for tenant in [CHAT, CHAT, CHAT, CHAT, MAIL, CHAT] {
            rig.arrive(tenant, 16);
        }
        let mut order = Vec::new();
        for _ in 0..3 {
            rig.end(0);
            order.push((rig.running(0).unwrap(), rig.tokens(0)));
        }
        assert_eq!(order, [(CHAT, 64), (MAIL, 16), (CHAT, 16)]);
    }

    /// One iteration of CHAT takes 10 of 40 ms and of MAIL 10 of 100 ms, so n is 4 and 10, sum(1 / n) = 0.35, and the
    /// turns are 0.02 / (4 x 0.15) = 33 ms and 0.02 / (10 x 0.15) = 13 ms.
    #[test]
    fn prompts_do_not_wait_for_answers_which_take_turns() {
        let mut rig = Rig::new(ENTRY.build([]).unwrap(), 1);
        rig.arrive(CHAT, 16);
        rig.arrive(MAIL, 16);
        let mut order = Vec::new();
        for _ in 0..20 {
            rig.pass(Nanos::ms(10));
            rig.finish_after(0, Nanos::ms(10));
            order.push(rig.running(0).unwrap());
        }
        assert_eq!((order[0], rig.tokens(0)), (MAIL, 1), "its prompt before the answer of CHAT");
        let turns: Vec<usize> = order[8..].chunk_by(|one, other| one == other).map(<[_]>::len).collect();
        assert!(turns[1..turns.len() - 1].iter().all(|&turn| turn == 4 || turn == 2), "{order:?}");
        rig.arrive(CHAT, 32);
        rig.finish(0);
        assert_eq!((rig.running(0), rig.tokens(0)), (Some(CHAT), 33), "at once, and its answer is carried along");
    }
}
