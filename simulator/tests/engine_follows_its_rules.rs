//! Golden cases of the event engine, calculated by hand.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::{Rank, Shortage};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_simulator::cost::JobCost;
use slicescheduler_simulator::engine::{
    Engine, GangError, Hold, LaunchCosts, MemoryState, Node, NodeRef, Ran, Violation,
};
use slicescheduler_simulator::interference::{Demand, MaxMin, Proportional, Rate};

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

/// Both want all of the arithmetic: half speed together. The first has done 4 of 10 when the second
/// comes at 4, and both are at half speed until it has done the other 6, at 16. The second has done
/// 6 of 20 by then and needs 14 more.
#[test]
fn operators_that_want_the_same_share_it() {
    let mut engine = Engine::default();
    let device = engine.add_device(MemoryState::of(Bytes::ZERO));
    engine.set_interference(device, Arc::new(Proportional));
    let lanes = [engine.add_lane_of(device), engine.add_lane_of(device)];
    let arithmetic = Demand::new(Demand::FULL, 0);
    let first = engine.add(Node::fixed(lanes[0], Nanos(10)).demand(arithmetic));
    let second = engine.add(Node::fixed(lanes[1], Nanos(20)).demand(arithmetic).release(Nanos(4)));
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, first), Some((0, 16, 0)));
    assert_eq!(ran(&engine, second), Some((4, 30, 0)));
}

#[test]
fn operators_that_want_different_things_do_not_disturb_each_other() {
    let mut engine = Engine::default();
    let device = engine.add_device(MemoryState::of(Bytes::ZERO));
    engine.set_interference(device, Arc::new(MaxMin));
    let lanes = [engine.add_lane_of(device), engine.add_lane_of(device)];
    let first = engine.add(Node::fixed(lanes[0], Nanos(10)).demand(Demand::new(Demand::FULL, 0)));
    let second = engine.add(Node::fixed(lanes[1], Nanos(20)).demand(Demand::new(0, Demand::FULL)));
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, first), Some((0, 10, 0)));
    assert_eq!(ran(&engine, second), Some((0, 20, 0)));
}

/// Operators of 10 at half speed from 15 to 25: the second has done 5 at 15, takes until 25 for the
/// rest, and the third runs at full speed again.
#[test]
fn a_throttled_device_is_slow_for_a_while() {
    let mut engine = Engine::default();
    let device = engine.add_device(MemoryState::of(Bytes::ZERO));
    let lane = engine.add_lane_of(device);
    let cost = engine.add_cost(JobCost::from_block(&[Nanos(10)], 3));
    let work = engine.add(Node::operators(lane, cost, 0..3));
    engine.set_speed(device, Rate::of(1, 2), Nanos(15));
    engine.set_speed(device, Rate::ONE, Nanos(25));
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, work), Some((0, 35, 0)));
}

/// The same on each of two lanes that do not slow each other; the second has 5 ns less to do.
#[test]
fn lanes_that_share_a_throttled_device_are_slow_as_long_as_it_is() {
    let mut engine = Engine::default();
    let device = engine.add_device(MemoryState::of(Bytes::ZERO));
    let lanes = [engine.add_lane_of(device), engine.add_lane_of(device)];
    let cost = engine.add_cost(JobCost::from_block(&[Nanos(10)], 3));
    let first = engine.add(Node::operators(lanes[0], cost, 0..3));
    let second = engine.add(Node::fixed(lanes[1], Nanos(25)));
    engine.set_speed(device, Rate::of(1, 2), Nanos(15));
    engine.set_speed(device, Rate::ONE, Nanos(25));
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, first), Some((0, 35, 0)));
    assert_eq!(ran(&engine, second), Some((0, 30, 0)));
}

/// What a device at full speed is told of full speed: its lanes run on, one for 30 and one for 25.
#[test]
fn full_speed_changes_nothing_at_full_speed() {
    let mut engine = Engine::default();
    let device = engine.add_device(MemoryState::of(Bytes::ZERO));
    let lanes = [engine.add_lane_of(device), engine.add_lane_of(device)];
    let cost = engine.add_cost(JobCost::from_block(&[Nanos(10)], 3));
    let first = engine.add(Node::operators(lanes[0], cost, 0..3));
    let second = engine.add(Node::fixed(lanes[1], Nanos(25)));
    let next = engine.add(Node::fixed(lanes[1], Nanos(4)));
    engine.set_speed(device, Rate::ONE, Nanos(15));
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, first), Some((0, 30, 0)));
    assert_eq!(ran(&engine, second), Some((0, 25, 0)));
    assert_eq!(ran(&engine, next), Some((25, 29, 0)));
    assert_eq!(engine.operators(), 5);
}

