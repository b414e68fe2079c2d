//! Devices: what their lanes share, and how fast they are.

use std::sync::Arc;

use smallvec::SmallVec;

use slicescheduler_gmg::units::Nanos;

use super::Engine;
use super::lane::{Doing, Lane};
use super::memory::Tracked;
use super::network::div_ceil;
use super::node::{NONE, Span, State};
use crate::interference::{CoRunner, Demand, Interference, Rate};

/// A device: its memory, the lanes that run on it, and what they do to each other.
///
/// The first two cache lines are what every operator needs that starts or ends on it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Device {
    /// Lanes with an operator on the device.
    running: u32,
    speed: Rate,
    /// True if its speed changes at some time.
    pub(super) throttled: bool,
    /// True if rates have to be asked for before time moves on.
    unrated: bool,
    /// True if something else than its own lanes holds its bytes.
    pub(super) visited: bool,
    /// The group of its lanes, if they are in one.
    pub(super) group: u32,
    pub(super) memory: Tracked,
    interference: Option<Arc<dyn Interference>>,
    /// Which of the interferences that were given one after the other this is.
    model: u64,
    /// Its lanes, ascending.
    pub(super) lanes: SmallVec<[u32; 4]>,
}

const _: () = assert!(std::mem::offset_of!(Device, memory) + Tracked::HOT == 128);

impl Device {
    pub(super) fn new(memory: Tracked) -> Self {
        Self {
            memory,
            interference: None,
            model: 0,
            speed: Rate::ONE,
            throttled: false,
            lanes: SmallVec::new(),
            running: 0,
            group: NONE,
            unrated: false,
            visited: false,
        }
    }

    /// True if operators have to be simulated one by one, because something slows them.
    pub(super) fn slows(&self) -> bool {
        self.speed != Rate::ONE || (self.running > 1 && self.interference.is_some())
    }

    /// True if its lanes slow each other.
    pub(super) fn interferes(&self) -> bool {
        self.interference.is_some()
    }

    /// One of its lanes has an operator on it, which had none unless it was `occupied`.
    pub(super) fn occupied(&mut self, occupied: bool) {
        self.running += u32::from(!occupied);
    }

    /// One of its lanes has no operator on it any more, if it was `occupied`.
    pub(super) fn vacated(&mut self, occupied: bool) {
        self.running -= u32::from(occupied);
    }

    pub(super) fn add_lane(&mut self, lane: u32) -> u16 {
        self.lanes.push(lane);
        (self.lanes.len() - 1) as u16
    }
}

/// Rates of two operators that share a device.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// Their demands, and the numbers of their lanes.
    demands: u64,
    lanes: u32,
    /// The interference that was asked. None has number zero.
    model: u64,
    rates: [Rate; 2],
}

impl Pair {
    /// No answer.
    const NONE: Self = Self { demands: 0, lanes: 0, model: 0, rates: [Rate::ONE; 2] };
}

/// The rates of devices, and scratch memory to ask for them.
///
/// Most devices have at most two operators at a time, whose demands are those of few kinds of
/// operators. An interference is pure, so answers about two are kept; a later one takes the place
/// of an earlier one.
#[derive(Debug, Default)]
pub(super) struct Rating {
    runners: Vec<CoRunner>,
    rates: Vec<Rate>,
    /// Empty until the first question.
    pairs: Vec<Pair>,
    /// The interference that was given last, and how many were given.
    last: Option<Arc<dyn Interference>>,
    models: u64,
}

/// Places for answers about two operators: a power of two.
const PAIRS: usize = 512;

impl Rating {
    /// A number that no other interference has.
    fn model(&mut self, interference: &Arc<dyn Interference>) -> u64 {
        if !self.last.as_ref().is_some_and(|last| Arc::ptr_eq(last, interference)) {
            self.last = Some(interference.clone());
            self.models += 1;
        }
        self.models
    }

