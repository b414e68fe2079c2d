//! The reference: a clock that ticks every nanosecond. It keeps operators and no macro-operators,
//! and looks at everything every time.

use slicescheduler_gmg::units::Nanos;
use slicescheduler_simulator::engine::LaunchCosts;
use slicescheduler_simulator::interference::{CoRunner, Demand, Interference, Rate};

use crate::scenario::{BANDWIDTH, Block, DEVICE_OF, DEVICES, LANES, LINKS, Scenario, USABLE, Work};

/// When a node ran, and how often it was cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) start: Option<u64>,
    pub(crate) finish: Option<u64>,
    pub(crate) cuts: u32,
}

/// What the simulations have to agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Per node: per item, and per member for gangs.
    pub(crate) times: Vec<Times>,
    pub(crate) peak: u64,
    pub(crate) shortage: Option<(u64, u64)>,
    /// Bytes in use, wherever that changes.
    pub(crate) memory: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    Done,
    Dropped,
}

#[derive(Clone, Debug)]
struct Node {
    item: usize,
    lane: Option<usize>,
    rank: usize,
    gang: Option<usize>,
    ops: Block,
    next: usize,
    phase: Phase,
    times: Times,
    recalled: Option<bool>,
    /// Of transfers: what is left, in billionths of a byte.
    left: u128,
}

#[derive(Clone, Debug)]
struct Gang {
    members: Vec<usize>,
    collectives: Vec<usize>,
    open: bool,
    stop: Option<usize>,
    /// Of the members, since the gang has opened.
    started: Vec<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// What is left of the operator, in multiples of 2^-20 ns; when it began; its rate.
    Step {
        left: u128,
        began: u64,
        rate: u32,
    },
    Host {
        until: u64,
    },
    Peers,
    Collective {
        until: u64,
    },
}

#[derive(Clone, Debug, Default)]
struct Lane {
    running: Option<(usize, Option<Doing>)>,
    cut_from: Option<u64>,
    /// Since the lane took its node: when operators were launched and when they ended.
    launched: Vec<u64>,
    ended: Vec<u64>,
    eager: Option<LaunchCosts>,
}

pub(crate) struct Reference<'a> {
    scenario: &'a Scenario,
    interference: &'a dyn Interference,
    nodes: Vec<Node>,
    gangs: Vec<Gang>,
    lanes: [Lane; LANES],
    speeds: [Rate; DEVICES],
    bandwidth: [u64; LINKS],
    memory: Vec<(u64, u64)>,
    shortage: Option<(u64, u64)>,
    t: u64,
}

impl<'a> Reference<'a> {
    pub(crate) fn new(scenario: &'a Scenario, interference: &'a dyn Interference) -> Self {
        let (mut nodes, mut gangs) = (Vec::new(), Vec::new());
        let node = |item, lane, rank, gang, ops| Node {
            item,
            lane,
            rank,
            gang,
            ops,
            next: 0,
            phase: Phase::Waiting,
            times: Times::default(),
            recalled: None,
            left: 0,
        };
        let spelled_out = |block: &Block, repeat: u32| -> Block {
            block.iter().cycle().take(block.len() * repeat as usize).copied().collect()
        };
        for (index, item) in scenario.items.iter().enumerate() {
            match &item.work {
                Work::Operators { lane, rank, block, repeat } => {
                    nodes.push(node(index, Some(*lane), *rank, None, spelled_out(block, *repeat)));
                }
                Work::Transfer { .. } => nodes.push(node(index, None, 0, None, Vec::new())),
                Work::Gang { rank, blocks, repeat, collectives } => {
                    let first = nodes.len();
                    for (lane, block) in blocks {
                        nodes.push(node(index, Some(*lane), *rank, Some(gangs.len()), spelled_out(block, *repeat)));
                    }
                    gangs.push(Gang {
                        members: (first..nodes.len()).collect(),
                        collectives: collectives.iter().map(|&op| op as usize).collect(),
                        open: false,
                        stop: None,
                        started: Vec::new(),
                    });
                }
            }
        }
        Self {
            scenario,
            interference,
            nodes,
            gangs,
            lanes: Default::default(),
            speeds: [Rate::ONE; DEVICES],
            bandwidth: BANDWIDTH,
            memory: vec![(0, 0)],
            shortage: None,
            t: 0,
        }
    }

