//! Small scenarios in which everything that the engine knows meets.

use proptest::prelude::*;

use slicescheduler_gmg::units::Nanos;
use slicescheduler_simulator::engine::LaunchCosts;
use slicescheduler_simulator::interference::{Demand, Rate};

/// Lanes 0 and 1 share device 0, lane 2 is alone on device 1.
pub(crate) const LANES: usize = 3;
pub(crate) const DEVICE_OF: [usize; LANES] = [0, 0, 1];
pub(crate) const DEVICES: usize = 2;
pub(crate) const LINKS: usize = 3;
/// Bytes per second: a few per nanosecond.
pub(crate) const BANDWIDTH: [u64; LINKS] = [7_000_000_000, 5_000_000_000, 4_000_000_000];
pub(crate) const USABLE: u64 = 60;

/// Operators of one rank of a job: durations and demands of a block.
pub(crate) type Block = Vec<(u64, Demand)>;

#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// A block and its repetitions on a lane, with a rank.
    Operators { lane: usize, rank: usize, block: Block, repeat: u32 },
    /// The same on several lanes, with durations of their own, that meet in some operators.
    Gang { rank: usize, blocks: Vec<(usize, Block)>, repeat: u32, collectives: Vec<u32> },
    /// Bytes over links, after a latency.
    Transfer { links: Vec<usize>, bytes: u64, latency: u64 },
}

#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) work: Work,
    pub(crate) release: u64,
    /// Taken at the start, freed at the end.
    pub(crate) bytes: (u64, u64),
    /// Positions of earlier items.
    pub(crate) after: Vec<usize>,
    /// Taken back then; true if what it holds is freed.
    pub(crate) recall: Option<(u64, bool)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) items: Vec<Item>,
    pub(crate) window: u64,
    /// Per lane.
    pub(crate) launch: [Option<LaunchCosts>; LANES],
    /// Device, speed, time.
    pub(crate) speeds: Vec<(usize, Rate, u64)>,
    /// Link, bytes per second, time.
    pub(crate) bandwidths: Vec<(usize, u64, u64)>,
}

/// What a scenario may contain beyond operators, transfers, ranks and memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct With {
    pub(crate) contention: bool,
    pub(crate) gangs: bool,
    pub(crate) launches: bool,
    pub(crate) recalls: bool,
}

fn demand(with: With) -> BoxedStrategy<Demand> {
    if !with.contention {
        return Just(Demand::NONE).boxed();
    }
    let part = prop_oneof![Just(0), Just(Demand::FULL), 0..=Demand::FULL];
    (part.clone(), part).prop_map(|(compute, bandwidth)| Demand::new(compute, bandwidth)).boxed()
}

fn block(with: With) -> impl Strategy<Value = Block> {
    prop::collection::vec((1u64..12, demand(with)), 1..5)
}

fn work(with: With) -> BoxedStrategy<Work> {
    let operators = (0..LANES, 0usize..4, block(with), 1u32..4)
        .prop_map(|(lane, rank, block, repeat)| Work::Operators { lane, rank, block, repeat });
    let links = prop::collection::btree_set(0..LINKS, 1..3);
    let transfer = (links, 0u64..300, 0u64..20).prop_map(|(links, bytes, latency)| Work::Transfer {
        links: links.into_iter().collect(),
        bytes,
        latency,
    });
    if !with.gangs {
        return prop_oneof![4 => operators, 1 => transfer].boxed();
    }
    let gang = (2usize..=3, 0usize..4, 1u32..4, 1usize..5).prop_flat_map(move |(size, rank, repeat, length)| {
        let lanes = proptest::sample::subsequence((0..LANES).collect::<Vec<_>>(), size);
        let blocks = prop::collection::vec(prop::collection::vec((1u64..12, demand(with)), length), size);
        let count = length as u32 * repeat;
        let collectives = prop::collection::vec(0..count, 0..4);
        (lanes, blocks, collectives).prop_map(move |(lanes, blocks, collectives)| Work::Gang {
            rank,
            blocks: lanes.into_iter().zip(blocks).collect(),
            repeat,
            collectives,
        })
    });
    prop_oneof![3 => operators, 1 => transfer, 3 => gang].boxed()
}

fn items(with: With) -> impl Strategy<Value = Vec<Item>> {
    let recall = if with.recalls {
        prop_oneof![3 => Just(None), 1 => (0u64..150, any::<bool>()).prop_map(Some)].boxed()
    } else {
        Just(None).boxed()
    };
    let item =
        (work(with), 0u64..60, (0u64..30, 0u64..30), prop::collection::vec(any::<prop::sample::Index>(), 0..3), recall);
    prop::collection::vec(item, 1..10).prop_map(|items| {
        let with_edges = (0..).zip(items).map(|(position, (work, release, (taken, kept), after, recall))| {
            let mut after: Vec<_> = after.iter().filter(|_| position > 0).map(|index| index.index(position)).collect();
            after.sort_unstable();
            after.dedup();
            let recall = recall.filter(|_| !matches!(work, Work::Transfer { .. }));
            Item { work, release, bytes: (taken, taken.saturating_sub(kept)), after, recall }
        });
        with_edges.collect()
    })
}

pub(crate) fn scenario(with: With) -> impl Strategy<Value = Scenario> {
    let costs = (0u64..15, 1u32..5, 0u64..25, 0u64..3, any::<bool>()).prop_map(
        |(operator, queue, graph, graph_operator, captured)| LaunchCosts {
            operator: Nanos(operator),
            queue,
            graph: Nanos(graph),
            graph_operator: Nanos(graph_operator),
            captured,
        },
    );
    let launch = if with.launches { prop::option::of(costs).boxed() } else { Just(None).boxed() };
    let changes = if with.contention { 0..4usize } else { 0..1 };
    let speeds = prop::collection::vec((0..DEVICES, 1u64..5, 1u64..5, 0u64..120), changes.clone());
    let bandwidth = prop_oneof![1 => Just(0), 3 => 1_000_000_000u64..9_000_000_000];
    let bandwidths = prop::collection::vec((0..LINKS, bandwidth, 0u64..120), changes);
    let window = if with.recalls { prop_oneof![Just(0u64), 0u64..25].boxed() } else { Just(0).boxed() };
    (items(with), window, prop::array::uniform3(launch), speeds, bandwidths).prop_map(
        |(items, window, launch, speeds, bandwidths)| Scenario {
            items,
            window,
            launch,
            speeds: speeds.into_iter().map(|(device, n, d, at)| (device, Rate::of(n, d), at)).collect(),
            bandwidths,
        },
    )
}
