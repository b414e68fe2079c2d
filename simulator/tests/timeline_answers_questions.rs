//! Questions to a timeline, with answers calculated from the durations of a job.

#![allow(clippy::unwrap_used, clippy::panic)]

use slicescheduler_gmg::cluster::{Cluster, DeviceSpec, Endpoint};
use slicescheduler_gmg::delta::{Effect, Intent, NewRequest};
use slicescheduler_gmg::graph::OpView;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, ModelId, NodeId, Version};
use slicescheduler_gmg::job::{JobSpec, KvGrowth, Row};
use slicescheduler_gmg::memory::DeviceLayout;
use slicescheduler_gmg::plan::{
    Action, BatchLimits, Continuation, Event, Forecast, Plan, Question, Rank, Source, WhatIf, WhatIfError, Work,
};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::templates::{DenseSpec, dense};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_gmg::{Container, Gmg, GmgView, Model, Tenant};
use slicescheduler_simulator::{Horizon, JobCost, Roofline, Timeline};

const TOKENS: u64 = 512;

struct Planner {
    gmg: Gmg,
    model: ModelId,
    guest: ModelId,
    timeline: Timeline,
}

fn lane(device: u32) -> LaneId {
    LaneId::new(DeviceId(device), 0)
}

fn binding() -> Binding {
    Binding::iteration(TOKENS, 1, TOKENS, TOKENS * (TOKENS + 1) / 2)
}

impl Planner {
    /// Four devices: `chat` lives on 0 and 1, `batch` on 2, nobody on 3.
    fn new() -> Self {
        let cluster = Cluster::builder()
            .node("a", |node| node.devices(4, DeviceSpec::h100_sxm()).nvlink(Bandwidth::gb_per_s(450)))
            .build()
            .unwrap();
        let mut gmg = Gmg::new(cluster);
        let model = || {
            Model::new("llama3-8b", dense(&DenseSpec::llama3_8b()).unwrap().into()).kv_bytes_per_token(Bytes::kib(128))
        };
        let chat = gmg.add_tenant(Tenant::latency_sensitive("chat")).unwrap();
        let batch = gmg.add_tenant(Tenant::best_effort("batch")).unwrap();
        let chat = gmg.add_model(chat, model(), Container::replicas([0, 1])).unwrap();
        let guest = gmg.add_model(batch, model(), Container::replicas([2])).unwrap();
        let timeline = Timeline::new(gmg.publish(), Roofline::default(), Horizon::secs(2));
        Self { gmg, model: chat, guest, timeline }
    }

    fn spec(&self) -> JobSpec {
        JobSpec::of(self.model).bind(binding())
    }

    fn cost(&self) -> JobCost {
        JobCost::bind(&Roofline::default(), &self.gmg.view().models()[0].template, &binding(), &DeviceSpec::h100_sxm())
    }

    fn whole(&self) -> Nanos {
        self.cost().total(0..self.ops())
    }

    fn ops(&self) -> u32 {
        self.gmg.view().models()[0].template.op_count()
    }

    fn activations(&self) -> Bytes {
        self.gmg.view().models()[0].template.activation_bytes(&binding())
    }

    fn submit(&mut self) -> JobId {
        let applied = self.gmg.apply(Intent::SubmitJob(self.spec().into())).unwrap();
        self.timeline.observe(&applied, self.gmg.view()).unwrap();
        applied.effect.job().unwrap()
    }

    fn new_run(&self, device: u32, rank: Rank) -> Action {
        Action::run_new(self.spec(), lane(device)).with_rank(rank)
    }

    /// Has new work placed and lets the timeline know.
    fn follow(&mut self, device: u32, rank: Rank) -> JobId {
        let plan = Plan { actions: [self.new_run(device, rank)].into_iter().collect(), ..Plan::default() };
        let accepted = self.gmg.accept(plan);
        for applied in &accepted.applied {
            self.timeline.observe(applied, self.gmg.view()).unwrap();
        }
        accepted.applied[0].effect.job().unwrap()
    }

    fn what_if(&mut self, now: Nanos, actions: &[Action]) -> Result<Forecast, WhatIfError> {
        let mut answer = Forecast::default();
        let question = Question { actions, continuations: &mut [], horizon: Nanos::secs(10) };
        self.timeline.what_if(now, question, &mut answer)?;
        Ok(answer)
    }

    fn refusal(&mut self, actions: &[Action]) -> String {
        self.what_if(Nanos::ZERO, actions).unwrap_err().to_string()
    }
}

