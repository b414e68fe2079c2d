//! A policy whose guests cannot be interrupted between the iterations of a request.

use std::collections::{BTreeMap, BTreeSet};

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, JobId, JobKey, LaneId, ReplicaId, TenantId};
use slicescheduler_gmg::plan::{Action, BatchLimits, Event, Plan, Work};
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_scheduler::batching::Iteration;
use slicescheduler_scheduler::demand::ReplicaInfo;
use slicescheduler_scheduler::policy::{Context, Policy, Residency, TenantShape};

/// What was refused is asked for again after this time.
const AGAIN: Nanos = Nanos::ms(10);

/// Another policy at the granularity of whole requests: a device that runs requests of a guest is the guest's until they
/// have ended. Nobody else starts there, the guest is not recalled, and it loses neither sequences nor weights. A
/// guest begins only where nobody else has requests running, for those would wait as long.
///
/// The other policy is not told. Its actions that would interrupt a guest are left out, and in their place the guest goes
/// on, with nobody joining from then on, so that its requests end. A guest that cannot go on holds nothing.
pub(super) struct WholeRequests {
    policy: Box<dyn Policy>,
    /// Devices that somebody else was refused.
    wanted: BTreeSet<DeviceId>,
    iteration: Iteration,
}

/// Who has each device in the course of a plan: as it was, and as earlier actions leave it.
type Holders = BTreeMap<DeviceId, ReplicaInfo>;

impl WholeRequests {
    pub(super) fn new(policy: Box<dyn Policy>) -> Self {
        Self { policy, wanted: BTreeSet::new(), iteration: Iteration::default() }
    }

    /// The devices on which requests run, with whose they are: the owner's, or those of a guest that can go on.
    fn holders(&mut self, context: &Context<'_>) -> Holders {
        let view = context.view;
        let mut holders = Holders::new();
        for device in context.devices() {
            let tenants = (0..view.tenants().len() as u32).map(TenantId);
            let replicas = tenants.filter_map(|tenant| context.demand.replica_on(tenant, device));
            for replica in replicas.filter(|replica| replica.running > 0) {
                if !is_guest(context, &replica) {
                    holders.extend(ranks_of(context, &replica).into_iter().map(|rank| (rank, replica)));
                } else if self.goes_on(context, &replica) {
                    holders.entry(device).or_insert(replica);
                }
            }
        }
        holders
    }

    /// True if a guest is on its lane, or has something to compute next.
    fn goes_on(&mut self, context: &Context<'_>, guest: &ReplicaInfo) -> bool {
        let queue = context.view.lane(lane_of(guest.device)).map_or(&[][..], |lane| lane.queue());
        if queue.iter().any(|entry| replica_of(context, entry.job) == Some(guest.id)) {
            return true;
        }
        let usable = !context.view.is_lost(guest.device) && context.view.is_resident(guest.model, guest.device);
        if guest.in_flight || !usable {
            return false;
        }
        context.demand.peek(guest.id, closed(context, guest), &mut self.iteration);
        !self.iteration.is_empty()
    }

    /// True if `action` interrupts nobody. Whoever it starts holds its devices for the rest of the plan.
    fn allows(&mut self, context: &Context<'_>, holders: &mut Holders, action: &mut Action) -> bool {
        let held_by_guest = |holders: &Holders, device: &DeviceId| {
            holders.get(device).copied().filter(|holder| is_guest(context, holder))
        };
        match action {
            Action::FormBatch { replica, limits, .. } => {
                let Some(replica) = context.demand.replica(*replica) else { return true };
                if !self.may_start(context, holders, &replica) {
                    return false;
                }
                if is_guest(context, &replica) && self.wanted.contains(&replica.device) {
                    limits.sequences = limits.sequences.min(replica.running);
                }
                true
            }
            Action::Run { work, .. } => {
                let replica = match work {
                    Work::New(spec) => Some(named(spec.key)),
                    Work::Existing { job, .. } => replica_of(context, *job),
                };
                let replica = replica.and_then(|replica| context.demand.replica(replica));
                replica.is_none_or(|replica| self.may_start(context, holders, &replica))
            }
            Action::Recall { job, .. } => {
                let replica = replica_of(context, *job).and_then(|replica| context.demand.replica(replica));
                let holder = replica.and_then(|replica| held_by_guest(holders, &replica.device));
                holder.is_none_or(|holder| Some(holder.id) != replica.map(|replica| replica.id))
            }
            Action::EvictSequences { replica, .. } => {
                let device = context.demand.replica(*replica).map(|replica| replica.device);
                let holder = device.and_then(|device| held_by_guest(holders, &device));
                holder.is_none_or(|holder| holder.id != *replica)
            }
            Action::ReleaseKv { request, device } => {
                let tenant = context.view.request(*request).map(|request| request.tenant);
                held_by_guest(holders, device).is_none_or(|holder| Some(holder.id.tenant) != tenant)
            }
            Action::Prefetch { device, .. }
            | Action::PrefetchOps { device, .. }
            | Action::EvictOps { device, .. }
            | Action::EvictWeights { device, .. }
            | Action::BorrowSlots { device, .. } => held_by_guest(holders, device).is_none(),
            _ => true,
        }
    }

