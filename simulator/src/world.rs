//! A simulated world: what really happens in a replay.
//!
//! It is a second engine, with durations of its own: its own cost model, noise per operator and per
//! iteration, and output lengths that only it knows. Forecasts never see any of it, so a policy that
//! does well here does not do so because it can read the future.
//!
//! The ranks of a gang start together, when the last of their lanes is theirs, meet in every collective, and end
//! together: an iteration lasts as long as its slowest rank takes between one collective and the next, and a device
//! that is slow, stalls or is shared slows all of them.
//!
//! Noise is structural: it depends on the seed, the job's [`JobKey`](slicescheduler_gmg::id::JobKey) and rank,
//! and the operator, never on the order of calls. An iteration takes the same time under every
//! policy that forms it alike, unless the device is shared, throttled or fails.

mod bound;
mod cost;
mod fault;
mod gang;
mod lane;
mod noise;
mod transfer;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use slicescheduler_gmg::cluster::{Cluster, Endpoint};
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, LinkId, RequestId};
use slicescheduler_gmg::id_map::IdMap;
use slicescheduler_gmg::plan::{Command, Ended, Event, Fate, Launch, Source, World, WorldError};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_gmg::{GmgView, View};

pub use cost::WorldCost;
pub use noise::Noise;

use crate::cost::{CostModel, JobCost};
use crate::interference::{Demand, Interference, JobDemand, Rate};
use bound::BoundCosts;
use gang::Gangs;
use lane::{Ending, SimLane};
use transfer::{Transfers, Weights};

/// How a simulated world behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorldOptions {
    /// Seed of all noise.
    pub seed: u64,
    /// Standard deviation of the noise of an operator, in percent.
    pub operator_noise: u32,
    /// Standard deviation of the noise that all operators of an iteration share, in percent.
    pub iteration_noise: u32,
    /// Operators that start within this time after a recall were launched already and still run.
    pub launched_window: Nanos,
    /// Time between the end of an entry and the start of the next on a lane, spent by the host.
    pub launch_gap: Nanos,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            operator_noise: 5,
            iteration_noise: 10,
            launched_window: Nanos::us(300),
            launch_gap: Nanos::us(20),
        }
    }
}

/// How many tokens a request will produce, and has produced.
#[derive(Clone, Copy, Debug, Default)]
struct Output {
    produced: u32,
    wanted: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timed {
    /// The running entry of a lane ends. Stale unless the lane still expects this moment.
    Lane(LaneId),
    /// A transfer may have ended.
    Transfer,
    /// A device fails.
    Fault(DeviceId),
    /// The operator that runs on a lane fails.
    Kernel(LaneId),
    /// The operator that runs on a lane makes no progress for a while.
    Stall(LaneId, Nanos),
    /// A device runs at another speed.
    Speed(DeviceId, Rate),
    /// A link carries something else.
    Link(LinkId, Bandwidth),
}

/// The simulated world of one cluster.
#[derive(Debug)]
pub struct SimWorld {
    cluster: Arc<Cluster>,
    costs: BoundCosts,
    interference: Option<Arc<dyn Interference>>,
    /// By device.
    speeds: Vec<Rate>,
    /// By link.
    bandwidth: Vec<Bandwidth>,
    options: WorldOptions,
    noise: Noise,
    now: Nanos,
    lanes: Vec<SimLane>,
    first_lane: Vec<u32>,
    gangs: Gangs,
    outputs: IdMap<RequestId, Output>,
    transfers: Transfers,
    agenda: BinaryHeap<Reverse<(Nanos, u64, Timed)>>,
    entries: u64,
    simulated: u64,
}

impl SimWorld {
    /// A world at time zero in which nothing runs.
    pub fn new(cluster: Arc<Cluster>, cost: Box<dyn CostModel>, options: WorldOptions) -> Self {
        let mut first_lane = vec![0u32];
        for device in cluster.devices() {
            first_lane.push(first_lane[first_lane.len() - 1] + u32::from(device.spec.lanes));
        }
        let lanes = cluster.lanes().map(SimLane::new).collect();
        Self {
            transfers: Transfers::new(&cluster),
            speeds: vec![Rate::ONE; cluster.devices().len()],
            bandwidth: cluster.links().iter().map(|link| link.bandwidth).collect(),
            interference: None,
            cluster,
            costs: BoundCosts::new(cost.into()),
            options,
            noise: Noise::new(options.seed, options.operator_noise, options.iteration_noise),
            now: Nanos::ZERO,
            lanes,
            first_lane,
            gangs: Gangs::default(),
            outputs: IdMap::default(),
            agenda: BinaryHeap::new(),
            entries: 0,
            simulated: 0,
        }
    }

