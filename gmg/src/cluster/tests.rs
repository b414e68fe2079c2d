//! Routes against an exhaustive search, and every refusal.

use std::cmp::Reverse;

use petgraph::visit::EdgeRef;
use proptest::prelude::*;

use super::*;
use crate::dtype::DType;
use crate::units::FlopRate;

fn device(id: u32) -> Endpoint {
    Endpoint::Device(DeviceId(id))
}

fn host(id: u32) -> Endpoint {
    Endpoint::Host(NodeId(id))
}

fn two_nodes() -> Cluster {
    Cluster::builder()
        .node("a", |n| n.devices(8, DeviceSpec::h100_sxm()).host_memory(Bytes::gib(2048)))
        .node("b", |n| n.devices(2, DeviceSpec::l4()))
        .network(Bandwidth::gb_per_s(40), Nanos::us(5))
        .build()
        .unwrap()
}

/// The vertices on a route, which must hang together.
fn path(cluster: &Cluster, from: Endpoint, to: Endpoint) -> Vec<Vertex> {
    let vertex = |end| match end {
        Endpoint::Device(id) => Vertex::Device(id),
        Endpoint::Host(id) => Vertex::Host(id),
    };
    let mut path = vec![vertex(from)];
    for link in cluster.route(from, to).unwrap().links() {
        let link = cluster.link(link).unwrap();
        let at = *path.last().unwrap();
        path.push(if link.from == at {
            link.to
        } else {
            assert!(link.both_ways && link.to == at);
            link.from
        });
    }
    assert_eq!(path.last(), Some(&vertex(to)));
    path
}

#[test]
fn devices_of_a_node_meet_at_its_switch() {
    let cluster = two_nodes();
    let route = cluster.route(device(0), device(7)).unwrap();
    assert_eq!((route.len(), route.bandwidth(&cluster)), (2, Bandwidth::gb_per_s(450)));
    assert_eq!(path(&cluster, device(0), device(7))[1], Vertex::DeviceSwitch(NodeId(0)));
    // 64 MiB at 450 GB/s take 149,131 ns on top of two hops of 8 us.
    assert_eq!(route.time_for(&cluster, Bytes::mib(64)), Nanos(16_000 + 149_131));
}

#[test]
fn devices_without_a_switch_meet_at_the_host() {
    let cluster = two_nodes();
    let route = cluster.route(device(8), device(9)).unwrap();
    assert_eq!((route.len(), route.bandwidth(&cluster)), (2, Bandwidth::gb_per_s(25)));
    assert_eq!(path(&cluster, device(8), device(9))[1], Vertex::Host(NodeId(1)));
    let without =
        Cluster::builder().node("a", |n| n.devices(2, DeviceSpec::h100_sxm()).without_nvlink()).build().unwrap();
    assert_eq!(path(&without, device(0), device(1))[1], Vertex::Host(NodeId(0)));
}

#[test]
fn nodes_meet_at_the_network() {
    let cluster = two_nodes();
    let there = path(&cluster, device(3), device(9));
    let (a, b) = (NodeId(0), NodeId(1));
    let hosts = [Vertex::Host(a), Vertex::NetworkSwitch, Vertex::Host(b)];
    assert_eq!(there[1..4], hosts);
    let route = cluster.route(device(3), device(9)).unwrap();
    assert_eq!(route.bandwidth(&cluster), Bandwidth::gb_per_s(25));
    assert_eq!(cluster.route(host(0), host(1)).unwrap().latency(&cluster), Nanos::us(10));
    assert!(cluster.route(host(1), host(1)).unwrap().is_empty());
    assert_eq!(cluster.route(device(3), device(10)), None);
}

