//! Random schedules, random changes, nested marks.

use std::sync::Arc;

use proptest::prelude::*;
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_simulator::incremental::{
    AccountRef, Hold, LaneRef, Mark, OpRef, Place, ScenarioChange, Scenarios, Schedule, ScheduleError, Scratch, Trial,
};

use crate::model::{Model, NEVER, Op, of_schedule, of_trial};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Duration(u32, u64),
    Release(u32, u64),
    FreeAt(u32, u64),
    Insert(u32, u64, u64),
    InsertHeld(u32, u64, u64),
    Remove(u32),
    Lose(u32),
    Relocate(u32, u32),
    Edge(u32, u32),
    Cut(u32, u64, u32),
    Group(u32),
}

#[derive(Clone, Debug)]
enum Step {
    /// Together.
    Try(Vec<Change>),
    Mark,
    Rollback(u32),
}

pub(crate) fn change() -> impl Strategy<Value = Change> {
    let (n, t) = (any::<u32>(), 0u64..60);
    prop_oneof![
        4 => (n, 0u64..25).prop_map(|(op, d)| Change::Duration(op, d)),
        2 => (n, 0u64..300).prop_map(|(op, r)| Change::Release(op, r)),
        1 => (n, t.clone()).prop_map(|(lane, at)| Change::FreeAt(lane, at)),
        2 => (n, 1u64..15, 0u64..200).prop_map(|(at, d, r)| Change::Insert(at, d, r)),
        2 => (n, 1u64..15, 0u64..200).prop_map(|(at, d, r)| Change::InsertHeld(at, d, r)),
        2 => n.prop_map(Change::Remove),
        1 => n.prop_map(Change::Lose),
        2 => (n, n).prop_map(|(op, at)| Change::Relocate(op, at)),
        2 => (n, n).prop_map(|(from, to)| Change::Edge(from, to)),
        1 => (n, t, n).prop_map(|(op, done, at)| Change::Cut(op, done, at)),
        1 => n.prop_map(Change::Group),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(change(), 1..4).prop_map(Step::Try),
        1 => prop::collection::vec(change(), 4..30).prop_map(Step::Try),
        2 => Just(Step::Mark),
        2 => any::<u32>().prop_map(Step::Rollback),
    ]
}

prop_compose! {
    /// Edges lead from lower to higher numbers, which are also the order on the lanes; groups are of
    /// neighbours. `spread` sets how much of the time lanes are idle.
    pub(crate) fn models()(lanes in 1usize..6, ops in 1usize..50, spread in 0u64..40)(
        lane_of in prop::collection::vec(0..lanes, ops),
        times in prop::collection::vec((1u64..20, 0u64..20), ops),
        edges in prop::collection::vec((0..ops, 0..ops), 0..ops),
        gangs in prop::collection::vec((0..ops, 2usize..4), 0..3),
        holds in prop::collection::vec((0..ops, 0usize..2, 0u64..30, 0u64..30), 0..ops),
        dues in prop::collection::vec((0..ops, 0u64..600), 0..8),
        free_at in prop::collection::vec(0u64..20, lanes),
        limits in prop::collection::vec((0u64..20, 0u64..120), 2),
        lanes in Just(lanes), ops in Just(ops), spread in Just(spread),
    ) -> Model {
        let mut model = Model { lanes: vec![Vec::new(); lanes], free_at, accounts: limits, ..Model::default() };
        for (op, &(duration, release)) in times.iter().enumerate() {
            model.ops.push(Op { duration, release: release + op as u64 * spread / lanes as u64, ..Op::default() });
            model.lanes[lane_of[op]].push(op);
        }
        for (first, length) in gangs {
            let gang: Vec<_> = (first..(first + length).min(ops)).collect();
            let mut on: Vec<_> = gang.iter().map(|&op| lane_of[op]).collect();
            on.sort_unstable();
            on.dedup();
            if gang.len() > 1 && on.len() == gang.len() && !model.gangs.iter().flatten().any(|op| gang.contains(op)) {
                let longest = gang.iter().map(|&op| model.ops[op].duration).max().unwrap();
                gang.iter().for_each(|&op| model.ops[op].duration = longest);
                model.gangs.push(gang);
            }
        }
        for (one, other) in edges {
            let inside = model.gangs.iter().any(|gang| gang.contains(&one) && gang.contains(&other));
            if one != other && !inside {
                model.edges.push((one.min(other), one.max(other)));
            }
        }
        for (op, account, taken, freed) in holds {
            model.ops[op].holds.push((account, taken, freed));
        }
        for (op, due) in dues {
            model.ops[op].due = Some(due);
        }
        model
    }
}

