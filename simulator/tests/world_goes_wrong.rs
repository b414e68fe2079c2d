//! A simulated world in which devices are slow or fail, kernels fail or hang, links are cut.
//!
//! Every operator takes 1 us and demands all of the arithmetic; there is no noise and no launch gap.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use proptest::prelude::*;

use slicescheduler_gmg::cluster::{Cluster, DeviceSpec, Endpoint};
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, LinkId, ModelId, NodeId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::memory::Region;
use slicescheduler_gmg::plan::{Command, Event, Failure, Launch, Rank, Source, World};
use slicescheduler_gmg::semantics::OpKind;
use slicescheduler_gmg::shape::{Binding, Shape, TOKENS};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_gmg::{Container, Gmg, GmgView, Model, Tenant};
use slicescheduler_simulator::CostModel;
use slicescheduler_simulator::cost::{Confidence, Estimate, Operation};
use slicescheduler_simulator::interference::{Proportional, Rate};
use slicescheduler_simulator::world::{SimWorld, WorldOptions};

#[derive(Debug)]
struct Microsecond;

impl CostModel for Microsecond {
    fn name(&self) -> &str {
        "a microsecond each"
    }

    fn estimate(&self, _: &Operation<'_>) -> Estimate {
        Estimate { duration: Nanos::us(1), confidence: Confidence::Measured }
    }
}

struct Rig {
    gmg: Gmg,
    model: ModelId,
    world: SimWorld,
}

const US: u64 = 1_000;
/// Nothing here looks at memory.
const NOWHERE: Region = Region { offset: Bytes::ZERO, bytes: Bytes::ZERO };

impl Rig {
    /// Two devices of two lanes; a model of three products, one behind the other.
    fn new() -> Self {
        let mut graph = OpGraph::builder("three products");
        let mut x = graph.input("x", DType::F16, Shape::matrix(TOKENS, 4096));
        for index in 0..3 {
            let weight = graph.weight(&format!("w{index}"), DType::F16, Shape::matrix(4096, 4096));
            let y = if index == 2 {
                graph.output("y", DType::F16, Shape::matrix(TOKENS, 4096))
            } else {
                graph.activation(&format!("y{index}"), DType::F16, Shape::matrix(TOKENS, 4096))
            };
            graph.op(&format!("product {index}"), OpKind::MatMul, &[x, weight], &[y]);
            x = y;
        }
        let device = DeviceSpec::h100_sxm().with_lanes(2);
        let cluster = Cluster::builder().node("a", |node| node.devices(2, device)).build().unwrap();
        let mut gmg = Gmg::new(cluster.clone());
        let tenant = gmg.add_tenant(Tenant::best_effort("guest")).unwrap();
        let model = Model::new("three", graph.build().unwrap().into());
        let model = gmg.add_model(tenant, model, Container::replicas([0])).unwrap();
        let options = WorldOptions {
            operator_noise: 0,
            iteration_noise: 0,
            launched_window: Nanos::ZERO,
            launch_gap: Nanos::ZERO,
            ..WorldOptions::default()
        };
        let world = SimWorld::new(Arc::new(cluster), Box::new(Microsecond), options);
        Self { gmg, model, world }
    }

    fn launch(&mut self, device: u32, lane: u16) -> JobId {
        let spec = JobSpec::of(self.model).bind(Binding::new().bind(TOKENS, 512));
        let job = self.gmg.submit(spec.clone()).unwrap();
        let template = self.gmg.view().model(self.model).unwrap().template.clone();
        let launch = Launch {
            job,
            spec: Arc::new(spec),
            template,
            ops: 0..3,
            lane: LaneId::new(DeviceId(device), lane),
            rank: Rank::GuestBestEffort,
            arena: NOWHERE,
        };
        self.world.enqueue(&Command::Launch(launch), self.gmg.view()).unwrap();
        job
    }

