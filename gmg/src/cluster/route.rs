//! Routes, computed once.
//!
//! A node meets the network at its host only, so the best way between two nodes is the best way to
//! the one host, between the hosts, and down from the other. Storing these three parts takes
//! O(nodes² + devices²/nodes) where whole routes would take O(devices²).

use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

use super::{Cluster, Endpoint, Link, Node, Vertex};
use crate::id::{LinkId, NodeId};
use crate::units::{Bandwidth, Bytes, Nanos};

/// The links from one place to another, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route<'c> {
    parts: [&'c [LinkId]; 3],
}

impl<'c> Route<'c> {
    /// The links, in order.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + use<'c> {
        self.parts.into_iter().flatten().copied()
    }

    /// The number of links.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    /// True for the way from a place to itself.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the narrowest link carries when nobody else uses it; [`Bandwidth::MAX`] without links.
    pub fn bandwidth(&self, cluster: &Cluster) -> Bandwidth {
        self.on(cluster).map(|link| link.bandwidth).min().unwrap_or(Bandwidth::MAX)
    }

    /// The time of an empty transfer: the latencies of all links.
    pub fn latency(&self, cluster: &Cluster) -> Nanos {
        self.on(cluster).map(|link| link.latency).sum()
    }

    /// The time to move `bytes` when nobody else uses the links.
    pub fn time_for(&self, cluster: &Cluster, bytes: Bytes) -> Nanos {
        self.latency(cluster) + self.bandwidth(cluster).time_for(bytes)
    }

    fn on<'r>(&self, cluster: &'r Cluster) -> impl Iterator<Item = &'r Link> + use<'c, 'r> {
        self.links().filter_map(|link| cluster.link(link))
    }
}

/// A route as a range of the link list; `None` if there is none.
type Span = Option<(u32, u32)>;

/// Links on all routes. A builder refuses what comes near; where failed links make detours of more, the way is none.
const MOST_LINKS: usize = u32::MAX as usize / 2;

#[derive(Clone, Debug, Default)]
pub(super) struct Routes {
    links: Vec<LinkId>,
    /// By node: the ways between its endpoints, row by row; its host comes after its devices.
    within: Vec<Vec<Span>>,
    /// The ways between the hosts, row by row.
    between: Vec<Span>,
}

impl Routes {
    pub(super) fn of(
        nodes: &[Node],
        topology: &DiGraph<Vertex, LinkId>,
        links: &[Link],
        vertices: &Vertices,
        failed: &[bool],
    ) -> Self {
        let mut routes = Self::default();
        let mut search = Search::new(topology, links, failed);
        for node in nodes {
            let inside = |vertex: Vertex| match vertex {
                Vertex::Device(device) => node.devices.contains(&device.0),
                Vertex::Host(id) | Vertex::DeviceSwitch(id) => id == node.id,
                Vertex::NetworkSwitch => false,
            };
            let devices = node.device_ids().map(|device| vertices.devices[device.index()]);
            let ends: Vec<_> = devices.chain([vertices.hosts[node.id.index()]]).collect();
            let mut within = Vec::with_capacity(ends.len() * ends.len());
            for &from in &ends {
                search.run(from, inside);
                within.extend(ends.iter().map(|&to| search.route(to, &mut routes.links)));
            }
            routes.within.push(within);
        }
        for &from in &vertices.hosts {
            search.run(from, Self::joins_hosts);
            for &to in &vertices.hosts {
                let span = search.route(to, &mut routes.links);
                routes.between.push(span);
            }
        }
        routes
    }

    /// How many links the ways between the hosts have together; of more than `most`, any number above it.
    pub(super) fn links_between(
        topology: &DiGraph<Vertex, LinkId>,
        links: &[Link],
        vertices: &Vertices,
        failed: &[bool],
        most: u64,
    ) -> u64 {
        let mut search = Search::new(topology, links, failed);
        let mut count = 0;
        for &from in &vertices.hosts {
            search.run(from, Self::joins_hosts);
            let hops =
                vertices.hosts.iter().filter_map(|to| search.labels[to.index()]).map(|label| u64::from(label.hops));
            count += hops.sum::<u64>();
            if count > most {
                break;
            }
        }
        count
    }

    fn joins_hosts(vertex: Vertex) -> bool {
        matches!(vertex, Vertex::Host(_) | Vertex::NetworkSwitch)
    }