    pub(crate) fn run(mut self, end: u64) -> Answer {
        for t in 0..end {
            self.t = t;
            self.tick();
        }
        Answer {
            peak: self.memory.iter().map(|(_, used)| *used).max().unwrap_or(0),
            memory: self.memory,
            shortage: self.shortage,
            times: self.nodes.into_iter().map(|node| node.times).collect(),
        }
    }

    fn tick(&mut self) {
        let t = self.t;
        for lane in 0..LANES {
            let Some((node, Some(doing))) = &mut self.lanes[lane].running else { continue };
            let node = *node;
            match doing {
                Doing::Step { left, rate, .. } => {
                    *left = left.saturating_sub(u128::from(*rate));
                    if *left == 0 {
                        self.reach(lane, self.nodes[node].next + 1);
                    }
                }
                Doing::Collective { until } if *until == t => self.reach(lane, self.nodes[node].next + 1),
                Doing::Host { until } if *until == t => self.launched(lane),
                _ => {}
            }
        }
        let rates = self.flow_rates();
        for (node, rate) in rates {
            self.nodes[node].left = self.nodes[node].left.saturating_sub(u128::from(rate));
            if self.nodes[node].left == 0 {
                self.nodes[node].phase = Phase::Done;
                self.nodes[node].times.finish = Some(t);
            }
        }
        for node in 0..self.nodes.len() {
            if let Work::Transfer { bytes: 0, latency, .. } = self.scenario.items[self.nodes[node].item].work
                && self.nodes[node].phase == Phase::Running
                && self.nodes[node].times.start.is_some_and(|start| start + latency.max(1) == t)
            {
                self.nodes[node].phase = Phase::Done;
                self.nodes[node].times.finish = Some(t);
            }
        }
        self.recalls();
        for (device, rate, _) in self.scenario.speeds.iter().filter(|(.., at)| *at == t) {
            self.speeds[*device] = *rate;
        }
        for (link, bandwidth, _) in self.scenario.bandwidths.iter().filter(|(.., at)| *at == t) {
            self.bandwidth[*link] = *bandwidth;
        }
        self.start_transfers();
        self.cut_transfers();
        let mut rounds = 0;
        loop {
            let mut changed = false;
            for lane in 0..LANES {
                changed |= self.choose(lane);
            }
            if !changed {
                break;
            }
            rounds += 1;
            assert!(rounds < 1_000, "the rules lead nowhere at {}: {:?} {:?}", self.t, self.gangs, self.lanes);
        }
        self.rate();
        self.count_memory();
    }

    fn recalls(&mut self) {
        for index in 0..self.scenario.items.len() {
            let Some((at, free)) = self.scenario.items[index].recall.filter(|(at, _)| *at == self.t) else { continue };
            debug_assert_eq!(at, self.t);
            let nodes: Vec<_> = (0..self.nodes.len()).filter(|&node| self.nodes[node].item == index).collect();
            let over = |&node: &usize| matches!(self.nodes[node].phase, Phase::Done | Phase::Dropped);
            if nodes.iter().any(over) {
                continue;
            }
            nodes.iter().for_each(|&node| self.nodes[node].recalled = Some(free));
            match self.nodes[nodes[0]].gang {
                Some(gang) if self.gangs[gang].open => {
                    self.cut_gang(gang);
                }
                None if self.nodes[nodes[0]].phase == Phase::Running => {
                    let lane = self.nodes[nodes[0]].lane.unwrap();
                    self.cut(lane);
                }
                _ => nodes.iter().for_each(|&node| self.drop(node)),
            }
        }
    }

    fn drop(&mut self, node: usize) {
        self.nodes[node].phase = Phase::Dropped;
        // A node that never started is not reported as having run.
        self.nodes[node].times.finish = Some(self.t);
    }

    fn runnable(&self, node: usize) -> bool {
        let item = &self.scenario.items[self.nodes[node].item];
        let done =
            |&other: &usize| self.nodes.iter().filter(|node| node.item == other).all(|node| node.phase == Phase::Done);
        self.nodes[node].phase == Phase::Waiting && item.release <= self.t && item.after.iter().all(done)
    }

    fn head(&self, lane: usize, rank: usize) -> Option<usize> {
        (0..self.nodes.len()).find(|&node| {
            let node = &self.nodes[node];
            node.lane == Some(lane) && node.rank == rank && matches!(node.phase, Phase::Waiting | Phase::Running)
        })
    }

    /// The gang that has begun and still has to start a member, if it needs this lane.
    fn reserved(&self, lane: usize) -> Option<usize> {
        (0..self.gangs.len()).find(|&gang| {
            let gang = &self.gangs[gang];
            gang.open
                && gang.started.contains(&false)
                && gang.members.iter().any(|&member| self.nodes[member].lane == Some(lane))
        })
    }

