//! Full simulation with the order discovered: 1,000,000 operators of 1 to 20 us on 64 lanes, two on
//! each of 32 devices, every one an entry of its own that takes and frees activations. Operators are
//! bound by arithmetic or by memory and share the device's two max-min fairly. Every other one waits for
//! an operator among the last 256 of any lane; one in 256 waits for 1 MiB over one of 8 links, which is
//! sent when an operator about 1,000 places ahead has ended.
//!
//! The peer is a simulation in the manner of FlexFlow (Jia, Zaharia, Aiken: Beyond Data and Model
//! Parallelism for Deep Neural Networks, MLSys 2019): one heap of ready operators, no memory, no
//! contention, no network.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::sync::Arc;

use slicescheduler_benches::Target;
use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_simulator::engine::{Engine, Hold, MemoryState, Node};
use slicescheduler_simulator::interference::{Demand, MaxMin};

use crate::Outcome;
use crate::support::{Random, nanos_per, shortest};

const OPERATORS: u64 = 1_000_000;
const LANES: u64 = 64;

const REPETITIONS: u32 = 7;

pub(crate) fn rows() -> Outcome<Vec<Target>> {
    let operators = operators();
    let mut engine = Engine::default();
    let filled = || {
        let mut engine = std::mem::take(&mut engine);
        fill(&mut engine, &operators);
        engine
    };
    let whole = shortest(REPETITIONS, filled, |engine| {
        engine.run(Nanos::MAX);
        black_box(engine.operators());
    });
    let heap = shortest(
        REPETITIONS,
        || Heap::new(&operators),
        |heap| {
            black_box(heap.run());
        },
    );
    let name = "full simulation, order discovered, memory + contention + network on";
    Ok(vec![Target {
        peer: Some(("heap simulation without them", nanos_per(heap, OPERATORS))),
        ..Target::at_most(name, nanos_per(whole, OPERATORS), "ns per operator", 90.0)
    }])
}

struct Operator {
    lane: u32,
    duration: u64,
    after: Option<u32>,
    bytes: u64,
    /// Bound by arithmetic; else by memory.
    arithmetic: bool,
    link: Option<u32>,
}

fn operators() -> Vec<Operator> {
    let mut random = Random(11);
    (0..OPERATORS)
        .map(|operator| Operator {
            lane: random.below(LANES) as u32,
            duration: 1_000 + random.below(19_000),
            after: (operator % 2 == 1).then(|| (operator - 1 - random.below(256.min(operator))) as u32),
            bytes: random.below(1 << 20),
            arithmetic: random.below(2) == 0,
            link: (operator % 256 == 0).then(|| random.below(8) as u32),
        })
        .collect()
}

fn fill(engine: &mut Engine, operators: &[Operator]) {
    engine.reset(Nanos::ZERO);
    let devices: Vec<_> = (0..LANES / 2).map(|_| engine.add_device(MemoryState::of(Bytes::gb(80)))).collect();
    let interference = Arc::new(MaxMin);
    devices.iter().for_each(|&device| engine.set_interference(device, interference.clone()));
    let lanes: Vec<_> = (0..LANES as usize).map(|lane| engine.add_lane_of(devices[lane / 2])).collect();
    let links: Vec<_> = (0..8).map(|_| engine.add_link(Bandwidth::gb_per_s(50))).collect();
    let mut nodes = Vec::with_capacity(operators.len());
    let (much, little) = (Demand::FULL / 10 * 8, Demand::FULL / 10 * 3);
    for operator in operators {
        let demand = if operator.arithmetic { Demand::new(much, little) } else { Demand::new(little, much) };
        let lane = operator.lane as usize;
        let node = engine.add(Node::fixed(lanes[lane], Nanos(operator.duration)).demand(demand));
        let bytes = Bytes(operator.bytes);
        engine.hold(node, Hold { device: devices[lane / 2], kind: ByteKind::Activations, taken: bytes, freed: bytes });
        if let Some(after) = operator.after {
            engine.add_edge(nodes[after as usize], node);
        }
        nodes.push(node);
        if let Some(link) = operator.link {
            let flow = engine.add_flow(&[links[link as usize]], Bytes::mib(1), Nanos::us(8), Nanos::ZERO);
            engine.add_edge(flow, node);
            if let Some(&sender) = nodes.len().checked_sub(1_000).and_then(|sender| nodes.get(sender)) {
                engine.add_edge(sender, flow);
            }
        }
    }
}

/// Operators in the order in which they become ready; each starts when its lane is free.
struct Heap<'a> {
    operators: &'a [Operator],
    successors: Vec<Vec<u32>>,
    /// By operator: the one behind it on its lane.
    behind: Vec<Option<u32>>,
    waits: Vec<u8>,
    ready_at: Vec<u64>,
}

impl<'a> Heap<'a> {
    fn new(operators: &'a [Operator]) -> Self {
        let mut heap = Self {
            operators,
            successors: vec![Vec::new(); operators.len()],
            behind: vec![None; operators.len()],
            waits: vec![0; operators.len()],
            ready_at: vec![0; operators.len()],
        };
        let mut last: Vec<Option<u32>> = vec![None; LANES as usize];
        for (index, operator) in (0u32..).zip(operators) {
            if let Some(after) = operator.after {
                heap.successors[after as usize].push(index);
                heap.waits[index as usize] += 1;
            }
            if let Some(ahead) = last[operator.lane as usize].replace(index) {
                heap.behind[ahead as usize] = Some(index);
                heap.waits[index as usize] += 1;
            }
        }
        heap
    }

    fn run(&mut self) -> u64 {
        let mut ready: BinaryHeap<_> = (0u32..)
            .zip(&self.waits)
            .filter(|(_, waits)| **waits == 0)
            .map(|(operator, _)| Reverse((0, operator)))
            .collect();
        let mut end = 0;
        while let Some(Reverse((at, operator))) = ready.pop() {
            let finish = at + self.operators[operator as usize].duration;
            end = end.max(finish);
            let behind = self.behind[operator as usize];
            for &next in self.successors[operator as usize].iter().chain(&behind) {
                let next = next as usize;
                self.ready_at[next] = self.ready_at[next].max(finish);
                self.waits[next] -= 1;
                if self.waits[next] == 0 {
                    ready.push(Reverse((self.ready_at[next], next as u32)));
                }
            }
        }
        end
    }
}
