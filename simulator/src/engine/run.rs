//! What happens, one instant after the other.

use slicescheduler_gmg::units::Nanos;

use super::node::{NONE, Phase, Span, State};
use super::tournament::Tournament;
use super::{Drained, Edge, Engine, LaneRef, NodeRef, Timer};

impl Engine {
    /// Runs until nothing is left that would happen before `horizon`, or until a watched lane has
    /// nothing more to do; more work may be added then, and [`run`](Self::run) called again.
    ///
    /// Nothing starts at or after the horizon. What runs at the horizon ends when it would if
    /// nothing else happened. O(events * log lanes), where an event is a start, an end, a cut or a
    /// release; macro-operators are one start and one end.
    pub fn run(&mut self, horizon: Nanos) -> Option<Drained> {
        self.admit();
        loop {
            if let Some(drained) = self.next_drained() {
                return Some(drained);
            }
            self.settle();
            let (_, at) = self.events.first();
            if at >= horizon.get() {
                self.forecast_running();
                return None;
            }
            self.now = Nanos(at);
            loop {
                let (source, next) = self.events.first();
                if next != at {
                    break;
                }
                self.happen(source);
            }
        }
    }

    fn timers_source(&self) -> u32 {
        self.lanes.len() as u32
    }

    fn network_source(&self) -> u32 {
        self.lanes.len() as u32 + 1
    }

    /// A watched lane whose last node ended in this instant, and that got nothing new since.
    fn next_drained(&mut self) -> Option<Drained> {
        while let Some(&lane) = self.drained.first() {
            self.drained.remove(0);
            let state = &self.lanes[lane as usize];
            if state.waiting == 0 {
                return Some(Drained { lane: LaneRef(lane), node: NodeRef(state.last), at: self.now });
            }
        }
        None
    }

    /// Takes in what was added since the last run.
    fn admit(&mut self) {
        if !self.begun {
            self.begun = true;
            self.events.reset(self.lanes.len() + 2);
        }
        for id in self.fresh..self.nodes.len() {
            let release = self.nodes[id].release;
            if release > self.now {
                self.timers.push((release, Timer::Release(id as u32)));
            } else {
                self.become_runnable(id as u32);
            }
        }
        self.fresh = self.nodes.len();
        self.timers[self.timer..].sort_unstable();
        self.set_timer();
    }

    fn set_timer(&mut self) {
        let next = self.timers.get(self.timer).map_or(Tournament::NEVER, |(at, _)| at.get());
        self.events.set(self.timers_source(), next);
    }

    /// One thing happens at `now`.
    fn happen(&mut self, source: u32) {
        if source < self.timers_source() {
            self.lane_event(source);
        } else if source == self.timers_source() {
            let (_, timer) = self.timers[self.timer];
            self.timer += 1;
            self.set_timer();
            match timer {
                Timer::Release(node) => self.become_runnable(node),
                Timer::Recall(node, free) => self.take_back(node, free),
            }
        } else {
            let mut arrived = std::mem::take(&mut self.arrived);
            self.network.step(self.now, self.floor, |node| arrived.push(node));
            for node in arrived.drain(..) {
                self.end(node);
            }
            self.arrived = arrived;
            self.events.set(source, self.network.next(self.floor));
        }
    }

    /// The node that runs on `lane` reaches its end or the boundary where it is to be cut.
    fn lane_event(&mut self, lane: u32) {
        let running = self.lanes[lane as usize].running;
        self.stop(lane);
        let state = &mut self.nodes[running as usize];
        match state.cut_at.take() {
            None => self.end(running),
            Some(next) => {
                state.cut(next);
                if state.recalled {
                    self.drop_node(running);
                }
            }
        }
    }

    /// The lane runs nothing and will choose again.
    fn stop(&mut self, lane: u32) {
        self.lanes[lane as usize].running = NONE;
        self.events.set(lane, Tournament::NEVER);
        self.unsettle(lane);
    }

    /// If nothing else holds `node` back, it may start now.
    fn become_runnable(&mut self, node: u32) {
        let state = &self.nodes[node as usize];
        if state.waits > 0 || state.release > self.now || state.phase != Phase::Waiting {
            return;
        }
        if state.lane != NONE {
            return self.unsettle(state.lane);
        }
        if let Span::Flow { links, bytes, latency } = &state.span {
            self.network.start(node, links.clone(), *bytes, *latency, self.now);
            self.begin(node);
            self.events.set(self.network_source(), self.network.next(self.floor));
        }
    }

