//! What it costs the host to launch work.
//!
//! Operators that are launched one by one cost the host time each. The host runs ahead of the
//! device, up to a bounded number of operators, so its time is hidden behind operators that are
//! longer and shows behind those that are shorter. A captured graph is launched at once; what is
//! left of one that was cut is launched operator by operator.

use std::collections::VecDeque;

use slicescheduler_gmg::units::Nanos;

use super::Engine;
use super::lane::Doing;
use super::node::Span;

/// The host's costs of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchCosts {
    /// Time to launch one operator.
    pub operator: Nanos,
    /// Launched operators that have not ended; beyond, the host waits. At least one.
    pub queue: u32,
    /// Time to launch a captured graph.
    pub graph: Nanos,
    /// Time that each operator of a captured graph adds to its launch.
    pub graph_operator: Nanos,
    /// True if a node is launched as a captured graph, until it is cut.
    pub captured: bool,
}

impl LaunchCosts {
    /// What NVIDIA states for CUDA 12.6: 2.5 us and about 1 ns per node for a graph; 3 us, the
    /// middle of 2-4 us, for a kernel; 1,024 kernels in flight per stream.
    pub const CUDA: Self =
        Self { operator: Nanos::us(3), queue: 1024, graph: Nanos(2_500), graph_operator: Nanos(1), captured: true };
}

/// The host thread that launches the operators of one lane. It learns of a node when the lane takes
/// it, and runs ahead inside of it.
#[derive(Clone, Debug)]
pub(super) struct Dispatcher {
    costs: LaunchCosts,
    /// When the host has launched the operator that it launched last.
    launched: Nanos,
    /// When the last operators ended, the earliest first; at most `queue` of them.
    ended: VecDeque<Nanos>,
}

impl Dispatcher {
    pub(super) fn new(costs: LaunchCosts) -> Self {
        let costs = LaunchCosts { queue: costs.queue.max(1), ..costs };
        Self { costs, launched: Nanos::ZERO, ended: VecDeque::new() }
    }
}

impl Engine {
    /// The lane takes a node now: when its first operator is launched. [`None`] without a
    /// dispatcher.
    pub(super) fn first_launch(&mut self, lane: u32) -> Option<Nanos> {
        let state = &self.lanes[lane as usize];
        let node = &self.nodes[state.running as usize];
        let (cut, (next, end)) = (node.was_cut(), node.ops());
        let shortest = match node.span {
            Span::Operators { cost, .. } => self.costs[cost as usize].cost.shortest(),
            _ => Nanos::MAX,
        };
        let dispatcher = self.dispatchers.get_mut(state.dispatcher as usize)?;
        let costs = dispatcher.costs;
        dispatcher.ended.clear();
        let takes = if costs.captured && !cut {
            self.lanes[lane as usize].eager = false;
            costs.graph + costs.graph_operator.times(u64::from(end - next))
        } else {
            // If no operator is shorter than its launch, all launches but the first are hidden,
            // also when something slows the operators.
            self.lanes[lane as usize].eager = costs.queue < 2 || shortest < costs.operator;
            costs.operator
        };
        dispatcher.launched = self.now + takes;
        Some(dispatcher.launched)
    }

    /// An operator has ended now: when the host has launched the next, if that is later.
    pub(super) fn launch_time(&mut self, lane: u32) -> Option<Nanos> {
        let state = &self.lanes[lane as usize];
        if !state.eager {
            return None;
        }
        let dispatcher = self.dispatchers.get_mut(state.dispatcher as usize)?;
        dispatcher.ended.push_back(self.now);
        let queue = dispatcher.costs.queue as usize;
        let room = if dispatcher.ended.len() < queue {
            Nanos::ZERO
        } else {
            // The operator that made room for this one in the queue.
            let room = dispatcher.ended.pop_front();
            room.unwrap_or(Nanos::ZERO)
        };
        dispatcher.launched = dispatcher.launched.max(room) + dispatcher.costs.operator;
        (dispatcher.launched > self.now).then_some(dispatcher.launched)
    }

    /// Nothing runs on `lane` before the host has launched its next operator.
    pub(super) fn wait_for_host(&mut self, lane: u32, at: Nanos) {
        if at <= self.now {
            return self.go_on(lane);
        }
        self.vacate(lane);
        let state = &mut self.lanes[lane as usize];
        (state.doing, state.rate) = (Doing::Host, 0);
        self.set_event(lane, at);
    }
}