    fn may_start(&self, lane: usize, node: usize) -> bool {
        let gang = self.nodes[node].gang;
        if self.reserved(lane).is_some_and(|holder| Some(holder) != gang) {
            return false;
        }
        let Some(gang) = gang.map(|gang| &self.gangs[gang]) else { return true };
        if gang.open {
            return gang.stop.is_none_or(|stop| self.nodes[node].next < stop);
        }
        gang.members.iter().all(|&member| {
            let (lane, rank) = (self.nodes[member].lane.unwrap(), self.nodes[member].rank);
            let comes_first = |other: usize| self.runnable(other) && self.may_start(lane, other);
            self.runnable(member)
                && self.head(lane, rank) == Some(member)
                && self.reserved(lane).is_none()
                && !(rank + 1..4).filter_map(|rank| self.head(lane, rank)).any(comes_first)
        })
    }

    /// True if something changed.
    fn choose(&mut self, lane: usize) -> bool {
        let best = (0..4).rev().filter_map(|rank| self.head(lane, rank)).find(|&node| {
            self.nodes[node].phase == Phase::Running || (self.runnable(node) && self.may_start(lane, node))
        });
        let Some(best) = best else { return false };
        match self.lanes[lane].running {
            None => {
                self.start(lane, best);
                true
            }
            Some((running, _)) if self.nodes[best].rank > self.nodes[running].rank => match self.nodes[running].gang {
                Some(gang) if self.gangs[gang].stop.is_none() => self.cut_gang(gang),
                None if self.lanes[lane].cut_from.is_none() => self.cut(lane),
                _ => false,
            },
            Some(_) => false,
        }
    }

    fn start(&mut self, lane: usize, node: usize) {
        let t = self.t;
        let was_cut = self.nodes[node].times.cuts > 0;
        self.nodes[node].phase = Phase::Running;
        self.nodes[node].times.start.get_or_insert(t);
        self.lanes[lane] = Lane { running: Some((node, None)), ..Lane::default() };
        if let Some(gang) = self.nodes[node].gang {
            let gang = &mut self.gangs[gang];
            if !gang.open {
                gang.open = true;
                gang.started = vec![false; gang.members.len()];
            }
            let position = gang.members.iter().position(|&member| member == node).unwrap();
            gang.started[position] = true;
        }
        match self.scenario.launch[lane] {
            None => self.go_on(lane),
            Some(costs) => {
                let left = (self.nodes[node].ops.len() - self.nodes[node].next) as u64;
                let takes = if costs.captured && !was_cut {
                    costs.graph.get() + costs.graph_operator.get() * left
                } else {
                    self.lanes[lane].eager = Some(costs);
                    costs.operator.get()
                };
                self.lanes[lane].launched.push(t + takes);
                self.wait_for_host(lane, t + takes);
            }
        }
    }

    fn wait_for_host(&mut self, lane: usize, until: u64) {
        if until <= self.t {
            return self.go_on(lane);
        }
        self.lanes[lane].running.as_mut().unwrap().1 = Some(Doing::Host { until });
    }

    fn stops_before(&self, lane: usize, op: usize) -> bool {
        let (node, _) = self.lanes[lane].running.unwrap();
        match self.nodes[node].gang {
            Some(gang) => self.gangs[gang].stop == Some(op),
            None => self.lanes[lane].cut_from.is_some_and(|from| from <= self.t),
        }
    }

    fn launched(&mut self, lane: usize) {
        let (node, _) = self.lanes[lane].running.unwrap();
        let next = self.nodes[node].next;
        if self.stops_before(lane, next) { self.stop(lane, next) } else { self.go_on(lane) }
    }

    fn reach(&mut self, lane: usize, op: usize) {
        let t = self.t;
        let (node, _) = self.lanes[lane].running.unwrap();
        self.nodes[node].next = op;
        if op == self.nodes[node].ops.len() {
            self.nodes[node].phase = Phase::Done;
            self.nodes[node].times.finish = Some(t);
            self.lanes[lane] = Lane::default();
            return;
        }
        if self.stops_before(lane, op) {
            return self.stop(lane, op);
        }
        let state = &mut self.lanes[lane];
        let Some(costs) = state.eager else { return self.go_on(lane) };
        state.ended.push(t);
        let position = state.ended.len();
        let room = position.checked_sub(costs.queue.max(1) as usize).map_or(0, |earlier| state.ended[earlier]);
        let launched = state.launched[position - 1].max(room) + costs.operator.get();
        state.launched.push(launched);
        self.wait_for_host(lane, launched);
    }