    fn begin(&mut self, node: u32) {
        let state = &mut self.nodes[node as usize];
        let first = state.begin(self.now);
        if first {
            self.operators += state.op_count();
            for index in self.nodes[node as usize].holds.clone() {
                let hold = self.holds[index as usize];
                self.change(hold.device.0, |memory| memory.add(hold.kind, hold.taken));
            }
        }
    }

    fn end(&mut self, node: u32) {
        self.nodes[node as usize].end(self.now);
        self.free(node);
        if self.nodes[node as usize].lane != NONE {
            self.leave(node);
        }
        let mut edge = self.nodes[node as usize].first_edge;
        while let Some(&Edge { to, next }) = self.edges.get(edge as usize) {
            self.nodes[to as usize].waits -= 1;
            self.become_runnable(to);
            edge = next;
        }
    }

    fn free(&mut self, node: u32) {
        for index in self.nodes[node as usize].holds.clone() {
            let hold = self.holds[index as usize];
            self.change(hold.device.0, |memory| memory.remove(hold.kind, hold.freed));
        }
    }

    /// `node` gives up its place on its lane.
    fn leave(&mut self, node: u32) {
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
        let Some(state) = self.nodes.get_mut(node as usize) else { return };
        if state.lane == NONE || !matches!(state.phase, Phase::Waiting | Phase::Running) {
            return;
        }
        state.recalled = true;
        state.frees_on_recall = free;
        let (lane, phase) = (state.lane, state.phase);
        match phase {
            Phase::Running => self.cut(lane),
            _ => self.drop_node(node),
        }
    }

    /// `node`, which does not run, leaves without being done.
    fn drop_node(&mut self, node: u32) {
        let state = &mut self.nodes[node as usize];
        let (started, free) = (state.drop_at(self.now), state.frees_on_recall);
        for index in self.nodes[node as usize].holds.clone().filter(|_| free) {
            let hold = self.holds[index as usize];
            let held = if started { hold.freed } else { hold.freed - hold.taken };
            self.change(hold.device.0, |memory| memory.remove(hold.kind, held));
        }
        self.leave(node);
    }

    /// Plans the cut of the node that runs on `lane`; at once if it is at a boundary now.
    fn cut(&mut self, lane: u32) {
        let running = self.lanes[lane as usize].running;
        let state = &mut self.nodes[running as usize];
        if state.cut_at.is_some() {
            return;
        }
        let Span::Operators { cost, ops } = &state.span else { return };
        let elapsed = self.now + self.window - state.since;
        let (next, after) = self.costs[*cost as usize].boundary_at_or_after(ops.clone(), elapsed);
        if next >= ops.end {
            return;
        }
        let at = state.since + after;
        if at > self.now {
            state.cut_at = Some(next);
            self.events.set(lane, at.get());
            return;
        }
        state.cut(next);
        let recalled = state.recalled;
        self.stop(lane);
        if recalled {
            self.drop_node(running);
        }
    }

    fn unsettle(&mut self, lane: u32) {
        let state = &mut self.lanes[lane as usize];
        if !state.unsettled {
            state.unsettled = true;
            self.unsettled.push(lane);
        }
    }

    /// Every lane that something happened to chooses what runs; then the instant is over.
    fn settle(&mut self) {
        while let Some(lane) = self.unsettled.pop() {
            self.lanes[lane as usize].unsettled = false;
            self.choose(lane);
        }
        while let Some(device) = self.changed.pop() {
            self.devices[device as usize].settle(self.now);
        }
    }

    fn choose(&mut self, lane: u32) {
        let Some(best) = self.lanes[lane as usize].best(&self.nodes, self.now) else { return };
        let running = self.lanes[lane as usize].running;
        if running != NONE {
            if self.nodes[best as usize].rank > self.nodes[running as usize].rank {
                self.cut(lane);
            }
            return;
        }
        self.begin(best);
        let state = &self.nodes[best as usize];
        let finish = (self.now + self.length(state)).max(self.floor);
        self.lanes[lane as usize].running = best;
        self.events.set(lane, finish.get());
    }

    fn length(&self, state: &State) -> Nanos {
        match &state.span {
            Span::Operators { cost, ops } => self.costs[*cost as usize].total(ops.clone()).max(Nanos(1)),
            Span::Fixed(length) => (*length).max(Nanos(1)),
            Span::Flow { .. } => Nanos::ZERO,
        }
    }

    /// What runs at the horizon is reported with the end that it would have if nothing else
    /// happened.
    fn forecast_running(&mut self) {
        for lane in 0..self.lanes.len() {
            let running = self.lanes[lane].running;
            if running != NONE {
                let state = &self.nodes[running as usize];
                let finish = (state.since + self.length(state)).max(self.floor);
                self.nodes[running as usize].expect(finish);
            }
        }
    }
}