    /// The rates of two operators, in any order.
    fn of_two(&mut self, runners: [CoRunner; 2], model: u64, interference: &dyn Interference) -> [Rate; 2] {
        let [one, other] = runners;
        let demands = u64::from(one.demand.bits()) << 32 | u64::from(other.demand.bits());
        let lanes = u32::from(one.lane) << 16 | u32::from(other.lane);
        let asked = u64::from(lanes) << 32 ^ model;
        let hash = (demands ^ asked.rotate_left(24)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (hash >> 32) as usize % PAIRS;
        if let Some(pair) = self.pairs.get(place)
            && (pair.demands, pair.lanes, pair.model) == (demands, lanes, model)
        {
            return pair.rates;
        }
        self.ask(place, Pair { demands, lanes, model, rates: [Rate::ONE; 2] }, &runners, interference)
    }

    #[cold]
    fn ask(&mut self, place: usize, mut pair: Pair, runners: &[CoRunner; 2], model: &dyn Interference) -> [Rate; 2] {
        let mut runners = *runners;
        // A model is asked in the order of lanes.
        let swap = runners[0].lane > runners[1].lane;
        if swap {
            runners.reverse();
        }
        model.rates(&runners, &mut pair.rates);
        if swap {
            pair.rates.reverse();
        }
        self.pairs.resize(PAIRS, Pair::NONE);
        self.pairs[place] = pair;
        pair.rates
    }

    /// The rates of the operators on the two lanes of a device at full speed.
    pub(super) fn of_lanes(&mut self, device: &Device, one: &Lane, other: &Lane) -> Option<[Rate; 2]> {
        let runner = |lane: &Lane| CoRunner { lane: lane.number, demand: lane.demand };
        let interference = device.interference.as_ref()?;
        Some(self.of_two([runner(one), runner(other)], device.model, &**interference))
    }
}

impl Engine {
    pub(super) fn set_speed_now(&mut self, device: u32, speed: Rate) {
        self.devices[device as usize].speed = speed;
        self.unrate(device);
    }

    /// The rates on `device` have to be asked for before time moves on.
    fn unrate(&mut self, device: u32) {
        let state = &mut self.devices[device as usize];
        if !state.unrated {
            state.unrated = true;
            self.unrated.push(device);
        }
    }

    pub(super) fn share_device(&mut self, device: u32, interference: Arc<dyn Interference>) {
        if let Some(device) = self.devices.get_mut(device as usize) {
            device.model = self.rating.model(&interference);
            device.interference = Some(interference);
        }
    }

    /// An operator of `lane` comes onto its device, or the lane's operator is another one now.
    pub(super) fn occupy(&mut self, lane: u32) {
        let state = &mut self.lanes[lane as usize];
        let device = state.device;
        let Some(shared) = self.devices.get_mut(device as usize) else { return };
        shared.occupied(std::mem::replace(&mut state.occupies, true));
        if shared.slows() {
            self.unrate(device);
        }
    }

    /// `lane` has no operator on its device any more.
    pub(super) fn vacate(&mut self, lane: u32) {
        let state = &mut self.lanes[lane as usize];
        let device = state.device;
        let Some(shared) = self.devices.get_mut(device as usize) else { return };
        let slowed = shared.slows();
        shared.vacated(std::mem::take(&mut state.occupies));
        if slowed {
            self.unrate(device);
        }
    }

    /// The next operator of the running node starts on the device now.
    pub(super) fn run_next(&mut self, lane: u32) {
        let demand = self.demand(lane);
        let state = &mut self.lanes[lane as usize];
        let known = state.doing == Doing::Step && state.rate > 0 && state.demand == demand;
        state.demand = demand;
        if state.device == NONE && !state.eager {
            return self.run_whole(lane, self.now, 0);
        }
        if known {
            return self.begin_step(lane);
        }
        self.lanes[lane as usize].rate = 0;
        self.occupy(lane);
        let slows = self.devices.get(self.lanes[lane as usize].device as usize).is_some_and(Device::slows);
        if !slows && !self.lanes[lane as usize].eager {
            return self.run_whole(lane, self.now, 0);
        }
        if !slows {
            self.lanes[lane as usize].rate = Rate::ONE.get();
        }
        self.begin_step(lane);
    }

    /// Starts one operator at the lane's rate, or without an end as long as that is not known.
    fn begin_step(&mut self, lane: u32) {
        let left = work(self.operator_length(lane));
        let now = self.now;
        let state = &mut self.lanes[lane as usize];
        (state.doing, state.left, state.since) = (Doing::Step, left, now);
        self.set_step_end(lane);
    }

