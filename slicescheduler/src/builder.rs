//! What a scheduler is made of.

mod containers;
mod error;

use std::collections::HashSet;
use std::sync::Arc;

use slicescheduler_executor::ExecutorError;
use slicescheduler_executor::cpu_world::{CpuWorld, CpuWorldOptions};
use slicescheduler_executor::lane::{StdThreads, ThreadSpawner};
use slicescheduler_executor::model::CpuModel;
use slicescheduler_gmg::cluster::{Cluster, ClusterError};
use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::plan::{Clock, Command, Event, Observer};
use slicescheduler_gmg::tenant::Tenant;
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_gmg::{GmgView, View};
use slicescheduler_scheduler::batching::BatchOptions;
use slicescheduler_scheduler::policy::Policy;
use slicescheduler_scheduler::{SliceFill, SliceFillOptions};
use slicescheduler_simulator::cost::Roofline;
use slicescheduler_simulator::timeline::{Horizon, Timeline};

use crate::assembly::{Assembly, Member, assemble, cpu_device};
use crate::driver::{Driver, DriverOptions};
use crate::learned::Learned;
use crate::model::{Model, ModelError, ModelKind};
use crate::serve::{Served, Service, SliceScheduler, SystemClock, TokenWorld};

pub use error::BuildError;

/// Memory of a CPU device, unless said.
const DEVICE_MEMORY: Bytes = Bytes::mib(64);

/// Requests that may be under way at a time, unless said.
const MAX_REQUESTS: usize = 1024;

/// Lanes that a process may have: each is a thread.
const MAX_LANES: u64 = 1024;

/// How far forecasts look.
const HORIZON: Nanos = Nanos::secs(2);

#[derive(Debug)]
enum Hardware {
    Cpu { devices: Option<u32>, memory: Bytes },
    Cluster(Cluster),
}

#[derive(Debug)]
struct Entry {
    tenant: Tenant,
    model: Box<dyn Model>,
    devices: Option<Vec<u32>>,
}

