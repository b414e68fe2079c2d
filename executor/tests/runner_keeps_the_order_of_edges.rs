//! The graph runner against a naive topological execution, on random graphs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

use proptest::prelude::*;
use slicescheduler_executor::ExecutorError;
use slicescheduler_executor::runner::{ParallelRunner, TaskGraph};
use slicescheduler_gmg::units::Nanos;

/// A graph whose tasks have random names: edges go up in a hidden order.
fn graph() -> impl Strategy<Value = (u32, Vec<(u32, u32)>)> {
    (1u32..60).prop_flat_map(|tasks| {
        let names = Just((0..tasks).collect::<Vec<u32>>()).prop_shuffle();
        let edges = prop::collection::vec((0..tasks, 0..tasks), 0..150);
        (names, edges).prop_map(move |(names, edges)| {
            let up = edges.into_iter().filter(|(a, b)| a != b).map(|(a, b)| (a.min(b), a.max(b)));
            (tasks, up.map(|(a, b)| (names[a as usize], names[b as usize])).collect())
        })
    })
}

/// What each task computes: one more than the most of its predecessors. Naive: look for a task
/// whose predecessors have all run until none is left.
fn naive(tasks: u32, edges: &[(u32, u32)]) -> Vec<u32> {
    let mut values = vec![None; tasks as usize];
    while values.contains(&None) {
        for task in 0..tasks {
            let before = edges.iter().filter(|edge| edge.1 == task).map(|edge| values[edge.0 as usize]);
            if let Some(before) = before.collect::<Option<Vec<u32>>>() {
                values[task as usize] = Some(before.into_iter().max().unwrap_or(0) + 1);
            }
        }
    }
    values.into_iter().map(Option::unwrap).collect()
}

/// The same computation by a runner: a task that runs too early reads a zero.
struct Values {
    values: Vec<AtomicU32>,
    before: Vec<Vec<u32>>,
}

impl Values {
    fn new(tasks: u32, edges: &[(u32, u32)]) -> Self {
        let mut before = vec![Vec::new(); tasks as usize];
        for &(a, b) in edges {
            before[b as usize].push(a);
        }
        Self { values: (0..tasks).map(|_| AtomicU32::new(0)).collect(), before }
    }

    fn compute(&self, task: u32) {
        let before = self.before[task as usize].iter().map(|&p| self.values[p as usize].load(Ordering::Relaxed));
        let before: Vec<u32> = before.collect();
        assert!(before.iter().all(|&value| value > 0), "task {task} ran before a predecessor");
        let last = self.values[task as usize].swap(before.into_iter().max().unwrap_or(0) + 1, Ordering::Relaxed);
        assert_eq!(last, 0, "task {task} ran twice");
    }

    fn take(&self) -> Vec<u32> {
        self.values.iter().map(|value| value.swap(0, Ordering::Relaxed)).collect()
    }
}

