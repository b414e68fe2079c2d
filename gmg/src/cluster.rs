//! Resources: nodes, devices, memories and the links between them.
//!
//! A [`Cluster`] is immutable: what is reserved, resident or running belongs to the layers above. A
//! link that fails or returns makes another cluster, with other routes and the same ids.
//!
//! # Example
//!
//! ```
//! use slicescheduler_gmg::cluster::{Cluster, DeviceSpec, Endpoint};
//! use slicescheduler_gmg::id::{DeviceId, NodeId};
//! use slicescheduler_gmg::units::{Bandwidth, Nanos};
//!
//! let cluster = Cluster::builder()
//!     .node("a", |n| n.devices(8, DeviceSpec::h100_sxm()).nvlink(Bandwidth::gb_per_s(450)))
//!     .node("b", |n| n.devices(8, DeviceSpec::h100_sxm()).nvlink(Bandwidth::gb_per_s(450)))
//!     .network(Bandwidth::gb_per_s(50), Nanos::us(8))
//!     .build()?;
//! let near = cluster.route(Endpoint::Device(DeviceId(0)), Endpoint::Device(DeviceId(3))).unwrap();
//! assert_eq!(near.bandwidth(&cluster), Bandwidth::gb_per_s(450));
//! let far = cluster.route(Endpoint::Device(DeviceId(0)), Endpoint::Host(NodeId(1))).unwrap();
//! assert_eq!(far.bandwidth(&cluster), Bandwidth::gb_per_s(50));
//! # Ok::<(), slicescheduler_gmg::cluster::ClusterError>(())
//! ```

mod builder;
mod device;
mod error;
mod route;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use petgraph::graph::DiGraph;

pub use builder::{ClusterBuilder, NodeBuilder};
pub use device::DeviceSpec;
pub use error::ClusterError;
pub use route::Route;

use crate::id::{DeviceId, LaneId, LinkId, NodeId};
use crate::units::{Bandwidth, Bytes, Nanos};
use route::{Routes, Vertices};

/// A place that bytes can be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// The memory of a device.
    Device(DeviceId),
    /// The host memory of a node.
    Host(NodeId),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => device.fmt(f),
            Self::Host(node) => write!(f, "host memory of {node}"),
        }
    }
}

/// A vertex of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Vertex {
    /// A device with its memory.
    Device(DeviceId),
    /// The host of a node with its memory; its PCIe root as well.
    Host(NodeId),
    /// The switch between the devices of a node.
    DeviceSwitch(NodeId),
    /// The switch between the nodes.
    NetworkSwitch,
}

/// A capacity that transfers share.
///
/// A full-duplex cable is two links, one for each direction. A half-duplex one is a single link
/// that carries both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Where it starts.
    pub from: Vertex,
    /// Where it leads.
    pub to: Vertex,
    /// True if it leads back as well, sharing its bandwidth.
    pub both_ways: bool,
    /// What all transfers on it share.
    pub bandwidth: Bandwidth,
    /// The time of an empty transfer.
    pub latency: Nanos,
}

/// A device in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Its id.
    pub id: DeviceId,
    /// The node it is in.
    pub node: NodeId,
    /// Its number within the node.
    pub local: u32,
    /// What it can do.
    pub spec: Arc<DeviceSpec>,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its name, unique in the cluster.
    pub name: Box<str>,
    /// Host memory that can hold weights and KV.
    pub host_memory: Bytes,
    /// Its devices, as a range of ids.
    pub devices: Range<u32>,
}

impl Node {
    /// The ids of its devices.
    pub fn device_ids(&self) -> impl ExactSizeIterator<Item = DeviceId> + use<> {
        let Range { start, end } = self.devices;
        (start as usize..end as usize).map(|id| DeviceId(id as u32))
    }
}

/// Nodes, devices and the links between them.
#[derive(Clone, Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    devices: Vec<Device>,
    links: Vec<Link>,
    topology: Arc<DiGraph<Vertex, LinkId>>,
    vertices: Arc<Vertices>,
    failed: Vec<bool>,
    routes: Routes,
}

