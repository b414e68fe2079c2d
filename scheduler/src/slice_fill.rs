//! Filling slices: single operators of other tenants in the gaps of a device.
//!
//! *Right of way* on a lane is the order of [`Rank`]. Guests are recalled at an operator boundary
//! by the lane itself when work of a higher rank is queued behind them, so an arrival never waits
//! for a round trip to the planner, and a guest that is cut loses nothing: its activations stay and
//! it goes on later.
//!
//! *Time.* The prompt of a latency-sensitive request is computed at once, unless it is so small that it pays
//! to compute it together with the next ones. Its answer is paced: as
//! long as every token keeps its due time, best-effort work may go first (lending mode
//! [`SloSlack`](LendingMode::SloSlack)). The latest start of the owner's next iteration is
//! `due - reserve - forecast duration`; guests run until then, and are recalled if they are late.
//! In mode [`Strict`](LendingMode::Strict) guests run only while the owner has nothing to run.
//!
//! *Space.* Guests leave a share of the KV blocks of a device free for the growth of its owner, and
//! give back the youngest sequences when it shrinks.
//!
//! *Overflow.* When the forecast says that a tenant's waiting requests would miss their due time
//! on its own devices, a replica on another device takes some of them, if the forecast says that
//! nobody there misses one.

mod agenda;
mod candidates;
mod chunk;
mod fetch;
mod home;
mod overflow;
mod residency;
mod shares;
mod space;

use std::ops::Range;

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, JobId, ReplicaId, TenantId};
use slicescheduler_gmg::plan::{Action, Event, Forecast, Plan, Rank};
use slicescheduler_gmg::tenant::{Class, LendingMode};
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::batching::Iteration;
use crate::explain::{Reason, What};
use crate::placing::{
    free_blocks_after, group_of, is_free, is_latency, lane_of, leader_of, owner_replica, promised_by, recalled,
    reclaim, resume_actions, takes, total_blocks, touched,
};
use crate::policy::{Context, Policy, Residency, TenantShape};
use crate::slice_fill::agenda::{Agenda, Places, tenants_on};
use crate::slice_fill::candidates::{Candidate, CandidateWork, Candidates};
use crate::slice_fill::chunk::Chunks;
use crate::slice_fill::home::Away;
use crate::slice_fill::shares::{Account, OwnerRate};
use crate::slice_fill::space::Space;

pub use crate::slice_fill::shares::LendingAccount;

/// Settings of [`SliceFill`]. One setting serves every workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceFillOptions {
    /// Slack that is never lent: room for prompts that arrive and for forecasts that are wrong, as
    /// a share of the time to first token, in percent.
    pub reserve_percent: u64,
    /// How long before they are due, as a share of the time to first token in percent, waiting requests that
    /// their own devices would only just finish are given to others'.
    pub overflow_margin_percent: u64,
    /// The pace of a paced answer, as a share of its time per output token, in percent.
    pub pace_percent: u64,
    /// The shortest slice worth starting in.
    pub min_slice: Nanos,
    /// Tokens of a guest's iteration on a device whose owner is [strict](LendingMode::Strict), so that its
    /// longest operator stays near the window that cannot be recalled (300 us on an H100 for an 8B model).
    /// Elsewhere the tokens of prompts in best-effort iterations until the tenant's lengths are known.
    pub guest_tokens: u32,
    /// Prompts that wait for a device may be computed together with those that arrive a little later, while
    /// all of them are no more tokens than this: they hardly take longer than one of them.
    pub small_prompts: u32,
    /// How long they may wait for others, as a share of the time to first token, in percent.
    pub prompt_wait_percent: u64,
    /// Share of a device's KV blocks that guests leave to the owner, in percent.
    pub owner_blocks_percent: u32,
    /// Share of the KV blocks of a best-effort owner's device that it leaves to latency-sensitive
    /// guests, in percent.
    pub guest_blocks_percent: u32,
    /// Most of the KV blocks of a latency-sensitive owner's device, in percent, that its prefix cache keeps from
    /// guests: what it has beyond that, or has not filled yet, guests may take.
    pub owner_cache_percent: u32,
    /// Whether latency-sensitive tenants may overflow to other devices.
    pub overflow: bool,
    /// How far a tenant's oldest waiting request may be behind its due time for the tenant to be in a
    /// burst rather than saturated, in times to first token.
    pub burst_ttfts: u64,
    /// Time on others' lanes that a latency-sensitive tenant may borrow at once, per device of its
    /// own. Overflow is for bursts; a tenant that is saturated has to wait at home.
    pub borrow_burst: Nanos,
    /// Time that it may borrow in the long run, as a share of the time of its own devices, in
    /// percent.
    pub borrow_percent: u64,
    /// How long a device keeps the weights that it fetched for a burst, at least.
    pub guest_stay: Nanos,
    /// The least part of the time of its devices that a best-effort owner with work has over ten
    /// seconds, in percent: others take no requests there while it has less.
    pub owner_rate_percent: u64,
    /// How slices are lent, whatever the tenants say.
    pub lending: Option<LendingMode>,
}

