//! What could run on a device now, and how long latency-sensitive work can wait.

use std::ops::Range;

use smallvec::SmallVec;

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, JobId, ReplicaId, TenantId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::{Action, BatchLimits, Fate, Plan, Question, Rank, Work};
use slicescheduler_gmg::tenant::LendingMode;
use slicescheduler_gmg::units::Nanos;

use crate::demand::ReplicaInfo;
use crate::explain::{Reason, What};
use crate::placing::{
    block_tokens, free_blocks_after, free_blocks_after_for, is_latency, is_open, lane_of, owner_replica, ranks_of,
    resume_actions, run_action, total_blocks, unlimited,
};
use crate::policy::Context;
use crate::slice_fill::agenda::tenants_on;
use crate::slice_fill::space::Need;
use crate::slice_fill::{SliceFill, Suspended};

/// Something that could run on a device now.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) work: CandidateWork,
    pub(super) tenant: TenantId,
    pub(super) rank: Rank,
    /// When its most urgent token is due.
    pub(super) due: Nanos,
    /// When its most urgent token has to come for the mean time per output token.
    pub(super) pace: Nanos,
    /// True if it should run at once: it computes a prompt that is not small, or its owner does not lend its slack.
    pub(super) at_once: bool,
}

impl Candidate {
    /// Whose turn it is: the least is first. Work that is not late goes by its due time, late work by its pace, so that
    /// nobody waits for others to make up for lost time; of what is as urgent, the owner's goes first.
    pub(super) fn turn(&self, now: Nanos) -> (Nanos, bool, Nanos) {
        let by_due = self.due >= now || self.pace == Nanos::MAX;
        let urgency = if by_due { self.due } else { self.pace };
        (urgency.max(now), self.rank != Rank::OwnerLatency, self.due)
    }
}

#[derive(Clone, Debug)]
pub(super) enum CandidateWork {
    Form { replica: ReplicaId, limits: BatchLimits },
    Resume { job: JobId, ops: Range<u32> },
}

pub(super) type Candidates = SmallVec<[Candidate; 4]>;

/// Prompts that share an iteration with answers are not cut below this: shorter ones hardly take less time.
const LEAST_PROMPT_TOKENS: u32 = 256;

/// True if an earlier action of the plan forms an iteration of `tenant`. What still waits after it
/// is not known yet, so no other replica of the tenant admits requests in the same plan.
pub(super) fn forms(plan: &Plan, tenant: TenantId) -> bool {
    plan.actions.iter().any(|action| matches!(action, Action::FormBatch { replica, .. } if replica.tenant == tenant))
}

/// True if nothing keeps a recalled job from going on: for that of a group, on any of its devices.
fn can_go_on(context: &Context<'_>, suspended: &Suspended, plan: &Plan) -> bool {
    let replica = context.demand.replica(suspended.replica);
    replica.is_none_or(|replica| is_open(context.view, plan, &replica, suspended.rank))
}

