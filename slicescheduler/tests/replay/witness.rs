//! Checks commands and events against the rules, with tables of its own.
//!
//! What it holds to be true:
//! - a lane runs one job at a time, in operator order, and reports every launch once;
//! - work of a lower rank never starts while work of a higher rank waits on its lane, and gives way
//!   within the launched window and one operator;
//! - work runs only where its weights are, with the rank that its tenant has there;
//! - the rows of a request are computed in order, on one device, each token once until its cache is
//!   given up, and it produces exactly what only the world knows;
//! - the ranks of an iteration on several devices start, stop and end together, at the same operators, and
//!   its tokens come with the last of them;
//! - cache blocks have one owner, unless its tenant shares blocks, and hold what is computed; activations of live jobs are apart;
//!   bytes in use never exceed what is usable.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::id::{DeviceId, JobId, JobKey, LaneId, ModelId, RequestId, TenantId};
use slicescheduler_gmg::job::{JobSpec, Row};
use slicescheduler_gmg::plan::{Command, Event, Fate, Launch, Rank};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, View};
use slicescheduler_simulator::cost::JobCost;
use slicescheduler_simulator::world::{WorldCost, WorldOptions};

/// The whole of a device's memory is looked at once in so many commands.
const AUDIT: u64 = 64;

/// Complaints that are kept.
const KEPT: usize = 10;

/// A command, without what depends on the order of allocation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decided {
    Launch { spec: Arc<JobSpec>, ops: Range<u32>, lane: LaneId, rank: Rank },
    Recall { job: JobKey, lane: LaneId, fate: Fate },
    Prefetch { model: ModelId, device: DeviceId },
    EvictWeights { model: ModelId, device: DeviceId },
    MoveBlocks { device: DeviceId },
}

/// What a run was seen to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) launches: u64,
    pub(crate) recalls: u64,
    /// Spans of work on somebody else's device.
    pub(crate) guest_spans: u64,
    /// Spans of latency-sensitive work on somebody else's device.
    pub(crate) overflow_spans: u64,
    /// Spans that ended while work of a higher rank waited for the lane.
    pub(crate) yields: u64,
    /// Requests whose cache was given up and computed again.
    pub(crate) recomputed: u64,
    pub(crate) ended: u64,
}

struct Job {
    launch: Launch,
    enqueued: Nanos,
    on_lane: bool,
    recalled: Option<Nanos>,
    /// Operators done so far.
    done: u32,
}

/// From when to when which operators ran.
type Piece = (Nanos, Nanos, Range<u32>);

#[derive(Debug, Default)]
struct Progress {
    prompt: u32,
    wanted: u32,
    computed: u32,
    produced: u32,
    device: Option<DeviceId>,
    /// Where the other ranks have their parts.
    parts: Vec<DeviceId>,
    job: Option<JobId>,
    over: Option<Nanos>,
}

pub(crate) struct Witness {
    pub(crate) now: Nanos,
    pub(crate) counts: Counts,
    pub(crate) decided: Vec<(Nanos, Decided)>,
    pub(crate) complaints: Vec<String>,
    /// Every request, in the order of arrival.
    pub(crate) asked: Vec<(TenantId, RequestId)>,
    /// Tenants whose sequences share blocks.
    pub(crate) sharing: HashSet<TenantId>,
    /// Every token that came, and whether it was the last of its request.
    tokens: Vec<(Nanos, RequestId, bool)>,
    options: WorldOptions,
    jobs: HashMap<JobId, Job>,
    /// The piece of each gang that some ranks have reported, and how many.
    pieces: HashMap<JobKey, (Piece, u32)>,
    lane_free: HashMap<LaneId, Nanos>,
    requests: HashMap<RequestId, Progress>,
    resident: HashSet<(ModelId, DeviceId)>,
    lost: HashSet<DeviceId>,
    devices: Vec<Arc<DeviceSpec>>,
}

impl Witness {
    pub(crate) fn new(options: WorldOptions, view: View<'_>) -> Self {
        let mut resident = HashSet::new();
        for device in (0..view.cluster().devices().len() as u32).map(DeviceId) {
            resident.extend(view.memory(device).unwrap().models().map(|(model, _)| (model, device)));
        }
        Self {
            now: Nanos::ZERO,
            counts: Counts::default(),
            decided: Vec::new(),
            complaints: Vec::new(),
            asked: Vec::new(),
            sharing: HashSet::new(),
            tokens: Vec::new(),
            options,
            jobs: HashMap::new(),
            pieces: HashMap::new(),
            lane_free: HashMap::new(),
            requests: HashMap::new(),
            resident,
            lost: HashSet::new(),
            devices: view.cluster().devices().iter().map(|device| device.spec.clone()).collect(),
        }
    }