impl Default for SliceFillOptions {
    fn default() -> Self {
        Self {
            reserve_percent: 25,
            overflow_margin_percent: 50,
            pace_percent: 95,
            min_slice: Nanos::ms(1),
            guest_tokens: 512,
            small_prompts: 512,
            prompt_wait_percent: 12,
            owner_blocks_percent: 8,
            guest_blocks_percent: 15,
            owner_cache_percent: 25,
            overflow: true,
            burst_ttfts: 3,
            borrow_burst: Nanos::secs(10),
            borrow_percent: 30,
            guest_stay: Nanos::secs(2),
            owner_rate_percent: 10,
            lending: None,
        }
    }
}

/// What was left out of a plan because an earlier action may change it is looked at again after this.
const REPLAN: Nanos = Nanos::us(1);

/// Blocks that a sequence may grow by until guests have given way.
const GROWTH_BLOCKS: u32 = 4;

/// Blocks that prompts of one iteration need, with room for a second.
const PROMPT_BLOCKS: u32 = 256;

/// What a device remembers between events.
#[derive(Clone, Debug, Default)]
struct DeviceState {
    /// Jobs that were recalled here and can go on.
    suspended: Vec<Suspended>,
    /// When the weights of its latest guest were asked for.
    guest_since: Nanos,
    /// Its part for weights.
    space: Space,
    /// What its best-effort owner had.
    owner_rate: OwnerRate,
}

#[derive(Clone, Debug)]
struct Suspended {
    job: JobId,
    replica: ReplicaId,
    ops: Range<u32>,
    rank: Rank,
    due: Nanos,
}

/// The policy of this project; see the module's text.
#[derive(Debug, Default)]
pub struct SliceFill {
    options: SliceFillOptions,
    devices: Vec<DeviceState>,
    scratch: Iteration,
    forecast: Forecast,
    questions: u64,
    accounts: Vec<Account>,
    /// How large best-effort iterations are.
    chunks: Chunks,
    /// By tenant.
    shares: Vec<LendingAccount>,
    /// What a tenant that takes its turn has at least.
    least_turn: Nanos,
    places: Places,
    away: Away,
    /// When work that lets guests go first has to start at the latest.
    starts: Agenda,
    /// When slots for weights may change.
    slots: Agenda,
    /// Devices of which a plan left something open.
    again: Agenda,
    /// When the caller wakes this policy next, as far as its plans asked for it.
    wake: Option<Nanos>,
    /// The device with which the next look for a slot begins.
    cursor: u32,
    /// The device with which the next look at those with an empty lane begins.
    look: DeviceId,
}

