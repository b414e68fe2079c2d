//! A runner for graphs that are run again and again.
//!
//! [`TaskGraph::compile`] gives the tasks new labels in a topological order and stores the edges as
//! one array of successors. One owner then runs the tasks in label order, which costs nothing per
//! edge; several workers share a run by counting down the predecessors of each task
//! ([`ParallelRunner`]). 9 bytes per task and 4 per edge, 4 more per task without predecessor, 2 more per task
//! for parallel runs.

mod compile;
mod countdown;
#[cfg(all(test, shuttle))]
mod interleavings;
mod parallel;

pub use parallel::{ParallelRunner, Run};

/// In an entry of [`TaskGraph::successors`]: the successor has no other predecessor, so it is ready
/// when this one is done and nothing has to be counted.
const SOLE: u32 = 1 << 31;
/// The count of a task that has more predecessors than a byte counts; see [`TaskGraph::wide`].
const WIDE: u8 = u8::MAX;

/// Tasks `0..tasks` and what must come before what, ready to be run.
#[derive(Clone, Debug)]
pub struct TaskGraph {
    /// Task per label; labels are a topological order.
    tasks: Vec<u32>,
    /// Where in `successors` each label's begin, and at last where they end.
    starts: Vec<u32>,
    /// Labels, some marked as [`SOLE`].
    successors: Vec<u32>,
    /// Predecessors per label, or [`WIDE`].
    predecessors: Vec<u8>,
    /// Labels whose count is [`WIDE`], ascending, with the number of their predecessors.
    wide: Vec<(u32, u32)>,
    /// Labels without predecessor, ascending.
    roots: Vec<u32>,
}

impl TaskGraph {
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

    /// The entries of the labels behind a label.
    fn successors(&self, label: u32) -> &[u32] {
        &self.successors[self.starts[label as usize] as usize..self.starts[label as usize + 1] as usize]
    }
}
