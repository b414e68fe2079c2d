//! A graph and a world, driven by hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use slicescheduler_executor::ExecutorError;
use slicescheduler_executor::cpu_world::{CpuWorld, CpuWorldOptions};
use slicescheduler_executor::lane::{StdThreads, ThreadSpawner};
use slicescheduler_executor::model::{CpuModel, SeededWeights};
use slicescheduler_executor::registry::KernelRegistry;
use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, RequestId, TenantId};
use slicescheduler_gmg::job::{JobSpec, KvGrowth, Row};
use slicescheduler_gmg::memory::DeviceLayout;
use slicescheduler_gmg::plan::{Action, Clock, Command, Event, Fate, Plan, Rank, Work, World};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::templates::{DenseSpec, MoeSpec, dense, moe};
use slicescheduler_gmg::units::{Bandwidth, Bytes, FlopRate, Nanos};
use slicescheduler_gmg::{Applied, Container, Delta, Effect, Gmg, GmgView, Intent, Model, Snapshot, Tenant};

pub(crate) const BLOCK_TOKENS: u32 = 4;
pub(crate) const LANES: u16 = 2;

/// A clock that goes on by itself, and by what a test adds.
#[derive(Debug)]
pub(crate) struct SinceStart(Instant, AtomicU64);

impl SinceStart {
    pub(crate) fn add(&self, time: Nanos) {
        self.1.fetch_add(time.get(), Ordering::Relaxed);
    }
}

impl Clock for SinceStart {
    fn now(&self) -> Nanos {
        Nanos::from(self.0.elapsed()) + Nanos(self.1.load(Ordering::Relaxed))
    }
}

struct Progress {
    tenant: usize,
    prompt: u32,
    computed: u32,
    ended: bool,
}

/// What the decoders of a rig are like.
pub(crate) enum Shape {
    Dense(DenseSpec),
    Moe(MoeSpec),
}

impl Shape {
    fn template(&self) -> Arc<OpGraph> {
        Arc::new(match self {
            Self::Dense(spec) => dense(spec).unwrap(),
            Self::Moe(spec) => moe(spec).unwrap(),
        })
    }

    fn kv_bytes_per_token(&self) -> Bytes {
        match self {
            Self::Dense(spec) => spec.kv_bytes_per_token(),
            Self::Moe(spec) => spec.kv_bytes_per_token(),
        }
    }

    fn on_cpu(&self, template: Arc<OpGraph>, weights: &SeededWeights) -> CpuModel {
        match self {
            Self::Dense(spec) => CpuModel::decoder(spec, template, weights).unwrap(),
            Self::Moe(spec) => CpuModel::mixture_of_experts(spec, template, weights).unwrap(),
        }
    }
}

/// Two tenants, each with a tiny decoder of its own on a device of its own, with two lanes.
pub(crate) struct Rig {
    pub(crate) gmg: Gmg,
    pub(crate) world: CpuWorld,
    pub(crate) models: Vec<ModelId>,
    requests: BTreeMap<RequestId, Progress>,
    /// The graph after its set-up, and all that was applied to it since.
    pub(crate) start: Snapshot,
    pub(crate) log: Vec<Delta>,
    pub(crate) clock: Arc<SinceStart>,
}

