//! How one node follows another on a lane: what every operator of every simulation goes through.

use slicescheduler_gmg::units::Nanos;

use super::lane::Doing;
use super::node::{NONE, Span};
use super::{Edge, Engine};

impl Engine {
    /// `node` starts, for the first time or again.
    pub(super) fn begin(&mut self, node: u32) {
        let state = &mut self.nodes[node as usize];
        if !state.begin(self.now) {
            return;
        }
        self.operators += if state.lane == NONE { 0 } else { state.op_count() };
        let number = state.number;
        let mut hold = self.store.first_hold(node);
        while let Some(held) = hold {
            self.take(held.device, held.kind, held.taken, number);
            hold = self.store.next_hold(held);
        }
    }

    /// `node`, a transfer, is done.
    pub(super) fn end(&mut self, node: u32) {
        self.nodes[node as usize].end(self.now);
        self.free_and_inform(node);
    }

    /// The node on `lane` is done.
    pub(super) fn finish(&mut self, lane: u32) {
        let state = &mut self.lanes[lane as usize];
        let id = state.running;
        let node = &mut self.nodes[id as usize];
        if node.in_gang {
            self.stop(lane);
            self.nodes[id as usize].end(self.now);
            self.leave(id);
            return self.free_and_inform(id);
        }
        node.end(self.now);
        state.finish(node);
        if state.watched && state.waiting == 0 {
            self.drained.push(lane);
        }
        self.vacate(lane);
        self.set_event(lane, Nanos::MAX);
        self.unsettle(lane);
        self.free_and_inform(id);
    }

    /// What `node`, which has ended, held is free, and those that waited for it may start.
    fn free_and_inform(&mut self, node: u32) {
        let mut edge = self.nodes[node as usize].first_edge;
        let mut hold = self.store.first_hold(node);
        while let Some(held) = hold {
            self.free(held.device, held.kind, held.freed);
            hold = self.store.next_hold(held);
        }
        while let Some(&Edge { to, next }) = self.edges.get(edge as usize) {
            let successor = &mut self.nodes[to as usize];
            successor.waits -= 1;
            if self.running_ahead != NONE {
                successor.wait_until(self.now);
            }
            if successor.waits == 0 {
                self.become_runnable(to);
            }
            edge = next;
        }
    }

    /// The first node of `lane`, which has one rank, starts if it may. True if it does.
    pub(super) fn start_first(&mut self, lane: u32) -> bool {
        let state = &self.lanes[lane as usize];
        let id = state.only_head();
        let Some(node) = self.nodes.get(id as usize).filter(|_| state.running == NONE) else { return false };
        if !node.runs_later() {
            return false;
        }
        if node.release() > self.now {
            let at = node.release();
            self.wake(lane, at);
            return false;
        }
        let Span::Fixed { length, demand } = node.span else {
            self.start(lane, id);
            return true;
        };
        if state.dispatcher != NONE {
            self.start(lane, id);
            return true;
        }
        self.begin(id);
        self.occupy(lane);
        let now = self.now;
        let state = &mut self.lanes[lane as usize];
        let slows = self.devices.get(state.device as usize).is_some_and(|device| device.slows());
        let length = length.max(Nanos(1));
        (state.running, state.demand, state.since, state.rate) = (id, demand, now, 0);
        if slows {
            // Its end is known when the device's rates are.
            (state.doing, state.left) = (Doing::Step, super::share::work(length));
        } else {
            (state.doing, state.ahead, state.until) = (Doing::Whole, 0, 1);
            self.set_event(lane, (now + length).max(self.floor));
        }
        true
    }
}
