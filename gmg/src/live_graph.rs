//! petgraph's visit traits on the live graph: all operators of all jobs, with the edges inside jobs
//! and between them.
//!
//! A job that waits for another has edges from every last operator of that one (one that nothing
//! in its template waits for) to every first operator of its own.
//!
//! # Example
//!
//! ```
//! use petgraph::algo::toposort;
//! use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
//! use slicescheduler_gmg::job::JobSpec;
//! use slicescheduler_gmg::live_graph::{LiveGraph, LiveIndex};
//! use slicescheduler_gmg::shape::Binding;
//! use slicescheduler_gmg::templates::{self, DenseSpec};
//! use slicescheduler_gmg::{Container, Gmg, Model, Tenant};
//!
//! let mut gmg = Gmg::new(Cluster::builder().node("a", |node| node.devices(1, DeviceSpec::h100_sxm())).build()?);
//! let tenant = gmg.add_tenant(Tenant::best_effort("a"))?;
//! let template = templates::dense(&DenseSpec::tiny())?;
//! let count = template.op_count() as usize;
//! let model = gmg.add_model(tenant, Model::new("tiny", template.into()), Container::replicas([0]))?;
//! let spec = JobSpec::of(model).bind(Binding::iteration(1, 1, 1, 1));
//! let first = gmg.submit(spec.clone())?;
//! gmg.submit(spec.after(first))?;
//!
//! let view = gmg.view();
//! let index = LiveIndex::of(&view);
//! let order = toposort(LiveGraph::new(&view, &index), None).expect("jobs wait for older jobs only");
//! assert_eq!(order.len(), 2 * count);
//! assert!(order[..count].iter().all(|op| op.job == first));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use petgraph::Direction;
use petgraph::visit::{
    Data, EdgeRef, GraphBase, GraphProp, GraphRef, IntoEdgeReferences, IntoEdges, IntoEdgesDirected, IntoNeighbors,
    IntoNeighborsDirected, IntoNodeIdentifiers, IntoNodeReferences, NodeCompactIndexable, NodeCount, NodeIndexable,
    Visitable,
};
use smallvec::SmallVec;

use crate::graph::{Neighbors, OpGraph};
use crate::id::{JobId, OpId, OpIndex};
use crate::semantics::OpKind;
use crate::view::GmgView;

/// Where the operators of each job are among all of them, and which are first and last. Made once for
/// a version of the graph; in O(jobs + operators of distinct templates).
#[derive(Clone, Debug, Default)]
pub struct LiveIndex {
    /// Ascending by id.
    jobs: Vec<JobId>,
    /// By job: the number of its first operator; then the number of operators in all.
    offsets: Vec<usize>,
    /// By job: its template's ends.
    ends: Vec<u32>,
    templates: Vec<Ends>,
}

/// The operators of a template that nothing comes before, and those that nothing comes after.
#[derive(Clone, Debug)]
struct Ends {
    first: Vec<OpIndex>,
    last: Vec<OpIndex>,
}

impl Ends {
    fn of(template: &OpGraph) -> Self {
        let ops = || (0..template.op_count()).map(OpIndex);
        Self {
            first: ops().filter(|&op| template.predecessors(op).next().is_none()).collect(),
            last: ops().filter(|&op| template.successors(op).next().is_none()).collect(),
        }
    }
}

impl LiveIndex {
    /// The index of a version.
    pub fn of(view: &impl GmgView) -> Self {
        let mut jobs = Vec::new();
        view.jobs(&mut jobs);
        jobs.retain(|&job| view.job(job).is_some());
        jobs.sort_unstable();
        let mut index = Self { offsets: vec![0], ..Self::default() };
        let mut known: HashMap<*const OpGraph, u32> = HashMap::new();
        let mut count = 0;
        for job in jobs.iter().filter_map(|&job| view.job(job)) {
            count += job.op_count() as usize;
            index.offsets.push(count);
            let templates = &mut index.templates;
            index.ends.push(*known.entry(Arc::as_ptr(&job.template)).or_insert_with(|| {
                templates.push(Ends::of(&job.template));
                templates.len() as u32 - 1
            }));
        }
        index.jobs = jobs;
        index
    }

    fn place(&self, job: JobId) -> Option<usize> {
        self.jobs.binary_search(&job).ok()
    }

    fn ends(&self, job: JobId) -> Option<&Ends> {
        self.templates.get(*self.ends.get(self.place(job)?)? as usize)
    }

    fn op(&self, number: usize) -> Option<OpId> {
        // The last job that starts at or before the number; a job without operators starts there too.
        let place = self.offsets.partition_point(|&offset| offset <= number).checked_sub(1)?;
        let job = *self.jobs.get(place)?;
        Some(OpId { job, op: OpIndex((number - self.offsets[place]) as u32) })
    }
}

/// A version of the graph as petgraph sees it. The index must be of the same version.
#[derive(Debug)]
pub struct LiveGraph<'v, V> {
    view: &'v V,
    index: &'v LiveIndex,
}

impl<V> Clone for LiveGraph<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for LiveGraph<'_, V> {}