#[test]
fn new_work_runs_in_order_of_rank_and_holds_its_memory() {
    let mut planner = Planner::new();
    let (whole, now) = (planner.whole(), Nanos::ms(7));
    let low = planner.new_run(0, Rank::GuestBestEffort);
    let high = planner.new_run(0, Rank::OwnerLatency);
    let answer = planner.what_if(now, &[low, high]).unwrap();
    assert_eq!(answer.finish_of_action(1), Some(now + whole));
    assert_eq!(answer.finish_of_action(0), Some(now + whole + whole));
    assert_eq!(answer.operators, 2 * u64::from(planner.ops()));
    let weights = planner.gmg.view().models()[0].weights;
    assert_eq!(answer.peak(DeviceId(0)), weights + planner.activations() + planner.activations());
    assert_eq!(answer.memory.len(), 1, "only the device of the question: {:?}", answer.memory);
}

#[test]
fn the_same_question_has_the_same_answer() {
    let mut planner = Planner::new();
    let actions = [planner.new_run(0, Rank::OwnerLatency), planner.new_run(1, Rank::OwnerLatency)];
    let first = planner.what_if(Nanos::ms(1), &actions).unwrap();
    planner.what_if(Nanos::ms(2), &actions[..1]).unwrap();
    assert_eq!(planner.what_if(Nanos::ms(1), &actions).unwrap(), first);
}

#[test]
fn simulating_the_whole_cluster_gives_the_same_answer() {
    let mut planner = Planner::new();
    for device in [0, 1, 0, 1] {
        planner.follow(device, Rank::OwnerLatency);
    }
    let fetch = Action::prefetch(planner.model, DeviceId(3), Source::Device(DeviceId(0)));
    let actions = [planner.new_run(1, Rank::OwnerLatency), fetch, planner.new_run(3, Rank::GuestLatency)];
    let touched = planner.what_if(Nanos::ms(1), &actions).unwrap();
    planner.timeline = planner.timeline.whole_cluster(true);
    let whole = planner.what_if(Nanos::ms(1), &actions).unwrap();
    assert_eq!((&whole.runs, &whole.memory), (&touched.runs, &touched.memory));
    assert_eq!(whole.operators, touched.operators + 2 * u64::from(planner.ops()), "the jobs on device 0 too");
}

#[test]
fn work_waits_for_the_weights_that_are_fetched_for_it() {
    let mut planner = Planner::new();
    let fetch = Action::prefetch(planner.model, DeviceId(3), Source::Device(DeviceId(0)));
    let run = planner.new_run(3, Rank::GuestLatency);
    let answer = planner.what_if(Nanos::ZERO, &[fetch.clone(), run.clone()]).unwrap();
    let view = planner.gmg.view();
    let (cluster, weights) = (view.cluster(), view.models()[0].weights);
    let route = cluster.route(Endpoint::Device(DeviceId(0)), Endpoint::Device(DeviceId(3))).unwrap();
    let arrival = route.time_for(cluster, weights);
    assert_eq!(answer.runs[0].start, arrival);
    assert_eq!(answer.peak(DeviceId(3)), weights + planner.activations());

    // Two at once from the host share its link: each takes twice as long, but for the latency.
    let host = |model| Action::prefetch(model, DeviceId(3), Source::Host);
    let both = planner.what_if(Nanos::ZERO, &[host(planner.model), host(planner.guest), run.clone()]).unwrap();
    let view = planner.gmg.view();
    let route = view.cluster().route(Endpoint::Host(NodeId(0)), Endpoint::Device(DeviceId(3))).unwrap();
    let latency = route.latency(view.cluster());
    let alone = route.time_for(view.cluster(), weights) - latency;
    let start = both.runs[0].start - latency;
    assert!(start.get().abs_diff(alone.times(2).get()) <= 2, "{start} is not twice {alone}");

    // Once it is accepted, the transfer is part of what is known.
    let plan = Plan { actions: [fetch].into_iter().collect(), ..Plan::default() };
    for applied in planner.gmg.accept(plan).applied {
        planner.timeline.observe(&applied, planner.gmg.view()).unwrap();
    }
    let later = planner.what_if(Nanos::ms(1), &[run]).unwrap();
    assert_eq!(later.runs[0].start, arrival);
}