    /// Tokens that every request produced before `time`, and whether its last was among them.
    pub(crate) fn produced_before(&self, time: Nanos) -> HashMap<RequestId, (u32, bool)> {
        let mut produced = HashMap::new();
        for &(_, request, last) in self.tokens.iter().take_while(|&&(at, ..)| at < time) {
            let entry = produced.entry(request).or_insert((0, false));
            *entry = (entry.0 + 1, last);
        }
        produced
    }

    /// The decisions before `time`.
    pub(crate) fn decided_before(&self, time: Nanos) -> &[(Nanos, Decided)] {
        &self.decided[..self.decided.partition_point(|&(at, _)| at < time)]
    }

    fn check(&mut self, holds: bool, otherwise: impl FnOnce(&Self) -> String) {
        if !holds && self.complaints.len() < KEPT {
            let complaint = format!("at {}: {}", self.now, otherwise(self));
            self.complaints.push(complaint);
        }
    }

    pub(crate) fn promised(&mut self, tenant: TenantId, request: RequestId, prompt: u32, wanted: u32) {
        self.asked.push((tenant, request));
        self.requests.insert(request, Progress { prompt, wanted: wanted.max(1), ..Progress::default() });
    }

    pub(crate) fn commanded(&mut self, command: &Command, view: View<'_>) {
        let decided = match command {
            Command::Launch(launch) => {
                self.launched(launch, view);
                let Launch { spec, ops, lane, rank, .. } = launch.clone();
                Decided::Launch { spec, ops, lane, rank }
            }
            &Command::Recall { job: id, lane, fate } => {
                let now = self.now;
                let job = self.jobs.get_mut(&id).filter(|job| job.on_lane && job.launch.lane == lane);
                let key = job.map(|job| {
                    job.recalled.get_or_insert(now);
                    job.launch.spec.key
                });
                self.check(key.is_some(), |_| format!("{id} is recalled from {lane}, where it is not"));
                Decided::Recall { job: key.unwrap_or_default(), lane, fate }
            }
            &Command::Prefetch { model, device, region, .. } => {
                let layout = *view.memory(device).unwrap().layout();
                let inside = region.offset + region.bytes <= layout.weights;
                self.check(inside, |_| format!("weights of {model} lie at {region:?} of {device}"));
                Decided::Prefetch { model, device }
            }
            &Command::EvictWeights { model, device } => {
                self.resident.remove(&(model, device));
                Decided::EvictWeights { model, device }
            }
            Command::MoveBlocks { device, moves } => {
                let total = view.memory(*device).unwrap().kv().total();
                let down = moves.iter().all(|&(from, to)| to < total && total <= from);
                self.check(down, |_| format!("{moves:?} do not clear what is beyond {total} on {device}"));
                let busy = self.jobs.values().any(|job| job.on_lane && job.launch.lane.device == *device);
                self.check(!busy, |_| format!("blocks of {device} move under running work"));
                Decided::MoveBlocks { device: *device }
            }
            _ => unreachable!("a command that this test does not know"),
        };
        self.decided.push((self.now, decided));
        if (self.decided.len() as u64).is_multiple_of(AUDIT) {
            self.audit(view);
        }
    }

