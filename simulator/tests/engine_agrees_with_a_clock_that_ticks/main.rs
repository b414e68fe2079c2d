//! Differential: the event engine against a reference that knows no events. The reference ticks
//! every nanosecond, keeps operators and no macro-operators, and looks at everything every time.

#![allow(clippy::unwrap_used, clippy::panic)]

mod reference;
mod scenario;

use std::sync::Arc;

use proptest::prelude::*;

use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::Rank;
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_simulator::cost::JobCost;
use slicescheduler_simulator::engine::{CostRef, Engine, Hold, LaneRef, MemoryState, Node, NodeRef};
use slicescheduler_simulator::interference::{Exclusive, Interference, JobDemand, MaxMin, Proportional};

use reference::{Answer, Reference, Times, plain};
use scenario::{BANDWIDTH, Block, DEVICE_OF, DEVICES, LANES, Scenario, USABLE, With, Work, scenario};

const RANKS: [Rank; 4] = [Rank::GuestBestEffort, Rank::OwnerBestEffort, Rank::GuestLatency, Rank::OwnerLatency];

fn add_cost(engine: &mut Engine, block: &Block, repeat: u32) -> CostRef {
    let durations: Vec<_> = block.iter().map(|(duration, _)| Nanos(*duration)).collect();
    let demands: Vec<_> = block.iter().map(|(_, demand)| *demand).collect();
    engine.add_cost_with_demand(JobCost::from_block(&durations, repeat), JobDemand::from_block(&demands))
}

/// Adds the scenario to the engine; with `expand`, every operator as a node of its own. Returns the
/// first and the last node of each item, and of each member for gangs.
fn add(
    engine: &mut Engine,
    scenario: &Scenario,
    model: &Arc<dyn Interference>,
    expand: bool,
) -> Vec<(NodeRef, NodeRef)> {
    engine.set_launched_window(Nanos(scenario.window));
    let memory = engine.add_device(MemoryState::of(Bytes(USABLE)));
    engine.record_memory(memory);
    let devices: Vec<_> = (0..DEVICES).map(|_| engine.add_device(MemoryState::of(Bytes(0)))).collect();
    // Lanes that do not disturb each other are those of a device without an interference.
    if model.name() != Exclusive.name() {
        devices.iter().for_each(|&device| engine.set_interference(device, model.clone()));
    }
    let lanes: Vec<_> = (0..LANES).map(|lane| engine.add_lane_of(devices[DEVICE_OF[lane]])).collect();
    for (&lane, costs) in lanes.iter().zip(&scenario.launch) {
        costs.iter().for_each(|costs| engine.set_launch_costs(lane, *costs));
    }
    let links: Vec<_> = BANDWIDTH.iter().map(|&bandwidth| engine.add_link(Bandwidth(bandwidth))).collect();
    for &(device, speed, at) in &scenario.speeds {
        engine.set_speed(devices[device], speed, Nanos(at));
    }
    for &(link, bandwidth, at) in &scenario.bandwidths {
        engine.set_bandwidth(links[link], Bandwidth(bandwidth), Nanos(at));
    }
    let hold = |taken, freed| Hold { device: memory, kind: ByteKind::Kv, taken: Bytes(taken), freed: Bytes(freed) };
    let mut nodes: Vec<(NodeRef, NodeRef)> = Vec::new();
    let mut of_item: Vec<std::ops::Range<usize>> = Vec::new();
    for item in &scenario.items {
        let (taken, freed) = item.bytes;
        let before = nodes.len();
        let add = |engine: &mut Engine, lane: LaneRef, rank: usize, block: &Block, repeat: u32| {
            let cost = add_cost(engine, block, repeat);
            let count = block.len() as u32 * repeat;
            let length = if expand { 1 } else { count };
            let added: Vec<_> = (0..count / length)
                .map(|piece| {
                    let ops = piece * length..(piece + 1) * length;
                    let (first, last) = (piece == 0, ops.end == count);
                    let node = Node::operators(lane, cost, ops).rank(RANKS[rank]).release(Nanos(item.release));
                    let node = engine.add(node);
                    engine.hold(node, hold(if first { taken } else { 0 }, if last { freed } else { 0 }));
                    node
                })
                .collect();
            (added[0], added[added.len() - 1])
        };
        match &item.work {
            Work::Operators { lane, rank, block, repeat } => {
                nodes.push(add(engine, lanes[*lane], *rank, block, *repeat));
            }
            Work::Gang { rank, blocks, repeat, collectives } => {
                nodes.extend(blocks.iter().map(|(lane, block)| add(engine, lanes[*lane], *rank, block, *repeat)));
                let members: Vec<_> = nodes[before..].iter().map(|(first, _)| *first).collect();
                let collectives = engine.add_collectives(collectives);
                engine.add_gang(&members, collectives).unwrap();
            }
            Work::Transfer { links: route, bytes, latency } => {
                let route: Vec<_> = route.iter().map(|&link| links[link]).collect();
                let flow = engine.add_flow(&route, Bytes(*bytes), Nanos(*latency), Nanos(item.release));
                engine.hold(flow, hold(taken, freed));
                nodes.push((flow, flow));
            }
        }
        for &other in &item.after {
            for &(_, last) in &nodes[of_item[other].clone()] {
                nodes[before..].iter().for_each(|&(first, _)| engine.add_edge(last, first));
            }
        }
        if let Some((at, free)) = item.recall {
            engine.recall(nodes[before].0, Nanos(at), free);
        }
        of_item.push(before..nodes.len());
    }
    nodes
}