impl SliceFill {
    /// Latency-sensitive work on `device`: recalled jobs, the owner's next iteration, and the next
    /// iterations of sequences that overflowed to it earlier.
    pub(super) fn latency_candidates(
        &mut self,
        context: &mut Context<'_>,
        device: DeviceId,
        plan: &mut Plan,
    ) -> Candidates {
        let view = context.view;
        let mut candidates = Candidates::new();
        for suspended in &self.devices[device.index()].suspended {
            if suspended.rank >= Rank::GuestLatency && can_go_on(context, suspended, plan) {
                candidates.push(Candidate {
                    work: CandidateWork::Resume { job: suspended.job, ops: suspended.ops.clone() },
                    tenant: suspended.replica.tenant,
                    rank: suspended.rank,
                    due: suspended.due,
                    pace: Nanos::MAX,
                    at_once: true,
                });
            }
        }
        let owner = view.owner(device);
        for tenant in tenants_on(view, device) {
            if !is_latency(view, tenant) {
                continue;
            }
            let Some(replica) = context.demand.replica_on(tenant, device) else { continue };
            if replica.in_flight || !view.is_resident(replica.model, device) {
                continue;
            }
            if !is_open(view, plan, &replica, view.rank(tenant, device)) {
                continue;
            }
            let is_owner = owner == Some(tenant);
            let admits = is_owner || (!self.owes_owner(context, device) && self.should_take_over(context, &replica));
            if replica.running == 0 && !admits {
                continue;
            }
            let mut limits = unlimited(self.latency_blocks(context, &replica, is_owner, plan));
            let taken = forms(plan, tenant) && context.demand.waiting(tenant).is_some();
            if taken {
                self.look_again(context, device);
            }
            if !admits || taken {
                limits.sequences = replica.running;
            } else if !is_owner {
                limits.not_due_before = context.now;
            }
            if !is_owner {
                limits.tokens = self.prompt_tokens(context, &replica);
            }
            context.demand.peek(replica.id, limits, &mut self.scratch);
            if is_owner && self.is_short() {
                let wanted =
                    context.demand.waiting(tenant).map_or(0, |waiting| waiting.tokens / block_tokens(view, &replica));
                let ranks = ranks_of(view, &replica);
                let mut room = u32::MAX;
                for &rank in &ranks {
                    let total = u64::from(total_blocks(view, rank));
                    let wanted = (wanted + u64::from(self.reserve_blocks(context, rank))).min(total) as u32;
                    let here = free_blocks_after(context, rank, plan).saturating_sub(limits.new_blocks);
                    room = room.min(here.saturating_add(self.make_room(context, rank, wanted, plan)));
                }
                limits.new_blocks = limits.new_blocks.saturating_add(room);
                context.demand.peek(replica.id, limits, &mut self.scratch);
                let (mut recalled, short) = (false, self.is_short());
                for &rank in ranks.iter().filter(|_| short) {
                    recalled |= self.recall_guest(context, rank, plan);
                }
                if recalled {
                    continue;
                }
            }
            if is_owner {
                let lacks = self.is_short();
                for rank in ranks_of(view, &replica) {
                    self.devices[rank.index()].space.owner_lacks = lacks;
                    if lacks {
                        self.give_up_slot(context, rank, Need::Owner, plan);
                    }
                }
            }
            if self.is_short() {
                let what = What::Iteration { rank: view.rank(tenant, device) };
                context.say(device, tenant, what, Some(Reason::NoBlocks), None);
            }
            if self.scratch.is_empty() && self.scratch.preempted == 0 {
                continue;
            }
            limits.tokens = self.tokens_for_answers(context, device, &replica, limits);
            candidates.push(Candidate {
                work: CandidateWork::Form { replica: replica.id, limits },
                tenant,
                rank: view.rank(tenant, device),
                due: self.scratch.due,
                pace: self.scratch.pace,
                at_once: (!self.scratch.is_decode_only() && !self.is_small())
                    || !self.lends(context, tenant)
                    || self.is_tight(context, &replica),
            });
        }
        candidates
    }

