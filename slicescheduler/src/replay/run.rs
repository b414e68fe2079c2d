//! One policy, from the first arrival to the last answer.

use std::sync::Arc;

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::id::{RequestId, TenantId};
use slicescheduler_gmg::plan::{Clock, World, WorldError};
use slicescheduler_gmg::tenant::{Class, Slo};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_scheduler::batching::Batcher;
use slicescheduler_scheduler::policy::Policy;
use slicescheduler_simulator::interference::Rate;
use slicescheduler_simulator::timeline::{Horizon, Timeline};
use slicescheduler_simulator::world::{SimWorld, WorldCost, WorldOptions};

use crate::alone::RelativeLevels;
use crate::driver::{Arrival, Driver, DriverError, DriverOptions};
use crate::learned::Learned;
use crate::replay::{ForecastOptions, Progress, Recorder, ReplayError, ReplayOptions};
use crate::report::RunRecord;
use crate::scenario::{BacklogRequests, Scenario, Source};
use crate::setup::Setup;
use crate::workload::{ArrivalRecord, ArrivalStream};

/// A world that is told beforehand what only the world may know: how long answers will be.
pub trait ReplayWorld: World {
    /// The next request will be this one: a prompt that begins as those of the same [prefix](ArrivalRecord::prefix)
    /// do, and so many output tokens.
    ///
    /// # Errors
    /// If the world cannot take it.
    fn prepare(&mut self, request: RequestId, tenant: TenantId, record: &ArrivalRecord) -> Result<(), WorldError>;

    /// A request has ended.
    fn forget(&mut self, request: RequestId);
}

impl ReplayWorld for SimWorld {
    fn prepare(&mut self, request: RequestId, _tenant: TenantId, record: &ArrivalRecord) -> Result<(), WorldError> {
        self.reveal(request, record.output);
        Ok(())
    }

    fn forget(&mut self, request: RequestId) {
        SimWorld::forget(self, request);
    }
}

/// After the last arrival, latency-sensitive requests get this long to end.
const DRAIN: Nanos = Nanos::secs(60);

/// Decisions and requests that are remembered where requests are explained.
const REMEMBERED: usize = 1 << 16;

/// Steps of progress per run.
const PROGRESS_STEPS: u64 = 200;

/// Runs one policy on a simulated cluster.
///
/// # Errors
/// If the scenario is impossible or a trace is damaged.
pub fn simulate(
    scenario: &Scenario,
    policy: Box<dyn Policy>,
    options: &ReplayOptions,
    progress: &mut dyn Progress,
) -> Result<RunRecord, ReplayError> {
    let setup = Setup::new(scenario, &*policy)?;
    let cluster = Arc::new(setup.gmg.view().cluster().clone());
    let world_options = WorldOptions { seed: scenario.seed, ..options.world };
    let mut world = SimWorld::new(cluster, Box::new(WorldCost::default()), world_options);
    for slow in &options.slowdowns {
        let last = (scenario.cluster.devices().count() as u32).saturating_sub(1);
        if slow.device.0 > last {
            return Err(ReplayError::NoSuchDevice { device: slow.device.0, last });
        }
        world.set_speed(slow.from, slow.device, Rate::of(u64::from(slow.percent), 100));
        world.set_speed(slow.until, slow.device, Rate::ONE);
    }
    let how = Run {
        launched_window: world_options.launched_window,
        forecast: options.forecast.clone(),
        stopwatch: options.stopwatch.clone(),
        shares_slots: true,
        learned: None,
        explain: options.explain,
    };
    run_policy(scenario, policy, setup, world, &how, progress).map(|(run, _)| run)
}

/// The arrivals of one tenant.
struct Arrivals {
    tenant: TenantId,
    stream: ArrivalStream,
    next: Option<ArrivalRecord>,
}

/// A backlog that is topped up as requests are taken.
struct Backlog {
    tenant: TenantId,
    requests: BacklogRequests,
}

