//! From changes to the times that follow.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use smallvec::SmallVec;

use super::order::{Network, discover, sweep};
use super::record::{EDITED, GANG, NEVER, Record};
use super::steps::Edit;
use super::trial::Settled;
use super::{ScheduleError, Trial};

/// Operators to be evaluated, the one that was to start first on top.
type Queue = BinaryHeap<Reverse<(u64, u32)>>;

/// More changes than this are spread over memory.
const WARM_FROM: usize = 8;

impl Trial<'_> {
    /// Computes what follows from the changes since the last settling. O(operators whose times
    /// change, and their neighbours); never much more than a sweep.
    ///
    /// # Errors
    /// [`ScheduleError::Cycle`] if operators now wait for each other; then none of the changes
    /// since the last settling has happened.
    pub fn settle(&mut self) -> Result<Settled, ScheduleError> {
        if self.scratch.pending.len() > WARM_FROM {
            self.warm();
        }
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

    /// Reads what the evaluation of scattered changes will read. Evaluations wait for one cache line
    /// after the other; these reads do not depend on each other.
    fn warm(&self) {
        let mut read = 0;
        for &Reverse((_, op)) in &self.scratch.pending {
            self.each_pred(op, |pred| {
                if pred & GANG == 0 {
                    read ^= self.record(pred).finish;
                }
            });
            self.each_succ(op, |succ| read ^= self.record(succ).finish);
        }
        std::hint::black_box(read);
    }

    /// Evaluations that together take a small part of a sweep: of a large schedule, each waits for
    /// memory. A sweep whose order has to be discovered first takes many times as long.
    fn budget(&self) -> u32 {
        let count = self.scratch.slots.len() as u32;
        match self.rewired || !self.base.steps_hold {
            true => count / 4 + 64,
            false => (count / 96).min(1 << 10).max(count / 384) + 4,
        }
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
                if let Some((first, last, finish)) = self.block_from(op) {
                    if finish == NEVER && self.rewired {
                        return false;
                    }
                    let (was_first, was_last) = (self.view(op).finish, self.view(last));
                    if first == was_first {
                        break;
                    }
                    self.leave_stale(op);
                    self.set_finish(op, first);
                    self.set_finish(last, finish);
                    match self.follow(was_last.next(), was_last.finish, finish, queue) {
                        Some(next) => op = next,
                        None => break,
                    }
                    continue;
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
                match self.follow(record.next(), record.finish, new, queue) {
                    Some(next) => op = next,
                    None => break,
                }
            }
        }
        true
    }

    /// The next operator of a lane if it is the next to be evaluated; else it is queued, unless
    /// nothing changed for it.
    fn follow(&self, next: u32, old: u64, new: u64, queue: &mut Queue) -> Option<u32> {
        let key = self.key_if_reached(next, old, new)?;
        if queue.peek().is_some_and(|Reverse(first)| *first < (key, next)) {
            queue.push(Reverse((key, next)));
            return None;
        }
        Some(next)
    }

    /// False if only a sweep can tell.
    fn evaluate_gang(&mut self, gang: u32, queue: &mut Queue) -> bool {
        let (mut ready, mut duration) = (0, 0);
        let mut members: SmallVec<[(u32, Record); 8]> = SmallVec::new();
        for &member in self.members(gang) {
            let record = self.view(member);
            if record.is_operator() {
                members.push((member, record));
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
        for (member, record) in members {
            if record.finish != new {
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
        self.set_finish(op, finish);
    }

    pub(super) fn set_finish(&mut self, op: u32, finish: u64) {
        match self.scratch.dense.last_mut() {
            Some(dense) => dense.set(self.base, op, finish),
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
        let mut new = self.scratch.spare.pop().unwrap_or_default();
        new.log.clear();
        new.by_step = !self.rewired && self.base.steps_hold;
        if new.by_step {
            self.sweep_steps(&mut new.finish);
        } else {
            new.finish.clear();
            new.finish.extend((0..self.count() as u32).map(|op| self.record(op).release));
            sweep(self, &discover(self)?, &mut new.finish);
        }
        self.close_blocks();
        if self.has_effects() {
            for op in 0..self.count() as u32 {
                let (record, finish) = (self.view(op), new.at(self.base, op));
                if record.finish != finish && record.prev & EDITED == 0 && record.is_operator() {
                    self.move_effects(op, record, finish);
                }
            }
        }
        self.scratch.dense.push(new);
        Ok(())
    }

    /// The steps of the base, with other durations and releases where they were changed.
    fn sweep_steps(&mut self, finish: &mut Vec<u64>) {
        let (base, mut free_at) = (self.base, std::mem::take(&mut self.scratch.free_at));
        let mut edits = std::mem::take(&mut self.scratch.edits);
        edits.clear();
        for &op in &self.scratch.touched {
            let (record, was) = (self.record(op), &base.records[op as usize]);
            if record.is_operator() && (record.duration, record.release) != (was.duration, was.release) {
                let releases = base.unit(op).map(|member| self.record(member).release);
                let release = releases.max().unwrap_or_default();
                let step = base.steps.step_of[base.leader(op) as usize];
                edits.push(Edit { step, duration: record.duration, release });
            }
        }
        edits.sort_unstable();
        edits.dedup_by_key(|edit| edit.step);
        base.begin_sweep(finish, &mut free_at, |fixed| self.record(fixed).release);
        base.steps.sweep(&edits, &mut free_at, finish);
        (self.scratch.free_at, self.scratch.edits) = (free_at, edits);
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
