//! How a plain group moves on: one or two lanes with work of fixed lengths, on a device at full speed.
//!
//! Nothing outside of an independent group takes part in what happens in it, so it needs none of the lists in which an
//! instant of the whole cluster is gathered: what ends, what starts, the rates and the bytes follow each other directly,
//! while the lanes are at hand. The rules are those of [`settle`](Engine::settle), and so is every answer.

use slicescheduler_gmg::units::Nanos;

use super::group::Group;
use super::lane::{Doing, Lane};
use super::node::{NONE, Span, State};
use super::share::{Device, work};
use super::store::Store;
use super::{Edge, Engine};

/// What a plain group does next.
#[derive(Clone, Copy, Debug)]
struct Outlook<const N: usize> {
    /// When something happens.
    at: Nanos,
    /// Its lanes, the one where it happens first.
    lanes: [u32; N],
    /// True if what happens then does not depend on others, and nobody but independent groups has to learn of it.
    known: bool,
}

impl Engine {
    /// Runs the plain `group` ahead, until `end` or what is not known; the queue learns when something happens in it next.
    pub(super) fn run_plain_ahead(&mut self, group: u32, end: Nanos) {
        match *self.lanes_of(group) {
            [lane] => {
                let next = self.outlook([lane]);
                self.run_lanes_ahead(group, next, end);
            }
            [one, other] => {
                let next = self.outlook([one, other]);
                self.run_lanes_ahead(group, next, end);
            }
            _ => {}
        }
    }

    fn run_lanes_ahead<const N: usize>(&mut self, group: u32, mut next: Outlook<N>, end: Nanos) {
        self.running_ahead = group;
        let mut latest = self.latest;
        while next.known && next.at < end {
            latest = latest.max(next.at);
            self.advance(next);
            next = self.outlook(next.lanes);
        }
        (self.running_ahead, self.latest) = (NONE, latest);
        self.groups[group as usize].stale = false;
        self.events.set(group, next.at.get());
    }

    /// What happens next in the plain group `source` happens at `now`, and whatever is known after that. False, and nothing
    /// has happened, if the group is not plain, or if it is not known what happens and something else does at `now`.
    pub(super) fn move_on(&mut self, source: u32) -> bool {
        let Some(Group { plain: true, .. }) = self.groups.get(source as usize) else { return false };
        match *self.lanes_of(source) {
            [lane] => self.move_lanes_on(source, [lane]),
            [one, other] => self.move_lanes_on(source, [one, other]),
            _ => false,
        }
    }

    fn move_lanes_on<const N: usize>(&mut self, source: u32, lanes: [u32; N]) -> bool {
        let mut next = self.outlook(lanes);
        let end = self.end_of_known();
        if !next.known || next.at >= end {
            if self.events.first_of_others(source) == next.at.get() {
                return false;
            }
            self.advance(next);
            if self.is_unsettled() {
                if !std::mem::replace(&mut self.groups[source as usize].stale, true) {
                    self.stale.push(source);
                }
                return true;
            }
            next = self.outlook(lanes);
        }
        self.run_lanes_ahead(source, next, end);
        true
    }

    /// What the plain group of `lanes` does next.
    fn outlook<const N: usize>(&self, mut lanes: [u32; N]) -> Outlook<N> {
        let event = |lane: u32| self.lanes[lane as usize].event;
        if let [one, other] = &mut lanes[..] {
            let swap = event(*other) < event(*one);
            // Who is first is a coin toss.
            let pair = (*one, *other);
            (*one, *other) = std::hint::select_unpredictable(swap, (pair.1, pair.0), pair);
        }
        let at = lanes.first().map_or(Nanos::MAX, |&lane| event(lane));
        let known = lanes.iter().all(|&lane| {
            let state = &self.lanes[lane as usize];
            let Some(running) = self.nodes.get(state.running as usize) else {
                return self.nodes.get(state.only_head() as usize).is_none_or(|head| head.waits == 0);
            };
            state.event > at
                || (self.nodes.get(running.behind as usize).is_none_or(|behind| behind.waits == 0)
                    && self.informs_independent(running))
        });
        Outlook { at, lanes, known }
    }