    /// How many tokens an iteration with prompts and answers may have, so that the answers' tokens keep their
    /// due times; those that have no slack left come at their pace. The latest plan is made anew if it has more.
    fn tokens_for_answers(
        &mut self,
        context: &mut Context<'_>,
        device: DeviceId,
        replica: &ReplicaInfo,
        limits: BatchLimits,
    ) -> u32 {
        let due = self.scratch.answers_due;
        let slo = context.view.tenant(replica.id.tenant).and_then(|tenant| tenant.slo);
        let Some(slo) = slo.filter(|_| self.scratch.prefills > 0 && due < Nanos::MAX) else { return limits.tokens };
        if self.scratch.tokens <= LEAST_PROMPT_TOKENS || !context.budget.take() {
            return limits.tokens;
        }
        let spec = JobSpec::of(replica.model).bind(self.scratch.binding());
        let rank = context.view.rank(replica.id.tenant, device);
        let action = run_action(context.view, replica, spec, rank);
        let Some(finish) = self.finish_of_last(context, &[action]) else { return limits.tokens };
        let reserve = slo.ttft.scale(self.options.reserve_percent, 100);
        let most = (due - reserve - context.now).max(slo.tpot.scale(self.options.pace_percent, 100));
        if finish <= context.now + most {
            return limits.tokens;
        }
        let fitting = u64::from(self.scratch.tokens) * most.get() / (finish - context.now).get();
        let tokens = (fitting as u32).max(LEAST_PROMPT_TOKENS);
        context.demand.peek(replica.id, BatchLimits { tokens, ..limits }, &mut self.scratch);
        tokens
    }

    /// True if the prompts of the latest plan begin with it and are so small that others may join them.
    fn is_small(&self) -> bool {
        self.scratch.prefills == self.scratch.admitted && self.scratch.tokens <= self.options.small_prompts
    }

    /// True if the latest plan is smaller than it could be for want of blocks.
    fn is_short(&self) -> bool {
        self.scratch.short_of_blocks || self.scratch.preempted > 0
    }

    /// Takes the lane from a guest that holds blocks which the owner needs: they are free at the
    /// next operator boundary, and the device is filled again then. False if no guest is there.
    fn recall_guest(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) -> bool {
        let Some(lane) = context.view.lane(lane_of(device)) else { return false };
        let Some(guest) = lane.queue().iter().find(|entry| entry.rank == Rank::GuestBestEffort) else { return false };
        plan.actions.push(Action::Recall { job: guest.job, fate: Fate::Keep });
        true
    }

    /// True if requests of the replica's tenant wait for memory that its own sequences hold: pacing
    /// answers would make them hold it longer.
    fn is_tight(&self, context: &Context<'_>, replica: &ReplicaInfo) -> bool {
        let kv = context.view.memory(replica.device).map(|memory| memory.kv());
        let half = kv.is_some_and(|kv| kv.used_by(replica.id.tenant) > kv.total() / 2);
        let small = u64::from(self.options.small_prompts);
        half || context.demand.waiting(replica.id.tenant).is_some_and(|waiting| waiting.tokens > small)
    }

    /// True if best-effort work may delay `tenant` within its due times.
    pub(super) fn lends(&self, context: &Context<'_>, tenant: TenantId) -> bool {
        let own = context.view.tenant(tenant).map(|tenant| tenant.lending);
        self.options.lending.or(own) == Some(LendingMode::SloSlack)
    }

