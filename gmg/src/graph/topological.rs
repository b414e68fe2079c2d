//! A topological order that is kept while edges are added.
//!
//! It is for hosts that wire jobs or operators as they go and want the circle named when there would be one.
//! The graph itself needs none: operators of a template are numbered in an order that their edges follow
//! (a builder refuses any other), a job can only come after jobs that exist, and nobody adds an edge to either
//! later. So no delta can close a circle, and there is nothing to keep in order.
//!
//! The algorithm is that of Pearce and Kelly ("A dynamic topological sort algorithm for directed
//! acyclic graphs", JEA 11, 2006). An edge that agrees with the order costs O(1). One that does not
//! costs O(d log d + e), where `d` are the nodes between its ends in the order that are reached from
//! its head or lead to its tail, and `e` their edges; positions are permuted among those nodes and
//! nothing else moves.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

use smallvec::SmallVec;

/// Nodes that wait for each other in a circle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} would wait for each other in a circle", in_a_row(.nodes))]
pub struct Circle<N: fmt::Debug> {
    /// Each comes before the next, the last before the first. One node if it would wait for itself.
    pub nodes: Vec<N>,
}

fn in_a_row<N: fmt::Debug>(nodes: &[N]) -> String {
    let names: Vec<_> = nodes.iter().map(|node| format!("{node:?}")).collect();
    names.join(" -> ")
}

/// Nodes in an order in which every edge goes forward.
///
/// # Example
///
/// ```
/// use slicescheduler_gmg::graph::TopologicalOrder;
///
/// let mut order = TopologicalOrder::new();
/// order.add("wash", "iron")?;
/// order.add("buy", "wash")?;
/// assert!(order.precedes(&"buy", &"iron"));
/// let refused = order.add("iron", "buy").unwrap_err();
/// assert_eq!(refused.nodes, ["buy", "wash", "iron"]);
/// # Ok::<(), slicescheduler_gmg::graph::Circle<&str>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TopologicalOrder<N> {
    slots: HashMap<N, u32>,
    nodes: Vec<Slot<N>>,
    free: Vec<u32>,
    /// The position of the next new node: at the end.
    next: u64,
    /// Marks of the search that is under way.
    search: u32,
}

#[derive(Clone, Debug)]
struct Slot<N> {
    node: N,
    /// Where it is in the order; distinct, with gaps.
    position: u64,
    before: SmallVec<[u32; 2]>,
    after: SmallVec<[u32; 2]>,
    /// The last search that came here, and from where.
    seen: u32,
    from: u32,
}

impl<N> Default for TopologicalOrder<N> {
    fn default() -> Self {
        Self { slots: HashMap::new(), nodes: Vec::new(), free: Vec::new(), next: 0, search: 0 }
    }
}

impl<N: Copy + Eq + Hash + fmt::Debug> TopologicalOrder<N> {
    /// An order of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Nodes in it.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True if it has no nodes.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Puts `node` at the end, if it is not in the order yet.
    pub fn insert(&mut self, node: N) {
        self.slot(node);
    }

