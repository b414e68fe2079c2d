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
//! - **Shared devices.** Lanes of one device with an [`Interference`]
//!   slow each other; a device can also be slow as a whole. Operators of such lanes are simulated one by
//!   one, each at a rate that holds until the set of operators on the device changes; an operator ends
//!   at the first whole nanosecond at which its work is done. A lane that is alone on a device at full
//!   speed runs its nodes as a whole.
//! - **Gangs.** Nodes of several lanes that meet in collectives: see [`Engine::add_gang`].
//! - **Launches.** A lane can have a host that launches its operators, see [`LaunchCosts`]. The node holds
//!   its lane, but nothing on the device, until its next operator is launched.
//! - **Transfers.** A flow starts as soon as it is runnable, waits for the latency of its route, and
//!   then shares the links max-min fairly with all other flows. If a link of its route fails, it is
//!   dropped, what it holds is freed, and its successors never start.
//! - **Memory.** A node takes its bytes when it starts for the first time and gives them back when
//!   it ends, also while it is cut. Within one instant, everything that ends frees its bytes before
//!   anything that starts takes some.
//! - **Late work.** Nothing ends before the *floor*. A simulation may start in the past, to find
//!   the state that a lane must be in now; what should have ended by now but was not reported ends
//!   now.
//! - **Boundaries** of operators are where one ends and where the next one starts.
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

mod advance;
mod dispatch;
mod gang;
mod group;
mod lane;
mod memory;
mod network;
mod node;
mod order;
mod run;
mod share;
mod store;
mod tournament;
mod turn;

pub use dispatch::LaunchCosts;
pub use gang::{CollectivesRef, GangError};
pub use memory::{MemoryPoint, MemoryState, Violation};
pub use node::{CostRef, DeviceRef, Hold, LaneRef, LinkRef, Node, NodeRef, Ran};
pub use order::OrderCycle;
pub use tournament::Tournament;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::{Rank, Shortage};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};

use crate::cost::JobCost;
use crate::interference::{Interference, JobDemand, Rate};
use dispatch::Dispatcher;
use gang::Gang;
use group::Group;
use lane::{Doing, Lane};
use memory::Tracked;
pub(crate) use network::Network;
use node::{NONE, Phase, Span, State};
use share::{Device, Rating};
use store::Store;

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
    /// One of `changes`.
    Change(u32),
}

/// What becomes of a device or a link.
#[derive(Clone, Copy, Debug)]
enum Change {
    Speed(u32, Rate),
    Bandwidth(u32, Bandwidth),
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    to: u32,
    next: u32,
}

/// Bytes that a node holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    taken: Bytes,
    freed: Bytes,
    device: u32,
    /// What else the same node holds.
    next: u32,
    kind: ByteKind,
}

impl Held {
    /// Nothing, of no device.
    const NONE: Self =
        Self { taken: Bytes::ZERO, freed: Bytes::ZERO, device: NONE, next: NONE, kind: ByteKind::Activations };
}

/// A job's durations and demands.
#[derive(Clone, Debug)]
struct Work {
    cost: JobCost,
    /// One of `demands`; none if it demands nothing.
    demand: u32,
}