impl Cluster {
    /// Starts a cluster.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// All nodes, by id.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node called `id`, if there is one.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.index())
    }

    /// All devices, by id.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The device called `id`, if there is one.
    pub fn device(&self, id: DeviceId) -> Option<&Device> {
        self.devices.get(id.index())
    }

    /// The name of a device as people write it: `a/3`. An id that is not of this cluster reads
    /// `device 3`.
    pub fn device_name(&self, id: DeviceId) -> DeviceName<'_> {
        DeviceName { cluster: self, id }
    }

    /// The device with this name, such as `a/3`.
    pub fn find_device(&self, name: &str) -> Option<DeviceId> {
        let (node, local) = name.rsplit_once('/')?;
        let local = local.parse::<u32>().ok()?;
        let node = self.nodes.iter().find(|known| *known.name == *node)?;
        let id = node.devices.start.checked_add(local)?;
        node.devices.contains(&id).then_some(DeviceId(id))
    }

    /// All lanes of all devices, by device.
    pub fn lanes(&self) -> impl Iterator<Item = LaneId> {
        self.devices.iter().flat_map(|device| (0..device.spec.lanes).map(|lane| LaneId::new(device.id, lane)))
    }

    /// All links, by id.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The link called `id`, if there is one.
    pub fn link(&self, id: LinkId) -> Option<&Link> {
        self.links.get(id.index())
    }

    /// The bytes that fit at `endpoint`, if it is of this cluster.
    pub fn memory(&self, endpoint: Endpoint) -> Option<Bytes> {
        match endpoint {
            Endpoint::Device(device) => Some(self.device(device)?.spec.memory),
            Endpoint::Host(node) => Some(self.node(node)?.host_memory),
        }
    }

    /// True if the link does not carry anything at present.
    pub fn is_failed(&self, link: LinkId) -> bool {
        self.failed.get(link.index()).copied().unwrap_or(false)
    }

    /// This cluster with `link` failed or working, and routes that go around what has failed. The same
    /// ids. [`None`] if there is no such link or it is in that state already.
    /// O(nodes² + devices²/nodes + links), as building it.
    #[must_use]
    pub fn with_link(&self, link: LinkId, failed: bool) -> Option<Self> {
        if self.failed.get(link.index()).copied()? == failed {
            return None;
        }
        let mut changed = self.clone();
        changed.failed[link.index()] = failed;
        let Self { nodes, topology, links, vertices, failed, .. } = &changed;
        changed.routes = Routes::of(nodes, topology, links, vertices, failed);
        Some(changed)
    }

    /// This cluster with exactly these links failed. [`None`] if there is no such link.
    #[cfg(feature = "serde")]
    pub(crate) fn with_failed(&self, links: &[LinkId]) -> Option<Self> {
        let mut changed = self.clone();
        changed.failed.fill(false);
        for link in links {
            *changed.failed.get_mut(link.index())? = true;
        }
        let Self { nodes, topology, links, vertices, failed, .. } = &changed;
        changed.routes = Routes::of(nodes, topology, links, vertices, failed);
        Some(changed)
    }

    /// The links from one place to another: the fewest hops, then the highest bottleneck
    /// bandwidth, then the lowest ids. Empty from a place to itself, `None` if there is no way or
    /// no such place. O(1).
    pub fn route(&self, from: Endpoint, to: Endpoint) -> Option<Route<'_>> {
        self.routes.get(self, from, to)
    }

    /// The topology, for graph algorithms. An edge carries its link; a half-duplex link is on two
    /// edges.
    pub fn topology(&self) -> &DiGraph<Vertex, LinkId> {
        &self.topology
    }
}

/// The name of a device, as [`Cluster::device_name`] gives it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceName<'c> {
    cluster: &'c Cluster,
    id: DeviceId,
}

impl fmt::Display for DeviceName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = |device: &Device| self.cluster.node(device.node).map(|node| &node.name);
        match self.cluster.device(self.id).and_then(|device| Some((node(device)?, device.local))) {
            Some((node, local)) => write!(f, "{node}/{local}"),
            None => self.id.fmt(f),
        }
    }
}
