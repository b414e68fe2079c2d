//! A lane's queue and its progress words in many interleavings, chosen by shuttle.

use std::sync::Arc;

use super::progress::Progress;
use super::queue::Queue;
use super::{Entry, Program, Rank, Recall, Ticket};
use crate::error::Result;
use crate::sync::{AtomicU32, Ordering};

/// Operators that do nothing.
struct Idle(u32);

impl Program for Idle {
    fn len(&self) -> u32 {
        self.0
    }

    fn step(&mut self, _: u32) -> Result<()> {
        Ok(())
    }
}

fn entry(ops: u32, rank: u8) -> Entry {
    Entry { program: Box::new(Idle(ops)), ops: None, rank: Rank(rank), tag: u64::from(rank) }
}

fn try_interleavings(test: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(test, 5_000);
    shuttle::check_pct(test, 5_000, 3);
}

/// What was started and what was recalled are complements, and two recalls have one answer.
#[test]
fn start_and_recall_agree() {
    const OPS: u32 = 3;
    try_interleavings(|| {
        let progress = Arc::new(Progress::new(0..OPS));
        let lane = {
            let progress = progress.clone();
            shuttle::thread::spawn(move || std::iter::from_fn(|| progress.start()).count() as u32)
        };
        let other = {
            let progress = progress.clone();
            shuttle::thread::spawn(move || progress.recall())
        };
        let recall = progress.recall();
        let started = lane.join().unwrap();
        assert_eq!(other.join().unwrap(), recall);
        match recall {
            Recall::Recalled { first } => assert_eq!(started, first),
            Recall::TooLate => assert_eq!(started, OPS),
        }
    });
}

/// The lane's thread: takes entries until the lane ends, runs them, and counts operators by rank.
fn serve(queue: &Queue, ran: &[AtomicU32; 2]) {
    while let Some(entry) = queue.pop() {
        while entry.ticket.progress.start().is_some() {
            ran[usize::from(entry.rank.0)].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whoever queues, recalls or yields: an operator runs, or its recaller was told that it will not.
#[test]
fn no_operator_is_lost_between_queue_recall_and_right_of_way() {
    const OPS: u32 = 2;
    try_interleavings(|| {
        let queue = Arc::new(Queue::default());
        let ran = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let lane = {
            let (queue, ran) = (queue.clone(), ran.clone());
            shuttle::thread::spawn(move || serve(&queue, &ran))
        };
        let guest = queue.push(entry(OPS, 0), 0..OPS).unwrap_or_else(|_| unreachable!("the lane lives"));
        let recaller = {
            let (queue, guest) = (queue.clone(), guest.clone());
            shuttle::thread::spawn(move || queue.recall(&guest).0)
        };
        let owner = queue.push(entry(OPS, 1), 0..OPS).unwrap_or_else(|_| unreachable!("the lane lives"));
        let recall = recaller.join().unwrap();
        // The owner yields to nobody; a lane that is idle must have been woken for it.
        while owner.next_op() < OPS {
            shuttle::thread::yield_now();
        }
        queue.end();
        lane.join().unwrap();
        assert_eq!(ran[1].load(Ordering::Relaxed), OPS);
        let guests = ran[0].load(Ordering::Relaxed);
        match recall {
            Recall::Recalled { first } => assert_eq!(guests, first),
            Recall::TooLate => assert_eq!(guests, OPS),
        }
    });
}

/// An entry that is pushed while the lane ends is run, given back by the end, or refused.
#[test]
fn an_entry_that_meets_the_end_has_one_fate() {
    try_interleavings(|| {
        let queue = Arc::new(Queue::default());
        let ran = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let lane = {
            let (queue, ran) = (queue.clone(), ran.clone());
            shuttle::thread::spawn(move || serve(&queue, &ran))
        };
        let pusher = {
            let queue = queue.clone();
            shuttle::thread::spawn(move || queue.push(entry(1, 0), 0..1).ok())
        };
        let given_back = queue.end().len() as u32;
        let pushed: Option<Ticket> = pusher.join().unwrap();
        lane.join().unwrap();
        let started = ran[0].load(Ordering::Relaxed);
        // One that was taken by the lane before the end may have been stopped at its first boundary.
        let stopped = u32::from(pushed.is_some()) - given_back - started;
        assert!(stopped <= 1, "{given_back} given back, {started} started");
        assert_eq!(queue.waiting(), 0);
    });
}
