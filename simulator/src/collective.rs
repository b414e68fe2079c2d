//! How long collectives take on a topology.
//!
//! The alpha-beta model: the first step costs a launch and the way there, every further one a latency `a`, and every
//! byte the time it needs on the narrowest link. With `n` ranks, `S` bytes and bandwidth `B`, beside `first - a`:
//!
//! | collective | `S` | ring | tree |
//! |---|---|---|---|
//! | all-reduce | the reduced array | `2 (n-1) a + 2 (n-1)/n S/B` | `2 ceil(log2 n) a + 2 S/B` |
//! | all-gather | the gathered array | `(n-1) a + (n-1)/n S/B` | `ceil(log2 n) a + (n-1)/n S/B` |
//! | reduce-scatter | the array before it is scattered | `(n-1) a + (n-1)/n S/B` | `ceil(log2 n) a + (n-1)/n S/B` |
//! | broadcast | the array | `(n-1) a + S/B` | `ceil(log2 n) a + S/B` |
//! | all-to-all | what one rank sends, its own part included | `(n-1) a + (n-1)/n S/B` | the same |
//! | send | the message | `a + S/B` | the same |
//!
//! A step inside a node takes 1.9 us, what NCCL's own tuning model gives a step of a ring on NVLink with 128-byte
//! lines (`hwLat` in its `tuning.cc`); one between nodes takes the latency of its route. Payload moves at 0.8 of a link's
//! bandwidth: 120 of 128 bytes of a line are payload, and NCCL's tests reach 360-370 of the 450 GB/s of an H100.
//!
//! Sources: rings, recursive doubling and halving, pairwise exchange from Thakur, Rabenseifner, Gropp:
//! Optimization of Collective Communication Operations in MPICH, 2005; the ring all-reduce from Patarasuk
//! & Yuan: Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations, 2009; trees that use
//! the whole bandwidth from Sanders, Speck, Träff: Two-tree algorithms for full bandwidth broadcast,
//! reduction and scan, 2009, as NCCL has them. Pipelining hides all but the first step of a broadcast.

use slicescheduler_gmg::cluster::{Cluster, DeviceSpec, Endpoint};
use slicescheduler_gmg::id::{DeviceId, LinkId};
use slicescheduler_gmg::semantics::Collective;
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Each rank to the next: little traffic, many steps.
    Ring,
    /// Along binary trees: few steps.
    Tree,
}

/// What the links between the ranks of a group allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLinks {
    /// The time of an empty message between two that talk to each other, its launch included.
    pub first: Nanos,
    /// The time of a further step in which nothing is sent.
    pub step: Nanos,
    /// What payload reaches on the narrowest link, for one of the connections that share it.
    pub bandwidth: Bandwidth,
}

/// A step inside a node.
const STEP: Nanos = Nanos(1_900);
/// What payload reaches of a link, in percent.
const EFFICIENCY: u64 = 80;

fn reached(bandwidth: Bandwidth) -> Bandwidth {
    Bandwidth(((u128::from(bandwidth.get()) * u128::from(EFFICIENCY)) / 100) as u64)
}

impl GroupLinks {
    /// Among devices of one node that share no link: over NVLink, or over the links to the host where there is none.
    pub fn between_peers(device: &DeviceSpec) -> Self {
        let (link, hop) = device.peer_link();
        Self { first: hop.times(2), step: STEP, bandwidth: reached(link) }
    }

    /// The links that `ranks` use, in their order, when all connections of the algorithm are busy at
    /// once. [`None`] for devices that are not of this cluster or not connected. O(ranks * hops).
    pub fn of(cluster: &Cluster, ranks: &[DeviceId], algorithm: Algorithm) -> Option<Self> {
        let count = ranks.len();
        let pairs: Vec<_> = match algorithm {
            Algorithm::Ring if count > 1 => (0..count).map(|rank| (rank, (rank + 1) % count)).collect(),
            // Both ways of each edge of a binary tree: up to reduce, down to spread.
            Algorithm::Tree => (1..count).flat_map(|rank| [(rank, (rank - 1) / 2), ((rank - 1) / 2, rank)]).collect(),
            Algorithm::Ring => Vec::new(),
        };
        let mut users: Vec<(LinkId, u64)> = Vec::new();
        let (mut first, mut step) = (Nanos::ZERO, STEP);
        for (from, to) in pairs {
            let route = cluster.route(Endpoint::Device(ranks[from]), Endpoint::Device(ranks[to]))?;
            let latency = route.latency(cluster);
            first = first.max(latency);
            if cluster.device(ranks[from])?.node != cluster.device(ranks[to])?.node {
                step = step.max(latency);
            }
            for link in route.links() {
                match users.iter_mut().find(|(known, _)| *known == link) {
                    Some((_, users)) => *users += 1,
                    None => users.push((link, 1)),
                }
            }
        }
        let shares =
            users.iter().filter_map(|&(link, users)| Some(Bandwidth(cluster.link(link)?.bandwidth.get() / users)));
        Some(Self { first, step, bandwidth: shares.min().map_or(Bandwidth::MAX, reached) })
    }