#[test]
fn actions_that_cannot_be_carried_out_are_refused_with_their_number() {
    let mut planner = Planner::new();
    let job = planner.submit();
    let ops = planner.ops();
    let run = planner.new_run(0, Rank::OwnerLatency);
    let nowhere = planner.new_run(3, Rank::OwnerLatency);
    assert_eq!(
        planner.refusal(&[run.clone(), nowhere]),
        "action 1: the weights of model 0 are not on device 3; prefetch them first"
    );
    assert_eq!(
        planner.refusal(&[planner.new_run(9, Rank::OwnerLatency)]),
        "action 0: there is no device 9; the cluster has 4"
    );
    assert_eq!(
        planner.refusal(&[Action::run(job, 8..24, lane(0))]),
        format!("action 0: operators 0..8 of {job} are neither done nor placed")
    );
    assert_eq!(
        planner.refusal(&[Action::run(job, 0..ops + 1, lane(0))]),
        format!("action 0: {job} has no operators 0..{}; it has {ops}", ops + 1)
    );
    assert_eq!(
        planner.refusal(&[Action::run(job, 0..8, lane(0)), Action::run(job, 4..ops, lane(0))]),
        format!("action 1: operators 4..8 of {job} are done or placed already")
    );
    let evict = Action::EvictWeights { model: planner.model, device: DeviceId(0) };
    assert_eq!(
        planner.refusal(&[evict.clone(), run]),
        "action 1: the weights of model 0 are not on device 0; prefetch them first"
    );
    assert_eq!(planner.refusal(&[evict.clone(), evict]), "action 1: the weights of model 0 are not on device 0");
    let fetch = Action::prefetch(planner.model, DeviceId(1), Source::Host);
    assert_eq!(planner.refusal(&[fetch]), "action 0: the weights of model 0 are on device 1 already, or on their way");
    let limits = BatchLimits { tokens: 1, sequences: 1, new_blocks: 1, keep_free: 0, not_due_before: Nanos::ZERO };
    let replica = slicescheduler_gmg::id::ReplicaId { tenant: slicescheduler_gmg::id::TenantId(0), index: 0 };
    let form = Action::FormBatch { replica, lane: lane(0), limits, rank: Rank::OwnerLatency };
    assert_eq!(planner.refusal(&[form]), "action 0: a batch must be formed before it can be forecast");
    let unbound = Action::run_new(JobSpec::of(planner.model), lane(0));
    assert!(planner.refusal(&[unbound]).contains("tokens"));
}

#[test]
fn the_pieces_of_a_job_run_one_after_the_other() {
    let mut planner = Planner::new();
    let (job, ops) = (planner.submit(), planner.ops());
    let split = [Action::run(job, 0..100, lane(0)), Action::run(job, 100..ops, lane(0))];
    let answer = planner.what_if(Nanos::ZERO, &split).unwrap();
    assert_eq!(answer.finish_of_job(job), Some(planner.whole()));
    assert_eq!(answer.finish_of_action(0), Some(planner.cost().total(0..100)));
}

/// The first operator of a layer needs only the residual stream of the layer before: 512 x 4096
/// halves.
#[test]
fn a_job_spread_over_devices_pays_for_what_crosses() {
    let mut planner = Planner::new();
    let (job, ops) = (planner.submit(), planner.ops());
    let template = planner.gmg.view().models()[0].template.clone();
    let in_layer_8 = |op: &OpView<'_>| op.block().is_some() && op.repetition() == 8;
    let cut = template.ops().find(in_layer_8).unwrap().index().0;
    let answer = planner
        .what_if(Nanos::ZERO, &[Action::run(job, 0..cut, lane(0)), Action::run(job, cut..ops, lane(1))])
        .unwrap();
    let view = planner.gmg.view();
    let route = view.cluster().route(Endpoint::Device(DeviceId(0)), Endpoint::Device(DeviceId(1))).unwrap();
    let crossing = route.time_for(view.cluster(), Bytes(TOKENS * 4096 * 2));
    let cost = planner.cost();
    let first = cost.total(0..cut);
    assert_eq!(answer.finish_of_action(0), Some(first));
    let second = answer.runs.iter().find(|run| run.action == Some(1)).unwrap();
    assert_eq!(second.start, first + crossing);
    assert_eq!(second.finish, first + crossing + cost.total(cut..ops));
    let resident = view.models()[0].weights + planner.activations();
    assert_eq!(answer.peak(DeviceId(0)), resident);
    assert_eq!(answer.peak(DeviceId(1)), resident + Bytes(TOKENS * 4096 * 2));
}

