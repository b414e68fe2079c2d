//! The future of a whole cluster, kept device by device.
//!
//! What is queued on one device does not depend on another: lanes are exclusive, and only actions
//! make edges between devices. (Devices with a gang on them are computed together, each time anew.) So the future of a cluster is one future per device, each behind an
//! [`Arc`]. A question computes the devices that it touches and shares the others; a delta makes one
//! device's future outdated.
//!
//! **Cut-off.** A device with work on one lane that comes to a moment at which nothing is left on it, in the
//! same instant as before, with the same bytes in use, the same next job and the same
//! [state](Continuation::state_hash) behind it, goes on as before. Nothing else can matter: what
//! follows depends on these only. Devices with work on several lanes, with transfers, or that ran out of
//! memory are computed to the horizon.

use std::sync::Arc;

use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, Version};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::{Action, Continuation, Forecast, MemoryForecast, RunForecast, Shortage, WhatIfError};
use slicescheduler_gmg::units::{Bytes, Nanos};

use super::Timeline;
use super::mirror::Mirror;
use super::part::Part;
use super::scratch::Scratch;
use super::simulation::Simulation;
use crate::engine::{DeviceRef, MemoryState};

/// What lanes will be given: at most one continuation per lane.
pub type Continuations = Vec<(LaneId, Box<dyn Continuation>)>;

/// The future of a cluster up to a horizon. Cheap to copy: one reference per device.
#[derive(Clone, Debug)]
pub struct Unrolled {
    version: Version,
    /// Which durations it was computed with.
    costs: u64,
    now: Nanos,
    horizon: Nanos,
    devices: Vec<Arc<DeviceFuture>>,
}

#[derive(Debug)]
struct DeviceFuture {
    /// By start.
    runs: Vec<RunForecast>,
    memory: Option<MemoryForecast>,
    /// Operators that were simulated for it.
    operators: u64,
    /// As they are now.
    continuations: Continuations,
    /// If there is work on one lane only: whenever nothing was left on it.
    steps: Vec<Step>,
}

type Futures = Vec<(DeviceId, Arc<DeviceFuture>)>;

/// A continuation made a job.
#[derive(Clone, Debug)]
struct Step {
    at: Nanos,
    made: Arc<JobSpec>,
    state: u64,
    /// With what the job reserves.
    memory: MemoryState,
    /// The most in use from here on.
    peak: Bytes,
}

impl Unrolled {
    /// The version of the graph that it was computed from.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The instant that it starts from.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// When the work of action `index` would finish; [`None`] if not inside the horizon.
    pub fn finish_of_action(&self, index: usize) -> Option<Nanos> {
        self.runs().find(|run| run.action == Some(index)).map(|run| run.finish)
    }

    /// When the last work of `job` would finish.
    pub fn finish_of_job(&self, job: JobId) -> Option<Nanos> {
        self.runs().filter(|run| run.job == Some(job)).map(|run| run.finish).max()
    }

    /// The work on a device, by start.
    pub fn runs_on(&self, device: DeviceId) -> &[RunForecast] {
        self.devices.get(device.index()).map_or(&[], |device| &device.runs)
    }

    /// All work, device by device.
    pub fn runs(&self) -> impl Iterator<Item = &RunForecast> {
        self.devices.iter().flat_map(|device| &device.runs)
    }

    /// The memory of a device; [`None`] if nothing is on it.
    pub fn memory(&self, device: DeviceId) -> Option<MemoryForecast> {
        self.devices.get(device.index())?.memory
    }

    /// The first shortage of memory anywhere.
    pub fn first_shortage(&self) -> Option<(DeviceId, Shortage)> {
        let short = self.devices.iter().filter_map(|device| device.memory);
        short.filter_map(|memory| Some((memory.device, memory.shortage?))).min_by_key(|(device, s)| (s.at, *device))
    }

    /// The devices whose future is not the same object in `other`: all that a question touched.
    pub fn changed_from<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = DeviceId> + 'a {
        let both = self.devices.iter().zip(&other.devices).enumerate();
        both.filter(|(_, (one, other))| !Arc::ptr_eq(one, other)).map(|(device, _)| DeviceId(device as u32))
    }

    /// Operators that were simulated for the devices that a question touched.
    pub fn operators(&self, device: DeviceId) -> u64 {
        self.devices.get(device.index()).map_or(0, |device| device.operators)
    }
}

