//! Oracle: in a world without noise that runs on the predictor's own cost model, what was forecast
//! is what happens, to the nanosecond, whatever was submitted before and however it was cut.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;

use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::delta::Delta;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::{Action, Event, Fate, Forecast, Plan, Question, Rank, WhatIf, Work, World};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::templates::{DenseSpec, dense};
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_gmg::{Container, Gmg, GmgView, Model, Tenant};
use slicescheduler_simulator::world::{SimWorld, WorldOptions};
use slicescheduler_simulator::{Horizon, Roofline, Timeline};

const RANKS: [Rank; 4] = [Rank::GuestBestEffort, Rank::OwnerBestEffort, Rank::GuestLatency, Rank::OwnerLatency];
const WINDOW: Nanos = Nanos::us(300);

/// What happens after a pause.
#[derive(Clone, Debug)]
enum Step {
    Submit { device: u32, rank: usize, tokens: u64 },
    Recall { which: prop::sample::Index },
}

struct Driver {
    gmg: Gmg,
    world: SimWorld,
    timeline: Timeline,
    model: ModelId,
    ranks: HashMap<JobId, Rank>,
    finished: HashMap<JobId, (Nanos, Nanos)>,
    now: Nanos,
    /// The most bytes in use per device since last cleared.
    peaks: [Bytes; 2],
}

fn job(model: ModelId, tokens: u64) -> JobSpec {
    JobSpec::of(model).bind(Binding::iteration(tokens, 1, tokens, tokens * (tokens + 1) / 2))
}

impl Driver {
    fn new() -> Self {
        let cluster = Cluster::builder().node("a", |node| node.devices(2, DeviceSpec::h100_sxm())).build().unwrap();
        let mut gmg = Gmg::new(cluster.clone());
        let tenant = gmg.add_tenant(Tenant::latency_sensitive("chat")).unwrap();
        let model = Model::new("llama3-8b", dense(&DenseSpec::llama3_8b()).unwrap().into());
        let model = gmg.add_model(tenant, model, Container::replicas([0, 1])).unwrap();
        let quiet = WorldOptions {
            seed: 0,
            operator_noise: 0,
            iteration_noise: 0,
            launched_window: WINDOW,
            launch_gap: Nanos::ZERO,
        };
        let world = SimWorld::new(Arc::new(cluster), Box::new(Roofline::default()), quiet);
        let timeline = Timeline::new(gmg.publish(), Roofline::default(), Horizon::secs(1000)).launched_window(WINDOW);
        let (ranks, finished) = (HashMap::new(), HashMap::new());
        Self { gmg, world, timeline, model, ranks, finished, now: Nanos::ZERO, peaks: [Bytes::ZERO; 2] }
    }

    fn apply(&mut self, delta: impl Into<Delta>) {
        let applied = self.gmg.apply(delta).unwrap();
        self.timeline.observe(&applied, self.gmg.view()).unwrap();
    }

    fn accept(&mut self, action: Action) -> Option<JobId> {
        let plan = Plan { based_on: self.gmg.version(), actions: [action].into_iter().collect(), wake_at: None };
        let accepted = self.gmg.accept(plan);
        assert!(accepted.dropped.is_empty(), "{:?}", accepted.dropped);
        let mut job = None;
        for applied in &accepted.applied {
            job = job.or(applied.effect.job());
            self.timeline.observe(applied, self.gmg.view()).unwrap();
        }
        for command in &accepted.commands {
            self.world.enqueue(command, self.gmg.view()).unwrap();
        }
        self.measure();
        job
    }

    fn measure(&mut self) {
        for (device, peak) in self.peaks.iter_mut().enumerate() {
            let memory = self.gmg.view().memory(DeviceId(device as u32)).unwrap().ledger().total();
            *peak = (*peak).max(memory);
        }
    }

    /// Lets the world run; work that had to yield is handed back to its lane at once.
    fn run_until(&mut self, until: Nanos) {
        loop {
            let mut events = Vec::new();
            self.now = self.world.poll(until, &mut events).unwrap();
            if events.is_empty() {
                if until < Nanos::MAX {
                    self.apply(Event::Timer { at: self.now });
                }
                return;
            }
            for event in events {
                self.apply(event.clone());
                match event {
                    Event::Finished { job, started, at, .. } => {
                        self.finished.insert(job, (started, at));
                    }
                    Event::Recalled { job, lane, done, end, .. } => {
                        let work = Work::Existing { job, ops: done.end..end };
                        self.accept(Action::Run { work, lane, rank: self.ranks[&job] });
                    }
                    _ => {}
                }
            }
            self.measure();
        }
    }

