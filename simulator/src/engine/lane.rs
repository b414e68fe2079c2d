//! The queues of a lane.

use slicescheduler_gmg::plan::Rank;
use slicescheduler_gmg::units::Nanos;

use super::node::{NONE, Phase, State};

const RANKS: usize = 4;

/// A lane: one queue per rank, threaded through the nodes. A node stays in its queue until it
/// leaves the lane, so what was cut is still ahead of what came later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    heads: [u32; RANKS],
    tails: [u32; RANKS],
    pub(super) running: u32,
    /// The node that left last.
    pub(super) last: u32,
    /// Nodes that have not left.
    pub(super) waiting: u32,
    pub(super) watched: bool,
    pub(super) unsettled: bool,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            heads: [NONE; RANKS],
            tails: [NONE; RANKS],
            running: NONE,
            last: NONE,
            waiting: 0,
            watched: false,
            unsettled: false,
        }
    }
}

impl Lane {
    /// Appends node `id`, which is about to become the last of `nodes`.
    pub(super) fn push(&mut self, nodes: &mut [State], id: u32, rank: Rank) {
        let rank = rank as usize;
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

    /// The first node of the highest rank whose first node may start at `now`, or runs.
    pub(super) fn best(&self, nodes: &[State], now: Nanos) -> Option<u32> {
        let runnable = |&&head: &&u32| {
            nodes.get(head as usize).is_some_and(|state| {
                state.phase == Phase::Running
                    || (state.phase == Phase::Waiting && state.waits == 0 && state.release <= now)
            })
        };
        self.heads.iter().rev().find(runnable).copied()
    }
}