#[test]
fn the_directions_of_a_link_share_only_if_it_is_half_duplex() {
    let build = |half: bool| {
        let node = |n: NodeBuilder| {
            let n = n.devices(1, DeviceSpec::l4());
            if half { n.half_duplex_host_links() } else { n }
        };
        Cluster::builder().node("a", node).build().unwrap()
    };
    let links = |cluster: &Cluster| {
        let link = |from, to| cluster.route(from, to).unwrap().links().next().unwrap();
        (link(device(0), host(0)), link(host(0), device(0)))
    };
    let (down, up) = links(&build(false));
    assert_ne!(down, up);
    let (down, up) = links(&build(true));
    assert_eq!(down, up);
}

#[test]
fn devices_have_names_and_ids() {
    let cluster = two_nodes();
    assert_eq!(cluster.device_name(DeviceId(9)).to_string(), "b/1");
    assert_eq!(cluster.device_name(DeviceId(99)).to_string(), "device 99");
    assert_eq!(cluster.find_device("a/7"), Some(DeviceId(7)));
    for unknown in ["a/8", "c/0", "a", "a/x", "/0", "a/4294967295"] {
        assert_eq!(cluster.find_device(unknown), None, "{unknown}");
    }
    assert_eq!(cluster.nodes()[1].device_ids().collect::<Vec<_>>(), [DeviceId(8), DeviceId(9)]);
    assert_eq!(cluster.memory(device(0)), Some(Bytes::gb(80)));
    assert_eq!(cluster.memory(host(0)), Some(Bytes::gib(2048)));
    assert_eq!(cluster.memory(host(2)), None);
    assert_eq!(cluster.lanes().count(), 10);
    assert_eq!(DeviceSpec::h100_sxm().rate(DType::BF16), FlopRate::tflops(989));
    assert_eq!(DeviceSpec::h200_sxm().rate(DType::F8), FlopRate::tflops(1979));
}

#[test]
fn mistakes_are_refused() {
    let one = |n: NodeBuilder| n.devices(1, DeviceSpec::l4());
    let refusal = |builder: ClusterBuilder| builder.build().unwrap_err().to_string();
    let link = |one: &str, other: &str, bandwidth| {
        let ends = Cluster::builder().node("a", |n| n.devices(1, DeviceSpec::l4()));
        ends.node("b", |n| n.devices(1, DeviceSpec::l4())).link(one, other, bandwidth, Nanos::ZERO)
    };
    let cases = [
        (Cluster::builder(), "the cluster has no nodes: expected at least one"),
        (Cluster::builder().node("a", one).node("a", one), "two nodes are named \"a\""),
        (Cluster::builder().node("a", |n| n), "node \"a\" has no devices: expected at least one"),
        (
            Cluster::builder()
                .node("a", |n| n.devices(1, DeviceSpec::l4()).devices(1, DeviceSpec::l4().with_memory(Bytes::ZERO))),
            "node \"a\": device 1 (L4) has memory 0: expected a positive number",
        ),
        (
            Cluster::builder().node("a", |n| one(n).nvlink(Bandwidth::ZERO)),
            "the NVLink of node \"a\" has bandwidth 0: expected a positive number of bytes per second",
        ),
        (
            Cluster::builder().node("a", one).network(Bandwidth::ZERO, Nanos::ZERO),
            "the network has bandwidth 0: expected a positive number of bytes per second",
        ),
        (link("a", "c", Bandwidth(1)), "a link names node \"c\", which the cluster does not have"),
        (link("a", "a", Bandwidth(1)), "a link connects node \"a\" to itself"),
        (
            link("a", "b", Bandwidth::ZERO),
            "the link from \"a\" to \"b\" has bandwidth 0: expected a positive number of bytes per second",
        ),
    ];
    for (builder, expected) in cases {
        assert_eq!(refusal(builder), expected);
    }
}