    fn stop(&mut self, lane: usize, op: usize) {
        let (node, _) = self.lanes[lane].running.unwrap();
        self.nodes[node].next = op;
        self.nodes[node].phase = Phase::Waiting;
        self.nodes[node].times.cuts += 1;
        self.lanes[lane] = Lane::default();
        let Some(gang) = self.nodes[node].gang else {
            if self.nodes[node].recalled.is_some() {
                self.drop(node);
            }
            return;
        };
        let members = self.gangs[gang].members.clone();
        let stopped = |&member: &usize| {
            let member = &self.nodes[member];
            member.phase != Phase::Running && Some(member.next) == self.gangs[gang].stop
        };
        if members.iter().all(stopped) {
            self.gangs[gang].open = false;
            self.gangs[gang].stop = None;
            if self.nodes[node].recalled.is_some() {
                members.iter().for_each(|&member| self.drop(member));
            }
        }
    }

    fn go_on(&mut self, lane: usize) {
        let t = self.t;
        let (node, _) = self.lanes[lane].running.unwrap();
        let next = self.nodes[node].next;
        let gang = self.nodes[node].gang.map(|gang| self.gangs[gang].clone());
        let Some(gang) = gang.filter(|gang| gang.collectives.contains(&next)) else {
            let left = u128::from(self.nodes[node].ops[next].0) << 20;
            self.lanes[lane].running = Some((node, Some(Doing::Step { left, began: t, rate: 0 })));
            return;
        };
        self.lanes[lane].running = Some((node, Some(Doing::Peers)));
        let waits = |&member: &usize| {
            let lane = self.nodes[member].lane.unwrap();
            self.nodes[member].next == next && self.lanes[lane].running == Some((member, Some(Doing::Peers)))
        };
        if gang.members.iter().all(waits) {
            let takes = gang.members.iter().map(|&member| self.nodes[member].ops[next].0).max().unwrap();
            for member in gang.members {
                let lane = self.nodes[member].lane.unwrap();
                self.lanes[lane].running = Some((member, Some(Doing::Collective { until: t + takes })));
            }
        }
    }

    /// True if something changed.
    fn cut(&mut self, lane: usize) -> bool {
        if self.lanes[lane].cut_from.is_some() {
            return false;
        }
        self.lanes[lane].cut_from = Some(self.t + self.scenario.window);
        let (node, doing) = self.lanes[lane].running.unwrap();
        let at_boundary = match doing {
            Some(Doing::Step { began, .. }) => began == self.t,
            Some(Doing::Host { .. }) => true,
            _ => false,
        };
        if self.scenario.window == 0 && at_boundary {
            self.stop(lane, self.nodes[node].next);
        }
        true
    }

    /// The first operator before which `member` could stop.
    fn first_boundary(&self, gang: &Gang, member: usize) -> usize {
        let Node { next, ref ops, phase, lane, .. } = self.nodes[member];
        if phase == Phase::Waiting {
            return next;
        }
        let Some((_, Some(doing))) = self.lanes[lane.unwrap()].running.filter(|_| phase == Phase::Running) else {
            return ops.len();
        };
        let window = self.scenario.window;
        match doing {
            Doing::Host { .. } => next,
            Doing::Peers | Doing::Collective { .. } => next + 1,
            Doing::Step { began, .. } if began == self.t && window == 0 => next,
            Doing::Step { left, .. } => {
                // As far as nothing slows it.
                let mut passed = left.div_ceil(1 << 20) as u64;
                let mut op = next + 1;
                while op < ops.len() && passed < window {
                    if gang.collectives.contains(&op) {
                        return op + 1;
                    }
                    passed += ops[op].0;
                    op += 1;
                }
                op
            }
        }
    }

    /// True if something changed.
    fn cut_gang(&mut self, gang: usize) -> bool {
        if self.gangs[gang].stop.is_some() {
            return false;
        }
        let known = self.gangs[gang].clone();
        let stop = known.members.iter().map(|&member| self.first_boundary(&known, member)).max().unwrap();
        self.gangs[gang].stop = Some(stop);
        for member in known.members {
            let lane = self.nodes[member].lane.unwrap();
            let is_there = self.nodes[member].phase == Phase::Running && self.nodes[member].next == stop;
            let doing = self.lanes[lane].running.and_then(|(_, doing)| doing);
            if is_there && matches!(doing, Some(Doing::Step { .. } | Doing::Host { .. })) {
                self.stop(lane, stop);
            }
        }
        true
    }

