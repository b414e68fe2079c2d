//! A million empty tasks: a random DAG, a wavefront, a chain. *Single-owner* is the precompiled order,
//! *thread-safe* is a run with places for two workers of which one has come, so that every count and every
//! ready task is as in a run that is shared.
//!
//! Least time of one thread over repetitions. Bounds of *thread-safe* and of building are oneTBB's figures on
//! the machine of the targets, divided by what is asked for; `benches/peers/run` has oneTBB in the same run.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cpu_time::ThreadTime;
use slicescheduler_benches::Target;
use slicescheduler_benches::graphs::Graph;
use slicescheduler_executor::runner::{ParallelRunner, TaskGraph};
use slicescheduler_gmg::units::Nanos;

use crate::{ALLOCATED, Outcome};

const TASKS: u32 = 1_000_000;
const REPETITIONS: u32 = 5;

struct Names {
    single_owner: &'static str,
    thread_safe: &'static str,
    bytes: &'static str,
}

pub(crate) fn rows() -> Outcome<Vec<Target>> {
    let mut rows = Vec::new();
    let random = Names {
        single_owner: "graph runner, re-run, random DAG, single-owner",
        thread_safe: "graph runner, re-run, random DAG, thread-safe",
        bytes: "graph runner, random DAG, memory beyond 4 B per edge",
    };
    let (compile, run) = graph(&Graph::random_dag(TASKS), &random, 30.0, 1389.0 / 7.0, &mut rows)?;
    let once = Target::at_most("graph runner, build and run once, random DAG", compile + run, "ns", 3352.0 / 9.0);
    rows.push(once);
    let wavefront = Names {
        single_owner: "graph runner, re-run, wavefront, single-owner",
        thread_safe: "graph runner, re-run, wavefront, thread-safe",
        bytes: "graph runner, wavefront, memory beyond 4 B per edge",
    };
    graph(&Graph::wavefront(TASKS), &wavefront, 12.0, 458.0 / 8.0, &mut rows)?;
    let chain = Names {
        single_owner: "graph runner, re-run, chain, single-owner",
        thread_safe: "graph runner, re-run, chain, thread-safe",
        bytes: "graph runner, chain, memory beyond 4 B per edge",
    };
    graph(&Graph::chain(TASKS), &chain, 9.0, 120.0 / 6.0, &mut rows)?;
    Ok(rows)
}

/// The rows of a graph; nanoseconds per task of compiling it and of a run with one owner.
fn graph(graph: &Graph, names: &Names, single: f64, shared: f64, rows: &mut Vec<Target>) -> Outcome<(f64, f64)> {
    let per_task = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(graph.tasks);
    let (mut compile, mut single_owner, mut thread_safe, mut bytes) = ([Duration::MAX; 3], 0.0, 0.0, 0.0);
    let [built, alone, together] = &mut compile;
    for _ in 0..REPETITIONS {
        let before = ALLOCATED.current_usage();
        let begun = ThreadTime::now();
        let compiled = TaskGraph::compile(graph.tasks, &graph.edges)?;
        *built = begun.elapsed().min(*built);
        let mut seen = 0;
        let begun = ThreadTime::now();
        // What a task does is hidden from the compiler, so that the order is really walked.
        compiled.run(|task| seen = std::hint::black_box(seen ^ task));
        *alone = begun.elapsed().min(*alone);
        let two = NonZeroUsize::MIN.saturating_add(1);
        let mut runner = ParallelRunner::new(compiled, two).with_task_time(Nanos(10));
        let kept = ALLOCATED.current_usage().saturating_sub(before) as f64;
        for _ in 0..2 {
            let ran = AtomicU64::new(0);
            let begun = ThreadTime::now();
            runner.start().work(|_| ran.store(ran.load(Ordering::Relaxed) + 1, Ordering::Relaxed))?;
            *together = begun.elapsed().min(*together);
            if ran.into_inner() != u64::from(graph.tasks) {
                return Err(format!("{}: not every task ran", graph.name).into());
            }
        }
        bytes = (kept - 4.0 * graph.edges.len() as f64) / f64::from(graph.tasks);
        (single_owner, thread_safe) = (per_task(*alone), per_task(*together));
    }
    rows.push(Target::at_most(names.single_owner, single_owner, "ns", single));
    rows.push(Target::at_most(names.thread_safe, thread_safe, "ns", shared));
    rows.push(Target::at_most(names.bytes, bytes, "B", 40.0));
    Ok((per_task(*built), single_owner))
}
