//! A schedule: the base that trials start from.

use std::ops::Range;

use slicescheduler_gmg::id_map::IdMap;
use slicescheduler_gmg::plan::Shortage;
use slicescheduler_gmg::units::{Bytes, Nanos};
use smallvec::SmallVec;

use super::blocks::Blocks;
use super::order::{Network, discover, sweep};
use super::record::{Effect, GANG, Lateness, NEVER, Record};
use super::steps::Steps;
use super::usage::{Shift, Usage};
use super::{AccountRef, LaneRef, OpRef, ScheduleBuilder, ScheduleError, Scratch, Trial};

/// Neighbours that came after the schedule was built.
#[derive(Clone, Debug, Default)]
pub(super) struct More {
    pub(super) preds: IdMap<u64, SmallVec<[u32; 4]>>,
    pub(super) succs: IdMap<u64, SmallVec<[u32; 4]>>,
}

/// Operators in a fixed order per lane, with their starts and finishes. Immutable while trials read
/// it, on as many threads as there are scratches.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub(super) records: Vec<Record>,
    /// Where the rows of `preds` and `succs` begin; one more than there are records.
    pub(super) links: Vec<[u32; 2]>,
    pub(super) preds: Vec<u32>,
    pub(super) succs: Vec<u32>,
    /// Rows of `members`.
    pub(super) gangs: Vec<Range<u32>>,
    pub(super) members: Vec<u32>,
    /// The head of every lane.
    pub(super) lanes: Vec<u32>,
    pub(super) steps: Steps,
    /// False after an adoption that moved, inserted, removed or connected something.
    pub(super) steps_hold: bool,
    pub(super) blocks: Blocks,
    pub(super) more: More,
    /// Rows of `effects`; empty if there are none.
    pub(super) effect_begin: Vec<u32>,
    pub(super) effects: Vec<Effect>,
    pub(super) usages: Vec<Usage>,
    pub(super) late: Lateness,
    /// Records that are no operators.
    pub(super) fixed: Vec<u32>,
    pub(super) version: u64,
}

impl Schedule {
    /// An empty schedule to be filled.
    pub fn builder() -> ScheduleBuilder {
        ScheduleBuilder::default()
    }

    /// How often it was changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Records, operators and others. A number for sizes, not a number of operators.
    pub fn records(&self) -> usize {
        self.records.len()
    }

    /// When `op` starts; [`Nanos::MAX`] if it never finishes, zero if it was removed.
    pub fn start(&self, op: OpRef) -> Nanos {
        self.records.get(op.0 as usize).map_or(Nanos::ZERO, |record| Nanos(record.start()))
    }

    /// When `op` finishes; [`Nanos::MAX`] if never, zero if it was removed.
    pub fn finish(&self, op: OpRef) -> Nanos {
        self.records.get(op.0 as usize).map_or(Nanos::ZERO, |record| Nanos(record.finish))
    }

    /// When the last operator of `lane` finishes.
    pub fn lane_end(&self, lane: LaneRef) -> Nanos {
        let head = self.lanes.get(lane.0 as usize).and_then(|&head| self.records.get(head as usize));
        head.map_or(Nanos::ZERO, |head| Nanos(self.records[head.prev() as usize].finish))
    }

