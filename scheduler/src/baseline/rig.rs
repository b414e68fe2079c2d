//! A few devices that three tenants share, driven by hand: tests say what arrives and what ends when.

#![allow(clippy::unwrap_used, reason = "a test may fail by it, in its helpers too")]

use std::collections::BTreeMap;
use std::sync::Arc;

use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, RequestId, TenantId, Version};
use slicescheduler_gmg::memory::DeviceLayout;
use slicescheduler_gmg::plan::{
    Action, Command, Ended, Event, Fate, Forecast, Plan, Question, RunForecast, Source, WhatIf, WhatIfError, Work,
};
use slicescheduler_gmg::semantics::OpKind;
use slicescheduler_gmg::shape::{Shape, TOKENS};
use slicescheduler_gmg::tenant::{Container, Model, Tenant};
use slicescheduler_gmg::units::{Bandwidth, Bytes, FlopRate, Nanos};
use slicescheduler_gmg::{Applied, Delta, Gmg, GmgView, Intent, View};

use crate::batching::{BatchOptions, Batcher, Sequence};
use crate::placing::lane_of;
use crate::policy::{Budget, Context, Policy};

/// Latency-sensitive: TTFT 400 ms, TPOT 40 ms. Owner of every device.
pub(super) const CHAT: TenantId = TenantId(0);
/// Latency-sensitive: TTFT 1 s, TPOT 100 ms. A guest everywhere.
pub(super) const MAIL: TenantId = TenantId(1);
/// Best-effort. A guest everywhere.
pub(super) const BATCH: TenantId = TenantId(2);

/// Tokens of a KV block.
pub(super) const BLOCK: u32 = 16;
/// What the forecast says of an iteration, per token.
pub(super) const PER_TOKEN: Nanos = Nanos::us(100);

/// Operators of an iteration.
const OPS: u32 = 4;

/// Says that every job takes [`PER_TOKEN`] times its tokens, one after the other, and that what runs ends
/// when the test says.
#[derive(Debug, Default)]
struct Rule {
    version: Version,
    under_way: BTreeMap<JobId, (DeviceId, Nanos)>,
}

impl WhatIf for Rule {
    fn version(&self) -> Version {
        self.version
    }

    fn observe(&mut self, _: &Applied, view: View<'_>) -> Result<(), WhatIfError> {
        self.version = view.version();
        Ok(())
    }

    fn what_if(&mut self, now: Nanos, question: Question<'_>, answer: &mut Forecast) -> Result<(), WhatIfError> {
        answer.reset(self.version, now);
        let mut free: BTreeMap<DeviceId, Nanos> = BTreeMap::new();
        for (&job, &(device, finish)) in &self.under_way {
            let lane = lane_of(device);
            answer.runs.push(RunForecast { action: None, job: Some(job), lane, start: now, finish, recalled: false });
            free.insert(device, finish);
        }
        for (index, action) in question.actions.iter().enumerate() {
            let Action::Run { work: Work::New(spec), lane, .. } = action else { continue };
            let start = free.get(&lane.device).copied().unwrap_or(now).max(spec.release);
            let finish = start + PER_TOKEN.times(spec.binding.value(TOKENS).max(1));
            let (lane, action) = (*lane, Some(index));
            answer.runs.push(RunForecast { action, job: None, lane, start, finish, recalled: false });
            free.insert(lane.device, finish);
        }
        Ok(())
    }
}

pub(super) struct Rig {
    pub(super) gmg: Gmg,
    pub(super) batching: Vec<Batcher>,
    pub(super) now: Nanos,
    /// When the policy wants to be asked again.
    pub(super) wake_at: Option<Nanos>,
    /// Jobs that lanes were told to take back.
    pub(super) recalls: Vec<JobId>,
    /// Requests that were rejected.
    pub(super) rejected: Vec<RequestId>,
    what_if: Rule,
    policy: Box<dyn Policy>,
}

fn template() -> Arc<OpGraph> {
    let mut graph = OpGraph::builder("chain");
    let mut x = graph.input("x", DType::F32, Shape::matrix(TOKENS, 16));
    for op in 0..OPS {
        let weight = graph.weight(&format!("w{op}"), DType::F32, Shape::matrix(16, 16));
        let shape = Shape::matrix(TOKENS, 16);
        let y = match op + 1 {
            OPS => graph.output("y", DType::F32, shape),
            _ => graph.activation(&format!("y{op}"), DType::F32, shape),
        };
        graph.op(&format!("op{op}"), OpKind::MatMul, &[x, weight], &[y]);
        x = y;
    }
    graph.build().unwrap().into()
}

impl Rig {
    /// `devices` devices of [`CHAT`] with 256 KV blocks each; all weights are on all of them.
    pub(super) fn new(policy: Box<dyn Policy>, devices: u32) -> Self {
        Self::with_blocks(policy, devices, 256)
    }

    pub(super) fn with_blocks(policy: Box<dyn Policy>, devices: u32, blocks: u32) -> Self {
        Self::build(policy, devices, blocks, 1)
    }