    fn launched(&mut self, launch: &Launch, view: View<'_>) {
        let Launch { job: id, spec, template, ops, lane, rank, .. } = launch;
        let (device, model) = (lane.device, spec.model);
        self.counts.launches += 1;
        self.check(!self.lost.contains(&device), |_| format!("{id} is launched on {device}, which is lost"));
        self.check(self.resident.contains(&(model, device)), |_| {
            format!("{id} is launched on {device} without the weights of {model}")
        });
        let tenant = view.model(model).unwrap().tenant();
        let right = view.rank(tenant, device);
        self.check(*rank == right, |_| format!("{id} of {tenant} is launched on {lane} as {rank:?}, not {right:?}"));
        let known = self.jobs.get(id).map(|job| (job.on_lane, job.done, job.launch.spec.clone()));
        let expected = known.as_ref().map_or(0, |&(_, done, _)| done);
        let fresh = known.as_ref().is_none_or(|(on_lane, _, of)| !on_lane && Arc::ptr_eq(of, spec));
        self.check(fresh && ops.start == expected && ops.end == template.op_count(), |_| {
            format!("{id} is launched with operators {ops:?}, although {expected} are done and it is idle: {fresh}")
        });
        if known.is_none() {
            for row in &spec.rows {
                match spec.gang {
                    Some(gang) if gang.rank > 0 => self.enter_part(*id, row, device, view),
                    _ => self.enter_row(*id, row, device, view),
                }
            }
        }
        self.apart(launch, view);
        let job = Job { launch: launch.clone(), enqueued: self.now, on_lane: true, recalled: None, done: expected };
        self.jobs.insert(*id, job);
    }

    /// A row of a job that was never launched before.
    fn enter_row(&mut self, id: JobId, row: &Row, device: DeviceId, view: View<'_>) {
        let &Row { request, position, tokens, emits } = row;
        let memory = view.memory(device).unwrap();
        let blocks = memory.kv().table(request).len() as u32;
        let block_tokens = memory.layout().kv_block_tokens;
        let Some(progress) = self.requests.get_mut(&request) else {
            return self.check(false, |_| format!("{id} computes {request}, which nobody submitted"));
        };
        let again = position == 0 && progress.computed > 0;
        let other = progress.job.replace(id).filter(|&other| view.job(other).is_some());
        let tenant = view.request(request).map(|request| request.tenant);
        let shares = tenant.is_some_and(|tenant| self.sharing.contains(&tenant));
        let continues = progress.computed == position && progress.device == Some(device);
        if position == 0 || (shares && !continues && position.is_multiple_of(block_tokens)) {
            progress.computed = position;
            progress.device = Some(device);
        }
        let &mut Progress { prompt, computed, produced, device: home, over, .. } = progress;
        let (end, all) = (position + tokens, prompt + produced);
        self.counts.recomputed += u64::from(again);
        self.check(over.is_none(), |_| format!("{id} computes {request}, which is over"));
        self.check(other.is_none(), |_| format!("{id} computes {request} at the same time as {other:?}"));
        self.check(position == computed && home == Some(device), |_| {
            format!("{id} computes {request} from {position} on {device}, but {computed} are computed on {home:?}")
        });
        self.check(tokens > 0 && end <= all && emits == (end == all), |_| {
            format!("{id} computes {row:?} of {all} tokens")
        });
        self.check(blocks >= end.div_ceil(block_tokens), |_| format!("{end} tokens of {request} in {blocks} blocks"));
        self.check(!again || blocks == end.div_ceil(block_tokens), |_| {
            format!("{request} is computed again on {blocks} blocks, more than {end} tokens need: it lost nothing")
        });
    }

    /// The same on the device of another rank than the first, which has as many blocks.
    fn enter_part(&mut self, id: JobId, row: &Row, device: DeviceId, view: View<'_>) {
        let Some(progress) = self.requests.get_mut(&row.request) else {
            return self.check(false, |_| format!("{id} computes {}, which nobody submitted", row.request));
        };
        if !progress.parts.contains(&device) {
            progress.parts.push(device);
        }
        let blocks = |on: DeviceId| view.memory(on).unwrap().kv().table(row.request).len();
        let home = progress.device;
        let equal = home.is_some_and(|home| blocks(home) == blocks(device) && home != device);
        self.check(equal, |_| format!("{} has other blocks on {device} than on {home:?}", row.request));
    }

    /// True if no other rank of the launch is still to report this piece; always, without other ranks.
    fn is_last(&mut self, launch: &Launch, piece: Piece) -> bool {
        let Some(gang) = launch.spec.gang else { return true };
        let (key, id) = (launch.spec.key, launch.job);
        let (first, count) = self.pieces.remove(&key).unwrap_or((piece.clone(), 0));
        self.check(first == piece, |_| format!("{id} ran {piece:?}, another rank of it {first:?}"));
        let is_last = count + 1 == gang.size;
        if !is_last {
            self.pieces.insert(key, (first, count + 1));
        }
        is_last
    }

