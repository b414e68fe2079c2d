//! The same schedules, naively.

use std::collections::BTreeMap;

use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_simulator::incremental::{AccountRef, Hold, LaneRef, OpRef, Schedule, Trial};

pub(crate) const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug, Default)]
pub(crate) struct Op {
    pub(crate) duration: u64,
    pub(crate) release: u64,
    pub(crate) removed: bool,
    pub(crate) due: Option<u64>,
    /// Account, taken, freed.
    pub(crate) holds: Vec<(usize, u64, u64)>,
}

/// A schedule as plain lists. Operators are numbered in the order in which they were made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) ops: Vec<Op>,
    pub(crate) lanes: Vec<Vec<usize>>,
    pub(crate) free_at: Vec<u64>,
    pub(crate) edges: Vec<(usize, usize)>,
    pub(crate) gangs: Vec<Vec<usize>>,
    /// Bytes used at the start, limit.
    pub(crate) accounts: Vec<(u64, u64)>,
}

/// Everything that can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answers {
    pub(crate) times: Vec<(u64, u64)>,
    pub(crate) peaks: Vec<u64>,
    pub(crate) shortages: Vec<Option<(u64, u64)>>,
    pub(crate) late: (u64, u64, u64),
    pub(crate) lanes: Vec<Vec<usize>>,
}

impl Model {
    fn inputs(&self, finish: &[u64], op: usize) -> u64 {
        let lane = self.lanes.iter().position(|lane| lane.contains(&op)).unwrap();
        let place = self.lanes[lane].iter().position(|&other| other == op).unwrap();
        let before = if place == 0 { self.free_at[lane] } else { finish[self.lanes[lane][place - 1]] };
        let preds = self.edges.iter().filter(|(from, to)| *to == op && !self.ops[*from].removed);
        preds.map(|(from, _)| finish[*from]).fold(before.max(self.ops[op].release), u64::max)
    }

    fn unit(&self, op: usize) -> Vec<usize> {
        let gang = self.gangs.iter().find(|gang| gang.contains(&op));
        let live = |op: &usize| !self.ops[*op].removed;
        gang.map_or(vec![op], |gang| gang.iter().copied().filter(live).collect())
    }

    pub(crate) fn set_duration(&mut self, op: usize, duration: u64) {
        for member in self.unit(op) {
            self.ops[member].duration = duration.max(1);
        }
    }

    /// Finishes; [`None`] if values rise without end.
    pub(crate) fn solve(&self) -> Option<Vec<u64>> {
        let mut finish = vec![0; self.ops.len()];
        for _ in 0..=self.ops.len() {
            let mut changed = false;
            for op in (0..self.ops.len()).filter(|&op| !self.ops[op].removed) {
                let start = self.unit(op).into_iter().map(|member| self.inputs(&finish, member)).max().unwrap();
                let new = start.saturating_add(self.ops[op].duration);
                changed |= finish[op] != new;
                finish[op] = new;
            }
            if !changed {
                return Some(finish);
            }
        }
        None
    }

    /// True if operators wait for each other, whatever their durations.
    pub(crate) fn has_cycle(&self) -> bool {
        let mut finite = self.clone();
        finite.ops.iter_mut().for_each(|op| op.duration = 1);
        finite.ops.iter_mut().for_each(|op| op.release = 0);
        finite.free_at.iter_mut().for_each(|free_at| *free_at = 0);
        finite.solve().is_none()
    }