impl Timeline {
    /// The future of the cluster from `now` to `horizon`, if lanes with a continuation go on as that
    /// says. O(work up to the horizon).
    pub fn unroll(&mut self, now: Nanos, continuations: Continuations, horizon: Nanos) -> Unrolled {
        self.follow_costs();
        let (version, costs) = (self.mirror.version, self.mirror.costs.epoch);
        let mut unrolled = Unrolled { version, costs, now, horizon, devices: Vec::new() };
        let mut given = |lane: LaneId| {
            continuations.iter().find(|(named, _)| *named == lane).map(|(_, continuation)| continuation.fork())
        };
        for device in (0..self.mirror.devices.len() as u32).map(DeviceId) {
            unrolled.devices.push(Arc::new(self.future_of(device, &unrolled, &mut given)));
        }
        unrolled
    }

    /// `base`, as it would be if `actions` were carried out at its start and the lanes of
    /// `continuations` went on as these say instead. Computes the devices that are named, or that
    /// the work of the actions waits for.
    ///
    /// # Errors
    /// When an action cannot be carried out, or `base` is of another version of the graph or of other
    /// durations.
    pub fn what_if_unrolled(
        &mut self,
        base: &Unrolled,
        actions: &[Action],
        continuations: Continuations,
    ) -> Result<Unrolled, WhatIfError> {
        let (futures, _) = self.futures_of(base, actions, (&[], 0), continuations)?;
        let mut answer = base.clone();
        for (device, future) in futures {
            answer.devices[device.index()] = future;
        }
        Ok(answer)
    }

    /// The futures of the devices that the `actions` from number `from` on touch, with those of the earlier ones, which
    /// are in `parts`, that have to do with these: the other devices are as they were before.
    fn futures_of(
        &mut self,
        base: &Unrolled,
        actions: &[Action],
        (parts, from): (&[Part], usize),
        continuations: Continuations,
    ) -> Result<(Futures, Part), WhatIfError> {
        if base.version != self.mirror.version {
            return Err(WhatIfError::Gap { seen: base.version, next: self.mirror.version });
        }
        self.follow_costs();
        if base.costs != self.mirror.costs.epoch {
            return Err(WhatIfError::StaleDurations);
        }
        let Self { mirror, scratch, window, .. } = self;
        let mut takes_part: Vec<bool> = (0..actions.len()).map(|index| index >= from).collect();
        let part = loop {
            let mut simulation = Simulation::new(mirror, scratch, actions, base.now, *window);
            simulation.takes_part = &takes_part;
            let left_out = takes_part.contains(&false);
            match simulation.carry_out_actions() {
                Ok(()) => {}
                // It may need what an earlier one does.
                Err(_) if left_out => {
                    takes_part.fill(true);
                    continue;
                }
                Err(error) => return Err(error),
            }
            for (lane, _) in &continuations {
                simulation.lane(*lane);
            }
            simulation.complete_devices();
            let part = Part::of(&simulation);
            if !left_out {
                break part;
            }
            let concerned = parts.iter().filter(|other| part.has_to_do_with(other)).flat_map(|other| &other.actions);
            let before = takes_part.clone();
            concerned.for_each(|&index| takes_part[index] = true);
            if takes_part == before {
                break part;
            }
        };
        let mut simulation = Simulation { mirror, scratch, actions, takes_part: &takes_part, now: base.now };
        let touched: Vec<DeviceId> = simulation.scratch.in_use.clone();
        // What goes on from now: what the question says, else what the base says.
        let mut pristine = continuations;
        for device in &touched {
            for (lane, kept) in &base.devices[device.index()].continuations {
                if !pristine.iter().any(|(named, _)| named == lane) {
                    pristine.push((*lane, kept.fork()));
                }
            }
        }
        let alone = touched.first().filter(|_| touched.len() == 1).and_then(|device| base.devices.get(device.index()));
        let mut future = unroll(&mut simulation, base.horizon, &pristine, alone.map(|future| &**future));
        let mut runs = std::mem::take(&mut future.runs);
        let of_device = |device: DeviceId| {
            let (its, others): (Vec<_>, Vec<_>) =
                std::mem::take(&mut runs).into_iter().partition(|run| run.lane.device == device);
            runs = others;
            let (continuations, others) =
                std::mem::take(&mut pristine).into_iter().partition(|(lane, _)| lane.device == device);
            pristine = others;
            let memory = future.memory.iter().copied().find(|memory| memory.device == device);
            let steps = std::mem::take(&mut future.steps);
            let operators = future.operators;
            (device, Arc::new(DeviceFuture { runs: its, memory, operators, continuations, steps }))
        };
        let futures = touched.into_iter().map(of_device).collect();
        Ok((futures, part))
    }