    /// True if nobody else has a device that `replica` needs. A guest finds one taken where anybody has requests, an
    /// owner where a guest has.
    fn may_start(&mut self, context: &Context<'_>, holders: &mut Holders, replica: &ReplicaInfo) -> bool {
        let guest = is_guest(context, replica);
        let ranks = ranks_of(context, replica);
        let mut free = true;
        for device in &ranks {
            let Some(other) = holders.get(device).filter(|holder| holder.id != replica.id) else { continue };
            if is_guest(context, other) {
                self.wanted.insert(*device);
                free = false;
            }
            free &= !guest;
        }
        if free {
            holders.extend(ranks.into_iter().map(|device| (device, *replica)));
        }
        free
    }

    /// Lets guests go on that hold a device which somebody else was refused.
    fn go_on(&self, context: &Context<'_>, holders: &Holders, plan: &mut Plan) {
        for device in &self.wanted {
            let Some(holder) = holders.get(device).filter(|holder| is_guest(context, holder)) else { continue };
            let lane = lane_of(*device);
            let idle = context.view.lane(lane).is_some_and(|lane| lane.is_empty());
            let formed = |action: &Action| match action {
                Action::FormBatch { replica, .. } => *replica == holder.id,
                Action::Run { lane: on, .. } => *on == lane,
                _ => false,
            };
            if idle && !holder.in_flight && !plan.actions.iter().any(formed) {
                let (replica, limits) = (holder.id, closed(context, holder));
                let rank = context.view.rank(replica.tenant, *device);
                plan.actions.push(Action::FormBatch { replica, lane, limits, rank });
            }
        }
    }
}

fn named(key: JobKey) -> ReplicaId {
    ReplicaId { tenant: TenantId(key.tenant), index: key.replica }
}

fn replica_of(context: &Context<'_>, job: JobId) -> Option<ReplicaId> {
    context.view.job(job).map(|job| named(job.spec.key))
}

/// Policies use one lane per device.
fn lane_of(device: DeviceId) -> LaneId {
    LaneId::new(device, 0)
}

fn is_guest(context: &Context<'_>, replica: &ReplicaInfo) -> bool {
    !context.view.is_home(replica.id.tenant, replica.device)
}

/// The devices that an iteration of `replica` takes.
fn ranks_of(context: &Context<'_>, replica: &ReplicaInfo) -> Vec<DeviceId> {
    match context.view.group(replica.device) {
        group @ [_, ..] if !is_guest(context, replica) => group.to_vec(),
        _ => vec![replica.device],
    }
}

/// An iteration of what runs already: nobody joins.
fn closed(context: &Context<'_>, guest: &ReplicaInfo) -> BatchLimits {
    BatchLimits {
        tokens: context.demand.token_budget(guest.id.tenant),
        sequences: guest.running,
        new_blocks: context.view.memory(guest.device).map_or(0, |memory| memory.kv().free_blocks()),
        keep_free: 0,
        not_due_before: Nanos::ZERO,
    }
}

