//! Changes on top of a schedule, with marks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use slicescheduler_gmg::plan::Shortage;
use slicescheduler_gmg::units::{Bytes, Nanos};

use super::blocks::BlockState;
use super::order::Network;
use super::record::{Effect, GANG, ID, Lateness, MORE_IN, MORE_OUT, Record};
use super::schedule::More;
use super::steps::Edit;
use super::usage::Shift;
use super::{AccountRef, LaneRef, OpRef, Schedule};

/// All finishes after a sweep, and what was changed in them since.
#[derive(Clone, Debug, Default)]
pub(super) struct Dense {
    pub(super) finish: Vec<u64>,
    /// True if `finish` has the order of the base's steps, else that of the records.
    pub(super) by_step: bool,
    /// Former values of places, oldest first.
    pub(super) log: Vec<(u32, u64)>,
}

impl Dense {
    /// Where the finish of `op` is. Inserted operators come behind everything else.
    fn place(&self, base: &Schedule, op: u32) -> usize {
        match base.steps.step_of.get(op as usize) {
            Some(&step) if self.by_step => step as usize,
            _ if self.by_step => op as usize - base.records.len() + base.steps.places,
            _ => op as usize,
        }
    }

    pub(super) fn at(&self, base: &Schedule, op: u32) -> u64 {
        self.finish[self.place(base, op)]
    }

    pub(super) fn set(&mut self, base: &Schedule, op: u32, finish: u64) {
        let place = self.place(base, op);
        self.log.push((place as u32, self.finish[place]));
        self.finish[place] = finish;
    }

    /// Leaves `inserted` places for inserted operators.
    fn truncate(&mut self, base: &Schedule, inserted: u32) {
        let first = if self.by_step { base.steps.places } else { base.records.len() };
        self.finish.truncate(first + inserted as usize);
    }
}

/// The buffers of a [`Trial`]. One per thread; reused, so that a trial allocates nothing in steady
/// state. Holds 4 bytes per operator of the base, and what was changed.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Per record of the base: one more than its place in `records`, or 0.
    pub(super) slots: Vec<u32>,
    /// Which record each of `records` is.
    pub(super) touched: Vec<u32>,
    pub(super) records: Vec<Record>,
    /// Former values of `records` that were there at the last settling, oldest first.
    pub(super) saved: Vec<(u32, Record)>,
    /// The last is in force; without any, finishes are in the records.
    pub(super) dense: Vec<Dense>,
    pub(super) spare: Vec<Dense>,
    pub(super) more: More,
    /// Edges in `more` and memberships in groups, oldest first.
    pub(super) edges: Vec<(u32, u32)>,
    /// Rows of `members`, numbered behind those of the base.
    pub(super) gangs: Vec<Range<u32>>,
    pub(super) members: Vec<u32>,
    pub(super) inserted: u32,
    /// Effects of inserted operators.
    pub(super) effects: Vec<(u32, Effect)>,
    pub(super) shifts: Vec<Shift>,
    /// `shifts` of one account.
    of_account: Vec<(u64, i64)>,
    pub(super) pending: Vec<Reverse<(u64, u32)>>,
    /// Operators with the flag [`EDITED`](super::record::EDITED).
    pub(super) edited: Vec<u32>,
    pub(super) heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// By block of the base.
    pub(super) blocks: Vec<BlockState>,
    /// Former states, oldest first.
    pub(super) block_log: Vec<(u32, BlockState)>,
    /// Buffers of a sweep.
    pub(super) free_at: Vec<u64>,
    pub(super) edits: Vec<Edit>,
}

/// A state of a [`Trial`] to come back to.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    records: usize,
    saved: usize,
    dense: usize,
    log: usize,
    edges: usize,
    gangs: usize,
    members: usize,
    inserted: u32,
    effects: usize,
    shifts: usize,
    blocks: usize,
    late: Lateness,
    pub(super) rewired: bool,
}

