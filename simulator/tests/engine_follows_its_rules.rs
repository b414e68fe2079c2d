//! Golden cases of the event engine, calculated by hand.

#![allow(clippy::unwrap_used, clippy::panic)]

use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::{Rank, Shortage};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_simulator::cost::JobCost;
use slicescheduler_simulator::engine::{Engine, Hold, MemoryState, Node, NodeRef, Ran};

fn ran(engine: &Engine, node: NodeRef) -> Option<(u64, u64, u32)> {
    engine.ran(node).map(|Ran { start, finish, cuts }| (start.get(), finish.get(), cuts))
}

#[test]
fn a_lane_runs_one_node_after_another() {
    let mut engine = Engine::default();
    let lane = engine.add_lane();
    let first = engine.add(Node::fixed(lane, Nanos(5)));
    let second = engine.add(Node::fixed(lane, Nanos(7)).release(Nanos(3)));
    let third = engine.add(Node::fixed(lane, Nanos(1)).release(Nanos(20)));
    assert_eq!(engine.run(Nanos::MAX), None);
    assert_eq!(ran(&engine, first), Some((0, 5, 0)));
    assert_eq!(ran(&engine, second), Some((5, 12, 0)));
    assert_eq!(ran(&engine, third), Some((20, 21, 0)));
}

/// The guest has operators of 4 ns. The owner comes at 6, waits for the boundary at 8, runs to 11;
/// a second one comes at 12, inside the operator that began at 11 and ends at 15.
#[test]
fn the_guest_yields_at_boundaries_and_goes_on() {
    let mut engine = Engine::default();
    let lane = engine.add_lane();
    let cost = engine.add_cost(JobCost::from_block(&[Nanos(4)], 5));
    let guest = engine.add(Node::operators(lane, cost, 0..5).rank(Rank::GuestBestEffort));
    let owner = engine.add(Node::fixed(lane, Nanos(3)).rank(Rank::OwnerLatency).release(Nanos(6)));
    let again = engine.add(Node::fixed(lane, Nanos(3)).rank(Rank::OwnerLatency).release(Nanos(12)));
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, owner), Some((8, 11, 0)));
    assert_eq!(ran(&engine, again), Some((15, 18, 0)));
    assert_eq!(ran(&engine, guest), Some((0, 26, 2)));
}

#[test]
fn at_a_boundary_the_guest_yields_at_once_and_in_its_last_operator_not_at_all() {
    let mut engine = Engine::default();
    let lane = engine.add_lane();
    let cost = engine.add_cost(JobCost::from_block(&[Nanos(4)], 2));
    let guest = engine.add(Node::operators(lane, cost, 0..2));
    let owner = engine.add(Node::fixed(lane, Nanos(1)).rank(Rank::OwnerLatency).release(Nanos(4)));
    let late = engine.add(Node::fixed(lane, Nanos(1)).rank(Rank::OwnerLatency).release(Nanos(6)));
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, owner), Some((4, 5, 0)));
    assert_eq!(ran(&engine, late), Some((9, 10, 0)));
    assert_eq!(ran(&engine, guest), Some((0, 9, 1)));
}

/// Two flows of 100 bytes over a link of 10 bytes per nanosecond; the second begins at 4. Alone
/// until 4 the first has moved 40; together both move 5 per ns: the first needs 12 more, ends at
/// 16. The second has moved 60 by then and needs 4 more alone.
#[test]
fn transfers_share_a_link() {
    let mut engine = Engine::default();
    let link = engine.add_link(Bandwidth::gb_per_s(10));
    let first = engine.add_flow(&[link], Bytes(100), Nanos::ZERO, Nanos::ZERO);
    let second = engine.add_flow(&[link], Bytes(100), Nanos(3), Nanos(1));
    let empty = engine.add_flow(&[link], Bytes::ZERO, Nanos(3), Nanos(2));
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, first), Some((0, 16, 0)));
    assert_eq!(ran(&engine, second), Some((1, 20, 0)));
    assert_eq!(ran(&engine, empty), Some((2, 5, 0)));
}

#[test]
fn work_waits_for_a_transfer_to_its_device() {
    let mut engine = Engine::default();
    let lane = engine.add_lane();
    let link = engine.add_link(Bandwidth::gb_per_s(1));
    let weights = engine.add_flow(&[link], Bytes(50), Nanos::ZERO, Nanos::ZERO);
    let work = engine.add(Node::fixed(lane, Nanos(5)).rank(Rank::OwnerLatency));
    let other = engine.add(Node::fixed(lane, Nanos(60)));
    engine.add_edge(weights, work);
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, other), Some((0, 60, 0)));
    assert_eq!(ran(&engine, work), Some((60, 65, 0)));
}