    /// How long `collective` over `bytes` takes, at least 1 ns; the table of this module says what
    /// `bytes` are. Rings move what [`Collective::wire_bytes`] says in [`Collective::steps`] steps.
    ///
    /// ```
    /// use slicescheduler_gmg::semantics::Collective;
    /// use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
    /// use slicescheduler_simulator::collective::{Algorithm, GroupLinks};
    ///
    /// let links = GroupLinks { first: Nanos::us(12), step: Nanos::us(2), bandwidth: Bandwidth::gb_per_s(100) };
    /// let time = links.time(Collective::AllReduce { ranks: 4 }, Algorithm::Ring, Bytes::gb(1));
    /// assert_eq!(time, Nanos::us(12 + 5 * 2) + Nanos::ms(15));
    /// ```
    pub fn time(&self, collective: Collective, algorithm: Algorithm, bytes: Bytes) -> Nanos {
        let ranks = collective.ranks();
        if ranks < 2 {
            return Nanos(1);
        }
        let wire = collective.wire_bytes(bytes);
        let height = u64::from(ranks.next_power_of_two().trailing_zeros());
        let (steps, moved) = match (algorithm, collective) {
            (Algorithm::Tree, Collective::AllReduce { .. }) => (2 * height, bytes.times(2)),
            (
                Algorithm::Tree,
                Collective::AllGather { .. } | Collective::ReduceScatter { .. } | Collective::Broadcast { .. },
            ) => (height, wire),
            _ => (u64::from(collective.steps()), wire),
        };
        let further = self.step.times(steps.saturating_sub(1));
        (self.first + further + self.bandwidth.time_for(moved)).max(Nanos(1))
    }
}

/// The faster of ring and tree, as libraries choose by size; ties go to the ring. [`None`] for
/// devices that are not of this cluster or not connected.
pub fn fastest(
    cluster: &Cluster,
    ranks: &[DeviceId],
    collective: Collective,
    bytes: Bytes,
) -> Option<(Algorithm, Nanos)> {
    let time =
        |algorithm| Some((algorithm, GroupLinks::of(cluster, ranks, algorithm)?.time(collective, algorithm, bytes)));
    let (ring, tree) = (time(Algorithm::Ring)?, time(Algorithm::Tree)?);
    Some(if tree.1 < ring.1 { tree } else { ring })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        Cluster::builder()
            .node("a", |node| node.devices(4, DeviceSpec::h100_sxm()).nvlink(Bandwidth::gb_per_s(450)))
            .node("b", |node| node.devices(4, DeviceSpec::h100_sxm()).nvlink(Bandwidth::gb_per_s(450)))
            .network(Bandwidth::gb_per_s(50), Nanos::us(8))
            .build()
            .unwrap()
    }

    /// Inside a node nobody shares a port: 0.8 of 450 GB/s, two hops of 8 us. 64 MiB over four: 5 further steps of
    /// 1.9 us, and 1.5 * 67,108,864 B / 360 GB/s = 279,620.3 ns, rounded up.
    #[test]
    fn a_ring_inside_a_node_runs_at_the_rate_of_its_ports() {
        let ranks = [0, 1, 2, 3].map(DeviceId);
        let links = GroupLinks::of(&cluster(), &ranks, Algorithm::Ring).unwrap();
        assert_eq!(links, GroupLinks::between_peers(&DeviceSpec::h100_sxm()));
        assert_eq!((links.first, links.bandwidth), (Nanos::us(16), Bandwidth::gb_per_s(360)));
        let time = links.time(Collective::AllReduce { ranks: 4 }, Algorithm::Ring, Bytes::mib(64));
        assert_eq!(time, Nanos(16_000 + 5 * 1_900 + 279_621));
    }

    /// What Vidur measured on an H100 DGX (`vidur_net_h100_dgx_all_reduce.csv`, medians): eight ranks that sum
    /// 62,783,488 B in 329 us, 16,187,392 B in 113 us, 2,048 B in 37 us; two that sum 12,713,984 B in 60 us.
    #[test]
    fn sums_take_about_what_was_measured() {
        let links = GroupLinks::between_peers(&DeviceSpec::h100_sxm());
        for (ranks, bytes, measured_us) in
            [(8, 62_783_488, 329.0), (8, 16_187_392, 113.0), (8, 2_048, 37.0), (2, 12_713_984, 60.0)]
        {
            let time = links.time(Collective::AllReduce { ranks }, Algorithm::Ring, Bytes(bytes));
            let ratio = time.get() as f64 / 1e3 / measured_us;
            assert!((0.85..1.15).contains(&ratio), "{ranks} ranks, {bytes} B: {ratio}");
        }
    }

    /// A ring over both nodes crosses the network once each way; one that alternates between the
    /// nodes crosses it four times each way.
    #[test]
    fn connections_that_share_a_link_share_its_bandwidth() {
        let in_order = [0, 1, 4, 5].map(DeviceId);
        let alternating = [0, 4, 1, 5].map(DeviceId);
        let bandwidth = |ranks: &[DeviceId]| GroupLinks::of(&cluster(), ranks, Algorithm::Ring).unwrap().bandwidth;
        assert_eq!(bandwidth(&in_order), Bandwidth::gb_per_s(40));
        assert_eq!(bandwidth(&alternating), Bandwidth::gb_per_s(20));
    }

    #[test]
    fn trees_are_for_small_arrays_and_rings_for_large_ones() {
        let ranks = [0, 1, 2, 3].map(DeviceId);
        let chosen = |bytes| fastest(&cluster(), &ranks, Collective::AllReduce { ranks: 4 }, bytes).unwrap().0;
        assert_eq!(chosen(Bytes::kib(4)), Algorithm::Tree);
        assert_eq!(chosen(Bytes::mib(256)), Algorithm::Ring);
    }

    #[test]
    fn strangers_have_no_links() {
        assert_eq!(GroupLinks::of(&cluster(), &[DeviceId(0), DeviceId(99)], Algorithm::Ring), None);
    }
}
