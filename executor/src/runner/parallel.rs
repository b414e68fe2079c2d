//! One run shared by several workers.
//!
//! Each task counts the predecessors that have not finished. Who finishes the last one goes on with
//! the task itself (so a chain stays with its worker), and keeps what else became ready on a stack of
//! its own. Only what is worth a wake-up goes on to its deque, from which workers without work
//! steal: everything, or, when tasks are short, the older half of a stack that has grown to that.
//!
//! **Sleep.** A worker that finds nothing takes the lock, raises `sleepers`, looks once more and
//! waits. Who offers work first makes it visible, then reads `sleepers`. Both have a sequentially
//! consistent fence in between, so either the sleeper sees the work or the other sees the sleeper,
//! and then it takes the lock to notify, which it gets only once the sleeper waits. Nobody spins, and
//! what is kept back is run by its own worker at the latest, so nobody waits for it in vain.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};

use slicescheduler_gmg::units::Nanos;

use super::countdown::Countdowns;
use super::{SOLE, TaskGraph};
use crate::error::{ExecutorError, Result};
use crate::sync::{
    AtomicBool, AtomicU32, AtomicUsize, Condvar, Deque, Mutex, MutexGuard, Ordering, PoisonError, Steal, Stealer, fence,
};

/// No task.
const NONE: u32 = u32::MAX;

/// Work below this is not worth a wake-up, which takes about half as long.
const WORTH_WAKING: Nanos = Nanos::us(10);

/// Most tasks that a worker keeps back or takes at once, however short they are.
const MOST_KEPT: u64 = 1024;

/// Counts of successors that are looked at before the first of them is changed: a locked operation lets
/// no later load begin, so that each would wait for memory by itself.
const TOGETHER: usize = 8;

/// A graph and what its parallel runs need, allocated once.
#[derive(Debug)]
pub struct ParallelRunner {
    graph: TaskGraph,
    countdowns: Countdowns,
    seats: Box<[Mutex<Seat>]>,
    stealers: Box<[Stealer<u32>]>,
    /// Tasks that are worth a wake-up, at least 1.
    grain: u32,
    /// A run was left before its end: countdowns and seats must be set anew.
    left: AtomicBool,
}

/// What a worker has for itself.
#[derive(Debug)]
struct Seat {
    /// Ready tasks that nobody else can see.
    kept: Vec<u32>,
    /// Ready tasks that others may steal; older than `kept`.
    offered: Deque<u32>,
}

impl ParallelRunner {
    /// A runner for at most `workers` threads at a time, which offers every ready task to them.
    pub fn new(graph: TaskGraph, workers: NonZeroUsize) -> Self {
        let countdowns = Countdowns::new(&graph);
        let seat = |_| Seat { kept: Vec::new(), offered: Deque::new_lifo() };
        let seats: Vec<Seat> = (0..workers.get()).map(seat).collect();
        let stealers = seats.iter().map(|seat| seat.offered.stealer()).collect();
        let seats = seats.into_iter().map(Mutex::new).collect();
        Self { graph, countdowns, seats, stealers, grain: 1, left: AtomicBool::new(false) }
    }

    /// The same, for tasks that take about `duration` each: so many as make 10 us together are handed
    /// from worker to worker at once, and fewer are not worth waking one. If tasks take longer than
    /// said, workers may idle while one of them has up to that many ready tasks. Tasks must not wait
    /// for each other by other means than edges.
    #[must_use]
    pub fn with_task_time(mut self, duration: Nanos) -> Self {
        let tasks = WORTH_WAKING.0.div_ceil(duration.0.max(1));
        self.grain = tasks.clamp(1, MOST_KEPT) as u32;
        self
    }

    /// The graph.
    pub const fn graph(&self) -> &TaskGraph {
        &self.graph
    }

