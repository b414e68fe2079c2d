//! The loop: one owner of the graph, one pass per event.
//!
//! ```text
//! world.poll -> event -> gmg.apply -> what_if.observe -> batching -> policy.on_event
//!                                                                         |
//! world.enqueue <- gmg.accept (reserves, drops what is stale) <- batching (forms batches)
//! ```
//!
//! The driver owns the graph; nothing else writes it. It has no thread and no clock: whoever calls
//! [`Driver::step`] lends both. A pass is deterministic, so a replay with one seed is one sequence
//! of decisions.

mod arrivals;
mod carry_out;
mod ending;
mod error;
mod losses;
mod measure;
mod prefixes;

use std::sync::Arc;

use slicescheduler_gmg::id::{DeviceId, JobId, JobKey, RequestId};
use slicescheduler_gmg::job::Job;
use slicescheduler_gmg::plan::{Action, Clock, Ended, Event, Failure, Observer, Plan, WhatIf, World};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{Applied, Delta, Effect, Gmg, GmgView, Intent};
use slicescheduler_scheduler::admission::Admission;
use slicescheduler_scheduler::batching::{Batcher, Completed};
use slicescheduler_scheduler::check_plan;
use slicescheduler_scheduler::demand::OnGraph;
use slicescheduler_scheduler::explain::{DecisionLog, Explain, Explanation};
use slicescheduler_scheduler::policy::{Budget, Context, Policy};

pub use arrivals::Arrival;
pub use error::{DriverError, RequestError};
pub use losses::Lost;
pub use measure::{DecisionTimes, MeasuredWhatIf};

/// How the loop is set up.
#[derive(Clone, Debug)]
pub struct DriverOptions {
    /// What one decision may cost.
    pub budget: Budget,
    /// Measures decisions; without it none is measured.
    pub stopwatch: Option<Arc<dyn Clock>>,
    /// True if the world can have KV blocks in the part of a device for weights, and move what they hold.
    pub shares_slots: bool,
    /// Forecasts the memory of devices before each action is carried out, so that
    /// [`MeasuredWhatIf::peak`] can be held against what was used. It costs a question each.
    pub forecasts_memory: bool,
    /// Which requests are taken in.
    pub admission: Admission,
    /// How many decisions and requests to remember for [`Driver::explain`]; nothing is if absent.
    pub explain: Option<usize>,
}

impl Default for DriverOptions {
    fn default() -> Self {
        Self {
            budget: Budget::evaluations(64),
            stopwatch: None,
            shares_slots: false,
            forecasts_memory: false,
            admission: Admission::default(),
            explain: None,
        }
    }
}

/// Counts of what should be rare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Owners that were short of memory because of guests' bytes.
    pub memory_violations: u64,
    /// Observations that contradicted the graph.
    pub divergences: u64,
    /// Actions that were stale or did not fit.
    pub dropped: u64,
    /// Jobs that were cut at an operator boundary.
    pub recalls: u64,
}

/// The owner of the graph and its loop.
pub struct Driver<W> {
    gmg: Gmg,
    batching: Vec<Batcher>,
    policy: Box<dyn Policy>,
    what_if: MeasuredWhatIf,
    world: W,
    budget: Budget,
    stopwatch: Option<Arc<dyn Clock>>,
    shares_slots: bool,
    forecasts_memory: bool,
    admission: Admission,
    log: Option<DecisionLog>,
    /// By tenant: the devices of its container.
    homes: Vec<Vec<DeviceId>>,
    /// Decisions that asked at least two questions.
    searches: DecisionTimes,
    decisions: DecisionTimes,
    now: Nanos,
    wake_at: Option<Nanos>,
    counters: Counters,
    completed: Vec<Completed>,
    lost: Vec<Lost>,
    events: Vec<Event>,
    preempted: Vec<(RequestId, DeviceId)>,
    /// Iterations that failed on one rank while others are on their lanes.
    failing: Vec<(JobKey, Failure)>,
    /// Withdrawn, and part of an iteration under way.
    cancelled: Vec<RequestId>,
}

