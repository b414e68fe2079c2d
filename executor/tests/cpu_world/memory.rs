//! Oracle: kernels are given the memory that the graph says, replayed from the log of its deltas, byte for byte.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use slicescheduler_executor::Result;
use slicescheduler_executor::arena::Region;
use slicescheduler_executor::cpu_world::CpuWorldOptions;
use slicescheduler_executor::fault::{Fault, Faults, Point};
use slicescheduler_executor::lane::StdThreads;
use slicescheduler_executor::registry::{BoundKernel, Call, CpuKernels, Kernel, Site, Touched};
use slicescheduler_gmg::graph::{OpGraph, Role};
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, RequestId, TensorId};
use slicescheduler_gmg::memory::{ByteKind, DeviceMemory};
use slicescheduler_gmg::plan::{Action, Event, Fate, Rank, Source};
use slicescheduler_gmg::units::Bytes;
use slicescheduler_gmg::{Gmg, GmgView, View};

use crate::gate::instead_of_all;
use crate::rig::{LANES, Rig, prompt};

/// What one run of a kernel was given.
#[derive(Clone, Debug)]
struct Record {
    op: u32,
    /// It did the whole operator in one go.
    whole: bool,
    /// It was stopped in the middle.
    stopped: bool,
    touched: BTreeSet<(ByteKindOrder, u64, u64)>,
    written: BTreeSet<(u64, u64)>,
}

/// [`ByteKind`] has no order.
type ByteKindOrder = u8;

const fn order(kind: ByteKind) -> ByteKindOrder {
    kind as u8
}

/// Sees every operator of every lane, in order; lets some of them fail.
#[derive(Clone, Debug)]
struct Witness {
    seen: Arc<Mutex<BTreeMap<LaneId, VecDeque<Record>>>>,
    operators: Arc<AtomicU64>,
    /// One in so many fails; none if 0.
    fails: u64,
}

thread_local! {
    /// Where the thread is, as the point in front of the operator said.
    static PLACE: Cell<(LaneId, u32)> = const { Cell::new((LaneId::new(DeviceId(0), 0), 0)) };
}

impl Faults for Witness {
    fn at(&self, point: Point) -> Option<Fault> {
        let Point::Operator { lane, op } = point else { return None };
        PLACE.set((lane, op));
        let number = self.operators.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        // As SplitMix64 mixes its state.
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20;
        (self.fails > 0 && hash.is_multiple_of(self.fails)).then_some(Fault::Fails)
    }
}

impl Kernel for Witness {
    fn bind(&self, site: &Site<'_>) -> Result<Arc<dyn BoundKernel>> {
        Ok(Arc::new(BoundWitness(self.clone(), CpuKernels.bind(site)?)))
    }
}

#[derive(Debug)]
struct BoundWitness(Witness, Arc<dyn BoundKernel>);

impl BoundKernel for BoundWitness {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        self.1.run(call)?;
        let (lane, op) = PLACE.get();
        let parts = call.parts();
        let (stopped, resumed) = (parts.left().is_some(), parts.first() > 0);
        let ends = |region: Region| (region.offset.get(), region.end().get());
        let touched: Vec<Touched> = call.touched().filter(|touched| !touched.region.size.is_zero()).collect();
        let all = touched.iter().map(|touched| (order(touched.kind), ends(touched.region).0, ends(touched.region).1));
        let written = touched.iter().filter(|touched| touched.written && touched.kind == ByteKind::Activations);
        let record = Record {
            op,
            whole: !stopped && !resumed,
            stopped,
            touched: all.collect(),
            written: written.map(|touched| ends(touched.region)).collect(),
        };
        self.0.seen.lock().unwrap().entry(lane).or_default().push_back(record);
        Ok(())
    }
}

/// What the test did, and what it was told, with the length of the log at that moment.
#[derive(Debug)]
enum Moment {
    Launched(JobId, DeviceId),
    /// `seen`: records of the lane by then.
    Ended {
        job: JobId,
        lane: LaneId,
        ops: Range<u32>,
        seen: usize,
    },
}

/// A rig under a witness, and its history.
struct Watched {
    rig: Rig,
    witness: Witness,
    history: Vec<(usize, Moment)>,
}

