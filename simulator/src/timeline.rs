//! The forecast of a graph, kept up to date delta by delta.
//!
//! A [`Timeline`] mirrors what questions need to know: the queues of the lanes with the durations of
//! their jobs, the bytes of the devices, where weights and sequences lie. A question is answered by
//! running the [engine](crate::engine) on the mirror plus the actions of the question.
//!
//! **What is simulated.** Lanes are exclusive and transfers belong to their device, so work on one
//! lane does not change what happens on another unless an edge says so, or a gang is on both. A question is therefore
//! answered on the lanes that its actions and continuations name, and on those that these wait for,
//! with the memory of their devices. A question without actions and continuations is answered for
//! the whole cluster.
//!
//! **What is kept.** [`Timeline::unroll`] gives the future of the whole cluster, one future per device
//! behind a shared reference. A question to it computes the devices that it touches; observing a
//! delta makes the devices outdated that the delta touches.
//!
//! **What is assumed.** Work that was cut goes on as soon as its lane has nothing of a higher rank.
//! What should have ended by now and was not reported ends now. Continuations submit at once.
//! Work is dispatched at the time of the latest report: who plans at another time reports a timer
//! first. A recall that was ordered and not yet reported is unknown here.

mod gangs;
mod growth;
mod lanes;
mod mirror;
mod outcome;
mod part;
mod pieces;
mod scratch;
mod simulation;
mod slices;
mod unrolled;

pub use growth::KvGrowth;
pub use outcome::{Outcome, Slack};
pub use slices::Slices;
pub use unrolled::{Continuations, TimelineMark, TimelineTrial, Unrolled};

use std::sync::Arc;

use slicescheduler_gmg::delta::Applied;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, RequestId, TenantId, Version};
use slicescheduler_gmg::plan::{Action, Forecast, Question, WhatIf, WhatIfError, Work};
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_gmg::{GmgView, Snapshot, View};

use crate::cost::CostModel;
use growth::Completions;
use mirror::{JobMirror, Mirror};
use scratch::Scratch;
use simulation::Simulation;

/// How far ahead a timeline looks, counted from the moment of the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Horizon(pub Nanos);

impl Horizon {
    /// `n` seconds.
    pub const fn secs(n: u64) -> Self {
        Self(Nanos::secs(n))
    }

    /// `n` milliseconds.
    pub const fn ms(n: u64) -> Self {
        Self(Nanos::ms(n))
    }
}

/// The forecast of one graph.
///
/// As [`WhatIf`] it serves a policy's inner loop: answers go into a reused buffer, and nothing is
/// allocated in steady state. For people who plan by hand there are methods that give owned
/// answers: [`ask`](Self::ask), [`finish`](Self::finish), [`slices`](Self::slices). These assume
/// that operators which nobody has placed run on the lowest device that has their weights.
#[derive(Debug)]
pub struct Timeline {
    mirror: Mirror,
    scratch: Scratch,
    horizon: Horizon,
    window: Nanos,
    /// Every question is answered by simulating the whole cluster.
    whole_cluster: bool,
    /// What happens without any action, and the version and time it holds for.
    kept: Option<Outcome>,
    /// By device: the version of the last delta that touched it.
    touched: Vec<Version>,
    completions: Completions,
}

impl Timeline {
    /// The forecast of a published graph, at time zero or wherever [`at`](Self::at) says.
    pub fn new(snapshot: Snapshot, cost: impl CostModel + 'static, horizon: Horizon) -> Self {
        Self::of(snapshot.view(), Arc::new(cost), horizon)
    }

    /// The forecast of the graph behind `view`.
    pub fn of(view: View<'_>, cost: Arc<dyn CostModel>, horizon: Horizon) -> Self {
        let mirror = Mirror::new(view, cost);
        let touched = vec![mirror.version; mirror.devices.len()];
        let (scratch, completions) = (Scratch::default(), Completions::default());
        let (window, whole_cluster) = (Nanos::ZERO, false);
        Self { mirror, scratch, horizon, window, whole_cluster, kept: None, touched, completions }
    }

    /// Says that it is `now`. What the graph calls dispatched without saying when is taken to be
    /// dispatched now. Later reports move the time on by themselves.
    #[must_use]
    pub fn at(mut self, now: Nanos) -> Self {
        self.mirror.start_at(now);
        self.kept = None;
        self
    }

    /// Says that whoever executes launches `window` ahead: a cut happens at the first operator
    /// boundary that is not before its end.
    #[must_use]
    pub fn launched_window(mut self, window: Nanos) -> Self {
        self.window = window;
        self.kept = None;
        self
    }

    /// Answers the questions of a [`WhatIf`] by simulating the whole cluster instead of what a question touches. Answers
    /// are about the devices that the question touches as before, and equal where these have one lane each; they
    /// cost what the cluster is large. For comparison.
    #[must_use]
    pub fn whole_cluster(mut self, whole_cluster: bool) -> Self {
        self.whole_cluster = whole_cluster;
        self
    }

