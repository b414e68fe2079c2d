//! Jobs of several ranks in a question: all of them are simulated, or none.
//!
//! What must stay true: whoever takes in one lane takes in every lane on which a gang of it has a rank, so that no
//! rank waits for another that is not there; the engine knows each gang once.

use smallvec::SmallVec;

use slicescheduler_gmg::gang::{self, Members};
use slicescheduler_gmg::id::{JobId, LaneId, ModelId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::{Rank, WhatIfError};
use slicescheduler_gmg::units::Nanos;

use super::scratch::{Origin, Run};
use super::simulation::{Simulation, refuse};
use crate::engine::NodeRef;

impl Simulation<'_> {
    /// Runs the jobs of a gang that does not exist yet.
    pub(super) fn run_gang(
        &mut self,
        index: usize,
        members: &[(JobSpec, LaneId)],
        rank: Rank,
    ) -> Result<(), WhatIfError> {
        let mut specs: SmallVec<[_; 8]> = SmallVec::new();
        for (spec, _) in members {
            match self.mirror.models.get(spec.model.index()) {
                Some(model) => specs.push((spec, &model.template)),
                None => return refuse(index, format_args!("there is no {}", spec.model)),
            }
        }
        if let Err(unfit) = gang::check(&specs) {
            return refuse(index, unfit);
        }
        for (spec, lane) in members {
            self.run_new(index, spec, *lane, rank)?;
        }
        let made = self.scratch.runs.iter().filter(|run| run.origin == Origin::Action(index));
        let nodes: SmallVec<[NodeRef; 8]> = made.map(Run::first).collect();
        let Some((first, _)) = members.first() else { return Ok(()) };
        self.meet(&nodes, first.model).or_else(|unfit| refuse(index, unfit))
    }

    /// Takes in the other ranks of a job that is queued, and lets them meet.
    pub(super) fn gang_of_queued(&mut self, job: JobId) {
        let mirror = self.mirror;
        let Some(known) = mirror.job(job) else { return };
        let Some(members) = &known.gang else { return };
        for lane in members.jobs().iter().filter_map(|&member| mirror.job(member)?.lane) {
            self.lane(lane);
        }
        // A gang of which a part is not on a lane, or is further than the rest, is about to be reported: the ranks
        // that are there do not wait for it.
        self.meet_members(members, known.spec.model);
    }

    /// Lets the ranks of jobs of the graph meet that actions of the question place.
    pub(super) fn connect_gangs(&mut self) -> Result<(), WhatIfError> {
        let mirror = self.mirror;
        for at in 0..self.scratch.runs.len() {
            let (Origin::Action(index), Some(job)) = (self.scratch.runs[at].origin, self.scratch.runs[at].job) else {
                continue;
            };
            let Some(known) = mirror.job(job) else { continue };
            let Some(members) = &known.gang else { continue };
            if !self.meet_members(members, known.spec.model) {
                return refuse(
                    index,
                    format_args!("the other ranks of {job} are not placed with it, or not at the same operator"),
                );
            }
        }
        Ok(())
    }

    /// True if all ranks that are not done have one piece each, at the same operators: then they meet.
    fn meet_members(&mut self, members: &Members, model: ModelId) -> bool {
        let Some(&first) = members.jobs().first() else { return true };
        if members.jobs().len() < 2 || self.scratch.gangs.contains(&first) {
            return true;
        }
        let mut nodes: SmallVec<[NodeRef; 8]> = SmallVec::new();
        for &member in members.jobs() {
            let mut pieces = self.scratch.runs.iter().filter(|run| run.job == Some(member));
            match (pieces.next(), pieces.next()) {
                (Some(piece), None) if piece.nodes.len() == 1 => nodes.push(piece.first()),
                _ => return false,
            }
        }
        let meets = self.meet(&nodes, model).is_ok();
        if meets {
            self.scratch.gangs.push(first);
        }
        meets
    }

    fn meet(&mut self, nodes: &[NodeRef], model: ModelId) -> Result<(), crate::engine::GangError> {
        if nodes.len() < 2 {
            return Ok(());
        }
        let collectives = self.scratch.engine.add_collectives(self.mirror.costs.collectives(model));
        self.scratch.engine.add_gang(nodes, collectives)
    }

    /// What a continuation made follows a gang: a job for each rank, where that rank ran.
    pub(super) fn continue_gang(&mut self, ended: &Run, next: JobSpec, ranks: u32, at: Nanos) {
        let mirror = self.mirror;
        let members = ended.job.and_then(|job| mirror.job(job)?.gang.as_ref());
        let is_rank = |run: &&Run| match (members, run.job) {
            (Some(members), Some(job)) => members.jobs().contains(&job),
            _ => run.origin == ended.origin,
        };
        let lanes: SmallVec<[LaneId; 8]> = self.scratch.runs.iter().filter(is_rank).map(|run| run.lane).collect();
        if lanes.len() != ranks as usize {
            return;
        }
        let count = mirror.models.get(next.model.index()).map_or(0, |model| model.template.op_count());
        let origin = Origin::Made(self.scratch.made.len());
        let mut nodes: SmallVec<[NodeRef; 8]> = SmallVec::new();
        for &lane in &lanes {
            let Some(known) = self.lane(lane) else { return };
            let node = self.add_job(&next, lane, known, ended.rank, at);
            nodes.push(node);
            if count > 0 {
                self.record(origin, None, lane, ended.rank, node, 0..count);
            }
        }
        let model = next.model;
        // Whoever is asked next finds that this was a gang.
        let next = next.rank(0, ranks);
        self.scratch.made.push(next.into());
        // The ranks of a gang that ran are on lanes of their own, and these nodes are new.
        let met = self.meet(&nodes, model);
        debug_assert!(met.is_ok(), "{met:?}");
    }
}