    fn what_if(&mut self, actions: &[Action]) -> Forecast {
        let mut answer = Forecast::default();
        let question = Question { actions, continuations: &mut [], horizon: Nanos::MAX };
        self.timeline.what_if(self.now, question, &mut answer).unwrap();
        answer
    }

    /// Work that had to yield is handed back behind what waits with the same rank, but forecast to
    /// go on before it. So only the highest rank, which never yields, may queue up here.
    fn may_submit(&self, device: u32, rank: usize) -> bool {
        let queue = self.gmg.view().lane(LaneId::new(DeviceId(device), 0)).unwrap().queue().to_vec();
        RANKS[rank] == Rank::OwnerLatency || queue.iter().all(|entry| entry.rank != RANKS[rank])
    }

    fn submit(&mut self, device: u32, rank: usize, tokens: u64) -> (JobId, Forecast) {
        let (lane, rank) = (LaneId::new(DeviceId(device), 0), RANKS[rank]);
        let action = Action::Run { work: Work::New(Box::new(job(self.model, tokens))), lane, rank };
        let forecast = self.what_if(std::slice::from_ref(&action));
        let job = self.accept(action).unwrap();
        self.ranks.insert(job, rank);
        (job, forecast)
    }
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let submit =
        (0u32..2, 0usize..4, 1u64..1500).prop_map(|(device, rank, tokens)| Step::Submit { device, rank, tokens });
    let recall = any::<prop::sample::Index>().prop_map(|which| Step::Recall { which });
    let step = prop_oneof![5 => submit, 1 => recall];
    prop::collection::vec((0u64..40_000, step), 1..14)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn without_noise_every_forecast_comes_true(steps in steps(), last in (0u32..2, 0usize..4, 1u64..1500)) {
        let mut driver = Driver::new();
        for (pause, step) in steps {
            let until = driver.now + Nanos::us(pause);
            driver.run_until(until);
            match step {
                Step::Submit { device, rank, tokens } => {
                    if driver.may_submit(device, rank) {
                        driver.submit(device, rank, tokens);
                    }
                }
                Step::Recall { which } => {
                    let queued: Vec<_> = (0..2)
                        .flat_map(|device| driver.gmg.view().lane(LaneId::new(DeviceId(device), 0)).unwrap().queue().to_vec())
                        .collect();
                    if !queued.is_empty() {
                        driver.accept(Action::Recall { job: which.get(&queued).job, fate: Fate::Keep });
                    }
                }
            }
        }
        // A recall that is under way is unknown to the forecast: let it be reported first.
        let until = driver.now + Nanos::ms(2);
        driver.run_until(until);
        let (device, rank, tokens) = last;
        let highest = RANKS.iter().position(|&rank| rank == Rank::OwnerLatency).unwrap();
        let rank = if driver.may_submit(device, rank) { rank } else { highest };
        driver.peaks = [Bytes::ZERO; 2];
        driver.measure();
        let (job, asked) = driver.submit(device, rank, tokens);
        let followed = driver.what_if(&[]);
        driver.run_until(Nanos::MAX);
        let last = driver.finished[&job].1;
        prop_assert_eq!(asked.finish_of_action(0), Some(last), "{:?} then {:?}", asked.runs, driver.finished);
        for run in &followed.runs {
            let job = run.job.unwrap();
            prop_assert_eq!(run.finish, driver.finished[&job].1, "{} among {:?}", job, &followed.runs);
        }
        let device = DeviceId(device);
        prop_assert_eq!(asked.peak(device), driver.peaks[device.index()]);
        prop_assert_eq!(asked.peak(device), followed.peak(device));
    }
}

#[test]
fn a_recall_in_the_question_ends_work_where_the_world_ends_it() {
    let mut driver = Driver::new();
    let (guest, _) = driver.submit(0, 0, 1024);
    driver.run_until(Nanos::ms(3));
    let forecast = driver.what_if(&[Action::Recall { job: guest, fate: Fate::Drop }]);
    let plan =
        Plan { actions: [Action::Recall { job: guest, fate: Fate::Drop }].into_iter().collect(), ..Plan::default() };
    let accepted = driver.gmg.accept(plan);
    driver.world.enqueue(&accepted.commands[0], driver.gmg.view()).unwrap();
    let mut events = Vec::new();
    driver.world.poll(Nanos::MAX, &mut events).unwrap();
    let Some(Event::Recalled { started, at, .. }) = events.first() else { panic!("{events:?}") };
    let run = forecast.runs[0];
    assert_eq!((run.start, run.finish, run.recalled), (*started, *at, true));
}
