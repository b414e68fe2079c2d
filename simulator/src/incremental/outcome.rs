//! What a trial found, to keep or to make true.

use std::sync::Arc;

use slicescheduler_gmg::units::Nanos;

use super::blocks::Blocks;
use super::order::Network;
use super::record::{Effect, GANG, Lateness, Record};
use super::trial::Dense;
use super::usage::Shift;
use super::{OpRef, Schedule, ScheduleError, Trial};

/// A changed cone and the schedule that it belongs to.
#[derive(Clone, Debug)]
pub struct Outcome {
    base: Arc<Schedule>,
    /// By number.
    records: Vec<(u32, Record)>,
    /// All finishes, if most changed.
    dense: Option<Dense>,
    inserted: u32,
    edges: Vec<(u32, u32)>,
    gangs: Vec<Vec<u32>>,
    effects: Vec<(u32, Effect)>,
    shifts: Vec<Shift>,
    late: Lateness,
    rewired: bool,
}

impl Trial<'_> {
    /// What was found up to the last settling. `base` holds the schedule that the trial started
    /// from. O(changed records).
    ///
    /// # Errors
    /// [`ScheduleError::Stale`] if `base` is another schedule.
    pub fn outcome(&mut self, base: &Arc<Schedule>) -> Result<Outcome, ScheduleError> {
        if !std::ptr::eq(self.base, Arc::as_ptr(base)) {
            return Err(ScheduleError::Stale { of: self.base.version, at: base.version });
        }
        self.compute_blocks();
        let scratch = &*self.scratch;
        let mut records: Vec<_> = scratch.touched.iter().map(|&op| (op, self.view(op))).collect();
        records.sort_unstable_by_key(|(op, _)| *op);
        Ok(Outcome {
            base: base.clone(),
            records,
            dense: scratch.dense.last().map(|dense| Dense { log: Vec::new(), ..dense.clone() }),
            inserted: scratch.inserted,
            edges: scratch.edges.clone(),
            gangs: (0..scratch.gangs.len())
                .map(|gang| self.members((base.gangs.len() + gang) as u32).to_vec())
                .collect(),
            effects: scratch.effects.clone(),
            shifts: scratch.shifts.clone(),
            late: self.late,
            rewired: self.rewired,
        })
    }
}

impl Outcome {
    /// The schedule that it started from.
    pub fn base(&self) -> &Schedule {
        &self.base
    }

    /// When `op` starts; [`Nanos::MAX`] if it never finishes, zero if it was removed.
    pub fn start(&self, op: OpRef) -> Nanos {
        self.record(op).map_or(Nanos::ZERO, |record| Nanos(record.start()))
    }

    /// When `op` finishes; [`Nanos::MAX`] if never, zero if it was removed.
    pub fn finish(&self, op: OpRef) -> Nanos {
        self.record(op).map_or(Nanos::ZERO, |record| Nanos(record.finish))
    }

    /// How late operators with a due time are.
    pub fn lateness(&self) -> Lateness {
        self.late
    }

    fn record(&self, op: OpRef) -> Option<Record> {
        let changed = self.records.binary_search_by_key(&op.0, |(op, _)| *op);
        let mut record = match changed {
            Ok(place) => self.records[place].1,
            Err(_) => *self.base.records.get(op.0 as usize)?,
        };
        if let Some(dense) = &self.dense {
            record.finish = dense.at(&self.base, op.0);
        }
        Some(record)
    }
}

impl Schedule {
    /// Makes an outcome true. O(changed records), if nobody else holds the schedule; operators that
    /// it inserted keep their references. After an outcome that inserted, moved, removed or
    /// connected something, [`find_order`](Self::find_order) makes sweeps fast again.
    ///
    /// # Errors
    /// [`ScheduleError::Stale`] if the outcome is not of this schedule as it is now.
    pub fn adopt(this: &mut Arc<Self>, outcome: Outcome) -> Result<(), ScheduleError> {
        if !Arc::ptr_eq(this, &outcome.base) {
            return Err(ScheduleError::Stale { of: outcome.base.version, at: this.version });
        }
        let Outcome { base, records, dense, inserted, edges, gangs, effects, shifts, late, rewired } = outcome;
        drop(base);
        let schedule = Arc::make_mut(this);
        if let Some(dense) = dense {
            for op in 0..schedule.records.len() as u32 {
                schedule.records[op as usize].finish = dense.at(schedule, op);
            }
        }
        let first_inserted = schedule.records.len() as u32;
        schedule.append(inserted, effects);
        for gang in gangs {
            let first = schedule.members.len() as u32;
            schedule.members.extend(gang);
            schedule.gangs.push(first..schedule.members.len() as u32);
        }
        for (from, to) in edges {
            schedule.more.preds.entry(u64::from(to)).or_default().push(from);
            if from & GANG == 0 {
                schedule.more.succs.entry(u64::from(from)).or_default().push(to);
            }
        }
        for &(op, record) in &records {
            let was = std::mem::replace(&mut schedule.records[op as usize], record);
            if !record.is_operator() && (was.is_operator() || op >= first_inserted) {
                schedule.fixed.push(op);
            }
        }
        if rewired {
            schedule.steps_hold = false;
        } else if schedule.steps_hold {
            records.iter().for_each(|&(op, _)| schedule.refresh_step(op));
        }
        records.iter().for_each(|&(op, _)| Blocks::refresh(schedule, op));
        let mut shifts = shifts;
        shifts.sort_unstable_by_key(|shift| (shift.account, shift.at));
        schedule.add_shifts(&shifts);
        schedule.late = late;
        schedule.version += 1;
        Ok(())
    }

    fn append(&mut self, inserted: u32, mut effects: Vec<(u32, Effect)>) {
        if inserted == 0 {
            return;
        }
        let first = self.records.len() as u32;
        let end = [self.preds.len() as u32, self.succs.len() as u32];
        self.records.extend((0..inserted).map(|_| Record::REMOVED));
        self.links.extend((0..inserted).map(|_| end));
        effects.sort_by_key(|(op, _)| *op);
        if self.effect_begin.is_empty() && !effects.is_empty() {
            self.effect_begin.resize(first as usize + 1, 0);
        }
        if !self.effect_begin.is_empty() {
            let mut of_ops = effects.into_iter().peekable();
            for op in first..first + inserted {
                while let Some((_, effect)) = of_ops.next_if(|(of, _)| *of == op) {
                    self.effects.push(effect);
                }
                self.effect_begin.push(self.effects.len() as u32);
            }
        }
        self.steps_hold = false;
    }
}
