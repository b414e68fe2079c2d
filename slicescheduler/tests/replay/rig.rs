//! Scenarios, a world that is watched, and a loop that looks at the driver after every step.

use std::path::Path;
use std::sync::Arc;

use slicescheduler::driver::{Arrival, Driver, DriverOptions, Lost};
use slicescheduler::replay::{ReplayWorld, Run, Silent, policy, run_policy};
use slicescheduler::report::RunRecord;
use slicescheduler::scenario::{PolicySpec, Scenario, Source};
use slicescheduler::setup::Setup;
use slicescheduler::workload::{ArrivalRecord, PrefixBlocks};
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::id::{DeviceId, RequestId, TenantId};
use slicescheduler_gmg::plan::{Command, Event, Failure, Observer, WhatIf, World, WorldError};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, View};
use slicescheduler_scheduler::batching::Completed;
use slicescheduler_simulator::cost::Roofline;
use slicescheduler_simulator::timeline::{Horizon, Timeline};
use slicescheduler_simulator::world::{SimWorld, WorldCost, WorldOptions};

use crate::witness::Witness;

pub(crate) const POLICIES: [&str; 3] = ["static", "idle-priority", "slice-fill"];

/// Memory for one guest's weights beside the owner's, and little KV cache.
pub(crate) const TIGHT: f64 = 0.6;
/// Memory as in the default workload.
pub(crate) const ROOMY: f64 = 0.9;

/// Decisions that a run remembers.
const EXPLAINED: usize = 4096;

const SMALL: &str = r#"
seed = 1
duration = "10s"
policies = ["static", "idle-priority", "slice-fill"]
[cluster]
usable = 0.9
[[cluster.nodes]]
devices = 5
kind = "h100-sxm"
[[tenants]]
name = "code"
class = "latency-sensitive"
model = "llama3-8b"
slo = { ttft = "400ms", tpot = "40ms" }
container = { devices = [0] }
workload = { generator = "azure-code", rate_scale = 4 }
[[tenants]]
name = "strict"
class = "latency-sensitive"
model = "llama3-8b"
slo = { ttft = "400ms", tpot = "40ms" }
lending = "strict"
container = { devices = [1] }
workload = { generator = "azure-code", rate_scale = 4 }
[[tenants]]
name = "conv"
class = "latency-sensitive"
model = "llama3-8b"
slo = { ttft = "400ms", tpot = "40ms" }
container = { devices = [2] }
workload = { generator = "azure-conv", rate_scale = 2 }
[[tenants]]
name = "batch"
class = "best-effort"
model = "llama3-8b"
container = { devices = [3, 4] }
workload = { backlog = "azure-conv", window = 32 }
"#;

/// Five devices, four tenants, bursts that one device cannot serve in time.
pub(crate) fn small(usable: f64, duration: Nanos, seed: u64) -> Scenario {
    of_size(SMALL, usable, duration, seed)
}

const GROUPS: &str = r#"
seed = 1
duration = "10s"
policies = ["static", "idle-priority", "slice-fill"]
[cluster]
usable = 0.9
[[cluster.nodes]]
devices = 6
kind = "h100-sxm"
[[tenants]]
name = "big"
class = "latency-sensitive"
model = { name = "spread", layers = 32, hidden = 4096, heads = 32, kv_heads = 16, intermediate = 14336, vocab = 128256 }
slo = { ttft = "600ms", tpot = "50ms" }
container = { devices = [0, 1], layout = "tensor-parallel" }
workload = { generator = "azure-code", rate_scale = 3 }
[[tenants]]
name = "conv"
class = "latency-sensitive"
model = "llama3-8b"
slo = { ttft = "400ms", tpot = "40ms" }
container = { devices = [2] }
workload = { generator = "azure-conv", rate_scale = 2 }
[[tenants]]
name = "batch"
class = "best-effort"
model = "llama3-8b"
container = { devices = [3] }
workload = { backlog = "azure-conv", window = 32 }
[[tenants]]
name = "bulk"
class = "best-effort"
model = { name = "spread", layers = 32, hidden = 4096, heads = 32, kv_heads = 16, intermediate = 14336, vocab = 128256 }
container = { devices = [4, 5], layout = "tensor-parallel" }
workload = { backlog = "azure-conv", window = 32 }
"#;

/// Six devices, of which two pairs have one model each, of a latency-sensitive and of a best-effort tenant. KV blocks
/// have as many tokens for all of them.
pub(crate) fn groups(usable: f64, duration: Nanos, seed: u64) -> Scenario {
    of_size(GROUPS, usable, duration, seed)
}

fn of_size(text: &str, usable: f64, duration: Nanos, seed: u64) -> Scenario {
    let mut scenario = Scenario::parse(text, Path::new("rig.toml"), None).unwrap();
    scenario.cluster.usable = usable;
    scenario.duration = duration;
    scenario.seed = seed;
    scenario
}

/// What goes wrong in a world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Devices that are lost.
    pub(crate) devices: Vec<(Nanos, DeviceId)>,
    /// Every so many reports of a job, it says instead that a kernel failed; zero for never.
    pub(crate) jobs_one_in: u64,
}