    /// Activations of live jobs do not overlap, and lie in the arena.
    fn apart(&mut self, launch: &Launch, view: View<'_>) {
        let device = launch.lane.device;
        let layout = *view.memory(device).unwrap().layout();
        let (begin, end) = (launch.arena.offset, launch.arena.offset + launch.arena.bytes);
        let inside = layout.weights <= begin && end <= layout.weights + layout.arena;
        self.check(inside, |_| format!("activations at {:?} of {device}, outside of its arena", launch.arena));
        let live = |id: &JobId, job: &Job| {
            *id != launch.job && job.launch.lane.device == device && (job.on_lane || view.job(*id).is_some())
        };
        let overlaps = |job: &Job| {
            let region = job.launch.arena;
            region.offset < end && begin < region.offset + region.bytes
        };
        let hit = self.jobs.iter().find(|(id, job)| live(id, job) && overlaps(job)).map(|(&id, _)| id);
        self.check(hit.is_none(), |_| format!("{} and {hit:?} share activations", launch.job));
        self.jobs.retain(|id, job| job.on_lane || view.job(*id).is_some());
    }

    /// Every block has one owner; nothing exceeds what is usable.
    fn audit(&mut self, view: View<'_>) {
        for device in (0..view.cluster().devices().len() as u32).map(DeviceId) {
            let memory = view.memory(device).unwrap();
            let kv = memory.kv();
            let mut owners = vec![None; kv.total() as usize];
            let mut used = 0;
            for request in kv.sequences() {
                let tenant = view.request(request).map(|request| request.tenant);
                for &block in kv.table(request) {
                    let other = owners.get_mut(block as usize).map(|owner| owner.replace(request));
                    used += u32::from(other == Some(None));
                    let of = |other: RequestId| view.request(other).map(|request| request.tenant);
                    let shared = other.flatten().is_some_and(|other| of(other) == tenant);
                    let may = tenant.is_some_and(|tenant| self.sharing.contains(&tenant));
                    self.check(other == Some(None) || (shared && may), |_| {
                        format!("block {block} of {device} is {request}'s and {other:?}'s")
                    });
                }
            }
            let weights = memory.models().filter_map(|(model, _)| memory.weight_region(model));
            let end = weights.map(|region| region.end()).max().unwrap_or_default();
            let lowest = owners.len().checked_sub(1).map(|last| memory.layout().block_offset(last as u32));
            self.check(memory.borrowed_blocks() == 0 || lowest.is_none_or(|lowest| end <= lowest), |_| {
                format!("weights of {device} end at {end}, borrowed blocks begin at {lowest:?}")
            });
            self.check(used == kv.used_blocks(), |_| format!("{used} blocks of {device} have owners"));
            let (total, usable) = (memory.ledger().total(), memory.layout().usable);
            self.check(total <= usable, |_| format!("{total} of {usable} usable bytes of {device} are used"));
        }
    }