impl Watched {
    fn new(fails: u64) -> Self {
        let witness = Witness { seen: Arc::default(), operators: Arc::default(), fails };
        let kernels = instead_of_all(Arc::new(witness.clone()));
        let faults = Some(Arc::new(witness.clone()) as Arc<dyn Faults>);
        let options = CpuWorldOptions { kernels, faults, ..CpuWorldOptions::default() };
        let rig = Rig::with(options, &StdThreads).unwrap();
        Self { rig, witness, history: Vec::new() }
    }

    fn launch(&mut self, rows: &[(RequestId, u32)], lane: LaneId, rank: Rank) -> JobId {
        let spec = self.rig.iteration(rows);
        let job = self.rig.launch(spec, lane, rank);
        self.history.push((self.rig.log.len(), Moment::Launched(job, lane.device)));
        job
    }

    fn resume(&mut self, job: JobId, lane: LaneId) {
        self.rig.resume(job, lane, Rank::OwnerBestEffort);
        self.history.push((self.rig.log.len(), Moment::Launched(job, lane.device)));
    }

    fn events(&mut self) -> Vec<Event> {
        let before = self.rig.log.len();
        let events = self.rig.events();
        for event in &events {
            let ended = match event {
                Event::Finished { job, lane, ops, .. } => Some((*job, *lane, ops.clone())),
                Event::Recalled { job, lane, done, .. } => Some((*job, *lane, done.clone())),
                Event::Failed { job, lane, failure, .. } => {
                    let slicescheduler_gmg::plan::Failure::Kernel { op, .. } = failure else { panic!("{failure}") };
                    Some((*job, *lane, u32::MAX..*op))
                }
                _ => None,
            };
            if let Some((job, lane, ops)) = ended {
                let seen = self.witness.seen.lock().unwrap().get(&lane).map_or(0, VecDeque::len);
                self.history.push((before, Moment::Ended { job, lane, ops, seen }));
            }
        }
        events
    }

    /// Replays the log and holds every record against it. Gives, by device, the most bytes that kernels had touched at
    /// a time of what the graph still held, and the most that the graph held.
    fn check(self) -> Vec<(Bytes, Bytes)> {
        let Self { rig, witness, history } = self;
        let mut replayed = Gmg::restore(&rig.start);
        let mut seen_of = std::mem::take(&mut *witness.seen.lock().unwrap());
        let all: BTreeMap<_, _> = seen_of.iter().map(|(&lane, records)| (lane, records.len())).collect();
        let mut applied = 0;
        let mut planned: BTreeMap<JobId, Planned> = BTreeMap::new();
        let mut use_of = [Use::default(), Use::default()];
        for (at, moment) in history {
            while applied < at {
                replayed.apply(rig.log[applied].clone()).unwrap();
                applied += 1;
            }
            match moment {
                Moment::Launched(job, device) => {
                    let reached = planned.get(&job).map_or(0, |planned| planned.reached);
                    let again = Planned::of(replayed.view(), job, device, reached);
                    planned.insert(job, again);
                }
                Moment::Ended { job, lane, ops, seen } => {
                    let planned = planned.get_mut(&job).unwrap();
                    let records = seen_of.entry(lane).or_default();
                    let first = if ops.start == u32::MAX { planned.reached } else { ops.start };
                    for op in first..ops.end {
                        let record = records.pop_front().unwrap();
                        assert_eq!(record.op, op, "{lane} ran the operators of its entries in order");
                        planned.check(&record);
                        use_of[lane.device.index()].touch(job, planned, &record);
                    }
                    planned.reached = ops.end;
                    // The next entry may have stopped at the same operator: its job lies elsewhere, or was placed
                    // after this one had been heard of.
                    let by_then = all.get(&lane).map_or(0, |all| all - records.len()) < seen;
                    let is_its = |record: &Record| record.stopped && record.op == ops.end && planned.holds(record);
                    if by_then && records.front().is_some_and(is_its) {
                        let record = records.pop_front().unwrap();
                        planned.check(&record);
                        use_of[lane.device.index()].touch(job, planned, &record);
                    }
                    let memory = replayed.view().memory(lane.device).unwrap().clone();
                    use_of[lane.device.index()].count(replayed.view(), &memory);
                    if ops.end == planned.template.op_count() && planned.from_start {
                        planned.assert_all_was_used();
                    }
                }
            }
        }
        while applied < rig.log.len() {
            replayed.apply(rig.log[applied].clone()).unwrap();
            applied += 1;
        }
        assert!(seen_of.values().all(VecDeque::is_empty), "nothing ran that was not reported");
        let mut peaks = Vec::new();
        for (index, of) in use_of.iter().enumerate() {
            let device = DeviceId(index as u32);
            let (ours, theirs) = (replayed.view(), rig.gmg.view());
            assert_eq!(ours.memory(device), theirs.memory(device), "the log replays to the same memory");
            peaks.push((of.peak, ours.memory(device).unwrap().ledger().peak()));
        }
        peaks
    }
}

