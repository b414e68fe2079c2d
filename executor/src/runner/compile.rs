//! From edges to labels and rows of successors.

use super::{SOLE, TaskGraph, WIDE};
use crate::error::{ExecutorError, Result};

impl TaskGraph {
    /// Compiles a graph of `tasks` tasks with edges `(before, after)`; an edge may be given twice.
    /// O(tasks + edges).
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
        let Ordered { tasks: order, starts, mut successors } = rows.ordered()?;
        let count = tasks as usize;
        let mut labels = vec![0u32; count];
        let mut predecessors = Vec::with_capacity(count);
        let (mut wide, mut roots) = (Vec::new(), Vec::new());
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
            roots.extend((before == 0).then_some(label));
        }
        for entry in &mut successors {
            *entry = labels[*entry as usize];
        }
        Ok(Self { tasks: order, starts, successors, predecessors, wide, roots })
    }
}

/// Tasks in a topological order, and in the same order the tasks behind each.
struct Ordered {
    tasks: Vec<u32>,
    starts: Vec<u32>,
    successors: Vec<u32>,
}

/// The edges by the task that they leave.
struct Rows {
    starts: Vec<u32>,
    targets: Vec<u32>,
    /// How many edges enter each task.
    predecessors: Vec<u32>,
}

impl Rows {
    fn of(tasks: u32, edges: &[(u32, u32)]) -> Result<Self> {
        let count = tasks as usize;
        // The row of task t begins at `starts[t + 1]` while it is filled, which moves that to the row's
        // end: to where the next one begins.
        let mut starts = vec![0u32; count + 2];
        let mut predecessors = vec![0u32; count];
        for (edge, &(before, after)) in edges.iter().enumerate() {
            if before >= tasks || after >= tasks {
                return Err(ExecutorError::UnknownTask { edge, task: before.max(after), tasks });
            }
            starts[before as usize + 2] += 1;
            predecessors[after as usize] += 1;
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
        Ok(Self { starts, targets, predecessors })
    }

    fn row(&self, task: u32) -> &[u32] {
        &self.targets[self.starts[task as usize] as usize..self.starts[task as usize + 1] as usize]
    }

    fn roots(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.predecessors).filter(|&(_, &before)| before == 0).map(|(task, _)| task)
    }

    /// The order in which one worker of a [`ParallelRunner`](super::ParallelRunner) comes to the tasks: on with the
    /// first that a task makes ready, the others later, last in first out. So a run that nobody else works
    /// on reads the graph from its start to its end. Otherwise Kahn's algorithm (Communications of the ACM 5,
    /// 1962).
    fn ordered(&self) -> Result<Ordered> {
        let mut left = self.predecessors.clone();
        let mut tasks = Vec::with_capacity(left.len());
        let mut starts = Vec::with_capacity(left.len() + 1);
        let mut successors = Vec::with_capacity(self.targets.len());
        let mut ready = Vec::new();
        starts.push(0);
        for root in self.roots() {
            let mut next = Some(root);
            while let Some(task) = next.take() {
                let row = self.row(task);
                tasks.push(task);
                successors.extend_from_slice(row);
                starts.push(successors.len() as u32);
                for &after in row {
                    let left = &mut left[after as usize];
                    *left -= 1;
                    if *left == 0 {
                        match next {
                            None => next = Some(after),
                            Some(_) => ready.push(after),
                        }
                    }
                }
                next = next.or_else(|| ready.pop());
            }
        }
        match (0..).zip(&left).find(|&(_, &left)| left > 0) {
            Some((task, _)) => Err(ExecutorError::Cycle { task }),
            None => Ok(Ordered { tasks, starts, successors }),
        }
    }
}