/// Collects what a [`SliceScheduler`] is made of; see [`SliceScheduler::builder`].
///
/// | what | unless said |
/// |---|---|
/// | devices | one CPU lane per tenant, with 64 MiB of the host's memory |
/// | [policy](Self::policy) | [`SliceFill`] |
/// | [observer](Self::observer) | nobody |
/// | [clock](Self::clock) | a [`SystemClock`] that starts with [`build`](Self::build) |
/// | [threads](Self::spawner) | [`StdThreads`]: one per lane, one for transfers, one for the loop |
/// | [batching](Self::batching) | iterations of 256 tokens and 32 sequences, KV blocks of 16 tokens |
/// | [requests](Self::max_requests) at a time | 1024 |
/// | [prefix caches](Self::prefix_caching) | none |
/// | [forecasts of memory](Self::forecasts_memory) | none |
pub struct Builder {
    hardware: Hardware,
    tenants: Vec<Entry>,
    policy: Box<dyn Policy>,
    observer: Box<dyn Observer + Send>,
    clock: Option<Arc<dyn Clock>>,
    threads: Arc<dyn ThreadSpawner>,
    batching: BatchOptions,
    lanes: CpuWorldOptions,
    max_requests: usize,
    forecasts_memory: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            hardware: Hardware::Cpu { devices: None, memory: DEVICE_MEMORY },
            tenants: Vec::new(),
            policy: Box::new(SliceFill::new(SliceFillOptions::default())),
            observer: Box::new(Nobody),
            clock: None,
            threads: Arc::new(StdThreads),
            batching: BatchOptions { token_budget: 256, max_sequences: 32, ..BatchOptions::default() },
            lanes: CpuWorldOptions::default(),
            max_requests: MAX_REQUESTS,
            forecasts_memory: false,
        }
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("hardware", &self.hardware)
            .field("tenants", &self.tenants)
            .field("policy", &self.policy.name())
            .field("batching", &self.batching)
            .field("max_requests", &self.max_requests)
            .field("forecasts_memory", &self.forecasts_memory)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Serves on `count` CPU devices, a lane each; 1024 at most.
    #[must_use]
    pub fn devices(mut self, count: u32) -> Self {
        let memory = match self.hardware {
            Hardware::Cpu { memory, .. } => memory,
            Hardware::Cluster(_) => DEVICE_MEMORY,
        };
        self.hardware = Hardware::Cpu { devices: Some(count), memory };
        self
    }

    /// Gives each CPU device this much of the host's memory.
    #[must_use]
    pub fn device_memory(mut self, bytes: Bytes) -> Self {
        let devices = match self.hardware {
            Hardware::Cpu { devices, .. } => devices,
            Hardware::Cluster(_) => None,
        };
        self.hardware = Hardware::Cpu { devices, memory: bytes };
        self
    }

    /// Serves on the devices of `cluster`, each of them CPU lanes of this machine with as much of
    /// the host's memory as the device is said to have. Rates and links are what forecasts go by, rates
    /// until they are [learned](crate::learned).
    #[must_use]
    pub fn cluster(mut self, cluster: Cluster) -> Self {
        self.hardware = Hardware::Cluster(cluster);
        self
    }

    /// Adds a tenant, served by `model`. It shares the devices that no other tenant asks for with
    /// those that do not ask either: each gets a run of neighbours, in the order of these calls.
    #[must_use]
    pub fn tenant(self, tenant: Tenant, model: impl Model + 'static) -> Self {
        self.enter(tenant, Box::new(model), None)
    }

    /// Adds a tenant with a container of its own choice: a replica of `model` on each of `devices`,
    /// numbers from 0 in the order of the cluster.
    #[must_use]
    pub fn tenant_on(
        self,
        tenant: Tenant,
        model: impl Model + 'static,
        devices: impl IntoIterator<Item = u32>,
    ) -> Self {
        self.enter(tenant, Box::new(model), Some(devices.into_iter().collect()))
    }

    fn enter(mut self, tenant: Tenant, model: Box<dyn Model>, devices: Option<Vec<u32>>) -> Self {
        self.tenants.push(Entry { tenant, model, devices });
        self
    }

    /// Decides by `policy`.
    #[must_use]
    pub fn policy(mut self, policy: impl Policy + 'static) -> Self {
        self.policy = Box::new(policy);
        self
    }

    /// Tells `observer` what happens, on the thread that makes the passes.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer + Send + 'static) -> Self {
        self.observer = Box::new(observer);
        self
    }

    /// Measures time by `clock`, which must go on by itself.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Takes threads from `threads`; none is started by other means.
    #[must_use]
    pub fn spawner(mut self, threads: impl ThreadSpawner + 'static) -> Self {
        self.threads = Arc::new(threads);
        self
    }

    /// Sizes iterations and KV blocks. An encoder reads a text at once, so its texts may have
    /// `token_budget` tokens at most.
    #[must_use]
    pub fn batching(mut self, options: BatchOptions) -> Self {
        self.batching = options;
        self
    }

    /// Lets prompts of a decoder that begin alike share KV blocks: what an earlier request of the same tenant has
    /// computed on a device, running or ended, is not computed again there, as long as nobody needed the memory for
    /// something else. Answers are the same, bit for bit. Only full blocks of the [batching](Self::batching) are
    /// shared, and only those of prompts.
    #[must_use]
    pub fn prefix_caching(mut self, yes: bool) -> Self {
        self.batching.prefix_caching = yes;
        self
    }

    /// Sets the kernels of the lanes, and the transport that loads weights.
    #[must_use]
    pub fn lanes(mut self, options: CpuWorldOptions) -> Self {
        self.lanes = options;
        self
    }

    /// Refuses a request while this many are under way.
    #[must_use]
    pub fn max_requests(mut self, count: usize) -> Self {
        self.max_requests = count;
        self
    }

    /// Forecasts the memory of devices before each plan is carried out, for
    /// [`DeviceStatus::forecast_peak`](crate::serve::DeviceStatus::forecast_peak). It costs one more question to the
    /// forecast per action, some microseconds on the thread that makes the passes, and changes no decision.
    #[must_use]
    pub fn forecasts_memory(mut self, yes: bool) -> Self {
        self.forecasts_memory = yes;
        self
    }

    /// Starts the scheduler with a thread for its loop.
    ///
    /// # Errors
    /// If what was said does not go together, a model does not fit its container or cannot be
    /// loaded, or there is no memory or no thread.
    pub fn build(self) -> Result<SliceScheduler, BuildError> {
        let threads = self.threads.clone();
        let (service, served) = self.service(|world| world)?;
        SliceScheduler::start(service, served, &*threads).map_err(BuildError::Thread)
    }

    /// Makes a scheduler without a thread of its own: whoever waits for an answer, or calls
    /// [`SliceScheduler::step`], makes the passes. The lanes have their threads as usual.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_stepped(self) -> Result<SliceScheduler, BuildError> {
        let (service, served) = self.service(|world| world)?;
        Ok(SliceScheduler::stepped(service, served))
    }

    /// The loop, over the lanes as `wrap` wraps them.
    pub(crate) fn service<W: TokenWorld>(
        self,
        wrap: impl FnOnce(CpuWorld) -> W,
    ) -> Result<(Service<W>, Vec<Served>), BuildError> {
        self.check()?;
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::start()));
        let cluster = self.hardware.cluster(self.tenants.len())?;
        let wishes: Vec<containers::Wish<'_>> =
            self.tenants.iter().map(|entry| (&*entry.tenant.name, entry.devices.as_deref())).collect();
        let devices = containers::assign(&cluster, &wishes)?;
        let options = self.batching;
        let members = self.tenants.iter().zip(devices).map(|(entry, devices)| entry.member(devices, options));
        let members = members.collect::<Result<Vec<_>, _>>()?;
        let usable: Vec<Bytes> = cluster.devices().iter().map(|device| device.spec.memory).collect();
        let Assembly { gmg, batching, models, prefetch } = assemble(cluster, &members, &usable, &*self.policy)?;
        let bound = self.tenants.iter().zip(&members).map(|(entry, member)| entry.bind(member));
        let bound = bound.collect::<Result<Vec<_>, _>>()?;
        let served = self.tenants.iter().zip(&members).zip(&bound).zip(0..);
        let served = served
            .map(|(((entry, member), model), index)| entry.served(member, model.kind(), TenantId(index), gmg.view()));
        let served = served.collect();
        let bound = models.iter().copied().zip(bound).collect();
        let world = CpuWorld::new(gmg.view(), bound, clock.clone(), &*self.threads, self.lanes);
        let world = world.map_err(|error| match error {
            // One model per tenant: whose it is says more than its number.
            ExecutorError::Model { model, source } => {
                match models.iter().zip(&self.tenants).find(|(id, _)| **id == model) {
                    Some((_, entry)) => entry.wrong((*source).into()),
                    None => (*source).into(),
                }
            }
            other => other.into(),
        })?;
        let learned = Learned::new(Arc::new(Roofline::default()));
        let what_if = Timeline::of(gmg.view(), Arc::new(learned.clone()), Horizon(HORIZON));
        let waker = world.waker();
        let options = DriverOptions { forecasts_memory: self.forecasts_memory, ..DriverOptions::default() };
        let driver = Driver::new(gmg, batching, self.policy, Box::new(what_if), wrap(world), options)?;
        let mut service = Service::new(driver, clock, self.observer, waker, self.max_requests, learned);
        service.prefetch(prefetch)?;
        Ok((service, served))
    }

    fn check(&self) -> Result<(), BuildError> {
        if self.tenants.is_empty() {
            return Err(BuildError::NoTenants);
        }
        let mut names = HashSet::new();
        if let Some(twice) = self.tenants.iter().find(|entry| !names.insert(entry.tenant.name.clone())) {
            return Err(BuildError::DuplicateTenant { tenant: twice.tenant.name.to_string() });
        }
        let lanes = match &self.hardware {
            Hardware::Cpu { devices, .. } => devices.map_or(self.tenants.len() as u64, u64::from),
            Hardware::Cluster(cluster) => cluster.devices().iter().map(|device| u64::from(device.spec.lanes)).sum(),
        };
        if lanes > MAX_LANES {
            return Err(BuildError::TooManyLanes { lanes, limit: MAX_LANES });
        }
        let settings = [
            ("the number of requests at a time", self.max_requests as u64),
            ("the token budget of an iteration", u64::from(self.batching.token_budget)),
            ("the number of sequences of a replica", u64::from(self.batching.max_sequences)),
            ("the number of tokens in a KV block", u64::from(self.batching.block_tokens)),
        ];
        match settings.into_iter().find(|&(_, value)| value == 0) {
            Some((setting, _)) => Err(BuildError::Zero { setting }),
            None => Ok(()),
        }
    }
}

