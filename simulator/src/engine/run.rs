//! What happens, one instant after the other.

use slicescheduler_gmg::units::Nanos;

use super::lane::Doing;
use super::node::{NONE, Phase, Span};
use super::tournament::Tournament;
use super::{Change, Drained, Engine, LaneRef, NodeRef, Timer};

impl Engine {
    /// Runs until nothing is left that would happen before `horizon`, or until a watched lane has
    /// nothing more to do; more work may be added then, and [`run`](Self::run) called again.
    ///
    /// Nothing starts at or after the horizon. What runs at the horizon ends when it would if
    /// nothing else happened. O(events * log lanes), where an event is a start, an end, a cut or a
    /// release; macro-operators that nothing slows are one start and one end.
    pub fn run(&mut self, horizon: Nanos) -> Option<Drained> {
        self.horizon = horizon;
        self.admit();
        loop {
            if let Some(drained) = self.next_drained() {
                return Some(drained);
            }
            if self.is_unsettled() {
                self.settle();
            }
            self.run_ahead();
            let (mut source, at) = self.events.first();
            if at >= horizon.get() {
                self.now = self.latest;
                self.forecast_running();
                return None;
            }
            self.now = Nanos(at);
            self.latest = self.latest.max(self.now);
            if self.move_on(source) {
                continue;
            }
            loop {
                self.happen(source);
                if source < self.timers_source() && self.gangs.is_empty() {
                    // Nothing but its own event has changed, and that is looked for again later.
                    if self.events.first_of_others(source) != at {
                        break;
                    }
                    self.events.set(source, self.next_of(source).get());
                } else {
                    self.refresh();
                }
                let next = self.events.first();
                if next.1 != at {
                    break;
                }
                source = next.0;
            }
        }
    }

    fn timers_source(&self) -> u32 {
        self.groups.len() as u32
    }

    fn network_source(&self) -> u32 {
        self.groups.len() as u32 + 1
    }

    /// A watched lane whose last node ended in this instant, and that got nothing new since.
    fn next_drained(&mut self) -> Option<Drained> {
        while let Some(&lane) = self.drained.first() {
            self.drained.remove(0);
            let state = &self.lanes[lane as usize];
            if state.waiting == 0 {
                let node = self.nodes.get(state.last as usize).map_or(NONE, |node| node.number);
                return Some(Drained { lane: LaneRef(lane), node: NodeRef(node), at: self.now });
            }
        }
        None
    }

