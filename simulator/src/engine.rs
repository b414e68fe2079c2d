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
mod run;
mod tournament;

pub use memory::MemoryState;
pub use node::{CostRef, DeviceRef, Hold, LaneRef, LinkRef, Node, NodeRef, Ran};
pub use tournament::Tournament;

use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::{Rank, Shortage};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};

use crate::cost::JobCost;
use lane::Lane;
use memory::Tracked;
use network::Network;
use node::{NONE, Phase, Span, State};

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

    /// What `device` has in use now.
    pub fn memory(&self, device: DeviceRef) -> Option<MemoryState> {
        self.devices.get(device.0 as usize).map(|device| device.state)
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

    fn change(&mut self, device: u32, change: impl FnOnce(&mut MemoryState)) {
        let Some(tracked) = self.devices.get_mut(device as usize) else { return };
        change(&mut tracked.state);
        if !tracked.changed {
            tracked.changed = true;
            self.changed.push(device);
        }
    }
}