impl Hardware {
    fn cluster(self, tenants: usize) -> Result<Cluster, ClusterError> {
        match self {
            Self::Cluster(cluster) => Ok(cluster),
            Self::Cpu { devices, memory } => {
                let devices = devices.unwrap_or(u32::try_from(tenants).unwrap_or(u32::MAX));
                Cluster::builder().node("cpu", |node| node.devices(devices, cpu_device(memory))).build()
            }
        }
    }
}

impl Entry {
    fn wrong(&self, source: ModelError) -> BuildError {
        let (tenant, model) = (self.tenant.name.to_string(), self.model.name().to_owned());
        BuildError::Model { tenant, model, source: Box::new(source) }
    }

    fn member(&self, devices: Vec<DeviceId>, options: BatchOptions) -> Result<Member, BuildError> {
        let template = self.model.template().map_err(|error| self.wrong(error))?;
        let kind = CpuModel::kind_of(&template).map_err(|error| self.wrong(error.into()))?;
        let weights = self.model.weight_bytes(&template).map_err(|error| self.wrong(error))?;
        let model = slicescheduler_gmg::Model::new(self.model.name(), template).weights(weights);
        let model = model.kv_bytes_per_token(self.model.kv_bytes_per_token());
        let options = match kind {
            ModelKind::Decoder => BatchOptions { whole_prompts: false, ..options },
            ModelKind::Encoder => BatchOptions { whole_prompts: true, long_prefill: 0, ..options },
        };
        Ok(Member { tenant: self.tenant.clone(), model, devices, ranks: 1, options })
    }