pub(crate) fn as_they_are() -> Lengths {
    Box::new(|_, output| output)
}

/// The world that `replay` runs in.
pub(crate) fn simulated(scenario: &Scenario, setup: &Setup) -> SimWorld {
    let options = WorldOptions { seed: scenario.seed, ..WorldOptions::default() };
    let cluster = Arc::new(setup.gmg.view().cluster().clone());
    SimWorld::new(cluster, Box::new(WorldCost::default()), options)
}

pub(crate) type Lengths = Box<dyn Fn(RequestId, u32) -> u32>;

/// A simulated world, and the witness of what it is told and tells.
pub(crate) struct Watched {
    world: SimWorld,
    pub(crate) witness: Witness,
    lengths: Lengths,
    jobs_one_in: u64,
    reports: u64,
    stalled: u32,
}

/// Times that a world may be asked at one moment without a report.
const STALLED: u32 = 1000;

impl Watched {
    /// `lengths` replaces the output length of every request.
    pub(crate) fn new(scenario: &Scenario, setup: &Setup, faults: &Faults, lengths: Lengths) -> Self {
        let options = WorldOptions { seed: scenario.seed, ..WorldOptions::default() };
        let mut world = simulated(scenario, setup);
        for &(at, device) in &faults.devices {
            world.fail_device(at, device);
        }
        let mut witness = Witness::new(options, setup.gmg.view());
        let caching = (0..).map(TenantId).zip(&scenario.tenants).filter(|(_, tenant)| tenant.prefix_caching);
        witness.sharing = caching.map(|(tenant, _)| tenant).collect();
        Self { world, witness, lengths, jobs_one_in: faults.jobs_one_in, reports: 0, stalled: 0 }
    }

    /// The event, or the report of a failed kernel in its place.
    fn disturbed(&mut self, event: Event) -> Event {
        let (job, lane, op, at) = match event {
            Event::Finished { job, lane, ref ops, at, .. } => (job, lane, ops.start, at),
            Event::Recalled { job, lane, ref done, at, .. } => (job, lane, done.start, at),
            _ => return event,
        };
        self.reports += 1;
        if self.jobs_one_in == 0 || !self.reports.is_multiple_of(self.jobs_one_in) {
            return event;
        }
        let failure = Failure::Kernel { op, message: "injected".to_owned() };
        Event::Failed { job, lane, at, failure }
    }
}

impl World for Watched {
    fn enqueue(&mut self, command: &Command, view: View<'_>) -> Result<(), WorldError> {
        self.witness.commanded(command, view);
        self.world.enqueue(command, view)
    }

    fn poll(&mut self, until: Nanos, events: &mut Vec<Event>) -> Result<Nanos, WorldError> {
        let before = events.len();
        let now = self.world.poll(until, events);
        for event in events.iter_mut().skip(before) {
            *event = self.disturbed(event.clone());
            self.witness.happened(event);
        }
        if let Ok(now) = now {
            let stands = now == self.witness.now && events.len() == before;
            self.stalled = if stands { self.stalled + 1 } else { 0 };
            assert!(self.stalled < STALLED, "time stands still at {now}");
            self.witness.now = now;
        }
        now
    }

    fn is_idle(&self) -> bool {
        self.world.is_idle()
    }
}

impl ReplayWorld for Watched {
    fn prepare(&mut self, request: RequestId, tenant: TenantId, record: &ArrivalRecord) -> Result<(), WorldError> {
        let output = (self.lengths)(request, record.output);
        self.witness.promised(tenant, request, record.prompt, output);
        self.world.reveal(request, output);
        Ok(())
    }

    fn forget(&mut self, _: RequestId) {}
}

/// The policy of this name, with the options that the scenario gives it.
fn named(scenario: &Scenario, name: &str) -> Box<dyn slicescheduler_scheduler::policy::Policy> {
    let listed = scenario.policies.iter().find(|spec| spec.name == name).cloned();
    policy(&listed.unwrap_or_else(|| PolicySpec { name: name.to_owned(), options: Default::default() })).unwrap()
}

/// Replays `scenario` under one policy by the loop of `replay` itself.
pub(crate) fn replayed(scenario: &Scenario, name: &str, faults: &Faults, lengths: Lengths) -> (RunRecord, Witness) {
    let policy = named(scenario, name);
    let setup = Setup::new(scenario, &*policy).unwrap();
    let world = Watched::new(scenario, &setup, faults, lengths);
    let launched_window = WorldOptions::default().launched_window;
    let how = Run { launched_window, shares_slots: true, ..Run::default() };
    let (record, world) = run_policy(scenario, policy, setup, world, &how, &mut Silent).unwrap();
    (record, world.witness)
}