#[test]
fn sequences_that_are_released_make_room() {
    let mut planner = Planner::new();
    let layout = DeviceLayout { kv_block: Bytes::mib(2), ..DeviceLayout::of(Bytes::gb(80)) };
    let mut gmg = Gmg::new(planner.gmg.view().cluster().clone());
    gmg.lay_out(DeviceId(0), layout).unwrap();
    let chat = gmg.add_tenant(Tenant::latency_sensitive("chat")).unwrap();
    let model = Model::clone(&planner.gmg.view().models()[0]);
    planner.model = gmg.add_model(chat, model, Container::replicas([0])).unwrap();
    planner.timeline = Timeline::new(gmg.publish(), Roofline::default(), Horizon::secs(2));
    planner.gmg = gmg;
    let entered = planner
        .gmg
        .apply(Intent::Submit(NewRequest { tenant: chat, arrival: Nanos::ZERO, prompt: 512, max_output: 8 }))
        .unwrap();
    planner.timeline.observe(&entered, planner.gmg.view()).unwrap();
    let Effect::Request(request) = entered.effect else { panic!() };
    let mut spec = planner.spec();
    spec.rows.push(Row { request, position: 0, tokens: 512, emits: true });
    spec.growth.push(KvGrowth { request, blocks: 32 });
    let run = Action::run_new(spec, lane(0)).with_rank(Rank::OwnerLatency);
    let asked = planner.what_if(Nanos::ZERO, std::slice::from_ref(&run)).unwrap();
    let plan = Plan { actions: [run].into_iter().collect(), ..Plan::default() };
    let accepted = planner.gmg.accept(plan);
    for applied in &accepted.applied {
        planner.timeline.observe(applied, planner.gmg.view()).unwrap();
    }
    assert_eq!(asked.peak(DeviceId(0)), planner.gmg.view().memory(DeviceId(0)).unwrap().ledger().peak());

    // Due 400 ms after its arrival, it is done well before.
    let slack = planner.timeline.slack(planner.gmg.view(), request).unwrap();
    assert_eq!(slack.nanos(), (Nanos::ms(400) - planner.whole()).get() as i64);
    assert!(!slack.is_late());

    let job = accepted.applied[0].effect.job().unwrap();
    let at = planner.whole();
    let done = Event::Finished {
        job,
        ops: 0..planner.ops(),
        lane: lane(0),
        started: Nanos::ZERO,
        at,
        tokens: vec![],
        ended: vec![],
    };
    let applied = planner.gmg.apply(done).unwrap();
    planner.timeline.observe(&applied, planner.gmg.view()).unwrap();
    let kept = planner.what_if(at, &[planner.new_run(0, Rank::OwnerLatency)]).unwrap().peak(DeviceId(0));
    let release = Action::ReleaseKv { request, device: DeviceId(0) };
    let freed = planner.what_if(at, &[release, planner.new_run(0, Rank::OwnerLatency)]).unwrap().peak(DeviceId(0));
    // The peak is what was in use before the question or after its actions, whichever is more.
    let weights = planner.gmg.view().models()[0].weights;
    assert_eq!(kept, weights + Bytes::mib(64) + planner.activations());
    assert_eq!(freed, (weights + Bytes::mib(64)).max(weights + planner.activations()));
}

/// A sequence of iterations, each two tokens smaller than the one before.
#[derive(Clone, Debug)]
struct Shrinking(u64);

impl Continuation for Shrinking {
    fn next(&mut self, finished: &JobSpec, _at: Nanos) -> Option<JobSpec> {
        self.0 = self.0.checked_sub(1)?;
        let mut next = finished.clone();
        let tokens = next.binding.value(slicescheduler_gmg::shape::TOKENS) - 2;
        next.binding.set(slicescheduler_gmg::shape::TOKENS, tokens);
        Some(next)
    }

    fn fork(&self) -> Box<dyn Continuation> {
        Box::new(self.clone())
    }
}

