//! Building a cluster.

use std::collections::HashMap;
use std::sync::Arc;

use petgraph::graph::{DiGraph, NodeIndex};

use super::route::{Routes, Vertices};
use super::{Cluster, ClusterError, Device, DeviceSpec, Link, Node, Vertex};
use crate::id::{DeviceId, LinkId, NodeId};
use crate::units::{Bandwidth, Bytes, Nanos};

/// Host memory of a node that does not say how much it has.
const HOST_MEMORY: Bytes = Bytes::gib(512);

const MOST_DEVICES: u32 = 1 << 24;

/// Pairs of places that a cluster keeps the way between: all within a node, and all hosts. 12 bytes each.
const MOST_WAYS: u64 = 1 << 28;

/// Links on the ways between all nodes together, four bytes each. A network has at most two on each way, direct
/// links of `n` nodes in a chain a third of `n³` in all.
const MOST_LINKS: u64 = 1 << 30;

/// Collects nodes and the links between them.
#[derive(Clone, Debug, Default)]
pub struct ClusterBuilder {
    nodes: Vec<(String, NodeBuilder)>,
    network: Option<(Bandwidth, Nanos)>,
    direct: Vec<DirectLink>,
}

#[derive(Clone, Debug)]
struct DirectLink {
    ends: [String; 2],
    bandwidth: Bandwidth,
    latency: Nanos,
    both_ways: bool,
}

/// Collects what a node has.
#[derive(Clone, Debug)]
pub struct NodeBuilder {
    devices: Vec<Arc<DeviceSpec>>,
    host_memory: Bytes,
    nvlink: NvLink,
    half_duplex: bool,
}

#[derive(Clone, Copy, Debug)]
enum NvLink {
    /// What all devices can do, if all of them have it.
    OfDevices,
    Of(Bandwidth),
    Without,
}

impl NodeBuilder {
    fn new() -> Self {
        Self { devices: Vec::new(), host_memory: HOST_MEMORY, nvlink: NvLink::OfDevices, half_duplex: false }
    }

    /// Adds `count` devices. May be called again with another kind.
    #[must_use]
    pub fn devices(mut self, count: u32, spec: DeviceSpec) -> Self {
        let spec = Arc::new(spec);
        // What is too much for any cluster is not kept, only noticed.
        self.devices.extend((0..count.min(MOST_DEVICES + 1)).map(|_| Arc::clone(&spec)));
        self
    }

    /// Host memory that can hold weights and KV; 512 GiB unless said.
    #[must_use]
    pub fn host_memory(mut self, bytes: Bytes) -> Self {
        self.host_memory = bytes;
        self
    }

    /// Connects all devices through a switch, `bandwidth` for each device and direction. Unless
    /// said, the devices are connected as their specifications state, if all have such links.
    #[must_use]
    pub fn nvlink(mut self, bandwidth: Bandwidth) -> Self {
        self.nvlink = NvLink::Of(bandwidth);
        self
    }

    /// Leaves the devices connected through the host only.
    #[must_use]
    pub fn without_nvlink(mut self) -> Self {
        self.nvlink = NvLink::Without;
        self
    }

    /// Makes the two directions of each device's link to the host share its bandwidth.
    #[must_use]
    pub fn half_duplex_host_links(mut self) -> Self {
        self.half_duplex = true;
        self
    }
}

