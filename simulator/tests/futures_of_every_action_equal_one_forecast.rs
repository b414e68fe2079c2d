//! Differential: random sequences of every action that can be forecast, carried out on a future that is kept device by
//! device, against one forecast of everything from scratch; and a nearer horizon against a farther one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler_gmg::delta::{Delta, Effect, Intent, NewRequest};
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, RequestId};
use slicescheduler_gmg::job::{JobSpec, KvGrowth, Row};
use slicescheduler_gmg::memory::DeviceLayout;
use slicescheduler_gmg::plan::{
    Action, Continuation, Event, Fate, Forecast, Plan, Question, Rank, RunForecast, Source, WhatIf, WhatIfError,
};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::templates::{DenseSpec, dense};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_gmg::{Container, Gmg, GmgView, Model, Tenant};
use slicescheduler_simulator::timeline::{Continuations, Unrolled};
use slicescheduler_simulator::{Horizon, Roofline, Timeline};

const DEVICES: u32 = 4;
const LANES: u16 = 2;
const NOW: Nanos = Nanos::ms(1);
const HORIZON: Nanos = Nanos::ms(400);
const RANKS: [Rank; 4] = [Rank::GuestBestEffort, Rank::OwnerBestEffort, Rank::GuestLatency, Rank::OwnerLatency];

/// Iterations of changing size, each released at the next multiple of `grid`.
#[derive(Clone, Debug)]
struct Rhythm {
    model: ModelId,
    left: u64,
    grid: u64,
}

impl Continuation for Rhythm {
    fn next(&mut self, _finished: &JobSpec, at: Nanos) -> Option<JobSpec> {
        self.left = self.left.checked_sub(1)?;
        let release = Nanos(at.get().next_multiple_of(self.grid.max(1)));
        Some(iteration(self.model, 100 + 37 * (self.left % 5)).release(release))
    }

    fn fork(&self) -> Box<dyn Continuation> {
        Box::new(self.clone())
    }

    fn state_hash(&self) -> Option<u64> {
        Some(self.left << 32 | self.grid)
    }
}

fn iteration(model: ModelId, tokens: u64) -> JobSpec {
    JobSpec::of(model).bind(Binding::iteration(tokens, 1, tokens, tokens * (tokens + 1) / 2))
}

fn lane(number: u32) -> LaneId {
    LaneId::new(DeviceId(number % DEVICES), (number / DEVICES % u32::from(LANES)) as u16)
}

