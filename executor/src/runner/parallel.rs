//! One run shared by several workers.
//!
//! Each task counts the predecessors that have not finished. Who finishes the last one goes on with
//! the task itself (so a chain stays with its worker), and puts what else became ready into its
//! own deque, from which workers without work steal.
//!
//! **Sleep.** A worker that finds nothing takes the lock, raises `sleepers`, looks once more and
//! waits. Who offers work first makes it visible, then reads `sleepers`. Both have a sequentially
//! consistent fence in between, so either the sleeper sees the work or the other sees the sleeper,
//! and then it takes the lock to notify, which it gets only once the sleeper waits. Nobody spins.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crossbeam::deque::{Steal, Stealer, Worker as Deque};

use super::TaskGraph;
use crate::error::{ExecutorError, Result};

/// No task.
const NONE: u32 = u32::MAX;

/// A graph and what its parallel runs need, allocated once.
#[derive(Debug)]
pub struct ParallelRunner {
    graph: TaskGraph,
    /// Per label: predecessors that have not finished. Back at the start value when a task starts.
    pending: Box<[AtomicU32]>,
    seats: Box<[Mutex<Deque<u32>>]>,
    stealers: Box<[Stealer<u32>]>,
    /// A run was left before its end: `pending` and the deques must be set anew.
    left: AtomicBool,
}

impl ParallelRunner {
    /// A runner for at most `workers` threads at a time.
    pub fn new(graph: TaskGraph, workers: NonZeroUsize) -> Self {
        let pending = graph.predecessors.iter().map(|&count| AtomicU32::new(count)).collect();
        let deques: Vec<Deque<u32>> = (0..workers.get()).map(|_| Deque::new_lifo()).collect();
        let stealers = deques.iter().map(Deque::stealer).collect();
        let seats = deques.into_iter().map(Mutex::new).collect();
        Self { graph, pending, seats, stealers, left: AtomicBool::new(false) }
    }

    /// The graph.
    pub const fn graph(&self) -> &TaskGraph {
        &self.graph
    }

    /// Opens a run. Nothing happens until a thread calls [`Run::work`].
    pub fn start(&mut self) -> Run<'_> {
        if std::mem::take(self.left.get_mut()) {
            for (pending, &count) in self.pending.iter_mut().zip(&self.graph.predecessors) {
                *pending.get_mut() = count;
            }
            for seat in &mut self.seats {
                let deque = seat.get_mut().unwrap_or_else(PoisonError::into_inner);
                while deque.pop().is_some() {}
            }
        }
        Run {
            remaining: AtomicUsize::new(self.graph.len()),
            next_root: AtomicU32::new(0),
            next_seat: AtomicUsize::new(0),
            panicked: AtomicU32::new(NONE),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            runner: self,
        }
    }
}