impl<W: World> Driver<W> {
    /// A loop over `world`. `batching` has one entry per tenant of the graph, in the order of their
    /// ids; `what_if` must have seen the graph as it is.
    ///
    /// # Errors
    /// If the number of batchers is not the number of tenants, or the forecast is of another
    /// version.
    pub fn new(
        gmg: Gmg,
        batching: Vec<Batcher>,
        policy: Box<dyn Policy>,
        what_if: Box<dyn WhatIf + Send>,
        world: W,
        options: DriverOptions,
    ) -> Result<Self, DriverError> {
        let tenants = gmg.view().tenants().len();
        if batching.len() != tenants {
            return Err(DriverError::Batching { batchers: batching.len(), tenants });
        }
        if what_if.version() != gmg.version() {
            return Err(DriverError::Stale { forecast: what_if.version(), graph: gmg.version() });
        }
        let mut homes = vec![Vec::new(); tenants];
        for device in (0..gmg.view().cluster().devices().len() as u32).map(DeviceId) {
            if let Some(homes) = gmg.view().owner(device).and_then(|owner| homes.get_mut(owner.index())) {
                homes.push(device);
            }
        }
        Ok(Self {
            gmg,
            homes,
            searches: DecisionTimes::default(),
            batching,
            policy,
            what_if: MeasuredWhatIf::new(what_if, options.stopwatch.clone()),
            world,
            budget: options.budget,
            stopwatch: options.stopwatch,
            shares_slots: options.shares_slots,
            forecasts_memory: options.forecasts_memory,
            admission: options.admission,
            log: options.explain.map(DecisionLog::new),
            decisions: DecisionTimes::default(),
            now: Nanos::ZERO,
            wake_at: None,
            counters: Counters::default(),
            completed: Vec::new(),
            lost: Vec::new(),
            events: Vec::new(),
            preempted: Vec::new(),
            failing: Vec::new(),
            cancelled: Vec::new(),
        })
    }

    /// The graph.
    pub fn gmg(&self) -> &Gmg {
        &self.gmg
    }

    /// What the tenants want to run.
    pub fn batching(&self) -> &[Batcher] {
        &self.batching
    }

    /// The world.
    pub fn world(&self) -> &W {
        &self.world
    }

    /// The world, for what only its owner may tell it.
    pub fn world_mut(&mut self) -> &mut W {
        &mut self.world
    }

    /// Ends the loop and gives the world back.
    pub fn into_world(self) -> W {
        self.world
    }

    /// The time of the latest pass.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Counts of what should be rare.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How long decisions took.
    pub fn decisions(&self) -> &DecisionTimes {
        &self.decisions
    }

    /// Forgets how long decisions took so far.
    pub fn forget_times(&mut self) {
        (self.decisions, self.searches) = (DecisionTimes::default(), DecisionTimes::default());
    }

    /// How long those decisions took that compared at least two futures.
    pub fn searches(&self) -> &DecisionTimes {
        &self.searches
    }

    /// The latest decisions, if they are remembered.
    pub fn log(&self) -> Option<&DecisionLog> {
        self.log.as_ref()
    }

    /// What delayed a request; [`None`] if that is not remembered.
    pub fn explain(&self, request: RequestId) -> Option<Explanation> {
        self.log.as_ref()?.explain(request)
    }

    /// True if memory is forecast before each action is carried out.
    pub fn forecasts_memory(&self) -> bool {
        self.forecasts_memory
    }

    /// What forecasts cost.
    pub fn forecasts(&self) -> &MeasuredWhatIf {
        &self.what_if
    }

    /// Requests that completed since the last call.
    pub fn take_completed(&mut self, into: &mut Vec<Completed>) {
        into.append(&mut self.completed);
    }

    /// Requests that ended without their answer since the last call.
    pub fn take_lost(&mut self, into: &mut Vec<Lost>) {
        into.append(&mut self.lost);
    }

    /// True if nothing runs and nothing waits.
    pub fn is_idle(&self) -> bool {
        let busy = |batcher: &Batcher| {
            !batcher.waiting().is_empty() || batcher.replicas().iter().any(|replica| !replica.running().is_empty())
        };
        self.world.is_idle() && !self.batching.iter().any(busy)
    }

    /// Brings the weights of every guest of the policy's residency to its device. Call it once,
    /// before the first request.
    ///
    /// # Errors
    /// If the world is broken.
    pub fn prefetch(&mut self, actions: Vec<Action>, observer: &mut dyn Observer) -> Result<(), DriverError> {
        let mut plan = Plan::nothing(self.gmg.version());
        plan.actions.extend(actions);
        self.carry_out(plan, observer)
    }

    /// Waits for the world until `until` and makes a pass for everything that happened. Returns the
    /// time, which is before `until` if something happened earlier.
    ///
    /// # Errors
    /// If the world is broken. Failures of single jobs and devices are handled.
    pub fn step(&mut self, until: Nanos, observer: &mut dyn Observer) -> Result<Nanos, DriverError> {
        let until = self.wake_at.map_or(until, |wake| wake.min(until));
        let mut events = std::mem::take(&mut self.events);
        let now = self.world.poll(until, &mut events);
        let mut outcome = Ok(());
        for event in events.drain(..) {
            outcome = outcome.and_then(|()| self.pass(event, observer));
        }
        self.events = events;
        outcome?;
        self.now = self.now.max(now?);
        if self.wake_at.is_some_and(|wake| wake <= self.now) {
            self.wake_at = None;
            self.pass(Event::Timer { at: self.now }, observer)?;
        }
        Ok(self.now)
    }

