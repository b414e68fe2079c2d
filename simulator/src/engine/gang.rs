//! Gangs: one job on several lanes whose ranks meet in collectives.
//!
//! # Rules
//!
//! - **Start.** A gang may begin when every member is the first of its queue and runnable, no work of
//!   a higher rank could start on one of its lanes, and no other gang that has begun still has to start
//!   a member on one of them. Then each member starts as soon as its
//!   own lane lets it; lanes that still have to start one take nothing else meanwhile. So two gangs
//!   never wait for each other, whatever the ranks.
//! - **Collectives.** A member that reaches one holds its lane, and demands what the collective
//!   demands, until the last has reached it; then it runs on all of them for the longest duration
//!   that any member's costs give. What slows operators does not slow collectives: links bound them.
//! - **Cuts.** All members stop at the same operator: the furthest of the first boundaries that the
//!   members could stop at. A collective that a member waits in has been launched, and so has one that
//!   it would reach within the launched window; the boundary is behind it then. Where they stop is
//!   settled once; if it is behind the last operator, the gang ends.
//!
//! Lanes choose in the order of their ids, again and again until nothing changes, so that gangs that
//! could begin in the same instant do so in a fixed order.

use std::cmp::Reverse;
use std::ops::Range;

use slicescheduler_gmg::units::Nanos;

use super::Engine;
use super::lane::Doing;
use super::network::div_ceil;
use super::node::{NONE, NodeRef, Phase, Span};
use crate::interference::Rate;

/// Which operators of a job are collectives, in an [`Engine`], valid until its next reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectivesRef(pub(super) u32);

/// Why nodes cannot be a gang.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GangError {
    /// A collective needs somebody to meet.
    #[error("a gang has at least two members, not {0}")]
    TooFew(usize),
    /// Not operators on a lane of this simulation.
    #[error("{0:?} is not a run of operators on a lane of this simulation")]
    NotOperators(NodeRef),
    /// It has started, or is in a gang already.
    #[error("{0:?} has started, or is in a gang already")]
    Taken(NodeRef),
    /// Members wait for each other, so they cannot wait behind each other.
    #[error("{0:?} and {1:?} are on the same lane; members wait for each other and need one each")]
    SameLane(NodeRef, NodeRef),
    /// Members are cut at the same operator and by the same right of way.
    #[error("{0:?} and {1:?} have different operators or ranks; members of a gang have the same")]
    Differ(NodeRef, NodeRef),
}

#[derive(Clone, Debug)]
pub(super) struct Gang {
    /// Its nodes, as a range of the engine's list of members.
    members: Range<u32>,
    collectives: u32,
    /// True from the first start of a member on, until all have stopped at a cut.
    open: bool,
    /// While open: members that have not started since.
    unstarted: u32,
    /// Members on their lane.
    holding: u32,
    /// Members that wait in the next collective.
    arrived: u32,
    /// All members stop before this operator.
    stop: u32,
}

impl Gang {
    pub(super) fn stops_before(&self, op: u32) -> bool {
        op == self.stop
    }

    /// The operator up to which a member that is before `next` runs without the others: the next
    /// collective, where it stops, or the end.
    pub(super) fn segment_end(&self, collectives: &[Vec<u32>], next: u32, end: u32) -> u32 {
        let known = collectives.get(self.collectives as usize).map_or(&[][..], Vec::as_slice);
        let collective = known.get(known.partition_point(|&op| op < next)).copied().unwrap_or(end);
        collective.min(end).min(if self.stop > next { self.stop } else { end })
    }
}

impl Engine {
    /// Says which operators of a job are collectives, for [`add_gang`](Self::add_gang).
    pub fn add_collectives(&mut self, operators: &[u32]) -> CollectivesRef {
        let mut operators = operators.to_vec();
        operators.sort_unstable();
        operators.dedup();
        self.collectives.push(operators);
        CollectivesRef((self.collectives.len() - 1) as u32)
    }