/// What settling took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Operators that were evaluated one by one.
    pub evaluated: u32,
    /// True if so many changed that all were computed anew.
    pub swept: bool,
}

/// A schedule with changes that nobody else sees.
///
/// Changes are collected and take effect with [`settle`](Self::settle), all or none. Reading
/// between a change and the settling gives times that are neither the old nor the new ones.
#[derive(Debug)]
pub struct Trial<'a> {
    pub(super) base: &'a Schedule,
    pub(super) scratch: &'a mut Scratch,
    pub(super) late: Lateness,
    /// True if order, edges or groups differ from the base.
    pub(super) rewired: bool,
    /// The state at the last settling.
    pub(super) settled: Mark,
}

impl<'a> Trial<'a> {
    pub(super) fn new(base: &'a Schedule, scratch: &'a mut Scratch) -> Self {
        scratch.clear();
        scratch.slots.resize(base.records.len(), 0);
        scratch.blocks.resize(base.blocks.count(), BlockState::Current);
        let settled = Mark {
            records: 0,
            saved: 0,
            dense: 0,
            log: 0,
            edges: 0,
            gangs: 0,
            members: 0,
            inserted: 0,
            effects: 0,
            shifts: 0,
            blocks: 0,
            late: base.late,
            rewired: false,
        };
        Self { base, scratch, late: base.late, rewired: false, settled }
    }