/// The event engine. Reused from one simulation to the next: in steady state it does not allocate.
#[derive(Debug, Default)]
pub struct Engine {
    /// By place.
    nodes: Vec<State>,
    store: Store,
    lanes: Vec<Lane>,
    costs: Vec<Work>,
    demands: Vec<JobDemand>,
    devices: Vec<Device>,
    dispatchers: Vec<Dispatcher>,
    edges: Vec<Edge>,
    network: Network,
    /// True if flows or links changed in this instant.
    network_changed: bool,
    gangs: Vec<Gang>,
    gang_members: Vec<u32>,
    /// By place, as far as there are members of gangs.
    gang_of: Vec<u32>,
    /// Operators that are collectives, ascending.
    collectives: Vec<Vec<u32>>,
    /// Of lanes, from the first run on.
    groups: Vec<Group>,
    /// The lanes of the groups.
    grouped: Vec<u32>,
    /// Groups whose next event may be another than `events` says.
    stale: Vec<u32>,
    /// The groups, then the timers, then the network.
    events: Tournament,
    /// Ascending from `timer` on.
    timers: Vec<(Nanos, Timer)>,
    timer: usize,
    changes: Vec<Change>,
    /// Places of nodes that were added since the last run and may start at once, if they are on no lane or the first run
    /// was before.
    fresh: Vec<u32>,
    begun: bool,
    now: Nanos,
    /// The latest that `now` has been: groups that run ahead are later than others.
    latest: Nanos,
    /// The group that runs ahead of the others at this moment; or none.
    running_ahead: u32,
    /// True if all groups are independent.
    all_independent: bool,
    /// Nothing starts then or later.
    horizon: Nanos,
    /// True if a lane is watched.
    watching: bool,
    floor: Nanos,
    window: Nanos,
    operators: u64,
    /// Lanes that have to choose again before time moves on.
    unsettled: Vec<u32>,
    /// Lanes where a gang kept something from starting.
    gated: Vec<u32>,
    /// Devices whose rates have to be asked for before time moves on.
    unrated: Vec<u32>,
    /// Devices whose memory changed in this instant.
    changed: Vec<u32>,
    drained: Vec<u32>,
    /// Nodes that nothing holds back any more since a plain group moved on.
    told: Vec<u32>,
    /// Nodes from this place on have not been read ahead.
    read: u32,
    arrived: Vec<u32>,
    rating: Rating,
    pass: BinaryHeap<Reverse<u32>>,
    later: Vec<u32>,
}

impl Engine {
    /// Forgets everything and starts at time zero. Nothing will end before `floor`.
    pub fn reset(&mut self, floor: Nanos) {
        self.nodes.clear();
        self.store.clear();
        self.lanes.clear();
        self.costs.clear();
        self.demands.clear();
        self.devices.clear();
        self.dispatchers.clear();
        self.edges.clear();
        self.network.reset();
        self.network_changed = false;
        self.gangs.clear();
        self.gang_members.clear();
        self.gang_of.clear();
        self.collectives.clear();
        self.timers.clear();
        self.timer = 0;
        self.changes.clear();
        self.fresh.clear();
        self.begun = false;
        self.groups.clear();
        self.grouped.clear();
        self.stale.clear();
        self.all_independent = false;
        self.watching = false;
        self.now = Nanos::ZERO;
        self.latest = Nanos::ZERO;
        self.floor = floor;
        self.window = Nanos::ZERO;
        self.operators = 0;
        self.unsettled.clear();
        self.gated.clear();
        self.unrated.clear();
        self.changed.clear();
        self.drained.clear();
        self.read = 0;
    }

    /// Work that would start within `window` after a cut or a recall is launched already: the
    /// boundary is the first that is not before its end. Zero after a reset.
    pub fn set_launched_window(&mut self, window: Nanos) {
        self.window = window;
    }

    /// Adds a lane that shares nothing with others.
    pub fn add_lane(&mut self) -> LaneRef {
        self.lanes.push(Lane::default());
        LaneRef((self.lanes.len() - 1) as u32)
    }

    /// Adds a lane of `device`: it is as fast as the device is, and is slowed by the device's other
    /// lanes if the device has an interference.
    pub fn add_lane_of(&mut self, device: DeviceRef) -> LaneRef {
        let id = self.add_lane();
        if let (Some(state), Some(lane)) = (self.devices.get_mut(device.0 as usize), self.lanes.last_mut()) {
            lane.device = device.0;
            lane.number = state.add_lane(id.0);
        }
        id
    }

    /// Lets a host launch the operators of `lane`, at these costs.
    pub fn set_launch_costs(&mut self, lane: LaneRef, costs: LaunchCosts) {
        if let Some(lane) = self.lanes.get_mut(lane.0 as usize) {
            lane.dispatcher = self.dispatchers.len() as u32;
            self.dispatchers.push(Dispatcher::new(costs));
        }
    }

    /// Lets the lanes of `device` slow each other. Without, they do not.
    pub fn set_interference(&mut self, device: DeviceRef, interference: Arc<dyn Interference>) {
        self.share_device(device.0, interference);
    }

    /// From `at` on everything on `device` but collectives runs at `speed`: a throttled device, or
    /// a straggler.
    pub fn set_speed(&mut self, device: DeviceRef, speed: Rate, at: Nanos) {
        if let Some(state) = self.devices.get_mut(device.0 as usize) {
            state.throttled = true;
            self.change_at(at, Change::Speed(device.0, speed));
        }
    }

