//! The graph runner beside oneTBB flow graph, rayon and tokio: the same graphs of empty tasks, one
//! worker each, in the same run. `benches/peers/run` builds and starts it.
//!
//! Rounds go through all programs in turn, and each figure is the least of its rounds. *Single-owner*
//! is the precompiled order, *thread-safe* is a run with places for two workers of which one has
//! come: every count is a locked one and every ready task can be stolen, as in the peers.

mod peers;

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use peak_alloc::PeakAlloc;
use slicescheduler_benches::graphs::Graph;
use slicescheduler_benches::{Better, Target, print_and_write};
use slicescheduler_executor::runner::{ParallelRunner, TaskGraph};
use slicescheduler_gmg::units::Nanos;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// What this project's runner takes, in nanoseconds per task.
struct Ours {
    compile: f64,
    single_owner: f64,
    thread_safe: f64,
    /// Bytes that a runner keeps, beyond 4 per edge, per task.
    bytes: f64,
}

impl Ours {
    fn least(self, other: Self) -> Self {
        Self {
            compile: self.compile.min(other.compile),
            single_owner: self.single_owner.min(other.single_owner),
            thread_safe: self.thread_safe.min(other.thread_safe),
            bytes: self.bytes.min(other.bytes),
        }
    }
}

/// Runs of one runner in a round.
const RUNS: usize = 3;

fn ours(graph: &Graph) -> Result<Ours, Box<dyn Error>> {
    let before = ALLOCATED.current_usage();
    let start = Instant::now();
    let compiled = TaskGraph::compile(graph.tasks, &graph.edges)?;
    let compile = graph.per_task(start);
    let mut ran = 0;
    let single_owner = least((0..RUNS).map(|_| {
        let start = Instant::now();
        // The task is opaque to the compiler, so that the order is really walked.
        compiled.run(|task| ran = std::hint::black_box(ran ^ u64::from(task)));
        graph.per_task(start)
    }));
    let mut runner = ParallelRunner::new(compiled, NonZeroUsize::MIN.saturating_add(1)).with_task_time(Nanos(10));
    let bytes = (ALLOCATED.current_usage() - before) as f64 - 4.0 * graph.edges.len() as f64;
    let mut thread_safe = f64::INFINITY;
    for _ in 0..RUNS {
        let ran = AtomicU64::new(0);
        let start = Instant::now();
        let run = runner.start();
        run.work(|_| ran.store(ran.load(Ordering::Relaxed) + 1, Ordering::Relaxed))?;
        thread_safe = thread_safe.min(graph.per_task(start));
        assert_eq!(ran.into_inner(), u64::from(graph.tasks), "every task ran");
    }
    Ok(Ours { compile, single_owner, thread_safe, bytes: bytes / f64::from(graph.tasks) })
}

fn least(figures: impl Iterator<Item = f64>) -> f64 {
    figures.fold(f64::INFINITY, f64::min)
}

/// Bounds of a graph's rows: nanoseconds per task; times oneTBB with one owner, and thread-safe.
struct Bounds {
    nanos: f64,
    single_owner: f64,
    thread_safe: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(onetbb), Some(tasks), Some(rounds)) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("arguments: program of the oneTBB peer, tasks, rounds".into());
    };
    let (onetbb, tasks, rounds): (PathBuf, u32, u32) = (onetbb.into(), tasks.parse()?, rounds.parse()?);
    let mut rows = Vec::new();
    for (graph, bounds) in [
        (Graph::random_dag(tasks), Some(Bounds { nanos: 30.0, single_owner: 40.0, thread_safe: 7.0 })),
        (Graph::wavefront(tasks), Some(Bounds { nanos: 12.0, single_owner: 30.0, thread_safe: 8.0 })),
        (Graph::chain(tasks), Some(Bounds { nanos: 9.0, single_owner: 10.0, thread_safe: 6.0 })),
        (Graph::empty(tasks), None),
    ] {
        println!("{}: {} tasks, {} edges", graph.name, graph.tasks, graph.edges.len());
        let file = graph.write_beside(&onetbb)?;
        let mut figures = (ours(&graph)?, peers::onetbb(&onetbb, &file, &graph)?, peers::others(&graph)?);
        for _ in 1..rounds {
            figures.0 = figures.0.least(ours(&graph)?);
            figures.1 = figures.1.least(peers::onetbb(&onetbb, &file, &graph)?);
            figures.2 = figures.2.least(peers::others(&graph)?);
        }
        let (ours, onetbb, others) = figures;
        println!("  ns per task          build      run");
        println!("  ours, single-owner {:>7.1} {:>8.2}", ours.compile, ours.single_owner);
        println!("  ours, thread-safe  {:>7.1} {:>8.2}", ours.compile, ours.thread_safe);
        println!("  oneTBB flow graph  {:>7.1} {:>8.2}   {:.0} B per task", onetbb.build, onetbb.run, onetbb.bytes);
        println!("  rayon, spawn             - {:>8.2}", others.rayon);
        println!("  tokio, spawn             - {:>8.2}", others.tokio);
        if let Some(bounds) = bounds {
            rows.extend(targets(&graph, &bounds, &ours, &onetbb));
        }
    }
    print_and_write("executor_runner", &rows)?;
    Ok(())
}

fn targets(graph: &Graph, bounds: &Bounds, ours: &Ours, onetbb: &peers::OneTbb) -> Vec<Target> {
    let name = |what: &str| -> &'static str { format!("graph runner, {}, {what}", graph.name).leak() };
    let peer = Some(("oneTBB flow graph", onetbb.run));
    let times =
        |what, ratio, bound| Target { better: Better::Higher, ..Target::at_most(name(what), ratio, "x", bound) };
    let once = (onetbb.build + onetbb.first) / (ours.compile + ours.single_owner);
    let mut rows = vec![
        Target { peer, ..Target::at_most(name("single-owner"), ours.single_owner, "ns", bounds.nanos) },
        times("single-owner over oneTBB", onetbb.run / ours.single_owner, bounds.single_owner),
        times("thread-safe over oneTBB", onetbb.run / ours.thread_safe, bounds.thread_safe),
        Target::at_most(name("bytes per task beyond 4 per edge"), ours.bytes, "B", 40.0),
    ];
    if graph.name == "random DAG" {
        rows.push(times("build and run once over oneTBB", once, 9.0));
    }
    rows
}