    fn rate(&mut self) {
        for device in 0..DEVICES {
            let lanes: Vec<usize> = (0..LANES)
                .filter(|&lane| {
                    let on_device = !matches!(self.lanes[lane].running, None | Some((_, Some(Doing::Host { .. }))));
                    DEVICE_OF[lane] == device && on_device
                })
                .collect();
            let number = |lane: usize| (0..lane).filter(|&other| DEVICE_OF[other] == device).count() as u16;
            let demand = |lane: usize| -> Demand {
                let (node, _) = self.lanes[lane].running.unwrap();
                self.nodes[node].ops[self.nodes[node].next].1
            };
            let running: Vec<_> =
                lanes.iter().map(|&lane| CoRunner { lane: number(lane), demand: demand(lane) }).collect();
            let mut rates = vec![Rate::ONE; running.len()];
            self.interference.rates(&running, &mut rates);
            for (lane, of_lane) in lanes.into_iter().zip(rates) {
                if let Some((_, Some(Doing::Step { rate, .. }))) = &mut self.lanes[lane].running {
                    *rate = of_lane.slowed(self.speeds[device]).get();
                }
            }
        }
    }

    fn start_transfers(&mut self) {
        for node in 0..self.nodes.len() {
            if let Work::Transfer { bytes, .. } = self.scenario.items[self.nodes[node].item].work
                && self.runnable(node)
            {
                self.nodes[node].phase = Phase::Running;
                self.nodes[node].times.start = Some(self.t);
                self.nodes[node].left = u128::from(bytes) * 1_000_000_000;
            }
        }
    }

    /// Transfers with bytes whose latency has passed before `before`.
    fn moving(&self, before: u64) -> Vec<(usize, Vec<usize>)> {
        let moving = |(index, node): (usize, &Node)| match &self.scenario.items[node.item].work {
            Work::Transfer { links, bytes, latency } if node.phase == Phase::Running && *bytes > 0 => {
                (node.times.start? + latency < before).then(|| (index, links.clone()))
            }
            _ => None,
        };
        self.nodes.iter().enumerate().filter_map(moving).collect()
    }

    fn cut_transfers(&mut self) {
        for (node, links) in self.moving(self.t + 1) {
            if links.iter().any(|&link| self.bandwidth[link] == 0) {
                self.nodes[node].recalled = Some(true);
                self.drop(node);
            }
        }
    }

    /// Bytes per second of each moving transfer in the nanosecond before: all links filled level
    /// by level.
    fn flow_rates(&self) -> Vec<(usize, u64)> {
        let flows = self.moving(self.t);
        let mut spare = self.bandwidth;
        let mut open: Vec<usize> = (0..flows.len()).collect();
        let mut rates = Vec::new();
        while !open.is_empty() {
            let users = |link: usize| open.iter().filter(|&&flow| flows[flow].1.contains(&link)).count() as u64;
            let crowded = (0..LINKS).filter(|&link| users(link) > 0);
            let (level, tightest) = crowded.map(|link| ((spare[link] / users(link)).max(1), link)).min().unwrap();
            let (fixed, rest): (Vec<usize>, Vec<usize>) =
                open.iter().partition(|&&flow| flows[flow].1.contains(&tightest));
            for flow in fixed {
                rates.push((flows[flow].0, level));
                flows[flow].1.iter().for_each(|&link| spare[link] = spare[link].saturating_sub(level));
            }
            open = rest;
        }
        rates
    }

    fn count_memory(&mut self) {
        let mut used = 0;
        for node in &self.nodes {
            let (taken, freed) = self.scenario.items[node.item].bytes;
            let started = node.times.start.is_some();
            used += if started { taken } else { 0 };
            used -= match node.phase {
                Phase::Done => freed,
                Phase::Dropped if node.recalled == Some(true) && started => freed,
                _ => 0,
            };
        }
        match self.memory.last_mut() {
            Some((_, last)) if *last == used => {}
            Some((at, last)) if *at == self.t => *last = used,
            _ => self.memory.push((self.t, used)),
        }
        if used > USABLE && self.shortage.is_none() {
            self.shortage = Some((self.t, used - USABLE));
        }
    }
}

/// Nanoseconds as a plain number.
pub(crate) fn plain(time: Nanos) -> u64 {
    time.get()
}