    /// The schedule that it started from.
    pub fn base(&self) -> &'a Schedule {
        self.base
    }

    /// The state at the last settling.
    pub fn mark(&self) -> Mark {
        self.settled
    }

    /// Goes back to a state of this trial. O(changes since). A mark that was rolled back itself
    /// must not be used.
    pub fn rollback(&mut self, mark: Mark) {
        let scratch = &mut *self.scratch;
        scratch.pending.clear();
        scratch.edited.clear();
        while scratch.dense.len() > mark.dense {
            scratch.spare.extend(scratch.dense.pop());
        }
        if let Some(dense) = scratch.dense.last_mut() {
            while dense.log.len() > mark.log {
                if let Some((place, finish)) = dense.log.pop() {
                    dense.finish[place as usize] = finish;
                }
            }
            dense.truncate(self.base, mark.inserted);
        }
        while scratch.saved.len() > mark.saved {
            if let Some((slot, record)) = scratch.saved.pop() {
                scratch.records[slot as usize] = record;
            }
        }
        for op in scratch.touched.drain(mark.records.min(scratch.touched.len())..) {
            scratch.slots[op as usize] = 0;
        }
        scratch.records.truncate(mark.records);
        scratch.slots.truncate(self.base.records.len() + mark.inserted as usize);
        while scratch.edges.len() > mark.edges {
            if let Some((from, to)) = scratch.edges.pop() {
                scratch.more.preds.get_mut(&u64::from(to)).map(|row| row.pop());
                if from & GANG == 0 {
                    scratch.more.succs.get_mut(&u64::from(from)).map(|row| row.pop());
                }
            }
        }
        while scratch.block_log.len() > mark.blocks {
            if let Some((block, state)) = scratch.block_log.pop() {
                scratch.blocks[block as usize] = state;
            }
        }
        scratch.gangs.truncate(mark.gangs);
        scratch.members.truncate(mark.members);
        scratch.effects.truncate(mark.effects);
        scratch.shifts.truncate(mark.shifts);
        scratch.inserted = mark.inserted;
        self.late = mark.late;
        self.rewired = mark.rewired;
        self.settled = mark;
    }

    pub(super) fn set_settled(&mut self) {
        let scratch = &*self.scratch;
        self.settled = Mark {
            records: scratch.records.len(),
            saved: scratch.saved.len(),
            dense: scratch.dense.len(),
            log: scratch.dense.last().map_or(0, |dense| dense.log.len()),
            edges: scratch.edges.len(),
            gangs: scratch.gangs.len(),
            members: scratch.members.len(),
            inserted: scratch.inserted,
            effects: scratch.effects.len(),
            shifts: scratch.shifts.len(),
            blocks: scratch.block_log.len(),
            late: self.late,
            rewired: self.rewired,
        };
    }

    /// When `op` starts; [`Nanos::MAX`] if it never finishes, zero if it was removed.
    pub fn start(&self, op: OpRef) -> Nanos {
        if self.knows(op) { Nanos(self.current(op.0).start()) } else { Nanos::ZERO }
    }

    /// When `op` finishes; [`Nanos::MAX`] if never, zero if it was removed.
    pub fn finish(&self, op: OpRef) -> Nanos {
        if self.knows(op) { Nanos(self.current(op.0).finish) } else { Nanos::ZERO }
    }

    /// From when on `op` holds its lane: its start, or for a member of a group its own arrival.
    pub fn arrival(&self, op: OpRef) -> Nanos {
        if !self.knows(op) || !self.record(op.0).is_operator() {
            return Nanos::ZERO;
        }
        let record = self.record(op.0);
        let mut ready = record.release.max(self.current(record.prev()).finish);
        self.each_pred(op.0, |pred| {
            if pred & GANG == 0 {
                ready = ready.max(self.finish_of(pred));
            }
        });
        Nanos(ready)
    }

    /// When the last operator of `lane` finishes.
    pub fn lane_end(&self, lane: LaneRef) -> Nanos {
        let head = self.base.lanes.get(lane.0 as usize);
        head.map_or(Nanos::ZERO, |&head| Nanos(self.finish_of(self.record(head).prev())))
    }

    /// The operators of `lane`, first to last.
    pub fn lane_ops(&self, lane: LaneRef) -> impl Iterator<Item = OpRef> + '_ {
        let head = self.base.lanes.get(lane.0 as usize).copied();
        let next = move |op: u32| Some(self.record(op).next()).filter(|&next| Some(next) != head);
        std::iter::successors(head.and_then(next), move |&op| next(op)).map(OpRef)
    }

    /// The most bytes that `account` has in use at one time. O(changed holds * log instants).
    pub fn peak(&mut self, account: AccountRef) -> Bytes {
        let Some(usage) = self.base.usages.get(account.0 as usize) else { return Bytes::ZERO };
        usage.peak(self.shifts_of(account))
    }

    /// The first time that `account` has more bytes in use than its limit. O(changed holds * log
    /// instants).
    pub fn shortage(&mut self, account: AccountRef) -> Option<Shortage> {
        let usage = self.base.usages.get(account.0 as usize)?;
        usage.shortage(self.shifts_of(account))
    }

    /// How late operators with a due time are.
    pub fn lateness(&self) -> Lateness {
        self.late
    }

    fn shifts_of(&mut self, account: AccountRef) -> &mut Vec<(u64, i64)> {
        let Scratch { shifts, of_account, .. } = &mut *self.scratch;
        of_account.clear();
        let its = shifts.iter().filter(|shift| shift.account == account.0);
        of_account.extend(its.map(|shift| (shift.at, shift.bytes)));
        of_account
    }

    pub(super) fn knows(&self, op: OpRef) -> bool {
        (op.0 as usize) < self.scratch.slots.len()
    }

    /// The record, its finish included.
    pub(super) fn view(&self, op: u32) -> Record {
        let mut record = *self.record(op);
        if let Some(dense) = self.scratch.dense.last() {
            record.finish = dense.at(self.base, op);
        }
        record
    }

    pub(super) fn finish_of(&self, op: u32) -> u64 {
        match self.scratch.dense.last() {
            Some(dense) => dense.at(self.base, op),
            None => self.record(op).finish,
        }
    }

    /// The record for writing; what it was can be brought back.
    pub(super) fn record_mut(&mut self, op: u32) -> &mut Record {
        let scratch = &mut *self.scratch;
        let slot = match scratch.slots[op as usize] {
            0 => {
                scratch.records.push(self.base.records[op as usize]);
                scratch.touched.push(op);
                scratch.slots[op as usize] = scratch.records.len() as u32;
                scratch.records.len() - 1
            }
            slot => {
                let slot = slot as usize - 1;
                if slot < self.settled.records {
                    scratch.saved.push((slot as u32, scratch.records[slot]));
                }
                slot
            }
        };
        &mut scratch.records[slot]
    }

    pub(super) fn has_effects(&self) -> bool {
        !self.base.effects.is_empty() || !self.scratch.effects.is_empty()
    }

    /// Visits what `op` does with its start and finish.
    pub(super) fn each_effect(&mut self, op: u32, mut visit: impl FnMut(Effect, &mut Vec<Shift>, &mut Lateness)) {
        let Scratch { shifts, effects, .. } = &mut *self.scratch;
        for &effect in self.base.effects_of(op) {
            visit(effect, shifts, &mut self.late);
        }
        if op as usize >= self.base.records.len() {
            for &(_, effect) in effects.iter().filter(|(of, _)| *of == op) {
                visit(effect, shifts, &mut self.late);
            }
        }
    }
}

