//! From a plan to commands: what is stale is dropped, what remains is reserved.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::apply::{Part, refuse_job, refuse_placement};
use crate::delta::{Effect, Intent};
use crate::error::GmgError;
use crate::gang::{self, GangError};
use crate::gmg::Gmg;
use crate::id::{JobId, LaneId};
use crate::job::{Job, JobSpec, StoredState};
use crate::plan::{Accepted, Action, Command, Dropped, Launch, Plan, Rank, Work};
use crate::view::GmgView;

/// All operators, however many there are.
const ALL: Range<u32> = 0..u32::MAX;

pub(crate) fn accept(gmg: &mut Gmg, plan: Plan) -> Accepted {
    let mut accepted = Accepted::default();
    for (index, action) in plan.actions.into_iter().enumerate() {
        if let Err(refused) = carry_out(gmg, action, &mut accepted) {
            let (reason, action) = *refused;
            accepted.dropped.push(Dropped { index, action, reason });
        }
    }
    accepted
}

/// Carries out one action, or gives it back.
fn carry_out(gmg: &mut Gmg, action: Action, accepted: &mut Accepted) -> Result<(), Box<(GmgError, Action)>> {
    match action {
        Action::Run { work: Work::New(spec), lane, rank } => match refuse_new(gmg, &spec, lane) {
            Ok(()) => {
                let placed = run_new(gmg, *spec, lane, rank, accepted);
                debug_assert!(placed.is_ok(), "what was not refused can be placed: {placed:?}");
                Ok(())
            }
            Err(reason) => Err(Box::new((reason, Action::Run { work: Work::New(spec), lane, rank }))),
        },
        Action::RunGang { members, rank } => match refuse_gang(gmg, &members) {
            Ok(()) => {
                let placed = run_gang(gmg, members, rank, accepted);
                debug_assert!(placed.is_ok(), "what was not refused can be placed: {placed:?}");
                Ok(())
            }
            Err(reason) => Err(Box::new((reason, Action::RunGang { members, rank }))),
        },
        action => try_existing(gmg, &action, accepted).map_err(|reason| Box::new((reason, action))),
    }
}

fn try_existing(gmg: &mut Gmg, action: &Action, accepted: &mut Accepted) -> Result<(), GmgError> {
    match *action {
        Action::FormBatch { .. } | Action::Run { work: Work::New(_), .. } | Action::RunGang { .. } => {
            Err(GmgError::NotMaterialized("forming a batch"))
        }
        Action::EvictSequences { .. } => Err(GmgError::NotMaterialized("evicting sequences")),
        Action::Run { work: Work::Existing { job, ref ops }, lane, rank } => {
            accepted.applied.push(gmg.apply(Intent::Dispatch { job, ops: ops.clone(), lane, rank })?);
            launch(gmg, job, ops.clone(), lane, rank, accepted)
        }
        Action::Recall { job, fate } => {
            let lane = lane_of(gmg, job)?;
            accepted.commands.push(Command::Recall { job, lane, fate });
            Ok(())
        }
        Action::Cancel { job } => {
            let found = gmg.state().job(job).ok_or(GmgError::NoSuchJob(job))?;
            let mut ranks: SmallVec<[JobId; 4]> =
                found.gang.as_ref().map_or_else(|| std::slice::from_ref(&job).into(), |gang| gang.jobs().into());
            ranks.retain(|rank| gmg.state().job(*rank).is_some());
            if let Some(&placed) = ranks.iter().find(|&&rank| gmg.state().job(rank).is_some_and(Job::is_dispatched)) {
                return Err(GmgError::StillDispatched(placed));
            }
            // A rank that is done has nothing to give up, so each of the others is told by itself.
            for rank in ranks {
                accepted.applied.push(gmg.apply(Intent::Cancel { job: rank })?);
                accepted.applied.push(gmg.apply(Intent::Retire { job: rank })?);
            }
            Ok(())
        }
        Action::Prefetch { model, device, source } => {
            accepted.applied.push(gmg.apply(Intent::LoadWeights { model, device, source })?);
            if let Some(region) = gmg.state().memory(device).and_then(|memory| memory.weight_region(model)) {
                accepted.commands.push(Command::Prefetch { model, device, source, region });
            }
            Ok(())
        }
        Action::PrefetchOps { model, ref ops, device, source } => {
            accepted.applied.push(gmg.apply(Intent::LoadOps { model, ops: ops.clone(), device, source })?);
            let part = gmg.state().memory(device).and_then(|memory| memory.weight_part(model, ops));
            let region = part.map(|part| part.region).ok_or(GmgError::WeightsAbsent { model, device })?;
            accepted.commands.push(Command::PrefetchOps { model, ops: ops.clone(), device, source, region });
            Ok(())
        }
        Action::EvictOps { model, ref ops, device } => {
            accepted.applied.push(gmg.apply(Intent::EvictOps { model, ops: ops.clone(), device })?);
            accepted.commands.push(Command::EvictOps { model, ops: ops.clone(), device });
            Ok(())
        }
        Action::EvictWeights { model, device } => {
            accepted.applied.push(gmg.apply(Intent::EvictWeights { model, device })?);
            accepted.commands.push(Command::EvictWeights { model, device });
            Ok(())
        }
        Action::BorrowSlots { device, blocks } => {
            let applied = gmg.apply(Intent::BorrowSlots { device, blocks })?;
            if let Effect::Moved(moves) = &applied.effect {
                accepted.commands.push(Command::MoveBlocks { device, moves: moves.clone() });
            }
            accepted.applied.push(applied);
            Ok(())
        }
        Action::ReleaseKv { request, device } => {
            accepted.applied.push(gmg.apply(Intent::ReleaseKv { request, device })?);
            Ok(())
        }
        Action::Reject { request, .. } => {
            accepted.applied.push(gmg.apply(Intent::Reject { request })?);
            Ok(())
        }
    }
}