struct Feed {
    arrivals: Vec<Arrivals>,
    backlogs: Vec<Backlog>,
    levels: RelativeLevels,
}

impl Feed {
    fn new(scenario: &Scenario, levels: RelativeLevels) -> Result<Self, ReplayError> {
        let mut feed = Self { arrivals: Vec::new(), backlogs: Vec::new(), levels };
        for index in 0..scenario.tenants.len() {
            let tenant = TenantId(index as u32);
            match scenario.requests(index)? {
                Some(Source::Arrivals(mut stream)) => {
                    let next = stream.next().transpose()?;
                    feed.arrivals.push(Arrivals { tenant, stream, next });
                }
                Some(Source::Backlog { requests, .. }) => feed.backlogs.push(Backlog { tenant, requests }),
                None => {}
            }
        }
        Ok(feed)
    }

    /// The time of the next arrival.
    fn next_at(&self) -> Nanos {
        self.arrivals
            .iter()
            .filter_map(|arrivals| arrivals.next.as_ref())
            .map(|next| next.at)
            .min()
            .unwrap_or(Nanos::MAX)
    }

    /// The next arrival that is not after `now`.
    fn pop(&mut self, now: Nanos) -> Result<Option<(TenantId, ArrivalRecord)>, ReplayError> {
        let due = self.arrivals.iter_mut().filter(|arrivals| arrivals.next.as_ref().is_some_and(|next| next.at <= now));
        let Some(first) = due.min_by_key(|arrivals| (arrivals.next.as_ref().map(|next| next.at), arrivals.tenant))
        else {
            return Ok(None);
        };
        let record = first.next.take();
        first.next = first.stream.next().transpose()?;
        Ok(record.map(|record| (first.tenant, record)))
    }
}

/// How a policy is run, whatever the world is.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Operators that start within this time after a recall still run.
    pub launched_window: Nanos,
    /// What the policy asks.
    pub forecast: ForecastOptions,
    /// Measures decisions.
    pub stopwatch: Option<Arc<dyn Clock>>,
    /// True if the world can have KV blocks in the part of a device for weights.
    pub shares_slots: bool,
    /// Learns from the run; its predictions become figures, and so do forecasts of memory. Forecasts go by it if it is
    /// their cost model.
    pub learned: Option<Learned>,
    /// How many requests that violated their service level are explained in the record: those that violated it most.
    pub explain: usize,
}

/// Runs one policy over any world, and gives the world back.
///
/// # Errors
/// If a trace is damaged or the world is broken.
pub fn run_policy<W: ReplayWorld>(
    scenario: &Scenario,
    policy: Box<dyn Policy>,
    setup: Setup,
    world: W,
    how: &Run,
    progress: &mut dyn Progress,
) -> Result<(RunRecord, W), ReplayError> {
    let stopwatch = how.stopwatch.clone();
    let begun = stopwatch.as_ref().map(|stopwatch| stopwatch.now());
    let name = policy.name();
    let ForecastOptions { cost, horizon, whole_cluster } = how.forecast.clone();
    let mut recorder = Recorder::new(scenario, setup.gmg.view())
        .learning(how.learned.clone())
        .covering(cost.clone())
        .explaining(how.explain);
    let what_if = Timeline::of(setup.gmg.view(), cost, Horizon(horizon));
    let what_if = what_if.launched_window(how.launched_window).whole_cluster(whole_cluster);
    let options = DriverOptions {
        stopwatch: stopwatch.clone(),
        shares_slots: how.shares_slots,
        forecasts_memory: how.learned.is_some(),
        explain: (how.explain > 0).then_some(REMEMBERED),
        ..DriverOptions::default()
    };
    let mut driver = Driver::new(setup.gmg, setup.batching, policy, Box::new(what_if), world, options)?;
    driver.prefetch(setup.prefetch, &mut recorder)?;
    let mut feed = Feed::new(scenario, setup.levels)?;
    let end = scenario.duration;
    let mut now = Nanos::ZERO;
    let mut shown = Nanos::ZERO;
    while now < end {
        top_up(&mut driver, &mut feed, now, &mut recorder)?;
        now = driver.step(feed.next_at().min(end), &mut recorder)?;
        while let Some((tenant, record)) = feed.pop(now)? {
            let level = feed.levels.of(tenant, record.prompt);
            enter(&mut driver, (tenant, level), record, &mut recorder)?;
        }
        settle(&mut driver, &mut recorder);
        if now >= shown {
            progress.advance(name, now.min(end), end);
            shown = now + end.scale(1, PROGRESS_STEPS);
        }
    }
    recorder.close_window();
    while now < end + DRAIN && latency_sensitive_left(&driver) {
        now = driver.step(end + DRAIN, &mut recorder)?;
        settle(&mut driver, &mut recorder);
    }
    progress.advance(name, end, end);
    let wall = begun.zip(stopwatch).map(|(begun, stopwatch)| stopwatch.now() - begun);
    let record = recorder.finish(name, &driver, wall);
    Ok((record, driver.into_world()))
}