prop_compose! {
    /// Long lanes with hardly an edge, so that shifts run far.
    fn long_models()(lanes in 1usize..3, ops in 130usize..320, spread in 0u64..12)(
        lane_of in prop::collection::vec(0..lanes, ops),
        times in prop::collection::vec((1u64..20, 0u64..20), ops),
        edges in prop::collection::vec((0..ops, 0..ops), 0..3),
        holds in prop::collection::vec((0..ops, 0usize..2, 0u64..30, 0u64..30), 0..2),
        lanes in Just(lanes), spread in Just(spread),
    ) -> Model {
        let mut model = Model { lanes: vec![Vec::new(); lanes], free_at: vec![3; lanes], ..Model::default() };
        model.accounts = vec![(0, 9), (0, 9)];
        for (op, &(duration, release)) in times.iter().enumerate() {
            model.ops.push(Op { duration, release: release + op as u64 * spread / lanes as u64, ..Op::default() });
            model.lanes[lane_of[op]].push(op);
        }
        model.edges.extend(edges.into_iter().filter(|(one, other)| one < other));
        holds.into_iter().for_each(|(op, account, taken, freed)| model.ops[op].holds.push((account, taken, freed)));
        model
    }
}

pub(crate) struct Bench<'a> {
    pub(crate) trial: Trial<'a>,
    pub(crate) model: Model,
    pub(crate) refs: Vec<OpRef>,
    pub(crate) lanes: Vec<LaneRef>,
    pub(crate) accounts: Vec<AccountRef>,
    /// Operators that the trial may group: those that it inserted itself.
    pub(crate) own: usize,
}