    /// Makes `members`, the ranks of one job, meet in the job's collectives. To be called before
    /// the run that they take part in.
    ///
    /// # Errors
    /// If they are not the same operators at the same rank on lanes of their own, or have started.
    pub fn add_gang(&mut self, members: &[NodeRef], collectives: CollectivesRef) -> Result<(), GangError> {
        let Some((&first, others)) = members.split_first().filter(|(_, others)| !others.is_empty()) else {
            return Err(GangError::TooFew(members.len()));
        };
        for &member in members {
            let state = self.nodes.get(self.store.place(member.0) as usize).filter(|state| state.lane != NONE);
            let Some(state) = state.filter(|state| matches!(state.span, Span::Operators { .. })) else {
                return Err(GangError::NotOperators(member));
            };
            if state.in_gang || state.started() || state.phase != Phase::Waiting {
                return Err(GangError::Taken(member));
            }
        }
        let state = |node: NodeRef| &self.nodes[self.store.place(node.0) as usize];
        for (position, &member) in members.iter().enumerate() {
            if let Some(&other) = members[..position].iter().find(|other| state(**other).lane == state(member).lane) {
                return Err(GangError::SameLane(other, member));
            }
        }
        let same = |a: NodeRef, b: NodeRef| state(a).rank == state(b).rank && state(a).ops() == state(b).ops();
        if let Some(&other) = others.iter().find(|other| !same(first, **other)) {
            return Err(GangError::Differ(first, other));
        }
        let begin = self.gang_members.len() as u32;
        let gang = self.gangs.len() as u32;
        for &NodeRef(member) in members {
            let node = self.store.place(member);
            self.gang_members.push(node);
            self.nodes[node as usize].in_gang = true;
            if self.gang_of.len() <= node as usize {
                self.gang_of.resize(node as usize + 1, NONE);
            }
            self.gang_of[node as usize] = gang;
        }
        self.gangs.push(Gang {
            members: begin..self.gang_members.len() as u32,
            collectives: collectives.0,
            open: false,
            unstarted: 0,
            holding: 0,
            arrived: 0,
            stop: NONE,
        });
        Ok(())
    }

    pub(super) fn members(&self, gang: u32) -> &[u32] {
        let members = &self.gangs[gang as usize].members;
        &self.gang_members[members.start as usize..members.end as usize]
    }

    /// The gang of the node that runs on `lane`.
    pub(super) fn gang_on(&self, lane: u32) -> Option<&Gang> {
        let running = self.lanes[lane as usize].running;
        if self.gangs.is_empty() || !self.nodes[running as usize].in_gang {
            return None;
        }
        self.gangs.get(self.gang_of[running as usize] as usize)
    }

    pub(super) fn is_collective(&self, lane: u32) -> bool {
        let Some(gang) = self.gang_on(lane) else { return false };
        let (next, _) = self.nodes[self.lanes[lane as usize].running as usize].ops();
        self.collectives.get(gang.collectives as usize).is_some_and(|known| known.binary_search(&next).is_ok())
    }

    /// The member on `lane` has reached a collective.
    pub(super) fn join_collective(&mut self, lane: u32) {
        let node = self.lanes[lane as usize].running;
        let demand = self.demand(lane);
        let state = &mut self.lanes[lane as usize];
        (state.doing, state.demand, state.rate) = (Doing::Peers, demand, 0);
        self.set_event(lane, Nanos::MAX);
        self.occupy(lane);
        let gang = self.gang_of[node as usize];
        let size = self.members(gang).len() as u32;
        let state = &mut self.gangs[gang as usize];
        state.arrived += 1;
        if state.arrived < size {
            return;
        }
        state.arrived = 0;
        let lanes: Vec<u32> = self.members(gang).iter().map(|&member| self.nodes[member as usize].lane).collect();
        let takes = lanes.iter().map(|&lane| self.operator_length(lane)).max().unwrap_or(Nanos(1));
        for lane in lanes {
            self.lanes[lane as usize].doing = Doing::Collective;
            self.set_event(lane, self.now + takes);
        }
    }