impl Policy for WholeRequests {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        self.policy.residency(tenants, memory)
    }

    fn shares_slots(&self) -> bool {
        self.policy.shares_slots()
    }

    fn lends_ranks(&self) -> bool {
        self.policy.lends_ranks()
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        let mut plan = self.policy.on_event(context, event);
        let mut holders = self.holders(context);
        self.wanted.retain(|device| holders.get(device).is_some_and(|holder| is_guest(context, holder)));
        let asked = plan.actions.len();
        plan.actions.retain(|action| self.allows(context, &mut holders, action));
        let refused = plan.actions.len() < asked;
        self.go_on(context, &holders, &mut plan);
        if refused || !self.wanted.is_empty() {
            plan.wake(context.now + AGAIN);
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use slicescheduler_gmg::View;

    use super::*;
    use crate::replay::{ReplayOptions, Silent, policy, simulate};
    use crate::report::PolicySummary;
    use crate::scenario::{PolicySpec, Scenario};

    /// What was seen of guests.
    #[derive(Clone, Copy, Debug, Default)]
    struct Seen {
        /// Moments at which a guest was on a device.
        moments: u64,
        /// Of these, moments at which somebody else had requests or work there too.
        shared: u64,
        /// Guests' iterations that were cut.
        recalls: u64,
    }

    /// The same policy, watched from outside.
    struct Watched(Box<dyn Policy>, Arc<Mutex<Seen>>);

    fn look(context: &Context<'_>, event: &Event, seen: &mut Seen) {
        let guest_job = |view: View<'_>, job: JobId, device: DeviceId| {
            view.job(job).is_some_and(|job| !view.is_home(TenantId(job.spec.key.tenant), device))
        };
        if let Event::Recalled { job, lane, .. } = event {
            seen.recalls += u64::from(guest_job(context.view, *job, lane.device));
        }
        for device in context.devices() {
            let tenants = (0..context.view.tenants().len() as u32).map(TenantId);
            let there = tenants.filter_map(|tenant| context.demand.replica_on(tenant, device));
            let there: Vec<ReplicaInfo> = there.filter(|replica| replica.running > 0).collect();
            if there.iter().any(|replica| is_guest(context, replica)) {
                seen.moments += 1;
                seen.shared += u64::from(there.len() > 1);
            }
        }
    }

    impl Policy for Watched {
        fn name(&self) -> &'static str {
            self.0.name()
        }

        fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
            self.0.residency(tenants, memory)
        }

        fn shares_slots(&self) -> bool {
            self.0.shares_slots()
        }

        fn lends_ranks(&self) -> bool {
            self.0.lends_ranks()
        }

        fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
            look(context, event, &mut self.1.lock().unwrap());
            self.0.on_event(context, event)
        }
    }

    fn run(scenario: &Scenario, wrap: impl FnOnce(Box<dyn Policy>) -> Box<dyn Policy>) -> (PolicySummary, Seen) {
        let spec = PolicySpec { name: "slice-fill".to_owned(), options: BTreeMap::new() };
        let seen = Arc::new(Mutex::new(Seen::default()));
        let watched = Box::new(Watched(wrap(policy(&spec).unwrap()), seen.clone()));
        let record = simulate(scenario, watched, &ReplayOptions::default(), &mut Silent).unwrap();
        let seen = *seen.lock().unwrap();
        (record.summary, seen)
    }

    #[test]
    fn guests_keep_a_device_until_their_requests_have_ended() {
        let mut scenario = Scenario::embedded().unwrap();
        scenario.set_duration("20s").unwrap();
        let (by_operator, cut) = run(&scenario, |policy| policy);
        assert!(cut.shared > 0 && cut.recalls > 0, "{cut:?}");
        let (whole, kept) = run(&scenario, |policy| Box::new(WholeRequests::new(policy)));
        assert!(kept.moments > 1000, "{kept:?}");
        assert_eq!((kept.shared, kept.recalls), (0, 0));
        // Nothing hangs: whoever brought requests got answers.
        for tenant in whole.tenants.iter().filter(|tenant| tenant.arrived > 0) {
            assert!(tenant.ttft_ms.p50 > 0.0, "{tenant:?}");
        }
        assert!(whole.token_throughput > 0.25 * by_operator.token_throughput, "{}", whole.token_throughput);
        assert!(whole.sla_violation_rate > by_operator.sla_violation_rate, "owners wait for whole requests");
    }

    #[test]
    fn groups_get_their_devices_back_in_one_piece() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/scenarios/evaluate/tensor-parallel.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let (mut scenario, _) = Scenario::parse_or_generate(&text, &file, None).unwrap();
        scenario.set_duration("12s").unwrap();
        let (whole, kept) = run(&scenario, |policy| Box::new(WholeRequests::new(policy)));
        assert!(kept.moments > 0, "{kept:?}");
        assert_eq!((kept.shared, kept.recalls), (0, 0));
        assert!(whole.tenants.iter().all(|tenant| tenant.completed > 0), "{whole:?}");
    }
}
