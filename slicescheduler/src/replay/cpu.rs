//! The same replay on the lanes of this machine, with real kernels.
//!
//! Every tenant gets a seeded tiny decoder in place of its model, a mixture of experts in place of one, and every
//! device becomes a lane.
//! Prompts are random tokens, keyed by the tenant and the number of the request, or by the names of the blocks that a
//! trace has, so a request has the same prompt under every policy, and must have the same answer.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use slicescheduler_executor::cpu_world::{CpuWorld, CpuWorldOptions};
use slicescheduler_executor::lane::StdThreads;
use slicescheduler_executor::model::{CpuModel, SeededWeights};
use slicescheduler_gmg::id::{RequestId, TenantId};
use slicescheduler_gmg::plan::{Clock, Command, Event, World, WorldError};
use slicescheduler_gmg::templates::{DenseSpec, MoeSpec};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, View};
use slicescheduler_simulator::cost::Roofline;

use crate::learned::Learned;
use crate::replay::run::{Run, run_policy};
use crate::replay::{ForecastOptions, Progress, ReplayError, ReplayWorld, core_scaling, policy, summary};
use crate::report::{RunRecord, Summary};
use crate::scenario::{DeviceKind, Layout, LinkOverride, ModelSpec, Scenario};
use crate::setup::Setup;
use crate::workload::rng::Seed;
use crate::workload::{ArrivalRecord, Lengths};

/// The answers of one run: the tokens of every completed request, hashed, by tenant and by the
/// number of the request within the tenant.
type Answers = BTreeMap<(u32, u64), u64>;

/// Lengths that replace those of a scenario that was not made for the tiny decoder.
const LENGTHS: Lengths =
    Lengths { prompt_scale: 0.05, output_scale: 0.2, drift: None, max_prompt: 384, max_output: 96 };

/// Tokens of an iteration at most, where a scenario was not made for the tiny decoder.
const TOKEN_BUDGET: u32 = 256;

/// Runs every policy of `scenario` on lanes of this machine, one after the other, in real time.
///
/// `clock` must go on by itself. `explain` requests that violated their service level are explained in each
/// [`RunRecord`]. Forecasts go by what is [learned](crate::learned) from the run. Answers to requests that completed under every policy are compared: see
/// [`PolicySummary::tokens_hash`](crate::report::PolicySummary::tokens_hash).
///
/// # Errors
/// If the scenario is impossible, a trace is damaged, or there are no threads or no memory.
pub fn replay_on_cpu(
    scenario: &Scenario,
    name: &str,
    clock: &Arc<dyn Clock>,
    explain: usize,
    progress: &mut dyn Progress,
) -> Result<(Summary, Vec<RunRecord>), ReplayError> {
    let scenario = for_cpu(scenario);
    let scaling = core_scaling(&**clock, 2)?;
    let (mut runs, mut answers) = (Vec::new(), Vec::new());
    for spec in &scenario.policies {
        let policy = policy(spec)?;
        let setup = Setup::new(&scenario, &*policy)?;
        let clock: Arc<dyn Clock> = Arc::new(Since { start: clock.now(), clock: clock.clone() });
        let world = CpuReplay::new(&scenario, &setup, clock.clone())?;
        let learned = Learned::new(Arc::new(Roofline::default()));
        let forecast = ForecastOptions { cost: Arc::new(learned.clone()), ..ForecastOptions::default() };
        let how = Run { stopwatch: Some(clock), forecast, learned: Some(learned), explain, ..Run::default() };
        let (run, world) = run_policy(&scenario, policy, setup, world, &how, progress)?;
        runs.push(run);
        answers.push(world.answers);
    }
    let common: Vec<_> = answers.first().into_iter().flatten().map(|(&key, _)| key).collect();
    let common: Vec<_> = common.into_iter().filter(|key| answers.iter().all(|of| of.contains_key(key))).collect();
    for (run, answers) in runs.iter_mut().zip(&answers) {
        let mut hash = Fnv::default();
        for key in &common {
            hash.add(answers.get(key).copied().unwrap_or(0));
        }
        run.summary.answers_compared = Some(common.len() as u64);
        run.summary.tokens_hash = Some(format!("{:016x}", hash.0));
    }
    Ok((Summary { core_scaling: Some(scaling), ..summary(&scenario, name, true, &runs) }, runs))
}

