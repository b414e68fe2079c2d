//! Arrivals of latency-sensitive tenants: at home if that is in time, on others' devices if not.

use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::id::{DeviceId, JobId, ModelId, RequestId, TenantId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::memory::WeightState;
use slicescheduler_gmg::plan::{Action, BatchLimits, Plan, Rank};
use slicescheduler_gmg::shape::{Binding, CONTEXT, PAIRS, SEQUENCES, TOKENS};
use slicescheduler_gmg::units::Nanos;

use crate::demand::{ReplicaInfo, Waiting};
use crate::explain::{Reason, What};
use crate::placing::{form, group_runs, is_latency, lane_of, leader_of, ranks_of, run_action, takes, unlimited};
use crate::policy::Context;
use crate::slice_fill::SliceFill;
use crate::slice_fill::candidates::forms;

/// Of the devices that share a tenant's waiting requests at home, the forecast is of so many at most.
const LAST: usize = 8;

/// Devices with an empty lane that are looked at when one more request joins those that nobody took.
const LOOKS: usize = 8;

impl SliceFill {
    pub(super) fn on_arrival(&mut self, context: &mut Context<'_>, request: RequestId, plan: &mut Plan) {
        let Some(tenant) = context.view.request(request).map(|request| request.tenant) else { return };
        if !is_latency(context.view, tenant) {
            self.fill_idle(context, tenant, plan);
            return;
        }
        if !self.start_at_home(context, tenant, plan) {
            self.overflow(context, tenant, plan);
        }
    }

    /// Lets the first device with an empty lane that can take the tenant's requests do so. Requests that waited
    /// before this one came were refused by all of them: then only some are looked at, in turn.
    fn fill_idle(&mut self, context: &mut Context<'_>, tenant: TenantId, plan: &mut Plan) {
        let is_first = context.demand.waiting(tenant).is_none_or(|waiting| waiting.requests == 1);
        let some_only = !is_first && self.places.idle.len() > LOOKS;
        let (mut left, begin) = if some_only { (LOOKS, self.look) } else { (usize::MAX, DeviceId(0)) };
        let mut next = self.places.idle.range(begin..).next().copied();
        while let Some(device) = next.filter(|_| left > 0) {
            left -= 1;
            next = self.places.idle.range((Bound::Excluded(device), Bound::Unbounded)).next().copied();
            if some_only {
                self.look = next.unwrap_or(DeviceId(0));
            }
            if !runs_nothing(context, device) {
                self.places.idle.remove(&device);
            } else if let Some(replica) = context.demand.replica_on(tenant, device) {
                match context.view.memory(device).and_then(|memory| memory.weight_state(replica.model)) {
                    Some(WeightState::Resident) => self.fill(context, device, plan),
                    None if fetches(plan, replica.model) || self.is_coming(context, tenant, replica.model) => {}
                    // Nothing else changed there.
                    None if !context.view.is_lost(device) => self.invite(context, device, plan),
                    _ => {}
                }
                if forms(plan, tenant) {
                    return;
                }
            }
        }
    }

    /// Starts the tenant's next iteration on one of its own devices, taking the lane from a guest
    /// if need be, now or when it has to. False if all of them run work of the same right of way.
    fn start_at_home(&mut self, context: &mut Context<'_>, tenant: TenantId, plan: &mut Plan) -> bool {
        let Some(replica) = self.free_home(context, tenant, plan) else {
            // Work whose latest start has come was started there: what is left is seen when the plan was carried out.
            let mut homes = self.places.homes(tenant).iter().copied();
            let taken = homes.find(|&device| takes(context.view, plan, lane_of(device)));
            taken.into_iter().for_each(|taken| self.look_again(context, taken));
            return taken.is_some();
        };
        self.starts.set(replica.device, None);
        let candidates = self.latency_candidates(context, replica.device, plan);
        let Some(own) = candidates.iter().find(|candidate| candidate.rank == Rank::OwnerLatency) else { return true };
        let beside_guest =
            !runs_nothing(context, replica.device) && runs_below(context, replica.device, Rank::GuestLatency);
        let waits = !own.at_once && beside_guest;
        match waits.then(|| self.latest_alone(context, replica.device, own)).flatten() {
            Some(latest) => self.starts.set(replica.device, Some(latest)),
            None => self.start(context, replica.device, own, plan),
        }
        true
    }

    /// True if waiting requests of the replica's tenant that could still be in time would be late on
    /// the tenant's own devices, by the forecast, and sooner on the replica's.
    pub(super) fn should_take_over(&mut self, context: &mut Context<'_>, replica: &ReplicaInfo) -> bool {
        let tenant = replica.id.tenant;
        if context.demand.waiting(tenant).is_none() || !self.may_borrow(context, tenant) {
            return false;
        }
        if !self.is_calm(context, replica.device) {
            return false;
        }
        let Some((waiting, at_home)) = self.savable(context, tenant) else { return false };
        if !context.budget.take() {
            return false;
        }
        let tokens = u64::from(self.prompt_tokens(context, replica)).min(waiting.tokens);
        let action = prompt_action(context, replica, tokens, &waiting, Rank::GuestLatency);
        self.finish_of_last(context, &[action]).is_some_and(|finish| finish < at_home)
    }

    /// Waiting requests that would be late at home, but could be in time elsewhere, and when they would be done at home.
    fn savable(&mut self, context: &mut Context<'_>, tenant: TenantId) -> Option<(Waiting, Nanos)> {
        let waiting = context.demand.waiting(tenant)?;
        let at_home = self.late_at_home(context, tenant, &waiting)?;
        Some((context.demand.waiting_in_time(tenant, context.now)?, at_home))
    }

    /// True if the owner of the device has no burst of its own.
    fn is_calm(&self, context: &Context<'_>, device: DeviceId) -> bool {
        let owner = context.view.owner(device).filter(|&owner| is_latency(context.view, owner));
        owner.is_none_or(|owner| context.demand.waiting(owner).is_none())
    }

    /// When the tenant's own devices would have computed what waits, if that is too late for the youngest.
    fn late_at_home(&mut self, context: &mut Context<'_>, tenant: TenantId, waiting: &Waiting) -> Option<Nanos> {
        let finish = self.home_finish(context, tenant, waiting);
        let slo = context.view.tenant(tenant).and_then(|tenant| tenant.slo);
        let margin = slo.map_or(Nanos::ZERO, |slo| slo.ttft.scale(self.options.overflow_margin_percent, 100));
        (finish > waiting.last_due - margin).then_some(finish)
    }

    /// When the tenant's own devices would have computed all that waits, each taking iterations as
    /// large as its budget. [`Nanos::MAX`] if none of them lives, zero if it cannot be forecast.
    fn home_finish(&mut self, context: &mut Context<'_>, tenant: TenantId, waiting: &Waiting) -> Nanos {
        let view = context.view;
        let homes = self.places.homes(tenant).iter().copied();
        let mut home: SmallVec<[ReplicaInfo; 4]> = homes
            .filter_map(|device| context.demand.replica_on(tenant, device))
            .filter(|replica| ranks_of(view, replica).iter().all(|&device| !view.is_lost(device)))
            .collect();
        if home.is_empty() {
            return Nanos::MAX;
        }
        if !context.budget.take() {
            return Nanos::ZERO;
        }
        // As many as there are requests share them, first those that are free: what began first ends first, about.
        // The last of them say when all is done.
        home.sort_by_key(|replica| first_of_owner(context, replica.device));
        home.truncate(waiting.requests.max(1));
        let share = waiting.tokens.div_ceil(home.len() as u64).max(1);
        let tokens = share.min(u64::from(context.demand.token_budget(tenant)).max(1));
        let rounds = share.div_ceil(tokens);
        let actions: SmallVec<[Action; 4]> = home
            .iter()
            .rev()
            .take(LAST)
            .map(|replica| prompt_action(context, replica, tokens, waiting, Rank::OwnerLatency))
            .collect();
        if self.finish_of_last(context, &actions).is_none() {
            return Nanos::ZERO;
        }
        let runs = self.forecast.runs.iter().filter(|run| run.action.is_some());
        runs.map(|run| run.finish + (run.finish - run.start).times(rounds - 1)).max().unwrap_or(Nanos::ZERO)
    }

    /// Gives waiting requests that would be late at home to replicas on other devices, the one that
    /// would finish first in turn.
    pub(super) fn overflow(&mut self, context: &mut Context<'_>, tenant: TenantId, plan: &mut Plan) {
        if !self.may_borrow(context, tenant) {
            let home = self.places.homes(tenant).first().copied();
            if let Some(home) = home.filter(|_| context.explain.is_some()) {
                context.say(home, tenant, What::Overflow, Some(Reason::NoCredit), None);
            }
            return;
        }
        let Some((mut left, at_home)) = self.savable(context, tenant) else { return };
        let guests = self.places.guests(tenant).iter().copied();
        let mut hosts: SmallVec<[ReplicaInfo; 8]> = guests
            .filter(|&device| self.can_host(context, device) && !takes(context.view, plan, lane_of(device)))
            .filter_map(|device| context.demand.replica_on(tenant, device))
            .filter(|replica| !replica.in_flight && context.view.is_resident(replica.model, replica.device))
            .collect();
        // On an empty lane a prompt is done as soon as on any other of its kind: those go first, and one is enough.
        hosts.sort_by_key(|replica| !runs_nothing(context, replica.device));
        let view = context.view;
        while left.tokens > 0 && !hosts.is_empty() {
            let mut best: Option<(Nanos, usize)> = None;
            let mut done: SmallVec<[&Arc<DeviceSpec>; 2]> = SmallVec::new();
            for (index, replica) in hosts.iter().enumerate() {
                let spec = view.cluster().device(replica.device).map(|device| &device.spec);
                if spec.is_some_and(|spec| done.contains(&spec)) {
                    continue;
                }
                if !context.budget.take() {
                    break;
                }
                let tokens = left.tokens.min(u64::from(self.prompt_tokens(context, replica)));
                let action = prompt_action(context, replica, tokens, &left, Rank::GuestLatency);
                let Some(finish) = self.finish_of_last(context, &[action]) else { continue };
                let latest = self.starts.get(leader_of(context.view, replica.device));
                let rejected = match latest {
                    Some(latest) if finish > latest => Some(Reason::NoSlack),
                    _ if self.forecast.first_shortage().is_some() => Some(Reason::NoMemory),
                    _ if finish > left.last_due || finish >= at_home => Some(Reason::TooLate),
                    _ => None,
                };
                context.say(replica.device, tenant, What::Overflow, rejected, Some(finish));
                if rejected.is_some() {
                    continue;
                }
                if runs_nothing(context, replica.device) {
                    done.extend(spec);
                }
                if best.is_none_or(|(other, _)| finish < other) {
                    best = Some((finish, index));
                }
            }
            let Some((_, index)) = best else { break };
            let replica = hosts.remove(index);
            let tokens = self.prompt_tokens(context, &replica);
            let limits = BatchLimits {
                tokens,
                not_due_before: context.now,
                ..unlimited(self.latency_blocks(context, &replica, false, plan))
            };
            form(context.view, &replica, limits, plan);
            left.tokens = left.tokens.saturating_sub(u64::from(tokens));
        }
        if left.tokens > 0 {
            self.fetch(context, tenant, &left, plan);
        }
    }

    /// How many tokens an iteration may have that takes requests in on a guest's replica: where the owner does not
    /// lend its slack it has to wait for one operator of that iteration at most, so these are short.
    pub(super) fn prompt_tokens(&self, context: &Context<'_>, replica: &ReplicaInfo) -> u32 {
        let budget = context.demand.token_budget(replica.id.tenant);
        let owner = context.view.owner(replica.device).filter(|&owner| is_latency(context.view, owner));
        let is_strict = owner.is_some_and(|owner| !self.lends(context, owner));
        if is_strict { budget.min(self.options.guest_tokens) } else { budget }
    }

    /// True if the device could start a guest's prompt now: nothing latency-sensitive is on its
    /// lane, and nothing waits to go on.
    pub(super) fn can_host(&self, context: &Context<'_>, device: DeviceId) -> bool {
        let waits = self.devices[device.index()].suspended.iter().any(|suspended| suspended.rank >= Rank::GuestLatency);
        !context.view.is_lost(device)
            && !self.owes_owner(context, device)
            && !waits
            && runs_below(context, device, Rank::GuestLatency)
            && !group_runs(context.view, device)
            && self.is_calm(context, device)
    }
}

/// True if an earlier action of the plan fetches the weights.
pub(super) fn fetches(plan: &Plan, wanted: ModelId) -> bool {
    plan.actions.iter().any(|action| matches!(action, Action::Prefetch { model, .. } if *model == wanted))
}

/// A forecast's stand-in for an iteration that computes `tokens` tokens of waiting prompts.
pub(super) fn prompt_action(
    context: &Context<'_>,
    replica: &ReplicaInfo,
    tokens: u64,
    waiting: &Waiting,
    rank: Rank,
) -> Action {
    let prompt = (waiting.tokens / waiting.requests.max(1) as u64).max(1).min(tokens);
    let binding = Binding::default()
        .bind(TOKENS, tokens)
        .bind(SEQUENCES, tokens.div_ceil(prompt))
        .bind(CONTEXT, tokens)
        .bind(PAIRS, tokens * prompt.div_ceil(2));
    let spec = JobSpec::of(replica.model).bind(binding);
    run_action(context.view, replica, spec, rank)
}

/// The job of its owner's that is first on the device's lane; jobs are numbered in the order in which they begin.
fn first_of_owner(context: &Context<'_>, device: DeviceId) -> Option<JobId> {
    let queue = context.view.lane(lane_of(device))?.queue();
    queue.iter().find(|entry| entry.rank == Rank::OwnerLatency).map(|entry| entry.job)
}

/// True if nothing is on the device's lane.
fn runs_nothing(context: &Context<'_>, device: DeviceId) -> bool {
    context.view.lane(lane_of(device)).is_some_and(|lane| lane.is_empty())
}

/// True if whatever runs or waits on the device's lane is below `rank`.
pub(super) fn runs_below(context: &Context<'_>, device: DeviceId, rank: Rank) -> bool {
    context.view.lane(lane_of(device)).is_some_and(|lane| lane.queue().iter().all(|entry| entry.rank < rank))
}
