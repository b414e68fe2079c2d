//! The world of CPU lanes: takes the graph's commands and runs them with real kernels.
//!
//! [`CpuWorld`] implements [`World`]. It has one arena per device, laid out as the graph lays the
//! device out, and obeys: a job's activations lie in the region of its launch, weights in the slot
//! that the graph reserved for the model, keys and values in the blocks of the graph's KV pool. It
//! allocates nothing for tensors after it was made.
//!
//! **Order and right of way** are those of [`lane`](crate::lane): by rank, in order within a rank,
//! and an entry yields to one of higher rank: between two operators, and between the
//! [parts](crate::kernels::Parts) of products and of attention. A part of a product, of one grouped by experts too, takes a
//! fraction of a millisecond; of attention it is one row of one head of keys over the whole context. A job that was recalled goes on where it was, its activations being where they were; to the graph, an
//! operator that was stopped in the middle has not run.
//!
//! **Commands.** Every [`Command`] is carried out or refused, with an error and nothing started:
//!
//! | command | what the world does |
//! |---|---|
//! | [`Launch`](Command::Launch) | puts the operators on the lane; refused if what it names is not here or its bytes are in use |
//! | [`Recall`](Command::Recall) | stops the job's entries on that lane; of a job that has left it there is nothing to recall |
//! | [`Prefetch`](Command::Prefetch) | copies the weights of a model, and reports [`Event::WeightsLoaded`] |
//! | [`EvictWeights`](Command::EvictWeights) | no launch uses them any more; at once, since the graph has freed the slot |
//! | [`PrefetchOps`](Command::PrefetchOps), [`EvictOps`](Command::EvictOps) | refused ([`ExecutorError::PartOfWeights`]): a model's weights are packed and lie together |
//! | [`MoveBlocks`](Command::MoveBlocks) | refused ([`ExecutorError::NoBlock`]), and so is a launch with such blocks: KV blocks that are borrowed from the part for weights are not among those of a lane |
//!
//! What is for a device that is [lost](Event::DeviceLost) is passed over: the loss is reported, or will be. Intents that come
//! to no command, such as [`Action::ReleaseKv`](slicescheduler_gmg::plan::Action::ReleaseKv), need nothing here.
//!
//! **Tokens.** Requests are entered with their prompt. What an iteration samples is appended and
//! reported with [`Event::Finished`]; a request ends at its limit or its end-of-sequence token. The
//! token stream of a request does not depend on how it was batched, chunked, recalled or recomputed
//! (see [`kernels`](crate::kernels)).
//!
//! **Vectors.** A request to an encoder ends with the one job that computes it, which has all of its
//! tokens as one row. Events count its vector as one token, 0; [`CpuWorld::embedding`] has it.
//!
//! **What becomes of a sequence's bytes.** Keys and values of a job that was recalled stay in their blocks. Those of a
//! sequence that is released are gone, and it is computed again, unless it is [kept](CpuWorld::keep_kv): full blocks
//! are copied to host memory as they come, [go back](CpuWorld::restore_kv) into whatever blocks the sequence gets
//! next, on any device, or to [another world](IncomingKv). It is the owner of the world who says so, beside the commands
//! of the graph ([`CpuWorld::restore_kv`] has an example): to the graph, a sequence that was released and goes on from a
//! copy is one whose next row begins behind its start. No [`Action`](slicescheduler_gmg::plan::Action) asks for a copy,
//! since batching forms rows of released sequences from position 0, and forecasts have no price for copies.
//!
//! **What passes from tenant to tenant.** A KV block that held another tenant's tokens is zeroed on
//! the lane, before the first operator of the first job that has it in a block table. Weight slots
//! are overwritten as a whole, and activations are written before they are read.
//!
//! **Trust.** The graph sees to it that no two jobs share bytes. The world does not rely on it: each
//! launch and each transfer claims its bytes, and a command whose bytes are in use is refused.
//!
//! **Faults.** An operator that fails or panics fails its job; the lane lives on. A device is lost
//! ([`Event::DeviceLost`]) when the host takes the thread of one of its lanes away, when an operator
//! [poisons](ExecutorError::LanePoisoned) its lane or takes longer than the host's [patience](CpuWorldOptions::patience),
//! or when weights can not be copied to it in three tries: what was there is not reported any more, and other devices go
//! on. [`fault`](crate::fault) lists how each is brought about in tests.