impl<'v, V: GmgView> LiveGraph<'v, V> {
    /// Wraps a version and its index.
    pub fn new(view: &'v V, index: &'v LiveIndex) -> Self {
        Self { view, index }
    }

    /// The jobs that wait for `job` as long as it is not done, each once.
    fn after(&self, job: JobId) -> SmallVec<[JobId; 2]> {
        let Some(job) = self.view.job(job) else { return SmallVec::new() };
        let mut after: SmallVec<[JobId; 2]> =
            job.dependents.iter().copied().filter(|&dependent| self.index.place(dependent).is_some()).collect();
        after.sort_unstable();
        after.dedup();
        after
    }

    /// The jobs that `job` waits for, each once: the mirror image of [`after`](Self::after).
    fn before(&self, job: JobId) -> SmallVec<[JobId; 2]> {
        let Some(of) = self.view.job(job) else { return SmallVec::new() };
        let waits = |before: &JobId| self.view.job(*before).is_some_and(|before| before.dependents.contains(&job));
        let mut before: SmallVec<[JobId; 2]> = of.spec.after.iter().copied().filter(waits).collect();
        before.sort_unstable();
        before.dedup();
        before
    }
}

impl<V> GraphBase for LiveGraph<'_, V> {
    type EdgeId = (OpId, OpId);
    type NodeId = OpId;
}

impl<V> GraphRef for LiveGraph<'_, V> {}

impl<V> Data for LiveGraph<'_, V> {
    type NodeWeight = OpKind;
    type EdgeWeight = ();
}

impl<V> GraphProp for LiveGraph<'_, V> {
    type EdgeType = petgraph::Directed;
}

impl<V: GmgView> NodeCount for LiveGraph<'_, V> {
    fn node_count(&self) -> usize {
        self.index.offsets.last().copied().unwrap_or_default()
    }
}

impl<V: GmgView> NodeIndexable for LiveGraph<'_, V> {
    fn node_bound(&self) -> usize {
        self.node_count()
    }

    /// O(log jobs). An operator that the graph does not have gives the bound.
    fn to_index(&self, id: OpId) -> usize {
        let place = self.index.place(id.job).filter(|&place| {
            let range = self.index.offsets[place]..self.index.offsets[place + 1];
            range.len() > id.op.index()
        });
        place.map_or(self.node_bound(), |place| self.index.offsets[place] + id.op.index())
    }

    /// O(log jobs). `number` must be below the bound.
    fn from_index(&self, number: usize) -> OpId {
        let none = OpId { job: JobId { slot: u32::MAX, generation: u32::MAX }, op: OpIndex(u32::MAX) };
        self.index.op(number).unwrap_or(none)
    }
}

impl<V: GmgView> NodeCompactIndexable for LiveGraph<'_, V> {}

impl<V> Visitable for LiveGraph<'_, V> {
    type Map = HashSet<OpId>;

    fn visit_map(&self) -> HashSet<OpId> {
        HashSet::new()
    }

    fn reset_map(&self, map: &mut HashSet<OpId>) {
        map.clear();
    }
}

/// All operators of a version; see [`IntoNodeIdentifiers`].
#[derive(Clone, Debug)]
pub struct Ops<'v> {
    index: &'v LiveIndex,
    job: usize,
    op: u32,
}

impl Iterator for Ops<'_> {
    type Item = OpId;

    fn next(&mut self) -> Option<OpId> {
        loop {
            let job = *self.index.jobs.get(self.job)?;
            let count = self.index.offsets[self.job + 1] - self.index.offsets[self.job];
            if (self.op as usize) < count {
                let op = OpIndex(self.op);
                self.op += 1;
                return Some(OpId { job, op });
            }
            (self.job, self.op) = (self.job + 1, 0);
        }
    }
}

impl<'v, V: GmgView> IntoNodeIdentifiers for LiveGraph<'v, V> {
    type NodeIdentifiers = Ops<'v>;

    fn node_identifiers(self) -> Ops<'v> {
        Ops { index: self.index, job: 0, op: 0 }
    }
}

/// The operators before or after one; see [`IntoNeighborsDirected`].
#[derive(Clone, Debug)]
pub struct LiveNeighbors<'v> {
    index: &'v LiveIndex,
    direction: Direction,
    job: JobId,
    inside: Option<Neighbors<'v>>,
    /// Other jobs, and the ends of the one that is walked.
    jobs: smallvec::IntoIter<[JobId; 2]>,
    ends: Option<(JobId, std::slice::Iter<'v, OpIndex>)>,
}

impl Iterator for LiveNeighbors<'_> {
    type Item = OpId;

    fn next(&mut self) -> Option<OpId> {
        if let Some(op) = self.inside.as_mut().and_then(Iterator::next) {
            return Some(OpId { job: self.job, op });
        }
        loop {
            if let Some((job, ops)) = &mut self.ends
                && let Some(&op) = ops.next()
            {
                return Some(OpId { job: *job, op });
            }
            let job = self.jobs.next()?;
            self.ends = self.index.ends(job).map(|ends| match self.direction {
                Direction::Outgoing => (job, ends.first.iter()),
                Direction::Incoming => (job, ends.last.iter()),
            });
        }
    }
}

