//! Operators that fail, devices that go, memory that is not there.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crossbeam::channel::{Receiver, Sender, unbounded};
use slicescheduler_executor::cpu_world::CpuWorldOptions;
use slicescheduler_executor::fault::{Fault, Faults, Point};
use slicescheduler_executor::lane::{StdThreads, ThreadSpawner};
use slicescheduler_executor::registry::{BoundKernel, Call, CpuKernels, Kernel, KernelRegistry, Site};
use slicescheduler_executor::{ExecutorError, Result};
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::id::{DeviceId, LaneId};
use slicescheduler_gmg::plan::{Action, Event, Failure, Rank, Source, Work, World};
use slicescheduler_gmg::semantics::OpKind;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, Intent};

use crate::rig::{Rig, alone, prompt};

/// Works (0), fails (1) or panics (2), as told.
#[derive(Clone, Debug, Default)]
struct Faulty(Arc<AtomicU8>);

#[derive(Debug)]
struct BoundFaulty(Arc<AtomicU8>, Arc<dyn BoundKernel>);

impl Kernel for Faulty {
    fn bind(&self, site: &Site<'_>) -> Result<Arc<dyn BoundKernel>> {
        Ok(Arc::new(BoundFaulty(self.0.clone(), CpuKernels.bind(site)?)))
    }
}

impl BoundKernel for BoundFaulty {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => self.1.run(call),
            1 => Err(ExecutorError::NoNumber { kernel: "faulty", row: 3 }),
            _ => panic!("out of order"),
        }
    }
}

const LANE: LaneId = LaneId::new(DeviceId(0), 0);

#[test]
fn a_failure_or_a_panic_fails_the_job_and_nobody_else() {
    let faulty = Faulty::default();
    let mut kernels = KernelRegistry::cpu();
    kernels.register(&OpKind::SwiGlu, DType::F32, Arc::new(faulty.clone()));
    let mut rig = Rig::with_kernels(kernels);
    let messages = ["faulty: row 3 of the logits has no element that is a number", "operator 8 panicked: out of order"];
    for (mode, expected) in [1, 2].into_iter().zip(messages) {
        faulty.0.store(mode, Ordering::Relaxed);
        let request = rig.request(0, &prompt(1, 6), 3);
        let spec = rig.iteration(&[(request, u32::MAX)]);
        let job = rig.gmg.submit(spec).unwrap();
        let operators = rig.gmg.view().job(job).unwrap().op_count();
        for ops in [0..12, 12..operators] {
            rig.act(Action::Run { work: Work::Existing { job, ops }, lane: LANE, rank: Rank::OwnerLatency });
        }
        let failed = rig.event();
        let failure = Failure::Kernel { op: 8, message: expected.to_owned() };
        assert!(
            matches!(&failed, Event::Failed { job: j, lane: LANE, failure: f, .. } if *j == job && *f == failure),
            "{failed:?}"
        );
        while !rig.world.is_idle() {
            let mut events = Vec::new();
            let soon = rig.world.poll(Nanos::ZERO, &mut events).unwrap() + Nanos::ms(1);
            rig.world.poll(soon, &mut events).unwrap();
            assert_eq!(events, [], "the rest of the job was reported with it");
        }
        rig.gmg.apply(Intent::Retire { job }).unwrap();
        rig.gmg.apply(Intent::RetireRequest { request }).unwrap();
        rig.world.forget(request);
    }
    faulty.0.store(0, Ordering::Relaxed);
    let request = rig.request(0, &prompt(1, 6), 3);
    rig.run_alone(request);
    assert_eq!(rig.world.tokens(request), alone(0, &prompt(1, 6), 3));
    rig.assert_empty();
}

#[test]
fn a_token_outside_the_vocabulary_fails_its_job() {
    let mut rig = Rig::new();
    let request = rig.request(0, &[1, 256], 1);
    let spec = rig.iteration(&[(request, u32::MAX)]);
    rig.launch(spec, LANE, Rank::OwnerLatency);
    let failed = rig.event();
    let message = "embed_panels: `tokens[1]` is 256, but there are only 256".to_owned();
    assert!(matches!(failed, Event::Failed { failure, .. } if failure == Failure::Kernel { op: 0, message }));
}