impl ClusterBuilder {
    /// Adds a node. Ids of nodes and devices follow the order of these calls.
    #[must_use]
    pub fn node(mut self, name: impl Into<String>, describe: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Self {
        self.nodes.push((name.into(), describe(NodeBuilder::new())));
        self
    }

    /// Connects all nodes through a switch; `bandwidth` for each node and direction, `latency` for
    /// each of the two hops from one node to another.
    #[must_use]
    pub fn network(mut self, bandwidth: Bandwidth, latency: Nanos) -> Self {
        self.network = Some((bandwidth, latency));
        self
    }

    /// Connects two nodes directly, `bandwidth` in each direction.
    #[must_use]
    pub fn link(self, one: &str, other: &str, bandwidth: Bandwidth, latency: Nanos) -> Self {
        self.direct(one, other, bandwidth, latency, false)
    }

    /// Connects two nodes directly, `bandwidth` for both directions together.
    #[must_use]
    pub fn half_duplex_link(self, one: &str, other: &str, bandwidth: Bandwidth, latency: Nanos) -> Self {
        self.direct(one, other, bandwidth, latency, true)
    }

    fn direct(mut self, one: &str, other: &str, bandwidth: Bandwidth, latency: Nanos, both_ways: bool) -> Self {
        self.direct.push(DirectLink { ends: [one.to_owned(), other.to_owned()], bandwidth, latency, both_ways });
        self
    }

    /// Checks everything, makes the topology and computes the routes. O(nodes² + devices * devices
    /// per node).
    ///
    /// # Errors
    ///
    /// No nodes, a name given twice, a node without devices, a device or link with a capability of
    /// zero, a link that names no node of the cluster, more ways between places than can be kept.
    pub fn build(self) -> Result<Cluster, ClusterError> {
        let ids = self.check()?;
        let mut wiring = Wiring::default();
        let mut nodes = Vec::with_capacity(self.nodes.len());
        let mut devices = Vec::new();
        for (name, node) in &self.nodes {
            let id = NodeId(nodes.len() as u32);
            let first = devices.len() as u32;
            for (local, spec) in (0u32..).zip(&node.devices) {
                devices.push(Device { id: DeviceId(first + local), node: id, local, spec: Arc::clone(spec) });
            }
            let range = first..devices.len() as u32;
            wiring.node(id, node, &devices[first as usize..]);
            nodes.push(Node { id, name: name.as_str().into(), host_memory: node.host_memory, devices: range });
        }
        if let Some((bandwidth, latency)) = self.network {
            let switch = wiring.topology.add_node(Vertex::NetworkSwitch);
            for host in wiring.vertices.hosts.clone() {
                wiring.connect(host, switch, bandwidth, latency, false);
            }
        }
        for link in &self.direct {
            let [one, other] = link.ends.each_ref().map(|name| wiring.vertices.hosts[ids[name.as_str()].index()]);
            wiring.connect(one, other, link.bandwidth, link.latency, link.both_ways);
        }
        let Wiring { topology, links, vertices } = wiring;
        let failed = vec![false; links.len()];
        if !self.direct.is_empty() {
            let count = Routes::links_between(&topology, &links, &vertices, &failed, MOST_LINKS);
            if count > MOST_LINKS {
                return Err(ClusterError::TooLarge {
                    what: "links on the ways between nodes, or more,",
                    count,
                    most: MOST_LINKS,
                });
            }
        }
        let routes = Routes::of(&nodes, &topology, &links, &vertices, &failed);
        let (topology, vertices) = (Arc::new(topology), Arc::new(vertices));
        Ok(Cluster { nodes, devices, links, topology, vertices, failed, routes })
    }

    fn check(&self) -> Result<HashMap<&str, NodeId>, ClusterError> {
        let mut ids = HashMap::new();
        for (index, (name, node)) in self.nodes.iter().enumerate() {
            if ids.insert(name.as_str(), NodeId(index as u32)).is_some() {
                return Err(ClusterError::DuplicateNode { node: name.clone() });
            }
            node.check(name)?;
        }
        if self.nodes.is_empty() {
            return Err(ClusterError::NoNodes);
        }
        let devices: u64 = self.nodes.iter().map(|(_, node)| node.devices.len() as u64).sum();
        let square = |count: usize| (count as u64).saturating_mul(count as u64);
        let within = self.nodes.iter().map(|(_, node)| square(node.devices.len() + 1));
        let ways = within.fold(square(self.nodes.len()), u64::saturating_add);
        let limits = [
            ("nodes", self.nodes.len() as u64, 1 << 14),
            ("devices", devices, u64::from(MOST_DEVICES)),
            ("pairs of devices within nodes, and of nodes,", ways, MOST_WAYS),
        ];
        for (what, count, most) in limits {
            if count > most {
                return Err(ClusterError::TooLarge { what, count, most });
            }
        }
        if self.network.is_some_and(|(bandwidth, _)| bandwidth.is_zero()) {
            return Err(ClusterError::ZeroBandwidth { link: "network".to_owned() });
        }
        for link in &self.direct {
            let [one, other] = &link.ends;
            if let Some(node) = link.ends.iter().find(|name| !ids.contains_key(name.as_str())) {
                return Err(ClusterError::UnknownNode { node: node.clone() });
            }
            if one == other {
                return Err(ClusterError::SelfLink { node: one.clone() });
            }
            if link.bandwidth.is_zero() {
                return Err(ClusterError::ZeroBandwidth { link: format!("link from \"{one}\" to \"{other}\"") });
            }
        }
        Ok(ids)
    }
}

impl NodeBuilder {
    fn check(&self, name: &str) -> Result<(), ClusterError> {
        if self.devices.is_empty() {
            return Err(ClusterError::NoDevices { node: name.to_owned() });
        }
        for (local, spec) in (0u32..).zip(&self.devices) {
            let capabilities = [
                ("memory", spec.memory.get()),
                ("memory bandwidth", spec.bandwidth.get()),
                ("f32 rate", spec.f32_rate.get()),
                ("half-precision rate", spec.half_rate.get()),
                ("f8 rate", spec.f8_rate.get()),
                ("SM count", u64::from(spec.sm_count)),
                ("host link bandwidth", spec.host_link.get()),
                ("lanes", u64::from(spec.lanes)),
            ];
            if let Some((what, _)) = capabilities.into_iter().find(|&(_, value)| value == 0) {
                let device = spec.name.to_string();
                return Err(ClusterError::ZeroCapability { node: name.to_owned(), local, device, what });
            }
        }
        match self.nvlink {
            NvLink::Of(Bandwidth::ZERO) => {
                Err(ClusterError::ZeroBandwidth { link: format!("NVLink of node \"{name}\"") })
            }
            _ => Ok(()),
        }
    }