    /// Tells how many tokens a request will produce; at least one. Nobody but this world knows. A
    /// request that was not revealed goes on for ever.
    pub fn reveal(&mut self, request: RequestId, output: u32) {
        self.outputs.insert(request, Output { produced: 0, wanted: output.max(1) });
    }

    /// Forgets a request that has ended.
    pub fn forget(&mut self, request: RequestId) {
        self.outputs.remove(&request);
    }

    /// Operators that ran so far.
    pub fn operators(&self) -> u64 {
        self.simulated
    }

    fn schedule(&mut self, at: Nanos, what: Timed) {
        self.entries += 1;
        self.agenda.push(Reverse((at, self.entries, what)));
    }

    fn lane_index(&self, lane: LaneId) -> Option<usize> {
        let device = lane.device.index();
        let (first, end) = (*self.first_lane.get(device)?, *self.first_lane.get(device + 1)?);
        let index = first + u32::from(lane.index);
        (index < end).then_some(index as usize)
    }

    fn lanes_of(&self, device: DeviceId) -> std::ops::Range<usize> {
        let of = |index: usize| self.first_lane.get(index).map_or(0, |&first| first as usize);
        of(device.index())..of(device.index() + 1)
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), WorldError> {
        let index = self.lane_index(launch.lane).ok_or(WorldError::NoSuchLane(launch.lane))?;
        self.gangs.launched(launch, index);
        self.lanes[index].push(launch.clone());
        if self.lanes[index].is_idle() {
            self.start_next(index, self.now);
        } else if self.lanes[index].should_yield() {
            self.cut(index, Fate::Keep);
        }
        Ok(())
    }

    /// Starts the first entry of a lane's queue, if there is one. A rank of a gang starts with the others, when
    /// the last of their lanes is free for it.
    fn start_next(&mut self, index: usize, at: Nanos) {
        let Some(first) = self.lanes[index].front().filter(|_| self.lanes[index].is_idle()) else { return };
        if first.spec.gang.is_some() {
            return self.start_gang(first.spec.key, at);
        }
        let Some(launch) = self.lanes[index].pop() else { return };
        let Some(cost) = self.bind(&launch) else { return };
        let start = at.max(self.lanes[index].held()) + self.options.launch_gap;
        let costs = Arc::from([cost]);
        let length = self.noise.length(&launch, &costs);
        self.begin(index, launch, costs, (start, length));
        self.began(index);
    }

    /// The durations of what is launched.
    fn bind(&mut self, launch: &Launch) -> Option<JobCost> {
        let device = self.cluster.device(launch.lane.device)?;
        Some(self.costs.bind(&launch.template, &launch.spec.binding, &device.spec))
    }

    /// Puts an entry on an idle lane; `costs` are those of all ranks of its gang.
    fn begin(&mut self, index: usize, launch: Launch, costs: Arc<[JobCost]>, times: (Nanos, Nanos)) {
        let Some(device) = self.cluster.device(launch.lane.device) else { return };
        let own = launch.spec.gang.map_or(0, |gang| gang.rank as usize);
        let demand = match (&self.interference, costs.get(own)) {
            (Some(_), Some(cost)) if device.spec.lanes > 1 => {
                JobDemand::bind(cost, &launch.template, &launch.spec.binding, &device.spec).mean(cost)
            }
            _ => Demand::NONE,
        };
        let rate = self.speeds.get(launch.lane.device.index()).copied().unwrap_or(Rate::ONE);
        self.lanes[index].start(launch, costs, demand, times, rate);
    }

