//! What a tenant could run next on a device.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::plan::{Action, BatchLimits, Plan};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::Nanos;

use crate::baseline::room::Room;
use crate::batching::Iteration;
use crate::demand::ReplicaInfo;
use crate::placing::{block_tokens, form, is_latency, is_open, ranks_of};
use crate::policy::Context;

/// What was left out of a plan because an earlier action may change it is looked at again after this.
const REPLAN: Nanos = Nanos::us(1);

/// The next iteration of a replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) replica: ReplicaInfo,
    pub(super) limits: BatchLimits,
    /// When its most urgent token is due; [`Nanos::MAX`] without due times.
    pub(super) due: Nanos,
    pub(super) binding: Binding,
    /// Sequences that it takes from the queue.
    pub(super) admitted: u32,
    /// True if it computes some of a prompt.
    pub(super) prefills: bool,
    /// True if it only gives up sequences, since there are no blocks for them.
    only_preempts: bool,
}

impl Candidate {
    pub(super) fn tenant(&self) -> TenantId {
        self.replica.id.tenant
    }

    /// Places the iteration on the device.
    pub(super) fn start(&self, context: &Context<'_>, plan: &mut Plan) {
        form(context.view, &self.replica, self.limits, plan);
        if self.only_preempts {
            plan.wake(context.now + REPLAN);
        }
    }
}

/// True if an earlier action of the plan forms an iteration of `tenant`: what still waits after it is not
/// known yet.
fn forms(plan: &Plan, tenant: TenantId) -> bool {
    plan.actions.iter().any(|action| matches!(action, Action::FormBatch { replica, .. } if replica.tenant == tenant))
}

/// The replica of `tenant` on `device`, if it could run something there now.
pub(super) fn ready_replica(context: &Context<'_>, tenant: TenantId, device: DeviceId) -> Option<ReplicaInfo> {
    let replica = context.demand.replica_on(tenant, device)?;
    (!replica.in_flight && context.view.is_resident(replica.model, device)).then_some(replica)
}

/// The next iteration of `tenant` on `device` under `limits`; [`None`] if there is none.
pub(super) fn candidate(
    context: &Context<'_>,
    tenant: TenantId,
    device: DeviceId,
    mut limits: BatchLimits,
    plan: &mut Plan,
    scratch: &mut Iteration,
) -> Option<Candidate> {
    let replica = ready_replica(context, tenant, device)?;
    if !is_open(context.view, plan, &replica, context.view.rank(tenant, device)) {
        *scratch = Iteration::default();
        return None;
    }
    if forms(plan, tenant) && context.demand.waiting(tenant).is_some() {
        limits.sequences = limits.sequences.min(replica.running);
        plan.wake(context.now + REPLAN);
    }
    context.demand.peek(replica.id, limits, scratch);
    if scratch.is_empty() && scratch.preempted == 0 {
        return None;
    }
    Some(Candidate {
        replica,
        limits,
        due: scratch.due,
        binding: scratch.binding(),
        admitted: scratch.admitted,
        prefills: scratch.prefills > 0,
        only_preempts: scratch.is_empty(),
    })
}

/// As [`candidate`], with as many blocks as the class of the tenant may take: best-effort work leaves the
/// reserve, and latency-sensitive work that is short of blocks has those of best-effort sequences.
/// At most `sequences` run in it.
pub(super) fn candidate_in(
    context: &Context<'_>,
    tenant: TenantId,
    device: DeviceId,
    room: &mut Room,
    sequences: u32,
    plan: &mut Plan,
    scratch: &mut Iteration,
) -> Option<Candidate> {
    let replica = ready_replica(context, tenant, device)?;
    let limits = BatchLimits { sequences, ..room.limits(context, tenant, device, plan) };
    let found = candidate(context, tenant, device, limits, plan, scratch);
    if !is_latency(context.view, tenant) || !(scratch.short_of_blocks || scratch.preempted > 0) {
        return found;
    }
    let waiting = context.demand.waiting(tenant).map_or(0, |waiting| waiting.tokens);
    let wanted = (waiting / block_tokens(context.view, &replica)).min(u64::from(u32::MAX)) as u32;
    let wanted = wanted.saturating_add(room.reserved(context.view, device)).saturating_sub(limits.new_blocks).max(1);
    let ranks = ranks_of(context.view, &replica).into_iter();
    let given = ranks.map(|rank| room.evict_best_effort(context, rank, wanted, plan)).min().unwrap_or(0);
    if given == 0 {
        return found;
    }
    let limits = BatchLimits { new_blocks: limits.new_blocks.saturating_add(given), ..limits };
    candidate(context, tenant, device, limits, plan, scratch)
}
