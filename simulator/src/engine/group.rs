//! Groups: lanes that depend on each other at every moment, and how far they run on their own.
//!
//! The lanes of a device that slow each other are a group; every other lane is one of its own. The
//! queue of events knows groups: what happens in one changes the next event of this one only,
//! however many lanes are slowed.
//!
//! Between groups there are only edges and links. So a group need not wait until everything before
//! its next event has happened elsewhere, if it is *known* what happens then: every lane of it that
//! runs nothing has nothing left or waits for nobody, and the same holds for those that come to an end. Such
//! a group runs ahead, one instant after the other, while its data are at hand; successors elsewhere
//! learn when they may start. What is reported does not depend on who runs ahead:
//!
//! - Only *independent* groups do: no gangs, hosts, or watched lanes; one rank in each lane, so that
//!   nothing that becomes runnable cuts anything; bytes only of the own device, which nobody else
//!   holds.
//! - They end nothing that somebody who is not independent waits for: other groups and links would
//!   learn of it too late.
//! - They stop before timers and the horizon.
//!
//! Most of them are [plain](super::advance): one or two lanes with work of fixed lengths at full speed. These need no lists
//! of what has changed in an instant.

use slicescheduler_gmg::units::Nanos;

use super::Engine;
use super::lane::Doing;
use super::node::{NONE, State};
use super::{Edge, Lane};

/// Lanes with one event at a time for all of them.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Its lanes, as a range of the engine's list of them.
    first: u32,
    count: u32,
    pub(super) stale: bool,
    independent: bool,
    /// True if it is independent and [moves on](super::advance) by itself.
    pub(super) plain: bool,
}

impl Group {
    /// A lane is watched: the others must not be further than it when its last node ends.
    pub(super) fn watch(&mut self) {
        (self.independent, self.plain) = (false, false);
    }
}

impl Engine {
    /// Divides the lanes into groups, in the order of their first lanes.
    pub(super) fn form_groups(&mut self) {
        self.running_ahead = NONE;
        for lane in 0..self.lanes.len() as u32 {
            let device = self.devices.get_mut(self.lanes[lane as usize].device as usize);
            let first = self.grouped.len() as u32;
            match device.filter(|device| device.interferes()) {
                Some(device) if device.lanes.first() == Some(&lane) => {
                    device.group = self.groups.len() as u32;
                    self.grouped.extend(&device.lanes);
                }
                Some(_) => continue,
                None => self.grouped.push(lane),
            }
            let group = self.groups.len() as u32;
            for &member in &self.grouped[first as usize..] {
                self.lanes[member as usize].group = group;
            }
            let count = self.grouped.len() as u32 - first;
            self.groups.push(Group { first, count, stale: false, independent: false, plain: false });
        }
    }

    /// Finds out which groups are independent, as far as is known before a run.
    pub(super) fn find_independent(&mut self) {
        if self.watching {
            return;
        }
        for group in &mut self.groups {
            let lanes = &self.grouped[group.first as usize..][..group.count as usize];
            let alone = |lane: &Lane| match self.devices.get(lane.device as usize) {
                Some(device) => !device.visited && device.lanes.len() == lanes.len(),
                None => true,
            };
            group.independent = self.gangs.is_empty()
                && lanes.iter().map(|&lane| &self.lanes[lane as usize]).all(|lane| {
                    lane.has_one_rank() && lane.dispatcher == NONE && !lane.watched && !lane.strays && alone(lane)
                });
            let throttled = |lane: &Lane| self.devices.get(lane.device as usize).is_some_and(|device| device.throttled);
            group.plain = group.independent
                && lanes.len() <= 2
                && lanes
                    .iter()
                    .map(|&lane| &self.lanes[lane as usize])
                    .all(|lane| !lane.has_operators && !throttled(lane));
        }
        self.all_independent = self.groups.iter().all(|group| group.independent);
    }

    pub(super) fn lanes_of(&self, group: u32) -> &[u32] {
        let Group { first, count, .. } = self.groups[group as usize];
        &self.grouped[first as usize..][..count as usize]
    }