    pub(crate) fn happened(&mut self, event: &Event) {
        self.now = self.now.max(event.at());
        match *event {
            Event::Finished { job: id, ref ops, lane, started, at, ref ended, .. } => {
                let Some(launch) = self.left(id, lane, started, at, ops) else { return };
                self.check(*ops == launch.ops, |_| format!("{id} finished {ops:?} of {:?}", launch.ops));
                self.jobs.remove(&id);
                let failed = launch.spec.rows.iter().any(|row| self.requests[&row.request].over.is_some());
                if launch.spec.gang.is_some() && failed {
                    return;
                }
                if !self.is_last(&launch, (started, at, ops.clone())) {
                    return self.check(ended.is_empty(), |_| format!("{ended:?} end before the last rank of {id}"));
                }
                self.computed(&launch, at);
                let over = |row: &&Row| self.requests[&row.request].over == Some(at);
                let expected: Vec<_> = launch.spec.rows.iter().filter(over).map(|row| row.request).collect();
                let said: Vec<_> = ended.iter().map(|ended| ended.request).collect();
                self.counts.ended += said.len() as u64;
                self.check(said == expected, |_| format!("{said:?} ended with {id}, expected {expected:?}"));
            }
            Event::Recalled { job: id, lane, ref done, end, fate, started, at } => {
                let Some(launch) = self.left(id, lane, started, at, done) else { return };
                self.counts.recalls += 1;
                let whole = done.start == launch.ops.start && done.end < end && end == launch.ops.end;
                self.check(whole, |_| format!("{id} was recalled after {done:?} of {:?}", launch.ops));
                self.is_last(&launch, (started, at, done.clone()));
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.done = if fate == Fate::Keep { done.end } else { 0 };
                }
            }
            Event::Failed { job: id, .. } => {
                let Some(job) = self.jobs.remove(&id) else { return };
                let now = self.now;
                self.pieces.remove(&job.launch.spec.key);
                for row in &job.launch.spec.rows {
                    self.requests.get_mut(&row.request).unwrap().over = Some(now);
                }
                self.lane_free.insert(job.launch.lane, now);
            }
            Event::WeightsLoaded { model, device, .. } => {
                self.resident.insert((model, device));
            }
            Event::DeviceLost { device, .. } => {
                self.lost.insert(device);
                self.resident.retain(|&(_, on)| on != device);
                self.jobs.retain(|_, job| job.launch.lane.device != device);
                self.pieces.clear();
                let had =
                    |progress: &&mut Progress| progress.device == Some(device) || progress.parts.contains(&device);
                for progress in self.requests.values_mut().filter(had) {
                    (progress.computed, progress.device, progress.job) = (0, None, None);
                    progress.parts.clear();
                }
            }
            _ => {}
        }
    }

    /// Operators `ops` of a job ran on a lane, and the rest of its launch left it.
    fn left(&mut self, id: JobId, lane: LaneId, started: Nanos, at: Nanos, ops: &Range<u32>) -> Option<Launch> {
        let job = self.jobs.get_mut(&id).filter(|job| job.on_lane && job.launch.lane == lane);
        let Some(job) = job else {
            self.check(false, |_| format!("{id} is reported on {lane}, where it is not"));
            return None;
        };
        job.on_lane = false;
        let (launch, recalled) = (job.launch.clone(), job.recalled);
        if !ops.is_empty() {
            self.ran(&launch, recalled, started, at);
        }
        Some(launch)
    }

    fn ran(&mut self, launch: &Launch, recalled: Option<Nanos>, started: Nanos, at: Nanos) {
        let (id, lane) = (launch.job, launch.lane);
        let free = self.lane_free.insert(lane, at).unwrap_or(Nanos::ZERO);
        self.check(free <= started && started < at, |_| {
            format!("{id} ran from {started} to {at} on {lane}, which was not free before {free}")
        });
        self.counts.guest_spans += u64::from(matches!(launch.rank, Rank::GuestBestEffort | Rank::GuestLatency));
        self.counts.overflow_spans += u64::from(launch.rank == Rank::GuestLatency);
        let above = |job: &&Job| job.on_lane && job.launch.lane == lane && job.launch.rank > launch.rank;
        let waiting = self.jobs.values().filter(above).map(|job| job.enqueued).min();
        if let Some(since) = waiting {
            self.counts.yields += 1;
            self.check(started <= since + self.options.launch_gap, |_| {
                format!("{id} started at {started} on {lane}, where a higher rank waited since {since}")
            });
        }
        let called = waiting.into_iter().chain(recalled).min();
        if let Some(called) = called {
            let latest = (called + self.options.launched_window).max(started) + self.longest(launch);
            self.check(at <= latest, |_| {
                format!("{id} kept {lane} until {at}, called off at {called}: {latest} was the latest")
            });
        }
    }

    /// The longest that one operator of the launch can take. Noise is uniform: a deviation of `d`
    /// reaches at most `d` times the square root of 3 beyond the mean.
    fn longest(&self, launch: &Launch) -> Nanos {
        let device = &self.devices[launch.lane.device.index()];
        let cost = JobCost::bind(&WorldCost::default(), &launch.template, &launch.spec.binding, device);
        let longest = launch.ops.clone().map(|op| cost.duration(op)).max().unwrap_or_default();
        let most = |percent: u32| 1.0 + f64::from(percent) * 0.017_33;
        let noisy = most(self.options.operator_noise) * most(self.options.iteration_noise);
        Nanos((longest.get() as f64 * noisy) as u64 + 1)
    }

    /// Every row of a finished job is computed.
    fn computed(&mut self, launch: &Launch, at: Nanos) {
        for row in &launch.spec.rows {
            let progress = self.requests.get_mut(&row.request).unwrap();
            progress.job = None;
            progress.computed += row.tokens;
            if row.emits {
                progress.produced += 1;
                let last = progress.produced == progress.wanted;
                progress.over = progress.over.or(last.then_some(at));
                self.tokens.push((at, row.request, last));
            }
        }
    }
}
