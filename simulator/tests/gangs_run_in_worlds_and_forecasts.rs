//! One iteration on several devices: in the simulated world, and in the forecasts of it.
//!
//! Every operator takes a microsecond and every exchange 1 ns, as on links of infinite bandwidth; there is no noise and
//! no launch gap unless a test says so. Devices 0 and 1 are a group; device 2 is nobody's.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;

use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::delta::{Delta, Intent};
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::{
    Action, Continuation, Event, Fate, Forecast, Plan, Question, Rank, Source, WhatIf, Work, World,
};
use slicescheduler_gmg::semantics::OpKind;
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::templates::{DenseSpec, dense};
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_gmg::{Container, Gmg, GmgView, Model, Tenant};
use slicescheduler_simulator::cost::{Confidence, Estimate, Operation};
use slicescheduler_simulator::interference::Rate;
use slicescheduler_simulator::world::{SimWorld, WorldOptions};
use slicescheduler_simulator::{CostModel, Horizon, Timeline};

/// Shorter than an operator, so that no exchange lies between a recall and the end of the window.
const WINDOW: Nanos = Nanos(200);
const US: u64 = 1000;

#[derive(Debug)]
struct Ideal;

impl CostModel for Ideal {
    fn name(&self) -> &str {
        "a microsecond each, exchanges for nothing"
    }

    fn estimate(&self, operation: &Operation<'_>) -> Estimate {
        let exchange = matches!(operation.kind, OpKind::Collective(_));
        Estimate { duration: if exchange { Nanos(1) } else { Nanos::us(1) }, confidence: Confidence::Measured }
    }
}

struct Rig {
    gmg: Gmg,
    world: SimWorld,
    timeline: Timeline,
    group: ModelId,
    guest: ModelId,
    /// Best-effort, at home on the group.
    ranks: HashMap<JobId, Rank>,
    events: Vec<Event>,
    now: Nanos,
    iteration: u64,
}

fn lane(device: u32) -> LaneId {
    LaneId::new(DeviceId(device), 0)
}

fn binding(tokens: u64) -> Binding {
    Binding::iteration(tokens, 1, tokens, tokens * (tokens + 1) / 2)
}

impl Rig {
    fn new(options: WorldOptions) -> Self {
        let cluster = Cluster::builder().node("a", |node| node.devices(3, DeviceSpec::h100_sxm())).build().unwrap();
        let mut gmg = Gmg::new(cluster.clone());
        let owner = gmg.add_tenant(Tenant::best_effort("group")).unwrap();
        let shard = Model::new("tiny of two", dense(&DenseSpec::tiny().tensor_parallel(2)).unwrap().into());
        let group = gmg.add_model(owner, shard, Container::tensor([0, 1], 2)).unwrap();
        let other = gmg.add_tenant(Tenant::latency_sensitive("guest")).unwrap();
        let whole = Model::new("tiny", dense(&DenseSpec::tiny()).unwrap().into());
        let guest = gmg.add_model(other, whole, Container::replicas([2])).unwrap();
        let world = SimWorld::new(Arc::new(cluster), Box::new(Ideal), options);
        let timeline = Timeline::new(gmg.publish(), Ideal, Horizon::secs(1000)).launched_window(WINDOW);
        let (ranks, events) = (HashMap::new(), Vec::new());
        let mut rig = Self { gmg, world, timeline, group, guest, ranks, events, now: Nanos::ZERO, iteration: 0 };
        for device in [0, 1].map(DeviceId) {
            rig.apply(Intent::LoadWeights { model: guest, device, source: Source::Host });
            rig.apply(Event::WeightsLoaded { model: guest, device, at: Nanos::ZERO });
        }
        rig
    }

    fn quiet() -> Self {
        Self::new(WorldOptions {
            seed: 0,
            operator_noise: 0,
            iteration_noise: 0,
            launched_window: WINDOW,
            launch_gap: Nanos::ZERO,
        })
    }

    fn apply(&mut self, delta: impl Into<Delta>) {
        let applied = self.gmg.apply(delta).unwrap();
        self.timeline.observe(&applied, self.gmg.view()).unwrap();
    }

