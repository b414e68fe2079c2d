//! Parallel runs in many interleavings of their workers, chosen by shuttle.

use std::num::NonZeroUsize;

use slicescheduler_gmg::units::Nanos;

use super::{ParallelRunner, TaskGraph};
use crate::sync::{AtomicU32, Mutex, Ordering};

const WORKERS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(2);

/// A fork, a join, a chain behind it, tasks that stand alone, and one with three predecessors.
const EDGES: [(u32, u32); 8] = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (0, 5), (1, 5), (6, 5)];
const TASKS: u32 = 8;

/// Two runs, each of which must end, run every task once, and every one after its predecessors; what
/// a task wrote without further ado must be seen behind it.
fn runs_end_and_keep_the_order(task_time: Option<Nanos>) {
    let mut runner = ParallelRunner::new(TaskGraph::compile(TASKS, &EDGES).unwrap(), WORKERS);
    if let Some(duration) = task_time {
        runner = runner.with_task_time(duration);
    }
    for _ in 0..2 {
        let ran: Vec<AtomicU32> = (0..TASKS).map(|_| AtomicU32::new(0)).collect();
        let run = runner.start();
        let task = |task: u32| {
            for (before, _) in EDGES.iter().filter(|edge| edge.1 == task) {
                assert_eq!(ran[*before as usize].load(Ordering::Relaxed), 1, "{task} before {before}");
            }
            assert_eq!(ran[task as usize].fetch_add(1, Ordering::Relaxed), 0, "{task} ran twice");
        };
        shuttle::thread::scope(|threads| {
            for _ in 1..WORKERS.get() {
                threads.spawn(|| run.work(task).unwrap());
            }
            run.work(task).unwrap();
        });
        assert!(ran.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn every_task_that_is_ready_is_offered() {
    shuttle::check_random(|| runs_end_and_keep_the_order(None), 4_000);
    shuttle::check_pct(|| runs_end_and_keep_the_order(None), 4_000, 3);
}

#[test]
fn short_tasks_are_kept_back() {
    let short = Some(Nanos::us(4));
    shuttle::check_random(move || runs_end_and_keep_the_order(short), 4_000);
    shuttle::check_pct(move || runs_end_and_keep_the_order(short), 4_000, 3);
}

#[test]
fn a_panic_ends_the_run_of_everybody() {
    let run = || {
        let mut runner = ParallelRunner::new(TaskGraph::compile(TASKS, &EDGES).unwrap(), WORKERS);
        let failed = Mutex::new(false);
        let run = runner.start();
        let fails = |task: u32| {
            if task == 2 {
                *failed.lock().unwrap() = true;
                // shuttle takes a panic for a failed test, hence one that its hook does not see.
                std::panic::resume_unwind(Box::new(()));
            }
        };
        shuttle::thread::scope(|threads| {
            let other = threads.spawn(|| run.work(fails));
            assert!(run.work(fails).is_err());
            assert!(other.join().unwrap().is_err());
        });
        drop(run);
        let again = AtomicU32::new(0);
        let counts = |_| {
            again.fetch_add(1, Ordering::Relaxed);
        };
        runner.start().work(counts).unwrap();
        assert_eq!(again.load(Ordering::Relaxed), TASKS);
    };
    shuttle::check_random(run, 2_000);
}
