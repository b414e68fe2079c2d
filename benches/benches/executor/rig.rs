//! A graph with one CPU lane and a world that runs it, driven without a policy.

use std::sync::Arc;
use std::time::Instant;

use slicescheduler_executor::cpu_world::{CpuWorld, CpuWorldOptions};
use slicescheduler_executor::lane::ThreadSpawner;
use slicescheduler_executor::model::CpuModel;
use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, RequestId, TenantId};
use slicescheduler_gmg::job::{JobSpec, KvGrowth, Row};
use slicescheduler_gmg::memory::DeviceLayout;
use slicescheduler_gmg::plan::{Action, Clock, Command, Event, Plan, Rank, Work, World};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::templates::DenseSpec;
use slicescheduler_gmg::units::{Bandwidth, Bytes, FlopRate, Nanos};
use slicescheduler_gmg::{Container, Gmg, GmgView, Intent, Model, Tenant};

use crate::Outcome;

const BLOCK_TOKENS: u32 = 16;
const LANE: LaneId = LaneId::new(DeviceId(0), 0);

#[derive(Debug)]
struct SinceStart(Instant);

impl Clock for SinceStart {
    fn now(&self) -> Nanos {
        self.0.elapsed().into()
    }
}

/// A request and how much of it is computed.
pub(crate) struct Sequence {
    tenant: usize,
    request: RequestId,
    prompt: u32,
    computed: u32,
}

pub(crate) struct Rig {
    gmg: Gmg,
    world: CpuWorld,
    clock: Arc<SinceStart>,
    models: Vec<ModelId>,
    events: Vec<Event>,
}

impl Rig {
    /// Tenants that all have `decoder`, each resident on a device of its own with one lane; device 0 has
    /// room for the weights of all.
    pub(crate) fn new(
        spec: &DenseSpec,
        decoder: &CpuModel,
        tenants: u32,
        threads: &dyn ThreadSpawner,
    ) -> Outcome<Self> {
        let (memory, activations) = (Bytes::mib(1024), Bytes::mib(64));
        let device = DeviceSpec::cpu(1, memory, Bandwidth::gb_per_s(10), FlopRate::gflops(50));
        let mut gmg = Gmg::new(Cluster::builder().node("host", |node| node.devices(tenants, device)).build()?);
        let layout = DeviceLayout {
            usable: memory,
            weights: decoder.slot_bytes().align_up(64).times(tenants.into()),
            arena: activations,
            staging: Bytes::ZERO,
            kv_block: spec.kv_bytes_per_token().times(BLOCK_TOKENS.into()),
            kv_block_tokens: BLOCK_TOKENS,
        };
        for device in 0..tenants {
            gmg.lay_out(DeviceId(device), layout)?;
        }
        let (mut models, mut implementations) = (Vec::new(), Vec::new());
        for tenant in 0..tenants {
            let id = gmg.add_tenant(Tenant::best_effort(["owner", "guest"][tenant as usize % 2]))?;
            let model = Model::new("decoder", decoder.template().clone()).weights(decoder.slot_bytes());
            let model = gmg.add_model(id, model, Container::replicas([tenant]))?;
            models.push(model);
            implementations.push((model, decoder.clone()));
        }
        let clock = Arc::new(SinceStart(Instant::now()));
        let options = CpuWorldOptions::default();
        let world = CpuWorld::new(gmg.view(), implementations, clock.clone(), threads, options)?;
        Ok(Self { gmg, world, clock, models, events: Vec::new() })
    }

    /// Brings a tenant's weights to device 0.
    pub(crate) fn load(&mut self, tenant: usize) -> Outcome<()> {
        let source = slicescheduler_gmg::plan::Source::Host;
        self.act(Action::Prefetch { model: self.models[tenant], device: DeviceId(0), source })?;
        while !matches!(self.event()?, Event::WeightsLoaded { .. }) {}
        Ok(())
    }

    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    pub(crate) fn enter(&mut self, tenant: usize, prompt: &[u32], max_output: u32) -> Outcome<Sequence> {
        let length = prompt.len() as u32;
        let arrival = self.now();
        let request = self.gmg.submit_request(NewRequest {
            tenant: TenantId(tenant as u32),
            arrival,
            prompt: length,
            max_output,
        })?;
        self.world.prompt(request, prompt, max_output, None)?;
        Ok(Sequence { tenant, request, prompt: length, computed: 0 })
    }

