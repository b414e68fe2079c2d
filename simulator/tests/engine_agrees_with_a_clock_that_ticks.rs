//! Differential: the event engine against a reference that knows no events. The reference ticks
//! every nanosecond, keeps operators and no macro-operators, and looks at everything every time.

#![allow(clippy::unwrap_used, clippy::panic)]

use proptest::prelude::*;

use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::Rank;
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_simulator::cost::JobCost;
use slicescheduler_simulator::engine::{DeviceRef, Engine, Hold, MemoryState, Node, NodeRef};

const RANKS: [Rank; 4] = [Rank::GuestBestEffort, Rank::OwnerBestEffort, Rank::GuestLatency, Rank::OwnerLatency];
const LANES: usize = 3;
const USABLE: u64 = 60;

#[derive(Clone, Debug)]
enum Work {
    /// Durations of a block and its repetitions, on a lane, with a rank.
    Operators(usize, usize, Vec<u64>, u32),
    /// Bytes over the one link, after a latency.
    Transfer(u64, u64),
}

#[derive(Clone, Debug)]
struct Item {
    work: Work,
    release: u64,
    /// Taken at the start, freed at the end.
    bytes: (u64, u64),
    /// Positions of earlier items.
    after: Vec<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    start: Option<u64>,
    finish: Option<u64>,
}

/// Bytes per nanosecond on the link, times 1e9.
const LINK: u64 = 7_000_000_000;

struct Reference<'a> {
    items: &'a [Item],
    times: Vec<Times>,
    /// Per item: operators done, and what is left of the running one (or of the transfer).
    next: Vec<usize>,
    left: Vec<u128>,
    running: [Option<usize>; LANES],
    peak: u64,
    shortage: Option<(u64, u64)>,
}

fn durations(work: &Work) -> Vec<u64> {
    match work {
        Work::Operators(_, _, block, repeat) => {
            block.iter().map(|&d| d.max(1)).cycle().take(block.len() * *repeat as usize).collect()
        }
        Work::Transfer(..) => Vec::new(),
    }
}

impl Reference<'_> {
    fn runnable(&self, item: usize, t: u64) -> bool {
        self.items[item].release <= t && self.items[item].after.iter().all(|&other| self.times[other].finish.is_some())
    }

    fn tick(&mut self, t: u64) {
        // What ends now.
        for lane in 0..LANES {
            let Some(item) = self.running[lane] else { continue };
            self.left[item] -= 1;
            if self.left[item] == 0 {
                self.running[lane] = None;
                self.next[item] += 1;
                if self.next[item] == durations(&self.items[item].work).len() {
                    self.times[item].finish = Some(t);
                }
            }
        }
        let moves = |item: &usize| match self.items[*item].work {
            Work::Transfer(_, latency) => {
                self.times[*item].start.is_some_and(|s| s + latency < t) && self.times[*item].finish.is_none()
            }
            Work::Operators(..) => false,
        };
        let transfers: Vec<_> = (0..self.items.len()).filter(moves).collect();
        for &item in &transfers {
            let rate = u128::from(LINK / transfers.len() as u64);
            self.left[item] = self.left[item].saturating_sub(rate);
        }
        for item in transfers {
            if self.left[item] == 0 {
                self.times[item].finish = Some(t);
            }
        }
        // What starts now.
        for item in 0..self.items.len() {
            if let Work::Transfer(bytes, _) = self.items[item].work
                && self.times[item].start.is_none()
                && self.runnable(item, t)
            {
                self.times[item].start = Some(t);
                self.left[item] = u128::from(bytes) * 1_000_000_000;
            }
        }
        for lane in 0..LANES {
            if self.running[lane].is_some() {
                continue;
            }
            let head = |rank: usize| {
                (0..self.items.len()).find(|&item| {
                    matches!(self.items[item].work, Work::Operators(l, r, ..) if l == lane && r == rank)
                        && self.times[item].finish.is_none()
                })
            };
            let chosen = (0..4).rev().filter_map(head).find(|&item| self.runnable(item, t));
            if let Some(item) = chosen {
                self.times[item].start.get_or_insert(t);
                self.left[item] = u128::from(durations(&self.items[item].work)[self.next[item]]);
                self.running[lane] = Some(item);
            }
        }
        let mut used = 0;
        for (item, times) in self.items.iter().zip(&self.times) {
            let (taken, freed) = item.bytes;
            used += if times.start.is_some() { taken } else { 0 };
            used -= if times.finish.is_some() { freed } else { 0 };
        }
        self.peak = self.peak.max(used);
        if used > USABLE && self.shortage.is_none() {
            self.shortage = Some((t, used - USABLE));
        }
    }
}

fn by_ticking(items: &[Item], end: u64) -> (Vec<Times>, u64, Option<(u64, u64)>) {
    let count = items.len();
    let mut reference = Reference {
        items,
        times: vec![Times::default(); count],
        next: vec![0; count],
        left: vec![0; count],
        running: [None; LANES],
        peak: 0,
        shortage: None,
    };
    for t in 0..end {
        reference.tick(t);
    }
    (reference.times, reference.peak, reference.shortage)
}