    fn prefetch(&mut self, device: u32) {
        let (model, device) = (self.model, DeviceId(device));
        let command = Command::Prefetch { model, device, source: Source::Host, region: NOWHERE };
        self.world.enqueue(&command, self.gmg.view()).unwrap();
    }

    fn events(&mut self, until: Nanos) -> Vec<Event> {
        let mut events = Vec::new();
        while self.world.poll(until, &mut events).unwrap() < until {}
        events
    }
}

fn finished(events: &[Event], job: JobId) -> Option<u64> {
    events.iter().find_map(|event| match event {
        Event::Finished { job: other, at, .. } if *other == job => Some(at.get()),
        _ => None,
    })
}

/// 3 us of work. Half speed from 1 to 2 us does half a microsecond of it: 3.5 us in all.
#[test]
fn a_throttled_device_takes_longer() {
    let mut rig = Rig::new();
    let job = rig.launch(0, 0);
    rig.world.set_speed(Nanos::us(1), DeviceId(0), Rate::of(1, 2));
    rig.world.set_speed(Nanos::us(2), DeviceId(0), Rate::ONE);
    assert_eq!(finished(&rig.events(Nanos::us(20)), job), Some(3_500));
}

/// Two jobs that want all of the arithmetic of one device: half speed each. The third, on the other
/// device, is alone.
#[test]
fn lanes_of_one_device_slow_each_other() {
    let mut rig = Rig::new();
    rig.world.set_interference(Arc::new(Proportional));
    let jobs = [rig.launch(0, 0), rig.launch(0, 1), rig.launch(1, 0)];
    let events = rig.events(Nanos::us(20));
    assert_eq!(jobs.map(|job| finished(&events, job)), [Some(6 * US), Some(6 * US), Some(3 * US)]);
}

#[test]
fn a_kernel_that_fails_takes_its_job_along_and_no_other() {
    let mut rig = Rig::new();
    let lane = LaneId::new(DeviceId(0), 0);
    let (failing, next) = (rig.launch(0, 0), rig.launch(0, 0));
    rig.world.fail_kernel(Nanos(1_500), lane);
    let events = rig.events(Nanos::us(20));
    let failure = Failure::Kernel { op: 1, message: "the kernel was made to fail".into() };
    assert_eq!(events[0], Event::Failed { job: failing, lane, at: Nanos(1_500), failure });
    assert_eq!(finished(&events, failing), None);
    assert_eq!(finished(&events, next), Some(4_500));
    assert!(rig.world.is_idle());
}

#[test]
fn a_stalled_operator_is_late_by_as_much() {
    let mut rig = Rig::new();
    let job = rig.launch(0, 0);
    rig.world.stall(Nanos(500), LaneId::new(DeviceId(0), 0), Nanos::us(7));
    assert_eq!(finished(&rig.events(Nanos::us(20)), job), Some(10 * US));
}

#[test]
fn a_lost_device_takes_its_work_along_and_can_be_used_again() {
    let mut rig = Rig::new();
    let (lost, safe) = (rig.launch(0, 0), rig.launch(1, 0));
    rig.world.fail_device(Nanos(500), DeviceId(0));
    let mut events = rig.events(Nanos::us(5));
    assert_eq!(events[0], Event::DeviceLost { device: DeviceId(0), at: Nanos(500) });
    let again = rig.launch(0, 1);
    events.extend(rig.events(Nanos::us(20)));
    assert_eq!([lost, safe, again].map(|job| finished(&events, job)), [None, Some(3 * US), Some(8 * US)]);
}