    fn bind(&self, member: &Member) -> Result<CpuModel, BuildError> {
        let of_graph = &member.model;
        let model = self.model.on_cpu(of_graph.template.clone()).map_err(|error| self.wrong(error))?;
        if !Arc::ptr_eq(model.template(), &of_graph.template) {
            return Err(self.wrong(ModelError::OtherTemplate));
        }
        let (said, needed) = (of_graph.weights, model.slot_bytes());
        if said < needed {
            return Err(self.wrong(ModelError::WeightBytes { said, needed }));
        }
        let (said, tokens) = (of_graph.kv_bytes_per_token, member.options.block_tokens);
        let needed = model.kv_block_bytes(tokens);
        if said.times(u64::from(tokens)) < needed {
            return Err(self.wrong(ModelError::KvBytes { tokens, said, needed }));
        }
        Ok(model)
    }

    /// What requests of the tenant are held to. A request may take three quarters of the KV cache
    /// of any device of its container, so that it can be computed alone there whatever share a
    /// policy keeps free.
    fn served(&self, member: &Member, kind: ModelKind, id: TenantId, view: View<'_>) -> Served {
        let room = |device| {
            let memory = view.memory(device)?;
            let blocks = (u64::from(memory.kv().total()) * 3 / 4).saturating_sub(1);
            Some(blocks * u64::from(memory.layout().kv_block_tokens))
        };
        let room = member.devices.iter().filter_map(|&device| room(device)).min().unwrap_or(0);
        let room = match kind {
            ModelKind::Decoder => room,
            ModelKind::Encoder => room.min(u64::from(member.options.token_budget)),
        };
        Served {
            name: self.tenant.name.clone(),
            id,
            model: self.model.name().into(),
            kind,
            vocabulary: self.model.vocabulary(),
            context: u64::from(self.model.max_context()).min(room),
            end_of_sequence: self.model.end_of_sequence(),
        }
    }
}

/// Nobody looks.
struct Nobody;

impl Observer for Nobody {
    fn on_event(&mut self, _event: &Event, _view: View<'_>) {}

    fn on_command(&mut self, _now: Nanos, _command: &Command, _view: View<'_>) {}
}
