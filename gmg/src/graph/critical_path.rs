//! The longest path through a graph.

use super::OpGraph;
use crate::id::OpIndex;

/// A path that nothing in the graph is longer than.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CriticalPath {
    /// The weights on it together, saturating.
    pub length: u64,
    /// The operators on it, each waiting for the one before.
    pub ops: Vec<OpIndex>,
}

impl OpGraph {
    /// The path with the largest sum of `weight`, for instance of durations; of equal ones that
    /// whose last operators come first. O(operators + edges), with 12 bytes per operator.
    ///
    /// # Example
    ///
    /// ```
    /// use slicescheduler_gmg::templates::{DenseSpec, dense};
    ///
    /// let graph = dense(&DenseSpec::tiny())?;
    /// let path = graph.critical_path(|_| 1);
    /// assert_eq!(path.length, path.ops.len() as u64);
    /// # Ok::<(), slicescheduler_gmg::graph::GraphError>(())
    /// ```
    pub fn critical_path(&self, weight: impl Fn(OpIndex) -> u64) -> CriticalPath {
        let mut finish = vec![0u64; self.op_count() as usize];
        let mut before = vec![u32::MAX; self.op_count() as usize];
        // Indices are a topological order.
        for op in (0..self.op_count()).map(OpIndex) {
            let mut start = 0;
            for predecessor in self.predecessors(op) {
                let at = finish[predecessor.index()];
                if at > start || before[op.index()] == u32::MAX {
                    (start, before[op.index()]) = (at, predecessor.0);
                }
            }
            finish[op.index()] = start.saturating_add(weight(op));
        }
        let length = finish.iter().copied().max().unwrap_or_default();
        let mut at = finish.iter().position(|&finish| finish == length).map(|last| last as u32);
        let mut ops = Vec::new();
        while let Some(op) = at {
            ops.push(OpIndex(op));
            at = Some(before[op as usize]).filter(|&before| before != u32::MAX);
        }
        ops.reverse();
        CriticalPath { length, ops }
    }
}