/// The one device of every engine here: the first that is added.
fn device() -> DeviceRef {
    Engine::default().add_device(MemoryState::of(Bytes(USABLE)))
}

/// Adds the items to the engine; with `expand`, every operator as a node of its own. Returns the
/// first and the last node of each item.
fn add(engine: &mut Engine, items: &[Item], expand: bool) -> Vec<(NodeRef, NodeRef)> {
    let lanes: Vec<_> = (0..LANES).map(|_| engine.add_lane()).collect();
    let link = engine.add_link(Bandwidth(LINK));
    let device = engine.add_device(MemoryState::of(Bytes(USABLE)));
    let hold = |taken, freed| Hold { device, kind: ByteKind::Activations, taken: Bytes(taken), freed: Bytes(freed) };
    let mut nodes: Vec<(NodeRef, NodeRef)> = Vec::new();
    for item in items {
        let release = Nanos(item.release);
        let (first, last) = match &item.work {
            Work::Operators(lane, rank, block, repeat) => {
                let block: Vec<_> = block.iter().map(|&duration| Nanos(duration)).collect();
                let cost = engine.add_cost(JobCost::from_block(&block, *repeat));
                let count = block.len() as u32 * repeat;
                let node = |ops| Node::operators(lanes[*lane], cost, ops).rank(RANKS[*rank]).release(release);
                let length = if expand { 1 } else { count };
                let pieces: Vec<_> = (0..count / length).map(|op| op * length..(op + 1) * length).collect();
                let mut ends = None;
                for (position, ops) in pieces.iter().enumerate() {
                    let added = engine.add(node(ops.clone()));
                    let (taken, freed) = item.bytes;
                    engine.hold(
                        added,
                        hold(
                            if position == 0 { taken } else { 0 },
                            if position + 1 == pieces.len() { freed } else { 0 },
                        ),
                    );
                    ends = Some((ends.map_or(added, |(first, _)| first), added));
                }
                ends.unwrap()
            }
            Work::Transfer(bytes, latency) => {
                let flow = engine.add_flow(&[link], Bytes(*bytes), Nanos(*latency), release);
                engine.hold(flow, hold(item.bytes.0, item.bytes.1));
                (flow, flow)
            }
        };
        for &other in &item.after {
            engine.add_edge(nodes[other].1, first);
        }
        nodes.push((first, last));
    }
    nodes
}

fn by_events(engine: &mut Engine, items: &[Item], expand: bool) -> (Vec<Times>, u64, Option<(u64, u64)>) {
    engine.reset(Nanos::ZERO);
    let nodes = add(engine, items, expand);
    engine.run(Nanos::MAX);
    let times = nodes
        .into_iter()
        .map(|(first, last)| Times {
            start: engine.ran(first).map(|ran| ran.start.get()),
            finish: engine.ran(last).map(|ran| ran.finish.get()),
        })
        .collect();
    let device = device();
    let shortage = engine.shortage(device).map(|shortage| (shortage.at.get(), shortage.bytes.get()));
    (times, engine.peak(device).get(), shortage)
}

fn items() -> impl Strategy<Value = Vec<Item>> {
    let operators = (0..LANES, 0usize..4, prop::collection::vec(0u64..9, 1..5), 1u32..5)
        .prop_map(|(lane, rank, block, repeat)| Work::Operators(lane, rank, block, repeat));
    let transfer = (1u64..120, 0u64..9).prop_map(|(bytes, latency)| Work::Transfer(bytes, latency));
    let work = prop_oneof![4 => operators, 1 => transfer];
    let item = (work, 0u64..120, 0u64..30, 0u64..30, prop::collection::vec(any::<prop::sample::Index>(), 0..3));
    prop::collection::vec(item, 1..14).prop_map(|items| {
        let with_edges = items.into_iter().enumerate().map(|(position, (work, release, taken, kept, after))| {
            let mut after: Vec<_> = after.iter().filter(|_| position > 0).map(|index| index.index(position)).collect();
            after.sort_unstable();
            after.dedup();
            Item { work, release, bytes: (taken, taken.saturating_sub(kept)), after }
        });
        with_edges.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn starts_ends_and_memory_are_those_of_the_ticking_clock(items in items()) {
        let expected = by_ticking(&items, 2_500);
        prop_assert!(expected.0.iter().all(|times| times.finish.is_some()), "the clock ticked long enough");
        prop_assert_eq!(by_events(&mut Engine::default(), &items, false), expected);
    }

    #[test]
    fn a_macro_operator_behaves_as_its_operators(items in items()) {
        let mut engine = Engine::default();
        let whole = by_events(&mut engine, &items, false);
        let operators = engine.operators();
        let expanded = by_events(&mut engine, &items, true);
        prop_assert_eq!(whole, expanded);
        prop_assert_eq!(operators, engine.operators());
    }

    #[test]
    fn a_reused_engine_remembers_nothing(first in items(), second in items()) {
        let mut reused = Engine::default();
        by_events(&mut reused, &first, false);
        prop_assert_eq!(by_events(&mut reused, &second, false), by_events(&mut Engine::default(), &second, false));
    }
}