    /// One device with so many lanes.
    pub(super) fn with_lanes(policy: Box<dyn Policy>, lanes: u16) -> Self {
        Self::build(policy, 1, 256, lanes)
    }

    fn build(policy: Box<dyn Policy>, devices: u32, blocks: u32, lanes: u16) -> Self {
        let spec = DeviceSpec::custom("tiny", Bytes::mib(8), Bandwidth::gb_per_s(1), FlopRate::gflops(1));
        let spec = spec.with_lanes(lanes);
        // Every tenant needs a home: those of the guests are lost before anything runs.
        let cluster = Cluster::builder().node("n", |node| node.devices(devices + 2, spec)).build().unwrap();
        let mut gmg = Gmg::new(cluster);
        let layout = DeviceLayout {
            usable: Bytes::kib(64 + 1024 + u64::from(blocks)),
            weights: Bytes::kib(64),
            arena: Bytes::kib(1024),
            staging: Bytes::ZERO,
            kv_block: Bytes::kib(1),
            kv_block_tokens: BLOCK,
        };
        for device in 0..devices + 2 {
            gmg.lay_out(DeviceId(device), layout).unwrap();
        }
        let chat = Tenant::latency_sensitive("chat");
        let mail = Tenant::latency_sensitive("mail").ttft(Nanos::secs(1)).tpot(Nanos::ms(100));
        let homes = [(0..devices).collect::<Vec<_>>(), vec![devices], vec![devices + 1]];
        let mut batching = Vec::new();
        for (tenant, home) in [chat, mail, Tenant::best_effort("batch")].into_iter().zip(&homes) {
            let tenant = gmg.add_tenant(tenant).unwrap();
            let model = Model::new("chain", template()).kv_bytes_per_token(Bytes(64));
            let model = gmg.add_model(tenant, model, Container::replicas(home.iter().copied())).unwrap();
            let options = BatchOptions {
                token_budget: 512,
                max_sequences: 32,
                block_tokens: BLOCK,
                growth_reserve: 0,
                ..BatchOptions::default()
            };
            let mut batcher = Batcher::new(tenant, options);
            for device in (0..devices).map(DeviceId) {
                if !home.contains(&device.0) {
                    gmg.apply(Intent::LoadWeights { model, device, source: Source::Host }).unwrap();
                    gmg.apply(Event::WeightsLoaded { model, device, at: Nanos::ZERO }).unwrap();
                }
                batcher.add_replica(model, device);
            }
            batching.push(batcher);
        }
        for device in [devices, devices + 1].map(DeviceId) {
            gmg.apply(Event::DeviceLost { device, at: Nanos::ZERO }).unwrap();
        }
        let (now, what_if) = (Nanos::ZERO, Rule { version: gmg.version(), ..Rule::default() });
        Self { gmg, batching, now, wake_at: None, recalls: Vec::new(), rejected: Vec::new(), what_if, policy }
    }

    /// Lets time pass.
    pub(super) fn pass(&mut self, time: Nanos) {
        self.now += time;
    }

    /// A request arrives now.
    pub(super) fn arrive(&mut self, tenant: TenantId, prompt: u32) -> RequestId {
        let request = NewRequest { tenant, arrival: self.now, prompt, max_output: u32::MAX };
        let id = self.gmg.submit_request(request).unwrap();
        let slo = self.gmg.view().request(id).unwrap().slo;
        self.batching[tenant.index()].enter(Sequence::new(id, self.now, slo, prompt, u32::MAX));
        self.decide(&Event::Arrived { request: id, at: self.now });
        id
    }

    /// The policy's timer.
    pub(super) fn timer(&mut self) {
        self.wake_at = None;
        self.decide(&Event::Timer { at: self.now });
    }

    /// The job that is first in the queue of a device.
    pub(super) fn job(&self, device: u32) -> Option<JobId> {
        self.gmg.view().lane(lane_of(DeviceId(device)))?.queue().first().map(|entry| entry.job)
    }

    /// Whose iteration is first in the queue of a device.
    pub(super) fn running(&self, device: u32) -> Option<TenantId> {
        self.job(device).map(|job| TenantId(self.gmg.view().job(job).unwrap().spec.key.tenant))
    }

    /// How many tokens it computes.
    pub(super) fn tokens(&self, device: u32) -> u64 {
        self.job(device).map_or(0, |job| self.gmg.view().job(job).unwrap().spec.binding.value(TOKENS))
    }

    /// Jobs in the queue of a device.
    pub(super) fn queued(&self, device: u32) -> usize {
        self.queued_on(device, 0)
    }

    /// Jobs in the queue of a lane of a device.
    pub(super) fn queued_on(&self, device: u32, lane: u16) -> usize {
        self.gmg.view().lane(LaneId::new(DeviceId(device), lane)).unwrap().queue().len()
    }