impl SliceFill {
    /// A policy with these settings.
    pub fn new(options: SliceFillOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// What-if questions asked so far.
    pub fn questions(&self) -> u64 {
        self.questions
    }

    /// Blocks of a device that best-effort work leaves free. On the device of a latency-sensitive
    /// owner: its share, and never less than what its sequences may grow by and an iteration of new
    /// prompts needs before guests have given way. On that of a best-effort owner: room for
    /// latency-sensitive guests, if any have their weights there.
    fn reserve_blocks(&self, context: &Context<'_>, device: DeviceId) -> u32 {
        let total = total_blocks(context.view, device);
        let share = |percent: u32| (u64::from(total) * u64::from(percent) / 100) as u32;
        match owner_replica(context.view, context.demand, device) {
            Some(owner) if is_latency(context.view, owner.id.tenant) => {
                let growth = owner.running.saturating_mul(GROWTH_BLOCKS).saturating_add(PROMPT_BLOCKS);
                share(self.options.owner_blocks_percent).max(growth).min(total)
            }
            _ if !self.options.overflow => 0,
            _ if !tenants_on(context.view, device).iter().any(|&tenant| is_latency(context.view, tenant)) => 0,
            _ => share(self.options.guest_blocks_percent),
        }
    }

    /// Free blocks of a device that `tenant` leaves alone, because its latency-sensitive owner finds the beginnings of
    /// prompts there. The pool hands them out last, so what is taken otherwise is something else.
    fn kept_blocks(&self, context: &Context<'_>, device: DeviceId, tenant: TenantId) -> u32 {
        let owner = context.view.owner(device).filter(|&owner| owner != tenant && is_latency(context.view, owner));
        let Some((owner, memory)) = owner.zip(context.view.memory(device)) else { return 0 };
        let most = u64::from(memory.kv().total()) * u64::from(self.options.owner_cache_percent) / 100;
        memory.kv().cached_by(owner).min(most as u32)
    }

    /// Keeps the table of recalled jobs and the accounts true.
    fn note(&mut self, context: &Context<'_>, event: &Event) {
        match event {
            Event::Finished { job, lane, started, at, ended, .. } => {
                self.charge(context, *job, lane.device, *at - *started);
                self.learn_lengths(context, ended);
            }
            Event::Recalled { job, lane, end, started, at, .. } => {
                self.charge(context, *job, lane.device, *at - *started);
                let Some((job, device)) = recalled(context.view, *job, *lane) else { return };
                let Some(found) = context.view.job(job) else { return };
                let Some(tenant) = context.view.model(found.spec.model).map(|model| model.tenant()) else { return };
                let replica = ReplicaId { tenant, index: found.spec.key.replica };
                let due = found
                    .spec
                    .rows
                    .iter()
                    .filter_map(|row| {
                        let request = context.view.request(row.request)?;
                        let index = row.position.saturating_add(row.tokens).saturating_sub(request.prompt);
                        Some(request.due(index))
                    })
                    .min();
                let entry = Suspended {
                    job,
                    replica,
                    ops: found.progress()..*end,
                    rank: context.view.rank(tenant, device),
                    due: due.unwrap_or(Nanos::MAX),
                };
                let Some(state) = self.devices.get_mut(device.index()).filter(|_| !entry.ops.is_empty()) else {
                    return;
                };
                state.suspended.retain(|other| other.job != job);
                state.suspended.push(entry);
            }
            Event::DeviceLost { device, .. } => {
                if let Some(state) = self.devices.get_mut(device.index()) {
                    *state = DeviceState::default();
                }
                if let Some(leader) = self.devices.get_mut(leader_of(context.view, *device).index()) {
                    leader.suspended.retain(|suspended| context.view.job(suspended.job).is_some());
                }
                self.starts.set(*device, None);
                self.slots.set(*device, None);
            }
            _ => {}
        }
    }

    /// Decides what the devices of the group of `device` run next, the first of them before the others.
    fn fill_group(&mut self, context: &mut Context<'_>, device: DeviceId, plan: &mut Plan) {
        for rank in group_of(context.view, device) {
            self.fill(context, rank, plan);
        }
    }

    /// Decides what the device runs next, if its lane is free.
    fn fill(&mut self, context: &mut Context<'_>, device: DeviceId, plan: &mut Plan) {
        if !is_free(context.view, device) || takes(context.view, plan, lane_of(device)) {
            return;
        }
        self.starts.set(device, None);
        self.places.idle.insert(device);
        self.take_slot_back(context, device, plan);
        let wake = self.devices[device.index()].space.wake().filter(|&wake| wake > context.now);
        self.slots.set(device, wake);
        self.keep_reserve(context, device, plan);
        let owner = context.view.owner(device).and_then(|owner| context.demand.replica_on(owner, device));
        if owner.is_some_and(|owner| self.bring_home(context, &owner, plan)) {
            return;
        }
        let latency = self.latency_candidates(context, device, plan);
        let best_effort = self.best_effort_candidate(context, device, plan);
        if best_effort.is_some() {
            self.devices[device.index()].space.out_of_work = None;
        }
        let strict = context.view.owner(device).is_some_and(|owner| !self.lends(context, owner));
        self.look_at_owner(context, device);
        let owed = best_effort.as_ref().filter(|candidate| candidate.rank == Rank::OwnerBestEffort);
        if let Some(owed) = owed.filter(|_| self.owes_owner(context, device)) {
            return self.start_first(context, device, owed, &latency, plan);
        }
        let now = context.now;
        let turn = |candidate: &&Candidate| (strict && candidate.rank != Rank::OwnerLatency, candidate.turn(now));
        let at_once = latency.iter().filter(|candidate| candidate.at_once).min_by_key(turn);
        let paced: Candidates = latency.iter().filter(|candidate| !candidate.at_once).cloned().collect();
        let others: Candidates = latency.iter().chain(&best_effort).cloned().collect();
        match (at_once, paced.iter().min_by_key(turn), best_effort) {
            (None, None, None) => self.invite(context, device, plan),
            (None, Some(paced), None) => self.start_first(context, device, paced, &others, plan),
            (Some(first), None, _) => self.start_first(context, device, first, &others, plan),
            (None, None, Some(guest)) => self.start_first(context, device, &guest, &others, plan),
            (Some(first), Some(next), _) if first.rank == Rank::OwnerLatency || next.rank != Rank::OwnerLatency => {
                self.start_first(context, device, first, &others, plan);
            }
            (Some(guest), Some(next), _) => self.start_before(context, device, guest, &paced, next, plan),
            (None, Some(next), Some(guest)) => self.start_before(context, device, &guest, &paced, next, plan),
        }
    }

    /// Starts the first of several candidates, and says so.
    fn start_first(
        &mut self,
        context: &mut Context<'_>,
        device: DeviceId,
        first: &Candidate,
        others: &[Candidate],
        plan: &mut Plan,
    ) {
        if context.explain.is_some() {
            let mut say = |candidate: &Candidate, rejected| {
                let what = What::Iteration { rank: candidate.rank };
                context.say(device, candidate.tenant, what, rejected, None);
            };
            say(first, None);
            let behind = Some(Reason::Behind(first.tenant));
            others.iter().filter(|other| other.tenant != first.tenant).for_each(|other| say(other, behind));
        }
        self.start(context, device, first, plan);
    }

    /// Starts `guest` if paced work can wait for it, or else the most urgent paced work.
    fn start_before(
        &mut self,
        context: &mut Context<'_>,
        device: DeviceId,
        guest: &Candidate,
        paced: &[Candidate],
        next: &Candidate,
        plan: &mut Plan,
    ) {
        match self.latest_start(context, device, paced, guest) {
            Some(latest) => {
                self.starts.set(device, Some(latest));
                self.start_first(context, device, guest, paced, plan);
            }
            None => {
                let what = What::Iteration { rank: guest.rank };
                let finish = self.forecast.finish_of_action(0);
                context.say(device, guest.tenant, what, Some(Reason::NoSlack), finish);
                self.start_first(context, device, next, paced, plan);
            }
        }
    }

    fn start(&mut self, context: &Context<'_>, device: DeviceId, candidate: &Candidate, plan: &mut Plan) {
        let lane = lane_of(device);
        match candidate.work.clone() {
            CandidateWork::Form { replica, limits } => {
                if candidate.rank < Rank::GuestLatency {
                    self.took_turn(candidate.tenant);
                }
                plan.actions.push(Action::FormBatch { replica, lane, limits, rank: candidate.rank });
            }
            CandidateWork::Resume { job, ops } => {
                self.devices[device.index()].suspended.retain(|suspended| suspended.job != job);
                if context.view.job(job).is_some() {
                    plan.actions.extend(resume_actions(context.view, job, &ops, device, candidate.rank));
                }
            }
        }
    }

    /// Guests give back blocks when they left the owner too few: a latency-sensitive one for what
    /// may arrive, a best-effort one for its sequences to grow.
    fn keep_reserve(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) {
        let Some(owner) = owner_replica(context.view, context.demand, device) else { return };
        let free = free_blocks_after(context, device, plan);
        let (least, reserve) = if is_latency(context.view, owner.id.tenant) {
            let reserve = self.reserve_blocks(context, device);
            (reserve - reserve / 4, reserve)
        } else {
            (owner.running, 2 * owner.running)
        };
        if free < least {
            self.make_room(context, device, reserve - free, plan);
        }
    }

    /// Lets guests give back `wanted` blocks of a device: best-effort ones that have nothing under way,
    /// then those whose recalled jobs can be given up, and where no best-effort guest is left to
    /// recall, latency-sensitive ones. Returns the blocks that they give.
    fn make_room(&mut self, context: &Context<'_>, device: DeviceId, wanted: u32, plan: &mut Plan) -> u32 {
        let mut given = reclaim(context, device, Class::BestEffort, wanted, plan);
        let owner = context.view.owner(device);
        self.devices[device.index()].suspended.retain(|suspended| {
            let best_effort_guest = suspended.rank == Rank::GuestBestEffort && Some(suspended.replica.tenant) != owner;
            if given >= wanted || !best_effort_guest {
                return true;
            }
            let tenant = suspended.replica.tenant;
            let held = context.view.memory(device).map_or(0, |memory| memory.kv().used_by(tenant));
            let blocks = held.saturating_sub(promised_by(plan, suspended.replica)).min(wanted - given);
            plan.actions.push(Action::Cancel { job: suspended.job });
            plan.actions.push(Action::EvictSequences { replica: suspended.replica, blocks });
            given += blocks;
            false
        });
        if given < wanted && !runs_guest(context, device) {
            given += reclaim(context, device, Class::LatencySensitive, wanted - given, plan);
        }
        given
    }

    /// Work whose latest start has come takes the lane from its guest.
    fn call_in(&mut self, context: &mut Context<'_>, plan: &mut Plan) {
        while let Some(device) = self.starts.pop(context.now) {
            let lane = context.view.lane(lane_of(device));
            if lane.is_none_or(|lane| lane.queue().iter().any(|entry| entry.rank >= Rank::GuestLatency)) {
                continue;
            }
            let latency = self.latency_candidates(context, device, plan);
            let now = context.now;
            if let Some(first) = latency.iter().min_by_key(|candidate| candidate.turn(now)).cloned() {
                self.start(context, device, &first, plan);
            }
        }
    }

    /// What is left open on a device because of an earlier action of the plan is looked at again.
    fn look_again(&mut self, context: &Context<'_>, device: DeviceId) {
        self.again.set(device, Some(context.now + REPLAN));
    }

    /// Fills the devices whose time has come; all of them if it is not the time that a plan asked for, since
    /// then somebody else wants to know.
    fn on_timer(&mut self, context: &mut Context<'_>, plan: &mut Plan) {
        let asked = self.wake.take_if(|wake| *wake <= context.now).is_some();
        let mut due: Vec<DeviceId> = std::iter::from_fn(|| self.again.pop(context.now)).collect();
        due.extend(std::iter::from_fn(|| self.slots.pop(context.now)));
        if !asked {
            due.extend(context.devices());
        }
        due.sort_unstable();
        due.dedup();
        due.into_iter().for_each(|device| self.fill(context, device, plan));
    }
}

/// True if a best-effort guest is on the device's lane.
fn runs_guest(context: &Context<'_>, device: DeviceId) -> bool {
    let lane = context.view.lane(lane_of(device));
    lane.is_some_and(|lane| lane.queue().iter().any(|entry| entry.rank == Rank::GuestBestEffort))
}

impl Policy for SliceFill {
    fn name(&self) -> &'static str {
        "slice-fill"
    }

    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        residency::plan(tenants, memory, self.options.overflow)
    }

    fn shares_slots(&self) -> bool {
        true
    }

    fn lends_ranks(&self) -> bool {
        true
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        let mut plan = context.plan();
        self.devices.resize_with(context.view.cluster().devices().len(), DeviceState::default);
        self.places.learn(context.view);
        self.note(context, event);
        self.call_in(context, &mut plan);
        self.recalled(context, event, &mut plan);
        match event {
            Event::Arrived { request, .. } => self.on_arrival(context, *request, &mut plan),
            Event::WeightsLoaded { model, device, .. } => {
                let tenant = context.view.model(*model).map(|model| model.tenant());
                if let Some(tenant) = tenant {
                    self.places.came(context.view, tenant, *device);
                }
                self.fill_group(context, *device, &mut plan);
                if let Some(tenant) = tenant.filter(|&tenant| is_latency(context.view, tenant)) {
                    self.overflow(context, tenant, &mut plan);
                }
            }
            Event::Timer { .. } => self.on_timer(context, &mut plan),
            Event::Started { .. } | Event::WeightsProgress { .. } => {}
            _ => match touched(context.view, event) {
                Some(device) => {
                    self.fill_group(context, device, &mut plan);
                }
                None => {
                    for device in context.devices() {
                        self.fill(context, device, &mut plan);
                    }
                }
            },
        }
        for first in [&self.starts, &self.slots, &self.again].into_iter().filter_map(Agenda::first) {
            plan.wake(first);
        }
        let wake = plan.wake_at.map(|wake| wake.max(context.now));
        self.wake = wake.into_iter().chain(self.wake).min();
        plan
    }
}