fn enter<W: ReplayWorld>(
    driver: &mut Driver<W>,
    (tenant, level): (TenantId, Option<Slo>),
    record: ArrivalRecord,
    recorder: &mut Recorder,
) -> Result<RequestId, ReplayError> {
    let ArrivalRecord { at: arrival, prompt, ref prefix, .. } = record;
    let batcher = driver.batching().get(tenant.index()).filter(|batcher| batcher.shares_blocks());
    let hashes =
        batcher.zip(prefix.as_ref()).map(|(batcher, prefix)| prefix.hashes(prompt, batcher.options().block_tokens));
    let id = driver.gmg().next_request_id();
    driver.world_mut().prepare(id, tenant, &record).map_err(DriverError::World)?;
    recorder.arrived(tenant, arrival);
    let request = NewRequest { tenant, arrival, prompt, max_output: u32::MAX };
    Ok(driver.submit(Arrival::from(request).slo(level).hashes(hashes.unwrap_or_default()), recorder)?)
}

/// Fills every backlog's window. A request that is lost at once leaves its place empty until the next
/// event: a backlog has no end, and it may be that none of its requests can be served.
fn top_up<W: ReplayWorld>(
    driver: &mut Driver<W>,
    feed: &mut Feed,
    now: Nanos,
    recorder: &mut Recorder,
) -> Result<(), ReplayError> {
    let Feed { backlogs, levels, .. } = feed;
    for Backlog { tenant, requests } in backlogs {
        while driver.batching().get(tenant.index()).is_some_and(Batcher::has_room) {
            let Some((prompt, output)) = requests.next() else { break };
            let level = levels.of(*tenant, prompt);
            let record = ArrivalRecord { at: now, prompt, output, prefix: None };
            let id = enter(driver, (*tenant, level), record, recorder)?;
            if driver.gmg().view().request(id).is_none() {
                break;
            }
        }
    }
    Ok(())
}

fn settle<W: ReplayWorld>(driver: &mut Driver<W>, recorder: &mut Recorder) {
    let (mut completed, mut lost) = recorder.buffers();
    driver.take_completed(&mut completed);
    driver.take_lost(&mut lost);
    for done in &completed {
        driver.world_mut().forget(done.request);
    }
    for gone in &lost {
        driver.world_mut().forget(gone.request);
    }
    recorder.explain(&completed, |request| driver.explain(request));
    recorder.settle(completed, lost);
}

fn latency_sensitive_left<W: ReplayWorld>(driver: &Driver<W>) -> bool {
    let view = driver.gmg().view();
    driver.batching().iter().any(|batcher| {
        let sensitive = view.tenant(batcher.tenant()).is_some_and(|tenant| tenant.class == Class::LatencySensitive);
        let running = || batcher.replicas().iter().any(|replica| !replica.running().is_empty());
        sensitive && (!batcher.waiting().is_empty() || running())
    })
}