mod claims;
mod device;
mod direct;
mod flight;
mod kept_kv;
mod launch;
mod loads;
mod program;
mod sequence;
mod waker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, Select, Sender, unbounded};
use slicescheduler_gmg::id::{DeviceId, JobId, ModelId, RequestId};
use slicescheduler_gmg::memory::WeightState;
use slicescheduler_gmg::plan::{Clock, Command, Event, Source, World, WorldError};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, View};

use crate::error::{ExecutorError, Result};
use crate::fault::{Faults, Point};
use crate::kernels::Sampling;
use crate::lane::{LaneClock, LaneEvent, ThreadSpawner};
use crate::model::CpuModel;
use crate::registry::{BoundModel, KernelRegistry};
use crate::transport::{InProcessOptions, StartTransport};
use device::Device;
pub use direct::Direct;
use flight::{Flight, Stopped};
pub use kept_kv::{ArrivedKv, IncomingKv, KvCopy};
use kept_kv::{Blocks, KeptKv};
use loads::{LoadEnd, Loads};
use sequence::Sequences;
pub use waker::Waker;

/// How a world of CPU lanes is set up.
#[derive(Clone, Debug)]
pub struct CpuWorldOptions {
    /// The kernels.
    pub kernels: KernelRegistry,
    /// Starts the transport that loads weights. One that never reports a transfer keeps its device waiting for them.
    pub transport: Arc<dyn StartTransport>,
    /// What is to go wrong; nothing, unless a test wants to see it.
    pub faults: Option<Arc<dyn Faults>>,
    /// How long an operator may run before its device counts as lost, by the world's clock; for ever if absent, as it is
    /// by default. Take a multiple of the longest one: seconds for large prompts. A loss is found by
    /// [`World::poll`] within twice that time. The thread is not taken back: dropping the world waits for it.
    pub patience: Option<Nanos>,
}

impl Default for CpuWorldOptions {
    /// The [kernels](KernelRegistry::cpu) of all models that run here, and the [in-process](InProcessOptions) transport.
    fn default() -> Self {
        let transport = Arc::new(InProcessOptions::default());
        Self { kernels: KernelRegistry::cpu(), transport, faults: None, patience: None }
    }
}

/// The world of CPU lanes.
#[derive(Debug)]
pub struct CpuWorld {
    clock: Arc<dyn Clock>,
    /// By [`ModelId`].
    models: Vec<Option<Arc<BoundModel>>>,
    /// By [`DeviceId`].
    devices: Vec<Device>,
    loads: Loads,
    sequences: Sequences,
    /// What is on lanes, by the tag of its entry.
    flights: BTreeMap<u64, Flight>,
    /// Jobs that were stopped within an operator.
    stopped: BTreeMap<JobId, Stopped>,
    launched: u64,
    events: Receiver<LaneEvent>,
    /// Keeps the channel open, whatever becomes of the lanes.
    _events: Sender<LaneEvent>,
    waker: Waker,
    wakes: Receiver<()>,
    operators: u64,
    faults: Option<Arc<dyn Faults>>,
    patience: Option<Nanos>,
    /// Devices that are gone, of which nobody was told yet.
    losses: Vec<DeviceId>,
}