    fn accept(&mut self, actions: impl IntoIterator<Item = Action>) -> Vec<JobId> {
        let plan = Plan { based_on: self.gmg.version(), actions: actions.into_iter().collect(), wake_at: None };
        let accepted = self.gmg.accept(plan);
        assert!(accepted.dropped.is_empty(), "{:?}", accepted.dropped);
        let mut jobs = Vec::new();
        for applied in &accepted.applied {
            jobs.extend(applied.effect.job());
            if let slicescheduler_gmg::Effect::Gang(members) = &applied.effect {
                jobs.extend(members.iter().copied());
            }
            self.timeline.observe(applied, self.gmg.view()).unwrap();
        }
        for command in &accepted.commands {
            self.world.enqueue(command, self.gmg.view()).unwrap();
        }
        jobs
    }

    fn gang(&mut self, tokens: u64, rank: Rank) -> Action {
        let mut spec = JobSpec::of(self.group).bind(binding(tokens));
        spec.key.iteration = self.iteration;
        self.iteration += 1;
        let members = (0..2).map(|place| (spec.clone().rank(place, 2), lane(place))).collect();
        Action::RunGang { members, rank }
    }

    fn start_gang(&mut self, rank: Rank) -> Vec<JobId> {
        let action = self.gang(8, rank);
        let jobs = self.accept([action]);
        self.ranks.extend(jobs.iter().map(|&job| (job, rank)));
        jobs
    }

    fn start_guest(&mut self, device: u32, rank: Rank) -> JobId {
        let spec = Box::new(JobSpec::of(self.guest).bind(binding(8)));
        let job = self.accept([Action::Run { work: Work::New(spec), lane: lane(device), rank }])[0];
        self.ranks.insert(job, rank);
        job
    }

    /// Lets the world run until `until`; nothing that comes back goes on.
    fn run_until(&mut self, until: Nanos) {
        loop {
            let mut events = Vec::new();
            self.now = self.world.poll(until, &mut events).unwrap();
            if events.is_empty() {
                break;
            }
            for event in events {
                self.apply(event.clone());
                self.events.push(event);
            }
        }
        if until < Nanos::MAX {
            self.apply(Event::Timer { at: until });
        }
    }

    fn finish(&self, job: JobId) -> Option<(Nanos, Nanos)> {
        self.events.iter().find_map(|event| match event {
            Event::Finished { job: found, started, at, .. } if *found == job => Some((*started, *at)),
            _ => None,
        })
    }

    fn recalled(&self, job: JobId) -> Option<(u32, Nanos)> {
        self.events.iter().rev().find_map(|event| match event {
            Event::Recalled { job: found, done, at, .. } if *found == job => Some((done.end, *at)),
            _ => None,
        })
    }

    fn what_if(&mut self, actions: &[Action], continuations: &mut [(LaneId, Box<dyn Continuation>)]) -> Forecast {
        let mut answer = Forecast::default();
        let question = Question { actions, continuations, horizon: self.now + Nanos::secs(1) };
        self.timeline.what_if(self.now, question, &mut answer).unwrap();
        answer
    }

    /// A microsecond for each operator of one rank, and a nanosecond for each exchange.
    fn by_hand(&self) -> Nanos {
        let view = self.gmg.view();
        let template = &view.models()[self.group.index()].template;
        let mut length = Nanos::ZERO;
        for segment in template.segments() {
            for slot in segment.slots() {
                let exchange = matches!(template.kind(slot), Some(OpKind::Collective(_)));
                let each = if exchange { Nanos(1) } else { Nanos::us(1) };
                length += each.times(u64::from(segment.repeat()));
            }
        }
        length
    }

    fn bytes(&self, kind: ByteKind) -> Vec<Bytes> {
        let view = self.gmg.view();
        (0..3).map(|device| view.memory(DeviceId(device)).unwrap().ledger().of(kind)).collect()
    }
}