    fn set_step_end(&mut self, lane: u32) {
        let state = &self.lanes[lane as usize];
        if state.rate == 0 {
            return self.set_event(lane, Nanos::MAX);
        }
        let mut finish = state.since + Nanos(div_ceil(state.left, u64::from(state.rate)));
        if finish < self.floor {
            let (next, end) = self.nodes[state.running as usize].ops();
            if next + 1 >= end {
                finish = self.floor;
            }
        }
        self.set_event(lane, finish);
    }

    /// How much is demanded by the next operator of the node that runs on `lane`.
    pub(super) fn demand(&self, lane: u32) -> Demand {
        match self.nodes[self.lanes[lane as usize].running as usize].span {
            Span::Operators { cost, next, .. } => {
                let known = &self.costs[cost as usize];
                match self.demands.get(known.demand as usize) {
                    Some(demand) => demand.of_stored(known.cost.stored(next)),
                    None => Demand::NONE,
                }
            }
            Span::Fixed { demand, .. } => demand,
            Span::Flow { .. } => Demand::NONE,
        }
    }

    /// How long the next operator of the node that runs on `lane` takes alone.
    pub(super) fn operator_length(&self, lane: u32) -> Nanos {
        match self.nodes[self.lanes[lane as usize].running as usize].span {
            Span::Operators { cost, next, .. } => self.costs[cost as usize].cost.duration(next).max(Nanos(1)),
            Span::Fixed { length, .. } => length.max(Nanos(1)),
            Span::Flow { .. } => Nanos::ZERO,
        }
    }

    /// Asks for the rates of all devices where something changed in this instant.
    pub(super) fn rate_devices(&mut self) {
        while let Some(device) = self.unrated.pop() {
            self.devices[device as usize].unrated = false;
            self.rate(device);
        }
    }

    fn rate(&mut self, device: u32) {
        let state = &self.devices[device as usize];
        if let [one, other] = state.lanes[..]
            && state.running == 2
            && state.speed == Rate::ONE
            && state.interferes()
        {
            return self.rate_pair(device, [one, other]);
        }
        let slows = self.devices[device as usize].slows();
        for place in 0..self.devices[device as usize].lanes.len() {
            let lane = self.devices[device as usize].lanes[place];
            let state = &self.lanes[lane as usize];
            match state.doing {
                _ if !state.occupies => {}
                Doing::Whole if slows => self.go_stepwise(lane),
                Doing::Step if !slows && state.eager => self.set_rate(lane, Rate::ONE),
                Doing::Step if !slows => self.go_whole(lane),
                _ => {}
            }
        }
        if slows {
            self.rate_slowed(device);
        }
    }

    /// Asks for the rates of the operators on the two lanes of a device at full speed, which slow each other.
    fn rate_pair(&mut self, device: u32, pair: [u32; 2]) {
        for lane in pair {
            if self.lanes[lane as usize].doing == Doing::Whole {
                self.go_stepwise(lane);
            }
        }
        let [one, other] = pair.map(|lane| &self.lanes[lane as usize]);
        let Some(rates) = self.rating.of_lanes(&self.devices[device as usize], one, other) else { return };
        for (lane, rate) in pair.into_iter().zip(rates) {
            if self.lanes[lane as usize].doing == Doing::Step {
                self.set_rate(lane, rate);
            }
        }
    }

    /// Asks for the rates of the operators on `device`, none of which runs as a part of a whole.
    fn rate_slowed(&mut self, device: u32) {
        let Self { devices, lanes, rating, .. } = self;
        let state = &devices[device as usize];
        rating.runners.clear();
        rating.runners.extend(state.lanes.iter().filter_map(|&lane| {
            let Lane { number, demand, occupies, .. } = lanes[lane as usize];
            occupies.then_some(CoRunner { lane: number, demand })
        }));
        rating.rates.clear();
        match (&state.interference, &rating.runners[..]) {
            (Some(interference), &[one, other]) => {
                let rates = rating.of_two([one, other], state.model, &**interference);
                rating.rates.extend(rates);
            }
            (Some(interference), runners) if runners.len() > 1 => {
                rating.rates.resize(runners.len(), Rate::ONE);
                interference.rates(runners, &mut rating.rates);
            }
            (_, runners) => rating.rates.resize(runners.len(), Rate::ONE),
        }
        let speed = state.speed;
        let mut runner = 0;
        for place in 0..self.devices[device as usize].lanes.len() {
            let lane = self.devices[device as usize].lanes[place];
            let Lane { occupies, doing, .. } = self.lanes[lane as usize];
            if !occupies {
                continue;
            }
            let rate = self.rating.rates[runner];
            runner += 1;
            if doing == Doing::Step {
                self.set_rate(lane, if speed == Rate::ONE { rate } else { rate.slowed(speed) });
            }
        }
    }