impl CpuWorld {
    /// Makes the devices of the graph: allocates their memory, starts their lanes and the
    /// transport, and loads the weights that are resident.
    ///
    /// `view` is the graph after its set-up. `clock` must go on by itself, as a real one does:
    /// waiting is by it. A model of the graph that is not among `models` can not be run here.
    ///
    /// # Errors
    /// When a model has another template than the graph's, an operator has no kernel ([`ExecutorError::Model`]), a slot or the
    /// KV blocks of a device where a model is resident are too small for it, or memory or threads
    /// are lacking.
    pub fn new(
        view: View<'_>,
        models: Vec<(ModelId, CpuModel)>,
        clock: Arc<dyn Clock>,
        threads: &dyn ThreadSpawner,
        options: CpuWorldOptions,
    ) -> Result<Self> {
        let mut bound = vec![None; view.models().len()];
        let room = longest_sequence(view);
        for (id, model) in models {
            let of_graph = view.model(id).map(|model| &model.template);
            match bound.get_mut(id.index()) {
                Some(place) if of_graph.is_some_and(|template| Arc::ptr_eq(template, model.template())) => {
                    let model = options.kernels.bind(model, room);
                    let model = model.map_err(|source| ExecutorError::Model { model: id, source: Box::new(source) })?;
                    *place = Some(Arc::new(model));
                }
                _ => return Err(ExecutorError::OtherTemplate(id)),
            }
        }
        let reading = clock.clone();
        let lane_clock: LaneClock = Arc::new(move || reading.now());
        let (sender, events) = unbounded();
        let (transfer_sender, transfer_events) = unbounded();
        let transport = options.transport.start(threads, lane_clock.clone(), transfer_sender)?;
        let mut devices = Vec::new();
        for (device, id) in view.cluster().devices().iter().zip((0..).map(DeviceId)) {
            let Some(memory) = view.memory(id) else { continue };
            let size = Device::size(memory.layout());
            if options.faults.as_ref().is_some_and(|faults| faults.at(Point::Allocation { device: id, size }).is_some())
            {
                return Err(ExecutorError::OutOfMemory { wanted: size });
            }
            devices.push(Device::start(id, device.spec.lanes, *memory.layout(), threads, &lane_clock, &sender)?);
        }
        let (waker, wakes) = Waker::new();
        let mut world = Self {
            clock,
            models: bound,
            devices,
            loads: Loads::new(transport, transfer_events, options.faults.clone()),
            sequences: Sequences::default(),
            flights: BTreeMap::new(),
            stopped: BTreeMap::new(),
            launched: 0,
            events,
            _events: sender,
            waker,
            wakes,
            operators: 0,
            faults: options.faults,
            patience: options.patience,
            losses: Vec::new(),
        };
        world.load_residents(view)?;
        Ok(world)
    }

    /// Enters a request: its prompt, and when it ends: after `max_output` output tokens, or with the
    /// first that is `eos`. A replay, which knows how long an answer is, gives its length and no
    /// `eos`. Enter it before the first job that computes it; entering it again starts it over.
    ///
    /// # Errors
    /// When there is no prompt, or nothing to produce.
    pub fn prompt(&mut self, request: RequestId, tokens: &[u32], max_output: u32, eos: Option<u32>) -> Result<()> {
        self.sequences.enter(request, tokens, max_output, eos)
    }

    /// Sets how the tokens of a request are chosen; greedily unless this says otherwise. Before the
    /// first job that computes it: its tokens depend on nothing but its prompt and this.
    ///
    /// # Errors
    /// When the request was not entered.
    pub fn choose(&mut self, request: RequestId, sampling: Sampling) -> Result<()> {
        self.sequences.choose(request, sampling)
    }

    /// Keeps a copy in host memory of the keys and values of a request of `model`: of the blocks that are full when a job
    /// ends, from the next one on. Memory for the request's longest sequence is allocated here.
    ///
    /// # Errors
    /// When the request was not entered, the model does not run here, or there is no memory.
    pub fn keep_kv(&mut self, request: RequestId, model: ModelId, view: View<'_>) -> Result<()> {
        let Some(bound) = self.bound(model) else {
            return Err(ExecutorError::NoModel(model));
        };
        let longest = self.sequences.longest(request).ok_or(ExecutorError::UnknownRequest(request))?;
        let home = view.request(request).and_then(|request| request.device);
        let device = home.and_then(|device| self.devices.get(device.index())).or(self.devices.first());
        let tokens = device.map_or(1, |device| device.layout.kv_block_tokens).max(1);
        let blocks = Blocks::of(&bound.model, tokens, longest.div_ceil(tokens));
        let point = Point::Copy { request, size: blocks.size() };
        if self.faults.as_ref().is_some_and(|faults| faults.at(point).is_some()) {
            return Err(ExecutorError::OutOfMemory { wanted: blocks.size() });
        }
        self.sequences.keep(request, KeptKv::new(blocks)?)
    }

