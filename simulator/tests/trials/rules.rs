//! Single rules, with times calculated by hand.

use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_simulator::incremental::{Hold, Place, Schedule, ScheduleError, Scratch};

#[test]
fn an_early_rank_holds_its_lane_until_the_group_is_done() {
    let mut plan = Schedule::builder();
    plan.lane(Nanos(0));
    let (early, behind) = (plan.push(Nanos(10), Nanos(0)), plan.push(Nanos(1), Nanos(0)));
    plan.lane(Nanos(0));
    let slow = plan.push(Nanos(30), Nanos(0));
    let late = plan.push(Nanos(8), Nanos(0));
    plan.gang(&[early, late]);
    let schedule = plan.build().unwrap();
    assert_eq!(schedule.finish(early), Nanos(40), "30 until the last arrival, 10 for the longest of the two");
    let mut scratch = Scratch::default();
    let mut trial = schedule.trial(&mut scratch);
    trial.set_duration(slow, Nanos(5)).unwrap();
    trial.settle().unwrap();
    assert_eq!((trial.finish(early), trial.finish(late), trial.start(behind)), (Nanos(15), Nanos(15), Nanos(15)));
    assert_eq!((trial.arrival(early), trial.arrival(late)), (Nanos(0), Nanos(5)));
}

#[test]
fn what_waits_for_something_lost_never_runs() {
    let mut plan = Schedule::builder();
    let lane = plan.lane(Nanos(0));
    let (first, second) = (plan.push(Nanos(10), Nanos(0)), plan.push(Nanos(10), Nanos(0)));
    let schedule = plan.build().unwrap();
    let mut scratch = Scratch::default();
    let mut trial = schedule.trial(&mut scratch);
    trial.lose(first).unwrap();
    trial.settle().unwrap();
    assert_eq!((trial.start(second), trial.lane_end(lane)), (Nanos::MAX, Nanos::MAX));
    trial.remove(first).unwrap();
    trial.settle().unwrap();
    assert_eq!(trial.start(second), Nanos(0));
}

#[test]
fn a_cycle_is_refused_and_changes_nothing() {
    let mut plan = Schedule::builder();
    plan.lane(Nanos(0));
    let (first, second) = (plan.push(Nanos(10), Nanos(0)), plan.push(Nanos(10), Nanos(0)));
    let schedule = plan.build().unwrap();
    let mut scratch = Scratch::default();
    let mut trial = schedule.trial(&mut scratch);
    trial.set_duration(first, Nanos(7)).unwrap();
    trial.settle().unwrap();
    trial.set_duration(first, Nanos(99)).unwrap();
    trial.add_edge(second, first).unwrap();
    let error = trial.settle().unwrap_err();
    assert!(matches!(error, ScheduleError::Cycle { .. }));
    assert!(error.to_string().contains("waits for itself"), "{error}");
    assert_eq!(trial.finish(second), Nanos(17));

    let mut plan = Schedule::builder();
    plan.lane(Nanos(0));
    let (first, second) = (plan.push(Nanos(10), Nanos(0)), plan.push(Nanos(10), Nanos(0)));
    plan.edge(second, first);
    assert!(matches!(plan.build(), Err(ScheduleError::Cycle { .. })));
}

#[test]
fn memory_is_counted_when_an_instant_is_over() {
    let mut plan = Schedule::builder();
    plan.lane(Nanos(0));
    let (first, second) = (plan.push(Nanos(10), Nanos(0)), plan.push(Nanos(10), Nanos(0)));
    let account = plan.account(Bytes(5), Bytes(12));
    for op in [first, second] {
        plan.hold(op, Hold { account, taken: Bytes(6), freed: Bytes(6) });
    }
    let schedule = plan.build().unwrap();
    assert_eq!((schedule.peak(account), schedule.shortage(account)), (Bytes(11), None));
    let mut scratch = Scratch::default();
    let mut trial = schedule.trial(&mut scratch);
    let guest = trial.insert(Place::Behind(first), Nanos(4), Nanos(0)).unwrap();
    trial.hold(guest, Hold { account, taken: Bytes(9), freed: Bytes(1) }).unwrap();
    trial.settle().unwrap();
    assert_eq!(trial.peak(account), Bytes(5 + 8 + 6), "what the guest leaves, and the second");
    let short = trial.shortage(account).unwrap();
    assert_eq!((short.at, short.bytes), (Nanos(10), Bytes(2)), "5 + 9 over 12 when the guest starts");
}

#[test]
fn what_does_not_exist_is_refused() {
    let mut plan = Schedule::builder();
    plan.lane(Nanos(0));
    let op = plan.push(Nanos(1), Nanos(0));
    let schedule = plan.build().unwrap();
    let mut scratch = Scratch::default();
    let mut trial = schedule.trial(&mut scratch);
    trial.remove(op).unwrap();
    assert_eq!(trial.set_duration(op, Nanos(1)), Err(ScheduleError::NoSuchOp(op)));
    assert_eq!(trial.insert(Place::Behind(op), Nanos(1), Nanos(0)), Err(ScheduleError::NoSuchOp(op)));
}