    /// Brings a future up to date with what was observed since: devices that no delta touched, and
    /// on which nothing is late, are kept; the others are computed anew, with the continuations that
    /// `continuation` gives. O(devices), and O(work) on those that are computed.
    pub fn fold_in(
        &mut self,
        unrolled: &mut Unrolled,
        now: Nanos,
        mut continuation: impl FnMut(LaneId) -> Option<Box<dyn Continuation>>,
    ) {
        self.follow_costs();
        let costs_changed = std::mem::replace(&mut unrolled.costs, self.mirror.costs.epoch) != self.mirror.costs.epoch;
        let since = std::mem::replace(&mut unrolled.version, self.mirror.version);
        unrolled.now = now;
        for device in 0..unrolled.devices.len() {
            let known = &unrolled.devices[device];
            let late = known.runs.iter().any(|run| run.finish < now);
            let touched = self.touched.get(device).is_none_or(|&touched| touched > since);
            if costs_changed || touched || late {
                let future = self.future_of(DeviceId(device as u32), unrolled, &mut continuation);
                unrolled.devices[device] = Arc::new(future);
            }
        }
    }

    /// A session of changes on top of a future, with marks.
    pub fn trial(&mut self, base: &Unrolled) -> TimelineTrial<'_> {
        TimelineTrial {
            timeline: self,
            base: base.clone(),
            current: base.clone(),
            actions: Vec::new(),
            parts: Vec::new(),
            journal: Vec::new(),
        }
    }

    fn future_of(
        &mut self,
        device: DeviceId,
        unrolled: &Unrolled,
        continuation: &mut dyn FnMut(LaneId) -> Option<Box<dyn Continuation>>,
    ) -> DeviceFuture {
        let (mirror, scratch): (&Mirror, &mut Scratch) = (&self.mirror, &mut self.scratch);
        let mut simulation = Simulation::new(mirror, scratch, &[], unrolled.now, self.window);
        simulation.device(device);
        simulation.complete_devices();
        let mut continuations = Continuations::new();
        for &on in &simulation.scratch.in_use {
            let lanes = (0..).map(|index| LaneId::new(on, index));
            let lanes = lanes.take_while(|&lane| mirror.lane_index(lane).is_some());
            continuations.extend(lanes.filter_map(|lane| Some((lane, continuation(lane)?))));
        }
        let future = unroll(&mut simulation, unrolled.horizon, &continuations, None);
        let memory = future.memory.iter().copied().find(|memory| memory.device == device);
        let Future { mut runs, operators, steps, .. } = future;
        runs.retain(|run| run.lane.device == device);
        continuations.retain(|(lane, _)| lane.device == device);
        DeviceFuture { runs, memory, operators, continuations, steps }
    }
}

/// What a simulation gave, over all its devices.
struct Future {
    runs: Vec<RunForecast>,
    memory: Vec<MemoryForecast>,
    operators: u64,
    steps: Vec<Step>,
}