#[test]
fn a_symmetric_group_takes_what_its_sharded_operators_take() {
    let mut rig = Rig::quiet();
    let action = rig.gang(8, Rank::OwnerBestEffort);
    let forecast = rig.what_if(std::slice::from_ref(&action), &mut []);
    let jobs = rig.accept([action]);
    let queued = rig.what_if(&[], &mut []);
    rig.run_until(Nanos::MAX);
    let whole = rig.by_hand();
    assert_eq!(forecast.finish_of_action(0), Some(whole));
    assert_eq!(forecast.runs.len(), 2, "one for each rank");
    for job in jobs {
        assert_eq!(rig.finish(job), Some((Nanos::ZERO, whole)));
        assert_eq!(queued.finish_of_job(job), Some(whole));
    }
}

#[test]
fn a_straggling_rank_slows_its_group_and_nobody_else() {
    let mut rig = Rig::quiet();
    rig.world.set_speed(Nanos::ZERO, DeviceId(1), Rate::of(1, 2));
    rig.run_until(Nanos(0));
    let jobs = rig.start_gang(Rank::OwnerBestEffort);
    let other = rig.start_guest(2, Rank::OwnerLatency);
    let alone = rig.what_if(&[], &mut []).finish_of_job(other);
    rig.run_until(Nanos::MAX);
    for job in jobs {
        assert_eq!(rig.finish(job), Some((Nanos::ZERO, rig.by_hand().times(2))));
    }
    assert_eq!(rig.finish(other).map(|(_, at)| at), alone);
}

#[test]
fn a_group_starts_when_the_last_of_its_lanes_is_free() {
    let mut rig = Rig::quiet();
    let guest = rig.start_guest(1, Rank::GuestLatency);
    let jobs = rig.start_gang(Rank::OwnerBestEffort);
    let behind = rig.start_guest(0, Rank::GuestBestEffort);
    rig.run_until(Nanos::MAX);
    let (_, free) = rig.finish(guest).unwrap();
    for &job in &jobs {
        assert_eq!(rig.finish(job), Some((free, free + rig.by_hand())));
    }
    assert_eq!(rig.finish(behind).map(|(start, _)| start), Some(free + rig.by_hand()), "it does not overtake");
}

#[test]
fn a_recall_on_one_lane_stops_all_ranks_before_the_same_operator() {
    let mut rig = Rig::quiet();
    let jobs = rig.start_gang(Rank::OwnerBestEffort);
    rig.run_until(Nanos(10 * US + 500));
    let action = Action::Run {
        work: Work::New(Box::new(JobSpec::of(rig.guest).bind(binding(8)))),
        lane: lane(1),
        rank: Rank::GuestLatency,
    };
    let forecast = rig.what_if(std::slice::from_ref(&action), &mut []);
    let guest = rig.accept([action])[0];
    rig.run_until(Nanos(30 * US));
    let stops: Vec<_> = jobs.iter().map(|&job| rig.recalled(job).unwrap()).collect();
    assert_eq!(stops[0], stops[1]);
    assert!(stops[0].1 >= Nanos(10 * US + 500) + WINDOW && stops[0].1 <= Nanos(12 * US), "{stops:?}");
    rig.run_until(Nanos(200 * US));
    assert_eq!(rig.finish(guest).map(|(_, at)| at), forecast.finish_of_action(0));
    // What was cut goes on as one.
    let again = jobs.iter().zip([0, 1]).map(|(&job, device)| {
        let ops = stops[0].0..rig.gmg.view().job(job).unwrap().op_count();
        Action::Run { work: Work::Existing { job, ops }, lane: lane(device), rank: Rank::OwnerBestEffort }
    });
    let again: Vec<_> = again.collect();
    let (now, rest) = (rig.now, rig.by_hand() - stops[0].1);
    let forecast = rig.what_if(&again, &mut []);
    assert_eq!(forecast.finish_of_action(1).map(|at| at - now), Some(rest));
    rig.accept(again.clone());
    rig.run_until(Nanos::MAX);
    let ends: Vec<_> = jobs.iter().map(|&job| rig.finish(job).unwrap()).collect();
    assert_eq!(ends[0], ends[1]);
    assert_eq!(ends[0].1 - ends[0].0, rest);
}