    /// Best-effort work on `device`: a recalled job first, then the owner's, then a guest's.
    pub(super) fn best_effort_candidate(
        &mut self,
        context: &mut Context<'_>,
        device: DeviceId,
        plan: &mut Plan,
    ) -> Option<Candidate> {
        let view = context.view;
        let mut suspended = self.devices[device.index()].suspended.iter();
        let suspended = suspended.find(|s| s.rank < Rank::GuestLatency && can_go_on(context, s, plan));
        if let Some(suspended) = suspended {
            return Some(Candidate {
                work: CandidateWork::Resume { job: suspended.job, ops: suspended.ops.clone() },
                tenant: suspended.replica.tenant,
                rank: suspended.rank,
                due: Nanos::MAX,
                pace: Nanos::MAX,
                at_once: false,
            });
        }
        let owner = view.owner(device);
        let owner_first = owner.into_iter().chain(self.guests_in_turn(context, device));
        for tenant in owner_first {
            if is_latency(view, tenant) {
                continue;
            }
            let Some(replica) = context.demand.replica_on(tenant, device) else { continue };
            if replica.in_flight || !view.is_resident(replica.model, device) {
                continue;
            }
            if !is_open(view, plan, &replica, view.rank(tenant, device)) {
                continue;
            }
            let mut limits = self.best_effort_limits(context, &replica, plan);
            context.demand.peek(replica.id, limits, &mut self.scratch);
            if self.scratch.is_empty()
                && !self.is_short()
                && replica.running == 0
                && context.demand.waiting(tenant).is_some()
            {
                // A prompt that is not cut may have more tokens.
                limits.tokens = u32::MAX;
                context.demand.peek(replica.id, limits, &mut self.scratch);
            }
            if self.is_short() && self.give_up_slot(context, device, Need::BestEffort, plan) {
                context.demand.peek(replica.id, limits, &mut self.scratch);
            }
            if self.scratch.preempted > 0 && self.guests_hold_blocks(context, &replica) {
                continue;
            }
            if self.is_short() {
                let what = What::Iteration { rank: view.rank(tenant, device) };
                context.say(device, tenant, what, Some(Reason::NoBlocks), None);
            }
            if !self.scratch.is_empty() {
                return Some(Candidate {
                    work: CandidateWork::Form { replica: replica.id, limits },
                    tenant,
                    rank: view.rank(tenant, device),
                    due: Nanos::MAX,
                    pace: Nanos::MAX,
                    at_once: false,
                });
            }
        }
        None
    }

    /// True if sequences of others hold blocks on the device of its owner's `replica`: they end soon,
    /// so the owner rather waits for them than to lose and recompute a sequence of its own.
    fn guests_hold_blocks(&self, context: &Context<'_>, replica: &ReplicaInfo) -> bool {
        let tenant = replica.id.tenant;
        let kv = context.view.memory(replica.device).map(|memory| memory.kv());
        context.view.owner(replica.device) == Some(tenant) && kv.is_some_and(|kv| kv.used_blocks() > kv.used_by(tenant))
    }

    fn best_effort_limits(&self, context: &Context<'_>, replica: &ReplicaInfo, plan: &Plan) -> BatchLimits {
        let kept = self.kept_blocks(context, replica.device, replica.id.tenant);
        let free = free_blocks_after_for(context, replica, plan).saturating_sub(kept);
        let reserve = self.reserve_blocks(context, replica.device);
        let (new_blocks, keep_free) = match context.view.owner(replica.device) == Some(replica.id.tenant) {
            true => (free, reserve),
            false if self.devices[replica.device.index()].space.owner_lacks => (0, reserve - reserve / 2),
            false => (free.saturating_sub(reserve / 2), reserve - reserve / 2),
        };
        let tokens = self.best_effort_tokens(context, replica, new_blocks.saturating_sub(keep_free));
        BatchLimits { tokens, keep_free, ..unlimited(new_blocks) }
    }

    /// Blocks that latency-sensitive work may take. A guest leaves some for the owner's sequences to
    /// grow into.
    pub(super) fn latency_blocks(
        &self,
        context: &Context<'_>,
        replica: &ReplicaInfo,
        is_owner: bool,
        plan: &Plan,
    ) -> u32 {
        let free = free_blocks_after_for(context, replica, plan);
        if is_owner {
            return free;
        }
        let grows = owner_replica(context.view, context.demand, replica.device).map_or(0, |owner| 2 * owner.running);
        free.saturating_sub(grows).saturating_sub(self.kept_blocks(context, replica.device, replica.id.tenant))
    }