    /// The operators of `lane`, first to last.
    pub fn lane_ops(&self, lane: LaneRef) -> impl Iterator<Item = OpRef> + '_ {
        let head = self.lanes.get(lane.0 as usize).copied();
        let next = move |op: u32| Some(self.records[op as usize].next()).filter(|&next| Some(next) != head);
        std::iter::successors(head.and_then(next), move |&op| next(op)).map(OpRef)
    }

    /// The most bytes that `account` has in use at one time.
    pub fn peak(&self, account: AccountRef) -> Bytes {
        self.usages.get(account.0 as usize).map_or(Bytes::ZERO, |usage| usage.peak(&mut Vec::new()))
    }

    /// The first time that `account` has more bytes in use than its limit.
    pub fn shortage(&self, account: AccountRef) -> Option<Shortage> {
        self.usages.get(account.0 as usize)?.shortage(&mut Vec::new())
    }

    /// How late operators with a due time are.
    pub fn lateness(&self) -> Lateness {
        self.late
    }

    /// A trial on this schedule. What was tried with `scratch` before is forgotten.
    pub fn trial<'a>(&'a self, scratch: &'a mut Scratch) -> Trial<'a> {
        Trial::new(self, scratch)
    }

    /// Computes every finish from scratch, into `finish`, and returns the last. What a trial saves.
    /// The order of `finish` is the schedule's own; it is scratch. O(operators + edges) as long as
    /// the order holds.
    ///
    /// # Errors
    /// [`ScheduleError::Cycle`]; not for a schedule that trials made.
    pub fn sweep_into(&self, finish: &mut Vec<u64>) -> Result<Nanos, ScheduleError> {
        let mut free_at = Vec::new();
        if self.steps_hold {
            self.begin_sweep(finish, &mut free_at, |fixed| self.records[fixed as usize].release);
            self.steps.sweep(&[], &mut free_at, finish);
            return Ok(Nanos(free_at.into_iter().max().unwrap_or_default()));
        }
        let order = discover(self)?;
        finish.clear();
        finish.extend(self.records.iter().map(|record| record.release));
        sweep(self, &order, finish);
        Ok(Nanos(order.iter().map(|&op| finish[op as usize]).max().unwrap_or_default()))
    }

    /// The first operator that a computation from scratch would find at another time: [`None`],
    /// always. For tests and for those who doubt.
    ///
    /// # Errors
    /// [`ScheduleError::Cycle`]; not for a schedule that trials made.
    pub fn first_difference(&self) -> Result<Option<OpRef>, ScheduleError> {
        let mut finish = Vec::new();
        self.sweep_into(&mut finish)?;
        let place = |op: u32| if self.steps_hold { self.steps.step_of[op as usize] } else { op };
        let differs = |&op: &u32| {
            let record = &self.records[op as usize];
            record.is_operator() && record.finish != finish[place(op) as usize]
        };
        Ok((0..self.records.len() as u32).find(differs).map(OpRef))
    }

    /// Finds the order of sweeps again, after adoptions that changed it. O(operators * log
    /// operators + edges).
    ///
    /// # Errors
    /// [`ScheduleError::Cycle`]; not for a schedule that trials made.
    pub fn find_order(&mut self) -> Result<(), ScheduleError> {
        if !self.steps_hold {
            let mut order = discover(self)?;
            // Stable: what never starts keeps its place behind its inputs.
            order.sort_by_key(|&op| self.records[op as usize].start());
            self.steps = Steps::new(self, order);
            self.steps_hold = true;
        }
        Ok(())
    }

    /// Prepares the columns of a sweep over the steps. `release_of` gives the releases of records
    /// that are no operators.
    pub(super) fn begin_sweep(&self, finish: &mut Vec<u64>, free_at: &mut Vec<u64>, release_of: impl Fn(u32) -> u64) {
        finish.resize(self.steps.places, 0);
        for (place, &fixed) in (self.steps.count()..).zip(&self.fixed) {
            finish[place] = release_of(fixed);
        }
        free_at.clear();
        free_at.extend(self.lanes.iter().map(|&head| release_of(head)));
    }

    /// The order of sweeps.
    pub(super) fn steps(&self) -> Result<&Steps, ScheduleError> {
        if self.steps_hold { Ok(&self.steps) } else { Err(ScheduleError::OrderUnknown) }
    }

    /// No scenario with these durations lasts longer.
    pub(super) fn longest(&self) -> u64 {
        let finite = |&&time: &&u64| time != NEVER;
        let durations = self.steps.durations.iter().filter(finite).fold(0, |sum: u64, &time| sum.saturating_add(time));
        let fixed = self.fixed.iter().map(|&fixed| self.records[fixed as usize].release);
        let releases = self.steps.releases.iter().copied().chain(fixed).filter(|&time| time != NEVER);
        durations.saturating_add(releases.max().unwrap_or_default())
    }

    /// The operators that run as one with `op`, those of its group that are left.
    pub(super) fn unit(&self, op: u32) -> impl Iterator<Item = u32> + '_ {
        let gang = self.gang_of(op);
        let members = gang.map_or(&[][..], |gang| self.members(gang)).iter().copied();
        members.filter(|&member| self.records[member as usize].is_operator()).chain(gang.is_none().then_some(op))
    }

    pub(super) fn unit_release(&self, op: u32) -> u64 {
        self.unit(op).map(|member| self.records[member as usize].release).max().unwrap_or_default()
    }

    /// A changed record of an order that holds.
    pub(super) fn refresh_step(&mut self, op: u32) {
        let step = self.steps.step_of[self.leader(op) as usize] as usize;
        if step < self.steps.count() {
            self.steps.durations[step] = self.records[op as usize].duration;
            self.steps.releases[step] = self.unit_release(op);
        }
    }

    /// Fills the finishes in, for a new schedule.
    pub(super) fn fill_in(&mut self, order: &[u32]) {
        let mut finish: Vec<_> = self.records.iter().map(|record| record.release).collect();
        sweep(self, order, &mut finish);
        for (record, finish) in self.records.iter_mut().zip(finish) {
            record.finish = finish;
        }
    }

    pub(super) fn effects_of(&self, op: u32) -> &[Effect] {
        match (self.effect_begin.get(op as usize), self.effect_begin.get(op as usize + 1)) {
            (Some(&begin), Some(&end)) => &self.effects[begin as usize..end as usize],
            _ => &[],
        }
    }

    /// Counts the effects of all operators from nothing.
    pub(super) fn count_effects(&mut self) {
        let mut shifts = Vec::new();
        let mut late = Lateness::default();
        for op in 0..self.records.len() as u32 {
            let record = &self.records[op as usize];
            if record.is_operator() {
                self.effects_of(op).iter().for_each(|effect| effect.happen(record, &mut shifts, &mut late));
            }
        }
        self.late = late;
        shifts.sort_unstable_by_key(|shift| (shift.account, shift.at));
        self.add_shifts(&shifts);
    }

    /// `shifts` are sorted by account.
    pub(super) fn add_shifts(&mut self, shifts: &[Shift]) {
        for of_one in shifts.chunk_by(|one, other| one.account == other.account) {
            if let Some(usage) = self.usages.get_mut(of_one[0].account as usize) {
                usage.add_all(of_one);
            }
        }
    }
}