fn workers(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

proptest! {
    #[test]
    fn one_owner_computes_what_the_naive_execution_does((tasks, edges) in graph()) {
        let graph = TaskGraph::compile(tasks, &edges).unwrap();
        let values = Values::new(tasks, &edges);
        for _ in 0..2 {
            graph.run(|task| values.compute(task));
            prop_assert_eq!(values.take(), naive(tasks, &edges));
        }
    }

    #[test]
    fn several_workers_compute_what_the_naive_execution_does(
        (tasks, edges) in graph(), count in 1usize..4, task_time in 1u64..20_000,
    ) {
        let expected = naive(tasks, &edges);
        let values = Values::new(tasks, &edges);
        let runner = ParallelRunner::new(TaskGraph::compile(tasks, &edges).unwrap(), workers(count));
        let mut runner = runner.with_task_time(Nanos(task_time));
        for _ in 0..3 {
            let run = runner.start();
            std::thread::scope(|threads| {
                for _ in 0..count {
                    threads.spawn(|| run.work(|task| values.compute(task)).unwrap());
                }
            });
            prop_assert_eq!(&values.take(), &expected);
        }
    }

    #[test]
    fn a_cycle_is_found((tasks, mut edges) in graph(), at in any::<prop::sample::Index>()) {
        if edges.is_empty() {
            edges.push((0, 0));
        } else {
            let (a, b) = edges[at.index(edges.len())];
            edges.push((b, a));
        }
        let refused = matches!(TaskGraph::compile(tasks, &edges), Err(ExecutorError::Cycle { .. }));
        prop_assert!(refused);
    }
}

/// A byte counts up to 254 predecessors; one more, and many more, are counted elsewhere.
#[test]
fn a_task_waits_for_all_of_its_predecessors_however_many() {
    for before in [1, 2, 253, 254, 255, 256, 257, 511, 512, 3_000] {
        for count in [1, 3] {
            let edges: Vec<(u32, u32)> = (0..before).map(|task| (task, before)).collect();
            let graph = TaskGraph::compile(before + 1, &edges).unwrap();
            let mut runner = ParallelRunner::new(graph, workers(count)).with_task_time(Nanos(100));
            for _ in 0..3 {
                let values = Values::new(before + 1, &edges);
                let run = runner.start();
                std::thread::scope(|threads| {
                    for _ in 0..count {
                        threads.spawn(|| run.work(|task| values.compute(task)).unwrap());
                    }
                });
                let computed = values.take();
                assert_eq!(computed.iter().filter(|&&value| value == 1).count(), before as usize);
                assert_eq!(computed.last(), Some(&2), "{before} predecessors, {count} workers");
            }
        }
    }
}

#[test]
fn an_edge_to_nowhere_is_named() {
    let error = TaskGraph::compile(2, &[(0, 1), (1, 2)]).unwrap_err();
    assert_eq!(error.to_string(), "edge 1 names task 2, but the graph has 2 tasks");
}

#[test]
fn a_graph_without_tasks_runs() {
    let graph = TaskGraph::compile(0, &[]).unwrap();
    assert!(graph.is_empty());
    ParallelRunner::new(graph, workers(2)).start().work(|_| panic!("there is no task")).unwrap();
}

/// Both branches of a fork wait for each other, so one worker alone would hang.
#[test]
fn what_becomes_ready_is_shared_with_a_worker_that_sleeps() {
    let mut runner = ParallelRunner::new(TaskGraph::compile(3, &[(0, 1), (0, 2)]).unwrap(), workers(2));
    for _ in 0..200 {
        let meeting = Barrier::new(2);
        let run = runner.start();
        let work = || {
            run.work(|task| {
                if task > 0 {
                    meeting.wait();
                }
            })
        };
        std::thread::scope(|threads| {
            threads.spawn(move || work().unwrap());
            work().unwrap();
        });
    }
}

#[test]
fn a_panic_reaches_every_worker_and_the_next_run_is_whole() {
    let edges = [(0, 1), (1, 2), (2, 3), (0, 4), (4, 3)];
    let mut runner = ParallelRunner::new(TaskGraph::compile(5, &edges).unwrap(), workers(2));
    let run = runner.start();
    let work = || run.work(|task| assert_ne!(task, 1));
    std::thread::scope(|threads| {
        let other = threads.spawn(work);
        for result in [work(), other.join().unwrap()] {
            assert!(matches!(result, Err(ExecutorError::TaskPanicked { task: 1 })));
        }
    });
    drop(run);
    let order = Mutex::new(Vec::new());
    runner.start().work(|task| order.lock().unwrap().push(task)).unwrap();
    let order = order.into_inner().unwrap();
    let place = |task| order.iter().position(|&t| t == task).unwrap();
    assert_eq!(order.len(), 5);
    assert!(edges.iter().all(|&(a, b)| place(a) < place(b)));
}

#[test]
fn there_are_as_many_places_as_was_said() {
    let mut runner = ParallelRunner::new(TaskGraph::compile(1, &[]).unwrap(), workers(1));
    let run = runner.start();
    let count = AtomicUsize::new(0);
    let task = |_| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    run.work(task).unwrap();
    assert!(matches!(run.work(task), Err(ExecutorError::TooManyWorkers { limit: 1 })));
    assert_eq!(count.into_inner(), 1);
}