    /// Opens a run. Nothing happens until a thread calls [`Run::work`].
    pub fn start(&mut self) -> Run<'_> {
        if std::mem::take(self.left.get_mut()) {
            self.countdowns.reset();
            for seat in &mut self.seats {
                let seat = seat.get_mut().unwrap_or_else(PoisonError::into_inner);
                seat.kept.clear();
                while seat.offered.pop().is_some() {}
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
        let number = self.next_seat.fetch_add(1, Ordering::Relaxed);
        let Some(seat) = seats.get(number) else {
            return Err(ExecutorError::TooManyWorkers { limit: seats.len() });
        };
        let mut seat = seat.lock().unwrap_or_else(PoisonError::into_inner);
        let running = Cell::new(NONE);
        let work = AssertUnwindSafe(|| {
            while let Some(label) = self.find(&mut seat, number) {
                if seats.len() > 1 {
                    self.run_from::<true>(label, &mut seat, &running, &task);
                } else {
                    self.run_from::<false>(label, &mut seat, &running, &task);
                }
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

    /// Runs a ready task and, one after the other, tasks that it makes ready. There may be other
    /// workers (`SHARED`), or there is room for this one only.
    fn run_from<const SHARED: bool>(&self, label: u32, seat: &mut Seat, running: &Cell<u32>, task: &impl Fn(u32)) {
        let ParallelRunner { graph, countdowns, .. } = self.runner;
        let mut next = Some(label);
        let mut done = 0;
        while let Some(label) = next {
            let name = graph.tasks[label as usize];
            running.set(name);
            task(name);
            done += 1;
            next = None;
            for entries in graph.successors(label).chunks(TOGETHER) {
                let mut seen = [0; TOGETHER];
                if SHARED {
                    for (seen, entry) in seen.iter_mut().zip(entries) {
                        *seen = countdowns.look(entry & !SOLE);
                    }
                }
                for (&entry, &seen) in entries.iter().zip(&seen) {
                    let after = entry & !SOLE;
                    let arrive =
                        || if SHARED { countdowns.arrive(after, seen) } else { countdowns.arrive_alone(after) };
                    if entry & SOLE != 0 || arrive() {
                        // The lowest label goes on: what it needs lies next to what was just used.
                        next = Some(match next {
                            None => after,
                            Some(other) => {
                                seat.kept.push(other.max(after));
                                other.min(after)
                            }
                        });
                    }
                }
            }
            if SHARED && seat.kept.len() >= self.runner.grain as usize {
                self.share(seat);
            }
            next = next.or_else(|| seat.kept.pop()).or_else(|| seat.offered.pop());
        }
        if self.remaining.fetch_sub(done, Ordering::AcqRel) == done {
            self.wake_all();
        }
    }

    /// Offers what is worth it: all, when a task is worth a wake-up; else the older half, once what
    /// was offered before is gone.
    fn share(&self, seat: &mut Seat) {
        let all = self.runner.grain == 1;
        if !all && !seat.offered.is_empty() {
            return;
        }
        let count = if all { seat.kept.len() } else { seat.kept.len().div_ceil(2) };
        for label in seat.kept.drain(..count) {
            seat.offered.push(label);
        }
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            drop(self.lock());
            if count > 1 && all {
                self.wake.notify_all();
            } else {
                self.wake.notify_one();
            }
        }
    }

    /// Something to do; `None` when the run is over.
    fn find(&self, seat: &mut Seat, number: usize) -> Option<u32> {
        if let Some(label) = self.look(seat, number) {
            return self.unless_over(label);
        }
        let mut lock = self.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let found = loop {
            if self.is_over() {
                break None;
            }
            if let Some(label) = self.look(seat, number) {
                break Some(label);
            }
            lock = self.wake.wait(lock).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(lock);
        found
    }

    /// Looks once everywhere: the own seat, tasks without predecessor, what others offer.
    fn look(&self, seat: &mut Seat, number: usize) -> Option<u32> {
        if let Some(label) = seat.kept.pop().or_else(|| seat.offered.pop()) {
            return Some(label);
        }
        let roots = &self.runner.graph.roots;
        if (self.next_root.load(Ordering::Relaxed) as usize) < roots.len() {
            // Passes the end by one grain per worker at most, far from where it would wrap.
            let first = self.next_root.fetch_add(self.runner.grain, Ordering::Relaxed) as usize;
            let end = roots.len().min(first + self.runner.grain as usize);
            if let Some((&first, others)) = roots.get(first..end).and_then(<[u32]>::split_first) {
                seat.kept.extend(others.iter().rev());
                return Some(first);
            }
        }
        let stealers = &self.runner.stealers;
        (1..stealers.len()).find_map(|distance| {
            let victim = &stealers[(number + distance) % stealers.len()];
            loop {
                // What is worth a wake-up stays where sleepers look for it until somebody runs it.
                let stolen = match self.runner.grain {
                    1 => victim.steal(),
                    _ => victim.steal_batch_and_pop(&seat.offered),
                };
                match stolen {
                    Steal::Success(label) => return Some(label),
                    Steal::Empty => return None,
                    // Somebody else got one in the meantime.
                    Steal::Retry => {}
                }
            }
        })
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
