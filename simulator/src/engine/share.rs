//! Devices: what their lanes share, and how fast they are.

use std::sync::Arc;

use smallvec::SmallVec;

use slicescheduler_gmg::units::Nanos;

use super::lane::{Doing, Lane};
use super::memory::Tracked;
use super::network::div_ceil;
use super::node::{NONE, Span};
use super::{Engine, Tournament};
use crate::interference::{CoRunner, Demand, Interference, Rate};

/// A device: its memory, the lanes that run on it, and what they do to each other.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) memory: Tracked,
    interference: Option<Arc<dyn Interference>>,
    speed: Rate,
    lanes: u16,
    /// Lanes with an operator on the device, ascending.
    running: SmallVec<[u32; 4]>,
    /// True if rates have to be asked for before time moves on.
    unrated: bool,
}

impl Device {
    pub(super) fn new(memory: Tracked) -> Self {
        Self { memory, interference: None, speed: Rate::ONE, lanes: 0, running: SmallVec::new(), unrated: false }
    }

    /// True if operators have to be simulated one by one, because something slows them.
    fn slows(&self) -> bool {
        self.speed != Rate::ONE || (self.interference.is_some() && self.running.len() > 1)
    }

    pub(super) fn set_interference(&mut self, interference: Arc<dyn Interference>) {
        self.interference = Some(interference);
    }

    pub(super) fn add_lane(&mut self) -> u16 {
        self.lanes += 1;
        self.lanes - 1
    }
}

/// Scratch memory for the rates of one device.
#[derive(Debug, Default)]
pub(super) struct Rating {
    runners: Vec<CoRunner>,
    rates: Vec<Rate>,
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

    /// An operator of `lane` comes onto its device, or the lane's operator is another one now.
    pub(super) fn occupy(&mut self, lane: u32) {
        let device = self.lanes[lane as usize].device;
        let Some(state) = self.devices.get_mut(device as usize) else { return };
        if let Err(place) = state.running.binary_search(&lane) {
            state.running.insert(place, lane);
        }
        if state.slows() {
            self.unrate(device);
        }
    }

    /// `lane` has no operator on its device any more.
    pub(super) fn vacate(&mut self, lane: u32) {
        let device = self.lanes[lane as usize].device;
        let Some(state) = self.devices.get_mut(device as usize) else { return };
        let slowed = state.slows();
        if let Ok(place) = state.running.binary_search(&lane) {
            state.running.remove(place);
        }
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
        let left = u128::from(self.operator_length(lane).get()) << RATE_BITS;
        let now = self.now;
        let state = &mut self.lanes[lane as usize];
        (state.doing, state.left, state.based) = (Doing::Step, left, now);
        self.set_step_end(lane);
    }

    fn set_step_end(&mut self, lane: u32) {
        let state = &self.lanes[lane as usize];
        if state.rate == 0 {
            return self.events.set(lane, Tournament::NEVER);
        }
        let mut finish = state.based + Nanos(div_ceil(state.left, u64::from(state.rate)));
        let (next, end) = self.nodes[state.running as usize].ops();
        if next + 1 >= end {
            finish = finish.max(self.floor);
        }
        self.events.set(lane, finish.get());
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
        let running = self.devices[device as usize].running.clone();
        if !self.devices[device as usize].slows() {
            for lane in running {
                let state = &self.lanes[lane as usize];
                match state.doing {
                    Doing::Step if !state.eager => self.go_whole(lane),
                    Doing::Step => self.set_rate(lane, Rate::ONE),
                    _ => {}
                }
            }
            return;
        }
        for &lane in &running {
            if self.lanes[lane as usize].doing == Doing::Whole {
                self.go_stepwise(lane);
            }
        }
        let mut rating = std::mem::take(&mut self.rating);
        rating.runners.clear();
        rating.runners.extend(running.iter().map(|&lane| {
            let Lane { number, demand, .. } = self.lanes[lane as usize];
            CoRunner { lane: number, demand }
        }));
        rating.rates.clear();
        rating.rates.resize(running.len(), Rate::ONE);
        let state = &self.devices[device as usize];
        if let Some(interference) = &state.interference
            && running.len() > 1
        {
            interference.rates(&rating.runners, &mut rating.rates);
        }
        let speed = state.speed;
        for (&lane, rate) in running.iter().zip(&rating.rates) {
            if self.lanes[lane as usize].doing == Doing::Step {
                self.set_rate(lane, if speed == Rate::ONE { *rate } else { rate.slowed(speed) });
            }
        }
        self.rating = rating;
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
        state.based = now;
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
        (state.doing, state.based, state.rate, state.demand) = (Doing::Step, now, 0, demand);
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

/// Work is counted in multiples of 2^-20 ns, so that a rate is progress per nanosecond.
const RATE_BITS: u32 = Rate::ONE.get().trailing_zeros();