    /// What runs on a lane has begun.
    fn began(&mut self, index: usize) {
        self.schedule_end(index);
        if self.interference.is_some() {
            self.rate(self.lanes[index].id().device);
        }
        if self.lanes[index].should_yield() {
            self.cut(index, Fate::Keep);
        }
    }

    fn schedule_end(&mut self, index: usize) {
        if let Some(finish) = self.lanes[index].finish() {
            self.schedule(finish, Timed::Lane(self.lanes[index].id()));
        }
    }

    /// Ends the running entry of a lane at its first operator boundary after what was launched; all ranks of a
    /// gang end at the same.
    fn cut(&mut self, index: usize, fate: Fate) {
        let not_before = self.now + self.options.launched_window;
        for lane in self.gangs.lanes_with(&self.lanes, index) {
            if self.lanes[lane].cut(&self.noise, not_before, fate) {
                self.schedule_end(lane);
            }
        }
    }

    fn recall(&mut self, job: JobId, lane: LaneId, fate: Fate) -> Result<(), WorldError> {
        let index = self.lane_index(lane).ok_or(WorldError::NoSuchLane(lane))?;
        if self.lanes[index].is_running(job) {
            self.cut(index, fate);
            self.lanes[index].take_back_rest(job, fate);
        } else if let Some(key) = self.lanes[index].queued_gang(job) {
            self.take_back_gang(key, fate);
        } else if self.lanes[index].take_back_rest(job, fate) {
            self.schedule(self.now, Timed::Lane(lane));
        }
        Ok(())
    }

    fn prefetch(&mut self, weights: Weights, bytes: Bytes, source: Source) -> Result<(), WorldError> {
        let device = weights.device;
        let target = self.cluster.device(device).ok_or(WorldError::NoSuchDevice(device))?;
        let from = match source {
            Source::Device(device) => Endpoint::Device(device),
            Source::Host => Endpoint::Host(target.node),
        };
        let route = self
            .cluster
            .route(from, Endpoint::Device(device))
            .ok_or(WorldError::Other { message: format!("there is no route from {from} to {device}"), source: None })?;
        let latency = route.latency(&self.cluster);
        self.transfers.start(self.now, weights, bytes, route.links(), latency);
        self.schedule_transfer();
        Ok(())
    }

    /// Nothing starts on the device's lanes while blocks are read and written.
    fn move_blocks(&mut self, device: DeviceId, blocks: u64, view: View<'_>) -> Result<(), WorldError> {
        let target = self.cluster.device(device).ok_or(WorldError::NoSuchDevice(device))?;
        let block = view.memory(device).map_or(Bytes::ZERO, |memory| memory.layout().kv_block);
        let until = self.now + target.spec.bandwidth.time_for(block.times(2 * blocks));
        self.lanes.iter_mut().filter(|lane| lane.id().device == device).for_each(|lane| lane.hold(until));
        Ok(())
    }

    fn schedule_transfer(&mut self) {
        if let Some(at) = self.transfers.next() {
            self.schedule(at, Timed::Transfer);
        }
    }