    fn slot(&mut self, node: N) -> u32 {
        if let Some(&slot) = self.slots.get(&node) {
            return slot;
        }
        let new = Slot { node, position: self.next, before: SmallVec::new(), after: SmallVec::new(), seen: 0, from: 0 };
        self.next += 1;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = new;
                slot
            }
            None => {
                self.nodes.push(new);
                self.nodes.len() as u32 - 1
            }
        };
        self.slots.insert(node, slot);
        slot
    }

    /// Adds the edge from `before` to `after`, and the nodes if they are new. False if the edge was
    /// there.
    ///
    /// # Errors
    ///
    /// The circle that the edge would close. Then the edge is not added and the order stays.
    pub fn add(&mut self, before: N, after: N) -> Result<bool, Circle<N>> {
        if before == after {
            return Err(Circle { nodes: vec![before] });
        }
        let (tail, head) = (self.slot(before), self.slot(after));
        if self.nodes[tail as usize].after.contains(&head) {
            return Ok(false);
        }
        let (lower, upper) = (self.position(head), self.position(tail));
        if lower < upper {
            let forward = self.reach(head, Some(tail), |slot| &slot.after, |position| position <= upper)?;
            // The second search cannot find what the first found: that would be a circle.
            let backward = self.reach(tail, None, |slot| &slot.before, |position| position >= lower)?;
            self.permute(backward, forward);
        }
        self.nodes[tail as usize].after.push(head);
        self.nodes[head as usize].before.push(tail);
        Ok(true)
    }

    /// Takes `node` out, with its edges. False if it was not there. O(edges of the node and of its
    /// neighbours).
    pub fn remove(&mut self, node: &N) -> bool {
        let Some(slot) = self.slots.remove(node) else { return false };
        let (before, after) = {
            let gone = &mut self.nodes[slot as usize];
            (std::mem::take(&mut gone.before), std::mem::take(&mut gone.after))
        };
        for neighbour in before {
            self.nodes[neighbour as usize].after.retain(|other| *other != slot);
        }
        for neighbour in after {
            self.nodes[neighbour as usize].before.retain(|other| *other != slot);
        }
        self.free.push(slot);
        true
    }

    /// True if both are in the order and `first` has its place before `second`. O(1).
    pub fn precedes(&self, first: &N, second: &N) -> bool {
        match (self.slots.get(first), self.slots.get(second)) {
            (Some(&first), Some(&second)) => self.position(first) < self.position(second),
            _ => false,
        }
    }

    /// All nodes in order. O(n log n).
    pub fn sorted(&self) -> Vec<N> {
        let mut slots: Vec<u32> = self.slots.values().copied().collect();
        slots.sort_unstable_by_key(|&slot| self.position(slot));
        slots.into_iter().map(|slot| self.nodes[slot as usize].node).collect()
    }

    fn position(&self, slot: u32) -> u64 {
        self.nodes[slot as usize].position
    }

    /// What is reached from `start` over `edges` within `bounds`, `start` included.
    fn reach(
        &mut self,
        start: u32,
        forbidden: Option<u32>,
        edges: fn(&Slot<N>) -> &SmallVec<[u32; 2]>,
        bounds: impl Fn(u64) -> bool,
    ) -> Result<Vec<u32>, Circle<N>> {
        self.search = self.search.wrapping_add(1);
        if self.search == 0 {
            // Marks of 2^32 searches ago must not pass for marks of this one.
            self.nodes.iter_mut().for_each(|slot| slot.seen = 0);
            self.search = 1;
        }
        let search = self.search;
        self.nodes[start as usize].seen = search;
        let mut reached = vec![start];
        let mut next = 0;
        while let Some(&slot) = reached.get(next) {
            next += 1;
            for index in 0..edges(&self.nodes[slot as usize]).len() {
                let neighbour = edges(&self.nodes[slot as usize])[index];
                let Slot { position, seen, from, .. } = &mut self.nodes[neighbour as usize];
                if *seen == search || !bounds(*position) {
                    continue;
                }
                (*seen, *from) = (search, slot);
                if forbidden == Some(neighbour) {
                    return Err(self.circle(start, neighbour));
                }
                reached.push(neighbour);
            }
        }
        Ok(reached)
    }

    /// The path of the search from `start` to `end`.
    fn circle(&self, start: u32, end: u32) -> Circle<N> {
        let mut path = vec![end];
        let mut at = end;
        while at != start {
            at = self.nodes[at as usize].from;
            path.push(at);
        }
        Circle { nodes: path.into_iter().rev().map(|slot| self.nodes[slot as usize].node).collect() }
    }

    /// Gives the places of all to those that come first, then to those that come after them.
    fn permute(&mut self, mut first: Vec<u32>, mut then: Vec<u32>) {
        first.sort_unstable_by_key(|&slot| self.position(slot));
        then.sort_unstable_by_key(|&slot| self.position(slot));
        first.append(&mut then);
        let mut places: Vec<u64> = first.iter().map(|&slot| self.position(slot)).collect();
        places.sort_unstable();
        for (slot, place) in first.into_iter().zip(places) {
            self.nodes[slot as usize].position = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use petgraph::algo::{has_path_connecting, toposort};
    use petgraph::graphmap::DiGraphMap;
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Change {
        Add(u8, u8),
        Remove(u8),
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![
            12 => (0u8..24, 0u8..24).prop_map(|(before, after)| Change::Add(before, after)),
            1 => (0u8..24).prop_map(Change::Remove),
        ];
        prop::collection::vec(change, 0..120)
    }

    proptest! {
        /// Differential: an edge is refused exactly when a full search says that it closes a
        /// circle, and the order respects every edge that a full sort knows of.
        #[test]
        fn the_order_agrees_with_a_full_sort_after_every_change(changes in changes()) {
            let mut order = TopologicalOrder::new();
            let mut graph = DiGraphMap::<u8, ()>::new();
            for change in changes {
                match change {
                    Change::Add(before, after) => {
                        let closes = before == after
                            || (graph.contains_node(before)
                                && graph.contains_node(after)
                                && has_path_connecting(&graph, after, before, None));
                        match order.add(before, after) {
                            Ok(new) => {
                                prop_assert!(!closes);
                                prop_assert_eq!(new, graph.add_edge(before, after, ()).is_none());
                            }
                            Err(Circle { nodes }) => {
                                prop_assert!(closes);
                                // The refused edge is the last of the circle.
                                prop_assert_eq!((nodes[0], nodes[nodes.len() - 1]), (after, before));
                                prop_assert!(nodes.windows(2).all(|pair| graph.contains_edge(pair[0], pair[1])));
                                prop_assert_eq!(nodes.iter().collect::<HashSet<_>>().len(), nodes.len());
                                if before != after {
                                    graph.add_node(before);
                                    graph.add_node(after);
                                }
                            }
                        }
                    }
                    Change::Remove(node) => prop_assert_eq!(order.remove(&node), graph.remove_node(node)),
                }
                prop_assert!(toposort(&graph, None).is_ok());
                let sorted = order.sorted();
                prop_assert_eq!(sorted.len(), graph.node_count());
                prop_assert!(sorted.windows(2).all(|pair| order.precedes(&pair[0], &pair[1])));
                for (before, after, ()) in graph.all_edges() {
                    prop_assert!(order.precedes(&before, &after), "{} before {}", before, after);
                }
            }
        }
    }
}