    /// How long the paced work of `device` can wait while `guest` runs; [`None`] if it cannot, or if
    /// the forecast finds that a due time or the memory would be violated.
    pub(super) fn latest_start(
        &mut self,
        context: &mut Context<'_>,
        device: DeviceId,
        paced: &[Candidate],
        guest: &Candidate,
    ) -> Option<Nanos> {
        if !context.budget.take() {
            return None;
        }
        let mut actions: SmallVec<[Action; 4]> = SmallVec::new();
        for candidate in paced {
            self.push_actions(context, candidate, device, &mut actions)?;
        }
        let due = paced.iter().map(|candidate| candidate.due).min()?;
        let now = context.now;
        let alone = self.finish_of_last(context, &actions)?;
        let end = paced.iter().filter_map(|candidate| self.latest_end(context, candidate)).min()?;
        let latest = end - (alone - now);
        if latest < now + self.options.min_slice || !context.budget.take() {
            return None;
        }
        for action in &mut actions {
            match action {
                Action::Run { work: Work::New(spec), .. } => spec.release = latest,
                Action::RunGang { members, .. } => members.iter_mut().for_each(|(spec, _)| spec.release = latest),
                _ => {}
            }
        }
        let mut all: SmallVec<[Action; 4]> = SmallVec::new();
        self.push_actions(context, guest, device, &mut all)?;
        all.append(&mut actions);
        let finish = self.finish_of_last(context, &all)?;
        (finish <= due && self.forecast.first_shortage().is_none()).then_some(latest)
    }

    /// When work that can wait has to start at the latest, if that is not about now.
    pub(super) fn latest_alone(
        &mut self,
        context: &mut Context<'_>,
        device: DeviceId,
        candidate: &Candidate,
    ) -> Option<Nanos> {
        if !context.budget.take() {
            return None;
        }
        let mut actions: SmallVec<[Action; 4]> = SmallVec::new();
        self.push_actions(context, candidate, device, &mut actions)?;
        let alone = self.finish_of_last(context, &actions)?;
        let latest = self.latest_end(context, candidate)? - (alone - context.now);
        (latest >= context.now + self.options.min_slice).then_some(latest)
    }

    /// When a paced iteration should end: by the pace of its answers, with the reserve of slack
    /// untouched, and before a small prompt has waited too long.
    fn latest_end(&self, context: &Context<'_>, candidate: &Candidate) -> Option<Nanos> {
        let CandidateWork::Form { replica, .. } = candidate.work else { return None };
        let slo = context.view.tenant(replica.tenant)?.slo?;
        let reserve = slo.ttft.scale(self.options.reserve_percent, 100);
        let ahead = slo.tpot.scale(100 - self.options.pace_percent.min(100), 100);
        let answers = (candidate.due - reserve).min(candidate.pace - ahead);
        let patience = slo.ttft.scale(100 - self.options.prompt_wait_percent.min(100), 100);
        let prompts = context.demand.waiting(replica.tenant).map(|waiting| waiting.first_due - patience);
        Some(prompts.map_or(answers, |prompts| answers.min(prompts)))
    }

    /// Appends the candidate as actions that the forecast understands: a job with the dims of the
    /// iteration, without its rows.
    fn push_actions(
        &mut self,
        context: &Context<'_>,
        candidate: &Candidate,
        device: DeviceId,
        actions: &mut SmallVec<[Action; 4]>,
    ) -> Option<()> {
        match &candidate.work {
            CandidateWork::Resume { job, ops } => {
                actions.extend(resume_actions(context.view, *job, ops, device, candidate.rank));
            }
            CandidateWork::Form { replica, limits } => {
                context.demand.peek(*replica, *limits, &mut self.scratch);
                let replica = context.demand.replica(*replica)?;
                let spec = JobSpec::of(replica.model).bind(self.scratch.binding());
                actions.push(run_action(context.view, &replica, spec, candidate.rank));
            }
        }
        Some(())
    }

    /// When the last of `actions` would finish.
    pub(super) fn finish_of_last(&mut self, context: &mut Context<'_>, actions: &[Action]) -> Option<Nanos> {
        self.questions += 1;
        let horizon = context.now + Nanos::secs(2);
        let question = Question { actions, continuations: &mut [], horizon };
        context.what_if.what_if(context.now, question, &mut self.forecast).ok()?;
        self.forecast.finish_of_action(actions.len() - 1)
    }
}