    /// From `at` on `link` carries `bandwidth`. A link that carries nothing has failed: the flows on
    /// it are dropped at that moment, and later ones when their first byte would move.
    pub fn set_bandwidth(&mut self, link: LinkRef, bandwidth: Bandwidth, at: Nanos) {
        self.change_at(at, Change::Bandwidth(link.0, bandwidth));
    }

    fn change_at(&mut self, at: Nanos, change: Change) {
        self.timers.push((at.max(self.now), Timer::Change(self.changes.len() as u32)));
        self.changes.push(change);
    }

    /// Adds a link.
    pub fn add_link(&mut self, bandwidth: Bandwidth) -> LinkRef {
        LinkRef(self.network.add_link(bandwidth))
    }

    /// Adds a device, as it is at the start.
    pub fn add_device(&mut self, memory: MemoryState) -> DeviceRef {
        self.devices.push(Device::new(Tracked::new(memory)));
        DeviceRef((self.devices.len() - 1) as u32)
    }

    /// Adds the durations of a job, for nodes that run its operators. They demand nothing of their
    /// device.
    pub fn add_cost(&mut self, cost: JobCost) -> CostRef {
        self.costs.push(Work { cost, demand: NONE });
        CostRef((self.costs.len() - 1) as u32)
    }

    /// Adds the durations of a job and what its operators demand of their device meanwhile.
    pub fn add_cost_with_demand(&mut self, cost: JobCost, demand: JobDemand) -> CostRef {
        self.costs.push(Work { cost, demand: self.demands.len() as u32 });
        self.demands.push(demand);
        CostRef((self.costs.len() - 1) as u32)
    }

    /// Adds work. Between two runs, work whose release is past is released then. Work with a
    /// reference that is not of this simulation never runs.
    pub fn add(&mut self, node: Node) -> NodeRef {
        let number = self.store.count();
        let known = !matches!(node.span, Span::Operators { cost, .. } if cost as usize >= self.costs.len());
        let lane = node.lane.map_or(NONE, |lane| lane.0);
        let lane = if known && (lane as usize) < self.lanes.len() { lane } else { NONE };
        let place = self.store.add(&mut self.nodes, lane, self.lanes.len(), State::new(&node, lane, number));
        if let Some(queues) = self.lanes.get_mut(lane as usize) {
            queues.push(&mut self.nodes, place, node.rank as usize);
            queues.has_operators |= !matches!(node.span, Span::Fixed { .. });
        }
        if node.release > self.now {
            self.timers.push((node.release, Timer::Release(number)));
        } else if self.begun || lane == NONE {
            self.fresh.push(place);
        }
        NodeRef(number)
    }

    /// Adds a transfer of `bytes` over `links`.
    pub fn add_flow(&mut self, links: &[LinkRef], bytes: Bytes, latency: Nanos, release: Nanos) -> NodeRef {
        let transfer = self.network.add_transfer(links.iter().map(|link| link.0), bytes, latency);
        self.add(Node { lane: None, rank: Rank::GuestBestEffort, release, span: Span::Flow { transfer } })
    }

    /// Bytes that a node holds. To be called before another node is added.
    pub fn hold(&mut self, node: NodeRef, hold: Hold) {
        let place = self.store.place(node.0);
        let is_last = node.0.wrapping_add(1) == self.store.count();
        let Some(state) = self.nodes.get(place as usize).filter(|_| is_last) else { return };
        let Hold { device, kind, taken, freed } = hold;
        if let Some(held) = self.devices.get_mut(device.0 as usize) {
            match self.lanes.get_mut(state.lane as usize) {
                Some(lane) if lane.device == device.0 => {}
                Some(lane) => (lane.strays, held.visited) = (true, true),
                None => held.visited = true,
            }
            self.store.hold(place, Held { taken, freed, device: device.0, kind, next: NONE });
        }
    }