    /// Tokens of a request, from its first, whose keys and values are kept; none if it is not.
    pub fn kept_tokens(&self, request: RequestId) -> u32 {
        self.sequences.kept(request).map_or(0, KeptKv::tokens)
    }

    /// What is kept of a request, to be read.
    pub fn kept_kv(&self, request: RequestId) -> Option<KvCopy> {
        self.sequences.kept(request).map(KeptKv::copy)
    }

    /// The next job of a request begins with what is kept of it: before its first operator, the copy goes to the
    /// sequence's blocks, up to the row's first position. Say so after its blocks were released.
    ///
    /// # Errors
    /// When nothing is kept of the request.
    ///
    /// # Example
    /// A host that forms its own batches evicts a sequence in the middle of its answer; twelve of its tokens are not computed
    /// again.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use slicescheduler_executor::cpu_world::{CpuWorld, CpuWorldOptions};
    /// use slicescheduler_executor::lane::StdThreads;
    /// use slicescheduler_executor::model::{CpuModel, SeededWeights};
    /// use slicescheduler_gmg::delta::NewRequest;
    /// use slicescheduler_gmg::id::{DeviceId, LaneId, RequestId};
    /// use slicescheduler_gmg::job::{JobSpec, KvGrowth, Row};
    /// use slicescheduler_gmg::plan::{Action, Clock, Event, Plan, World};
    /// use slicescheduler_gmg::shape::Binding;
    /// use slicescheduler_gmg::templates::{DenseSpec, dense};
    /// use slicescheduler_gmg::units::{Bytes, Nanos};
    /// use slicescheduler_gmg::{Container, Delta, Gmg, GmgView, Intent, Model, Tenant};
    /// # use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
    /// # use slicescheduler_gmg::memory::DeviceLayout;
    /// # use slicescheduler_gmg::units::{Bandwidth, FlopRate};
    /// #
    /// # #[derive(Debug)]
    /// # struct SinceStart(std::time::Instant);
    /// # impl Clock for SinceStart {
    /// #     fn now(&self) -> Nanos {
    /// #         self.0.elapsed().into()
    /// #     }
    /// # }
    /// #
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let device = DeviceSpec::cpu(1, Bytes::mib(8), Bandwidth::gb_per_s(10), FlopRate::gflops(50));
    /// # let cluster = Cluster::builder().node("host", |node| node.devices(1, device)).build()?;
    /// # let clock = Arc::new(SinceStart(std::time::Instant::now()));
    /// let spec = DenseSpec::tiny();
    /// let template = Arc::new(dense(&spec)?);
    /// let model = CpuModel::decoder(&spec, template.clone(), &SeededWeights::new(7))?;
    /// let mut gmg = Gmg::new(cluster);
    /// # let layout = DeviceLayout {
    /// #     usable: Bytes::mib(8),
    /// #     weights: model.slot_bytes().align_up(256),
    /// #     arena: Bytes::mib(2),
    /// #     staging: Bytes::ZERO,
    /// #     kv_block: model.kv_block_bytes(4),
    /// #     kv_block_tokens: 4,
    /// # };
    /// // Blocks of four tokens.
    /// gmg.lay_out(DeviceId(0), layout)?;
    /// let tenant = gmg.add_tenant(Tenant::best_effort("batch"))?;
    /// let of_graph = Model::new("tiny", template).weights(model.slot_bytes());
    /// let id = gmg.add_model(tenant, of_graph, Container::replicas([0]))?;
    /// let mut world = CpuWorld::new(gmg.view(), vec![(id, model)], clock, &StdThreads, CpuWorldOptions::default())?;
    ///
    /// // An iteration of all that is known of a request from `position` on: its next token.
    /// type Done = Result<u32, Box<dyn std::error::Error>>;
    /// let iterate = |gmg: &mut Gmg, world: &mut CpuWorld, request: RequestId, position: u32| -> Done {
    ///     let end = 9 + world.tokens(request).len() as u32;
    ///     let mut dims = Binding::new();
    ///     dims.add_chunk((end - position).into(), position.into(), true);
    ///     let has = gmg.view().memory(DeviceId(0)).map_or(0, |memory| memory.kv().table(request).len() as u32);
    ///     let job = JobSpec {
    ///         rows: vec![Row { request, position, tokens: end - position, emits: true }],
    ///         growth: vec![KvGrowth { request, blocks: end.div_ceil(4) - has }],
    ///         ..JobSpec::of(id).bind(dims)
    ///     };
    ///     let actions = [Action::run_new(job, LaneId::new(DeviceId(0), 0))].into_iter().collect();
    ///     for command in &gmg.accept(Plan { actions, ..Plan::nothing(gmg.version()) }).commands {
    ///         world.enqueue(command, gmg.view())?;
    ///     }
    ///     let mut events = Vec::new();
    ///     world.poll(Nanos::secs(60), &mut events)?;
    ///     for event in events {
    ///         let done = if let Event::Finished { job, .. } = event { Some(job) } else { None };
    ///         gmg.apply(Delta::Observed(event))?;
    ///         done.map(|job| gmg.apply(Intent::Retire { job })).transpose()?;
    ///     }
    ///     Ok(end)
    /// };
    ///
    /// let mut answers = Vec::new();
    /// for evicted in [false, true] {
    ///     let request = gmg.submit_request(NewRequest { tenant, arrival: Nanos::ZERO, prompt: 9, max_output: 6 })?;
    ///     world.prompt(request, &[72, 101, 108, 108, 111, 32, 121, 111, 117], 6, None)?;
    ///     world.keep_kv(request, id, gmg.view())?;
    ///     let mut computed = 0;
    ///     while world.tokens(request).len() < 6 {
    ///         if evicted && computed == 12 {
    ///             gmg.apply(Intent::ReleaseKv { request, device: DeviceId(0) })?;
    ///             computed = world.kept_tokens(request);
    ///             assert_eq!(computed, 12, "three blocks");
    ///             world.restore_kv(request)?;
    ///         }
    ///         computed = iterate(&mut gmg, &mut world, request, computed)?;
    ///     }
    ///     answers.push(world.tokens(request).to_vec());
    ///     gmg.apply(Intent::RetireRequest { request })?;
    /// }
    /// assert_eq!(answers[0], answers[1]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn restore_kv(&mut self, request: RequestId) -> Result<()> {
        self.sequences.restore(request, true).ok_or(ExecutorError::UnknownRequest(request))
    }

    /// As [`restore_kv`](Self::restore_kv), of keys and values that came from another world. The request was entered with
    /// the tokens that are known there, prompt and answer, as its prompt.
    ///
    /// # Errors
    /// When the request was not entered.
    pub fn adopt_kv(&mut self, request: RequestId, arrived: ArrivedKv) -> Result<()> {
        self.sequences.keep(request, arrived.0)?;
        self.restore_kv(request)
    }

    /// The output tokens of a request so far; none if it is not known.
    pub fn tokens(&self, request: RequestId) -> &[u32] {
        self.sequences.produced(request)
    }

    /// The vector of a request to an encoder, once its job is done.
    pub fn embedding(&self, request: RequestId) -> Option<Arc<[f32]>> {
        self.sequences.embedding(request)
    }

    /// Drops the tokens of a request that has ended.
    pub fn forget(&mut self, request: RequestId) {
        self.sequences.forget(request);
    }

    /// Operators that ran so far.
    pub fn operators(&self) -> u64 {
        self.operators
    }

    /// Ends waits of this world's [`World::poll`] from any thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn load_residents(&mut self, view: View<'_>) -> Result<()> {
        for index in 0..self.devices.len() {
            let id = DeviceId(index as u32);
            let Some(memory) = view.memory(id) else { continue };
            let resident = memory.models().filter(|&(_, state)| state == WeightState::Resident);
            for (model, _) in resident {
                if let Some(slot) = memory.weight_region(model).filter(|_| self.bound(model).is_some()) {
                    let load = self.load(model, id, Source::Host, slot)?;
                    self.loads.push(load);
                }
            }
        }
        while !self.loads.is_idle() {
            self.loads.start(&mut self.devices, &self.models)?;
            self.loads.wait();
            while let Some(end) = self.loads.finished(&mut self.devices)? {
                if let LoadEnd::Lost(device) = end {
                    return Err(ExecutorError::DeviceLost(device));
                }
            }
        }
        Ok(())
    }

    fn bound(&self, model: ModelId) -> Option<&Arc<BoundModel>> {
        self.models.get(model.index()).and_then(Option::as_ref)
    }

    /// Waits until a lane or a transfer has something to report or somebody wakes, `limit` at most.
    fn wait(&self, limit: Nanos) {
        let mut select = Select::new();
        select.recv(&self.events);
        select.recv(&self.wakes);
        if !self.loads.is_idle() {
            select.recv(&self.loads.events);
        }
        // A lane that stalls says nothing.
        let limit = self.patience.map_or(limit, |patience| patience.min(limit));
        // Which of them is ready, if any, is found by whoever looks next.
        let _ = select.ready_timeout(Duration::from(limit));
    }
}