impl<'v, V: GmgView> IntoNeighbors for LiveGraph<'v, V> {
    type Neighbors = LiveNeighbors<'v>;

    fn neighbors(self, id: OpId) -> LiveNeighbors<'v> {
        self.neighbors_directed(id, Direction::Outgoing)
    }
}

impl<'v, V: GmgView> IntoNeighborsDirected for LiveGraph<'v, V> {
    type NeighborsDirected = LiveNeighbors<'v>;

    fn neighbors_directed(self, id: OpId, direction: Direction) -> LiveNeighbors<'v> {
        let template = self.view.job(id.job).map(|job| &*job.template).filter(|template| template.op(id.op).is_some());
        let inside = template.map(|template| template.neighbors_directed(id.op, direction));
        let is_end = inside.clone().is_some_and(|mut inside| inside.next().is_none());
        let jobs = match direction {
            _ if !is_end => SmallVec::new(),
            Direction::Outgoing => self.after(id.job),
            Direction::Incoming => self.before(id.job),
        };
        LiveNeighbors { index: self.index, direction, job: id.job, inside, jobs: jobs.into_iter(), ends: None }
    }
}

/// An edge, from an operator to one that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LiveEdge {
    /// What comes first.
    pub from: OpId,
    /// What waits for it.
    pub to: OpId,
}

impl EdgeRef for LiveEdge {
    type NodeId = OpId;
    type EdgeId = (OpId, OpId);
    type Weight = ();

    fn source(&self) -> OpId {
        self.from
    }

    fn target(&self) -> OpId {
        self.to
    }

    fn weight(&self) -> &() {
        &()
    }

    fn id(&self) -> (OpId, OpId) {
        (self.from, self.to)
    }
}

/// The edges of one operator; see [`IntoEdgesDirected`].
#[derive(Clone, Debug)]
pub struct LiveEdgesOf<'v> {
    op: OpId,
    others: LiveNeighbors<'v>,
}

impl Iterator for LiveEdgesOf<'_> {
    type Item = LiveEdge;

    fn next(&mut self) -> Option<LiveEdge> {
        let other = self.others.next()?;
        Some(match self.others.direction {
            Direction::Incoming => LiveEdge { from: other, to: self.op },
            Direction::Outgoing => LiveEdge { from: self.op, to: other },
        })
    }
}

/// All edges of a version; see [`IntoEdgeReferences`].
#[derive(Debug)]
pub struct LiveEdges<'v, V> {
    graph: LiveGraph<'v, V>,
    ops: Ops<'v>,
    of: Option<LiveEdgesOf<'v>>,
}

impl<V: GmgView> Iterator for LiveEdges<'_, V> {
    type Item = LiveEdge;

    fn next(&mut self) -> Option<LiveEdge> {
        loop {
            if let Some(edge) = self.of.as_mut().and_then(Iterator::next) {
                return Some(edge);
            }
            self.of = Some(self.graph.edges(self.ops.next()?));
        }
    }
}

impl<'v, V: GmgView> IntoEdgeReferences for LiveGraph<'v, V> {
    type EdgeRef = LiveEdge;
    type EdgeReferences = LiveEdges<'v, V>;

    fn edge_references(self) -> LiveEdges<'v, V> {
        LiveEdges { graph: self, ops: self.node_identifiers(), of: None }
    }
}

impl<'v, V: GmgView> IntoEdges for LiveGraph<'v, V> {
    type Edges = LiveEdgesOf<'v>;

    fn edges(self, op: OpId) -> LiveEdgesOf<'v> {
        self.edges_directed(op, Direction::Outgoing)
    }
}

impl<'v, V: GmgView> IntoEdgesDirected for LiveGraph<'v, V> {
    type EdgesDirected = LiveEdgesOf<'v>;

    fn edges_directed(self, op: OpId, direction: Direction) -> LiveEdgesOf<'v> {
        LiveEdgesOf { op, others: self.neighbors_directed(op, direction) }
    }
}

/// The operators of a version with their kinds; see [`IntoNodeReferences`].
#[derive(Debug)]
pub struct LiveKinds<'v, V> {
    view: &'v V,
    ops: Ops<'v>,
}

impl<'v, V: GmgView> Iterator for LiveKinds<'v, V> {
    type Item = (OpId, &'v OpKind);

    fn next(&mut self) -> Option<Self::Item> {
        let id = self.ops.next()?;
        let kind = self.view.job(id.job)?.template.op(id.op)?.kind();
        Some((id, kind))
    }
}

impl<'v, V: GmgView> IntoNodeReferences for LiveGraph<'v, V> {
    type NodeRef = (OpId, &'v OpKind);
    type NodeReferences = LiveKinds<'v, V>;

    fn node_references(self) -> LiveKinds<'v, V> {
        LiveKinds { view: self.view, ops: self.node_identifiers() }
    }
}