    /// The bandwidth of a device's link to the switch, if the node has one.
    fn switch(&self) -> Option<impl Fn(&DeviceSpec) -> Bandwidth> {
        let all = self.devices.iter().all(|spec| !spec.nvlink.is_zero());
        let given = match self.nvlink {
            NvLink::Of(bandwidth) => Some(bandwidth),
            NvLink::OfDevices if all => None,
            NvLink::OfDevices | NvLink::Without => return None,
        };
        (self.devices.len() > 1).then_some(move |spec: &DeviceSpec| given.unwrap_or(spec.nvlink))
    }
}

/// The topology while it grows.
#[derive(Default)]
struct Wiring {
    topology: DiGraph<Vertex, LinkId>,
    links: Vec<Link>,
    vertices: Vertices,
}

impl Wiring {
    fn node(&mut self, id: NodeId, node: &NodeBuilder, devices: &[Device]) {
        let host = self.topology.add_node(Vertex::Host(id));
        self.vertices.hosts.push(host);
        let switch = node.switch().map(|bandwidth| (self.topology.add_node(Vertex::DeviceSwitch(id)), bandwidth));
        for device in devices {
            let vertex = self.topology.add_node(Vertex::Device(device.id));
            self.vertices.devices.push(vertex);
            self.connect(vertex, host, device.spec.host_link, device.spec.host_latency, node.half_duplex);
            if let Some((switch, bandwidth)) = &switch {
                self.connect(vertex, *switch, bandwidth(&device.spec), device.spec.nvlink_latency, false);
            }
        }
    }

    fn connect(&mut self, one: NodeIndex, other: NodeIndex, bandwidth: Bandwidth, latency: Nanos, both_ways: bool) {
        let (from, to) = (self.topology[one], self.topology[other]);
        let there = self.link(Link { from, to, both_ways, bandwidth, latency });
        let back =
            if both_ways { there } else { self.link(Link { from: to, to: from, both_ways, bandwidth, latency }) };
        self.topology.add_edge(one, other, there);
        self.topology.add_edge(other, one, back);
    }

    fn link(&mut self, link: Link) -> LinkId {
        let id = LinkId(self.links.len() as u32);
        self.links.push(link);
        id
    }
}
