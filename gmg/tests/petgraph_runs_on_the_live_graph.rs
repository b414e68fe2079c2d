//! petgraph's algorithms give on the live graph, and on an operator graph, what they give on a plain
//! copy of its edges, which is made here from templates and specs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use std::collections::{BTreeSet, HashMap};

use petgraph::Direction;
use petgraph::algo::{dijkstra, dominators, is_cyclic_directed, tarjan_scc, toposort};
use petgraph::dot::Dot;
use petgraph::graphmap::DiGraphMap;
use petgraph::visit::{
    EdgeRef, IntoEdgeReferences, IntoEdges, IntoNeighbors, IntoNeighborsDirected, IntoNodeIdentifiers,
    IntoNodeReferences, NodeCount, NodeIndexable,
};
use proptest::prelude::*;
use slicescheduler_gmg::id::{JobId, OpId, OpIndex};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::live_graph::{LiveGraph, LiveIndex};
use slicescheduler_gmg::shape::{Binding, TOKENS};
use slicescheduler_gmg::templates::{DenseSpec, dense};
use slicescheduler_gmg::{Gmg, GmgView};
use support::{CHAIN, DIAMOND};

type Plain = DiGraphMap<OpId, ()>;

/// Jobs of two templates, each waiting for some of those before it.
fn jobs(shape: &[(bool, Vec<prop::sample::Index>)]) -> (Gmg, Vec<JobId>) {
    let mut gmg = support::gmg();
    let mut jobs: Vec<JobId> = Vec::new();
    for (diamond, after) in shape {
        let mut spec = JobSpec::of(if *diamond { DIAMOND } else { CHAIN }).bind(Binding::new().bind(TOKENS, 1));
        for index in after.iter().filter(|_| !jobs.is_empty()) {
            spec = spec.after(*index.get(&jobs));
        }
        jobs.push(gmg.submit(spec).unwrap());
    }
    (gmg, jobs)
}

/// The edges as the templates and the specs have them.
fn plain(gmg: &Gmg, jobs: &[JobId]) -> Plain {
    let mut plain = Plain::new();
    let view = gmg.view();
    let ends = |id: JobId, last: bool| -> Vec<OpId> {
        let template = &view.job(id).unwrap().template;
        let lonely = |op: &OpIndex| {
            let others = if last { template.successors(*op).count() } else { template.predecessors(*op).count() };
            others == 0
        };
        (0..template.op_count()).map(OpIndex).filter(lonely).map(|op| OpId { job: id, op }).collect()
    };
    for &id in jobs {
        let job = view.job(id).unwrap();
        for op in job.template.ops() {
            let to = plain.add_node(OpId { job: id, op: op.index() });
            for before in job.template.predecessors(op.index()) {
                plain.add_edge(OpId { job: id, op: before }, to, ());
            }
        }
        for &before in &job.spec.after {
            for from in ends(before, true) {
                for to in ends(id, false) {
                    plain.add_edge(from, to, ());
                }
            }
        }
    }
    plain
}

/// By definition: `x` dominates `node` if no path from the root avoids it.
fn dominated_by(plain: &Plain, root: OpId, node: OpId) -> BTreeSet<OpId> {
    plain
        .nodes()
        .filter(|&x| {
            if x == node || x == root {
                return true;
            }
            let mut without = plain.clone();
            without.remove_node(x);
            !dijkstra(&without, root, None, |_| 1u32).contains_key(&node)
        })
        .collect()
}

fn shapes() -> impl Strategy<Value = Vec<(bool, Vec<prop::sample::Index>)>> {
    prop::collection::vec((any::<bool>(), prop::collection::vec(any::<prop::sample::Index>(), 0..3)), 1..8)
}