/// Fewest hops and then the highest bottleneck over all simple paths.
fn exhaustive(cluster: &Cluster, from: Vertex, to: Vertex) -> Option<(usize, Bandwidth)> {
    let graph = cluster.topology();
    let find = |vertex| graph.node_indices().find(|&index| graph[index] == vertex);
    let (start, end) = (find(from)?, find(to)?);
    let mut best: Option<(usize, Bandwidth)> = None;
    let mut pending = vec![(vec![start], Bandwidth::MAX)];
    while let Some((path, bandwidth)) = pending.pop() {
        let at = *path.last()?;
        if at == end {
            let found = (path.len() - 1, bandwidth);
            let key = |(hops, bandwidth): (usize, Bandwidth)| (hops, Reverse(bandwidth));
            best = Some(best.map_or(found, |best| if key(found) < key(best) { found } else { best }));
            continue;
        }
        for edge in graph.edges(at) {
            if !path.contains(&edge.target()) {
                let link = cluster.link(*edge.weight())?;
                let longer = path.iter().copied().chain([edge.target()]).collect();
                pending.push((longer, bandwidth.min(link.bandwidth)));
            }
        }
    }
    best
}

proptest! {
    #[test]
    fn routes_have_the_fewest_hops_and_then_the_highest_bottleneck(
        links in prop::collection::vec((0usize..4, 0usize..4, 1u64..100), 0..7),
        nvlink in any::<bool>(),
        network in any::<bool>(),
    ) {
        let names = ["a", "b", "c", "d"];
        let mut builder = Cluster::builder();
        for (index, name) in (1u32..).zip(names) {
            let node = |n: NodeBuilder| n.devices(index.min(2), DeviceSpec::l4());
            builder = builder.node(name, |n| if nvlink { node(n).nvlink(Bandwidth(60)) } else { node(n) });
        }
        if network {
            builder = builder.network(Bandwidth(50), Nanos(1));
        }
        for &(one, other, bandwidth) in links.iter().filter(|(one, other, _)| one != other) {
            builder = builder.link(names[one], names[other], Bandwidth(bandwidth), Nanos(1));
        }
        let cluster = builder.build().unwrap();
        let devices = cluster.devices().iter().map(|known| (Endpoint::Device(known.id), Vertex::Device(known.id)));
        let hosts = cluster.nodes().iter().map(|node| (Endpoint::Host(node.id), Vertex::Host(node.id)));
        let ends: Vec<_> = devices.chain(hosts).collect();
        for &(from, start) in &ends {
            for &(to, end) in &ends {
                let route = cluster.route(from, to);
                let found = route.map(|route| (route.len(), route.bandwidth(&cluster)));
                prop_assert_eq!(found, exhaustive(&cluster, start, end), "{:?} to {:?}", from, to);
                if found.is_some() {
                    path(&cluster, from, to);
                }
            }
        }
    }
}

#[test]
fn ten_thousand_devices_have_routes() {
    let mut builder = Cluster::builder().network(Bandwidth::gb_per_s(400), Nanos::us(8));
    for node in 0..1250 {
        builder = builder.node(node.to_string(), |n| n.devices(8, DeviceSpec::h100_sxm()));
    }
    let cluster = builder.build().unwrap();
    assert_eq!(cluster.devices().len(), 10_000);
    assert_eq!(path(&cluster, device(0), device(9_999)).len(), 5);
}

#[test]
fn clusters_whose_routes_cannot_be_held_are_refused() {
    let too_large = |builder: ClusterBuilder| match builder.build() {
        Err(ClusterError::TooLarge { what, count, most }) => (what, count > most),
        other => panic!("expected a refusal: {:?}", other.map(|cluster| cluster.devices().len())),
    };
    let one = |devices| Cluster::builder().node("a", |n| n.devices(devices, DeviceSpec::l4()));
    assert_eq!(too_large(one(40_000)), ("pairs of devices within nodes, and of nodes,", true));
    assert_eq!(too_large(one(u32::MAX)), ("devices", true));
    // A chain: 2000³ / 3 links.
    let mut chain = Cluster::builder();
    for node in 0..2000 {
        chain = chain.node(node.to_string(), |n| n.devices(1, DeviceSpec::l4()));
    }
    for node in 1..2000 {
        chain = chain.link(&(node - 1).to_string(), &node.to_string(), Bandwidth(1), Nanos(1));
    }
    assert_eq!(too_large(chain), ("links on the ways between nodes, or more,", true));
}