/// What the prompt of the `nth` request begins with, where a scenario has nothing: prompts of one of four kinds are
/// alike for up to seven blocks of 128 tokens, and end as no other does.
fn prefixes(nth: u64, prompt: u32) -> PrefixBlocks {
    let kind = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let block = |index: u64| if index < kind / 4 % 8 { kind % 4 * 8 + index } else { (nth + 1) << 32 | index };
    PrefixBlocks { block_tokens: 128, blocks: (0..u64::from(prompt.div_ceil(128))).map(block).collect() }
}

struct Nobody;

impl Observer for Nobody {
    fn on_event(&mut self, _: &Event, _: View<'_>) {}
    fn on_command(&mut self, _: Nanos, _: &Command, _: View<'_>) {}
}

/// A run in which every step was looked at.
pub(crate) struct Driven<W> {
    pub(crate) driver: Driver<W>,
    pub(crate) submitted: Vec<RequestId>,
    pub(crate) completed: Vec<Completed>,
    pub(crate) lost: Vec<Lost>,
}

/// Runs `scenario` under one policy over the world that `world` makes, through its arrivals and
/// `rest` longer, and calls `look` after every step.
pub(crate) fn driven<W: ReplayWorld>(
    scenario: &Scenario,
    name: &str,
    world: impl FnOnce(&Setup) -> W,
    rest: Nanos,
    look: impl FnMut(&Driver<W>),
) -> Driven<W> {
    predicted(scenario, name, world, |timeline| Box::new(timeline), rest, look)
}

/// The same, with another predictor in place of the timeline.
pub(crate) fn predicted<W: ReplayWorld>(
    scenario: &Scenario,
    name: &str,
    world: impl FnOnce(&Setup) -> W,
    predictor: impl FnOnce(Timeline) -> Box<dyn WhatIf + Send>,
    rest: Nanos,
    mut look: impl FnMut(&Driver<W>),
) -> Driven<W> {
    let policy = named(scenario, name);
    let mut setup = Setup::new(scenario, &*policy).unwrap();
    let world = world(&setup);
    let what_if = predictor(
        Timeline::new(setup.gmg.publish(), Roofline::default(), Horizon::secs(2))
            .launched_window(WorldOptions::default().launched_window),
    );
    let options = DriverOptions { shares_slots: true, explain: Some(EXPLAINED), ..DriverOptions::default() };
    let mut driver = Driver::new(setup.gmg, setup.batching, policy, what_if, world, options).unwrap();
    driver.prefetch(setup.prefetch, &mut Nobody).unwrap();
    let (mut arrivals, mut backlogs) = (Vec::new(), Vec::new());
    for (index, tenant) in (0..scenario.tenants.len()).zip((0..).map(TenantId)) {
        match scenario.requests(index).unwrap().unwrap() {
            Source::Arrivals(stream) => arrivals.extend(stream.map(|record| (record.unwrap(), tenant))),
            Source::Backlog { requests, .. } => backlogs.push((requests, tenant)),
        }
    }
    arrivals.sort_by_key(|(record, tenant)| (record.at, *tenant));
    let mut arrivals = arrivals.into_iter().peekable();
    let mut run = Driven { driver, submitted: Vec::new(), completed: Vec::new(), lost: Vec::new() };
    let (mut now, end) = (Nanos::ZERO, scenario.duration);
    while now < end + rest {
        for (requests, tenant) in backlogs.iter_mut().filter(|_| now < end) {
            while run.driver.batching()[tenant.index()].has_room() {
                let (prompt, output) = requests.next().unwrap();
                let record = ArrivalRecord { at: now, prompt, output, prefix: None };
                let id = run.submit(*tenant, record);
                if run.driver.gmg().view().request(id).is_none() {
                    break;
                }
            }
        }
        if !backlogs.is_empty() && now < end {
            look(&run.driver);
        }
        let next = arrivals.peek().map_or(end + rest, |(record, _)| record.at);
        now = run.driver.step(next, &mut Nobody).unwrap();
        while let Some((record, tenant)) = arrivals.next_if(|(record, _)| record.at <= now) {
            let prefix = prefixes(run.submitted.len() as u64, record.prompt);
            let prefix = scenario.tenants[tenant.index()].prefix_caching.then_some(prefix);
            run.submit(tenant, ArrivalRecord { prefix, ..record });
        }
        run.driver.take_completed(&mut run.completed);
        run.driver.take_lost(&mut run.lost);
        look(&run.driver);
    }
    run
}

impl<W: ReplayWorld> Driven<W> {
    fn submit(&mut self, tenant: TenantId, record: ArrivalRecord) -> RequestId {
        let ArrivalRecord { at: arrival, prompt, ref prefix, .. } = record;
        let block_tokens = self.driver.batching()[tenant.index()].options().block_tokens;
        let hashes = prefix.as_ref().map(|prefix| prefix.hashes(prompt, block_tokens)).unwrap_or_default();
        let id = self.driver.gmg().next_request_id();
        self.driver.world_mut().prepare(id, tenant, &record).unwrap();
        let request = NewRequest { tenant, arrival, prompt, max_output: u32::MAX };
        self.driver.submit(Arrival::from(request).hashes(hashes), &mut Nobody).unwrap();
        self.submitted.push(id);
        id
    }
}