fn by_events(engine: &mut Engine, scenario: &Scenario, model: &Arc<dyn Interference>, expand: bool) -> Answer {
    engine.reset(Nanos::ZERO);
    let memory = Engine::default().add_device(MemoryState::of(Bytes(USABLE)));
    let nodes = add(engine, scenario, model, expand);
    engine.run(Nanos::MAX);
    let times = nodes.into_iter().map(|(first, last)| Times {
        start: engine.ran(first).map(|ran| plain(ran.start)),
        finish: engine.ran(last).map(|ran| plain(ran.finish)),
        cuts: if expand { 0 } else { engine.ran(last).map_or(0, |ran| ran.cuts) },
    });
    Answer {
        times: times.collect(),
        peak: engine.peak(memory).get(),
        shortage: engine.shortage(memory).map(|shortage| (plain(shortage.at), shortage.bytes.get())),
        memory: engine.memory_over_time(memory).iter().map(|point| (plain(point.at), point.total().get())).collect(),
    }
}

/// What the engine reports: nothing about work that did not start or did not end.
fn by_ticking(scenario: &Scenario, model: &Arc<dyn Interference>) -> Answer {
    let mut answer = Reference::new(scenario, &**model).run(4_000);
    for times in &mut answer.times {
        if times.start.is_none() || times.finish.is_none() {
            *times = Times::default();
        }
    }
    answer
}

fn models() -> impl Strategy<Value = Arc<dyn Interference>> {
    let models: [Arc<dyn Interference>; 3] = [Arc::new(MaxMin), Arc::new(Proportional), Arc::new(Exclusive)];
    prop::sample::select(models.to_vec())
}

const PLAIN: With = With { contention: false, gangs: false, launches: false, recalls: false };
const SHARED: With = With { contention: true, recalls: true, ..PLAIN };
const LAUNCHED: With = With { launches: true, ..SHARED };
const GANGS: With = With { gangs: true, recalls: true, ..PLAIN };
const EVERYTHING: With = With { contention: true, gangs: true, launches: true, recalls: true };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn lanes_links_and_memory_are_those_of_the_ticking_clock(scenario in scenario(PLAIN), model in models()) {
        let expected = by_ticking(&scenario, &model);
        prop_assert!(expected.times.iter().all(|times| times.finish.is_some()), "the clock ticked long enough");
        prop_assert_eq!(by_events(&mut Engine::default(), &scenario, &model, false), expected);
    }

    #[test]
    fn shared_and_throttled_devices_and_failing_links_are_those_of_the_ticking_clock(
        scenario in scenario(SHARED),
        model in models(),
    ) {
        let expected = by_ticking(&scenario, &model);
        prop_assert_eq!(by_events(&mut Engine::default(), &scenario, &model, false), expected);
    }

    #[test]
    fn launches_by_the_host_are_those_of_the_ticking_clock(scenario in scenario(LAUNCHED), model in models()) {
        let expected = by_ticking(&scenario, &model);
        prop_assert_eq!(by_events(&mut Engine::default(), &scenario, &model, false), expected);
    }

    #[test]
    fn gangs_are_those_of_the_ticking_clock(scenario in scenario(GANGS), model in models()) {
        let expected = by_ticking(&scenario, &model);
        prop_assert_eq!(by_events(&mut Engine::default(), &scenario, &model, false), expected);
    }

    #[test]
    fn everything_together_is_that_of_the_ticking_clock(scenario in scenario(EVERYTHING), model in models()) {
        let expected = by_ticking(&scenario, &model);
        prop_assert_eq!(by_events(&mut Engine::default(), &scenario, &model, false), expected);
    }

    #[test]
    fn a_macro_operator_behaves_as_its_operators(scenario in scenario(With { recalls: false, ..SHARED }), model in models()) {
        let mut engine = Engine::default();
        let mut whole = by_events(&mut engine, &scenario, &model, false);
        whole.times.iter_mut().for_each(|times| times.cuts = 0);
        let operators = engine.operators();
        let expanded = by_events(&mut engine, &scenario, &model, true);
        prop_assert_eq!(whole, expanded);
        prop_assert_eq!(operators, engine.operators());
    }

    #[test]
    fn a_reused_engine_remembers_nothing(
        first in scenario(EVERYTHING),
        second in scenario(EVERYTHING),
        model in models(),
    ) {
        let mut reused = Engine::default();
        by_events(&mut reused, &first, &model, false);
        let again = by_events(&mut reused, &second, &model, false);
        prop_assert_eq!(again, by_events(&mut Engine::default(), &second, &model, false));
    }
}