    /// `node` must not start before `predecessor` is done. To be called before the run that `node`
    /// takes part in; a predecessor that is done already is no obstacle.
    pub fn add_edge(&mut self, predecessor: NodeRef, node: NodeRef) {
        let [from, to] = [predecessor, node].map(|node| self.store.place(node.0) as usize);
        if from >= self.nodes.len() || to >= self.nodes.len() || self.nodes[from].phase == Phase::Done {
            return;
        }
        self.edges.push(Edge { to: to as u32, next: self.nodes[from].first_edge });
        self.nodes[from].first_edge = (self.edges.len() - 1) as u32;
        self.nodes[from].informs_others |= self.nodes[to].lane == NONE;
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
            self.watching = true;
            self.all_independent = false;
            self.groups.iter_mut().for_each(Group::watch);
        }
    }

    /// Counts bytes that are taken now.
    pub fn reserve(&mut self, device: DeviceRef, kind: ByteKind, bytes: Bytes) {
        self.take(device.0, kind, bytes, NONE);
    }

    /// Counts bytes that are freed now.
    pub fn release(&mut self, device: DeviceRef, kind: ByteKind, bytes: Bytes) {
        self.free(device.0, kind, bytes);
    }

    /// Keeps what is in use on `device` over time, for [`memory_over_time`](Self::memory_over_time).
    pub fn record_memory(&mut self, device: DeviceRef) {
        let now = self.now;
        if let Some(device) = self.devices.get_mut(device.0 as usize) {
            device.memory.recording = true;
            device.memory.record(now);
        }
    }

    /// When `node` ran. [`None`] if it did not start before the horizon, was cut and did not go on
    /// before it, or was taken back before it ran.
    pub fn ran(&self, node: NodeRef) -> Option<Ran> {
        self.nodes.get(self.store.place(node.0) as usize).and_then(State::ran)
    }

    /// The first operator of `node` that is not done at the horizon. For a node that runs then:
    /// the one at the first boundary that is not before it.
    pub fn progress(&self, node: NodeRef, horizon: Nanos) -> u32 {
        let Some(state) = self.nodes.get(self.store.place(node.0) as usize) else { return 0 };
        let Span::Operators { cost, next, end } = state.span else { return 0 };
        let Some(lane) = self.lanes.get(state.lane as usize).filter(|_| state.phase == Phase::Running) else {
            return next;
        };
        match lane.doing {
            Doing::Whole => self.costs[cost as usize].cost.boundary_at_or_after(next..end, lane.elapsed(horizon)).0,
            Doing::Step | Doing::Collective | Doing::Peers => next + 1,
            Doing::Nothing | Doing::Host => next,
        }
    }

    /// What `device` has in use now.
    pub fn memory(&self, device: DeviceRef) -> Option<MemoryState> {
        self.devices.get(device.0 as usize).map(|device| device.memory.state())
    }

    /// The most bytes in use on `device` at one time.
    pub fn peak(&self, device: DeviceRef) -> Bytes {
        self.devices.get(device.0 as usize).map_or(Bytes::ZERO, |device| device.memory.peak())
    }

    /// The first time that `device` had too few bytes.
    pub fn shortage(&self, device: DeviceRef) -> Option<Shortage> {
        self.violation(device).map(|Violation { at, missing, .. }| Shortage { at, bytes: missing })
    }

    /// The first time that `device` had too few bytes, and because of whom.
    pub fn violation(&self, device: DeviceRef) -> Option<Violation> {
        self.devices.get(device.0 as usize).and_then(|device| device.memory.violation())
    }

    /// What was in use on `device` from when on, since [`record_memory`](Self::record_memory):
    /// ascending in time, one point for each instant that changed something.
    pub fn memory_over_time(&self, device: DeviceRef) -> &[MemoryPoint] {
        self.devices.get(device.0 as usize).map_or(&[], |device| &device.memory.points)
    }

    /// Operators of the nodes that started. Work of a fixed length counts as one, a transfer as none.
    pub fn operators(&self) -> u64 {
        self.operators
    }

    fn take(&mut self, device: u32, kind: ByteKind, bytes: Bytes, by: u32) {
        if let Some(state) = self.devices.get_mut(device as usize) {
            state.memory.take(kind, bytes, by);
            if !std::mem::replace(&mut state.memory.changed, true) {
                self.changed.push(device);
            }
        }
    }

    fn free(&mut self, device: u32, kind: ByteKind, bytes: Bytes) {
        if let Some(state) = self.devices.get_mut(device as usize) {
            state.memory.free(kind, bytes);
            if !std::mem::replace(&mut state.memory.changed, true) {
                self.changed.push(device);
            }
        }
    }
}