#[test]
fn continuations_unroll_until_they_end_or_the_horizon_comes() {
    let mut planner = Planner::new();
    let run = planner.new_run(0, Rank::OwnerLatency);
    let shorter = |by: u64| {
        let mut spec = planner.spec();
        spec.binding.set(slicescheduler_gmg::shape::TOKENS, TOKENS - by);
        Action::run_new(spec, lane(0)).with_rank(Rank::OwnerLatency)
    };
    let spelled_out = [run.clone(), shorter(2), shorter(4), shorter(6)];
    let expected = planner.what_if(Nanos::ms(1), &spelled_out).unwrap();
    let mut answer = Forecast::default();
    let original: Box<dyn Continuation> = Box::new(Shrinking(3));
    let ask = |planner: &mut Planner, horizon, answer: &mut Forecast| {
        let continuations = &mut [(lane(0), original.fork())];
        let question = Question { actions: std::slice::from_ref(&run), continuations, horizon };
        planner.timeline.what_if(Nanos::ms(1), question, answer).unwrap();
    };
    ask(&mut planner, Nanos::secs(10), &mut answer);
    let times = |forecast: &Forecast| forecast.runs.iter().map(|run| (run.start, run.finish)).collect::<Vec<_>>();
    assert_eq!(times(&answer), times(&expected));
    let second = answer.runs[1].start;
    ask(&mut planner, second + Nanos(1), &mut answer);
    assert_eq!(times(&answer), times(&expected)[..2]);
    ask(&mut planner, second, &mut answer);
    assert_eq!(times(&answer), times(&expected)[..1]);
}

/// A world may cut and resume work without a word. The guest starts at 0, the owner comes at 5 ms,
/// starts at the guest's next boundary and is reported as finished; the guest has then done what it
/// did before the boundary.
#[test]
fn what_was_cut_without_a_report_keeps_what_it_had_done() {
    let mut planner = Planner::new();
    let report = |planner: &mut Planner, event: Event| {
        let applied = planner.gmg.apply(event).unwrap();
        planner.timeline.observe(&applied, planner.gmg.view()).unwrap();
    };
    let (ops, whole, at) = (planner.ops(), planner.whole(), Nanos::ms(5));
    let guest = planner.follow(0, Rank::GuestBestEffort);
    report(&mut planner, Event::Timer { at });
    let owner = planner.follow(0, Rank::OwnerLatency);
    let (next, boundary) = planner.cost().boundary_at_or_after(0..ops, at);
    let expected = boundary + whole + planner.cost().total(next..ops);
    let before = planner.what_if(at, &[]).unwrap();
    assert_eq!(before.finish_of_job(owner), Some(boundary + whole));
    assert_eq!(before.finish_of_job(guest), Some(expected));

    // The owner is 3 ms faster than was thought.
    let end = boundary + whole - Nanos::ms(3);
    let (tokens, ended) = (Vec::new(), Vec::new());
    let done = Event::Finished { job: owner, ops: 0..ops, lane: lane(0), started: boundary, at: end, tokens, ended };
    report(&mut planner, done);
    let after = planner.what_if(end, &[]).unwrap();
    assert_eq!(after.finish_of_job(guest), Some(expected - Nanos::ms(3)));

    // The guest is late: it ends now, and what comes next starts then.
    let late = expected + Nanos::ms(9);
    let next = planner.new_run(0, Rank::OwnerLatency);
    let answer = planner.what_if(late, &[next]).unwrap();
    assert_eq!(answer.finish_of_job(guest), Some(late));
    assert_eq!(answer.finish_of_action(0), Some(late + whole));
}

#[test]
fn missing_deltas_are_noticed() {
    let mut planner = Planner::new();
    let seen = planner.timeline.version();
    planner.gmg.apply(Intent::SubmitJob(planner.spec().into())).unwrap();
    let applied = planner.gmg.apply(Intent::SubmitJob(planner.spec().into())).unwrap();
    let gap = planner.timeline.observe(&applied, planner.gmg.view());
    assert_eq!(gap, Err(WhatIfError::Gap { seen, next: Version(seen.0 + 2) }));
}