/// What the replayed graph says of a job's memory.
struct Planned {
    template: Arc<OpGraph>,
    model: ModelId,
    slot: Region,
    arena: Region,
    tensors: BTreeMap<TensorId, (u64, u64)>,
    blocks: BTreeSet<(u64, u64)>,
    /// Operators that have run.
    reached: u32,
    /// Records cover it from its first operator on, at one place.
    from_start: bool,
    used: u64,
}

impl Planned {
    fn of(view: View<'_>, job: JobId, device: DeviceId, reached: u32) -> Self {
        let live = view.job(job).unwrap();
        let memory = view.memory(device).unwrap();
        let (on, arena) = live.arena.unwrap();
        assert_eq!(on, device);
        let reached = if live.progress() == 0 { 0 } else { reached };
        let template = live.template.clone();
        let places = template.activation_layout(&live.spec.binding);
        let place = |tensor: TensorId| {
            let place = places.region(&template, tensor)?;
            let start = (arena.offset + place.offset).get();
            (!place.bytes.is_zero()).then_some((tensor, (start, start + place.bytes.get())))
        };
        let tensors = template.tensors().filter_map(|view| place(view.id)).collect();
        let block = |&block: &u32| {
            let start = memory.layout().block_offset(block).get();
            (start, start + memory.layout().kv_block.get())
        };
        let blocks = live.spec.rows.iter().flat_map(|row| memory.kv().table(row.request)).map(block).collect();
        let slot = memory.weight_region(live.spec.model).unwrap();
        let slot = Region::new(slot.offset, slot.bytes);
        let (model, arena) = (live.spec.model, Region::new(arena.offset, arena.bytes));
        Self {
            template,
            model,
            slot,
            arena,
            tensors,
            blocks,
            reached,
            from_start: reached == 0,
            used: arena.offset.get(),
        }
    }

    /// True if the activations that a record names lie where the job's do.
    fn holds(&self, record: &Record) -> bool {
        let mut activations = record.touched.iter().filter(|(kind, ..)| *kind == order(ByteKind::Activations));
        activations.all(|&(_, start, end)| self.arena.contains(&Region::new(Bytes(start), Bytes(end - start))))
    }

    fn check(&mut self, record: &Record) {
        let op = self.template.ops().nth(record.op as usize).unwrap();
        let place = |tensor: TensorId| self.tensors.get(&tensor).copied();
        let outputs: BTreeSet<_> = op.outputs().filter_map(place).collect();
        let operands: BTreeSet<_> = op.inputs().filter_map(place).chain(outputs.iter().copied()).collect();
        let of = |kind: ByteKind| {
            let touched = record.touched.iter().filter(move |(of, ..)| *of == order(kind));
            touched.map(|&(_, start, end)| (start, end)).collect::<BTreeSet<_>>()
        };
        let activations = of(ByteKind::Activations);
        if record.whole {
            assert_eq!((&activations, &record.written), (&operands, &outputs), "{}", op.name());
        } else {
            assert!(activations.is_subset(&operands) && record.written.is_subset(&outputs), "{}", op.name());
        }
        for (start, end) in of(ByteKind::Weights) {
            assert!(self.slot.contains(&Region::new(Bytes(start), Bytes(end - start))), "{}", op.name());
        }
        assert_eq!(of(ByteKind::Weights).len(), op.weights().count(), "{}", op.name());
        let role = |tensor| self.template.tensor(tensor).unwrap().tensor.role;
        let cached = op.inputs().any(|tensor| role(tensor) == Role::KvCache);
        assert_eq!(of(ByteKind::Kv), if cached { self.blocks.clone() } else { BTreeSet::new() }, "{}", op.name());
        self.used = activations.iter().map(|&(_, end)| end).fold(self.used, u64::max);
    }