    /// Takes in what was added since the last run.
    fn admit(&mut self) {
        if !self.begun {
            self.begun = true;
            self.form_groups();
            self.events.reset(self.groups.len() + 2);
            (0..self.lanes.len() as u32).for_each(|lane| self.unsettle(lane));
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.drain(..).for_each(|node| self.become_runnable(node));
        self.fresh = fresh;
        self.timers[self.timer..].sort_unstable();
        while self.timers.get(self.timer).is_some_and(|(at, _)| *at <= self.now) {
            self.timer_event();
        }
        self.set_timer();
        self.find_independent();
    }

    fn set_timer(&mut self) {
        let next = self.timers.get(self.timer).map_or(Tournament::NEVER, |(at, _)| at.get());
        self.events.set(self.timers_source(), next);
    }

    /// One thing happens at `now`.
    fn happen(&mut self, source: u32) {
        if source < self.timers_source() {
            self.group_event(source, self.now);
        } else if source == self.timers_source() {
            self.timer_event();
            self.set_timer();
        } else {
            let mut arrived = std::mem::take(&mut self.arrived);
            self.network.step(self.now, self.floor, |node| arrived.push(node));
            self.network_changed = true;
            for node in arrived.drain(..) {
                self.end(node);
            }
            self.arrived = arrived;
            self.events.set(source, self.network.next());
        }
    }

    fn timer_event(&mut self) {
        let (_, timer) = self.timers[self.timer];
        self.timer += 1;
        match timer {
            Timer::Release(node) => self.become_runnable(self.store.place(node)),
            Timer::Recall(node, free) => self.take_back(self.store.place(node), free),
            Timer::Change(change) => match self.changes[change as usize] {
                Change::Speed(device, speed) => self.set_speed_now(device, speed),
                Change::Bandwidth(link, bandwidth) => {
                    self.network.set_bandwidth(link, bandwidth);
                    self.network_changed = true;
                }
            },
        }
    }

    pub(super) fn lane_event(&mut self, lane: u32) {
        let state = &self.lanes[lane as usize];
        if state.running == NONE {
            // What is first here may start now.
            return self.unsettle(lane);
        }
        let (next, _) = self.nodes[state.running as usize].ops();
        match state.doing {
            Doing::Whole => self.reach(lane, state.until),
            Doing::Step | Doing::Collective => self.reach(lane, next + 1),
            Doing::Host => self.launched(lane, next),
            // Neither has an event.
            Doing::Nothing | Doing::Peers => {}
        }
    }

    /// The node that runs on `lane` has done everything before `op`.
    fn reach(&mut self, lane: u32, op: u32) {
        let running = self.lanes[lane as usize].running;
        let state = &mut self.nodes[running as usize];
        let (_, end) = state.ops();
        if op >= end {
            return self.finish(lane);
        }
        state.set_next(op);
        if self.stops_before(lane, op) {
            return self.stop_before(lane, op);
        }
        match self.launch_time(lane) {
            Some(at) => self.wait_for_host(lane, at),
            None => self.go_on(lane),
        }
    }

    /// The host has launched operator `op` of the node that runs on `lane`.
    fn launched(&mut self, lane: u32, op: u32) {
        if self.stops_before(lane, op) { self.stop_before(lane, op) } else { self.go_on(lane) }
    }

    /// The next operator starts, or waits in a collective.
    pub(super) fn go_on(&mut self, lane: u32) {
        if self.is_collective(lane) { self.join_collective(lane) } else { self.run_next(lane) }
    }

    /// True if the running node is to stop at the boundary before `op`, which it has reached.
    fn stops_before(&self, lane: u32, op: u32) -> bool {
        match self.gang_on(lane) {
            Some(gang) => gang.stops_before(op),
            None => self.lanes[lane as usize].cut_from <= self.now,
        }
    }

    pub(super) fn stop_before(&mut self, lane: u32, op: u32) {
        let running = self.lanes[lane as usize].running;
        self.nodes[running as usize].cut(op);
        self.stop(lane);
        let state = &self.nodes[running as usize];
        if state.recalled && state.phase == Phase::Waiting && !state.in_gang {
            self.drop_node(running);
        }
    }

    /// The lane runs nothing and will choose again.
    pub(super) fn stop(&mut self, lane: u32) {
        self.vacate(lane);
        let state = &mut self.lanes[lane as usize];
        let running = std::mem::replace(&mut state.running, NONE);
        state.doing = Doing::Nothing;
        state.rate = 0;
        state.cut_from = Nanos::MAX;
        self.set_event(lane, Nanos::MAX);
        self.unsettle(lane);
        if self.nodes[running as usize].in_gang {
            self.leave_gang(running);
        }
    }

    /// If nothing else holds `node` back, it may start now.
    pub(super) fn become_runnable(&mut self, node: u32) {
        let state = &self.nodes[node as usize];
        if !state.runs_later() {
            return;
        }
        if state.lane != NONE {
            let at = state.release().max(self.now);
            return self.offer(state.lane, node, at);
        }
        if let Span::Flow { transfer } = state.span
            && state.release() <= self.now
        {
            self.network.start(node, transfer, self.now);
            self.network_changed = true;
            self.begin(node);
        }
    }

    /// `node` is runnable from `at` on: its lane chooses again, if that can make a difference.
    fn offer(&mut self, lane: u32, node: u32, at: Nanos) {
        let state = &self.lanes[lane as usize];
        if self.gangs.is_empty() && state.has_one_rank() && (state.running != NONE || state.only_head() != node) {
            return;
        }
        if self.running_ahead != NONE && self.running_ahead != state.group {
            // The others are not there yet.
            self.set_event(lane, at);
        } else if at == self.now {
            self.unsettle(lane);
        } else {
            self.wake(lane, at);
        }
    }

    /// `node` gives up its place on its lane.
    pub(super) fn leave(&mut self, node: u32) {
        let lane = self.nodes[node as usize].lane;
        let state = &mut self.lanes[lane as usize];
        state.remove(&mut self.nodes, node);
        state.last = node;
        if state.watched && state.waiting == 0 {
            self.drained.push(lane);
        }
        self.unsettle(lane);
    }

    fn take_back(&mut self, node: u32, free: bool) {
        let Some(state) = self.nodes.get(node as usize) else { return };
        if state.lane == NONE {
            return;
        }
        if state.in_gang {
            return self.take_back_gang(node, free);
        }
        match state.phase {
            Phase::Running => {
                let lane = state.lane;
                self.mark_recalled(node, free);
                self.cut(lane);
            }
            Phase::Waiting => {
                self.mark_recalled(node, free);
                self.drop_node(node);
            }
            Phase::Done | Phase::Dropped => {}
        }
    }

    pub(super) fn mark_recalled(&mut self, node: u32, free: bool) {
        let state = &mut self.nodes[node as usize];
        state.recalled = true;
        state.frees_on_recall = free;
    }

    /// `node`, which does not run, leaves without being done.
    pub(super) fn drop_node(&mut self, node: u32) {
        let state = &mut self.nodes[node as usize];
        let (started, free) = (state.drop_at(self.now), state.frees_on_recall);
        let mut hold = self.store.first_hold(node).filter(|_| free);
        while let Some(held) = hold {
            let bytes = if started { held.freed } else { held.freed - held.taken };
            self.free(held.device, held.kind, bytes);
            hold = self.store.next_hold(held);
        }
        if self.nodes[node as usize].lane != NONE {
            self.leave(node);
        }
    }

    /// Plans the cut of the node that runs on `lane`; at once if it is at a boundary now.
    fn cut(&mut self, lane: u32) {
        let running = self.lanes[lane as usize].running;
        if self.nodes[running as usize].in_gang {
            return self.cut_gang(running);
        }
        let Span::Operators { next, .. } = self.nodes[running as usize].span else { return };
        if self.lanes[lane as usize].cut_from != Nanos::MAX {
            return;
        }
        self.lanes[lane as usize].cut_from = self.now + self.window;
        match self.lanes[lane as usize].doing {
            Doing::Whole => {
                let (op, at) = self.whole_end(lane);
                if at > self.now || op >= self.nodes[running as usize].ops().1 {
                    self.lanes[lane as usize].until = op;
                    self.set_event(lane, at);
                } else {
                    self.stop_before(lane, op);
                }
            }
            Doing::Step if self.window.is_zero() && self.is_at_boundary(lane) => self.stop_before(lane, next),
            Doing::Host if self.window.is_zero() => self.stop_before(lane, next),
            _ => {}
        }
    }

    /// True if the operator that is simulated on its own has just started.
    pub(super) fn is_at_boundary(&self, lane: u32) -> bool {
        let state = &self.lanes[lane as usize];
        let whole = u128::from(self.operator_length(lane).get()) * u128::from(crate::interference::Rate::ONE.get());
        state.since == self.now && state.left == whole
    }

    /// The operator before which something happens to the node that runs as a whole on `lane`: its
    /// end, a collective, or the boundary where it is cut; and when that is.
    pub(super) fn whole_end(&self, lane: u32) -> (u32, Nanos) {
        let state = &self.lanes[lane as usize];
        match self.nodes[state.running as usize].span {
            Span::Operators { cost, next, end } => {
                let cost = &self.costs[cost as usize].cost;
                let mut until = end;
                if let Some(gang) = self.gang_on(lane) {
                    until = gang.segment_end(&self.collectives, next, end);
                } else if state.cut_from != Nanos::MAX {
                    let elapsed = state.elapsed(state.cut_from.max(self.now));
                    until = cost.boundary_at_or_after(next..end, elapsed).0;
                }
                let at = state.since + cost.total(next..until).max(Nanos(u64::from(until > next)));
                (until, if until == end { at.max(self.floor) } else { at })
            }
            Span::Fixed { length, .. } => (1, (state.since + length.max(Nanos(1))).max(self.floor)),
            Span::Flow { .. } => (0, Nanos::MAX),
        }
    }

    /// What is left of the running node goes on as one, as if its next operator had started at
    /// `since` and were `ahead` by a part of a nanosecond.
    pub(super) fn run_whole(&mut self, lane: u32, since: Nanos, ahead: u32) {
        let state = &mut self.lanes[lane as usize];
        (state.doing, state.since, state.ahead, state.rate) = (Doing::Whole, since, ahead, 0);
        let (until, at) = self.whole_end(lane);
        self.lanes[lane as usize].until = until;
        self.set_event(lane, at);
    }

    pub(super) fn unsettle(&mut self, lane: u32) {
        let state = &mut self.lanes[lane as usize];
        if !state.unsettled {
            state.unsettled = true;
            self.unsettled.push(lane);
        }
    }

    /// True if the instant is not over.
    pub(super) fn is_unsettled(&self) -> bool {
        let nothing = self.unsettled.is_empty() && self.unrated.is_empty() && self.changed.is_empty();
        !nothing || self.network_changed || !self.gangs.is_empty()
    }

    /// Every lane that something happened to chooses what runs; then the instant is over.
    pub(super) fn settle(&mut self) {
        if self.network_changed {
            let mut cut = std::mem::take(&mut self.arrived);
            self.network.cut_failed(|node| cut.push(node));
            for node in cut.drain(..) {
                self.mark_recalled(node, true);
                self.drop_node(node);
            }
            self.arrived = cut;
        }
        if self.gangs.is_empty() {
            while let Some(lane) = self.unsettled.pop() {
                self.lanes[lane as usize].unsettled = false;
                self.choose(lane);
            }
        } else {
            self.settle_in_order();
        }
        if std::mem::take(&mut self.network_changed) {
            self.network.share(self.now);
            self.events.set(self.network_source(), self.network.next());
        }
        self.rate_devices();
        while let Some(device) = self.changed.pop() {
            self.devices[device as usize].memory.settle(self.now);
        }
    }

    /// True if something started or stopped.
    pub(super) fn choose(&mut self, lane: u32) -> bool {
        if self.gangs.is_empty() && self.lanes[lane as usize].has_one_rank() {
            return self.start_first(lane);
        }
        let Some(best) = self.best(lane) else { return false };
        let running = self.lanes[lane as usize].running;
        if running == NONE {
            self.start(lane, best);
            return true;
        }
        if self.nodes[best as usize].rank > self.nodes[running as usize].rank {
            self.cut(lane);
            return self.lanes[lane as usize].running == NONE;
        }
        false
    }

    /// The first node of the highest rank whose first node may start now, or runs.
    fn best(&mut self, lane: u32) -> Option<u32> {
        let ranks = self.lanes[lane as usize].ranks();
        for rank in ranks.rev() {
            let node = self.lanes[lane as usize].heads[rank];
            let Some(head) = self.nodes.get(node as usize) else { continue };
            if head.phase == Phase::Running {
                return Some(node);
            }
            if !head.is_runnable(self.now) {
                continue;
            }
            if self.gangs.is_empty() || self.may_start(lane, node) {
                return Some(node);
            }
        }
        None
    }

    pub(super) fn start(&mut self, lane: u32, node: u32) {
        self.begin(node);
        let state = &mut self.lanes[lane as usize];
        state.running = node;
        if state.dispatcher == NONE && !self.nodes[node as usize].in_gang {
            return self.run_next(lane);
        }
        if self.nodes[node as usize].in_gang {
            self.enter_gang(node);
        }
        match self.first_launch(lane) {
            Some(at) => self.wait_for_host(lane, at),
            None => self.go_on(lane),
        }
    }

    /// What runs at the horizon is reported with the end that it would have if nothing else
    /// happened and nothing slowed the operators that it has not begun.
    fn forecast_running(&mut self) {
        for lane in 0..self.lanes.len() as u32 {
            let state = &self.lanes[lane as usize];
            let running = state.running;
            if running == NONE {
                continue;
            }
            let (next, end) = self.nodes[running as usize].ops();
            let rest = |from: u32| match self.nodes[running as usize].span {
                Span::Operators { cost, .. } => self.costs[cost as usize].cost.total(from..end),
                Span::Fixed { length, .. } if from == 0 => length.max(Nanos(1)),
                _ => Nanos::ZERO,
            };
            let event = state.event;
            let finish = match state.doing {
                Doing::Whole => state.since + rest(next),
                Doing::Step | Doing::Collective => event + rest(next + 1),
                Doing::Host => event + rest(next),
                Doing::Nothing | Doing::Peers => self.now + rest(next),
            };
            self.nodes[running as usize].expect(finish.max(self.floor));
        }
    }
}