    pub(crate) fn leave(&mut self, sequence: &Sequence) -> Outcome<()> {
        self.gmg.apply(Intent::RetireRequest { request: sequence.request })?;
        self.world.forget(sequence.request);
        Ok(())
    }

    /// Launches all that is known of a sequence and not computed.
    pub(crate) fn launch(&mut self, sequence: &mut Sequence, rank: Rank) -> Outcome<JobId> {
        let known = sequence.prompt + self.world.tokens(sequence.request).len() as u32;
        let (request, position, tokens) = (sequence.request, sequence.computed, known - sequence.computed);
        let mut binding = Binding::new();
        binding.add_chunk(tokens.into(), position.into(), true);
        let view = self.gmg.view();
        let has = view.memory(DeviceId(0)).map_or(0, |memory| memory.kv().table(request).len()) as u32;
        let blocks = known.div_ceil(BLOCK_TOKENS).saturating_sub(has);
        let growth = (blocks > 0).then_some(KvGrowth { request, blocks });
        let spec = JobSpec {
            rows: vec![Row { request, position, tokens, emits: true }],
            growth: growth.into_iter().collect(),
            ..JobSpec::of(self.models[sequence.tenant]).bind(binding)
        };
        sequence.computed = known;
        self.act(Action::Run { work: Work::New(Box::new(spec)), lane: LANE, rank })?.ok_or_else(|| "no launch".into())
    }

    /// Launches what is left of a job that was recalled.
    pub(crate) fn resume(&mut self, job: JobId, rank: Rank) -> Outcome<()> {
        let live = self.gmg.state().job(job).ok_or("no such job")?;
        let ops = live.progress()..live.op_count();
        self.act(Action::Run { work: Work::Existing { job, ops }, lane: LANE, rank }).map(drop)
    }

    fn act(&mut self, action: Action) -> Outcome<Option<JobId>> {
        let plan = Plan { actions: [action].into_iter().collect(), ..Plan::nothing(self.gmg.version()) };
        let accepted = self.gmg.accept(plan);
        if let Some(dropped) = accepted.dropped.first() {
            return Err(format!("{dropped:?}").into());
        }
        let mut job = None;
        for command in &accepted.commands {
            self.world.enqueue(command, self.gmg.view())?;
            if let Command::Launch(launch) = command {
                job = Some(launch.job);
            }
        }
        Ok(job)
    }

    /// The next event, applied to the graph; a job that has finished is removed.
    pub(crate) fn event(&mut self) -> Outcome<Event> {
        while self.events.is_empty() {
            self.world.poll(self.clock.now() + Nanos::secs(60), &mut self.events)?;
        }
        let event = self.events.remove(0);
        self.gmg.apply(event.clone())?;
        if let Event::Finished { job, .. } = event {
            self.gmg.apply(Intent::Retire { job })?;
        }
        if let Event::Failed { failure, .. } = &event {
            return Err(failure.to_string().into());
        }
        Ok(event)
    }

    /// Computes all that is known of a sequence: the next token.
    pub(crate) fn iterate(&mut self, sequence: &mut Sequence) -> Outcome<u32> {
        self.launch(sequence, Rank::OwnerLatency)?;
        self.finished().map(|(_, token)| token)
    }

    /// Computes `steps` tokens of each of two sequences by turns, the iteration of the one handed down while that
    /// of the other runs; the tokens of the first.
    pub(crate) fn iterate_both(&mut self, sequences: &mut [Sequence; 2], steps: usize) -> Outcome<Vec<u32>> {
        let [first, second] = sequences;
        let mut jobs = [self.launch(first, Rank::OwnerLatency)?, self.launch(second, Rank::OwnerLatency)?];
        let mut tokens = [Vec::new(), Vec::new()];
        while tokens.iter().any(|tokens| tokens.len() < steps) {
            let (job, token) = self.finished()?;
            let which = usize::from(job == jobs[1]);
            tokens[which].push(token);
            if tokens[which].len() < steps {
                jobs[which] = self.launch(&mut sequences[which], Rank::OwnerLatency)?;
            }
        }
        let [tokens, _] = tokens;
        Ok(tokens)
    }

    fn finished(&mut self) -> Outcome<(JobId, u32)> {
        match self.event()? {
            Event::Finished { job, tokens, .. } => Ok((job, tokens.first().ok_or("no token")?.1)),
            other => Err(format!("{other:?}").into()),
        }
    }
}