/// Two ranks of [4 | collective of 6 | 5]. The first starts at 0 and reaches the collective at 4,
/// the second only at 3 + 4 because its lane is busy until 3. The collective ends at 13, both at 18.
#[test]
fn an_early_rank_holds_its_lane_until_the_last_has_come() {
    let mut engine = Engine::default();
    let lanes = [engine.add_lane(), engine.add_lane()];
    let busy = engine.add(Node::fixed(lanes[1], Nanos(3)).rank(Rank::OwnerLatency));
    let cost = engine.add_cost(JobCost::from_durations(&[Nanos(4), Nanos(6), Nanos(5)]));
    let ranks = lanes.map(|lane| engine.add(Node::operators(lane, cost, 0..3)));
    let behind = engine.add(Node::fixed(lanes[0], Nanos(1)));
    let collectives = engine.add_collectives(&[1]);
    engine.add_gang(&ranks, collectives).unwrap();
    engine.check_order().unwrap();
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, busy), Some((0, 3, 0)));
    assert_eq!(ran(&engine, ranks[0]), Some((0, 18, 0)));
    assert_eq!(ran(&engine, ranks[1]), Some((3, 18, 0)));
    assert_eq!(ran(&engine, behind), Some((18, 19, 0)));
}

/// Ranks of six operators of 10, the fourth a collective, on lanes where the second starts 5 later.
/// An owner comes to the first lane at 12: the first rank could stop before its third operator, at
/// 20, the second too, at 25. Nobody is cut elsewhere.
#[test]
fn all_ranks_are_cut_at_the_same_operator() {
    let mut engine = Engine::default();
    let lanes = [engine.add_lane(), engine.add_lane()];
    let busy = engine.add(Node::fixed(lanes[1], Nanos(5)).rank(Rank::OwnerLatency));
    let cost = engine.add_cost(JobCost::from_block(&[Nanos(10)], 6));
    let ranks = lanes.map(|lane| engine.add(Node::operators(lane, cost, 0..6)));
    let collectives = engine.add_collectives(&[3]);
    engine.add_gang(&ranks, collectives).unwrap();
    let owner = engine.add(Node::fixed(lanes[0], Nanos(7)).rank(Rank::OwnerLatency).release(Nanos(12)));
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, busy), Some((0, 5, 0)));
    assert_eq!(ran(&engine, owner), Some((20, 27, 0)));
    // Both go on with the third operator, at 27 and 27: 10 to the collective, and three more.
    assert_eq!(ran(&engine, ranks[0]), Some((0, 67, 1)));
    assert_eq!(ran(&engine, ranks[1]), Some((5, 67, 1)));
}

#[test]
fn gangs_in_different_orders_on_their_lanes_are_a_cycle_that_is_named() {
    let mut engine = Engine::default();
    let lanes = [engine.add_lane(), engine.add_lane()];
    let cost = engine.add_cost(JobCost::from_durations(&[Nanos(1)]));
    let mut rank = |lane: usize| engine.add(Node::operators(lanes[lane], cost, 0..1));
    let (a0, b0, b1, a1) = (rank(0), rank(0), rank(1), rank(1));
    let collectives = engine.add_collectives(&[0]);
    engine.add_gang(&[a0, a1], collectives).unwrap();
    engine.check_order().unwrap();
    engine.add_gang(&[b0, b1], collectives).unwrap();
    let cycle = engine.check_order().unwrap_err();
    assert_eq!(cycle.nodes.len(), 2, "{cycle}");
    assert!([a0, a1].iter().any(|node| cycle.nodes.contains(node)), "{cycle}");
    assert!([b0, b1].iter().any(|node| cycle.nodes.contains(node)), "{cycle}");
    engine.run(Nanos::MAX);
    assert!([a0, a1, b0, b1].iter().all(|&node| engine.ran(node).is_none()));
}

