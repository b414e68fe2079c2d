//! Whether work can ever start.

use std::fmt;

use super::node::{NONE, NodeRef, Phase};
use super::{Edge, Engine};

/// Work that waits for itself: each node waits for the one before it, the first for the last. It
/// never starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderCycle {
    /// The nodes, each waited for by the next; of a gang the member that waits or is waited for.
    pub nodes: Vec<NodeRef>,
}

impl fmt::Display for OrderCycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("work waits for itself, through edges, the order of lanes and collectives:")?;
        for NodeRef(node) in &self.nodes {
            write!(f, " {node} ->")?;
        }
        match self.nodes.first() {
            Some(NodeRef(first)) => write!(f, " {first}; add gangs that share lanes to all of them in the same order"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for OrderCycle {}

/// The way on which the search stands: a vertex, the node through which it was reached, and the
/// successors that have not been looked at.
struct Step {
    vertex: usize,
    entered: u32,
    successors: Vec<u32>,
}

impl Engine {
    /// Looks for work that can never start, because it waits for itself: through edges, the nodes
    /// ahead of it in its queue, and the other members of its gang. O(nodes + edges).
    ///
    /// # Errors
    /// The first such cycle. Groups that share lanes avoid it if their collectives follow one order
    /// everywhere.
    pub fn check_order(&self) -> Result<(), OrderCycle> {
        let (gangs, nodes) = (self.gangs.len(), self.nodes.len());
        let vertex = |node: u32| match self.gang_of.get(node as usize) {
            Some(&gang) if gang != NONE => gang as usize,
            _ => gangs + node as usize,
        };
        #[derive(Clone, Copy, PartialEq)]
        enum Color {
            New,
            Open,
            Closed,
        }
        let mut colors = vec![Color::New; gangs + nodes];
        let mut way: Vec<Step> = Vec::new();
        for root in (0..self.store.count()).map(|number| self.store.place(number)) {
            if colors[vertex(root)] != Color::New {
                continue;
            }
            colors[vertex(root)] = Color::Open;
            way.push(Step { vertex: vertex(root), entered: root, successors: self.successors(root) });
            while let Some(step) = way.last_mut() {
                let Some(node) = step.successors.pop() else {
                    colors[step.vertex] = Color::Closed;
                    way.pop();
                    continue;
                };
                let next = vertex(node);
                match colors[next] {
                    Color::Closed => {}
                    Color::New => {
                        colors[next] = Color::Open;
                        way.push(Step { vertex: next, entered: node, successors: self.successors(node) });
                    }
                    Color::Open => {
                        let from = way.iter().position(|step| step.vertex == next).unwrap_or(0);
                        let rest = way[from..].iter().skip(1).map(|step| self.name(step.entered));
                        return Err(OrderCycle { nodes: [self.name(node)].into_iter().chain(rest).collect() });
                    }
                }
            }
        }
        Ok(())
    }

    fn name(&self, node: u32) -> NodeRef {
        NodeRef(self.nodes[node as usize].number)
    }

    /// What waits for `node` or another member of its gang.
    fn successors(&self, node: u32) -> Vec<u32> {
        let gang = self.gang_of.get(node as usize).copied().filter(|&gang| gang != NONE);
        let alone = [node];
        let members = gang.map_or(&alone[..], |gang| self.members(gang));
        let mut found = Vec::new();
        for &member in members {
            let state = &self.nodes[member as usize];
            if matches!(state.phase, Phase::Done | Phase::Dropped) {
                continue;
            }
            found.extend((state.behind != NONE).then_some(state.behind));
            let mut edge = state.first_edge;
            while let Some(&Edge { to, next }) = self.edges.get(edge as usize) {
                found.push(to);
                edge = next;
            }
        }
        found
    }
}