impl Bench<'_> {
    fn live(&self, number: u32) -> Option<usize> {
        let live: Vec<_> = (0..self.model.ops.len()).filter(|&op| !self.model.ops[op].removed).collect();
        live.get(number as usize % live.len().max(1)).copied()
    }

    /// A place, and its lane and position in the model.
    fn place(&self, number: u32) -> (Place, usize, usize) {
        let lane = number as usize % self.lanes.len();
        let ops = &self.model.lanes[lane];
        match number / 16 % 4 {
            0 => (Place::Front(self.lanes[lane]), lane, 0),
            1 => (Place::Back(self.lanes[lane]), lane, ops.len()),
            _ if ops.is_empty() => (Place::Back(self.lanes[lane]), lane, 0),
            _ => {
                let position = number as usize / 64 % ops.len();
                (Place::Behind(self.refs[ops[position]]), lane, position + 1)
            }
        }
    }

    fn insert(&mut self, at: u32, duration: u64, release: u64) -> usize {
        let (place, lane, position) = self.place(at);
        self.refs.push(self.trial.insert(place, Nanos(duration), Nanos(release)).unwrap());
        let op = self.model.ops.len();
        self.model.ops.push(Op { duration: duration.max(1), release, ..Op::default() });
        self.model.lanes[lane].insert(position, op);
        op
    }

    fn edge(&mut self, from: usize, to: usize) {
        self.trial.add_edge(self.refs[from], self.refs[to]).unwrap();
        self.model.edges.push((from, to));
    }

    pub(crate) fn apply(&mut self, change: Change) {
        match change {
            Change::Insert(at, duration, release) => {
                self.insert(at, duration, release);
            }
            Change::InsertHeld(at, duration, release) => {
                let op = self.insert(at, duration, release);
                let (account, taken, freed) = (at as usize % 2, duration, release % 17);
                let hold = Hold { account: self.accounts[account], taken: Bytes(taken), freed: Bytes(freed) };
                self.trial.hold(self.refs[op], hold).unwrap();
                self.trial.due(self.refs[op], Nanos(release + 40)).unwrap();
                self.model.ops[op].holds.push((account, taken, freed));
                self.model.ops[op].due = Some(release + 40);
            }
            Change::FreeAt(lane, at) => {
                let lane = lane as usize % self.lanes.len();
                self.trial.set_free_at(self.lanes[lane], Nanos(at)).unwrap();
                self.model.free_at[lane] = at;
            }
            Change::Group(number) => {
                let free = |op: &usize| {
                    !self.model.ops[*op].removed && !self.model.gangs.iter().flatten().any(|other| other == op)
                };
                let mut members: Vec<_> = (self.own..self.model.ops.len()).filter(free).collect();
                members.truncate(1 + number as usize % 3);
                let refs: Vec<_> = members.iter().map(|&op| self.refs[op]).collect();
                self.trial.group(&refs).unwrap();
                if let Some(longest) = members.iter().map(|&op| self.model.ops[op].duration).max() {
                    members.iter().for_each(|&op| self.model.ops[op].duration = longest);
                    self.model.gangs.push(members);
                }
            }
            Change::Duration(number, _)
            | Change::Release(number, _)
            | Change::Remove(number)
            | Change::Lose(number)
            | Change::Relocate(number, _)
            | Change::Edge(number, _)
            | Change::Cut(number, ..) => {
                let Some(op) = self.live(number) else { return };
                self.change_one(op, change);
            }
        }
    }

    fn change_one(&mut self, op: usize, change: Change) {
        let reference = self.refs[op];
        match change {
            Change::Duration(_, duration) => {
                self.trial.set_duration(reference, Nanos(duration)).unwrap();
                self.model.set_duration(op, duration);
            }
            Change::Release(_, release) => {
                self.trial.set_release(reference, Nanos(release)).unwrap();
                self.model.ops[op].release = release;
            }
            Change::Remove(_) => {
                self.trial.remove(reference).unwrap();
                self.model.ops[op].removed = true;
                self.model.lanes.iter_mut().for_each(|lane| lane.retain(|&other| other != op));
            }
            Change::Lose(_) => {
                self.trial.lose(reference).unwrap();
                self.model.set_duration(op, NEVER);
            }
            Change::Relocate(_, at) => {
                let (place, lane, position) = self.place(at);
                self.trial.relocate(reference, place).unwrap();
                let anchor = position.checked_sub(1).map(|before| self.model.lanes[lane][before]);
                if anchor == Some(op) {
                    return;
                }
                self.model.lanes.iter_mut().for_each(|lane| lane.retain(|&other| other != op));
                let ops = &mut self.model.lanes[lane];
                let position = anchor.map_or(0, |anchor| 1 + ops.iter().position(|&other| other == anchor).unwrap());
                ops.insert(position, op);
            }
            Change::Edge(_, other) => {
                if let Some(to) = self.live(other) {
                    self.edge(op, to);
                }
            }
            Change::Cut(_, done, at) => {
                let rest = (self.model.ops[op].duration / 2).clamp(1, 9);
                let (place, lane, position) = self.place(at);
                self.refs.push(self.trial.cut(reference, Nanos(done), Nanos(rest), place).unwrap());
                let new = self.model.ops.len();
                self.model.ops.push(Op { duration: rest, ..Op::default() });
                self.model.lanes[lane].insert(position, new);
                let behind: Vec<_> = self.model.edges.iter().filter(|(from, _)| *from == op).map(|e| e.1).collect();
                self.model.edges.push((op, new));
                let live: Vec<_> = behind.into_iter().filter(|&to| !self.model.ops[to].removed).collect();
                self.model.edges.extend(live.into_iter().map(|to| (new, to)));
                self.model.set_duration(op, done);
            }
            _ => {}
        }
    }
}