    pub(crate) fn answers(&self, finish: &[u64]) -> Answers {
        let times = |op: usize| match finish[op] {
            NEVER => (NEVER, NEVER),
            _ if self.ops[op].removed => (0, 0),
            finish => (finish - self.ops[op].duration, finish),
        };
        let live = || (0..self.ops.len()).filter(|&op| !self.ops[op].removed);
        let (mut peaks, mut shortages) = (Vec::new(), Vec::new());
        for (account, &(used, limit)) in self.accounts.iter().enumerate() {
            let mut changes: BTreeMap<u64, i64> = BTreeMap::new();
            for op in live() {
                for &(_, taken, freed) in self.ops[op].holds.iter().filter(|hold| hold.0 == account) {
                    let (start, finish) = times(op);
                    *changes.entry(start).or_default() += taken as i64;
                    *changes.entry(finish).or_default() -= freed as i64;
                }
            }
            changes.remove(&NEVER);
            let (mut now, mut peak) = (used as i64, used as i64);
            let mut short = (used > limit).then(|| (0, used - limit));
            for (at, bytes) in changes {
                now += bytes;
                peak = peak.max(now);
                if now > limit as i64 && short.is_none() {
                    short = Some((at, (now - limit as i64) as u64));
                }
            }
            peaks.push(peak.max(0) as u64);
            shortages.push(short);
        }
        let mut late = (0, 0, 0);
        for op in live() {
            let Some(due) = self.ops[op].due else { continue };
            let finish = finish[op];
            late.0 += u64::from(finish > due);
            late.1 += if finish == NEVER { 0 } else { finish.saturating_sub(due) };
            late.2 += u64::from(finish == NEVER);
        }
        Answers { times: (0..self.ops.len()).map(times).collect(), peaks, shortages, late, lanes: self.lanes.clone() }
    }

    /// The schedule, with the references of its operators, lanes and accounts.
    pub(crate) fn build(&self) -> (Schedule, Vec<OpRef>, Vec<LaneRef>, Vec<AccountRef>) {
        let mut builder = Schedule::builder();
        let mut refs: Vec<Option<OpRef>> = vec![None; self.ops.len()];
        let mut lanes = Vec::new();
        for (lane, &free_at) in self.lanes.iter().zip(&self.free_at) {
            lanes.push(builder.lane(Nanos(free_at)));
            for &op in lane {
                refs[op] = Some(builder.push(Nanos(self.ops[op].duration), Nanos(self.ops[op].release)));
            }
        }
        let refs: Vec<_> = refs.into_iter().map(Option::unwrap).collect();
        let accounts: Vec<_> =
            self.accounts.iter().map(|&(used, limit)| builder.account(Bytes(used), Bytes(limit))).collect();
        self.edges.iter().for_each(|&(from, to)| {
            builder.edge(refs[from], refs[to]);
        });
        for gang in &self.gangs {
            builder.gang(&gang.iter().map(|&op| refs[op]).collect::<Vec<_>>());
        }
        for (op, &reference) in self.ops.iter().zip(&refs) {
            op.holds.iter().for_each(|&(account, taken, freed)| {
                builder.hold(reference, Hold { account: accounts[account], taken: Bytes(taken), freed: Bytes(freed) });
            });
            op.due.into_iter().for_each(|due| {
                builder.due(reference, Nanos(due));
            });
        }
        (builder.build().unwrap(), refs, lanes, accounts)
    }
}

pub(crate) fn of_schedule(schedule: &Schedule, refs: &[OpRef], lanes: &[LaneRef], accounts: &[AccountRef]) -> Answers {
    let late = schedule.lateness();
    Answers {
        times: refs.iter().map(|&op| (schedule.start(op).get(), schedule.finish(op).get())).collect(),
        peaks: accounts.iter().map(|&account| schedule.peak(account).get()).collect(),
        shortages: accounts
            .iter()
            .map(|&account| schedule.shortage(account).map(|short| (short.at.get(), short.bytes.get())))
            .collect(),
        late: (late.operators, late.total.get(), late.never),
        lanes: lanes.iter().map(|&lane| numbers(refs, schedule.lane_ops(lane))).collect(),
    }
}

pub(crate) fn of_trial(trial: &mut Trial<'_>, refs: &[OpRef], lanes: &[LaneRef], accounts: &[AccountRef]) -> Answers {
    let late = trial.lateness();
    let (mut peaks, mut shortages) = (Vec::new(), Vec::new());
    for &account in accounts {
        peaks.push(trial.peak(account).get());
        shortages.push(trial.shortage(account).map(|short| (short.at.get(), short.bytes.get())));
    }
    Answers {
        times: refs.iter().map(|&op| (trial.start(op).get(), trial.finish(op).get())).collect(),
        peaks,
        shortages,
        late: (late.operators, late.total.get(), late.never),
        lanes: lanes.iter().map(|&lane| numbers(refs, trial.lane_ops(lane))).collect(),
    }
}

fn numbers(refs: &[OpRef], ops: impl Iterator<Item = OpRef>) -> Vec<usize> {
    ops.map(|op| refs.iter().position(|&other| other == op).unwrap()).collect()
}
