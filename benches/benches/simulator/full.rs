//! Full simulation with the order discovered: 1,000,000 operators of 1 to 20 us on 64 lanes, each an
//! entry of its own with activations that it takes and frees; every other one waits for an operator
//! among the last 256 of any lane, one in 256 moves 1 MiB over one of 8 links first.

use std::hint::black_box;

use slicescheduler_benches::Target;
use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_simulator::engine::{Engine, Hold, MemoryState, Node};

use crate::Outcome;
use crate::support::{Random, nanos_per, shortest};

const OPERATORS: u64 = 1_000_000;
const LANES: u64 = 64;

pub(crate) fn rows() -> Outcome<Vec<Target>> {
    let mut engine = Engine::default();
    let time = shortest(
        5,
        || (),
        |()| {
            fill(&mut engine, OPERATORS);
            engine.run(Nanos::MAX);
            black_box(engine.operators());
        },
    );
    let name = "full simulation, order discovered, memory + contention + network on";
    Ok(vec![Target::at_most(name, nanos_per(time, OPERATORS), "ns per operator", 90.0)])
}

fn fill(engine: &mut Engine, operators: u64) {
    let mut random = Random(11);
    engine.reset(Nanos::ZERO);
    let lanes: Vec<_> = (0..LANES).map(|_| engine.add_lane()).collect();
    let devices: Vec<_> = (0..LANES / 2).map(|_| engine.add_device(MemoryState::of(Bytes::gb(80)))).collect();
    let links: Vec<_> = (0..8).map(|_| engine.add_link(Bandwidth::gb_per_s(50))).collect();
    let mut recent = Vec::with_capacity(operators as usize);
    for operator in 0..operators {
        let lane = random.below(LANES) as usize;
        let node = engine.add(Node::fixed(lanes[lane], Nanos(1_000 + random.below(19_000))));
        let bytes = Bytes(random.below(1 << 20));
        engine.hold(node, Hold { device: devices[lane / 2], kind: ByteKind::Activations, taken: bytes, freed: bytes });
        if operator % 2 == 1 {
            let back = 1 + random.below(256.min(operator));
            engine.add_edge(recent[(operator - back) as usize], node);
        }
        if operator % 256 == 0 {
            let link = links[random.below(8) as usize];
            let flow = engine.add_flow(&[link], Bytes::mib(1), Nanos::us(8), Nanos::ZERO);
            engine.add_edge(flow, node);
        }
        recent.push(node);
    }
}
