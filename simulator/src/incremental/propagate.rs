//! From changes to the times that follow.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::order::{Network, discover, sweep};
use super::record::{EDITED, GANG, NEVER, Record};
use super::trial::{Dense, Settled};
use super::{ScheduleError, Trial};

/// Operators to be evaluated, the one that was to start first on top.
type Queue = BinaryHeap<Reverse<(u64, u32)>>;

impl Trial<'_> {
    /// Computes what follows from the changes since the last settling. O(operators whose times
    /// change, and their neighbours); never much more than a sweep.
    ///
    /// # Errors
    /// [`ScheduleError::Cycle`] if operators now wait for each other; then none of the changes
    /// since the last settling has happened.
    pub fn settle(&mut self) -> Result<Settled, ScheduleError> {
        let mut queue = std::mem::take(&mut self.scratch.heap);
        queue.clear();
        queue.extend(self.scratch.pending.drain(..));
        let mut settled = Settled::default();
        if !self.propagate(&mut queue, self.budget(), &mut settled.evaluated) {
            settled.swept = true;
            if let Err(error) = self.sweep_all() {
                self.scratch.heap = queue;
                self.rollback(self.settled);
                return Err(error);
            }
        }
        self.scratch.heap = queue;
        self.finish_edits();
        self.set_settled();
        Ok(settled)
    }

    /// Evaluations that together take no more than a small part of a sweep. A sweep whose order
    /// has to be discovered first takes several times as long.
    fn budget(&self) -> u32 {
        let count = self.scratch.slots.len() as u32;
        if self.rewired || !self.base.order_holds { count / 4 + 64 } else { count / 48 + 4 }
    }

    /// False if `budget` did not suffice, or only a sweep can tell.
    fn propagate(&mut self, queue: &mut Queue, budget: u32, evaluated: &mut u32) -> bool {
        while let Some(Reverse((key, op))) = queue.pop() {
            while queue.peek() == Some(&Reverse((key, op))) {
                queue.pop();
            }
            let mut op = op;
            loop {
                *evaluated += 1;
                if *evaluated > budget {
                    return false;
                }
                let record = self.view(op);
                let new = if record.is_operator() {
                    let mut ready = record.release.max(self.finish_of(record.prev()));
                    let mut gang = None;
                    self.each_pred(op, |pred| match pred & GANG {
                        0 => ready = ready.max(self.finish_of(pred)),
                        _ => gang = Some(pred & !GANG),
                    });
                    if let Some(gang) = gang {
                        if !self.evaluate_gang(gang, queue) {
                            return false;
                        }
                        break;
                    }
                    ready.saturating_add(record.duration)
                } else {
                    record.release
                };
                // A cycle of operators that never finish would look settled; a sweep finds it.
                if new == NEVER && self.rewired {
                    return false;
                }
                if new == record.finish {
                    break;
                }
                self.write(op, record, new);
                self.each_succ(op, |succ| self.reach(succ, record.finish, new, queue));
                // The lane goes on at once if nothing else comes before.
                let next = record.next();
                let Some(key) = self.key_if_reached(next, record.finish, new) else { break };
                if queue.peek().is_some_and(|Reverse(first)| *first < (key, next)) {
                    queue.push(Reverse((key, next)));
                    break;
                }
                op = next;
            }
        }
        true
    }

    /// False if only a sweep can tell.
    fn evaluate_gang(&mut self, gang: u32, queue: &mut Queue) -> bool {
        let (mut ready, mut duration) = (0, 0);
        for &member in self.members(gang) {
            let record = self.record(member);
            if record.is_operator() {
                duration = record.duration;
                ready = ready.max(record.release).max(self.finish_of(record.prev()));
                self.each_pred(member, |pred| {
                    if pred & GANG == 0 {
                        ready = ready.max(self.finish_of(pred));
                    }
                });
            }
        }
        let new = ready.saturating_add(duration);
        if new == NEVER && self.rewired {
            return false;
        }
        for place in 0..self.members(gang).len() {
            let member = self.members(gang)[place];
            let record = self.view(member);
            if record.is_operator() && record.finish != new {
                self.write(member, record, new);
                self.each_succ(member, |succ| self.reach(succ, record.finish, new, queue));
                self.reach(record.next(), record.finish, new, queue);
            }
        }
        true
    }

    /// Queues `to` if it matters to it that an input moved from `old` to `new`.
    fn reach(&self, to: u32, old: u64, new: u64, queue: &mut Queue) {
        if let Some(key) = self.key_if_reached(to, old, new) {
            queue.push(Reverse((key, to)));
        }
    }

    /// An input that becomes later matters if it is then later than the start; one that becomes
    /// earlier, if it was what the start waited for.
    fn key_if_reached(&self, to: u32, old: u64, new: u64) -> Option<u64> {
        let record = self.view(to);
        let bound = record.bound();
        (record.is_operator() && (new > bound || old >= bound)).then_some(bound)
    }

    fn write(&mut self, op: u32, record: Record, finish: u64) {
        if self.has_effects() && record.prev & EDITED == 0 {
            self.move_effects(op, record, finish);
        }
        match self.scratch.dense.last_mut() {
            Some(dense) => {
                dense.log.push((op, record.finish));
                dense.finish[op as usize] = finish;
            }
            None => self.record_mut(op).finish = finish,
        }
    }

    fn move_effects(&mut self, op: u32, before: Record, finish: u64) {
        let after = Record { finish, ..before };
        self.each_effect(op, |effect, shifts, late| {
            effect.unhappen(&before, shifts, late);
            effect.happen(&after, shifts, late);
        });
    }

    /// Computes everything anew.
    fn sweep_all(&mut self) -> Result<(), ScheduleError> {
        let Dense { mut finish, mut log } = self.scratch.spare.pop().unwrap_or_default();
        log.clear();
        finish.resize(self.count(), 0);
        for &fixed in &self.base.fixed {
            finish[fixed as usize] = self.record(fixed).release;
        }
        for &op in &self.scratch.touched {
            let record = self.record(op);
            if !record.is_operator() {
                finish[op as usize] = record.release;
            }
        }
        if self.rewired || !self.base.order_holds {
            sweep(self, &discover(self)?, &mut finish);
        } else {
            sweep(self, &self.base.order, &mut finish);
        }
        if self.has_effects() {
            for op in 0..self.count() as u32 {
                let record = self.view(op);
                if record.finish != finish[op as usize] && record.prev & EDITED == 0 && record.is_operator() {
                    self.move_effects(op, record, finish[op as usize]);
                }
            }
        }
        self.scratch.dense.push(Dense { finish, log });
        Ok(())
    }

    /// Changed operators do again what they do with their starts and finishes.
    fn finish_edits(&mut self) {
        let mut edited = std::mem::take(&mut self.scratch.edited);
        for op in edited.drain(..) {
            self.record_mut(op).prev &= !EDITED;
            let record = self.view(op);
            if record.is_operator() {
                self.each_effect(op, |effect, shifts, late| effect.happen(&record, shifts, late));
            }
        }
        self.scratch.edited = edited;
    }
}