impl Effect {
    /// What it does for an operator with this start and finish.
    pub(super) fn happen(self, record: &Record, shifts: &mut Vec<Shift>, late: &mut Lateness) {
        match self {
            Self::Hold { account, taken, freed } => {
                let (start, finish) = (record.start(), record.finish);
                let mut shift = |at, bytes| {
                    if at != NEVER && bytes != 0 {
                        shifts.push(Shift { account, at, bytes });
                    }
                };
                shift(start, taken);
                shift(finish, -freed);
            }
            Self::Due(due) => late.count(due, record.finish),
        }
    }

    /// Takes back what [`happen`](Self::happen) did.
    pub(super) fn unhappen(self, record: &Record, shifts: &mut Vec<Shift>, late: &mut Lateness) {
        match self {
            Self::Hold { account, taken, freed } => {
                Self::Hold { account, taken: -taken, freed: -freed }.happen(record, shifts, late);
            }
            Self::Due(due) => late.uncount(due, record.finish),
        }
    }
}

impl Network for Schedule {
    fn count(&self) -> usize {
        self.records.len()
    }

    fn record(&self, op: u32) -> &Record {
        &self.records[op as usize]
    }

    fn each_pred(&self, op: u32, mut visit: impl FnMut(u32)) {
        let row = self.links[op as usize][0] as usize..self.links[op as usize + 1][0] as usize;
        self.preds[row].iter().for_each(|&pred| visit(pred));
        if self.records[op as usize].prev & super::record::MORE_IN != 0
            && let Some(more) = self.more.preds.get(&u64::from(op))
        {
            more.iter().for_each(|&pred| visit(pred));
        }
    }

    fn each_succ(&self, op: u32, mut visit: impl FnMut(u32)) {
        let row = self.links[op as usize][1] as usize..self.links[op as usize + 1][1] as usize;
        self.succs[row].iter().for_each(|&succ| visit(succ));
        if self.records[op as usize].next & super::record::MORE_OUT != 0
            && let Some(more) = self.more.succs.get(&u64::from(op))
        {
            more.iter().for_each(|&succ| visit(succ));
        }
    }

    fn members(&self, gang: u32) -> &[u32] {
        let range = self.gangs.get((gang & !GANG) as usize).cloned().unwrap_or_default();
        &self.members[range.start as usize..range.end as usize]
    }
}