    /// Takes durations from another model from now on, such as one that a
    /// [`Calibration`](crate::calibration::Calibration) published. A model that changes its version by itself is
    /// followed without this. Every future that was unrolled before has to be
    /// [folded in](Self::fold_in). O(work on all lanes), at the next question.
    pub fn set_cost(&mut self, cost: Arc<dyn CostModel>) {
        self.mirror.set_cost(cost);
        self.kept = None;
    }

    /// Forgets what rests on durations that have changed.
    fn follow_costs(&mut self) {
        if self.mirror.follow_costs() {
            self.kept = None;
        }
    }

    /// The time of the latest report.
    pub fn now(&self) -> Nanos {
        self.mirror.clock
    }

    /// What would happen if `actions` were carried out now, and everything else went on as it is.
    ///
    /// ```
    /// # use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
    /// # use slicescheduler_gmg::job::JobSpec;
    /// # use slicescheduler_gmg::shape::Binding;
    /// # use slicescheduler_gmg::templates::{self, DenseSpec};
    /// # use slicescheduler_gmg::units::Nanos;
    /// # use slicescheduler_gmg::{Container, Gmg, Model, Tenant};
    /// # use slicescheduler_simulator::{Horizon, Roofline, Timeline};
    /// use slicescheduler_gmg::id::{DeviceId, LaneId};
    /// use slicescheduler_gmg::plan::Action;
    ///
    /// # let cluster = Cluster::builder().node("a", |n| n.devices(2, DeviceSpec::h100_sxm())).build()?;
    /// # let mut gmg = Gmg::new(cluster);
    /// # let chat = gmg.add_tenant(Tenant::latency_sensitive("chat"))?;
    /// # let model = Model::new("llama3-8b", templates::dense(&DenseSpec::llama3_8b())?.into());
    /// # let model = gmg.add_model(chat, model, Container::replicas([0, 1]))?;
    /// # let first = gmg.submit(JobSpec::of(model).bind(Binding::iteration(2048, 1, 2048, 2_098_176)))?;
    /// # let second = gmg.submit(JobSpec::of(model).bind(Binding::iteration(2048, 1, 2048, 2_098_176)))?;
    /// # let ops = gmg.view().models()[0].template.op_count();
    /// # use slicescheduler_gmg::GmgView;
    /// let mut timeline = Timeline::new(gmg.publish(), Roofline::default(), Horizon::secs(2));
    /// let there = timeline.ask(&[Action::run(second, 0..ops, LaneId::new(DeviceId(1), 0))])?;
    /// assert!(there.finish(second) < timeline.finish(second));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When an action names something that does not exist, or cannot be carried out.
    pub fn ask(&mut self, actions: &[Action]) -> Result<Outcome, WhatIfError> {
        self.follow_costs();
        let mut all = actions.to_vec();
        self.place_the_rest(&mut all);
        self.simulate(&all)
    }

    /// What would happen to the whole cluster.
    fn simulate(&mut self, actions: &[Action]) -> Result<Outcome, WhatIfError> {
        let now = self.mirror.clock;
        let mut outcome = Outcome::default();
        let mut simulation = Simulation::new(&self.mirror, &mut self.scratch, actions, now, self.window);
        simulation.add_all_lanes();
        simulation.carry_out_actions()?;
        simulation.run(now + self.horizon.0, &mut []);
        simulation.answer(&mut outcome.forecast);
        Ok(outcome)
    }

    /// What happens without any action. Computed once per version.
    pub fn forecast(&mut self) -> &Forecast {
        let current = self
            .kept
            .take()
            .filter(|kept| (kept.forecast.version, kept.forecast.now) == (self.mirror.version, self.mirror.clock));
        // Nothing can be refused but unplaced work whose home cannot take it; it is left out then.
        let all = |timeline: &mut Self| timeline.ask(&[]).or_else(|_| timeline.simulate(&[])).unwrap_or_default();
        let kept = current.unwrap_or_else(|| all(self));
        &self.kept.insert(kept).forecast
    }

    /// When the last work of `job` finishes; [`Nanos::MAX`] if not before the horizon.
    pub fn finish(&mut self, job: JobId) -> Nanos {
        self.forecast().finish_of_job(job).unwrap_or(Nanos::MAX)
    }

    /// The most bytes in use on `device` at one time.
    pub fn peak(&mut self, device: DeviceId) -> Bytes {
        self.forecast().peak(device)
    }

    /// The idle intervals of all lanes up to the horizon. Free bytes are those that stay free over
    /// the whole forecast.
    pub fn slices(&mut self) -> Slices {
        let horizon = self.mirror.clock + self.horizon.0;
        self.forecast();
        let forecast = self.kept.take().unwrap_or_default();
        let free = |lane: LaneId| {
            let device = self.mirror.devices.get(lane.device.index());
            let usable = device.map_or(Bytes::ZERO, |device| device.memory.free() + device.memory.total());
            usable - forecast.forecast.peak(lane.device)
        };
        let usable = |lane: &LaneId| self.mirror.devices.get(lane.device.index()).is_some_and(|device| !device.lost);
        let lanes = self.mirror.lanes.iter().map(|lane| lane.id).filter(usable);
        let slices = Slices::of(&forecast.forecast, lanes, horizon, free);
        self.kept = Some(forecast);
        slices
    }

