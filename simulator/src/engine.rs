//! The event engine: what happens when work of known length meets lanes, links and memory.
//!
//! It is told about lanes, links, devices and *nodes* (work), runs from the beginning of time to a
//! horizon, and then says when each node ran and how full each device was. It knows nothing of
//! graphs, requests or plans. Time is whole nanoseconds and every node takes at least one, so equal
//! input gives equal output on every machine.
//!
//! # Rules
//!
//! - **Lanes.** A lane runs one node at a time. Nodes of a lane wait in one queue per [`Rank`], in
//!   the order in which they were added; the first of a queue holds back those behind it. The lane
//!   takes the highest rank whose first node is *runnable*: released, and its predecessors done.
//! - **Right of way.** When a node of a higher rank becomes runnable, the one that runs is cut at
//!   the first operator boundary that is not before that moment, and goes on later from there.
//! - **Transfers.** A flow starts as soon as it is runnable, waits for the latency of its route, and
//!   then shares the links max-min fairly with all other flows.
//! - **Memory.** A node takes its bytes when it starts for the first time and gives them back when
//!   it ends, also while it is cut. Within one instant, everything that ends frees its bytes before
//!   anything that starts takes some.
//! - **Late work.** Nothing ends before the *floor*. A simulation may start in the past, to find
//!   the state that a lane must be in now; what should have ended by now but was not reported ends
//!   now.
//! - **Ties** go to the lower id.
//!
//! A macro-operator is a node over many operators; it behaves exactly as its operators would as
//! nodes of their own, one behind the other.
//!
//! ```
//! use slicescheduler_gmg::plan::Rank;
//! use slicescheduler_gmg::units::Nanos;
//! use slicescheduler_simulator::cost::JobCost;
//! use slicescheduler_simulator::engine::{Engine, Node};
//!
//! let mut engine = Engine::default();
//! let lane = engine.add_lane();
//! let cost = engine.add_cost(JobCost::from_block(&[Nanos(10)], 5));
//! let guest = engine.add(Node::operators(lane, cost, 0..5).rank(Rank::GuestBestEffort));
//! let owner = engine.add(Node::fixed(lane, Nanos(7)).rank(Rank::OwnerLatency).release(Nanos(12)));
//! engine.run(Nanos::MAX);
//! assert_eq!(engine.ran(owner).map(|ran| (ran.start, ran.finish)), Some((Nanos(20), Nanos(27))));
//! assert_eq!(engine.ran(guest).map(|ran| (ran.start, ran.finish, ran.cuts)), Some((Nanos(0), Nanos(57), 1)));
//! ```

mod lane;
mod memory;
mod network;
mod node;
mod tournament;

pub use memory::MemoryState;
pub use node::{CostRef, DeviceRef, Hold, LaneRef, LinkRef, Node, NodeRef, Ran};

use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::{Rank, Shortage};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};

use crate::cost::JobCost;
use lane::Lane;
use memory::Tracked;
use network::Network;
use node::{NONE, Phase, Span, State};
use tournament::{NEVER, Tournament};

/// The last node of a watched lane ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// The lane.
    pub lane: LaneRef,
    /// The node that ended last.
    pub node: NodeRef,
    /// When.
    pub at: Nanos,
}

/// What happens at a known time whatever the lanes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Release(u32),
    Recall(u32, bool),
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    to: u32,
    next: u32,
}

/// The event engine. Reused from one simulation to the next: in steady state it does not allocate.
#[derive(Debug, Default)]
pub struct Engine {
    nodes: Vec<State>,
    lanes: Vec<Lane>,
    costs: Vec<JobCost>,
    devices: Vec<Tracked>,
    holds: Vec<Hold>,
    edges: Vec<Edge>,
    network: Network,
    /// The lanes, then the timers, then the network.
    events: Tournament,
    /// Ascending from `timer` on.
    timers: Vec<(Nanos, Timer)>,
    timer: usize,
    /// Nodes from here on were added since the last run.
    fresh: usize,
    begun: bool,
    now: Nanos,
    floor: Nanos,
    window: Nanos,
    operators: u64,
    /// Lanes that have to choose again before time moves on.
    unsettled: Vec<u32>,
    /// Devices whose memory changed in this instant.
    changed: Vec<u32>,
    drained: Vec<u32>,
    arrived: Vec<u32>,
}

impl Engine {
    /// Forgets everything and starts at time zero. Nothing will end before `floor`.
    pub fn reset(&mut self, floor: Nanos) {
        self.nodes.clear();
        self.lanes.clear();
        self.costs.clear();
        self.devices.clear();
        self.holds.clear();
        self.edges.clear();
        self.network.reset();
        self.timers.clear();
        self.timer = 0;
        self.fresh = 0;
        self.begun = false;
        self.now = Nanos::ZERO;
        self.floor = floor;
        self.window = Nanos::ZERO;
        self.operators = 0;
        self.unsettled.clear();
        self.changed.clear();
        self.drained.clear();
    }

    /// Work that would start within `window` after a cut or a recall is launched already: the
    /// boundary is the first that is not before its end. Zero after a reset.
    pub fn set_launched_window(&mut self, window: Nanos) {
        self.window = window;
    }

    /// Adds a lane.
    pub fn add_lane(&mut self) -> LaneRef {
        self.lanes.push(Lane::default());
        LaneRef((self.lanes.len() - 1) as u32)
    }

    /// Adds a link.
    pub fn add_link(&mut self, bandwidth: Bandwidth) -> LinkRef {
        LinkRef(self.network.add_link(bandwidth))
    }