    /// From then on nothing is known of what happens: a timer, or the horizon.
    pub(super) fn end_of_known(&self) -> Nanos {
        self.timers.get(self.timer).map_or(Nanos::MAX, |(at, _)| *at).min(self.horizon)
    }

    /// Something happens on `lane` at `at`, and nothing else before.
    pub(super) fn set_event(&mut self, lane: u32, at: Nanos) {
        let state = &mut self.lanes[lane as usize];
        state.event = at;
        let group = &mut self.groups[state.group as usize];
        if !group.stale {
            group.stale = true;
            self.stale.push(state.group);
        }
    }

    /// When something happens in `group` next.
    pub(super) fn next_of(&self, group: u32) -> Nanos {
        let events = self.lanes_of(group).iter().map(|&lane| self.lanes[lane as usize].event);
        events.min().unwrap_or(Nanos::MAX)
    }

    /// Everything that happens in `group` at `at` happens.
    pub(super) fn group_event(&mut self, group: u32, at: Nanos) {
        let Group { first, count, .. } = self.groups[group as usize];
        for place in first..first + count {
            let lane = self.grouped[place as usize];
            if self.lanes[lane as usize].event == at {
                self.set_event(lane, Nanos::MAX);
                self.lane_event(lane);
            }
        }
    }

    /// The queue learns of the next event of every group where that has changed.
    pub(super) fn refresh(&mut self) {
        while let Some(group) = self.stale.pop() {
            self.groups[group as usize].stale = false;
            self.events.set(group, self.next_of(group).get());
        }
    }

    /// As [`refresh`](Self::refresh), but groups run ahead as far as it is known what happens.
    pub(super) fn run_ahead(&mut self) {
        let end = self.end_of_known();
        while let Some(group) = self.stale.pop() {
            if self.groups[group as usize].plain {
                self.run_plain_ahead(group, end);
                continue;
            }
            let mut at = self.next_of(group);
            while at < end && self.groups[group as usize].independent && self.is_known(group, at) {
                self.running_ahead = group;
                self.now = at;
                self.latest = self.latest.max(at);
                self.group_event(group, at);
                self.settle();
                at = self.next_of(group);
            }
            self.running_ahead = NONE;
            self.groups[group as usize].stale = false;
            self.events.set(group, at.get());
        }
    }

    /// True if what happens in `group` at `at`, where something happens next, does not depend on
    /// other groups, and nobody but independent groups has to learn of it.
    fn is_known(&self, group: u32, at: Nanos) -> bool {
        self.lanes_of(group).iter().all(|&lane| {
            let state = &self.lanes[lane as usize];
            let Some(running) = self.nodes.get(state.running as usize) else {
                return self.nodes.get(state.only_head() as usize).is_none_or(|head| head.waits == 0);
            };
            let (next, end) = running.ops();
            if state.event > at || (state.doing == Doing::Step && next + 1 < end) {
                return true;
            }
            let is_ready = self.nodes.get(running.behind as usize).is_none_or(|behind| behind.waits == 0);
            is_ready && self.informs_independent(running)
        })
    }

    /// True if those that wait for `node` belong to independent groups.
    pub(super) fn informs_independent(&self, node: &State) -> bool {
        if self.all_independent {
            return !node.informs_others;
        }
        let mut edge = node.first_edge;
        while let Some(&Edge { to, next }) = self.edges.get(edge as usize) {
            let lane = self.lanes.get(self.nodes[to as usize].lane as usize);
            if !lane.is_some_and(|lane| self.groups[lane.group as usize].independent) {
                return false;
            }
            edge = next;
        }
        true
    }

    /// What is first on `lane`, which runs nothing, may start at `at`.
    pub(super) fn wake(&mut self, lane: u32, at: Nanos) {
        let state = &self.lanes[lane as usize];
        if state.running == NONE && state.has_one_rank() {
            self.set_event(lane, at);
        }
    }
}