    /// What kernels touched reaches to the end of what was reserved.
    fn assert_all_was_used(&self) {
        let inputs = self.template.tensors().filter(|view| view.tensor.role == Role::Input);
        let ends = inputs.filter_map(|view| self.tensors.get(&view.id)).map(|&(_, end)| end);
        let used = ends.fold(self.used, u64::max).next_multiple_of(256);
        assert_eq!(used, self.arena.end().get(), "a job's reservation is as long as what it uses");
    }
}

/// The bytes of a device that kernels have touched.
#[derive(Default)]
struct Use {
    weights: BTreeMap<ModelId, BTreeSet<(u64, u64)>>,
    activations: BTreeMap<JobId, BTreeSet<(u64, u64)>>,
    blocks: BTreeSet<(u64, u64)>,
    peak: Bytes,
}

impl Use {
    fn touch(&mut self, job: JobId, planned: &Planned, record: &Record) {
        for &(kind, start, end) in &record.touched {
            let of = if kind == order(ByteKind::Weights) {
                self.weights.entry(planned.model).or_default()
            } else if kind == order(ByteKind::Activations) {
                self.activations.entry(job).or_default()
            } else {
                &mut self.blocks
            };
            of.insert((start, end));
        }
    }

    /// Forgets what the graph does not hold any more, and holds the rest against what it does.
    fn count(&mut self, view: View<'_>, memory: &DeviceMemory) {
        self.weights.retain(|&model, _| memory.weight_state(model).is_some());
        // A job that was dropped and placed again has another place.
        self.activations.retain(|&job, spans| {
            let arena = view.job(job).and_then(|job| job.arena).map(|(_, arena)| arena);
            let (start, end) = arena.map_or((0, 0), |arena| (arena.offset.get(), (arena.offset + arena.bytes).get()));
            spans.retain(|span| start <= span.0 && span.1 <= end);
            arena.is_some()
        });
        let held: BTreeSet<_> = {
            let sequences = memory.kv().sequences();
            let blocks = sequences.iter().flat_map(|&request| memory.kv().table(request));
            blocks.map(|&block| memory.layout().block_offset(block).get()).collect()
        };
        self.blocks.retain(|(start, _)| held.contains(start));
        let union = |of: &BTreeSet<(u64, u64)>| {
            let (mut total, mut reached) = (0, 0);
            for &(start, end) in of {
                total += end.saturating_sub(start.max(reached));
                reached = reached.max(end);
            }
            total
        };
        let parts = [
            (ByteKind::Weights, self.weights.values().map(union).sum()),
            (ByteKind::Activations, self.activations.values().map(union).sum()),
            (ByteKind::Kv, union(&self.blocks)),
        ];
        for (kind, bytes) in parts {
            assert!(Bytes(bytes) <= memory.ledger().of(kind), "{} of {bytes}: {:?}", kind.name(), memory.ledger());
        }
        self.peak = self.peak.max(Bytes(parts.iter().map(|(_, bytes)| bytes).sum()));
    }
}

struct Random(u64);

impl Random {
    /// xorshift64 (Marsaglia 2003), below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }
}