    /// The iteration of a device ends now, and nobody gets a last token.
    pub(super) fn finish(&mut self, device: u32) {
        self.finished(device, false, Nanos::ZERO);
    }

    /// As [`finish`](Self::finish), for an iteration that took so long.
    pub(super) fn finish_after(&mut self, device: u32, length: Nanos) {
        self.finished(device, false, length);
    }

    /// The iteration of a device ends now, and all of its requests with it.
    pub(super) fn end(&mut self, device: u32) {
        self.finished(device, true, Nanos::ZERO);
    }

    /// As [`end`](Self::end), for an iteration that took so long.
    pub(super) fn end_after(&mut self, device: u32, length: Nanos) {
        self.finished(device, true, length);
    }

    fn finished(&mut self, device: u32, ends: bool, length: Nanos) {
        let job = self.job(device).unwrap();
        let (spec, ops) = {
            let found = self.gmg.view().job(job).unwrap().clone();
            (found.spec.clone(), found.progress()..OPS)
        };
        let lane = lane_of(DeviceId(device));
        let ended: Vec<Ended> = match ends {
            true => spec.rows.iter().map(|row| Ended { request: row.request, produced: 1 }).collect(),
            false => Vec::new(),
        };
        let (started, at) = (self.now - length, self.now);
        let event = Event::Finished { job, ops, lane, started, at, tokens: Vec::new(), ended: ended.clone() };
        self.what_if.under_way.remove(&job);
        self.apply(Delta::Observed(event.clone()));
        self.batching[spec.key.tenant as usize].complete(&spec, &ended, self.now, &mut Vec::new());
        self.decide(&event);
        self.apply(Delta::Intent(Intent::Retire { job }));
        for ended in ended {
            self.apply(Delta::Intent(Intent::RetireRequest { request: ended.request }));
        }
    }

    /// The lane of a device takes back what `tenant` runs there, after one operator.
    pub(super) fn recall(&mut self, device: u32, tenant: TenantId) {
        let lane = lane_of(DeviceId(device));
        let of = |job: JobId| self.gmg.view().job(job).unwrap().spec.key.tenant;
        let view = self.gmg.view();
        let entry = view.lane(lane).unwrap().queue().iter().find(|entry| of(entry.job) == tenant.0).unwrap();
        let (job, start) = (entry.job, entry.ops.start);
        let (done, started, at) = (start..start + 1, self.now, self.now);
        let event = Event::Recalled { job, lane, done, end: OPS, fate: Fate::Keep, started, at };
        self.what_if.under_way.remove(&job);
        self.apply(Delta::Observed(event.clone()));
        self.decide(&event);
    }

    fn apply(&mut self, delta: Delta) {
        let applied = self.gmg.apply(delta).unwrap();
        self.what_if.observe(&applied, self.gmg.view()).unwrap();
    }

    fn decide(&mut self, event: &Event) {
        self.what_if.version = self.gmg.version();
        let mut context = Context {
            now: self.now,
            view: self.gmg.view(),
            demand: &self.batching,
            what_if: &mut self.what_if,
            budget: Budget::evaluations(64),
            shares_slots: false,
            explain: None,
        };
        let plan = self.policy.on_event(&mut context, event);
        self.wake_at = plan.wake_at.into_iter().chain(self.wake_at).min();
        for action in plan.actions {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        let mut preempted = Vec::new();
        let action = match action {
            Action::FormBatch { replica, lane, limits, rank } => {
                let formed = self.batching[replica.tenant.index()].form(replica.index, limits, &mut preempted);
                formed.map(|spec| Action::Run { work: Work::New(Box::new(spec)), lane, rank })
            }
            Action::EvictSequences { replica, blocks } => {
                self.batching[replica.tenant.index()].evict(replica.index, blocks, &mut preempted);
                None
            }
            Action::Reject { request, .. } => {
                let tenant = self.gmg.view().request(request).unwrap().tenant;
                self.batching[tenant.index()].withdraw(request).unwrap();
                self.rejected.push(request);
                Some(action)
            }
            Action::Cancel { job } => {
                let key = self.gmg.view().job(job).unwrap().spec.key;
                self.batching[key.tenant as usize].abandon_iteration(key);
                Some(action)
            }
            action => Some(action),
        };
        for (request, device) in preempted {
            self.apply(Delta::Intent(Intent::ReleaseKv { request, device }));
        }
        let Some(action) = action else { return };
        let plan = Plan { actions: [action].into_iter().collect(), ..Plan::nothing(self.gmg.version()) };
        let accepted = self.gmg.accept(plan);
        assert!(accepted.dropped.is_empty(), "{:?}", accepted.dropped);
        for command in &accepted.commands {
            match command {
                Command::Launch(launch) => {
                    let finish = self.now + PER_TOKEN.times(launch.spec.binding.value(TOKENS));
                    self.what_if.under_way.insert(launch.job, (launch.lane.device, finish));
                }
                Command::Recall { job, .. } => self.recalls.push(*job),
                _ => {}
            }
        }
    }
}