    fn end_of_lane(&mut self, lane: LaneId, events: &mut Vec<Event>) {
        let Some(index) = self.lane_index(lane) else { return };
        let at = self.now;
        let ended = self.lanes[index].end(at);
        if let Some((launch, started, ending)) = ended {
            let is_last = self.gangs.left(&launch, index);
            match ending {
                Ending::Finished => {
                    self.simulated += u64::from(launch.ops.end - launch.ops.start);
                    let ended = if is_last { self.emit(&launch) } else { Vec::new() };
                    let Launch { job, ops, .. } = launch;
                    events.push(Event::Finished { job, ops, lane, started, at, tokens: Vec::new(), ended });
                }
                Ending::Cut(op, fate) => {
                    self.simulated += u64::from(op - launch.ops.start);
                    let (done, end) = (launch.ops.start..op, launch.ops.end);
                    events.push(Event::Recalled { job: launch.job, lane, done, end, fate, started, at });
                    self.lanes[index].take_back_rest(launch.job, fate);
                }
            }
        }
        for (launch, fate) in self.lanes[index].taken_back() {
            self.gangs.left(&launch, index);
            let Launch { job, ops, lane, .. } = launch;
            events.push(Event::Recalled { job, lane, done: ops.start..ops.start, end: ops.end, fate, started: at, at });
        }
        if self.lanes[index].is_idle() {
            self.start_next(index, at);
            if self.interference.is_some() {
                self.rate(lane.device);
            }
        }
    }

    /// Counts the tokens of a finished iteration, and tells whose last token was among them.
    fn emit(&mut self, launch: &Launch) -> Vec<Ended> {
        let mut ended = Vec::new();
        if launch.ops.end != launch.template.op_count() {
            return ended;
        }
        for row in launch.spec.rows.iter().filter(|row| row.emits) {
            let Some(output) = self.outputs.get_mut(&row.request) else { continue };
            output.produced += 1;
            if output.produced == output.wanted {
                ended.push(Ended { request: row.request, produced: output.produced });
            }
        }
        ended
    }
}

impl World for SimWorld {
    fn enqueue(&mut self, command: &Command, view: View<'_>) -> Result<(), WorldError> {
        match command {
            Command::Launch(launch) => self.launch(launch),
            Command::Recall { job, lane, fate } => self.recall(*job, *lane, *fate),
            Command::Prefetch { model, device, source, .. } => {
                let bytes = view.model(*model).ok_or(WorldError::NoSuchModel(*model))?.weights;
                self.prefetch(Weights { model: *model, ops: None, device: *device }, bytes, *source)
            }
            Command::PrefetchOps { model, ops, device, source, region } => {
                let weights = Weights { model: *model, ops: Some(ops.clone()), device: *device };
                self.prefetch(weights, region.bytes, *source)
            }
            Command::MoveBlocks { device, moves } => self.move_blocks(*device, moves.len() as u64, view),
            // Their bytes are free as soon as the graph says so.
            Command::EvictWeights { .. } | Command::EvictOps { .. } => Ok(()),
            other => Err(WorldError::Other { message: format!("this world cannot carry out {other:?}"), source: None }),
        }
    }

    fn poll(&mut self, until: Nanos, events: &mut Vec<Event>) -> Result<Nanos, WorldError> {
        let before = events.len();
        while events.len() == before {
            match self.agenda.peek() {
                Some(&Reverse((at, _, what))) if at <= until => {
                    self.agenda.pop();
                    self.now = self.now.max(at);
                    match what {
                        Timed::Lane(lane) => self.end_of_lane(lane, events),
                        Timed::Fault(device) => self.lose_device(device, events),
                        Timed::Kernel(lane) => self.kernel_fails(lane, events),
                        Timed::Stall(lane, length) => self.stalls(lane, length),
                        Timed::Speed(device, speed) => self.speed_changes(device, speed),
                        Timed::Link(link, bandwidth) => self.link_changes(link, bandwidth, events),
                        Timed::Transfer => {
                            let at = self.now;
                            events.extend(self.transfers.advance(at).into_iter().map(|arrived| match arrived {
                                Weights { model, ops: None, device } => Event::WeightsLoaded { model, device, at },
                                Weights { model, ops: Some(ops), device } => {
                                    Event::OpsLoaded { model, ops, device, at }
                                }
                            }));
                            self.schedule_transfer();
                        }
                    }
                }
                _ => {
                    self.now = self.now.max(until);
                    break;
                }
            }
        }
        Ok(self.now)
    }

    fn is_idle(&self) -> bool {
        self.lanes.iter().all(SimLane::is_idle) && self.transfers.is_empty()
    }
}
