//! Differential: a future that is kept device by device, changed and cut off, against one forecast of
//! everything from scratch.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use proptest::prelude::*;
use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::id::{DeviceId, LaneId, ModelId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::{
    Action, Continuation, Event, Forecast, Plan, Question, Rank, RunForecast, WhatIf, WhatIfError,
};
use slicescheduler_gmg::semantics::OpKind;
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::templates::{DenseSpec, dense};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_gmg::{Container, Gmg, GmgView, Model, Tenant};
use slicescheduler_simulator::calibration::{Calibration, Observation};
use slicescheduler_simulator::cost::CostModel;
use slicescheduler_simulator::timeline::{Continuations, Unrolled};
use slicescheduler_simulator::{Horizon, JobCost, Roofline, Timeline};

const DEVICES: u32 = 4;
const NOW: Nanos = Nanos::ms(1);
const HORIZON: Nanos = Nanos::ms(900);

/// Iterations of changing size, each released at the next multiple of `grid`, so that delays are
/// absorbed.
#[derive(Clone, Debug)]
struct Rhythm {
    left: u64,
    grid: u64,
}

fn iteration(tokens: u64) -> JobSpec {
    JobSpec::of(ModelId(0)).bind(Binding::iteration(tokens, 1, tokens, tokens * (tokens + 1) / 2))
}

impl Continuation for Rhythm {
    fn next(&mut self, _finished: &JobSpec, at: Nanos) -> Option<JobSpec> {
        self.left = self.left.checked_sub(1)?;
        let release = Nanos(at.get().next_multiple_of(self.grid.max(1)));
        Some(iteration(100 + 37 * (self.left % 5)).release(release))
    }

    fn fork(&self) -> Box<dyn Continuation> {
        Box::new(self.clone())
    }

    fn state_hash(&self) -> Option<u64> {
        Some(self.left << 32 | self.grid)
    }
}

struct Rig {
    gmg: Gmg,
    timeline: Timeline,
}

fn lane(device: u32) -> LaneId {
    LaneId::new(DeviceId(device), 0)
}

impl Rig {
    /// One iteration is queued on each device.
    fn new() -> Self {
        let cluster = Cluster::builder()
            .node("a", |node| node.devices(DEVICES, DeviceSpec::h100_sxm()).nvlink(Bandwidth::gb_per_s(450)))
            .build()
            .unwrap();
        let mut gmg = Gmg::new(cluster);
        let tenant = gmg.add_tenant(Tenant::latency_sensitive("chat")).unwrap();
        let model = Model::new("llama3-8b", dense(&DenseSpec::llama3_8b()).unwrap().into());
        gmg.add_model(tenant, model, Container::replicas(0..DEVICES)).unwrap();
        let mut rig = Self { timeline: Timeline::new(gmg.publish(), Roofline::default(), Horizon::secs(2)), gmg };
        let actions = (0..DEVICES).map(|device| Rig::run(device, 512, Rank::OwnerLatency)).collect();
        for applied in rig.gmg.accept(Plan { actions, ..Plan::default() }).applied {
            rig.timeline.observe(&applied, rig.gmg.view()).unwrap();
        }
        rig
    }

    fn run(device: u32, tokens: u64, rank: Rank) -> Action {
        Action::run_new(iteration(tokens), lane(device)).with_rank(rank)
    }

    fn forecast_anew(&mut self, now: Nanos, actions: &[Action], continuations: &mut Continuations) -> Forecast {
        let mut answer = Forecast::default();
        self.timeline.what_if(now, Question { actions, continuations, horizon: HORIZON }, &mut answer).unwrap();
        answer
    }
}

/// What a calibration publishes that saw matrix products take `factor` times what a roofline says.
fn products_that_take(factor: f64) -> Arc<dyn CostModel> {
    let (template, device) = (dense(&DenseSpec::llama3_8b()).unwrap(), DeviceSpec::h100_sxm());
    let job = iteration(512);
    let base = JobCost::bind(&Roofline::default(), &template, &job.binding, &device);
    let op = template.ops().find(|op| *op.kind() == OpKind::MatMul).unwrap().index();
    let took = Nanos((base.duration(op.0).get() as f64 * factor) as u64);
    let mut calibration = Calibration::new(Arc::new(Roofline::default()));
    for _ in 0..8 {
        let seen = Observation { template: &template, op, binding: &job.binding, device: &device, took };
        calibration.observe(&seen);
    }
    calibration.publish(0.0).unwrap().model
}

fn rhythms(grids: [u64; DEVICES as usize]) -> Continuations {
    let of_lane =
        |(device, grid)| -> (LaneId, Box<dyn Continuation>) { (lane(device), Box::new(Rhythm { left: 40, grid })) };
    (0..).zip(grids).map(of_lane).collect()
}

fn agree(unrolled: &Unrolled, forecast: &Forecast) -> Result<(), TestCaseError> {
    let mut runs: Vec<RunForecast> = unrolled.runs().copied().collect();
    runs.sort_by_key(|run| (run.start, run.lane));
    prop_assert_eq!(&runs, &forecast.runs);
    let memory: Vec<_> = (0..DEVICES).filter_map(|device| unrolled.memory(DeviceId(device))).collect();
    prop_assert_eq!(&memory, &forecast.memory);
    Ok(())
}

fn grids() -> impl Strategy<Value = [u64; DEVICES as usize]> {
    prop::array::uniform4(prop_oneof![Just(1u64), 10_000_000u64..90_000_000])
}

/// Guests: device, tokens, right of way.
fn guests() -> impl Strategy<Value = Vec<(u32, u64, bool)>> {
    prop::collection::vec((0..DEVICES, 16u64..2048, any::<bool>()), 0..4)
}

fn actions(guests: &[(u32, u64, bool)]) -> Vec<Action> {
    let rank = |high: bool| if high { Rank::OwnerLatency } else { Rank::GuestBestEffort };
    guests.iter().map(|&(device, tokens, high)| Rig::run(device, tokens, rank(high))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_question_about_some_devices_gives_the_forecast_of_all(grids in grids(), guests in guests()) {
        let mut rig = Rig::new();
        let base = rig.timeline.unroll(NOW, rhythms(grids), HORIZON);
        agree(&base, &rig.forecast_anew(NOW, &[], &mut rhythms(grids)))?;
        let actions = actions(&guests);
        let changed = rig.timeline.what_if_unrolled(&base, &actions, Vec::new()).unwrap();
        agree(&changed, &rig.forecast_anew(NOW, &actions, &mut rhythms(grids)))?;
        let touched = |device: &DeviceId| guests.iter().any(|guest| guest.0 == device.0);
        prop_assert!(changed.changed_from(&base).all(|device| touched(&device)), "only what was touched");
    }

    #[test]
    fn another_continuation_changes_its_device_only(grids in grids(), other in 1u64..90_000_000, on in 0..DEVICES) {
        let mut rig = Rig::new();
        let base = rig.timeline.unroll(NOW, rhythms(grids), HORIZON);
        let mut new = grids;
        new[on as usize] = other;
        let changed: Continuations = rhythms(new).into_iter().filter(|(of, _)| *of == lane(on)).collect();
        let answer = rig.timeline.what_if_unrolled(&base, &[], changed).unwrap();
        agree(&answer, &rig.forecast_anew(NOW, &[], &mut rhythms(new)))?;
        prop_assert_eq!(answer.changed_from(&base).collect::<Vec<_>>(), vec![DeviceId(on)]);
        // And a question on the answer starts from what it says.
        let guest = [Rig::run(on, 700, Rank::OwnerLatency)];
        let again = rig.timeline.what_if_unrolled(&answer, &guest, Vec::new()).unwrap();
        agree(&again, &rig.forecast_anew(NOW, &guest, &mut rhythms(new)))?;
    }

    #[test]
    fn new_durations_reach_every_device_of_a_future_whoever_noticed_them_first(
        grids in grids(),
        factor in 0.3f64..3.0,
        asks_before in any::<bool>(),
    ) {
        let mut rig = Rig::new();
        let mut future = rig.timeline.unroll(NOW, rhythms(grids), HORIZON);
        rig.timeline.set_cost(products_that_take(factor));
        if asks_before {
            rig.forecast_anew(NOW, &[], &mut rhythms(grids));
        }
        let stale = rig.timeline.what_if_unrolled(&future, &[], Vec::new());
        prop_assert_eq!(stale.err(), Some(WhatIfError::StaleDurations));
        let mut continuations: Vec<_> = rhythms(grids).into_iter().map(Some).collect();
        let of_lane = |lane: LaneId| continuations.get_mut(lane.device.index())?.take().map(|(_, goes_on)| goes_on);
        rig.timeline.fold_in(&mut future, NOW, of_lane);
        agree(&future, &rig.forecast_anew(NOW, &[], &mut rhythms(grids)))?;
        prop_assert!(rig.timeline.what_if_unrolled(&future, &[], Vec::new()).is_ok());
    }

    #[test]
    fn a_trial_goes_back_to_its_marks(grids in grids(), first in guests(), second in guests()) {
        let mut rig = Rig::new();
        let base = rig.timeline.unroll(NOW, rhythms(grids), HORIZON);
        let (first, second) = (actions(&first), actions(&second));
        let both: Vec<_> = first.iter().chain(&second).cloned().collect();
        let mut seen = Vec::new();
        {
            let mut trial = rig.timeline.trial(&base);
            let start = trial.mark();
            trial.carry_out(&first).unwrap();
            seen.push((trial.current().clone(), first.clone()));
            let middle = trial.mark();
            trial.carry_out(&second).unwrap();
            seen.push((trial.current().clone(), both));
            prop_assert!(trial.carry_out(&[Action::run_new(JobSpec::of(ModelId(9)), lane(0))]).is_err());
            trial.rollback(middle);
            seen.push((trial.current().clone(), first));
            trial.rollback(start);
            seen.push((trial.current().clone(), Vec::new()));
        }
        for (current, actions) in seen {
            agree(&current, &rig.forecast_anew(NOW, &actions, &mut rhythms(grids)))?;
        }
    }

    #[test]
    fn what_was_observed_is_folded_in(grids in grids(), on in 0..DEVICES, later in 0u64..40_000_000) {
        let mut rig = Rig::new();
        let mut kept = rig.timeline.unroll(NOW, rhythms(grids), HORIZON);
        let first = kept.runs_on(DeviceId(on))[0];
        let at = first.finish + Nanos(later);
        let job = first.job.unwrap();
        let ops = 0..rig.gmg.view().models()[0].template.op_count();
        let event = Event::Finished { job, ops, lane: lane(on), started: first.start, at, tokens: vec![], ended: vec![] };
        let applied = rig.gmg.apply(event).unwrap();
        rig.timeline.observe(&applied, rig.gmg.view()).unwrap();
        let fresh = |of: LaneId| rhythms(grids).into_iter().find(|(lane, _)| *lane == of).map(|(_, kept)| kept);
        rig.timeline.fold_in(&mut kept, at, fresh);
        let expected = rig.timeline.unroll(at, rhythms(grids), HORIZON);
        for device in (0..DEVICES).map(DeviceId) {
            prop_assert_eq!(kept.runs_on(device), expected.runs_on(device));
            prop_assert_eq!(kept.memory(device), expected.memory(device));
        }
    }
}

#[test]
fn actions_of_a_trial_that_have_nothing_to_do_with_each_other_are_simulated_once() {
    let mut rig = Rig::new();
    let base = rig.timeline.unroll(NOW, rhythms([80_000_000; DEVICES as usize]), HORIZON);
    let mut trial = rig.timeline.trial(&base);
    trial.carry_out(&[Rig::run(0, 64, Rank::GuestBestEffort)]).unwrap();
    let first = trial.current().clone();
    trial.carry_out(&[Rig::run(1, 64, Rank::GuestBestEffort)]).unwrap();
    let second = trial.current().clone();
    assert_eq!(first.changed_from(&base).collect::<Vec<_>>(), [DeviceId(0)]);
    assert_eq!(second.changed_from(&first).collect::<Vec<_>>(), [DeviceId(1)], "the first device is kept");
    trial.carry_out(&[Rig::run(0, 32, Rank::GuestBestEffort)]).unwrap();
    let third = trial.current().clone();
    assert_eq!(third.changed_from(&second).collect::<Vec<_>>(), [DeviceId(0)]);
    let actions: Vec<_> = third.runs().filter_map(|run| run.action).collect();
    assert_eq!(actions, [0, 2, 1], "by device and start; numbers are those of the whole trial");
}

#[test]
fn a_future_that_is_reached_again_is_not_computed_again() {
    let mut rig = Rig::new();
    let grids = [80_000_000; DEVICES as usize];
    let base = rig.timeline.unroll(NOW, rhythms(grids), HORIZON);
    let guest = [Rig::run(0, 64, Rank::GuestBestEffort)];
    let answer = rig.timeline.what_if_unrolled(&base, &guest, Vec::new()).unwrap();
    let ops = u64::from(rig.gmg.view().models()[0].template.op_count());
    assert_eq!(answer.operators(DeviceId(0)), 3 * ops, "what was queued, the guest, and the iteration that absorbs it");
    assert!(base.operators(DeviceId(0)) > 8 * ops);
    assert_eq!(answer.memory(DeviceId(0)).unwrap().shortage, None);
    assert!(answer.memory(DeviceId(0)).unwrap().peak > Bytes::ZERO);
}
