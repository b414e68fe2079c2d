//! Gangs in a simulated world: which lanes they are on, and what befalls all ranks at once.
//!
//! What must stay true: the ranks that run have the same length, cut and rate, so each lane by itself finds the end
//! that all have; a gang runs on all of its lanes or waits on all of them; nothing of a lower rank overtakes one that
//! waits. Gangs are launched rank by rank without anything between, so the one of the highest right of way that was
//! launched first is the first on all of its lanes at some time, and no two wait for each other.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use slicescheduler_gmg::id::JobKey;
use slicescheduler_gmg::plan::{Event, Fate, Launch};
use slicescheduler_gmg::units::Nanos;

use super::lane::SimLane;
use super::{SimWorld, Timed};
use crate::cost::JobCost;
use crate::interference::Rate;

/// The ranks that were launched and are not back, and their lanes, by key. Looked up only, so its order does not
/// matter.
#[derive(Debug, Default)]
pub(super) struct Gangs(HashMap<JobKey, SmallVec<[(u32, usize); 8]>>);

impl Gangs {
    /// A job was launched on a lane.
    pub(super) fn launched(&mut self, launch: &Launch, index: usize) {
        let Some(gang) = launch.spec.gang else { return };
        let lanes = self.0.entry(launch.spec.key).or_default();
        let at = lanes.partition_point(|&(rank, _)| rank < gang.rank);
        lanes.insert(at, (gang.rank, index));
    }

    /// A job is back from a lane. True if no other rank of its gang is out: always, for a job without one.
    pub(super) fn left(&mut self, launch: &Launch, index: usize) -> bool {
        let Some(lanes) = self.0.get_mut(&launch.spec.key).filter(|_| launch.spec.gang.is_some()) else { return true };
        lanes.retain(|&mut (_, lane)| lane != index);
        let is_last = lanes.is_empty();
        if is_last {
            self.0.remove(&launch.spec.key);
        }
        is_last
    }

    /// The lanes of a gang, by rank.
    fn lanes(&self, key: JobKey) -> SmallVec<[usize; 8]> {
        self.0.get(&key).map_or_else(SmallVec::new, |lanes| lanes.iter().map(|&(_, lane)| lane).collect())
    }

    /// The lanes on which what runs on lane `index` runs: its own, or those of its gang.
    pub(super) fn lanes_with(&self, lanes: &[SimLane], index: usize) -> SmallVec<[usize; 8]> {
        match lanes.get(index).and_then(SimLane::running).filter(|running| running.spec.gang.is_some()) {
            Some(running) => self.lanes(running.spec.key),
            None => smallvec![index],
        }
    }
}

impl SimWorld {
    /// Starts a gang if every rank is the first on an idle lane.
    pub(super) fn start_gang(&mut self, key: JobKey, at: Nanos) {
        let lanes = self.gangs.lanes(key);
        let is_first = |launch: &Launch| launch.spec.key == key && launch.spec.gang.is_some();
        let is_next = |&lane: &usize| self.lanes[lane].is_idle() && self.lanes[lane].front().is_some_and(is_first);
        let size = lanes.first().and_then(|&lane| self.lanes[lane].front()?.spec.gang).map_or(0, |gang| gang.size);
        if lanes.len() != size as usize || !lanes.iter().all(is_next) {
            return;
        }
        let launches: SmallVec<[Launch; 8]> = lanes.iter().filter_map(|&lane| self.lanes[lane].pop()).collect();
        let costs: Arc<[JobCost]> = launches.iter().filter_map(|launch| self.bind(launch)).collect();
        let Some(first) = launches.first().filter(|_| costs.len() == launches.len()) else { return };
        let free = lanes.iter().map(|&lane| self.lanes[lane].held()).fold(at, Nanos::max);
        let times = (free + self.options.launch_gap, self.noise.length(first, &costs));
        for (&lane, launch) in lanes.iter().zip(launches) {
            self.begin(lane, launch, costs.clone(), times);
        }
        self.keep_pace(&lanes, self.now);
        lanes.into_iter().for_each(|lane| self.began(lane));
    }

    /// All ranks make progress at the rate of the slowest.
    fn keep_pace(&mut self, lanes: &[usize], now: Nanos) -> bool {
        let slowest = lanes.iter().filter_map(|&lane| self.lanes[lane].own_rate()).min().unwrap_or(Rate::ONE);
        let mut changed = false;
        for &lane in lanes {
            changed |= self.lanes[lane].set_rate(now, slowest);
        }
        changed
    }

    /// What runs on a lane makes progress at `rate` as far as its own device is concerned.
    pub(super) fn set_rate(&mut self, index: usize, rate: Rate) {
        self.lanes[index].set_own_rate(rate);
        let lanes = self.gangs.lanes_with(&self.lanes, index);
        if self.keep_pace(&lanes, self.now) {
            lanes.into_iter().for_each(|lane| self.schedule_end(lane));
        }
    }

    /// Takes a gang back that has not started.
    pub(super) fn take_back_gang(&mut self, key: JobKey, fate: Fate) {
        for lane in self.gangs.lanes(key) {
            if self.lanes[lane].take_back_rank(key, fate) {
                self.schedule(self.now, Timed::Lane(self.lanes[lane].id()));
            }
        }
    }

    /// One rank of a gang is gone from lane `index`: the others, which would wait for ever in the next collective,
    /// come back with what they have done.
    pub(super) fn break_gang(&mut self, key: JobKey, index: usize, events: &mut Vec<Event>) {
        let (lanes, at) = (self.gangs.lanes(key), self.now);
        self.gangs.0.remove(&key);
        for lane in lanes.into_iter().filter(|&lane| lane != index) {
            let is_it = |launch: &Launch| launch.spec.key == key && launch.spec.gang.is_some();
            let runs = self.lanes[lane].running().is_some_and(is_it);
            let stopped = if runs { self.lanes[lane].fail(&self.noise, at) } else { None };
            let queued = self.lanes[lane].remove_queued(is_it);
            let stopped = stopped.into_iter().chain(queued.into_iter().map(|launch| {
                let first = launch.ops.start;
                (launch, at, first)
            }));
            for (Launch { job, ops, lane, .. }, started, op) in stopped {
                let (done, end) = (ops.start..op, ops.end);
                events.push(Event::Recalled { job, lane, done, end, fate: Fate::Keep, started, at });
            }
            if self.lanes[lane].is_idle() {
                self.start_next(lane, at);
            }
        }
    }
}