    /// Everything that a plain group does next happens, and the instant is over for it. Those of others that have to choose
    /// now are left unsettled.
    fn advance<const N: usize>(&mut self, next: Outlook<N>) {
        self.now = next.at;
        let Self { nodes, store, lanes, devices, edges, rating, told, .. } = self;
        let Ok(mut lanes) = lanes.get_disjoint_mut(next.lanes.map(|id| id as usize)) else { return };
        let Some(device) = lanes.first().map(|lane| lane.device) else { return };
        let mut instant = Instant {
            now: next.at,
            floor: self.floor,
            ahead: self.running_ahead != NONE,
            lanes: next.lanes,
            nodes,
            store,
            edges,
            told,
            device: devices.get_mut(device as usize),
            touched: false,
            started: 0,
            latest: 0,
        };
        for lane in &mut lanes {
            if lane.event == next.at {
                instant.end(lane);
            }
        }
        for lane in &mut lanes {
            if lane.running == NONE {
                instant.start(lane);
            }
        }
        self.operators += instant.started;
        let latest = instant.latest;
        let rates = match (instant.device.as_deref(), &lanes[..]) {
            (Some(device), [one, other]) if device.slows() => rating.of_lanes(device, one, other),
            _ => None,
        };
        for (place, lane) in lanes.iter_mut().enumerate() {
            let Some(node) = instant.nodes.get(lane.running as usize) else { continue };
            match rates {
                Some(rates) => lane.slow_fixed(node, rates[place], instant.now, instant.floor),
                None => lane.free_fixed(node, instant.now, instant.floor),
            }
        }
        if let (Some(device), true) = (instant.device, instant.touched) {
            device.memory.settle(next.at);
        }
        while let Some(node) = self.told.pop() {
            self.become_runnable(node);
        }
        if latest.saturating_add(READ_AHEAD) >= self.read && !self.store.is_by_lane() {
            self.read_on(latest);
        }
    }

    /// Reads the nodes that were added next after `latest`, and what they hold, so that they are in the caches when they
    /// start: memory serves what is read in its order several times faster.
    #[cold]
    pub(super) fn read_on(&mut self, latest: u32) {
        let from = self.read.max(latest.saturating_add(1));
        self.read = from.saturating_add(READ_AHEAD);
        let nodes = self.nodes.get(from as usize..).unwrap_or_default();
        let read = nodes.iter().take(READ_AHEAD as usize).map(|node| u64::from(node.waits)).sum::<u64>();
        let holds = self.store.first_holds(from as usize).iter().take(READ_AHEAD as usize);
        std::hint::black_box(holds.map(|hold| hold.freed.get()).fold(read, u64::wrapping_add));
    }
}

/// Nodes that are read at a time, before they start.
const READ_AHEAD: u32 = 256;

/// An instant of a plain group.
struct Instant<'a, const N: usize> {
    now: Nanos,
    floor: Nanos,
    /// True if others are not there yet.
    ahead: bool,
    /// The lanes of the group.
    lanes: [u32; N],
    nodes: &'a mut [State],
    store: &'a Store,
    edges: &'a [Edge],
    /// Nodes on lanes of others that nothing holds back any more.
    told: &'a mut Vec<u32>,
    device: Option<&'a mut Device>,
    /// True if bytes were taken or freed.
    touched: bool,
    /// Operators that started.
    started: u64,
    /// The last place of one of them.
    latest: u32,
}

impl<const N: usize> Instant<'_, N> {
    /// What runs on `lane`, if anything does, is done.
    #[inline(always)]
    fn end(&mut self, lane: &mut Lane) {
        lane.event = Nanos::MAX;
        let id = lane.running;
        let Some(node) = self.nodes.get_mut(id as usize) else { return };
        node.end(self.now);
        lane.finish(node);
        let mut edge = node.first_edge;
        if let Some(device) = &mut self.device {
            device.vacated(std::mem::take(&mut lane.occupies));
            let mut hold = self.store.first_hold(id);
            while let Some(held) = hold {
                self.touched = true;
                device.memory.free(held.kind, held.freed);
                hold = self.store.next_hold(held);
            }
        }
        while let Some(&Edge { to, next }) = self.edges.get(edge as usize) {
            edge = next;
            let successor = &mut self.nodes[to as usize];
            successor.waits -= 1;
            if self.ahead {
                successor.wait_until(self.now);
            }
            // The lanes of the group look for themselves what they may start.
            if successor.waits == 0 && !self.lanes.contains(&successor.lane) {
                self.told.push(to);
            }
        }
    }

    /// What is first on `lane`, which runs nothing, starts if it may.
    #[inline(always)]
    fn start(&mut self, lane: &mut Lane) {
        let id = lane.only_head();
        let Some(node) = self.nodes.get_mut(id as usize).filter(|node| node.runs_later()) else { return };
        let Span::Fixed { length, demand } = node.span else { return };
        if node.release() > self.now {
            lane.event = node.release();
            return;
        }
        node.begin(self.now);
        self.started += 1;
        self.latest = self.latest.max(id);
        // As if the device slowed it, at a rate that is not known yet.
        (lane.running, lane.demand, lane.since, lane.rate) = (id, demand, self.now, 0);
        (lane.doing, lane.left) = (Doing::Step, work(length.max(Nanos(1))));
        let Some(device) = &mut self.device else { return };
        device.occupied(std::mem::replace(&mut lane.occupies, true));
        let mut hold = self.store.first_hold(id);
        while let Some(held) = hold {
            self.touched = true;
            device.memory.take(held.kind, held.taken, node.number);
            hold = self.store.next_hold(held);
        }
    }
}
