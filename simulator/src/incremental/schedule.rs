//! A schedule: the base that trials start from.

use std::ops::Range;

use slicescheduler_gmg::id_map::IdMap;
use slicescheduler_gmg::plan::Shortage;
use slicescheduler_gmg::units::{Bytes, Nanos};
use smallvec::SmallVec;

use super::order::{Network, discover, sweep};
use super::record::{Effect, GANG, Lateness, NEVER, Record};
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
    /// Every operator behind its inputs; of groups, the leaders.
    pub(super) order: Vec<u32>,
    /// False after an adoption that moved, inserted or connected something.
    pub(super) order_holds: bool,
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

    /// Computes every finish from scratch in the known order: the reference for trials. `finish`
    /// is indexed like the schedule's records and is reused. O(operators + edges).
    ///
    /// # Errors
    /// [`ScheduleError::Cycle`]; not for a schedule that trials made.
    pub fn sweep_into(&self, finish: &mut Vec<u64>) -> Result<(), ScheduleError> {
        finish.resize(self.records.len(), 0);
        for &fixed in &self.fixed {
            finish[fixed as usize] = self.records[fixed as usize].release;
        }
        if self.order_holds {
            sweep(self, &self.order, finish);
        } else {
            sweep(self, &discover(self)?, finish);
        }
        Ok(())
    }

    /// Fills the finishes in.
    pub(super) fn sweep(&mut self) {
        let mut finish = Vec::new();
        if self.sweep_into(&mut finish).is_ok() {
            for (record, finish) in self.records.iter_mut().zip(finish) {
                record.finish = finish;
            }
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