/// Two tenants with six requests each on both devices and all lanes, with recalls of both kinds, sequences that are
/// freed and computed elsewhere, operators that are stopped, and operators that fail.
fn play(seed: u64, steps: u32) -> (u64, Vec<(Bytes, Bytes)>) {
    const RANKS: [Rank; 4] = [Rank::GuestBestEffort, Rank::OwnerBestEffort, Rank::GuestLatency, Rank::OwnerLatency];
    let mut watched = Watched::new(150);
    let mut random = Random(seed);
    for tenant in 0..2u32 {
        let (model, device) = (watched.rig.models[tenant as usize], DeviceId(1 - tenant));
        watched.rig.act(Action::Prefetch { model, device, source: Source::Host });
        watched.events();
    }
    let mut free: Vec<RequestId> = Vec::new();
    let mut asked = 0;
    let mut running: BTreeMap<JobId, Vec<RequestId>> = BTreeMap::new();
    let mut cut: Vec<(JobId, LaneId)> = Vec::new();
    let mut failed = 0;
    for step in 0..steps + 100_000 {
        if step < steps && free.len() < 6 {
            let (length, output) = (1 + random.below(25) as u32, 2 + random.below(4) as u32);
            free.push(watched.rig.request(asked % 2, &prompt(asked as u32, length), output));
            asked += 1;
        }
        match random.below(10) {
            0..5 if step < steps => {
                let device = DeviceId(random.below(2) as u32);
                let first = free[random.below(free.len() as u64) as usize];
                let tenant = |rig: &Rig, request| rig.gmg.view().request(request).unwrap().tenant;
                let here =
                    |rig: &Rig, request| rig.gmg.view().request(request).unwrap().device.is_none_or(|on| on == device);
                let own = tenant(&watched.rig, first);
                let chosen: Vec<_> = free
                    .iter()
                    .copied()
                    .filter(|&request| tenant(&watched.rig, request) == own && here(&watched.rig, request))
                    .collect();
                if chosen.is_empty() {
                    continue;
                }
                free.retain(|request| !chosen.contains(request));
                let rows: Vec<_> = chosen.iter().map(|&request| (request, 1 + random.below(20) as u32)).collect();
                let lane = LaneId::new(device, random.below(u64::from(LANES)) as u16);
                let job = watched.launch(&rows, lane, RANKS[random.below(4) as usize]);
                running.insert(job, chosen);
            }
            5..7 => {
                let on_lane = running.keys().copied().find(|job| !cut.iter().any(|(other, _)| other == job));
                if let Some(job) = on_lane {
                    let fate = if random.below(2) == 0 { Fate::Keep } else { Fate::Drop };
                    watched.rig.recall(job, fate);
                }
            }
            7 if step < steps => {
                let request = free[random.below(free.len() as u64) as usize];
                if watched.rig.gmg.view().request(request).unwrap().device.is_some() {
                    watched.rig.release(request);
                }
            }
            _ if running.len() > cut.len() => {
                for event in watched.events() {
                    match event {
                        Event::Finished { job, .. } => {
                            let requests = running.remove(&job).unwrap();
                            for request in requests {
                                if watched.rig.has_ended(request) {
                                    watched.rig.leave(request);
                                } else {
                                    free.push(request);
                                }
                            }
                        }
                        Event::Recalled { job, lane, .. } => cut.push((job, lane)),
                        Event::Failed { job, .. } => {
                            let requests = running.remove(&job).unwrap();
                            cut.retain(|(other, _)| *other != job);
                            watched.rig.give_up_all(job, &requests);
                            failed += 1;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            _ => {}
        }
        for (job, lane) in std::mem::take(&mut cut) {
            watched.resume(job, LaneId::new(lane.device, (lane.index + 1) % LANES));
        }
        if step >= steps && running.is_empty() {
            break;
        }
    }
    assert!(running.is_empty());
    (failed, watched.check())
}

#[test]
fn kernels_are_given_what_the_replayed_graph_reserved_and_never_more() {
    let mut failed = 0;
    for seed in 1..=6 {
        let (failures, peaks) = play(seed * 0x9e37_79b9, 150);
        failed += failures;
        for (touched, reserved) in peaks {
            assert!(touched > Bytes::ZERO && touched <= reserved, "{touched} of {reserved}");
        }
    }
    assert!(failed > 0, "some operators failed");
}

/// One job at a time: when it has run, kernels have touched all of the weights, all blocks and, at their
/// highest, all of the activations that were reserved.
#[test]
fn one_after_the_other_kernels_use_all_that_was_reserved() {
    let mut watched = Watched::new(0);
    let request = watched.rig.request(0, &prompt(3, 21), 4);
    while !watched.rig.has_ended(request) {
        watched.launch(&[(request, 8)], LaneId::new(DeviceId(0), 0), Rank::OwnerLatency);
        watched.events();
    }
    let device = watched.rig.gmg.view().memory(DeviceId(0)).unwrap().clone();
    let peaks = watched.check();
    let (touched, reserved) = peaks[0];
    assert_eq!(reserved, device.ledger().peak());
    // Buffers begin on boundaries of 256 bytes, and tensors are shorter than what lies between them.
    let padding = reserved - touched;
    assert!(padding < Bytes(4096), "{touched} of {reserved}");
}
