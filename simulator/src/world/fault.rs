//! What goes wrong in a world, and devices that are not as fast as they should be.
//!
//! Everything here is scheduled from outside, before or during a run; nobody but the world knows.

use std::sync::Arc;

use slicescheduler_gmg::id::{DeviceId, LaneId, LinkId};
use slicescheduler_gmg::plan::{Event, Failure};
use slicescheduler_gmg::units::{Bandwidth, Nanos};

use super::{SimWorld, Timed};
use crate::interference::{CoRunner, Interference, Rate};

impl SimWorld {
    /// Lets lanes that share a device slow each other. What an entry demands is the mean over its
    /// job's operators, weighted by their durations.
    pub fn set_interference(&mut self, interference: Arc<dyn Interference>) {
        self.interference = Some(interference);
    }

    /// From `at` on everything on `device` runs at `speed`: a throttled device, or a straggler.
    pub fn set_speed(&mut self, at: Nanos, device: DeviceId, speed: Rate) {
        self.schedule(at, Timed::Speed(device, speed));
    }

    /// Lets a device fail at `at`, with everything on it. What is launched on it later, once the host
    /// has given it back to the graph, runs.
    pub fn fail_device(&mut self, at: Nanos, device: DeviceId) {
        self.schedule(at, Timed::Fault(device));
    }

    /// Lets the operator that runs on `lane` at `at` fail, and its job with it. Nothing happens if
    /// none runs.
    pub fn fail_kernel(&mut self, at: Nanos, lane: LaneId) {
        self.schedule(at, Timed::Kernel(lane));
    }

    /// Lets the operator that runs on `lane` at `at` make no progress for `length`.
    pub fn stall(&mut self, at: Nanos, lane: LaneId, length: Nanos) {
        self.schedule(at, Timed::Stall(lane, length));
    }

    /// From `at` on `link` carries `bandwidth`. Without any it is cut: transfers over it wait, and
    /// start over when it is back.
    pub fn set_bandwidth(&mut self, at: Nanos, link: LinkId, bandwidth: Bandwidth) {
        self.schedule(at, Timed::Link(link, bandwidth));
    }

    pub(super) fn lose_device(&mut self, device: DeviceId, events: &mut Vec<Event>) {
        for index in self.lanes_of(device) {
            for key in self.lanes[index].gangs() {
                self.break_gang(key, index, events);
            }
            self.lanes[index].clear();
        }
        self.transfers.drop_device(self.now, device);
        self.schedule_transfer();
        events.push(Event::DeviceLost { device, at: self.now });
    }

    pub(super) fn kernel_fails(&mut self, lane: LaneId, events: &mut Vec<Event>) {
        let Some(index) = self.lane_index(lane) else { return };
        let Some((launch, _, op)) = self.lanes[index].fail(&self.noise, self.now) else { return };
        let job = launch.job;
        if launch.spec.gang.is_some() {
            self.break_gang(launch.spec.key, index, events);
        }
        self.lanes.iter_mut().for_each(|lane| lane.forget(job));
        let failure = Failure::Kernel { op, message: "the kernel was made to fail".into() };
        events.push(Event::Failed { job, lane, at: self.now, failure });
        self.start_next(index, self.now);
        self.rate(lane.device);
    }

    pub(super) fn stalls(&mut self, lane: LaneId, length: Nanos) {
        let Some(index) = self.lane_index(lane) else { return };
        for lane in self.gangs.lanes_with(&self.lanes, index) {
            if self.lanes[lane].stall(self.now, self.now + length) {
                self.schedule_end(lane);
            }
        }
    }

    pub(super) fn link_changes(&mut self, link: LinkId, bandwidth: Bandwidth, events: &mut Vec<Event>) {
        let Some(known) = self.bandwidth.get_mut(link.index()) else { return };
        let before = std::mem::replace(known, bandwidth);
        self.transfers.set_bandwidth(self.now, link, bandwidth);
        self.schedule_transfer();
        match (before.is_zero(), bandwidth.is_zero()) {
            (false, true) => events.push(Event::LinkFailed { link, at: self.now }),
            (true, false) => events.push(Event::LinkReturned { link, at: self.now }),
            _ => {}
        }
    }

    pub(super) fn speed_changes(&mut self, device: DeviceId, speed: Rate) {
        if let Some(known) = self.speeds.get_mut(device.index()) {
            *known = speed;
            self.rate(device);
        }
    }

    /// Whatever runs on `device` makes progress at the rates of now.
    pub(super) fn rate(&mut self, device: DeviceId) {
        let Some(&speed) = self.speeds.get(device.index()) else { return };
        let lanes = self.lanes_of(device);
        let mut runners: smallvec::SmallVec<[CoRunner; 8]> = smallvec::SmallVec::new();
        for index in lanes.clone() {
            runners.extend(
                self.lanes[index].demand().map(|demand| CoRunner { lane: self.lanes[index].id().index, demand }),
            );
        }
        let mut rates: smallvec::SmallVec<[Rate; 8]> = smallvec::SmallVec::from_elem(Rate::ONE, runners.len());
        if let Some(interference) = self.interference.as_ref().filter(|_| runners.len() > 1) {
            interference.rates(&runners, &mut rates);
        }
        for (runner, rate) in runners.iter().zip(rates) {
            let index = lanes.start + runner.lane as usize;
            self.set_rate(index, rate.slowed(speed));
        }
    }
}