/// Runs a simulation to the horizon, or to where it goes on as `known`.
fn unroll(
    simulation: &mut Simulation<'_>,
    horizon: Nanos,
    pristine: &Continuations,
    known: Option<&DeviceFuture>,
) -> Future {
    let mut continuations: Continuations = pristine.iter().map(|(lane, kept)| (*lane, kept.fork())).collect();
    for (lane, _) in &continuations {
        if let Some(lane) = simulation.lane(*lane) {
            simulation.scratch.engine.watch(lane);
        }
    }
    // Work on a single lane, and nothing that moves between devices.
    let only = match (&simulation.scratch.in_use[..], &simulation.scratch.runs[..]) {
        (&[device], [first, others @ ..]) if simulation.scratch.weights.is_empty() => {
            others.iter().all(|other| other.lane == first.lane).then_some(device)
        }
        _ => None,
    };
    let in_engine = only.and_then(|device| simulation.device(device)).unwrap_or(DeviceRef(u32::MAX));
    let known = known.filter(|known| only.is_some() && known.memory.is_none_or(|memory| memory.shortage.is_none()));
    let mut steps: Vec<Step> = Vec::new();
    let mut rest: Option<&[RunForecast]> = None;
    while let Some(drained) = simulation.scratch.engine.run(horizon) {
        let Some(place) = simulation.continue_lane(drained, &mut continuations) else { continue };
        let Some(memory) = only.and_then(|_| simulation.scratch.engine.memory(in_engine)) else { continue };
        // Hashing costs as much as batching; a question does it only where it may end, and knows no
        // steps of its own.
        let at_once = |known: &&DeviceFuture| known.steps.binary_search_by_key(&drained.at, |step| step.at).ok();
        let same_time = known.and_then(|known| known.steps.get(at_once(&known)?..));
        if known.is_some() && same_time.is_none() {
            continue;
        }
        let state = continuations.get(place).and_then(|(_, continuation)| continuation.state_hash());
        let (Some(state), Some(made)) = (state, simulation.scratch.made.last()) else {
            // Without this step, those before it do not know what is in use later.
            steps.clear();
            continue;
        };
        match (known, same_time) {
            (Some(known), Some([step, others @ ..])) => {
                if (step.state, step.memory) == (state, memory) && step.made == *made {
                    let from = known.runs.partition_point(|run| run.start < step.at);
                    steps.push(step.clone());
                    steps.extend_from_slice(others);
                    rest = Some(&known.runs[from..]);
                    break;
                }
            }
            _ => steps.push(Step { at: drained.at, made: made.clone(), state, memory, peak: memory.total() }),
        }
    }
    let mut answer = Forecast::default();
    simulation.answer(&mut answer);
    if let (Some(step), Some(rest)) = (steps.first(), rest) {
        answer.runs.extend_from_slice(rest);
        answer.memory.iter_mut().for_each(|memory| memory.peak = memory.peak.max(step.peak));
    }
    let mut peak = Bytes::ZERO;
    for step in steps.iter_mut().rev() {
        peak = peak.max(step.peak);
        step.peak = peak;
    }
    Future { runs: answer.runs, memory: answer.memory, operators: answer.operators, steps }
}

/// A session of changes on top of an [`Unrolled`] future: the inner loop of a search. More actions cost the devices that
/// they touch, and those of earlier ones that they depend on; going back costs no simulation.
#[derive(Debug)]
pub struct TimelineTrial<'a> {
    timeline: &'a mut Timeline,
    base: Unrolled,
    current: Unrolled,
    actions: Vec<Action>,
    /// What was simulated together; the latest that an action is in holds.
    parts: Vec<Part>,
    /// What devices were before they were changed, oldest first.
    journal: Vec<(u32, Arc<DeviceFuture>)>,
}

/// A state of a [`TimelineTrial`] to come back to.
#[derive(Clone, Copy, Debug)]
pub struct TimelineMark {
    actions: usize,
    parts: usize,
    journal: usize,
}

impl TimelineTrial<'_> {
    /// The future with the actions so far.
    pub fn current(&self) -> &Unrolled {
        &self.current
    }

    /// Carries out more actions, behind those so far. They are simulated together with those of the earlier ones that
    /// have to do with them: that touch the same devices, name the same jobs, or move bytes as they do. O(work up to
    /// the horizon on the devices that these touch).
    ///
    /// # Errors
    /// When one of them cannot be carried out; then none of them is.
    pub fn carry_out(&mut self, actions: &[Action]) -> Result<(), WhatIfError> {
        let before = self.actions.len();
        self.actions.extend_from_slice(actions);
        match self.timeline.futures_of(&self.base, &self.actions, (&self.parts, before), Vec::new()) {
            Ok((futures, part)) => {
                self.parts.push(part);
                for (device, future) in futures {
                    let was = std::mem::replace(&mut self.current.devices[device.index()], future);
                    self.journal.push((device.0, was));
                }
                Ok(())
            }
            Err(error) => {
                self.actions.truncate(before);
                Err(error)
            }
        }
    }

    /// The state now.
    pub fn mark(&self) -> TimelineMark {
        TimelineMark { actions: self.actions.len(), parts: self.parts.len(), journal: self.journal.len() }
    }

    /// Goes back to a state of this trial. O(devices that were computed since).
    pub fn rollback(&mut self, mark: TimelineMark) {
        self.actions.truncate(mark.actions);
        self.parts.truncate(mark.parts);
        while self.journal.len() > mark.journal {
            if let Some((device, was)) = self.journal.pop() {
                self.current.devices[device as usize] = was;
            }
        }
    }
}
