//! Graphs of empty tasks, for graph runners.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Empty tasks and what must come before what.
#[derive(Clone, Debug)]
pub struct Graph {
    /// Which it is, for tables.
    pub name: &'static str,
    /// How many tasks; they are numbered.
    pub tasks: u32,
    /// What must come before what.
    pub edges: Vec<(u32, u32)>,
}

impl Graph {
    /// Each task has four predecessors, drawn evenly from all tasks before it.
    pub fn random_dag(tasks: u32) -> Self {
        // xorshift64 (Marsaglia, Journal of Statistical Software 8, 2003).
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = |below: u32| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % u64::from(below)) as u32
        };
        let edges = (1..tasks).flat_map(|task| [task; 4]).map(|task| (draw(task), task)).collect();
        Self { name: "random DAG", tasks, edges }
    }

    /// A square of tasks, each behind its upper and its left neighbour.
    pub fn wavefront(tasks: u32) -> Self {
        let side = tasks.isqrt();
        let mut edges = Vec::new();
        for task in 0..side * side {
            if task % side + 1 < side {
                edges.push((task, task + 1));
            }
            if task / side + 1 < side {
                edges.push((task, task + side));
            }
        }
        Self { name: "wavefront", tasks: side * side, edges }
    }

    /// Each task behind the one before.
    pub fn chain(tasks: u32) -> Self {
        Self { name: "chain", tasks, edges: (1..tasks).map(|task| (task - 1, task)).collect() }
    }

    /// No edges.
    pub fn empty(tasks: u32) -> Self {
        Self { name: "empty tasks", tasks, edges: Vec::new() }
    }

    /// Nanoseconds per task since `start`.
    pub fn per_task(&self, start: Instant) -> f64 {
        start.elapsed().as_nanos() as f64 / f64::from(self.tasks)
    }

    /// Writes the graph for the oneTBB peer into the folder of its program: words of 32 bits, the
    /// number of tasks, that of edges, the edges.
    ///
    /// # Errors
    /// If it can not be written.
    pub fn write_beside(&self, program: &Path) -> io::Result<PathBuf> {
        let file = program.with_file_name(format!("{}.graph", self.name.replace(' ', "_")));
        let head = [self.tasks, self.edges.len() as u32];
        let words = head.into_iter().chain(self.edges.iter().flat_map(|&(before, after)| [before, after]));
        std::fs::write(&file, words.flat_map(u32::to_ne_bytes).collect::<Vec<u8>>())?;
        Ok(file)
    }
}