#[test]
fn memory_is_counted_over_time_and_the_first_shortage_is_kept() {
    let mut engine = Engine::default();
    let (left, right) = (engine.add_lane(), engine.add_lane());
    let mut state = MemoryState::of(Bytes(100));
    state.add(ByteKind::Weights, Bytes(50));
    let device = engine.add_device(state);
    let hold = |taken, freed| Hold { device, kind: ByteKind::Kv, taken: Bytes(taken), freed: Bytes(freed) };
    let first = engine.add(Node::fixed(left, Nanos(10)));
    engine.hold(first, hold(30, 30));
    let second = engine.add(Node::fixed(right, Nanos(10)).release(Nanos(10)));
    engine.hold(second, hold(45, 0));
    let third = engine.add(Node::fixed(left, Nanos(10)).release(Nanos(15)));
    engine.hold(third, hold(20, 20));
    engine.run(Nanos::MAX);
    // 80 until 10, 95 from then on because the first frees before the second takes, 115 from 15.
    assert_eq!(engine.peak(device), Bytes(115));
    assert_eq!(engine.shortage(device), Some(Shortage { at: Nanos(15), bytes: Bytes(15) }));
}

#[test]
fn late_work_ends_now_and_past_cuts_stay_where_they_were() {
    let mut engine = Engine::default();
    engine.reset(Nanos(100));
    let lane = engine.add_lane();
    let cost = engine.add_cost(JobCost::from_block(&[Nanos(10)], 3));
    let guest = engine.add(Node::operators(lane, cost, 0..3).release(Nanos(40)));
    let owner = engine.add(Node::fixed(lane, Nanos(30)).rank(Rank::OwnerLatency).release(Nanos(45)));
    let next = engine.add(Node::fixed(lane, Nanos(5)).rank(Rank::OwnerBestEffort).release(Nanos(50)));
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, owner), Some((50, 100, 0)));
    assert_eq!(ran(&engine, next), Some((100, 105, 0)));
    assert_eq!(ran(&engine, guest), Some((40, 125, 1)));
}

#[test]
fn recalled_work_ends_at_its_boundary_and_frees_only_if_asked_to() {
    let mut engine = Engine::default();
    let lane = engine.add_lane();
    let device = engine.add_device(MemoryState::of(Bytes(100)));
    let cost = engine.add_cost(JobCost::from_block(&[Nanos(10)], 3));
    let hold = Hold { device, kind: ByteKind::Activations, taken: Bytes(40), freed: Bytes(40) };
    let kept = engine.add(Node::operators(lane, cost, 0..3));
    engine.hold(kept, hold);
    let never = engine.add(Node::operators(lane, cost, 0..3));
    engine.hold(never, hold);
    let dropped = engine.add(Node::operators(lane, cost, 0..3));
    engine.hold(dropped, hold);
    let last = engine.add(Node::operators(lane, cost, 0..1));
    engine.hold(last, hold);
    engine.recall(kept, Nanos(11), false);
    engine.recall(never, Nanos(15), true);
    engine.recall(dropped, Nanos(30), true);
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, kept), Some((0, 20, 1)));
    assert_eq!(ran(&engine, never), None);
    assert_eq!(ran(&engine, dropped), Some((20, 30, 1)));
    assert_eq!(ran(&engine, last), Some((30, 40, 0)));
    assert_eq!(engine.peak(device), Bytes(80));
}

#[test]
fn nothing_starts_at_the_horizon_and_what_runs_there_has_an_end() {
    let mut engine = Engine::default();
    let lane = engine.add_lane();
    let cost = engine.add_cost(JobCost::from_block(&[Nanos(10)], 3));
    let running = engine.add(Node::operators(lane, cost, 0..3));
    let behind = engine.add(Node::fixed(lane, Nanos(1)));
    engine.run(Nanos(25));
    assert_eq!(ran(&engine, running), Some((0, 30, 0)));
    assert_eq!(ran(&engine, behind), None);
    assert_eq!(engine.progress(running, Nanos(25)), 3);
    assert_eq!(engine.progress(running, Nanos(20)), 2);
    assert_eq!(engine.progress(behind, Nanos(25)), 0);
}

#[test]
fn a_watched_lane_asks_for_more_when_it_has_nothing_left() {
    let mut engine = Engine::default();
    let (watched, other) = (engine.add_lane(), engine.add_lane());
    engine.watch(watched);
    let mut nodes = vec![engine.add(Node::fixed(watched, Nanos(10)))];
    let long = engine.add(Node::fixed(other, Nanos(25)));
    while let Some(drained) = engine.run(Nanos(30)) {
        assert_eq!((drained.lane, Some(&drained.node)), (watched, nodes.last()));
        nodes.push(engine.add(Node::fixed(watched, Nanos(10)).release(drained.at)));
    }
    let times: Vec<_> = nodes.iter().map(|&node| ran(&engine, node)).collect();
    assert_eq!(times, [Some((0, 10, 0)), Some((10, 20, 0)), Some((20, 30, 0))]);
    assert_eq!(ran(&engine, long), Some((0, 25, 0)));
}

#[test]
fn references_of_another_simulation_do_no_harm() {
    let mut old = Engine::default();
    let lane = old.add_lane();
    let cost = old.add_cost(JobCost::from_durations(&[Nanos(1)]));
    let mut engine = Engine::default();
    let nowhere = engine.add(Node::operators(lane, cost, 0..1));
    engine.add_edge(nowhere, nowhere);
    engine.watch(lane);
    engine.recall(nowhere, Nanos(3), true);
    assert_eq!(engine.run(Nanos::MAX), None);
    assert_eq!(ran(&engine, nowhere), None);
}
