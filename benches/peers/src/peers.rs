//! The same graphs by others.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use slicescheduler_benches::graphs::Graph;

/// oneTBB's figures per task: nanoseconds, and bytes of a built graph.
pub struct OneTbb {
    pub build: f64,
    pub first: f64,
    pub run: f64,
    pub bytes: f64,
}

impl OneTbb {
    pub fn least(self, other: Self) -> Self {
        Self {
            build: self.build.min(other.build),
            first: self.first.min(other.first),
            run: self.run.min(other.run),
            bytes: self.bytes.min(other.bytes),
        }
    }
}

pub fn onetbb(program: &Path, file: &Path, graph: &Graph) -> Result<OneTbb, Box<dyn Error>> {
    let output = Command::new(program).arg(file).arg("2").output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let figures: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [build, first, run, bytes] = figures.try_into().map_err(|_| format!("not four figures: {text}"))?;
    let per_task = |figure: f64| figure / f64::from(graph.tasks);
    Ok(OneTbb { build: per_task(build), first: per_task(first), run: per_task(run), bytes: per_task(bytes) })
}

/// The figures of those that have tasks but no graphs, in nanoseconds per task.
pub struct Others {
    pub rayon: f64,
    pub tokio: f64,
}

impl Others {
    pub fn least(self, other: Self) -> Self {
        Self { rayon: self.rayon.min(other.rayon), tokio: self.tokio.min(other.tokio) }
    }
}

/// What a graph on top of `spawn` needs: successors, and a count of predecessors per task. The task
/// that finishes goes on with the first successor that it makes ready and spawns the rest.
struct Counted {
    starts: Vec<u32>,
    successors: Vec<u32>,
    left: Vec<AtomicU32>,
    ran: AtomicU32,
}

impl Counted {
    fn new(graph: &Graph) -> Self {
        let mut rows = vec![Vec::new(); graph.tasks as usize];
        let left: Vec<AtomicU32> = (0..graph.tasks).map(|_| AtomicU32::new(0)).collect();
        for &(before, after) in &graph.edges {
            rows[before as usize].push(after);
            left[after as usize].fetch_add(1, Ordering::Relaxed);
        }
        let mut starts = vec![0];
        starts.extend(rows.iter().scan(0, |end, row| {
            *end += row.len() as u32;
            Some(*end)
        }));
        Self { starts, successors: rows.concat(), left, ran: AtomicU32::new(0) }
    }

    fn roots(&self) -> Vec<u32> {
        (0..).zip(&self.left).filter(|(_, left)| left.load(Ordering::Relaxed) == 0).map(|(task, _)| task).collect()
    }

    /// Runs `task` and its line of inline continuations; the others that became ready go to `spawn`.
    fn run(&self, task: u32, mut spawn: impl FnMut(u32)) {
        let mut next = Some(task);
        while let Some(task) = next.take() {
            self.ran.fetch_add(1, Ordering::Relaxed);
            let row = self.starts[task as usize] as usize..self.starts[task as usize + 1] as usize;
            for &after in &self.successors[row] {
                if self.left[after as usize].fetch_sub(1, Ordering::AcqRel) == 1 {
                    if let Some(earlier) = next.replace(after) {
                        spawn(earlier);
                    }
                }
            }
        }
    }
}

pub fn others(graph: &Graph) -> Result<Others, Box<dyn Error>> {
    Ok(Others { rayon: rayon_spawns(graph)?, tokio: tokio_spawns(graph)? })
}

fn on_rayon<'scope>(scope: &rayon::Scope<'scope>, counted: &'scope Counted, task: u32) {
    counted.run(task, |ready| scope.spawn(move |scope| on_rayon(scope, counted, ready)));
}

fn rayon_spawns(graph: &Graph) -> Result<f64, Box<dyn Error>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let counted = Counted::new(graph);
    let roots = counted.roots();
    let start = Instant::now();
    let counted = &counted;
    pool.scope(|scope| {
        for &root in &roots {
            scope.spawn(move |scope| on_rayon(scope, counted, root));
        }
    });
    let took = graph.per_task(start);
    assert_eq!(counted.ran.load(Ordering::Relaxed), graph.tasks, "every task ran");
    Ok(took)
}

fn on_tokio(counted: Arc<Counted>, task: u32, done: Sender<()>) {
    tokio::spawn(async move {
        counted.run(task, |ready| on_tokio(counted.clone(), ready, done.clone()));
        if counted.ran.load(Ordering::Relaxed) as usize == counted.left.len() {
            // Two tasks may both see the end; the second message has nobody to read it.
            let _ = done.send(());
        }
    });
}

fn tokio_spawns(graph: &Graph) -> Result<f64, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
    let counted = Arc::new(Counted::new(graph));
    let roots = counted.roots();
    let (done, end) = channel();
    let start = Instant::now();
    runtime.spawn(async move {
        for root in roots {
            on_tokio(counted.clone(), root, done.clone());
        }
    });
    end.recv()?;
    Ok(graph.per_task(start))
}