    fn pass(&mut self, event: Event, observer: &mut dyn Observer) -> Result<(), DriverError> {
        self.now = self.now.max(event.at());
        self.publish_prefixes(&event)?;
        let Delta::Observed(event) = self.observe(event)?.delta else { return Ok(()) };
        observer.on_event(&event, self.gmg.view());
        if let Some(log) = &mut self.log {
            log.on_event(&event, self.gmg.view());
        }
        self.settle(&event)?;
        self.end_cancelled()?;
        self.decide(&event, observer)?;
        self.retire(&event)
    }

    /// Tells the graph and the forecast what happened, be it only that time has passed.
    fn observe(&mut self, event: Event) -> Result<Applied, DriverError> {
        let applied = self.gmg.apply(Delta::Observed(event))?;
        self.follow(&applied)?;
        self.counters.divergences += u64::from(matches!(applied.effect, Effect::Diverged(_)));
        Ok(applied)
    }

    fn follow(&mut self, applied: &Applied) -> Result<(), DriverError> {
        self.what_if.observe(applied, self.gmg.view())?;
        Ok(())
    }

    fn apply(&mut self, intent: Intent) -> Result<(), DriverError> {
        let applied = self.gmg.apply(intent)?;
        self.follow(&applied)
    }

    /// What an event means for batching.
    fn settle(&mut self, event: &Event) -> Result<(), DriverError> {
        match event {
            Event::Finished { job, ended, at, .. } => {
                self.finished(*job, ended, *at);
                self.end_failed(*job)
            }
            Event::Failed { job, failure, .. } => {
                let Some(key) = self.gmg.view().job(*job).map(|job| job.spec.key) else { return Ok(()) };
                self.failing.push((key, failure.clone()));
                self.end_failed(*job)
            }
            Event::DeviceLost { device, .. } => self.device_lost(*device),
            Event::Recalled { job, .. } => {
                self.counters.recalls += 1;
                self.end_failed(*job)
            }
            _ => Ok(()),
        }
    }

    fn finished(&mut self, id: JobId, ended: &[Ended], at: Nanos) {
        let view = self.gmg.view();
        // An iteration on several devices is over with its last rank; those before may have been removed.
        let is_done = |rank: &JobId| view.job(*rank).is_none_or(|rank| rank.segments.all_done());
        let over = |job: &&Job| is_done(&id) && job.gang.as_ref().is_none_or(|gang| gang.jobs().iter().all(is_done));
        let Some(job) = view.job(id).filter(over).map(|job| job.spec.clone()) else { return };
        if let Some(batcher) = self.batching.get_mut(job.key.tenant as usize) {
            batcher.complete(&job, ended, at, &mut self.completed);
        }
    }

    /// Removes from the graph what ended with an event, after everybody has seen it.
    fn retire(&mut self, event: &Event) -> Result<(), DriverError> {
        let Event::Finished { job, ended, .. } = event else { return Ok(()) };
        if self.gmg.view().job(*job).is_some_and(|job| job.segments.all_done()) {
            self.apply(Intent::Retire { job: *job })?;
        }
        for ended in ended {
            if self.gmg.view().request(ended.request).is_some() {
                self.apply(Intent::RetireRequest { request: ended.request })?;
            }
        }
        Ok(())
    }

    fn decide(&mut self, event: &Event, observer: &mut dyn Observer) -> Result<(), DriverError> {
        let asked = self.what_if.questions();
        let begun = self.stopwatch.as_ref().map(|stopwatch| stopwatch.now());
        let demand = OnGraph::new(&self.batching, self.gmg.view());
        let mut context = Context {
            now: self.now,
            view: self.gmg.view(),
            demand: &demand,
            what_if: &mut self.what_if,
            budget: self.budget,
            shares_slots: self.shares_slots,
            explain: self.log.as_mut().map(|log| log as &mut dyn Explain),
        };
        let plan = self.policy.on_event(&mut context, event);
        if let (Some(begun), Some(stopwatch)) = (begun, &self.stopwatch) {
            let time = stopwatch.now() - begun;
            self.decisions.record(time);
            if self.what_if.questions() >= asked + 2 {
                self.searches.record(time);
            }
        } else {
            self.decisions.count();
        }
        if cfg!(debug_assertions) {
            check_plan(self.gmg.view(), &demand, &plan)?;
        }
        let wake = plan.wake_at.map(|wake| wake.max(self.now));
        self.wake_at = wake.into_iter().chain(self.wake_at).min();
        self.carry_out(plan, observer)
    }
}