#[test]
fn planners_see_where_unplaced_work_would_run_and_what_stays_idle() {
    let mut planner = Planner::new();
    let (first, second, whole) = (planner.submit(), planner.submit(), planner.whole());
    let ops = planner.ops();
    assert_eq!(planner.timeline.finish(first), whole);
    assert_eq!(planner.timeline.finish(second), whole + whole);
    let there = planner.timeline.ask(&[Action::run(second, 0..ops, lane(1))]).unwrap();
    assert_eq!((there.finish(first), there.finish(second)), (whole, whole));
    let partly = planner.timeline.ask(&[Action::run(second, 8..24, lane(1))]).unwrap();
    assert!(partly.finish(second) > whole + whole, "the transfers cost something");
    assert_eq!(partly.finish(first), whole);

    let slices: Vec<_> = planner.timeline.slices().longer_than(Nanos::ms(1)).collect();
    let at = |device: u32| slices.iter().find(|slice| slice.lane == lane(device)).unwrap();
    assert_eq!(slices.len(), 4);
    assert_eq!((at(0).start, at(0).end), (whole + whole, Nanos::secs(2)));
    assert_eq!((at(3).start, at(3).free), (Nanos::ZERO, Bytes::gb(80)));
    let weights = planner.gmg.view().models()[0].weights;
    assert_eq!(at(1).free, Bytes::gb(80) - weights);
    assert_eq!(planner.timeline.slices().longer_than(Nanos::secs(2) - Nanos(1)).count(), 3);
}

#[test]
fn work_waits_for_the_jobs_that_come_before_it() {
    let mut planner = Planner::new();
    let (whole, ops) = (planner.whole(), planner.ops());
    let first = planner.submit();
    let next = planner.spec().after(first);
    let run_next = Action::run_new(next.clone(), lane(1)).with_rank(Rank::OwnerLatency);
    let applied = planner.gmg.apply(Intent::SubmitJob(next.into())).unwrap();
    planner.timeline.observe(&applied, planner.gmg.view()).unwrap();
    let second = applied.effect.job().unwrap();

    assert_eq!(planner.timeline.finish(second), whole + whole);
    let there = planner.timeline.ask(&[Action::run(second, 0..ops, lane(1))]).unwrap();
    assert_eq!(there.finish(second), whole + whole, "elsewhere it waits just as long");
    let third = planner.timeline.ask(std::slice::from_ref(&run_next)).unwrap();
    assert_eq!(third.finish_of_action(0), whole + whole);
    assert_eq!(
        planner.refusal(&[run_next]),
        format!("action 0: it waits for {first}, whose last operators are not placed")
    );
}

#[test]
fn what_will_never_run_is_not_forecast() {
    let mut planner = Planner::new();
    let (job, ops) = (planner.submit(), planner.ops());
    let applied = planner.gmg.apply(Intent::Cancel { job }).unwrap();
    planner.timeline.observe(&applied, planner.gmg.view()).unwrap();
    assert_eq!(planner.timeline.finish(job), Nanos::MAX);
    let refusal = format!("action 0: {job} has operators that will never run");
    assert_eq!(planner.refusal(&[Action::run(job, 0..ops, lane(0))]), refusal);
}

#[test]
fn a_lost_device_takes_no_work() {
    let mut planner = Planner::new();
    let applied = planner.gmg.apply(Event::DeviceLost { device: DeviceId(0), at: Nanos::ms(1) }).unwrap();
    planner.timeline.observe(&applied, planner.gmg.view()).unwrap();
    assert_eq!(planner.refusal(&[planner.new_run(0, Rank::OwnerLatency)]), "action 0: device 0 is lost");
    assert!(planner.what_if(Nanos::ms(1), &[planner.new_run(1, Rank::OwnerLatency)]).is_ok());
}

#[test]
fn recalled_work_can_be_looked_at_before_it_is_recalled() {
    let mut planner = Planner::new();
    let guest = JobSpec::of(planner.guest).bind(binding());
    let run = Action::Run { work: Work::New(Box::new(guest)), lane: lane(2), rank: Rank::OwnerBestEffort };
    let plan = Plan { actions: [run].into_iter().collect(), ..Plan::default() };
    let accepted = planner.gmg.accept(plan);
    for applied in &accepted.applied {
        planner.timeline.observe(applied, planner.gmg.view()).unwrap();
    }
    let job = accepted.applied[0].effect.job().unwrap();
    let now = Nanos::us(100);
    let recall = Action::Recall { job, fate: slicescheduler_gmg::plan::Fate::Keep };
    let answer = planner.what_if(now, &[recall]).unwrap();
    let (op, at) = planner.cost().boundary_at_or_after(0..planner.ops(), now);
    assert!(op > 0 && op < planner.ops());
    assert_eq!(answer.runs.iter().map(|run| (run.finish, run.recalled)).collect::<Vec<_>>(), [(at, true)]);
    let elsewhere = planner.submit();
    assert_eq!(
        planner.refusal(&[Action::Recall { job: elsewhere, fate: slicescheduler_gmg::plan::Fate::Keep }]),
        format!("action 0: {elsewhere} is not on a lane")
    );
}