proptest! {
    #![proptest_config(support::cases(100))]

    #[test]
    fn algorithms_agree_with_a_plain_copy(shape in shapes()) {
        let (gmg, jobs) = jobs(&shape);
        let plain = plain(&gmg, &jobs);
        let view = gmg.view();
        let index = LiveIndex::of(&view);
        let live = LiveGraph::new(&view, &index);

        prop_assert_eq!(live.node_count(), plain.node_count());
        let nodes: BTreeSet<OpId> = live.node_identifiers().collect();
        prop_assert_eq!(&nodes, &plain.nodes().collect::<BTreeSet<_>>());
        for (number, node) in live.node_identifiers().enumerate() {
            prop_assert_eq!((live.to_index(node), live.from_index(number)), (number, node));
            for direction in [Direction::Incoming, Direction::Outgoing] {
                let here: Vec<OpId> = live.neighbors_directed(node, direction).collect();
                let there: BTreeSet<OpId> = plain.neighbors_directed(node, direction).collect();
                prop_assert_eq!(here.len(), there.len(), "each neighbour once");
                prop_assert_eq!(here.into_iter().collect::<BTreeSet<_>>(), there);
            }
            prop_assert!(live.edges(node).all(|edge| edge.source() == node));
            prop_assert!(live.neighbors(node).eq(live.edges(node).map(|edge| edge.target())));
        }
        let edges: BTreeSet<_> = live.edge_references().map(|edge| edge.id()).collect();
        prop_assert_eq!(edges, plain.all_edges().map(|(from, to, ())| (from, to)).collect::<BTreeSet<_>>());

        prop_assert!(!is_cyclic_directed(live));
        prop_assert_eq!(tarjan_scc(live).len(), plain.node_count());
        let order = toposort(live, None).unwrap();
        let place: HashMap<OpId, usize> = order.iter().copied().zip(0..).collect();
        prop_assert_eq!(place.len(), plain.node_count());
        prop_assert!(plain.all_edges().all(|(from, to, ())| place[&from] < place[&to]));

        let root = OpId { job: jobs[0], op: OpIndex(0) };
        let length = |from: OpId, to: OpId| 1 + (from.op.0 + to.op.0) % 3;
        prop_assert_eq!(
            dijkstra(live, root, None, |edge| length(edge.source(), edge.target())),
            dijkstra(&plain, root, None, |(from, to, ())| length(from, to))
        );
        let found = dominators::simple_fast(live, root);
        for node in dijkstra(&plain, root, None, |_| 1u32).into_keys().take(8) {
            let dominators: BTreeSet<OpId> = found.dominators(node).unwrap().collect();
            let reached = |x: &OpId| *x == root || dijkstra(&plain, root, None, |_| 1u32).contains_key(x);
            let expected: BTreeSet<OpId> = dominated_by(&plain, root, node).into_iter().filter(reached).collect();
            prop_assert_eq!(dominators, expected);
        }

        let dot = Dot::new(live);
        let text = format!("{dot:?}");
        prop_assert_eq!(text.matches("->").count(), plain.edge_count());
        prop_assert_eq!(live.node_references().count(), plain.node_count());
    }
}

#[test]
fn an_operator_graph_with_repeated_blocks_is_a_graph_of_petgraph() {
    let graph = &dense(&DenseSpec::tiny()).unwrap();
    let mut plain = DiGraphMap::<OpIndex, ()>::new();
    for op in graph.ops() {
        plain.add_node(op.index());
        graph.predecessors(op.index()).for_each(|before| {
            plain.add_edge(before, op.index(), ());
        });
    }
    let edges: BTreeSet<_> = graph.edge_references().map(|edge| edge.id()).collect();
    assert_eq!(edges, plain.all_edges().map(|(from, to, ())| (from, to)).collect::<BTreeSet<_>>());
    assert!(!is_cyclic_directed(graph));
    let first = graph.node_identifiers().next().unwrap();
    assert_eq!(dijkstra(graph, first, None, |_| 1), dijkstra(&plain, first, None, |_| 1));
    let (here, there) = (dominators::simple_fast(graph, first), dominators::simple_fast(&plain, first));
    for op in graph.node_identifiers() {
        assert_eq!(here.immediate_dominator(op), there.immediate_dominator(op));
    }
    let longest = graph.critical_path(|op| u64::from(op.0 % 5));
    let weight = |op: OpIndex| u64::from(op.0 % 5);
    let mut best: HashMap<OpIndex, u64> = HashMap::new();
    for op in toposort(&plain, None).unwrap() {
        let before = plain.neighbors_directed(op, Direction::Incoming).map(|before| best[&before]).max();
        best.insert(op, before.unwrap_or_default() + weight(op));
    }
    assert_eq!(longest.length, best.values().copied().max().unwrap());
    assert_eq!(longest.ops.iter().copied().map(weight).sum::<u64>(), longest.length);
    assert!(longest.ops.windows(2).all(|pair| plain.contains_edge(pair[0], pair[1])));
}