/// The decoder of a tenant.
pub(crate) fn weights(tenant: usize) -> SeededWeights {
    SeededWeights::new(40 + tenant as u64)
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with_kernels(KernelRegistry::cpu())
    }

    pub(crate) fn with_kernels(kernels: KernelRegistry) -> Self {
        Self::with(CpuWorldOptions { kernels, ..CpuWorldOptions::default() }, &StdThreads).unwrap()
    }

    /// With faults, or threads, of the test's choice.
    pub(crate) fn with(options: CpuWorldOptions, threads: &dyn ThreadSpawner) -> Result<Self, ExecutorError> {
        Self::of(&Shape::Dense(DenseSpec::tiny()), options, threads)
    }

    /// With decoders of another shape or type.
    pub(crate) fn of(
        shape: &Shape,
        options: CpuWorldOptions,
        threads: &dyn ThreadSpawner,
    ) -> Result<Self, ExecutorError> {
        let device = DeviceSpec::cpu(LANES, Bytes::mib(16), Bandwidth::gb_per_s(10), FlopRate::gflops(50));
        let cluster = Cluster::builder().node("host", |node| node.devices(2, device)).build().unwrap();
        let mut gmg = Gmg::new(cluster);
        let layout = DeviceLayout {
            usable: Bytes::mib(16),
            weights: CpuModel::slot_bytes_for(&shape.template()).unwrap().times(2),
            arena: Bytes::mib(4),
            staging: Bytes(128),
            // Longer than what a block needs: blocks have a stride.
            kv_block: shape.kv_bytes_per_token().times(u64::from(BLOCK_TOKENS)) + Bytes(64),
            kv_block_tokens: BLOCK_TOKENS,
        };
        let (mut models, mut implementations) = (Vec::new(), Vec::new());
        for tenant in 0..2 {
            gmg.lay_out(DeviceId(tenant), layout).unwrap();
        }
        for tenant in 0..2 {
            let template = shape.template();
            let id = gmg.add_tenant(Tenant::latency_sensitive(["a", "b"][tenant])).unwrap();
            let implementation = shape.on_cpu(template.clone(), &weights(tenant));
            let model = Model::new("tiny", template).weights(implementation.slot_bytes());
            let model = gmg.add_model(id, model, Container::replicas([tenant as u32])).unwrap();
            models.push(model);
            implementations.push((model, implementation));
        }
        let clock = Arc::new(SinceStart(Instant::now(), AtomicU64::new(0)));
        let world = CpuWorld::new(gmg.view(), implementations, clock.clone(), threads, options)?;
        let start = gmg.publish();
        Ok(Self { gmg, world, models, requests: BTreeMap::new(), start, log: Vec::new(), clock })
    }

    pub(crate) fn apply(&mut self, delta: impl Into<Delta>) -> Applied {
        let applied = self.gmg.apply(delta).unwrap();
        self.log.push(applied.delta.clone());
        applied
    }

    /// Enters a request of a tenant.
    pub(crate) fn request(&mut self, tenant: usize, prompt: &[u32], output: u32) -> RequestId {
        let prompt_tokens = prompt.len() as u32;
        let new = NewRequest {
            tenant: TenantId(tenant as u32),
            arrival: Nanos::ZERO,
            prompt: prompt_tokens,
            max_output: output,
        };
        let request = match self.apply(Intent::Submit(new)).effect {
            Effect::Request(request) => request,
            other => panic!("{other:?}"),
        };
        self.world.prompt(request, prompt, output, None).unwrap();
        self.requests.insert(request, Progress { tenant, prompt: prompt_tokens, computed: 0, ended: false });
        request
    }

    /// Removes a request, and a job of it that failed.
    pub(crate) fn give_up(&mut self, job: JobId, request: RequestId) {
        self.apply(Intent::Retire { job });
        self.apply(Intent::RetireRequest { request });
        self.leave(request);
    }

    /// As [`give_up`](Self::give_up), of a job with several requests.
    pub(crate) fn give_up_all(&mut self, job: JobId, requests: &[RequestId]) {
        self.apply(Intent::Retire { job });
        for &request in requests {
            self.apply(Intent::RetireRequest { request });
            self.leave(request);
        }
    }

    /// Forgets a request that has ended.
    pub(crate) fn leave(&mut self, request: RequestId) {
        self.world.forget(request);
        self.requests.remove(&request);
    }

    pub(crate) fn has_ended(&self, request: RequestId) -> bool {
        self.requests[&request].ended
    }

    /// Tokens that are known and not computed.
    pub(crate) fn remaining(&self, request: RequestId) -> u32 {
        let progress = &self.requests[&request];
        progress.prompt + self.world.tokens(request).len() as u32 - progress.computed
    }

    /// The device that holds the request's sequence, or its tenant's own.
    pub(crate) fn home(&self, request: RequestId) -> DeviceId {
        let own = DeviceId(self.requests[&request].tenant as u32);
        self.gmg.view().request(request).and_then(|request| request.device).unwrap_or(own)
    }

    /// The next iteration of some requests of one tenant, each with at most so many tokens.
    pub(crate) fn iteration(&self, rows: &[(RequestId, u32)]) -> JobSpec {
        let (mut binding, mut batch, mut growth) = (Binding::new(), Vec::new(), Vec::new());
        for &(request, chunk) in rows {
            let progress = &self.requests[&request];
            let tokens = chunk.min(self.remaining(request));
            let emits = tokens == self.remaining(request);
            let position = progress.computed;
            batch.push(Row { request, position, tokens, emits });
            binding.add_chunk(u64::from(tokens), u64::from(position), emits);
            let view = self.gmg.view();
            let has = view.memory(self.home(request)).unwrap().kv().table(request).len() as u32;
            let blocks = (position + tokens).div_ceil(BLOCK_TOKENS).saturating_sub(has);
            growth.extend((blocks > 0).then_some(KvGrowth { request, blocks }));
        }
        let model = self.models[self.requests[&rows[0].0].tenant];
        JobSpec { rows: batch, growth, ..JobSpec::of(model).bind(binding) }
    }

    /// Lets the graph accept an action and the world carry it out.
    pub(crate) fn act(&mut self, action: Action) -> Vec<Command> {
        let plan = Plan { actions: [action].into_iter().collect(), ..Plan::nothing(self.gmg.version()) };
        let accepted = self.gmg.accept(plan);
        assert!(accepted.dropped.is_empty(), "{:?}", accepted.dropped);
        self.log.extend(accepted.applied.iter().map(|applied| applied.delta.clone()));
        for command in &accepted.commands {
            self.world.enqueue(command, self.gmg.view()).unwrap();
        }
        accepted.commands.into_vec()
    }

    pub(crate) fn launch(&mut self, spec: JobSpec, lane: LaneId, rank: Rank) -> JobId {
        let work = Work::New(Box::new(spec));
        match &self.act(Action::Run { work, lane, rank })[..] {
            [Command::Launch(launch)] => launch.job,
            other => panic!("{other:?}"),
        }
    }

    /// Launches what is left of a job.
    pub(crate) fn resume(&mut self, job: JobId, lane: LaneId, rank: Rank) {
        let live = self.gmg.state().job(job).unwrap();
        let ops = live.progress()..live.op_count();
        self.act(Action::Run { work: Work::Existing { job, ops }, lane, rank });
    }

    pub(crate) fn recall(&mut self, job: JobId, fate: Fate) {
        self.act(Action::Recall { job, fate });
    }

    /// Frees the sequence of a request: it is computed from its start again.
    pub(crate) fn release(&mut self, request: RequestId) {
        let device = self.home(request);
        self.act(Action::ReleaseKv { request, device });
        self.requests.get_mut(&request).unwrap().computed = 0;
    }

    /// Keeps a copy of the keys and values of a request.
    pub(crate) fn keep(&mut self, request: RequestId) {
        let model = self.models[self.requests[&request].tenant];
        self.world.keep_kv(request, model, self.gmg.view()).unwrap();
    }

    /// Goes on with a request from what was kept of it, after its sequence was freed.
    pub(crate) fn restore(&mut self, request: RequestId) {
        let kept = self.world.kept_tokens(request);
        // One that has not computed its last known token can not go on behind it.
        let progress = self.requests.get_mut(&request).unwrap();
        let known = progress.prompt + self.world.tokens(request).len() as u32;
        progress.computed = kept.min(known - 1);
        self.world.restore_kv(request).unwrap();
    }

    /// Goes on with a request whose first `tokens` tokens were computed in another world.
    #[cfg(all(feature = "conformance", feature = "tcp", feature = "shared-memory"))]
    pub(crate) fn adopt(
        &mut self,
        request: RequestId,
        arrived: slicescheduler_executor::cpu_world::ArrivedKv,
        tokens: u32,
    ) {
        self.world.adopt_kv(request, arrived).unwrap();
        self.requests.get_mut(&request).unwrap().computed = tokens;
    }

    /// Waits for events and applies them to the graph, which must expect them.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let far = self.world.poll(Nanos::ZERO, &mut events).unwrap() + Nanos::secs(20);
        if events.is_empty() {
            self.world.poll(far, &mut events).unwrap();
        }
        assert!(!events.is_empty(), "nothing happened within 20 s");
        for event in &events {
            let applied = self.apply(event.clone());
            assert!(!matches!(applied.effect, Effect::Diverged(_)), "{event:?}: {:?}", applied.effect);
            if let Event::Finished { job, ended, .. } = event {
                self.finished(*job);
                for ended in ended {
                    self.requests.get_mut(&ended.request).unwrap().ended = true;
                    assert_eq!(ended.produced as usize, self.world.tokens(ended.request).len());
                }
            }
        }
        events
    }

    /// A job of which nothing is left is removed.
    fn finished(&mut self, job: JobId) {
        let live = self.gmg.state().job(job).unwrap();
        if live.segments.all_done() {
            for row in live.spec.rows.clone() {
                self.requests.get_mut(&row.request).unwrap().computed = row.position + row.tokens;
            }
            self.apply(Intent::Retire { job });
        }
    }

    pub(crate) fn event(&mut self) -> Event {
        let mut events = self.events();
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    /// Runs a request to its end, by itself.
    pub(crate) fn run_alone(&mut self, request: RequestId) {
        let lane = LaneId::new(self.home(request), 0);
        while !self.has_ended(request) {
            let spec = self.iteration(&[(request, u32::MAX)]);
            self.launch(spec, lane, Rank::OwnerLatency);
            self.event();
        }
    }

    /// Nothing is left on any device.
    pub(crate) fn assert_empty(&self) {
        assert!(self.world.is_idle());
        for device in [DeviceId(0), DeviceId(1)] {
            let memory = self.gmg.view().memory(device).unwrap().clone();
            assert_eq!((memory.kv().used_blocks(), memory.arena().used()), (0, Bytes::ZERO));
        }
    }
}

/// A prompt that depends on its length and seed.
pub(crate) fn prompt(seed: u32, length: u32) -> Vec<u32> {
    (0..length).map(|index| (seed * 97 + index * index * 31 + index * 7) % 256).collect()
}

/// The tokens of a request of a tenant that nobody disturbs.
pub(crate) fn alone(tenant: usize, prompt: &[u32], output: u32) -> Vec<u32> {
    let mut rig = Rig::new();
    let request = rig.request(tenant, prompt, output);
    rig.run_alone(request);
    rig.assert_empty();
    rig.world.tokens(request).to_vec()
}
