//! Differential: what a trial finds without simulating is what the event engine simulates from scratch.

use proptest::prelude::*;
use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_simulator::JobCost;
use slicescheduler_simulator::engine::{DeviceRef, Engine, Hold, MemoryState, Node, NodeRef};
use slicescheduler_simulator::incremental::{Scratch, Trial};

use crate::model::{Answers, Model, of_trial};
use crate::properties::{Bench, Change, change, models};

/// The engine's answers about the operators that are left, with lanes as they are.
fn simulate(model: &Model) -> Answers {
    let mut engine = Engine::default();
    let accounts: Vec<DeviceRef> = model
        .accounts
        .iter()
        .map(|&(used, limit)| {
            let account = engine.add_device(MemoryState::of(Bytes(limit)));
            engine.reserve(account, ByteKind::Weights, Bytes(used));
            account
        })
        .collect();
    let mut nodes: Vec<Option<NodeRef>> = vec![None; model.ops.len()];
    for (ops, &free_at) in model.lanes.iter().zip(&model.free_at) {
        let lane = engine.add_lane();
        for (place, &op) in ops.iter().enumerate() {
            let state = &model.ops[op];
            let release = if place == 0 { state.release.max(free_at) } else { state.release };
            let node = if model.gangs.iter().any(|gang| gang.contains(&op)) {
                let cost = engine.add_cost(JobCost::from_durations(&[Nanos(state.duration)]));
                Node::operators(lane, cost, 0..1)
            } else {
                Node::fixed(lane, Nanos(state.duration))
            };
            let node = engine.add(node.release(Nanos(release)));
            for &(account, taken, freed) in &state.holds {
                let (device, kind) = (accounts[account], ByteKind::Activations);
                engine.hold(node, Hold { device, kind, taken: Bytes(taken), freed: Bytes(freed) });
            }
            nodes[op] = Some(node);
        }
    }
    for &(from, to) in &model.edges {
        if let (Some(from), Some(to)) = (nodes[from], nodes[to]) {
            engine.add_edge(from, to);
        }
    }
    let all = engine.add_collectives(&[0]);
    for gang in &model.gangs {
        let members: Vec<_> = gang.iter().filter_map(|&op| nodes[op]).collect();
        if members.len() > 1 {
            engine.add_gang(&members, all).unwrap();
        }
    }
    engine.run(Nanos::MAX);
    let ran = |node: &Option<NodeRef>| match node {
        None => (0, 0),
        Some(node) => engine.ran(*node).map_or((u64::MAX, u64::MAX), |ran| (ran.start.get(), ran.finish.get())),
    };
    Answers {
        times: nodes.iter().map(ran).collect(),
        peaks: accounts.iter().map(|&account| engine.peak(account).get()).collect(),
        shortages: accounts
            .iter()
            .map(|&account| engine.shortage(account).map(|short| (short.at.get(), short.bytes.get())))
            .collect(),
        late: (0, 0, 0),
        lanes: model.lanes.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// The engine knows neither due times nor work that never ends, and frees no more bytes than there are.
    #[test]
    fn a_trial_finds_what_the_engine_simulates(
        model in models(),
        changes in prop::collection::vec(prop::collection::vec(change(), 1..6), 1..4),
    ) {
        let mut model = model;
        for op in &mut model.ops {
            op.due = None;
            op.holds.iter_mut().for_each(|(_, taken, freed)| *freed = (*freed).min(*taken));
        }
        model.accounts.iter_mut().for_each(|(used, limit)| *used = (*used).min(*limit));
        let (schedule, refs, lanes, accounts) = model.build();
        let mut scratch = Scratch::default();
        let (trial, own): (Trial<'_>, _) = (schedule.trial(&mut scratch), model.ops.len());
        let mut bench = Bench { trial, model, refs, lanes, accounts, own };
        for changes in changes {
            let before = (bench.model.clone(), bench.refs.clone());
            let known = |change: &Change| !matches!(change, Change::Lose(_) | Change::InsertHeld(..));
            changes.into_iter().filter(known).for_each(|change| bench.apply(change));
            if bench.trial.settle().is_err() {
                (bench.model, bench.refs) = before;
            }
            let mut found = of_trial(&mut bench.trial, &bench.refs, &bench.lanes, &bench.accounts);
            found.late = (0, 0, 0);
            prop_assert_eq!(found, simulate(&bench.model));
        }
    }
}