/// Numbers that name something once it is known what there is.
#[derive(Clone, Debug)]
enum Step {
    New {
        on: u32,
        guest: bool,
        tokens: u64,
        rank: usize,
        after: Option<prop::sample::Index>,
    },
    /// What is left of a job, or a part of it: up to three pieces that begin at these thousandths.
    Pieces {
        job: prop::sample::Index,
        on: [u32; 3],
        from: u32,
        cuts: [u32; 2],
        rank: usize,
    },
    Recall {
        job: prop::sample::Index,
        drop: bool,
    },
    Prefetch {
        guest: bool,
        device: u32,
        source: Option<u32>,
    },
    Evict {
        guest: bool,
        device: u32,
    },
    Release {
        request: prop::sample::Index,
        device: u32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    let (device, rank) = (0..DEVICES, 0..RANKS.len());
    let on = 0..DEVICES * u32::from(LANES);
    let after = prop::option::weighted(0.3, index());
    prop_oneof![
        4 => (on.clone(), any::<bool>(), 16u64..1500, rank.clone(), after)
            .prop_map(|(on, guest, tokens, rank, after)| Step::New { on, guest, tokens, rank, after }),
        4 => (index(), prop::array::uniform3(on), prop_oneof![9 => Just(0u32), 1 => 0u32..1000], prop::array::uniform2(0u32..1000), rank)
            .prop_map(|(job, on, from, cuts, rank)| Step::Pieces { job, on, from, cuts, rank }),
        2 => (index(), any::<bool>()).prop_map(|(job, drop)| Step::Recall { job, drop }),
        2 => (any::<bool>(), device.clone(), prop::option::of(device.clone()))
            .prop_map(|(guest, device, source)| Step::Prefetch { guest, device, source }),
        1 => (any::<bool>(), device.clone()).prop_map(|(guest, device)| Step::Evict { guest, device }),
        1 => (index(), device).prop_map(|(request, device)| Step::Release { request, device }),
    ]
}

struct Rig {
    gmg: Gmg,
    timeline: Timeline,
    models: [ModelId; 2],
    jobs: Vec<JobId>,
    requests: Vec<RequestId>,
}

impl Rig {
    /// A model on devices 0 and 1, another on 2, nothing on 3. One job is cut, one runs, one waits behind it, two are on
    /// no lane, and two sequences lie on device 0.
    fn new() -> Self {
        let device = DeviceSpec::h100_sxm().with_lanes(LANES);
        let cluster = Cluster::builder()
            .node("a", |node| node.devices(DEVICES, device).nvlink(Bandwidth::gb_per_s(450)))
            .build()
            .unwrap();
        let mut gmg = Gmg::new(cluster);
        let layout = DeviceLayout { kv_block: Bytes::mib(2), ..DeviceLayout::of(Bytes::gb(80)) };
        gmg.lay_out(DeviceId(0), layout).unwrap();
        let model = || {
            Model::new("llama3-8b", dense(&DenseSpec::llama3_8b()).unwrap().into()).kv_bytes_per_token(Bytes::kib(128))
        };
        let (chat, batch) = (Tenant::latency_sensitive("chat"), Tenant::best_effort("batch"));
        let (chat, batch) = (gmg.add_tenant(chat).unwrap(), gmg.add_tenant(batch).unwrap());
        let own = gmg.add_model(chat, model(), Container::replicas([0, 1])).unwrap();
        let guest = gmg.add_model(batch, model(), Container::replicas([2])).unwrap();
        let timeline = Timeline::new(gmg.publish(), Roofline::default(), Horizon::secs(2));
        let mut rig = Self { gmg, timeline, models: [own, guest], jobs: Vec::new(), requests: Vec::new() };
        for tokens in [128u32, 256] {
            let request = NewRequest { tenant: chat, arrival: Nanos::ZERO, prompt: tokens, max_output: 8 };
            let Effect::Request(request) = rig.apply(Intent::Submit(request)) else { panic!("no request") };
            let mut spec = iteration(own, u64::from(tokens));
            spec.rows.push(Row { request, position: 0, tokens, emits: true });
            spec.growth.push(KvGrowth { request, blocks: tokens / 16 });
            rig.accept(Action::run_new(spec, lane(0)).with_rank(Rank::OwnerLatency));
            rig.requests.push(request);
        }
        rig.accept(Action::run_new(iteration(own, 700), lane(1)).with_rank(Rank::OwnerBestEffort));
        rig.accept(Action::run_new(iteration(guest, 400), lane(2)));
        for tokens in [300, 900] {
            let Effect::Job(job) = rig.apply(Intent::SubmitJob(iteration(own, tokens).into())) else {
                panic!("no job")
            };
            rig.jobs.push(job);
        }
        rig
    }

    fn apply(&mut self, delta: impl Into<Delta>) -> Effect {
        let applied = self.gmg.apply(delta).unwrap();
        self.timeline.observe(&applied, self.gmg.view()).unwrap();
        applied.effect
    }

    fn accept(&mut self, action: Action) {
        let accepted = self.gmg.accept(Plan { actions: [action].into_iter().collect(), ..Plan::default() });
        assert!(accepted.dropped.is_empty(), "{:?}", accepted.dropped);
        for applied in &accepted.applied {
            self.jobs.extend(applied.effect.job());
            self.timeline.observe(applied, self.gmg.view()).unwrap();
        }
    }

