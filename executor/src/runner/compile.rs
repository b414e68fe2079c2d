//! From edges to labels and rows of successors.

use super::{SOLE, TaskGraph, WIDE};
use crate::error::{ExecutorError, Result};

impl TaskGraph {
    /// Compiles a graph of `tasks` tasks with edges `(before, after)`; an edge may be given twice.
    /// O(tasks + edges); fastest when every edge goes from a lower to a higher task, because their
    /// order then needs no search.
    ///
    /// ```
    /// use slicescheduler_executor::runner::TaskGraph;
    ///
    /// # fn main() -> Result<(), slicescheduler_executor::ExecutorError> {
    /// let graph = TaskGraph::compile(3, &[(2, 0), (0, 1)])?;
    /// let mut order = Vec::new();
    /// graph.run(|task| order.push(task));
    /// assert_eq!(order, [2, 0, 1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When an edge names a task that does not exist, the edges form a cycle, or there are more
    /// than 2^31 tasks or 2^32 - 1 edges.
    pub fn compile(tasks: u32, edges: &[(u32, u32)]) -> Result<Self> {
        let limit = u32::MAX as usize;
        if edges.len() > limit {
            return Err(ExecutorError::TooManyEdges { edges: edges.len(), limit });
        }
        if tasks > SOLE {
            return Err(ExecutorError::TooManyTasks { tasks, limit: SOLE });
        }
        let rows = Rows::of(tasks, edges)?;
        let order = if rows.ascending { rows.ascending_order() } else { rows.kahn_order()? };
        let count = tasks as usize;
        let mut labels = vec![0u32; count];
        let mut predecessors = Vec::with_capacity(count);
        let mut wide = Vec::new();
        for (label, &task) in (0..).zip(&order) {
            let before = rows.predecessors[task as usize];
            // An entry is the label and whether anything has to be counted, so that relabelling reads
            // one array.
            labels[task as usize] = if before == 1 { label | SOLE } else { label };
            let byte = u8::try_from(before).unwrap_or(WIDE);
            if byte == WIDE {
                wide.push((label, before));
            }
            predecessors.push(byte);
        }
        let roots = order.iter().take_while(|&&task| rows.predecessors[task as usize] == 0).count() as u32;
        let mut starts = Vec::with_capacity(count + 1);
        let mut successors = Vec::with_capacity(edges.len());
        starts.push(0);
        for &task in &order {
            successors.extend(rows.row(task).iter().map(|&after| labels[after as usize]));
            starts.push(successors.len() as u32);
        }
        Ok(Self { tasks: order, starts, successors, predecessors, wide, roots })
    }
}

/// The edges by the task that they leave.
struct Rows {
    starts: Vec<u32>,
    targets: Vec<u32>,
    /// How many edges enter each task.
    predecessors: Vec<u32>,
    /// Every edge goes from a lower to a higher task.
    ascending: bool,
}

impl Rows {
    fn of(tasks: u32, edges: &[(u32, u32)]) -> Result<Self> {
        let count = tasks as usize;
        // The row of task t begins at `starts[t + 1]` while it is filled, which moves that to the row's
        // end: to where the next one begins.
        let mut starts = vec![0u32; count + 2];
        let mut predecessors = vec![0u32; count];
        let mut ascending = true;
        for (edge, &(before, after)) in edges.iter().enumerate() {
            if before >= tasks || after >= tasks {
                return Err(ExecutorError::UnknownTask { edge, task: before.max(after), tasks });
            }
            starts[before as usize + 2] += 1;
            predecessors[after as usize] += 1;
            ascending &= before < after;
        }
        let mut total = 0;
        for start in &mut starts {
            total += *start;
            *start = total;
        }
        let mut targets = vec![0u32; edges.len()];
        for &(before, after) in edges {
            let next = &mut starts[before as usize + 1];
            targets[*next as usize] = after;
            *next += 1;
        }
        Ok(Self { starts, targets, predecessors, ascending })
    }

    fn row(&self, task: u32) -> &[u32] {
        &self.targets[self.starts[task as usize] as usize..self.starts[task as usize + 1] as usize]
    }

    fn roots(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.predecessors).filter(|&(_, &before)| before == 0).map(|(task, _)| task)
    }

    /// The tasks' own order, those without predecessor first; topological if the edges ascend.
    fn ascending_order(&self) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.predecessors.len());
        order.extend(self.roots());
        order.extend((0..).zip(&self.predecessors).filter(|&(_, &before)| before > 0).map(|(task, _)| task));
        order
    }

    /// Kahn's algorithm (Communications of the ACM 5, 1962); the order is its queue.
    fn kahn_order(&self) -> Result<Vec<u32>> {
        let mut left = self.predecessors.clone();
        let mut order = Vec::with_capacity(left.len());
        order.extend(self.roots());
        let mut at = 0;
        while let Some(&task) = order.get(at) {
            for &next in self.row(task) {
                let left = &mut left[next as usize];
                *left -= 1;
                if *left == 0 {
                    order.push(next);
                }
            }
            at += 1;
        }
        match (0..).zip(&left).find(|&(_, &left)| left > 0) {
            Some((task, _)) => Err(ExecutorError::Cycle { task }),
            None => Ok(order),
        }
    }
}