/// The scenario with lanes for devices and the tiny decoder for models, a whole one on each device.
fn for_cpu(scenario: &Scenario) -> Scenario {
    let mut scenario = scenario.clone();
    for node in &mut scenario.cluster.nodes {
        node.kind = DeviceKind::Cpu;
        (node.nvlink, node.pcie, node.host_memory) = (LinkOverride::default(), LinkOverride::default(), None);
    }
    for tenant in &mut scenario.tenants {
        tenant.container.layout = Layout::Replicas;
        let tiny = match tenant.model {
            ModelSpec::Dense(_) => ModelSpec::from(DenseSpec::tiny()),
            ModelSpec::Moe(_) => ModelSpec::from(MoeSpec::tiny()),
        };
        if tenant.model == tiny {
            continue;
        }
        tenant.model = tiny;
        scenario.engine.token_budget = scenario.engine.token_budget.min(TOKEN_BUDGET);
        scenario.engine.max_sequences = scenario.engine.max_sequences.min(TOKEN_BUDGET / 2);
        let lengths = tenant.workload.lengths_mut();
        *lengths = Lengths { drift: lengths.drift, ..LENGTHS };
    }
    scenario
}

/// FNV-1a over the bytes of numbers: the same on every machine and in every release.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, number: u64) {
        for byte in number.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// A clock that starts at zero.
#[derive(Debug)]
struct Since {
    clock: Arc<dyn Clock>,
    start: Nanos,
}

impl Clock for Since {
    fn now(&self) -> Nanos {
        self.clock.now() - self.start
    }
}

/// A request whose answer is awaited.
#[derive(Clone, Copy, Debug)]
struct Asked {
    tenant: TenantId,
    number: u64,
    output: u32,
}

/// CPU lanes, and what was asked and answered.
struct CpuReplay {
    world: CpuWorld,
    seed: u64,
    vocabulary: u64,
    numbers: Vec<u64>,
    asked: HashMap<RequestId, Asked>,
    answers: Answers,
}

impl CpuReplay {
    fn new(scenario: &Scenario, setup: &Setup, clock: Arc<dyn Clock>) -> Result<Self, ReplayError> {
        let view = setup.gmg.view();
        let mut models = Vec::new();
        for (tenant, &id) in scenario.tenants.iter().zip(&setup.models) {
            let Some(model) = view.model(id) else { continue };
            let weights = SeededWeights::new(Seed(scenario.seed).derive(u64::from(id.0)).0);
            let template = model.template.clone();
            let model = match &tenant.model {
                ModelSpec::Dense(spec) => CpuModel::decoder(spec, template, &weights)?,
                ModelSpec::Moe(spec) => CpuModel::mixture_of_experts(spec, template, &weights)?,
            };
            models.push((id, model));
        }
        let world = CpuWorld::new(view, models, clock, &StdThreads, CpuWorldOptions::default())?;
        Ok(Self {
            world,
            seed: scenario.seed,
            vocabulary: DenseSpec::tiny().vocab,
            numbers: vec![0; scenario.tenants.len()],
            asked: HashMap::new(),
            answers: Answers::new(),
        })
    }
}

impl World for CpuReplay {
    fn enqueue(&mut self, command: &Command, view: View<'_>) -> Result<(), WorldError> {
        self.world.enqueue(command, view)
    }

    fn poll(&mut self, until: Nanos, events: &mut Vec<Event>) -> Result<Nanos, WorldError> {
        self.world.poll(until, events)
    }

    fn is_idle(&self) -> bool {
        self.world.is_idle()
    }
}

impl ReplayWorld for CpuReplay {
    fn prepare(&mut self, request: RequestId, tenant: TenantId, record: &ArrivalRecord) -> Result<(), WorldError> {
        let &ArrivalRecord { prompt, output, ref prefix, .. } = record;
        let Some(number) = self.numbers.get_mut(tenant.index()) else { return Ok(()) };
        let of_tenant = Seed(self.seed).derive(u64::from(tenant.0));
        let keyed = of_tenant.derive(*number);
        let token = |position: u32| {
            // Blocks of one name have the same tokens.
            let block = prefix.as_ref().and_then(|prefix| prefix.at(position));
            let seed = block.map_or(keyed, |id| of_tenant.derive(u64::MAX).derive(id));
            (seed.derive(u64::from(position)).0 % self.vocabulary) as u32
        };
        let tokens: Vec<u32> = (0..prompt).map(token).collect();
        self.world.prompt(request, &tokens, output, None).map_err(|error| WorldError::Other {
            message: format!("request {} of {tenant} cannot be entered", *number),
            source: Some(Box::new(error)),
        })?;
        self.asked.insert(request, Asked { tenant, number: *number, output });
        *number += 1;
        Ok(())
    }

    fn forget(&mut self, request: RequestId) {
        if let Some(asked) = self.asked.remove(&request) {
            let tokens = self.world.tokens(request);
            if tokens.len() as u32 == asked.output {
                let mut hash = Fnv::default();
                tokens.iter().for_each(|&token| hash.add(u64::from(token)));
                self.answers.insert((asked.tenant.0, asked.number), hash.0);
            }
        }
        self.world.forget(request);
    }
}