/// Everything that could refuse the submission and the dispatch, so that a dropped action leaves no
/// job behind.
fn refuse_new(gmg: &Gmg, spec: &JobSpec, lane: LaneId) -> Result<(), GmgError> {
    if refuse_job(gmg.state(), spec)?.exchanges() || spec.gang.is_some() {
        return Err(GangError::Alone.into());
    }
    refuse_placement(gmg.state(), spec, lane, &ALL, Part::FIRST)?;
    refuse_waiting(gmg, spec)
}

/// The same for the jobs of a gang. On devices of their own they do not compete for memory, so each
/// can be looked at alone; a rank finds the parts of those before it placed.
fn refuse_gang(gmg: &Gmg, members: &[(JobSpec, LaneId)]) -> Result<(), GmgError> {
    let mut templates: SmallVec<[_; 8]> = SmallVec::new();
    for (index, (spec, lane)) in members.iter().enumerate() {
        templates.push(refuse_job(gmg.state(), spec)?);
        refuse_waiting(gmg, spec)?;
        if members[..index].iter().any(|(_, other)| other.device == lane.device) {
            return Err(GmgError::SharedDevice(lane.device));
        }
    }
    let specs: SmallVec<[_; 8]> = members.iter().map(|(spec, _)| spec).zip(&templates).collect();
    gang::check(&specs)?;
    let shared = gang::shares_batch(members.iter().map(|(spec, _)| spec));
    for (rank, (spec, lane)) in (0u32..).zip(members) {
        let part = if shared { Part { rank, planned: true } } else { Part::FIRST };
        refuse_placement(gmg.state(), spec, *lane, &ALL, part)?;
    }
    Ok(())
}

fn refuse_waiting(gmg: &Gmg, spec: &JobSpec) -> Result<(), GmgError> {
    let unfinished = |job: &&JobId| gmg.state().job(**job).is_some_and(|job| !job.segments.all_done());
    let waits_for = spec.after.iter().filter(unfinished).count() as u32;
    if waits_for > 0 {
        return Err(GmgError::NotReady { job: gmg.state().next_job(), count: waits_for });
    }
    Ok(())
}

fn run_new(gmg: &mut Gmg, spec: JobSpec, lane: LaneId, rank: Rank, accepted: &mut Accepted) -> Result<(), GmgError> {
    let submitted = gmg.apply(Intent::SubmitJob(Arc::new(spec)))?;
    let Effect::Job(job) = submitted.effect else { return Ok(()) };
    accepted.applied.push(submitted);
    let ops = 0..gmg.state().job(job).map_or(0, |job| job.op_count());
    accepted.applied.push(gmg.apply(Intent::Dispatch { job, ops: ops.clone(), lane, rank })?);
    launch(gmg, job, ops, lane, rank, accepted)
}

fn run_gang(
    gmg: &mut Gmg,
    members: Vec<(JobSpec, LaneId)>,
    rank: Rank,
    accepted: &mut Accepted,
) -> Result<(), GmgError> {
    let (specs, lanes): (Vec<_>, Vec<_>) = members.into_iter().map(|(spec, lane)| (Arc::new(spec), lane)).unzip();
    let submitted = gmg.apply(Intent::SubmitGang(specs.into()))?;
    let Effect::Gang(jobs) = submitted.effect.clone() else { return Ok(()) };
    accepted.applied.push(submitted);
    for (&job, lane) in jobs.iter().zip(lanes) {
        let ops = 0..gmg.state().job(job).map_or(0, |job| job.op_count());
        accepted.applied.push(gmg.apply(Intent::Dispatch { job, ops: ops.clone(), lane, rank })?);
        launch(gmg, job, ops, lane, rank, accepted)?;
    }
    Ok(())
}

fn launch(
    gmg: &Gmg,
    id: JobId,
    ops: Range<u32>,
    lane: LaneId,
    rank: Rank,
    accepted: &mut Accepted,
) -> Result<(), GmgError> {
    let job = gmg.state().job(id).ok_or(GmgError::NoSuchJob(id))?;
    let (_, arena) = job.arena.ok_or(GmgError::NotDispatched(id))?;
    let (spec, template) = (job.spec.clone(), job.template.clone());
    accepted.commands.push(Command::Launch(Launch { job: id, spec, template, ops, lane, rank, arena }));
    Ok(())
}

fn lane_of(gmg: &Gmg, id: JobId) -> Result<LaneId, GmgError> {
    let job = gmg.state().job(id).ok_or(GmgError::NoSuchJob(id))?;
    job.segments
        .iter()
        .find(|segment| matches!(segment.state, StoredState::Dispatched | StoredState::Running))
        .and_then(|segment| segment.lane)
        .ok_or(GmgError::NotDispatched(id))
}