    /// True if gangs do not keep `node`, the runnable first of a queue, from starting on `lane`. If
    /// they do, the lane chooses again when something has changed.
    pub(super) fn may_start(&mut self, lane: u32, node: u32) -> bool {
        let may = self.is_free_to_start(lane, node);
        if !may && !std::mem::replace(&mut self.lanes[lane as usize].gated, true) {
            self.gated.push(lane);
        }
        may
    }

    fn is_free_to_start(&self, lane: u32, node: u32) -> bool {
        let gang = self.gang_of.get(node as usize).copied().unwrap_or(NONE);
        let reserved = self.lanes[lane as usize].reserved;
        (reserved == NONE || reserved == gang) && (gang == NONE || self.may_join(gang, node))
    }

    fn may_join(&self, gang: u32, node: u32) -> bool {
        let state = &self.gangs[gang as usize];
        if state.open {
            return state.stop == NONE || self.nodes[node as usize].ops().0 < state.stop;
        }
        self.members(gang).iter().all(|&member| {
            let node = &self.nodes[member as usize];
            let lane = &self.lanes[node.lane as usize];
            let rank = node.rank as usize;
            let is_next = node.is_runnable(self.now) && lane.heads[rank] == member && lane.reserved == NONE;
            // Ranks rise from one call to the next, so this ends.
            is_next && !lane.heads[rank + 1..].iter().any(|&head| self.could_start(node.lane, head))
        })
    }

    fn could_start(&self, lane: u32, head: u32) -> bool {
        let runnable = self.nodes.get(head as usize).is_some_and(|head| head.is_runnable(self.now));
        runnable && self.is_free_to_start(lane, head)
    }

    /// `node` starts on its lane.
    pub(super) fn enter_gang(&mut self, node: u32) {
        let gang = self.gang_of[node as usize];
        let size = self.members(gang).len() as u32;
        let state = &mut self.gangs[gang as usize];
        if !state.open {
            state.open = true;
            state.unstarted = size;
            self.reserve_lanes(gang, NONE, gang);
        }
        let state = &mut self.gangs[gang as usize];
        state.holding += 1;
        state.unstarted -= 1;
        if state.unstarted == 0 {
            self.reserve_lanes(gang, gang, NONE);
        }
    }

    /// The lanes of `gang` that are reserved for `from` are reserved for `to` now.
    fn reserve_lanes(&mut self, gang: u32, from: u32, to: u32) {
        for index in self.gangs[gang as usize].members.clone() {
            let lane = self.nodes[self.gang_members[index as usize] as usize].lane;
            let reserved = &mut self.lanes[lane as usize].reserved;
            if *reserved == from {
                *reserved = to;
            }
        }
    }

    /// Whatever gangs kept from starting may be able to start now.
    fn ungate(&mut self) {
        while let Some(lane) = self.gated.pop() {
            self.lanes[lane as usize].gated = false;
            self.unsettle(lane);
        }
    }

    /// `node` has left its lane: at its end, or at a cut.
    pub(super) fn leave_gang(&mut self, node: u32) {
        let gang = self.gang_of[node as usize];
        let state = &mut self.gangs[gang as usize];
        state.holding -= 1;
        let (stop, holding) = (state.stop, state.holding);
        let stopped = |member: &u32| self.nodes[*member as usize].ops().0 >= stop;
        if stop == NONE || holding > 0 || !self.members(gang).iter().all(stopped) {
            return;
        }
        let state = &mut self.gangs[gang as usize];
        (state.open, state.stop, state.unstarted) = (false, NONE, 0);
        self.reserve_lanes(gang, gang, NONE);
        if self.nodes[node as usize].recalled {
            self.drop_gang(gang);
        }
    }

    fn drop_gang(&mut self, gang: u32) {
        for index in self.gangs[gang as usize].members.clone() {
            self.drop_node(self.gang_members[index as usize]);
        }
    }