#[test]
fn half_of_a_group_is_not_a_question() {
    let mut rig = Rig::quiet();
    let jobs = rig.start_gang(Rank::OwnerBestEffort);
    rig.run_until(Nanos(10 * US));
    rig.accept([Action::Recall { job: jobs[1], fate: Fate::Keep }]);
    rig.run_until(Nanos(40 * US));
    let (op, _) = rig.recalled(jobs[0]).unwrap();
    let ops = op..rig.gmg.view().job(jobs[0]).unwrap().op_count();
    let half = Action::Run { work: Work::Existing { job: jobs[0], ops }, lane: lane(0), rank: Rank::OwnerBestEffort };
    let question = Question { actions: &[half], continuations: &mut [], horizon: Nanos::secs(1) };
    let refused = rig.timeline.what_if(rig.now, question, &mut Forecast::default()).unwrap_err();
    assert!(refused.to_string().contains("other ranks"), "{refused}");
    // Given up as one, too.
    rig.accept([Action::Cancel { job: jobs[0] }]);
    assert!(jobs.iter().all(|&job| rig.gmg.view().job(job).is_none()));
    assert_eq!(rig.bytes(ByteKind::Activations), [Bytes::ZERO; 3]);
}

#[test]
fn a_lost_rank_is_a_lost_group_and_leaves_nothing_behind() {
    for queued in [false, true] {
        let mut rig = Rig::quiet();
        if queued {
            rig.start_guest(1, Rank::GuestLatency);
        }
        let jobs = rig.start_gang(Rank::OwnerBestEffort);
        rig.world.fail_device(Nanos(10 * US), DeviceId(1));
        rig.run_until(Nanos(50 * US));
        let lost = rig.events.iter().position(|event| matches!(event, Event::DeviceLost { .. })).unwrap();
        let back = rig.events.iter().position(|event| matches!(event, Event::Recalled { job, .. } if *job == jobs[0]));
        assert!(back.unwrap() < lost, "the other rank is back before its device can be told the loss");
        assert!(rig.gmg.view().lane(lane(0)).unwrap().is_empty() && rig.world.is_idle());
        for job in jobs {
            assert!(rig.gmg.view().job(job).unwrap().is_broken());
            rig.apply(Intent::Cancel { job });
            rig.apply(Intent::Retire { job });
        }
        assert_eq!(rig.bytes(ByteKind::Activations), [Bytes::ZERO; 3]);
        let next = rig.start_guest(0, Rank::GuestLatency);
        rig.run_until(Nanos::MAX);
        assert!(rig.finish(next).is_some(), "the other device serves");
    }
}

#[test]
fn a_kernel_that_fails_on_one_rank_fails_the_group() {
    let mut rig = Rig::quiet();
    let jobs = rig.start_gang(Rank::OwnerBestEffort);
    rig.world.fail_kernel(Nanos(10 * US), lane(1));
    rig.run_until(Nanos::MAX);
    assert!(matches!(&rig.events[..], [Event::Recalled { .. }, Event::Failed { .. }]), "{:?}", rig.events);
    assert!(jobs.iter().all(|&job| rig.gmg.view().job(job).unwrap().is_broken()));
}

/// The next iteration as large as the one before.
#[derive(Clone, Debug)]
struct Again(u32);

impl Continuation for Again {
    fn next(&mut self, finished: &JobSpec, _at: Nanos) -> Option<JobSpec> {
        self.0 = self.0.checked_sub(1)?;
        Some(finished.clone())
    }

    fn fork(&self) -> Box<dyn Continuation> {
        Box::new(self.clone())
    }

    fn state_hash(&self) -> Option<u64> {
        Some(u64::from(self.0))
    }
}

