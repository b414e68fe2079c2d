//! A runner for graphs that are run again and again.
//!
//! [`TaskGraph::compile`] gives the tasks new labels in a topological order and stores the edges as
//! one array of successors. One owner then runs the tasks in label order, which costs nothing per
//! edge; several workers share a run by counting down the predecessors of each task
//! ([`ParallelRunner`]). 12 bytes per task and 4 per edge, 4 more per task for parallel runs.

mod parallel;

pub use parallel::{ParallelRunner, Run};

use crate::error::{ExecutorError, Result};

/// Tasks `0..tasks` and what must come before what, ready to be run.
#[derive(Clone, Debug)]
pub struct TaskGraph {
    /// Task per label; labels are a topological order, tasks without predecessor come first.
    tasks: Vec<u32>,
    /// Where in `successors` each label's begin, and at last where they end.
    starts: Vec<u32>,
    /// Labels.
    successors: Vec<u32>,
    /// Predecessors per label.
    predecessors: Vec<u32>,
    /// Labels without predecessor.
    roots: u32,
}

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
    /// When an edge names a task that does not exist, the edges form a cycle, or there are 2^32 of
    /// them or more.
    pub fn compile(tasks: u32, edges: &[(u32, u32)]) -> Result<Self> {
        let limit = u32::MAX as usize;
        if edges.len() > limit {
            return Err(ExecutorError::TooManyEdges { edges: edges.len(), limit });
        }
        let unknown = |&(a, b): &(u32, u32)| a >= tasks || b >= tasks;
        if let Some(edge) = edges.iter().position(unknown) {
            let (before, after) = edges[edge];
            return Err(ExecutorError::UnknownTask { edge, task: before.max(after), tasks });
        }
        let count = tasks as usize;
        let (starts, successors) = rows(count, edges.iter().copied());
        let mut waiting_for = vec![0u32; count];
        for &(_, after) in edges {
            waiting_for[after as usize] += 1;
        }
        let predecessors = waiting_for.clone();

        // Kahn's algorithm; `order` is its queue.
        let mut order: Vec<u32> = (0..tasks).filter(|&task| waiting_for[task as usize] == 0).collect();
        let roots = order.len() as u32;
        let mut at = 0;
        while let Some(&task) = order.get(at) {
            for &next in &successors[starts[task as usize] as usize..starts[task as usize + 1] as usize] {
                waiting_for[next as usize] -= 1;
                if waiting_for[next as usize] == 0 {
                    order.push(next);
                }
            }
            at += 1;
        }
        if let Some(task) = (0..tasks).find(|&task| waiting_for[task as usize] > 0) {
            return Err(ExecutorError::Cycle { task });
        }

        let mut labels = vec![0u32; count];
        for (label, &task) in order.iter().enumerate() {
            labels[task as usize] = label as u32;
        }
        let relabelled = edges.iter().map(|&(a, b)| (labels[a as usize], labels[b as usize]));
        let (starts, successors) = rows(count, relabelled);
        let predecessors = order.iter().map(|&task| predecessors[task as usize]).collect();
        Ok(Self { tasks: order, starts, successors, predecessors, roots })
    }

    /// How many tasks there are.
    pub const fn len(&self) -> usize {
        self.tasks.len()
    }

    /// True without a task.
    pub const fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The order in which one owner runs the tasks.
    pub fn order(&self) -> &[u32] {
        &self.tasks
    }

    /// Runs every task after its predecessors, on this thread, in [`order`](Self::order).
    pub fn run(&self, mut task: impl FnMut(u32)) {
        for &name in &self.tasks {
            task(name);
        }
    }

    /// The labels behind a label.
    fn successors(&self, label: u32) -> &[u32] {
        &self.successors[self.starts[label as usize] as usize..self.starts[label as usize + 1] as usize]
    }
}

/// The edges as rows: where each source's targets begin, and the targets.
fn rows(count: usize, edges: impl Iterator<Item = (u32, u32)> + Clone) -> (Vec<u32>, Vec<u32>) {
    let mut starts = vec![0u32; count + 1];
    let mut total = 0;
    for (from, _) in edges.clone() {
        starts[from as usize + 1] += 1;
        total += 1;
    }
    for row in 0..count {
        starts[row + 1] += starts[row];
    }
    let mut next = starts.clone();
    let mut targets = vec![0u32; total];
    for (from, to) in edges {
        targets[next[from as usize] as usize] = to;
        next[from as usize] += 1;
    }
    (starts, targets)
}