impl Scratch {
    pub(super) fn clear(&mut self) {
        for op in self.touched.drain(..) {
            if let Some(slot) = self.slots.get_mut(op as usize) {
                *slot = 0;
            }
        }
        for (block, _) in self.block_log.drain(..) {
            if let Some(state) = self.blocks.get_mut(block as usize) {
                *state = BlockState::Current;
            }
        }
        self.spare.append(&mut self.dense);
        self.records.clear();
        self.saved.clear();
        for (from, to) in self.edges.drain(..) {
            self.more.succs.remove(&u64::from(from));
            self.more.preds.remove(&u64::from(to));
        }
        self.gangs.clear();
        self.members.clear();
        self.inserted = 0;
        self.effects.clear();
        self.shifts.clear();
        self.pending.clear();
        self.edited.clear();
    }
}

impl Network for Trial<'_> {
    fn count(&self) -> usize {
        self.scratch.slots.len()
    }

    fn record(&self, op: u32) -> &Record {
        match self.scratch.slots[op as usize] {
            0 => &self.base.records[op as usize],
            slot => &self.scratch.records[slot as usize - 1],
        }
    }

    fn each_pred(&self, op: u32, mut visit: impl FnMut(u32)) {
        let base = self.base;
        if let (Some(row), Some(end)) = (base.links.get(op as usize), base.links.get(op as usize + 1)) {
            base.preds[row[0] as usize..end[0] as usize].iter().for_each(|&pred| visit(pred));
        }
        if self.record(op).prev & MORE_IN != 0 {
            let op = u64::from(op);
            let more = base.more.preds.get(&op).into_iter().chain(self.scratch.more.preds.get(&op));
            more.flatten().for_each(|&pred| visit(pred));
        }
    }

    fn each_succ(&self, op: u32, mut visit: impl FnMut(u32)) {
        let base = self.base;
        if let (Some(row), Some(end)) = (base.links.get(op as usize), base.links.get(op as usize + 1)) {
            base.succs[row[1] as usize..end[1] as usize].iter().for_each(|&succ| visit(succ));
        }
        if self.record(op).next & MORE_OUT != 0 {
            let op = u64::from(op);
            let more = base.more.succs.get(&op).into_iter().chain(self.scratch.more.succs.get(&op));
            more.flatten().for_each(|&succ| visit(succ));
        }
    }

    fn members(&self, gang: u32) -> &[u32] {
        match (gang as usize).checked_sub(self.base.gangs.len()) {
            None => self.base.members(gang),
            Some(own) => {
                let range = self.scratch.gangs.get(own).cloned().unwrap_or_default();
                &self.scratch.members[range.start as usize..range.end as usize]
            }
        }
    }
}

const _: () = assert!(ID & (MORE_IN | MORE_OUT | GANG) == 0);
