//! The event queue in the hold model (Jones 1986): every stream has one event; the earliest is taken
//! and its stream gets a new one a random time later. Increments are uniform below 2,000 ns.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;

use slicescheduler_benches::Target;
use slicescheduler_simulator::engine::Tournament;

use crate::Outcome;
use crate::support::{Random, nanos_per, shortest};

const HOLDS: u64 = 100_000;
const REPETITIONS: u32 = 100;

pub(crate) fn rows() -> Outcome<Vec<Target>> {
    let names =
        [("event queue, hold model, 64 streams", 64, 20.0), ("event queue, hold model, 1,000 streams", 1_000, 30.0)];
    let rows = names.map(|(name, streams, bound)| Target {
        peer: Some(("std BinaryHeap", heap(streams))),
        ..Target::at_most(name, tournament(streams), "ns", bound)
    });
    Ok(rows.to_vec())
}

/// Drawn beforehand, so that only the queue is measured.
fn increments() -> Vec<u32> {
    let mut random = Random(7);
    (0..1 << 12).map(|_| 1 + random.below(2_000) as u32).collect()
}

fn tournament(streams: u32) -> f64 {
    let increments = increments();
    let setup = || {
        let mut queue = Tournament::default();
        queue.reset(streams as usize);
        (0..streams).for_each(|stream| queue.set(stream, u64::from(increments[stream as usize])));
        queue
    };
    let time = shortest(REPETITIONS, setup, |queue| {
        for hold in 0..HOLDS {
            let (stream, at) = queue.first();
            queue.set(stream, at + u64::from(increments[hold as usize % increments.len()]));
        }
        black_box(queue.first());
    });
    nanos_per(time, HOLDS)
}

fn heap(streams: u32) -> f64 {
    let increments = increments();
    let setup = || -> BinaryHeap<_> {
        (0..streams).map(|stream| Reverse((u64::from(increments[stream as usize]), stream))).collect()
    };
    let time = shortest(REPETITIONS, setup, |queue| {
        for hold in 0..HOLDS {
            if let Some(Reverse((at, stream))) = queue.pop() {
                queue.push(Reverse((at + u64::from(increments[hold as usize % increments.len()]), stream)));
            }
        }
        black_box(queue.peek());
    });
    nanos_per(time, HOLDS)
}