/// One run of a graph, to be shared by the host's threads.
///
/// ```
/// use std::num::NonZeroUsize;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use slicescheduler_executor::runner::{ParallelRunner, TaskGraph};
///
/// # fn main() -> Result<(), slicescheduler_executor::ExecutorError> {
/// let graph = TaskGraph::compile(3, &[(0, 1), (0, 2)])?;
/// let mut runner = ParallelRunner::new(graph, NonZeroUsize::MIN.saturating_add(1));
/// let done = AtomicUsize::new(0);
/// let count = |_task| {
///     done.fetch_add(1, Ordering::Relaxed);
/// };
/// let run = runner.start();
/// std::thread::scope(|threads| {
///     threads.spawn(|| run.work(count));
///     run.work(count)
/// })?;
/// assert_eq!(done.into_inner(), 3);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Run<'a> {
    runner: &'a ParallelRunner,
    remaining: AtomicUsize,
    next_root: AtomicU32,
    next_seat: AtomicUsize,
    /// The task that panicked.
    panicked: AtomicU32,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Run<'_> {
    /// Takes part in the run until all tasks are done, whoever does them. One thread is enough; a
    /// thread that comes late helps with what is left. All threads give the same `task`.
    ///
    /// # Errors
    /// [`ExecutorError::TooManyWorkers`] when all places are taken; [`ExecutorError::TaskPanicked`],
    /// to every worker, when a task panicked.
    pub fn work(&self, task: impl Fn(u32)) -> Result<()> {
        let seats = &self.runner.seats;
        let seat = self.next_seat.fetch_add(1, Ordering::Relaxed);
        let Some(deque) = seats.get(seat) else {
            return Err(ExecutorError::TooManyWorkers { limit: seats.len() });
        };
        let deque = deque.lock().unwrap_or_else(PoisonError::into_inner);
        let running = Cell::new(NONE);
        let work = AssertUnwindSafe(|| {
            while let Some(label) = self.find(&deque, seat) {
                self.run_from(label, &deque, &running, &task);
            }
        });
        if catch_unwind(work).is_err() {
            // The first one is reported, to all alike.
            let _ = self.panicked.compare_exchange(NONE, running.get(), Ordering::AcqRel, Ordering::Relaxed);
            self.wake_all();
        }
        match self.panicked.load(Ordering::Acquire) {
            NONE => Ok(()),
            task => Err(ExecutorError::TaskPanicked { task }),
        }
    }

    /// Runs a ready task and, one after the other, tasks that it makes ready.
    fn run_from(&self, label: u32, deque: &Deque<u32>, running: &Cell<u32>, task: &impl Fn(u32)) {
        let graph = &self.runner.graph;
        let mut next = Some(label);
        let mut done = 0;
        while let Some(label) = next {
            let name = graph.tasks[label as usize];
            running.set(name);
            task(name);
            done += 1;
            next = None;
            for &after in graph.successors(label) {
                let pending = &self.runner.pending[after as usize];
                // Release what this task wrote; whoever gets the last one acquires all of it.
                if pending.fetch_sub(1, Ordering::AcqRel) == 1 {
                    pending.store(graph.predecessors[after as usize], Ordering::Relaxed);
                    match next {
                        None => next = Some(after),
                        Some(_) => self.offer(after, deque),
                    }
                }
            }
            next = next.or_else(|| deque.pop());
        }
        if self.remaining.fetch_sub(done, Ordering::AcqRel) == done {
            self.wake_all();
        }
    }

    /// Something to do; `None` when the run is over.
    fn find(&self, deque: &Deque<u32>, seat: usize) -> Option<u32> {
        if let Some(label) = self.look(deque, seat) {
            return self.unless_over(label);
        }
        let mut lock = self.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let found = loop {
            if self.is_over() {
                break None;
            }
            if let Some(label) = self.look(deque, seat) {
                break Some(label);
            }
            lock = self.wake.wait(lock).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(lock);
        found
    }

    /// Looks once everywhere: the own deque, tasks without predecessor, the others' deques.
    fn look(&self, deque: &Deque<u32>, seat: usize) -> Option<u32> {
        if let Some(label) = deque.pop() {
            return Some(label);
        }
        if self.next_root.load(Ordering::Relaxed) < self.runner.graph.roots {
            let root = self.next_root.fetch_add(1, Ordering::Relaxed);
            if root < self.runner.graph.roots {
                return Some(root);
            }
        }
        let stealers = &self.runner.stealers;
        (1..stealers.len()).find_map(|distance| {
            let victim = &stealers[(seat + distance) % stealers.len()];
            loop {
                match victim.steal() {
                    Steal::Success(label) => return Some(label),
                    Steal::Empty => return None,
                    // Somebody else got one in the meantime.
                    Steal::Retry => {}
                }
            }
        })
    }

    fn offer(&self, label: u32, deque: &Deque<u32>) {
        deque.push(label);
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            drop(self.lock());
            self.wake.notify_one();
        }
    }

    fn wake_all(&self) {
        drop(self.lock());
        self.wake.notify_all();
    }

    fn is_over(&self) -> bool {
        self.remaining.load(Ordering::Acquire) == 0 || self.panicked.load(Ordering::Acquire) != NONE
    }

    fn unless_over(&self, label: u32) -> Option<u32> {
        (self.panicked.load(Ordering::Acquire) == NONE).then_some(label)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if *self.remaining.get_mut() > 0 {
            self.runner.left.store(true, Ordering::Relaxed);
        }
    }
}
