//! A lane: its queues, and what it does at the moment.

use slicescheduler_gmg::units::Nanos;

use super::node::{NONE, State};
use crate::interference::Demand;

pub(super) const RANKS: usize = 4;

/// What a lane does with the node that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// It runs none.
    Nothing,
    /// All operators up to `until` as one, from `since` on: nothing slows it.
    Whole,
    /// One operator at `rate`.
    Step,
    /// It waits for the host to launch the next operator.
    Host,
    /// It waits in a collective for the other ranks.
    Peers,
    /// It is in a collective that all ranks have reached.
    Collective,
}

/// A lane: one queue per rank, threaded through the nodes. A node stays in its queue until it
/// leaves the lane, so what was cut is still ahead of what came later.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) heads: [u32; RANKS],
    tails: [u32; RANKS],
    pub(super) running: u32,
    /// The node that left last.
    pub(super) last: u32,
    /// Nodes that have not left.
    pub(super) waiting: u32,
    /// The device that it shares with other lanes.
    pub(super) device: u32,
    /// Its number there.
    pub(super) number: u16,
    pub(super) watched: bool,
    pub(super) unsettled: bool,
    /// True if a member of a gang could not start here because of the others.
    pub(super) gated: bool,
    /// True if the host has to launch every operator that runs, one by one.
    pub(super) eager: bool,
    pub(super) doing: Doing,
    /// While whole: when its next operator started, or would have without slower times before.
    pub(super) since: Nanos,
    /// While whole: how much further its next operator is than `since` says, in multiples of
    /// 2^-20 ns; less than one nanosecond.
    pub(super) ahead: u32,
    /// While whole: the operator before which something happens.
    pub(super) until: u32,
    /// What the operator that runs demands.
    pub(super) demand: Demand,
    /// While stepping: what was left of the operator at `based`, in multiples of 2^-20 ns.
    pub(super) left: u128,
    pub(super) based: Nanos,
    /// While stepping: progress per nanosecond since `based`; zero before it is known.
    pub(super) rate: u32,
    /// The running node stops at the first boundary that is not before.
    pub(super) cut_from: Nanos,
    /// The gang that has begun to start and needs this lane.
    pub(super) reserved: u32,
    /// The dispatcher that launches its operators.
    pub(super) dispatcher: u32,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            heads: [NONE; RANKS],
            tails: [NONE; RANKS],
            running: NONE,
            last: NONE,
            waiting: 0,
            device: NONE,
            number: 0,
            watched: false,
            unsettled: false,
            gated: false,
            eager: false,
            doing: Doing::Nothing,
            since: Nanos::ZERO,
            ahead: 0,
            until: 0,
            demand: Demand::NONE,
            left: 0,
            based: Nanos::ZERO,
            rate: 0,
            cut_from: Nanos::MAX,
            reserved: NONE,
            dispatcher: NONE,
        }
    }
}

impl Lane {
    /// Appends node `id`, which is about to become the last of `nodes`.
    pub(super) fn push(&mut self, nodes: &mut [State], id: u32, rank: usize) {
        match nodes.get_mut(self.tails[rank] as usize) {
            Some(tail) => tail.behind = id,
            None => self.heads[rank] = id,
        }
        self.tails[rank] = id;
        self.waiting += 1;
    }

    /// Takes `id` out of its queue. O(1) for the first, O(nodes ahead of it) for others.
    pub(super) fn remove(&mut self, nodes: &mut [State], id: u32) {
        let rank = nodes[id as usize].rank as usize;
        let behind = nodes[id as usize].behind;
        let mut ahead = NONE;
        let mut node = self.heads[rank];
        while node != id {
            if node == NONE {
                return;
            }
            (ahead, node) = (node, nodes[node as usize].behind);
        }
        match nodes.get_mut(ahead as usize) {
            Some(ahead) => ahead.behind = behind,
            None => self.heads[rank] = behind,
        }
        if behind == NONE {
            self.tails[rank] = ahead;
        }
        self.waiting -= 1;
    }

    /// While whole: the time at `now` since its next operator started. More than none if a part of a
    /// nanosecond has passed: it is at no boundary then.
    pub(super) fn elapsed(&self, now: Nanos) -> Nanos {
        (now - self.since).max(Nanos(u64::from(self.ahead > 0)))
    }

    /// What is left of the operator at `now`, while stepping.
    pub(super) fn left_at(&self, now: Nanos) -> u128 {
        self.left.saturating_sub(u128::from(self.rate) * u128::from((now - self.based).get()))
    }
}