/// The tokens that all KV blocks of the device with most room hold.
fn longest_sequence(view: View<'_>) -> u32 {
    let devices = (0..view.cluster().devices().len() as u32).map(DeviceId);
    let layouts = devices.filter_map(|device| view.memory(device)).map(|memory| memory.layout());
    layouts.map(|layout| layout.kv_blocks().saturating_mul(layout.kv_block_tokens)).max().unwrap_or(0)
}

impl World for CpuWorld {
    /// Takes a command, or refuses it: see [the module](self) for each.
    ///
    /// # Errors
    /// When it names something that is not here, does not fit, uses bytes that are in use, or is of a kind that CPU lanes
    /// can not carry out. The error's source is an [`ExecutorError`] where it is not itself specific. Nothing was started.
    fn enqueue(&mut self, command: &Command, view: View<'_>) -> Result<(), WorldError> {
        match command {
            Command::Launch(launch) => self.launch(launch, view),
            Command::Recall { job, lane, fate } => self.recall(*job, *lane, *fate),
            Command::Prefetch { model, device, source, region } => self.prefetch(*model, *device, *source, *region),
            Command::EvictWeights { model, device } => self.evict(*model, *device),
            Command::PrefetchOps { model, ops, device, .. } | Command::EvictOps { model, ops, device } => {
                self.refuse_part(*model, ops, *device)
            }
            Command::MoveBlocks { device, moves } => self.refuse_moves(*device, moves),
            other => Err(ExecutorError::NoSuchCommand { command: format!("{other:?}") }.into()),
        }
    }

    /// Returns at once when nothing is under way and `until` is [`Nanos::MAX`]: nothing would ever
    /// happen. Returns without events before `until` when a [`Waker`] says so.
    fn poll(&mut self, until: Nanos, events: &mut Vec<Event>) -> Result<Nanos, WorldError> {
        let before = events.len();
        loop {
            self.drain(events)?;
            let now = self.clock.now();
            let endless = until == Nanos::MAX && self.is_idle();
            let woken = self.wakes.try_recv().is_ok();
            if woken || events.len() > before || now >= until || endless {
                return Ok(now);
            }
            self.wait(until - now);
        }
    }

    fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.loads.is_idle() && self.losses.is_empty()
    }
}
