//! Large clusters: 1,000 operators on each device, one lane per device, every one an entry of its own
//! that takes and frees activations; one in eight waits for an operator of another device. 1,000 devices
//! with 1e6 operators beside 10,000 with 1e7; and the same 1e7 as macro-operators of 1,000.

use std::hint::black_box;

use slicescheduler_benches::Target;
use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_simulator::cost::JobCost;
use slicescheduler_simulator::engine::{Engine, Hold, MemoryState, Node};

use crate::Outcome;
use crate::support::{Random, nanos_per, resident_bytes, shortest};

const PER_DEVICE: u64 = 1_000;
const GIB: f64 = (1u64 << 30) as f64;

pub(crate) fn rows() -> Outcome<Vec<Target>> {
    let before = resident_bytes();
    let mut engine = Engine::default();
    let mut cost = |devices: u64, repetitions: u32| {
        let filled = || {
            let mut engine = std::mem::take(&mut engine);
            fill(&mut engine, devices);
            engine
        };
        let mut resident = None;
        let time = shortest(repetitions, filled, |engine| {
            engine.run(Nanos::MAX);
            black_box(engine.operators());
            resident = resident_bytes();
        });
        (nanos_per(time, devices * PER_DEVICE), resident)
    };
    let (large, resident) = cost(10_000, 2);
    let (small, _) = cost(1_000, 5);
    let ratio = large / small;
    println!("{large:.1} ns per operator on 10,000 devices, {small:.1} on 1,000");
    let mut rows = vec![Target {
        peer: Some(("1,000 devices", 1.0)),
        ..Target::at_most("scale, cost per event on 10,000 devices against 1,000", ratio, "times", 1.5)
    }];
    if let Some((before, after)) = before.zip(resident) {
        let gib = after.saturating_sub(before) as f64 / GIB;
        rows.push(Target::at_most("scale, memory with 1e7 live operators on 10,000 devices", gib, "GiB", 2.0));
    }
    let whole = shortest(5, macro_operators, |engine| {
        engine.run(Nanos::MAX);
    });
    println!("{:.1} ns per macro-operator of {PER_DEVICE}", nanos_per(whole, 10_000));
    Ok(rows)
}

fn fill(engine: &mut Engine, devices: u64) {
    let mut random = Random(3);
    engine.reset(Nanos::ZERO);
    let memory: Vec<_> = (0..devices).map(|_| engine.add_device(MemoryState::of(Bytes::gb(80)))).collect();
    let lanes: Vec<_> = memory.iter().map(|&device| engine.add_lane_of(device)).collect();
    let mut ahead = vec![None; devices as usize];
    for _ in 0..PER_DEVICE {
        for device in 0..devices as usize {
            let node = engine.add(Node::fixed(lanes[device], Nanos(1_000 + random.below(19_000))));
            let bytes = Bytes(random.below(1 << 20));
            engine.hold(node, Hold { device: memory[device], kind: ByteKind::Activations, taken: bytes, freed: bytes });
            if random.below(8) == 0
                && let Some(other) = ahead[random.below(devices) as usize]
            {
                engine.add_edge(other, node);
            }
            ahead[device] = Some(node);
        }
    }
}

fn macro_operators() -> Engine {
    let mut random = Random(3);
    let mut engine = Engine::default();
    for _ in 0..10_000 {
        let lane = engine.add_lane();
        let block: Vec<_> = (0..10).map(|_| Nanos(1_000 + random.below(19_000))).collect();
        let cost = engine.add_cost(JobCost::from_block(&block, PER_DEVICE as u32 / 10));
        engine.add(Node::operators(lane, cost, 0..PER_DEVICE as u32));
    }
    engine
}