#[test]
fn a_continuation_goes_on_with_all_ranks_also_in_unrolled_futures() {
    let mut rig = Rig::quiet();
    rig.start_gang(Rank::OwnerBestEffort);
    let whole = rig.by_hand();
    let mut again: Vec<(LaneId, Box<dyn Continuation>)> = vec![(lane(0), Box::new(Again(3)))];
    let forecast = rig.what_if(&[], &mut again);
    let finishes = |device: u32, runs: &[slicescheduler_gmg::plan::RunForecast]| -> Vec<Nanos> {
        runs.iter().filter(|run| run.lane == lane(device)).map(|run| run.finish).collect()
    };
    let expected: Vec<Nanos> = (1..=4).map(|count| whole.times(count)).collect();
    assert_eq!(finishes(0, &forecast.runs), expected);
    assert_eq!(finishes(1, &forecast.runs), expected);
    let unrolled = rig.timeline.unroll(Nanos::ZERO, vec![(lane(0), Box::new(Again(3)))], Nanos::secs(1));
    for device in 0..2 {
        assert_eq!(finishes(device, unrolled.runs_on(DeviceId(device))), expected);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Gang,
    Guest { device: u32, latency: bool },
    Stall { device: u32 },
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let guest = (0u32..3, any::<bool>()).prop_map(|(device, latency)| Step::Guest { device, latency });
    let step = prop_oneof![3 => Just(Step::Gang), 4 => guest, 1 => (0u32..3).prop_map(|device| Step::Stall { device })];
    prop::collection::vec((0u64..60_000, step), 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever else runs: ranks start, stop and end together, at the same operator; everything ends; nothing leaks.
    #[test]
    fn ranks_are_always_together(steps in steps(), noise in 0u32..20, seed: u64) {
        let options = WorldOptions { seed, operator_noise: noise, iteration_noise: noise, launched_window: WINDOW, launch_gap: Nanos(100) };
        let mut rig = Rig::new(options);
        let mut gangs: Vec<Vec<JobId>> = Vec::new();
        let (mut at, mut all) = (Nanos::ZERO, Vec::new());
        let on = lane;
        let turn = |rig: &mut Rig, until: Nanos, gangs: &[Vec<JobId>]| {
            loop {
                let before = rig.events.len();
                rig.run_until(until);
                let news: Vec<Event> = rig.events[before..].to_vec();
                if news.is_empty() { break; }
                let mut resumed: Vec<JobId> = Vec::new();
                for event in news {
                    let Event::Recalled { job, lane, done, end, .. } = event else { continue };
                    let rank = rig.ranks[&job];
                    let gang = gangs.iter().find(|gang| gang.contains(&job)).cloned();
                    match gang {
                        None => {
                            rig.accept([Action::Run { work: Work::Existing { job, ops: done.end..end }, lane, rank }]);
                        }
                        Some(gang) if !resumed.contains(&gang[0]) => {
                            resumed.push(gang[0]);
                            let actions: Vec<_> = gang.iter().zip([0, 1]).map(|(&job, device)| {
                                let work = Work::Existing { job, ops: done.end..end };
                                Action::Run { work, lane: on(device), rank }
                            }).collect();
                            // Refused unless both are back at the same operator.
                            rig.what_if(&actions, &mut []);
                            rig.accept(actions);
                        }
                        Some(_) => {}
                    }
                }
            }
        };
        for (pause, step) in steps {
            at += Nanos(pause);
            turn(&mut rig, at, &gangs);
            match step {
                Step::Gang => {
                    let jobs = rig.start_gang(Rank::OwnerBestEffort);
                    all.extend(&jobs);
                    gangs.push(jobs);
                }
                Step::Guest { device, latency } => {
                    let rank = if latency { Rank::GuestLatency } else { Rank::GuestBestEffort };
                    all.push(rig.start_guest(device, rank));
                }
                Step::Stall { device } => rig.world.stall(at, lane(device), Nanos::us(5)),
            }
            rig.what_if(&[], &mut []);
        }
        for round in 1..20 {
            turn(&mut rig, Nanos::secs(round), &gangs);
        }
        for &job in &all {
            prop_assert!(rig.finish(job).is_some(), "{} never ended: {:?}", job, rig.events);
        }
        for gang in &gangs {
            let pieces = |job: JobId| -> Vec<_> {
                rig.events.iter().filter_map(|event| match event {
                    Event::Finished { job: found, ops, started, at, .. } if *found == job => Some((ops.clone(), *started, *at)),
                    Event::Recalled { job: found, done, started, at, .. } if *found == job => Some((done.clone(), *started, *at)),
                    _ => None,
                }).collect()
            };
            prop_assert_eq!(pieces(gang[0]), pieces(gang[1]));
        }
        prop_assert_eq!(rig.bytes(ByteKind::Activations), vec![Bytes::ZERO; 3]);
    }
}
