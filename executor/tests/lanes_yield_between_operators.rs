//! Lanes, with interleavings forced by programs that wait for the test.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use slicescheduler_executor::ExecutorError;
use slicescheduler_executor::lane::{
    Entry, Lane, LaneClock, LaneEvent, Outcome, Program, QUEUE, Rank, Recall, StdThreads, Step, ThreadSpawner, Wanted,
};
use slicescheduler_gmg::id::{DeviceId, LaneId};
use slicescheduler_gmg::units::Nanos;

/// Notes what it runs; every operator says that it has begun and waits to be let go.
struct Gated {
    len: u32,
    begun: Sender<u32>,
    go: Receiver<()>,
}

impl Program for Gated {
    fn len(&self) -> u32 {
        self.len
    }

    fn step(&mut self, op: u32) -> Result<(), ExecutorError> {
        self.begun.send(op).unwrap();
        self.go.recv().unwrap();
        Ok(())
    }
}

/// The test's side of a [`Gated`] program.
struct Gate {
    begun: Receiver<u32>,
    go: Sender<()>,
}

impl Gate {
    fn begins(&self, op: u32) {
        assert_eq!(self.begun.recv().unwrap(), op);
    }

    fn release(&self) {
        self.go.send(()).unwrap();
    }
}

fn gated(len: u32, rank: u8, tag: u64) -> (Entry, Gate) {
    let (begun_in, begun) = unbounded();
    let (go, go_out) = unbounded();
    let program = Box::new(Gated { len, begun: begun_in, go: go_out });
    (Entry { program, ops: None, rank: Rank(rank), tag }, Gate { begun, go })
}

/// An operator that goes on until the lane is wanted, and ends when it is run again.
struct Stops {
    begun: Sender<()>,
    stopped: bool,
}

impl Program for Stops {
    fn len(&self) -> u32 {
        1
    }

    fn step(&mut self, _: u32) -> Result<(), ExecutorError> {
        panic!("a lane says whether it is wanted")
    }

    fn step_until(&mut self, _: u32, wanted: &Wanted<'_>) -> Result<Step, ExecutorError> {
        if self.stopped {
            return Ok(Step::Done);
        }
        self.begun.send(()).unwrap();
        while !wanted.now() {
            std::thread::yield_now();
        }
        self.stopped = true;
        Ok(Step::Stopped)
    }
}

/// Calls a closure per operator.
struct Calls<F>(u32, F);

impl<F: FnMut(u32) -> Result<(), ExecutorError> + Send> Program for Calls<F> {
    fn len(&self) -> u32 {
        self.0
    }

    fn step(&mut self, op: u32) -> Result<(), ExecutorError> {
        (self.1)(op)
    }
}

fn calls(len: u32, tag: u64, step: impl FnMut(u32) -> Result<(), ExecutorError> + Send + 'static) -> Entry {
    Entry { program: Box::new(Calls(len, step)), ops: None, rank: Rank(0), tag }
}

const LANE: LaneId = LaneId::new(DeviceId(3), 1);

/// A clock that advances by one nanosecond per reading.
fn clock() -> LaneClock {
    let now = AtomicU64::new(0);
    Arc::new(move || Nanos(now.fetch_add(1, Ordering::Relaxed)))
}

fn lane() -> (Lane, Receiver<LaneEvent>) {
    let (sender, events) = unbounded();
    (Lane::start(LANE, &StdThreads, clock(), sender).unwrap(), events)
}

fn summary(event: &LaneEvent) -> (u64, u32, &'static str) {
    let outcome = match event.outcome {
        Outcome::Finished => "finished",
        Outcome::Recalled => "recalled",
        Outcome::Failed(_) => "failed",
        Outcome::Cancelled => "cancelled",
    };
    (event.tag, event.next_op, outcome)
}