    pub(super) fn get<'c>(&'c self, cluster: &'c Cluster, from: Endpoint, to: Endpoint) -> Option<Route<'c>> {
        let (from_node, from_local) = place(cluster, from)?;
        let (to_node, to_local) = place(cluster, to)?;
        let host = |node: &Node| node.devices.len();
        if from_node.id == to_node.id {
            return Some(Route {
                parts: [self.within(from_node.id, host(from_node), from_local, to_local)?, &[], &[]],
            });
        }
        let between = self.between[from_node.id.index() * cluster.nodes.len() + to_node.id.index()];
        Some(Route {
            parts: [
                self.within(from_node.id, host(from_node), from_local, host(from_node))?,
                self.span(between)?,
                self.within(to_node.id, host(to_node), host(to_node), to_local)?,
            ],
        })
    }

    fn within(&self, node: NodeId, host: usize, from: usize, to: usize) -> Option<&[LinkId]> {
        self.span(self.within[node.index()][from * (host + 1) + to])
    }

    fn span(&self, span: Span) -> Option<&[LinkId]> {
        span.map(|(start, end)| &self.links[start as usize..end as usize])
    }
}

/// An endpoint's node and its number within it; the host comes after the devices.
fn place(cluster: &Cluster, endpoint: Endpoint) -> Option<(&Node, usize)> {
    match endpoint {
        Endpoint::Device(device) => {
            let device = cluster.device(device)?;
            Some((cluster.node(device.node)?, device.local as usize))
        }
        Endpoint::Host(node) => {
            let node = cluster.node(node)?;
            Some((node, node.devices.len()))
        }
    }
}

/// Where the endpoints are in the topology.
#[derive(Clone, Debug, Default)]
pub(super) struct Vertices {
    pub(super) devices: Vec<NodeIndex>,
    pub(super) hosts: Vec<NodeIndex>,
}

/// How a vertex is reached.
#[derive(Clone, Copy)]
struct Label {
    hops: u32,
    bandwidth: Bandwidth,
    by: Option<(LinkId, NodeIndex)>,
}

/// Breadth-first search that keeps, among the shortest ways, the one with the highest bottleneck
/// and then the lowest last link.
struct Search<'t> {
    topology: &'t DiGraph<Vertex, LinkId>,
    links: &'t [Link],
    failed: &'t [bool],
    labels: Vec<Option<Label>>,
    reached: Vec<NodeIndex>,
}

impl<'t> Search<'t> {
    fn new(topology: &'t DiGraph<Vertex, LinkId>, links: &'t [Link], failed: &'t [bool]) -> Self {
        Self { topology, links, failed, labels: vec![None; topology.node_count()], reached: Vec::new() }
    }

    fn run(&mut self, from: NodeIndex, enters: impl Fn(Vertex) -> bool) {
        for vertex in self.reached.drain(..) {
            self.labels[vertex.index()] = None;
        }
        self.labels[from.index()] = Some(Label { hops: 0, bandwidth: Bandwidth::MAX, by: None });
        self.reached.push(from);
        // A vertex is expanded after all of its layer are final: labels only improve from the
        // layer before.
        let mut next = 0;
        while next < self.reached.len() {
            let vertex = self.reached[next];
            next += 1;
            let Some(label) = self.labels[vertex.index()] else {
                continue;
            };
            for edge in self.topology.edges(vertex) {
                let link = *edge.weight();
                if !enters(self.topology[edge.target()]) || self.failed[link.index()] {
                    continue;
                }
                let bandwidth = label.bandwidth.min(self.links[link.index()].bandwidth);
                let found = Label { hops: label.hops + 1, bandwidth, by: Some((link, vertex)) };
                let known = &mut self.labels[edge.target().index()];
                match known {
                    None => self.reached.push(edge.target()),
                    Some(known) if !better(&found, known) => continue,
                    Some(_) => {}
                }
                *known = Some(found);
            }
        }
    }

    fn route(&self, to: NodeIndex, links: &mut Vec<LinkId>) -> Span {
        let mut label = self.labels[to.index()]?;
        let start = links.len();
        if label.hops as usize > MOST_LINKS.saturating_sub(start) {
            return None;
        }
        while let Some((link, from)) = label.by {
            links.push(link);
            label = self.labels[from.index()]?;
        }
        links[start..].reverse();
        Some((start as u32, links.len() as u32))
    }
}

fn better(found: &Label, known: &Label) -> bool {
    let link = |label: &Label| label.by.map(|(link, _)| link);
    found.hops == known.hops
        && (found.bandwidth > known.bandwidth || (found.bandwidth == known.bandwidth && link(found) < link(known)))
}