    /// The operator on `lane` makes progress at `rate` from now on. What it has done so far is
    /// settled only if that differs, so rates that are computed anew leave no trace.
    fn set_rate(&mut self, lane: u32, rate: Rate) {
        let now = self.now;
        let state = &mut self.lanes[lane as usize];
        if state.rate == rate.get() {
            return;
        }
        state.left = state.left_at(now);
        state.since = now;
        state.rate = rate.get();
        self.set_step_end(lane);
    }

    /// What ran as a whole goes on operator by operator.
    fn go_stepwise(&mut self, lane: u32) {
        let node = self.lanes[lane as usize].running;
        let elapsed = self.now - self.lanes[lane as usize].since;
        let ahead = self.lanes[lane as usize].ahead;
        let (ahead, left) = match self.nodes[node as usize].span {
            Span::Operators { cost, next, end } => {
                let cost = &self.costs[cost as usize].cost;
                let (boundary, after) = cost.boundary_at_or_after(next..end, elapsed);
                let (op, left) = if after > elapsed {
                    (boundary - 1, after - elapsed)
                } else if boundary < end {
                    (boundary, cost.duration(boundary))
                } else {
                    // It should have ended, but nothing ends before the floor.
                    (end - 1, Nanos::ZERO)
                };
                self.nodes[node as usize].set_next(op);
                (if op == next { ahead } else { 0 }, left)
            }
            _ => (ahead, self.operator_length(lane) - elapsed),
        };
        let demand = self.demand(lane);
        let now = self.now;
        let state = &mut self.lanes[lane as usize];
        (state.doing, state.since, state.rate, state.demand) = (Doing::Step, now, 0, demand);
        state.left = (u128::from(left.get()) << RATE_BITS).saturating_sub(u128::from(ahead));
    }

    /// Nothing slows `lane` any more: the rest of its node goes on as a whole.
    fn go_whole(&mut self, lane: u32) {
        let state = &self.lanes[lane as usize];
        let left = state.left_at(self.now);
        let rest = Nanos(div_ceil(left, u64::from(Rate::ONE.get())));
        let ahead = (u128::from(rest.get()) << RATE_BITS).saturating_sub(left);
        // No rate is above one, so the operator started at least its duration less the rest ago.
        let since = self.now + rest - self.operator_length(lane);
        self.run_whole(lane, since, ahead as u32);
    }
}

impl Lane {
    /// What runs, work of the fixed length of `node`, makes progress at `rate` from `now` on, because something slows it.
    pub(super) fn slow_fixed(&mut self, node: &State, rate: Rate, now: Nanos, floor: Nanos) {
        if self.doing == Doing::Whole {
            let left = node.length() - (now - self.since);
            self.left = work(left).saturating_sub(u128::from(self.ahead));
            (self.doing, self.since, self.rate) = (Doing::Step, now, 0);
        }
        if self.rate != rate.get() {
            self.left = self.left_at(now);
            (self.since, self.rate) = (now, rate.get());
            self.event = (now + Nanos(div_ceil(self.left, u64::from(self.rate)))).max(floor);
        }
    }

    /// What runs, work of the fixed length of `node`, goes on at its own speed from `now` on.
    pub(super) fn free_fixed(&mut self, node: &State, now: Nanos, floor: Nanos) {
        if self.doing == Doing::Step {
            let left = self.left_at(now);
            let rest = Nanos(div_ceil(left, u64::from(Rate::ONE.get())));
            self.ahead = work(rest).saturating_sub(left) as u32;
            (self.doing, self.since, self.rate, self.until) = (Doing::Whole, now + rest - node.length(), 0, 1);
            self.event = (now + rest).max(floor);
        }
    }
}

/// Work is counted in multiples of 2^-20 ns, so that a rate is progress per nanosecond.
const RATE_BITS: u32 = Rate::ONE.get().trailing_zeros();

/// What is to be done in an operator that takes `length` alone.
pub(super) fn work(length: Nanos) -> u128 {
    u128::from(length.get()) << RATE_BITS
}