#[test]
fn what_cannot_be_a_gang_is_refused() {
    let mut engine = Engine::default();
    let lanes = [engine.add_lane(), engine.add_lane()];
    let cost = engine.add_cost(JobCost::from_durations(&[Nanos(1), Nanos(1)]));
    let collectives = engine.add_collectives(&[0]);
    let first = engine.add(Node::operators(lanes[0], cost, 0..2));
    let same_lane = engine.add(Node::operators(lanes[0], cost, 0..2));
    let shorter = engine.add(Node::operators(lanes[1], cost, 0..1));
    let fixed = engine.add(Node::fixed(lanes[1], Nanos(1)));
    let peer = engine.add(Node::operators(lanes[1], cost, 0..2));
    assert_eq!(engine.add_gang(&[first], collectives), Err(GangError::TooFew(1)));
    assert_eq!(engine.add_gang(&[first, same_lane], collectives), Err(GangError::SameLane(first, same_lane)));
    assert_eq!(engine.add_gang(&[first, shorter], collectives), Err(GangError::Differ(first, shorter)));
    assert_eq!(engine.add_gang(&[first, fixed], collectives), Err(GangError::NotOperators(fixed)));
    engine.add_gang(&[first, peer], collectives).unwrap();
    assert_eq!(engine.add_gang(&[first, peer], collectives), Err(GangError::Taken(first)));
}

/// Launches take 5. Operators of 2, 9, 2, 2: the first ends at 5 + 2, the second is launched at 10 and
/// ends at 19, the third at 15 and ends at 21, the fourth is launched at 20 and ends at 23.
#[test]
fn launches_show_behind_short_operators_only() {
    let costs =
        LaunchCosts { operator: Nanos(5), queue: 8, graph: Nanos(3), graph_operator: Nanos(1), captured: false };
    let operators = [2, 9, 2, 2].map(Nanos);
    let mut engine = Engine::default();
    let (eager, captured) = (engine.add_lane(), engine.add_lane());
    engine.set_launch_costs(eager, costs);
    engine.set_launch_costs(captured, LaunchCosts { captured: true, ..costs });
    let cost = engine.add_cost(JobCost::from_durations(&operators));
    let alone = engine.add(Node::operators(eager, cost, 0..4));
    // The graph is launched in 3 + 4 and cut at 18; the owner's takes 3 + 1. What is left is launched
    // one by one, which the cut costs: 5, 2, and 3 until the fourth is launched.
    let graph = engine.add(Node::operators(captured, cost, 0..4));
    let owner = engine.add(Node::fixed(captured, Nanos(10)).rank(Rank::OwnerLatency).release(Nanos(12)));
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, alone), Some((0, 23, 0)));
    assert_eq!(ran(&engine, owner), Some((18, 32, 0)));
    assert_eq!(ran(&engine, graph), Some((0, 44, 1)));
}

/// 100 bytes at 10 per ns; the link fails at 5 and what the transfer took is freed. Work behind it
/// never starts, a later transfer takes the link when it is back.
#[test]
fn a_failed_link_drops_what_is_on_it() {
    let mut engine = Engine::default();
    let (lane, link) = (engine.add_lane(), engine.add_link(Bandwidth::gb_per_s(10)));
    let device = engine.add_device(MemoryState::of(Bytes(1000)));
    engine.record_memory(device);
    let cut = engine.add_flow(&[link], Bytes(100), Nanos::ZERO, Nanos::ZERO);
    engine.hold(cut, Hold { device, kind: ByteKind::Staging, taken: Bytes(100), freed: Bytes(100) });
    let behind = engine.add(Node::fixed(lane, Nanos(1)));
    engine.add_edge(cut, behind);
    let later = engine.add_flow(&[link], Bytes(100), Nanos::ZERO, Nanos(20));
    engine.set_bandwidth(link, Bandwidth::ZERO, Nanos(5));
    engine.set_bandwidth(link, Bandwidth::gb_per_s(5), Nanos(8));
    engine.run(Nanos::MAX);
    assert_eq!(ran(&engine, cut), Some((0, 5, 0)));
    assert_eq!(ran(&engine, behind), None);
    assert_eq!(ran(&engine, later), Some((20, 40, 0)));
    let used: Vec<_> =
        engine.memory_over_time(device).iter().map(|at| (at.at.get(), at.of(ByteKind::Staging).get())).collect();
    assert_eq!(used, [(0, 100), (5, 0)]);
}

#[test]
fn a_violation_names_who_took_too_much() {
    let mut engine = Engine::default();
    let (left, right) = (engine.add_lane(), engine.add_lane());
    let device = engine.add_device(MemoryState::of(Bytes(50)));
    let hold = Hold { device, kind: ByteKind::Kv, taken: Bytes(30), freed: Bytes(30) };
    let modest = engine.add(Node::fixed(left, Nanos(10)));
    engine.hold(modest, hold);
    let greedy = engine.add(Node::fixed(right, Nanos(10)).release(Nanos(4)));
    engine.hold(greedy, hold);
    engine.run(Nanos::MAX);
    assert_eq!(engine.violation(device), Some(Violation { at: Nanos(4), missing: Bytes(10), by: Some(greedy) }));
}