    /// The due time of the next token of `request` minus the time at which it is forecast; [`None`]
    /// if the request has no due times or no work before the horizon will emit a token of it.
    /// `view` is the graph at the version of this timeline.
    pub fn slack(&mut self, view: View<'_>, request: RequestId) -> Option<Slack> {
        let asked = view.request(request).filter(|asked| asked.slo.is_some())?;
        let next = self.forecast().runs.iter().filter_map(|run| {
            let job = view.job(run.job?)?;
            let row = job.spec.rows.iter().find(|row| row.request == request && row.emits)?;
            // The last of the row's tokens gives output token 0 if it is the last of the prompt.
            let token = (row.position + row.tokens).saturating_sub(asked.prompt);
            Some((token, run.finish))
        });
        // An emission is complete with the last piece of its job.
        let (token, finish) = next.min_by_key(|&(token, finish)| (token, std::cmp::Reverse(finish)))?;
        Some(Slack::between(finish, asked.due(token)))
    }

    /// Appends what nobody has placed: it runs at home, behind everything else of its rank, and
    /// behind the jobs that it waits for.
    fn place_the_rest(&self, actions: &mut Vec<Action>) {
        let mut left: Vec<_> = self.mirror.jobs().filter(|job| job.alive && job.progress < job.op_count()).collect();
        while !left.is_empty() {
            let waiting: Vec<_> = left.iter().map(|job| job.id).collect();
            let blocked = |job: &&JobMirror| job.spec.after.iter().any(|other| waiting.contains(other));
            let (mut rest, mut next): (Vec<_>, Vec<_>) = left.into_iter().partition(blocked);
            if next.is_empty() {
                std::mem::swap(&mut rest, &mut next);
            }
            next.into_iter().for_each(|job| self.place_at_home(job, actions));
            left = rest;
        }
    }

    fn place_at_home(&self, job: &JobMirror, actions: &mut Vec<Action>) {
        let queued = self.mirror.lanes.iter().flat_map(|lane| &lane.entries);
        let mut placed: Vec<_> = queued.filter(|entry| entry.job == job.id).map(|entry| entry.ops.clone()).collect();
        placed.extend(actions.iter().filter_map(|action| match action {
            Action::Run { work: Work::Existing { job: other, ops }, .. } if *other == job.id => Some(ops.clone()),
            _ => None,
        }));
        placed.sort_unstable_by_key(|ops| ops.start);
        let home = job.arena.map(|(device, _)| device).or_else(|| self.mirror.home(&job.spec));
        let Some(device) = home else { return };
        let rank = self.mirror.rank(job.spec.model, device);
        let lane = job.lane.filter(|lane| lane.device == device).unwrap_or(LaneId::new(device, 0));
        let mut place = |ops: std::ops::Range<u32>| {
            if ops.start < ops.end {
                actions.push(Action::run(job.id, ops, lane).with_rank(rank));
            }
        };
        let mut next = job.progress;
        for ops in placed {
            place(next..ops.start);
            next = next.max(ops.end);
        }
        place(next..job.op_count());
    }
}

impl WhatIf for Timeline {
    fn version(&self) -> Version {
        self.mirror.version
    }

    /// O(what the delta touched).
    fn observe(&mut self, applied: &Applied, view: View<'_>) -> Result<(), WhatIfError> {
        let seen = self.mirror.version;
        if applied.version.0 != seen.0 + 1 {
            return Err(WhatIfError::Gap { seen, next: applied.version });
        }
        self.kept = None;
        if self.mirror.follow_costs() {
            self.touched.fill(applied.version);
        }
        self.completions.observe(applied, view);
        self.mirror.touched_by(applied, view).mark(&mut self.touched, applied.version);
        self.mirror.observe(applied, view, &mut self.scratch.engine);
        Ok(())
    }

    /// O(work on the lanes that are simulated), as the [module](self) says.
    fn what_if(&mut self, now: Nanos, question: Question<'_>, answer: &mut Forecast) -> Result<(), WhatIfError> {
        let Question { actions, continuations, horizon } = question;
        self.follow_costs();
        let mut simulation = Simulation::new(&self.mirror, &mut self.scratch, actions, now, self.window);
        if actions.is_empty() && continuations.is_empty() {
            simulation.add_all_lanes();
        }
        simulation.carry_out_actions()?;
        simulation.watch(continuations);
        if self.whole_cluster {
            let asked = simulation.devices_in_use();
            simulation.add_all_lanes();
            simulation.run(horizon, continuations);
            simulation.leave_out_all_but(asked);
        } else {
            simulation.run(horizon, continuations);
        }
        simulation.answer(answer);
        Ok(())
    }

    fn output_bound(&self, tenant: TenantId, produced: u32, alpha_percent: u32) -> Option<u32> {
        self.completions.bound(tenant, produced, alpha_percent)
    }
}