    /// Adds a device, as it is at the start.
    pub fn add_device(&mut self, memory: MemoryState) -> DeviceRef {
        self.devices.push(Tracked::new(memory));
        DeviceRef((self.devices.len() - 1) as u32)
    }

    /// Adds the durations of a job, for nodes that run its operators.
    pub fn add_cost(&mut self, cost: JobCost) -> CostRef {
        self.costs.push(cost);
        CostRef((self.costs.len() - 1) as u32)
    }

    /// Adds work. Between two runs, work whose release is past is released then. Work with a
    /// reference that is not of this simulation never runs.
    pub fn add(&mut self, node: Node) -> NodeRef {
        let id = self.nodes.len() as u32;
        let known = !matches!(node.span, Span::Operators { cost, .. } if cost as usize >= self.costs.len());
        let lane = node.lane.map_or(NONE, |lane| lane.0);
        let lane = match self.lanes.get_mut(lane as usize) {
            Some(queues) if known => {
                queues.push(&mut self.nodes, id, node.rank);
                lane
            }
            _ => NONE,
        };
        let holds = self.holds.len() as u32;
        self.nodes.push(State::new(&node, lane, holds..holds));
        NodeRef(id)
    }

    /// Adds a transfer of `bytes` over `links`.
    pub fn add_flow(&mut self, links: &[LinkRef], bytes: Bytes, latency: Nanos, release: Nanos) -> NodeRef {
        let links = self.network.add_route(links.iter().map(|link| link.0));
        self.add(Node { lane: None, rank: Rank::GuestBestEffort, release, span: Span::Flow { links, bytes, latency } })
    }

    /// Bytes that a node holds. To be called before another node is added.
    pub fn hold(&mut self, node: NodeRef, hold: Hold) {
        if let Some(state) = self.nodes.get_mut(node.0 as usize)
            && state.holds.end as usize == self.holds.len()
            && (hold.device.0 as usize) < self.devices.len()
        {
            self.holds.push(hold);
            state.holds.end += 1;
        }
    }

    /// `node` must not start before `predecessor` is done. To be called before the run that `node`
    /// takes part in; a predecessor that is done already is no obstacle.
    pub fn add_edge(&mut self, predecessor: NodeRef, node: NodeRef) {
        let (from, to) = (predecessor.0 as usize, node.0 as usize);
        if from >= self.nodes.len() || to >= self.nodes.len() || self.nodes[from].phase == Phase::Done {
            return;
        }
        self.edges.push(Edge { to: node.0, next: self.nodes[from].first_edge });
        self.nodes[from].first_edge = (self.edges.len() - 1) as u32;
        self.nodes[to].waits += 1;
    }

    /// Takes `node` back at its first operator boundary that is not before `at`, or at once if it
    /// does not run then. What it holds is freed only if `free`; its successors never start.
    pub fn recall(&mut self, node: NodeRef, at: Nanos, free: bool) {
        self.timers.push((at.max(self.now), Timer::Recall(node.0, free)));
    }

    /// Lets [`run`](Self::run) return whenever the last node of `lane` ends.
    pub fn watch(&mut self, lane: LaneRef) {
        if let Some(lane) = self.lanes.get_mut(lane.0 as usize) {
            lane.watched = true;
        }
    }

    /// Counts bytes that are taken now.
    pub fn reserve(&mut self, device: DeviceRef, kind: ByteKind, bytes: Bytes) {
        self.change(device.0, |memory| memory.add(kind, bytes));
    }

    /// Counts bytes that are freed now.
    pub fn release(&mut self, device: DeviceRef, kind: ByteKind, bytes: Bytes) {
        self.change(device.0, |memory| memory.remove(kind, bytes));
    }

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

    /// When `node` ran. [`None`] if it did not start before the horizon, was cut and did not go on
    /// before it, or was taken back before it ran.
    pub fn ran(&self, node: NodeRef) -> Option<Ran> {
        self.nodes.get(node.0 as usize).and_then(State::ran)
    }

    /// The first operator of `node` that is not done at the horizon. For a node that runs then:
    /// the one at the first boundary that is not before it.
    pub fn progress(&self, node: NodeRef, horizon: Nanos) -> u32 {
        let Some(state) = self.nodes.get(node.0 as usize) else { return 0 };
        match (&state.span, state.phase) {
            (Span::Operators { cost, ops }, Phase::Running) => {
                let ops = ops.clone();
                self.costs[*cost as usize].boundary_at_or_after(ops, horizon - state.since).0
            }
            (Span::Operators { ops, .. }, _) => ops.start,
            _ => 0,
        }
    }

    /// The most bytes in use on `device` at one time.
    pub fn peak(&self, device: DeviceRef) -> Bytes {
        self.devices.get(device.0 as usize).map_or(Bytes::ZERO, Tracked::peak)
    }

    /// The first time that `device` had too few bytes.
    pub fn shortage(&self, device: DeviceRef) -> Option<Shortage> {
        self.devices.get(device.0 as usize).and_then(Tracked::shortage)
    }

    /// Operators of the nodes that started. Work of a fixed length counts as one, a transfer as none.
    pub fn operators(&self) -> u64 {
        self.operators
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
        let next = self.timers.get(self.timer).map_or(NEVER, |(at, _)| at.get());
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
        self.events.set(lane, NEVER);
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

    fn change(&mut self, device: u32, change: impl FnOnce(&mut MemoryState)) {
        let Some(tracked) = self.devices.get_mut(device as usize) else { return };
        change(&mut tracked.state);
        if !tracked.changed {
            tracked.changed = true;
            self.changed.push(device);
        }
    }
}
