//! Differential: groups of lanes that run ahead of each other report what they do when all go in step, which a watched
//! lane makes them do. What goes in step is held against a ticking clock elsewhere. And where nodes lie in memory, which
//! depends on the number of lanes, changes nothing either.

use std::sync::Arc;

use proptest::prelude::*;

use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::Rank;
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_simulator::cost::JobCost;
use slicescheduler_simulator::engine::{Engine, Hold, MemoryPoint, MemoryState, Node, NodeRef, Ran, Violation};
use slicescheduler_simulator::interference::{Demand, JobDemand, MaxMin, Rate};

/// Lanes of each device. The lanes of the first two slow each other.
const LANES_OF: [usize; 5] = [2, 3, 2, 1, 1];
const LANES: usize = 9;

#[derive(Clone, Debug)]
struct Item {
    lane: usize,
    /// Of several ranks only on the last lane, so that the others stay independent.
    rank: bool,
    /// Durations of operators, and what they demand; one makes work of a fixed length.
    lengths: Vec<(u64, u16)>,
    release: u64,
    bytes: u64,
    /// On the device of another lane.
    strays: bool,
    after: Vec<prop::sample::Index>,
    recall: Option<u64>,
    /// A transfer that waits for this and for which the next item waits.
    sends: bool,
}

#[derive(Clone, Debug)]
struct Scenario {
    items: Vec<Item>,
    speeds: Vec<(usize, u64, u64)>,
    /// The run is interrupted then, and the second half of the items added.
    horizon: u64,
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let seldom = |often: u32| prop::bool::weighted(f64::from(often) / 100.0);
    let lengths = prop::collection::vec((1u64..20, 0..=Demand::FULL), 1..4);
    let release = prop_oneof![4 => Just(0u64), 1 => 0u64..200];
    let after = prop::collection::vec(any::<prop::sample::Index>(), 0..3);
    let recall = prop::option::weighted(0.03, 0u64..200);
    let item = (0..LANES, seldom(20), lengths, release, 0u64..50, seldom(1), after, recall, seldom(5)).prop_map(
        |(lane, rank, lengths, release, bytes, strays, after, recall, sends)| Item {
            lane,
            rank: rank && lane == LANES - 1,
            lengths,
            release,
            bytes,
            strays,
            after,
            recall,
            sends,
        },
    );
    let speeds = prop::collection::vec((0..LANES_OF.len(), 1u64..4, 0u64..200), 0..4);
    let scenarios = (prop::collection::vec(item, 1..80), any::<bool>(), speeds, 1u64..300);
    scenarios.prop_map(|(mut items, fixed, speeds, horizon)| {
        if fixed {
            // Lanes with nothing but work of fixed lengths have a way of their own to run ahead.
            items.iter_mut().for_each(|item| item.lengths.truncate(1));
        }
        Scenario { items, speeds, horizon }
    })
}

#[derive(Debug, PartialEq)]
struct Answer {
    ran: Vec<Option<Ran>>,
    at_horizon: Vec<Option<Ran>>,
    memory: Vec<(Bytes, Option<Violation>, Vec<MemoryPoint>)>,
    operators: u64,
}

fn add(engine: &mut Engine, setting: &Setting, items: &[Item], nodes: &mut Vec<NodeRef>) {
    let mut sent = None;
    for item in items {
        let lane = setting.lanes[item.lane];
        let node = match item.lengths[..] {
            [(length, demand)] => Node::fixed(lane, Nanos(length)).demand(Demand::new(demand, Demand::FULL / 2)),
            _ => {
                let lengths: Vec<_> = item.lengths.iter().map(|(length, _)| Nanos(*length)).collect();
                let demands: Vec<_> = item.lengths.iter().map(|(_, demand)| Demand::new(*demand, *demand)).collect();
                let cost = JobCost::from_block(&lengths, 2);
                let cost = engine.add_cost_with_demand(cost, JobDemand::from_block(&demands));
                Node::operators(lane, cost, 0..2 * item.lengths.len() as u32)
            }
        };
        let rank = if item.rank { Rank::OwnerLatency } else { Rank::OwnerBestEffort };
        let node = engine.add(node.rank(rank).release(Nanos(item.release)));
        let device = setting.device_of[if item.strays { (item.lane + 3) % LANES } else { item.lane }];
        let (taken, freed) = (Bytes(item.bytes), Bytes(item.bytes / 3 * 2));
        engine.hold(node, Hold { device, kind: ByteKind::Activations, taken, freed });
        if !nodes.is_empty() {
            item.after.iter().for_each(|after| engine.add_edge(nodes[after.index(nodes.len())], node));
        }
        if let Some(flow) = sent.take() {
            engine.add_edge(flow, node);
        }
        if let Some(at) = item.recall {
            engine.recall(node, Nanos(at), true);
        }
        nodes.push(node);
        if item.sends {
            let flow = engine.add_flow(&[setting.link], Bytes(100), Nanos(3), Nanos::ZERO);
            engine.add_edge(node, flow);
            sent = Some(flow);
        }
    }
}

struct Setting {
    lanes: Vec<slicescheduler_simulator::engine::LaneRef>,
    device_of: Vec<slicescheduler_simulator::engine::DeviceRef>,
    link: slicescheduler_simulator::engine::LinkRef,
}

fn run(scenario: &Scenario, in_step: bool, crowded: bool) -> Answer {
    let mut engine = Engine::default();
    let devices: Vec<_> = LANES_OF.iter().map(|_| engine.add_device(MemoryState::of(Bytes(100)))).collect();
    let mut setting =
        Setting { lanes: Vec::new(), device_of: Vec::new(), link: engine.add_link(Bandwidth(5_000_000_000)) };
    if crowded {
        let _others: Vec<_> = (0..300).map(|_| engine.add_lane()).collect();
    }
    for (index, (&device, &count)) in devices.iter().zip(&LANES_OF).enumerate() {
        engine.record_memory(device);
        if index < 2 {
            engine.set_interference(device, Arc::new(MaxMin));
        }
        for _ in 0..count {
            setting.lanes.push(engine.add_lane_of(device));
            setting.device_of.push(device);
        }
    }
    if in_step {
        let watched = engine.add_lane();
        engine.watch(watched);
    }
    for &(device, part, at) in &scenario.speeds {
        engine.set_speed(devices[device], Rate::of(1, part), Nanos(at));
    }
    let mut nodes = Vec::new();
    let (first, second) = scenario.items.split_at(scenario.items.len() / 2);
    add(&mut engine, &setting, first, &mut nodes);
    engine.run(Nanos(scenario.horizon));
    let at_horizon = nodes.iter().map(|&node| engine.ran(node)).collect();
    add(&mut engine, &setting, second, &mut nodes);
    engine.run(Nanos::MAX);
    Answer {
        ran: nodes.iter().map(|&node| engine.ran(node)).collect(),
        at_horizon,
        memory: devices
            .iter()
            .map(|&device| (engine.peak(device), engine.violation(device), engine.memory_over_time(device).to_vec()))
            .collect(),
        operators: engine.operators(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn it_does_not_matter_who_runs_ahead(scenario in scenario()) {
        prop_assert_eq!(run(&scenario, false, false), run(&scenario, true, false));
    }

    #[test]
    fn nor_that_there_are_many_other_lanes(scenario in scenario(), in_step: bool) {
        prop_assert_eq!(run(&scenario, in_step, true), run(&scenario, in_step, false));
    }
}