/// The weights take `alone` without a cut. Cut half-way and back a millisecond later, they start over.
#[test]
fn a_transfer_over_a_link_that_was_cut_starts_over() {
    let arrival = |events: &[Event]| {
        events.iter().find_map(|event| match event {
            Event::WeightsLoaded { at, .. } => Some(*at),
            _ => None,
        })
    };
    let mut undisturbed = Rig::new();
    undisturbed.prefetch(1);
    let alone = arrival(&undisturbed.events(Nanos::ms(100))).unwrap();
    let mut rig = Rig::new();
    rig.prefetch(1);
    let cluster = rig.gmg.view().cluster().clone();
    let route = cluster.route(Endpoint::Host(NodeId(0)), Endpoint::Device(DeviceId(1))).unwrap();
    let link: LinkId = route.links().next().unwrap();
    let (cut, back) = (Nanos(alone.get() / 2), Nanos::ms(1) + alone);
    rig.world.set_bandwidth(cut, link, Bandwidth::ZERO);
    rig.world.set_bandwidth(back, link, cluster.link(link).unwrap().bandwidth);
    let events = rig.events(Nanos::ms(100));
    assert_eq!(events[..2], [Event::LinkFailed { link, at: cut }, Event::LinkReturned { link, at: back }]);
    assert_eq!(arrival(&events), Some(back + alone));
}

/// Two of the three operators have two thirds of the weights; the latency of the link is the same.
#[test]
fn weights_of_some_operators_come_in_their_part_of_the_time() {
    let mut whole = Rig::new();
    whole.prefetch(1);
    let arrived = |events: Vec<Event>, expected: fn(&Event) -> bool| {
        assert_eq!(events.len(), 1, "{events:?}");
        assert!(expected(&events[0]), "{events:?}");
        events[0].at()
    };
    let alone = arrived(whole.events(Nanos::ms(100)), |event| matches!(event, Event::WeightsLoaded { .. }));
    let mut rig = Rig::new();
    let (model, device) = (rig.model, DeviceId(1));
    let weights = rig.gmg.view().model(model).unwrap().weights;
    let region = Region { offset: Bytes::ZERO, bytes: Bytes(weights.get() * 2 / 3) };
    let command = Command::PrefetchOps { model, ops: 0..2, device, source: Source::Host, region };
    rig.world.enqueue(&command, rig.gmg.view()).unwrap();
    let part =
        arrived(rig.events(Nanos::ms(100)), |event| matches!(event, Event::OpsLoaded { ops, .. } if *ops == (0..2)));
    let cluster = rig.gmg.view().cluster().clone();
    let latency = cluster.route(Endpoint::Host(NodeId(0)), Endpoint::Device(device)).unwrap().latency(&cluster);
    let expected = latency + (alone - latency).scale(2, 3);
    assert!(part.get().abs_diff(expected.get()) <= 2, "{part} instead of {expected}");
}

proptest! {
    /// What goes wrong later changes nothing before.
    #[test]
    fn nothing_is_known_before_it_happens(
        launches in prop::collection::vec((0u32..2, 0u16..2), 1..8),
        early in prop::collection::vec((0u64..10_000, 0u8..5, 0u32..2), 0..4),
        late in prop::collection::vec((10_000u64..30_000, 0u8..5, 0u32..2), 0..6),
    ) {
        let run = |faults: &[(u64, u8, u32)]| {
            let mut rig = Rig::new();
            rig.world.set_interference(Arc::new(Proportional));
            launches.iter().for_each(|&(device, lane)| { rig.launch(device, lane); });
            rig.prefetch(1);
            for &(at, what, device) in faults {
                let (at, device) = (Nanos(at), DeviceId(device));
                let lane = LaneId::new(device, 0);
                match what {
                    0 => rig.world.fail_device(at, device),
                    1 => rig.world.fail_kernel(at, lane),
                    2 => rig.world.stall(at, lane, Nanos::us(2)),
                    3 => rig.world.set_speed(at, device, Rate::of(1, 3)),
                    _ => rig.world.set_bandwidth(at, LinkId(device.0), Bandwidth::ZERO),
                }
            }
            rig.events(Nanos(9_999))
        };
        let both: Vec<_> = early.iter().chain(&late).copied().collect();
        prop_assert_eq!(run(&early), run(&both));
    }
}