/// True if the case may go on.
fn run(bench: &mut Bench<'_>, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut marks: Vec<(Mark, Model, Vec<OpRef>)> = vec![(bench.trial.mark(), bench.model.clone(), bench.refs.clone())];
    for step in steps {
        match step {
            Step::Mark => marks.push((bench.trial.mark(), bench.model.clone(), bench.refs.clone())),
            Step::Rollback(number) => {
                marks.truncate(1 + *number as usize % marks.len());
                let (mark, model, refs) = marks.last().unwrap().clone();
                bench.trial.rollback(mark);
                (bench.model, bench.refs) = (model, refs);
            }
            Step::Try(changes) => {
                let before = (bench.model.clone(), bench.refs.clone());
                changes.iter().for_each(|&change| bench.apply(change));
                let settled = bench.trial.settle();
                if bench.model.has_cycle() {
                    prop_assert!(matches!(settled, Err(ScheduleError::Cycle { .. })), "{settled:?}");
                    (bench.model, bench.refs) = before;
                } else {
                    prop_assert!(settled.is_ok(), "{settled:?}");
                }
            }
        }
        let expected = bench.model.answers(&bench.model.solve().unwrap());
        let found = of_trial(&mut bench.trial, &bench.refs, &bench.lanes, &bench.accounts);
        prop_assert_eq!(found, expected, "after {:?}", step);
    }
    Ok(())
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(3000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn a_trial_equals_a_computation_from_scratch_after_every_step(
        model in models(), steps in prop::collection::vec(step(), 1..12),
    ) {
        let (schedule, refs, lanes, accounts) = model.build();
        prop_assert_eq!(of_schedule(&schedule, &refs, &lanes, &accounts), model.answers(&model.solve().unwrap()));
        let mut scratch = Scratch::default();
        let own = model.ops.len();
        let trial = schedule.trial(&mut scratch);
        run(&mut Bench { trial, model: model.clone(), refs: refs.clone(), lanes: lanes.clone(), accounts: accounts.clone(), own }, &steps)?;
        // The same scratch again, and the base is as it was.
        let trial = schedule.trial(&mut scratch);
        run(&mut Bench { trial, model: model.clone(), refs: refs.clone(), lanes: lanes.clone(), accounts: accounts.clone(), own }, &steps)?;
        prop_assert_eq!(of_schedule(&schedule, &refs, &lanes, &accounts), model.answers(&model.solve().unwrap()));
    }

    #[test]
    fn shifts_that_run_far_end_where_a_computation_from_scratch_ends(
        model in long_models(), steps in prop::collection::vec(step(), 1..6),
    ) {
        let (schedule, refs, lanes, accounts) = model.build();
        let mut scratch = Scratch::default();
        let (trial, own) = (schedule.trial(&mut scratch), model.ops.len());
        run(&mut Bench { trial, model, refs, lanes, accounts, own }, &steps)?;
    }

    #[test]
    fn an_adopted_outcome_is_the_schedule_that_the_trial_saw(
        model in prop_oneof![4 => models(), 1 => long_models()],
        rounds in prop::collection::vec((prop::collection::vec(step(), 1..4), any::<bool>()), 1..5),
    ) {
        let (schedule, mut refs, lanes, accounts) = model.build();
        let (mut schedule, mut model) = (Arc::new(schedule), model);
        let mut scratch = Scratch::default();
        let mut old = None;
        for (steps, find_order) in rounds {
            let base = schedule.clone();
            let trial = base.trial(&mut scratch);
            let own = model.ops.len();
            let mut bench = Bench { trial, model, refs, lanes: lanes.clone(), accounts: accounts.clone(), own };
            run(&mut bench, &steps)?;
            let outcome = bench.trial.outcome(&base).unwrap();
            (model, refs) = (bench.model, bench.refs);
            let expected = model.answers(&model.solve().unwrap());
            let times: Vec<_> = refs.iter().map(|&op| (outcome.start(op).get(), outcome.finish(op).get())).collect();
            prop_assert_eq!(&times, &expected.times);
            drop(base);
            Schedule::adopt(&mut schedule, outcome.clone()).unwrap();
            let again = Schedule::adopt(&mut schedule, outcome.clone());
            prop_assert!(matches!(again, Err(ScheduleError::Stale { .. })), "{:?}", again);
            prop_assert_eq!(of_schedule(&schedule, &refs, &lanes, &accounts), expected);
            prop_assert_eq!(schedule.first_difference().unwrap(), None);
            if find_order {
                Arc::make_mut(&mut schedule).find_order().unwrap();
                prop_assert_eq!(schedule.first_difference().unwrap(), None);
            }
            old = Some(outcome);
        }
        prop_assert!(old.is_none_or(|old| old.base().version() + 1 == schedule.version()));
    }

    #[test]
    fn every_scenario_ends_as_it_would_alone(
        model in models(),
        changes in prop::collection::vec((0usize..4, any::<prop::sample::Index>(), 0u64..40), 0..30),
    ) {
        let (schedule, refs, lanes, _) = model.build();
        let mut alone = vec![model.clone(); 4];
        let mut together = Vec::new();
        for (scenario, op, duration) in changes {
            let op = op.index(refs.len());
            let duration = if duration == 39 { NEVER } else { duration };
            alone[scenario].set_duration(op, duration);
            together.push(ScenarioChange { scenario, op: refs[op], duration: Nanos(duration) });
        }
        let mut scenarios = Scenarios::<4>::default();
        scenarios.sweep(&schedule, &together).unwrap();
        for (scenario, model) in alone.iter().enumerate() {
            let finish = model.solve().unwrap();
            for (op, &reference) in refs.iter().enumerate() {
                prop_assert_eq!(scenarios.finish(&schedule, reference, scenario), Nanos(finish[op]));
            }
            for (lane, &reference) in lanes.iter().enumerate() {
                let end = model.lanes[lane].last().map_or(model.free_at[lane], |&op| finish[op]);
                prop_assert_eq!(scenarios.lane_end(reference, scenario), Nanos(end));
            }
        }
    }
}
