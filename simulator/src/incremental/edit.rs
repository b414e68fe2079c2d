//! The changes that a trial can make.

use std::cmp::Reverse;

use slicescheduler_gmg::units::Nanos;

use super::order::Network;
use super::record::{EDITED, Effect, GANG, Hold, ID, MORE_IN, MORE_OUT, NEVER, ORIGIN, Record};
use super::{AccountRef, LaneRef, OpRef, ScheduleError, Trial};

/// Where on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before everything else.
    Front(LaneRef),
    /// Right behind an operator.
    Behind(OpRef),
    /// Behind everything else.
    Back(LaneRef),
}

impl Trial<'_> {
    /// `op` takes `duration`, at least 1 ns; so do all members of its group.
    ///
    /// # Errors
    /// [`ScheduleError::NoSuchOp`].
    pub fn set_duration(&mut self, op: OpRef, duration: Nanos) -> Result<(), ScheduleError> {
        self.operator(op)?;
        self.set_unit_duration(op.0, duration.0.max(1));
        Ok(())
    }

    /// `op` does not start before `release`.
    ///
    /// # Errors
    /// [`ScheduleError::NoSuchOp`].
    pub fn set_release(&mut self, op: OpRef, release: Nanos) -> Result<(), ScheduleError> {
        self.operator(op)?;
        self.queue(op.0);
        self.record_mut(op.0).release = release.0;
        Ok(())
    }

    /// The first operator of `lane` does not start before `free_at`.
    ///
    /// # Errors
    /// [`ScheduleError::NoSuchLane`].
    pub fn set_free_at(&mut self, lane: LaneRef, free_at: Nanos) -> Result<(), ScheduleError> {
        let head = self.head(lane)?;
        self.record_mut(head).release = free_at.0;
        self.queue(head);
        Ok(())
    }

    /// Puts a new operator on a lane.
    ///
    /// # Errors
    /// When the place does not exist, or there are too many operators.
    pub fn insert(&mut self, place: Place, duration: Nanos, release: Nanos) -> Result<OpRef, ScheduleError> {
        let before = self.before(place)?;
        let op = self.scratch.slots.len();
        if op >= ID as usize {
            return Err(ScheduleError::TooLarge { most: ID as usize - 1, asked: op });
        }
        let op = op as u32;
        self.scratch.inserted += 1;
        self.scratch.records.push(Record { release: release.0, duration: duration.0.max(1), ..Record::REMOVED });
        self.scratch.touched.push(op);
        self.scratch.slots.push(self.scratch.records.len() as u32);
        if let Some(dense) = self.scratch.dense.last_mut() {
            dense.finish.push(0);
        }
        self.mark_edited(op);
        self.link(op, before);
        self.rewired = true;
        Ok(OpRef(op))
    }

    /// Takes `op` away. What waited for it does not wait any more.
    ///
    /// # Errors
    /// [`ScheduleError::NoSuchOp`].
    pub fn remove(&mut self, op: OpRef) -> Result<(), ScheduleError> {
        self.operator(op)?;
        self.retract(op.0);
        self.queue(op.0);
        // The rest of its group may start earlier.
        if let Some(gang) = self.gang_of(op.0) {
            for place in 0..self.members(gang).len() {
                self.queue(self.members(gang)[place]);
            }
        }
        self.unlink(op.0);
        let record = self.record_mut(op.0);
        let (flags_in, flags_out) = (record.prev & !ID, record.next & !ID);
        let finish = record.finish;
        *record = Record { finish, prev: ORIGIN | flags_in, next: ORIGIN | flags_out, ..Record::REMOVED };
        self.rewired = true;
        Ok(())
    }

    /// `op` never finishes: its device is lost, or it hangs. Neither does what waits for it.
    ///
    /// # Errors
    /// [`ScheduleError::NoSuchOp`].
    pub fn lose(&mut self, op: OpRef) -> Result<(), ScheduleError> {
        self.operator(op)?;
        self.set_unit_duration(op.0, NEVER);
        Ok(())
    }

    /// Moves `op` to another place, on its own lane or another.
    ///
    /// # Errors
    /// When one of the places does not exist.
    pub fn relocate(&mut self, op: OpRef, place: Place) -> Result<(), ScheduleError> {
        self.operator(op)?;
        if place == Place::Behind(op) {
            return Ok(());
        }
        let before = self.before(place)?;
        if before == op.0 {
            return Ok(());
        }
        self.unlink(op.0);
        self.link(op.0, before);
        self.rewired = true;
        Ok(())
    }

    /// `to` does not start before `from` has finished.
    ///
    /// # Errors
    /// [`ScheduleError::NoSuchOp`].
    pub fn add_edge(&mut self, from: OpRef, to: OpRef) -> Result<(), ScheduleError> {
        self.operator(from)?;
        self.operator(to)?;
        self.scratch.more.succs.entry(u64::from(from.0)).or_default().push(to.0);
        self.add_pred(from.0, to.0);
        self.open(from.0);
        self.record_mut(from.0).next |= MORE_OUT;
        self.scratch.edges.push((from.0, to.0));
        self.queue(to.0);
        self.rewired = true;
        Ok(())
    }

    /// Cuts `op` after `done`: the rest of it, which takes `rest`, goes to `place`. What waited for
    /// `op` waits for the rest.
    ///
    /// # Errors
    /// When `op` or the place does not exist, or there are too many operators.
    pub fn cut(&mut self, op: OpRef, done: Nanos, rest: Nanos, place: Place) -> Result<OpRef, ScheduleError> {
        self.operator(op)?;
        let rest = self.insert(place, rest, Nanos::ZERO)?;
        let mut waiting: smallvec::SmallVec<[u32; 8]> = smallvec::SmallVec::new();
        self.each_succ(op.0, |succ| waiting.push(succ));
        self.add_edge(op, rest)?;
        for to in waiting {
            if self.record(to).is_operator() {
                self.add_edge(rest, OpRef(to))?;
            }
        }
        self.set_duration(op, done)?;
        Ok(rest)
    }

    /// Makes inserted operators one group, as [`gang`](super::ScheduleBuilder::gang) does.
    ///
    /// # Errors
    /// When one of them does not exist or is in a group already.
    pub fn group(&mut self, members: &[OpRef]) -> Result<(), ScheduleError> {
        let mut longest = 1;
        for &member in members {
            self.operator(member)?;
            if self.gang_of(member.0).is_some() {
                return Err(ScheduleError::GroupedTwice(member));
            }
            longest = longest.max(self.record(member.0).duration);
        }
        let first = self.scratch.members.len() as u32;
        self.scratch.members.extend(members.iter().map(|member| member.0));
        let gang = (self.base.gangs.len() + self.scratch.gangs.len()) as u32;
        self.scratch.gangs.push(first..self.scratch.members.len() as u32);
        for &member in members {
            self.add_pred(GANG | gang, member.0);
            self.scratch.edges.push((GANG | gang, member.0));
        }
        if let Some(&member) = members.first() {
            self.set_unit_duration(member.0, longest);
        }
        self.rewired = true;
        Ok(())
    }

    /// Bytes that an inserted operator takes when it starts and frees when it finishes.
    ///
    /// # Errors
    /// When the operator was not inserted by this trial, or there is no such account.
    pub fn hold(&mut self, op: OpRef, hold: Hold) -> Result<(), ScheduleError> {
        if hold.account.0 as usize >= self.base.usages.len() {
            return Err(ScheduleError::NoSuchAccount(AccountRef(hold.account.0)));
        }
        self.effect(op, hold.into())
    }

    /// An inserted operator should finish by `due`.
    ///
    /// # Errors
    /// When the operator was not inserted by this trial.
    pub fn due(&mut self, op: OpRef, due: Nanos) -> Result<(), ScheduleError> {
        self.effect(op, Effect::Due(due.0))
    }

    fn effect(&mut self, op: OpRef, effect: Effect) -> Result<(), ScheduleError> {
        self.operator(op)?;
        if (op.0 as usize) < self.base.records.len() {
            return Err(ScheduleError::NoSuchOp(op));
        }
        let record = self.view(op.0);
        if record.prev & EDITED == 0 {
            self.each_effect(op.0, |effect, shifts, late| effect.unhappen(&record, shifts, late));
            self.mark_edited(op.0);
        }
        self.scratch.effects.push((op.0, effect));
        self.queue(op.0);
        Ok(())
    }

    fn operator(&self, op: OpRef) -> Result<(), ScheduleError> {
        if self.knows(op) && self.record(op.0).is_operator() { Ok(()) } else { Err(ScheduleError::NoSuchOp(op)) }
    }

    fn head(&self, lane: LaneRef) -> Result<u32, ScheduleError> {
        self.base.lanes.get(lane.0 as usize).copied().ok_or(ScheduleError::NoSuchLane(lane))
    }

    /// The record that comes before a place.
    fn before(&self, place: Place) -> Result<u32, ScheduleError> {
        match place {
            Place::Front(lane) => self.head(lane),
            Place::Behind(op) => self.operator(op).map(|()| op.0),
            Place::Back(lane) => Ok(self.record(self.head(lane)?).prev()),
        }
    }

    /// `op` will be evaluated, as early as it was to start.
    fn queue(&mut self, op: u32) {
        self.open(op);
        let key = self.view(op).bound();
        self.scratch.pending.push(Reverse((key, op)));
    }

    fn set_unit_duration(&mut self, op: u32, duration: u64) {
        let gang = self.gang_of(op);
        let count = gang.map_or(1, |gang| self.members(gang).len());
        for place in 0..count {
            let member = gang.map_or(op, |gang| self.members(gang)[place]);
            if self.record(member).is_operator() {
                self.queue(member);
                self.retract(member);
                self.record_mut(member).duration = duration;
            }
        }
    }

    /// Takes back what `op` did with its start and finish, until the next settling.
    fn retract(&mut self, op: u32) {
        let record = self.view(op);
        if self.has_effects() && record.prev & EDITED == 0 {
            self.each_effect(op, |effect, shifts, late| effect.unhappen(&record, shifts, late));
            self.mark_edited(op);
        }
    }

    fn mark_edited(&mut self, op: u32) {
        self.record_mut(op).prev |= EDITED;
        self.scratch.edited.push(op);
    }

    fn add_pred(&mut self, pred: u32, to: u32) {
        self.open(to);
        self.scratch.more.preds.entry(u64::from(to)).or_default().push(pred);
        self.record_mut(to).prev |= MORE_IN;
    }

    fn set_prev(&mut self, op: u32, prev: u32) {
        self.open(op);
        let record = self.record_mut(op);
        record.prev = (record.prev & !ID) | prev;
    }

    fn set_next(&mut self, op: u32, next: u32) {
        self.open(op);
        let record = self.record_mut(op);
        record.next = (record.next & !ID) | next;
    }

    /// Puts `op` behind the record `before`.
    fn link(&mut self, op: u32, before: u32) {
        let behind = self.record(before).next();
        self.set_prev(op, before);
        self.set_next(op, behind);
        self.set_next(before, op);
        self.set_prev(behind, op);
        let key = self.finish_of(before);
        self.scratch.pending.push(Reverse((key, op)));
        self.queue(behind);
    }

    fn unlink(&mut self, op: u32) {
        let record = *self.record(op);
        self.set_next(record.prev(), record.next());
        self.set_prev(record.next(), record.prev());
        self.queue(record.next());
    }
}