    fn actions(&self, steps: &[Step]) -> Vec<Action> {
        let model = |guest: bool| self.models[usize::from(guest)];
        let ops = self.gmg.view().models()[0].template.op_count();
        let mut actions = Vec::new();
        for step in steps {
            match step {
                Step::New { on, guest, tokens, rank, after } => {
                    let mut spec = iteration(model(*guest), *tokens);
                    spec.after.extend(after.map(|job| *job.get(&self.jobs)));
                    actions.push(Action::run_new(spec, lane(*on)).with_rank(RANKS[*rank]));
                }
                Step::Pieces { job, on, from, cuts, rank } => {
                    // One operator at a time costs an edge per tensor, so a few of them are enough.
                    let mut bounds =
                        [*from, cuts[0].max(*from), cuts[1].max(*from), 1000].map(|part| ops * part / 1000);
                    bounds.sort_unstable();
                    for (piece, on) in bounds.windows(2).zip(on).filter(|(piece, _)| piece[0] < piece[1]) {
                        let run = Action::run(*job.get(&self.jobs), piece[0]..piece[1], lane(*on));
                        actions.push(run.with_rank(RANKS[*rank]));
                    }
                }
                Step::Recall { job, drop } => {
                    let fate = if *drop { Fate::Drop } else { Fate::Keep };
                    actions.push(Action::Recall { job: *job.get(&self.jobs), fate });
                }
                Step::Prefetch { guest, device, source } => {
                    let source = source.map_or(Source::Host, |device| Source::Device(DeviceId(device)));
                    actions.push(Action::prefetch(model(*guest), DeviceId(*device), source));
                }
                Step::Evict { guest, device } => {
                    actions.push(Action::EvictWeights { model: model(*guest), device: DeviceId(*device) });
                }
                Step::Release { request, device } => {
                    let request = *request.get(&self.requests);
                    actions.push(Action::ReleaseKv { request, device: DeviceId(*device) });
                }
            }
        }
        actions
    }

    /// The first of `actions` that can be carried out together, in order; most random sequences hold some that cannot.
    fn possible(&mut self, base: &Unrolled, actions: Vec<Action>) -> Vec<Action> {
        let mut possible: Vec<Action> = Vec::new();
        for action in actions {
            possible.push(action);
            if self.timeline.what_if_unrolled(base, &possible, Vec::new()).is_err() {
                possible.pop();
            }
        }
        possible
    }

    fn continuations(&self, grids: [u64; DEVICES as usize]) -> Continuations {
        // No weights on the last device: what runs there has to bring them.
        let left = |number: u32| if number == 3 { 0 } else { 12 };
        let model = |number: u32| self.models[usize::from(number == 2)];
        let rhythm = |(number, grid)| Rhythm { model: model(number), left: left(number), grid };
        (0..).zip(grids).map(|(number, grid)| (lane(number), Box::new(rhythm((number, grid))) as _)).collect()
    }