#[test]
fn entries_of_one_rank_run_in_order_of_arrival() {
    let (lane, events) = lane();
    let ran = Arc::new(Mutex::new(Vec::new()));
    for tag in 0..3 {
        let ran = ran.clone();
        let step = move |op| {
            ran.lock().unwrap().push((tag, op));
            Ok(())
        };
        lane.enqueue(calls(2, tag, step)).unwrap();
    }
    let ended: Vec<LaneEvent> = events.iter().take(3).collect();
    assert_eq!(*ran.lock().unwrap(), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
    for (number, event) in ended.iter().enumerate() {
        assert_eq!(summary(event), (number as u64, 2, "finished"));
        assert_eq!((event.lane, event.ticket), (LANE, number as u64));
        assert!(event.started < event.finished);
    }
    assert!(ended[0].finished < ended[1].started);
}

#[test]
fn a_higher_rank_stops_the_running_entry_at_the_next_boundary() {
    let (lane, events) = lane();
    let (guest, guest_gate) = gated(5, 1, 10);
    let (owner, owner_gate) = gated(1, 3, 20);
    lane.enqueue(guest).unwrap();
    guest_gate.begins(0);
    guest_gate.release();
    guest_gate.begins(1);
    let ticket = lane.enqueue(owner).unwrap();
    assert_eq!(ticket.next_op(), 0);
    guest_gate.release();
    owner_gate.begins(0);
    assert_eq!(summary(&events.recv().unwrap()), (10, 2, "recalled"));
    owner_gate.release();
    assert_eq!(summary(&events.recv().unwrap()), (20, 1, "finished"));
    assert!(guest_gate.begun.is_empty());
}

#[test]
fn an_equal_or_lower_rank_waits() {
    let (lane, events) = lane();
    let (first, first_gate) = gated(2, 2, 1);
    lane.enqueue(first).unwrap();
    first_gate.begins(0);
    for (rank, tag) in [(1, 2), (2, 3), (0, 4), (2, 5)] {
        let (entry, gate) = gated(1, rank, tag);
        gate.release();
        lane.enqueue(entry).unwrap();
    }
    assert_eq!(lane.waiting(), 4);
    first_gate.release();
    first_gate.release();
    let order: Vec<u64> = events.iter().take(5).map(|event| event.tag).collect();
    assert_eq!(order, [1, 3, 5, 2, 4]);
}

#[test]
fn what_was_recalled_can_be_run_on_with_its_program() {
    let (lane, events) = lane();
    let (entry, gate) = gated(4, 0, 7);
    let ticket = lane.enqueue(entry).unwrap();
    gate.begins(0);
    assert_eq!(lane.recall(&ticket), Recall::Recalled { first: 1 });
    gate.release();
    let event = events.recv().unwrap();
    assert_eq!(summary(&event), (7, 1, "recalled"));
    let rest = Entry { program: event.program.unwrap(), ops: Some(1..4), rank: Rank(0), tag: 8 };
    lane.enqueue(rest).unwrap();
    for op in 1..4 {
        gate.begins(op);
        gate.release();
    }
    assert_eq!(summary(&events.recv().unwrap()), (8, 4, "finished"));
}

#[test]
fn a_waiting_entry_is_recalled_at_once_and_a_started_one_too_late() {
    let (lane, events) = lane();
    let (running, gate) = gated(1, 0, 1);
    let running = lane.enqueue(running).unwrap();
    gate.begins(0);
    let (waiting, _gate) = gated(3, 0, 2);
    let waiting = lane.enqueue(waiting).unwrap();
    assert_eq!(lane.recall(&waiting), Recall::Recalled { first: 0 });
    assert_eq!(summary(&events.recv().unwrap()), (2, 0, "recalled"));
    assert_eq!(lane.recall(&running), Recall::TooLate);
    gate.release();
    assert_eq!(summary(&events.recv().unwrap()), (1, 1, "finished"));
    assert_eq!(lane.recall(&waiting), Recall::Recalled { first: 0 });
    assert_eq!(lane.recall(&running), Recall::TooLate);
}

#[test]
fn the_ticket_of_another_lane_recalls_nothing_here() {
    let (here, events) = lane();
    let (there, _there_events) = lane();
    let ((blocker, gate), (waiting, waiting_gate)) = (gated(1, 0, 1), gated(1, 0, 2));
    here.enqueue(blocker).unwrap();
    gate.begins(0);
    here.enqueue(waiting).unwrap();
    let (first, first_gate) = gated(1, 0, 3);
    let (second, second_gate) = gated(1, 0, 4);
    first_gate.release();
    second_gate.release();
    there.enqueue(first).unwrap();
    let stranger = there.enqueue(second).unwrap();
    here.recall(&stranger);
    assert_eq!(here.waiting(), 1);
    gate.release();
    waiting_gate.release();
    let ended: Vec<_> = events.iter().take(2).map(|event| summary(&event)).collect();
    assert_eq!(ended, [(1, 1, "finished"), (2, 1, "finished")]);
}

#[test]
fn a_failed_operator_ends_its_entry_and_gives_the_program_back() {
    let (lane, events) = lane();
    let step = |op| {
        if op < 2 {
            return Ok(());
        }
        Err(ExecutorError::NoNumber { kernel: "argmax_rows", row: 4 })
    };
    lane.enqueue(calls(5, 1, step)).unwrap();
    lane.enqueue(calls(1, 2, |_| Ok(()))).unwrap();
    let event = events.recv().unwrap();
    assert_eq!(summary(&event), (1, 2, "failed"));
    assert!(matches!(event.outcome, Outcome::Failed(ExecutorError::NoNumber { row: 4, .. })));
    assert!(event.program.is_some());
    assert_eq!(summary(&events.recv().unwrap()), (2, 1, "finished"));
}

#[test]
fn a_panic_fails_the_entry_and_the_lane_lives_on() {
    /// Panics when it runs and again when it is dropped.
    struct Doomed;
    impl Program for Doomed {
        fn len(&self) -> u32 {
            1
        }
        fn step(&mut self, _: u32) -> Result<(), ExecutorError> {
            panic!("bad operand {}", 7)
        }
    }
    impl Drop for Doomed {
        fn drop(&mut self) {
            panic!("and again")
        }
    }
    let (lane, events) = lane();
    lane.enqueue(Entry { program: Box::new(Doomed), ops: None, rank: Rank(0), tag: 1 }).unwrap();
    lane.enqueue(calls(1, 2, |_| Ok(()))).unwrap();
    let event = events.recv().unwrap();
    assert_eq!(summary(&event), (1, 0, "failed"));
    let Outcome::Failed(ExecutorError::OperatorPanicked { op: 0, message }) = event.outcome else {
        panic!("{:?}", event.outcome);
    };
    assert_eq!(message, "bad operand 7");
    assert!(event.program.is_none());
    assert_eq!(summary(&events.recv().unwrap()), (2, 1, "finished"));
}

#[test]
fn a_poisoned_lane_ends_with_its_entry_and_cancels_what_waits() {
    let (lane, events) = lane();
    let (begun_in, begun) = unbounded();
    let (go, go_out) = unbounded::<()>();
    let poisons = move |op| match op {
        0 => {
            begun_in.send(()).unwrap();
            go_out.recv().unwrap();
            Ok(())
        }
        _ => Err(ExecutorError::LanePoisoned),
    };
    lane.enqueue(calls(3, 1, poisons)).unwrap();
    begun.recv().unwrap();
    lane.enqueue(calls(1, 2, |_| Ok(()))).unwrap();
    go.send(()).unwrap();
    let event = events.recv().unwrap();
    assert_eq!(summary(&event), (1, 1, "failed"));
    assert!(matches!(event.outcome, Outcome::Failed(ExecutorError::LanePoisoned)));
    assert_eq!(summary(&events.recv().unwrap()), (2, 0, "cancelled"));
    let refused = lane.enqueue(calls(1, 3, |_| Ok(())));
    assert!(matches!(refused, Err(ExecutorError::LaneEnded)));
}

#[test]
fn dropping_a_lane_finishes_the_running_operator_and_reports_the_rest() {
    let (lane, events) = lane();
    let (running, gate) = gated(3, 0, 1);
    lane.enqueue(running).unwrap();
    gate.begins(0);
    let (waiting, _gate) = gated(3, 0, 2);
    lane.enqueue(waiting).unwrap();
    let dropping = std::thread::spawn(move || drop(lane));
    assert_eq!(summary(&events.recv().unwrap()), (2, 0, "cancelled"));
    gate.release();
    assert_eq!(summary(&events.recv().unwrap()), (1, 1, "recalled"));
    dropping.join().unwrap();
    assert!(events.recv().is_err(), "the lane's thread still holds its sender");
}

#[test]
fn entries_without_an_operator_are_refused() {
    let (lane, _events) = lane();
    for ops in [0..0, 2..4, 3..3] {
        let mut entry = calls(3, 0, |_| Ok(()));
        entry.ops = Some(ops.clone());
        let error = lane.enqueue(entry).unwrap_err();
        assert!(
            matches!(error, ExecutorError::OperatorRange { start, end, len: 3 } if start == ops.start && end == ops.end)
        );
    }
}

#[test]
fn a_host_that_gives_no_thread_gets_an_error() {
    struct Full;
    impl ThreadSpawner for Full {
        fn spawn(&self, _: String, _: Box<dyn FnOnce() + Send>) -> io::Result<()> {
            Err(io::Error::other("no cores left"))
        }
    }
    let error = Lane::start(LANE, &Full, clock(), unbounded().0).unwrap_err();
    assert!(matches!(&error, ExecutorError::Spawn { name, .. } if name == "lane 3.1"));
}

#[test]
fn a_lane_whose_body_is_thrown_away_has_ended() {
    /// Keeps the body until it is told to drop it.
    struct Holding(Mutex<Option<Box<dyn FnOnce() + Send>>>);
    impl ThreadSpawner for Holding {
        fn spawn(&self, _: String, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
            *self.0.lock().unwrap() = Some(body);
            Ok(())
        }
    }
    let (sender, events) = unbounded();
    let threads = Holding(Mutex::new(None));
    let lane = Lane::start(LANE, &threads, clock(), sender).unwrap();
    lane.enqueue(calls(1, 5, |_| Ok(()))).unwrap();
    drop(threads);
    assert_eq!(summary(&events.recv().unwrap()), (5, 0, "cancelled"));
    assert!(matches!(lane.enqueue(calls(1, 6, |_| Ok(()))), Err(ExecutorError::LaneEnded)));
}

/// Recallers against a running lane: each entry ends once, and what an operator did agrees with
/// what its recaller was told.
#[test]
fn racing_recalls_agree_with_what_ran() {
    let (lane, events) = lane();
    for round in 0..500u64 {
        let ran = Arc::new(AtomicU64::new(0));
        let (begun, first) = bounded(1);
        let counter = ran.clone();
        let entry = calls(6, round, move |_| {
            let _ = begun.try_send(());
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        let ticket = lane.enqueue(entry).unwrap();
        if round % 2 == 0 {
            first.recv().unwrap();
        }
        let recall = lane.recall(&ticket);
        let event = events.recv().unwrap();
        let expected = match recall {
            Recall::Recalled { first } => (round, first, "recalled"),
            Recall::TooLate => (round, 6, "finished"),
        };
        assert_eq!(summary(&event), expected);
        assert_eq!(ran.load(Ordering::Relaxed), u64::from(event.next_op));
    }
}

#[test]
fn lanes_and_what_they_carry_cross_threads() {
    fn send_and_sync<T: Send + Sync>() {}
    fn send<T: Send>() {}
    send_and_sync::<Lane>();
    send::<LaneEvent>();
    send::<Entry>();
    send_and_sync::<slicescheduler_executor::arena::Arena>();
}

#[test]
fn an_operator_that_can_stop_does_so_for_a_higher_rank_and_for_a_recall() {
    let (lane, events) = lane();
    for recalled in [false, true] {
        let (begun_in, begun) = unbounded();
        let program = Box::new(Stops { begun: begun_in, stopped: false });
        let ticket = lane.enqueue(Entry { program, ops: None, rank: Rank(0), tag: 1 }).unwrap();
        begun.recv().unwrap();
        if recalled {
            assert_eq!(lane.recall(&ticket), Recall::TooLate, "it was started");
        } else {
            lane.enqueue(Entry { rank: Rank(1), ..calls(1, 2, |_| Ok(())) }).unwrap();
        }
        let event = events.recv().unwrap();
        assert_eq!(summary(&event), (1, 0, "recalled"));
        if !recalled {
            assert_eq!(summary(&events.recv().unwrap()), (2, 1, "finished"));
        }
        let again = Entry { program: event.program.unwrap(), ops: None, rank: Rank(0), tag: 3 };
        lane.enqueue(again).unwrap();
        assert_eq!(summary(&events.recv().unwrap()), (3, 1, "finished"));
    }
}

#[test]
fn a_full_lane_gives_an_entry_back_and_takes_it_after_its_second_event() {
    let (lane, events) = lane();
    let (entry, gate) = gated(1, 0, 0);
    lane.enqueue(entry).unwrap();
    gate.begins(0);
    for tag in 1..=QUEUE as u64 {
        lane.enqueue(calls(1, tag, |_| Ok(()))).unwrap();
    }
    let last = QUEUE as u64 + 1;
    let refused = lane.offer(calls(1, last, |_| Ok(()))).unwrap_err();
    assert!(matches!(refused.reason, ExecutorError::LaneFull { waiting: QUEUE }));
    assert!(matches!(lane.enqueue(calls(1, 9, |_| Ok(()))), Err(ExecutorError::LaneFull { .. })));
    gate.release();
    // The second one ended, so at least one place is free.
    assert!(events.iter().take(2).map(|event| event.tag).eq([0, 1]));
    lane.offer(refused.entry).unwrap();
    assert!(events.iter().take(QUEUE).map(|event| event.tag).eq(2..=last));
}

#[test]
fn a_lane_full_of_a_lower_rank_has_room_for_a_higher_one() {
    let (lane, events) = lane();
    let (entry, gate) = gated(1, 2, 0);
    lane.enqueue(entry).unwrap();
    gate.begins(0);
    let (low, high) = (QUEUE as u64, 2 * QUEUE as u64);
    for tag in 1..=low {
        lane.enqueue(calls(1, tag, |_| Ok(()))).unwrap();
    }
    let of_rank = |rank, tag| Entry { rank: Rank(rank), ..calls(1, tag, |_| Ok(())) };
    for tag in low + 1..=high {
        lane.enqueue(of_rank(1, tag)).unwrap();
    }
    for rank in [0, 1] {
        let refused = lane.enqueue(of_rank(rank, 0)).unwrap_err();
        assert!(matches!(refused, ExecutorError::LaneFull { waiting } if waiting == QUEUE * (2 - usize::from(rank))));
    }
    gate.release();
    let order = std::iter::once(0).chain(low + 1..=high).chain(1..=low);
    assert!(events.iter().take(1 + 2 * QUEUE).map(|event| event.tag).eq(order));
}