/// What goes wrong where, by the number of the points of its kind so far.
#[derive(Debug)]
struct Chosen<F>(AtomicU64, F);

impl<F: Fn(Point, u64) -> Option<Fault>> Chosen<F> {
    fn options(choose: F) -> CpuWorldOptions
    where
        F: Send + Sync + 'static,
    {
        CpuWorldOptions {
            faults: Some(Arc::new(Hidden(Self(AtomicU64::new(0), choose)))),
            ..CpuWorldOptions::default()
        }
    }
}

/// Closures have no `Debug`.
struct Hidden<F>(Chosen<F>);

impl<F> std::fmt::Debug for Hidden<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hidden")
    }
}

impl<F: Fn(Point, u64) -> Option<Fault> + Send + Sync> Faults for Hidden<F> {
    fn at(&self, point: Point) -> Option<Fault> {
        (self.0.1)(point, self.0.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Both tenants have a request, and the first device goes in the middle of it.
fn the_other_tenant_goes_on_without(mut rig: Rig, lost: DeviceId) {
    let expected = alone(1, &prompt(3, 9), 5);
    let (mine, others) = (rig.request(0, &prompt(1, 6), 3), rig.request(1, &prompt(3, 9), 5));
    let spec = rig.iteration(&[(mine, u32::MAX)]);
    rig.launch(spec, LANE, Rank::OwnerLatency);
    let gone = rig.event();
    assert!(matches!(gone, Event::DeviceLost { device, .. } if device == lost), "{gone:?}");
    assert!(rig.world.is_idle());
    rig.run_alone(others);
    assert_eq!(rig.world.tokens(others), expected);
    assert!(rig.world.tokens(mine).is_empty());
}

#[test]
fn a_device_that_is_lost_takes_nothing_else_with_it() {
    let options = Chosen::options(|point, _| match point {
        Point::Operator { lane, op: 7 } if lane == LANE => Some(Fault::LosesDevice),
        _ => None,
    });
    the_other_tenant_goes_on_without(Rig::with(options, &StdThreads).unwrap(), DeviceId(0));
}

/// In the middle of a job, with another one of the same tenant behind it on the lane.
#[test]
fn a_lane_that_is_poisoned_is_a_lost_device_and_takes_nothing_else_with_it() {
    let options = Chosen::options(|point, _| match point {
        Point::Operator { lane, op: 5 } if lane == LANE => Some(Fault::PoisonsLane),
        _ => None,
    });
    let mut rig = Rig::with(options, &StdThreads).unwrap();
    let behind = rig.request(0, &prompt(2, 4), 2);
    let (mine, others) = (rig.request(0, &prompt(1, 6), 3), rig.request(1, &prompt(3, 9), 5));
    for request in [mine, behind] {
        let spec = rig.iteration(&[(request, u32::MAX)]);
        rig.launch(spec, LANE, Rank::OwnerLatency);
    }
    let gone = rig.event();
    assert!(matches!(gone, Event::DeviceLost { device: DeviceId(0), .. }), "{gone:?}");
    assert!(rig.world.is_idle());
    rig.run_alone(others);
    assert_eq!(rig.world.tokens(others), alone(1, &prompt(3, 9), 5));
    assert!(rig.world.tokens(mine).is_empty() && rig.world.tokens(behind).is_empty());
    rig.assert_empty();
}

/// One operator of the first device blocks until the test lets it go.
fn stalling(op: u32, patience: Option<Nanos>) -> (CpuWorldOptions, Receiver<()>, Sender<()>) {
    let (begun_in, begun) = unbounded();
    let (go, go_out) = unbounded();
    let options = Chosen::options(move |point, _| {
        if matches!(point, Point::Operator { lane, op: at } if lane == LANE && at == op) && begun_in.send(()).is_ok() {
            let _ = go_out.recv();
        }
        None
    });
    (CpuWorldOptions { patience, ..options }, begun, go)
}

#[test]
fn a_lane_that_stalls_holds_up_nobody_else_and_goes_on_when_it_can() {
    let (options, begun, go) = stalling(6, None);
    let mut rig = Rig::with(options, &StdThreads).unwrap();
    let (mine, same, others) =
        (rig.request(0, &prompt(1, 6), 1), rig.request(0, &prompt(2, 5), 4), rig.request(1, &prompt(3, 9), 5));
    let spec = rig.iteration(&[(mine, u32::MAX)]);
    rig.launch(spec, LANE, Rank::OwnerLatency);
    begun.recv().unwrap();
    rig.run_alone(others);
    while !rig.has_ended(same) {
        let spec = rig.iteration(&[(same, u32::MAX)]);
        rig.launch(spec, LaneId::new(DeviceId(0), 1), Rank::GuestBestEffort);
        rig.event();
    }
    go.send(()).unwrap();
    rig.event();
    assert_eq!(rig.world.tokens(mine), alone(0, &prompt(1, 6), 1));
    assert_eq!(rig.world.tokens(same), alone(0, &prompt(2, 5), 4));
    assert_eq!(rig.world.tokens(others), alone(1, &prompt(3, 9), 5));
    rig.assert_empty();
}

/// By the world's clock, of which the test has two hours pass.
#[test]
fn a_lane_that_stalls_for_longer_than_the_host_waits_is_a_lost_device() {
    let (options, begun, go) = stalling(6, Some(Nanos::secs(3600)));
    let mut rig = Rig::with(options, &StdThreads).unwrap();
    let (mine, others) = (rig.request(0, &prompt(1, 6), 3), rig.request(1, &prompt(3, 9), 5));
    let spec = rig.iteration(&[(mine, u32::MAX)]);
    rig.launch(spec, LANE, Rank::OwnerLatency);
    begun.recv().unwrap();
    // The first look at the operator, and one within its time.
    let mut events = Vec::new();
    rig.world.poll(Nanos::ZERO, &mut events).unwrap();
    rig.clock.add(Nanos::secs(1800));
    rig.world.poll(Nanos::ZERO, &mut events).unwrap();
    assert_eq!(events, []);
    rig.clock.add(Nanos::secs(3600));
    let gone = rig.event();
    assert!(matches!(gone, Event::DeviceLost { device: DeviceId(0), .. }), "{gone:?}");
    rig.run_alone(others);
    assert_eq!(rig.world.tokens(others), alone(1, &prompt(3, 9), 5));
    // What comes of the operator after all is nobody's.
    go.send(()).unwrap();
    let again = rig.request(1, &prompt(4, 7), 2);
    rig.run_alone(again);
    assert_eq!(rig.world.tokens(again), alone(1, &prompt(4, 7), 2));
    assert!(rig.world.tokens(mine).is_empty());
    rig.assert_empty();
}

#[test]
fn a_copy_for_which_there_is_no_memory_is_an_error_and_its_request_goes_on() {
    let options = Chosen::options(|point, _| matches!(point, Point::Copy { .. }).then_some(Fault::Fails));
    let mut rig = Rig::with(options, &StdThreads).unwrap();
    let request = rig.request(0, &prompt(1, 6), 3);
    let refused = rig.world.keep_kv(request, rig.models[0], rig.gmg.view());
    assert!(matches!(refused, Err(ExecutorError::OutOfMemory { .. })));
    rig.run_alone(request);
    assert_eq!((rig.world.tokens(request), rig.world.kept_tokens(request)), (&alone(0, &prompt(1, 6), 3)[..], 0));
}

/// Takes back the thread of one lane at once.
struct Takes(String);

impl ThreadSpawner for Takes {
    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        if name == self.0 { Ok(()) } else { StdThreads.spawn(name, body) }
    }
}

#[test]
fn a_lane_whose_thread_is_taken_away_is_a_lost_device() {
    let rig = Rig::with(CpuWorldOptions::default(), &Takes(LANE.to_string())).unwrap();
    the_other_tenant_goes_on_without(rig, DeviceId(0));
}

#[test]
fn memory_that_is_not_there_is_an_error_before_anything_starts() {
    let options = Chosen::options(|point, _| match point {
        Point::Allocation { device: DeviceId(1), .. } => Some(Fault::Fails),
        _ => None,
    });
    assert!(matches!(Rig::with(options, &StdThreads), Err(ExecutorError::OutOfMemory { .. })));
}

#[test]
fn weights_that_fail_on_the_way_are_copied_again_and_a_device_that_takes_none_is_lost() {
    for (failures, arrives) in [(2, true), (3, false)] {
        let options = Chosen::options(move |point, number| match point {
            // The first two loads are those of the residents.
            Point::Load { device: DeviceId(1), .. } if number >= 4 && number < 4 + failures => Some(Fault::Fails),
            _ => None,
        });
        let mut rig = Rig::with(options, &StdThreads).unwrap();
        let (model, device) = (rig.models[0], DeviceId(1));
        rig.act(Action::Prefetch { model, device, source: Source::Device(DeviceId(0)) });
        match rig.event() {
            Event::WeightsLoaded { .. } => assert!(arrives),
            Event::DeviceLost { device: DeviceId(1), .. } => assert!(!arrives),
            other => panic!("{other:?}"),
        }
        let request = rig.request(0, &prompt(1, 6), 3);
        rig.run_alone(request);
        assert_eq!(rig.world.tokens(request), alone(0, &prompt(1, 6), 3));
    }
}

/// Every few hundred operators of the first tenant's device, one fails or panics. Each of its requests ends
/// in its tokens or in the failure of its job; the second tenant gets its tokens, every time; and in the end
/// nobody holds a byte.
fn soak(operators: u64) {
    const PROMPTS: u32 = 6;
    let options = Chosen::options(|point, number| match point {
        Point::Operator { lane, .. } if lane.device == DeviceId(0) => {
            // As SplitMix64 mixes its state.
            let hash = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20;
            [Some(Fault::Fails), Some(Fault::Panics)].get((hash % 300) as usize).copied().flatten()
        }
        _ => None,
    });
    let mut rig = Rig::with(options, &StdThreads).unwrap();
    let ask = |tenant: u32, kind: u32| (prompt(kind + 7 * tenant, 3 + 2 * kind), 2 + kind);
    let expected = |tenant| {
        let of = |kind| {
            let (prompt, output) = ask(tenant, kind);
            alone(tenant as usize, &prompt, output)
        };
        (0..PROMPTS).map(of).collect::<Vec<_>>()
    };
    let expected = [expected(0), expected(1)];
    let mut under_way = [None; 2];
    let (mut round, mut failed, mut ended) = (0, 0, [0; 2]);
    while rig.world.operators() < operators || under_way.iter().any(Option::is_some) {
        for (tenant, under_way) in under_way.iter_mut().enumerate() {
            if under_way.is_some() || rig.world.operators() >= operators {
                continue;
            }
            let kind = round % PROMPTS;
            round += 1;
            let (prompt, output) = ask(tenant as u32, kind);
            let request = rig.request(tenant, &prompt, output);
            let spec = rig.iteration(&[(request, 4)]);
            let job = rig.launch(spec, LaneId::new(DeviceId(tenant as u32), 0), Rank::OwnerLatency);
            *under_way = Some((request, kind, job));
        }
        for event in rig.events() {
            let (Event::Finished { job, .. } | Event::Failed { job, .. }) = event else { panic!("{event:?}") };
            let tenant = usize::from(under_way[0].is_none_or(|(_, _, other)| other != job));
            let (request, kind, _) = under_way[tenant].take().unwrap();
            if let Event::Failed { failure, .. } = event {
                assert!(tenant == 0 && matches!(failure, Failure::Kernel { .. }), "{failure}");
                rig.give_up(job, request);
                failed += 1;
            } else if rig.has_ended(request) {
                assert_eq!(rig.world.tokens(request), expected[tenant][kind as usize]);
                rig.leave(request);
                ended[tenant] += 1;
            } else {
                let spec = rig.iteration(&[(request, 4)]);
                let job = rig.launch(spec, LaneId::new(DeviceId(tenant as u32), 0), Rank::OwnerLatency);
                under_way[tenant] = Some((request, kind, job));
            }
        }
    }
    rig.assert_empty();
    assert!(failed > 0 && ended.iter().all(|&count| count > 0), "{failed} failed, {ended:?} ended");
    println!("{} operators, {failed} requests failed, {ended:?} ended", rig.world.operators());
}

#[test]
fn requests_end_in_tokens_or_in_an_error_under_random_faults() {
    soak(5_000);
}

#[test]
#[ignore = "some seconds; .ci/full runs it"]
fn a_million_operators_with_random_faults_leak_nothing() {
    soak(1_000_000);
}
