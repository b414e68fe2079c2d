//! A lane: its queues, and what it does at the moment.

use std::ops::Range;

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

/// Of a lane to which nothing has been added.
const NO_RANK: u8 = u8::MAX;
/// Of a lane with nodes of several ranks.
const MIXED: u8 = u8::MAX - 1;

/// A lane: one queue per rank, threaded through the nodes. A node stays in its queue until it
/// leaves the lane, so what was cut is still ahead of what came later.
///
/// The first cache line is what every event of an operator that ends needs; the second is for
/// queues and for what is rare.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Lane {
    /// While stepping: what was left of the operator at `since`, in multiples of 2^-20 ns.
    pub(super) left: u128,
    /// While whole: when its next operator started, or would have without slower times before.
    /// While stepping: when `left` was left.
    pub(super) since: Nanos,
    /// When something happens here next.
    pub(super) event: Nanos,
    pub(super) running: u32,
    /// While stepping: progress per nanosecond since `since`; zero before it is known.
    pub(super) rate: u32,
    /// What the operator that runs demands.
    pub(super) demand: Demand,
    /// The device that it shares with other lanes.
    pub(super) device: u32,
    /// The lanes that its events are kept with.
    pub(super) group: u32,
    /// Its number on its device.
    pub(super) number: u16,
    pub(super) doing: Doing,
    /// The rank of all of its nodes, if they have the same.
    only: u8,
    /// True while an operator of it is on the device.
    pub(super) occupies: bool,
    pub(super) unsettled: bool,
    pub(super) watched: bool,
    /// True if the host has to launch every operator that runs, one by one.
    pub(super) eager: bool,
    /// True if a member of a gang could not start here because of the others.
    pub(super) gated: bool,
    /// True if its nodes hold bytes of other devices.
    pub(super) strays: bool,
    /// True if some of its work is not of a fixed length.
    pub(super) has_operators: bool,

    pub(super) heads: [u32; RANKS],
    tails: [u32; RANKS],
    /// The running node stops at the first boundary that is not before.
    pub(super) cut_from: Nanos,
    /// While whole: how much further its next operator is than `since` says, in multiples of
    /// 2^-20 ns; less than one nanosecond.
    pub(super) ahead: u32,
    /// While whole: the operator before which something happens.
    pub(super) until: u32,
    /// Nodes that have not left.
    pub(super) waiting: u32,
    /// The node that left last.
    pub(super) last: u32,
    /// The gang that has begun to start and needs this lane.
    pub(super) reserved: u32,
    /// The dispatcher that launches its operators; or none.
    pub(super) dispatcher: u32,
}

const _: () = assert!(size_of::<Lane>() == 128 && std::mem::offset_of!(Lane, heads) == 64);

impl Default for Lane {
    fn default() -> Self {
        Self {
            left: 0,
            since: Nanos::ZERO,
            event: Nanos::MAX,
            running: NONE,
            rate: 0,
            demand: Demand::NONE,
            device: NONE,
            group: 0,
            number: 0,
            doing: Doing::Nothing,
            only: NO_RANK,
            occupies: false,
            unsettled: false,
            watched: false,
            eager: false,
            gated: false,
            strays: false,
            has_operators: false,
            heads: [NONE; RANKS],
            tails: [NONE; RANKS],
            cut_from: Nanos::MAX,
            ahead: 0,
            until: 0,
            waiting: 0,
            last: NONE,
            reserved: NONE,
            dispatcher: NONE,
        }
    }
}

impl Lane {
    /// Appends the node at `id`.
    pub(super) fn push(&mut self, nodes: &mut [State], id: u32, rank: usize) {
        match nodes.get_mut(self.tails[rank] as usize) {
            Some(tail) => tail.behind = id,
            None => self.heads[rank] = id,
        }
        self.tails[rank] = id;
        self.waiting += 1;
        self.only = match self.only {
            NO_RANK => rank as u8,
            only if only == rank as u8 => only,
            _ => MIXED,
        };
    }

    /// True if no node of this lane ever has the right of way over another.
    pub(super) fn has_one_rank(&self) -> bool {
        self.only != MIXED
    }

    /// The first node of its only queue, if it has one and that is not empty.
    pub(super) fn only_head(&self) -> u32 {
        self.heads.get(self.only as usize).copied().unwrap_or(NONE)
    }

    /// Ranks that may have nodes.
    pub(super) fn ranks(&self) -> Range<usize> {
        match self.only {
            MIXED => 0..RANKS,
            NO_RANK => 0..0,
            only => only as usize..only as usize + 1,
        }
    }

    /// The node that runs, which is the first of its queue, is done and leaves.
    pub(super) fn finish(&mut self, node: &State) {
        self.last = self.running;
        self.running = NONE;
        self.doing = Doing::Nothing;
        self.rate = 0;
        self.cut_from = Nanos::MAX;
        let rank = node.rank as usize;
        self.heads[rank] = node.behind;
        if node.behind == NONE {
            self.tails[rank] = NONE;
        }
        self.waiting -= 1;
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
        self.left.saturating_sub(u128::from(self.rate) * u128::from((now - self.since).get()))
    }
}