    /// Takes all members back.
    pub(super) fn take_back_gang(&mut self, node: u32, free: bool) {
        let gang = self.gang_of[node as usize];
        let over = |member: &u32| matches!(self.nodes[*member as usize].phase, Phase::Done | Phase::Dropped);
        if self.members(gang).iter().any(over) {
            return;
        }
        for index in self.gangs[gang as usize].members.clone() {
            self.mark_recalled(self.gang_members[index as usize], free);
        }
        if self.gangs[gang as usize].open { self.cut_gang(node) } else { self.drop_gang(gang) }
    }

    /// Plans where all members stop; those that are there now do so at once.
    pub(super) fn cut_gang(&mut self, node: u32) {
        let gang = self.gang_of[node as usize];
        if self.gangs[gang as usize].stop != NONE {
            return;
        }
        let (_, end) = self.nodes[node as usize].ops();
        let stop = self.members(gang).iter().map(|&member| self.first_boundary(member)).max().unwrap_or(end);
        // Too late for a cut if that is the end: the question is settled all the same.
        self.gangs[gang as usize].stop = stop;
        for index in self.gangs[gang as usize].members.clone() {
            let member = self.gang_members[index as usize];
            let state = &self.nodes[member as usize];
            if state.phase != Phase::Running {
                continue;
            }
            let (lane, (next, _)) = (state.lane, state.ops());
            match self.lanes[lane as usize].doing {
                Doing::Whole if next < stop => {
                    let (until, at) = self.whole_end(lane);
                    if until == stop && at <= self.now {
                        self.stop_before(lane, stop);
                    } else {
                        self.lanes[lane as usize].until = until;
                        self.set_event(lane, at);
                    }
                }
                Doing::Whole | Doing::Step | Doing::Host if next == stop => self.stop_before(lane, stop),
                _ => {}
            }
        }
    }

    /// The first boundary at which `member` could stop.
    fn first_boundary(&self, member: u32) -> u32 {
        let state = &self.nodes[member as usize];
        let (next, end) = state.ops();
        let Span::Operators { cost, .. } = state.span else { return end };
        let cost = &self.costs[cost as usize].cost;
        let lane = &self.lanes[state.lane as usize];
        match (state.phase, lane.doing) {
            (Phase::Waiting, _) => next,
            (Phase::Running, Doing::Host) => next,
            (Phase::Running, Doing::Step) if self.window.is_zero() && self.is_at_boundary(state.lane) => next,
            (Phase::Running, doing @ (Doing::Whole | Doing::Step)) => {
                let Some(gang) = self.gang_on(state.lane) else { return end };
                let segment = gang.segment_end(&self.collectives, next, end);
                // Where boundaries are, counted from `from`, as far as nothing slows the member.
                let (from, elapsed) = if doing == Doing::Whole {
                    (next, lane.elapsed(self.now + self.window))
                } else {
                    let rest = Nanos(div_ceil(lane.left_at(self.now), u64::from(Rate::ONE.get())));
                    (next + 1, self.window - rest)
                };
                let (op, after) = cost.boundary_at_or_after(from..segment, elapsed);
                let behind_collective = op >= segment && after < elapsed && segment < end;
                if behind_collective { segment + 1 } else { op }
            }
            (Phase::Running, Doing::Peers | Doing::Collective) => next + 1,
            _ => end,
        }
    }

    /// Lanes choose in ascending order, again and again until nothing changes.
    pub(super) fn settle_in_order(&mut self) {
        let mut pass = std::mem::take(&mut self.pass);
        let mut later = std::mem::take(&mut self.later);
        self.ungate();
        pass.extend(self.unsettled.drain(..).map(Reverse));
        while let Some(Reverse(lane)) = pass.pop() {
            self.lanes[lane as usize].unsettled = false;
            if self.choose(lane) {
                self.ungate();
            }
            for other in self.unsettled.drain(..) {
                if other > lane { pass.push(Reverse(other)) } else { later.push(other) }
            }
            if pass.is_empty() {
                pass.extend(later.drain(..).map(Reverse));
            }
        }
        (self.pass, self.later) = (pass, later);
    }
}