    fn anew(&mut self, actions: &[Action], mut goes_on: Continuations, until: Nanos) -> Result<Forecast, WhatIfError> {
        let mut answer = Forecast::default();
        let question = Question { actions, continuations: &mut goes_on, horizon: until };
        self.timeline.what_if(NOW, question, &mut answer)?;
        Ok(answer)
    }
}

/// Work and memory of the devices that the forecast has something about.
fn agree(unrolled: &Unrolled, forecast: &Forecast) -> Result<(), TestCaseError> {
    let mut runs: Vec<RunForecast> = unrolled.runs().copied().collect();
    runs.sort_by_key(|run| (run.start, run.lane));
    prop_assert_eq!(&runs, &forecast.runs);
    let known = |device: &DeviceId| forecast.memory.iter().any(|memory| memory.device == *device);
    let devices = (0..DEVICES).map(DeviceId).filter(known);
    let memory: Vec<_> = devices.filter_map(|device| unrolled.memory(device)).collect();
    prop_assert_eq!(&memory, &forecast.memory);
    Ok(())
}

fn grids() -> impl Strategy<Value = [u64; DEVICES as usize]> {
    prop::array::uniform4(prop_oneof![Just(1u64), 10_000_000u64..90_000_000])
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn any_sequence_of_actions_gives_the_forecast_of_all(
        grids in grids(),
        steps in prop::collection::vec(step(), 1..8),
        broken in step(),
    ) {
        let mut rig = Rig::new();
        let base = rig.timeline.unroll(NOW, rig.continuations(grids), HORIZON);
        let actions = rig.actions(&steps);
        let mut actions = rig.possible(&base, actions);
        let changed = rig.timeline.what_if_unrolled(&base, &actions, Vec::new()).unwrap();
        let goes_on = rig.continuations(grids);
        agree(&changed, &rig.anew(&actions, goes_on, HORIZON).unwrap())?;
        // What one way refuses the other refuses, for the same reason.
        actions.extend(rig.actions(&[broken]));
        let (unrolled, goes_on) = (rig.timeline.what_if_unrolled(&base, &actions, Vec::new()), rig.continuations(grids));
        let anew = rig.anew(&actions, goes_on, HORIZON);
        prop_assert_eq!(unrolled.err(), anew.err());
    }

    #[test]
    fn a_trial_of_any_actions_goes_back_to_its_marks(
        grids in grids(),
        rounds in prop::collection::vec(prop::collection::vec(step(), 1..4), 1..4),
        back in any::<prop::sample::Index>(),
    ) {
        let mut rig = Rig::new();
        let base = rig.timeline.unroll(NOW, rig.continuations(grids), HORIZON);
        let mut all: Vec<Action> = Vec::new();
        let mut ends = vec![0];
        for steps in &rounds {
            all.extend(rig.actions(steps));
            all = rig.possible(&base, all);
            // An action may only be possible without a later one; the earlier rounds stay as they are.
            ends.push(all.len());
        }
        let mut seen: Vec<(Unrolled, usize)> = Vec::new();
        {
            let mut trial = rig.timeline.trial(&base);
            let mut marks = vec![trial.mark()];
            for round in ends.windows(2) {
                trial.carry_out(&all[round[0]..round[1]]).unwrap();
                seen.push((trial.current().clone(), round[1]));
                marks.push(trial.mark());
            }
            let to = back.index(marks.len());
            trial.rollback(marks[to]);
            seen.push((trial.current().clone(), ends[to]));
        }
        for (current, count) in seen {
            let goes_on = rig.continuations(grids);
            agree(&current, &rig.anew(&all[..count], goes_on, HORIZON).unwrap())?;
        }
    }

    /// Whatever ends before the nearer horizon ends at the same time; what begins before it begins at the same time.
    #[test]
    fn a_nearer_horizon_is_exact_inside(
        grids in grids(),
        steps in prop::collection::vec(step(), 1..6),
        near in 5_000_000u64..400_000_000,
    ) {
        let mut rig = Rig::new();
        let base = rig.timeline.unroll(NOW, rig.continuations(grids), HORIZON);
        let actions = rig.actions(&steps);
        let actions = rig.possible(&base, actions);
        let (goes_on, again) = (rig.continuations(grids), rig.continuations(grids));
        let far = rig.anew(&actions, goes_on, HORIZON).unwrap();
        let near = Nanos(near);
        let capped = rig.anew(&actions, again, near).unwrap();
        let inside = |forecast: &Forecast| -> Vec<RunForecast> {
            forecast.runs.iter().copied().filter(|run| run.finish < near).collect()
        };
        prop_assert_eq!(inside(&capped), inside(&far));
        prop_assert!(capped.runs.iter().all(|run| run.start < near));
        let shortages = |forecast: &Forecast| -> Vec<_> {
            let short = forecast.memory.iter().filter_map(|memory| Some((memory.device, memory.shortage?)));
            short.filter(|(_, shortage)| shortage.at < near).collect()
        };
        prop_assert_eq!(shortages(&capped), shortages(&far));
    }

    /// A device that is lost, and work that ends sooner or later than predicted, are folded in as if the future had been
    /// computed from there.
    #[test]
    fn lost_devices_and_wrong_durations_are_folded_in(
        grids in grids(),
        lost in prop::option::of(0..DEVICES),
        percent in 20u64..300,
    ) {
        let mut rig = Rig::new();
        let mut kept = rig.timeline.unroll(NOW, rig.continuations(grids), HORIZON);
        let first = kept.runs_on(DeviceId(1))[0];
        let took = Nanos((first.finish - first.start).get() * percent / 100);
        let at = first.start + took.max(Nanos(1));
        let ops = 0..rig.gmg.view().models()[0].template.op_count();
        let job = first.job.unwrap();
        let done = Event::Finished { job, ops, lane: lane(1), started: first.start, at, tokens: vec![], ended: vec![] };
        rig.apply(done);
        if let Some(device) = lost {
            rig.apply(Event::DeviceLost { device: DeviceId(device), at });
        }
        let mut fresh: Vec<_> = rig.continuations(grids).into_iter().map(Some).collect();
        let of_lane = |of: LaneId| fresh.iter_mut().find(|kept| kept.as_ref().is_some_and(|(on, _)| *on == of))?.take();
        let mut of_lane = of_lane;
        rig.timeline.fold_in(&mut kept, at, |of| of_lane(of).map(|(_, goes_on)| goes_on));
        let expected = rig.timeline.unroll(at, rig.continuations(grids), HORIZON);
        for device in (0..DEVICES).map(DeviceId) {
            prop_assert_eq!(kept.runs_on(device), expected.runs_on(device));
            prop_assert_eq!(kept.memory(device), expected.memory(device));
        }
    }
}
