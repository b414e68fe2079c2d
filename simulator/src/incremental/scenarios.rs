//! Many candidates that share the order, computed together.
//!
//! One step of a sweep does the same for every scenario, so a row of finishes, one per scenario,
//! fills vector registers. Times are whole numbers in `f64`: the smallest instruction set of x86-64
//! has a vector maximum for these and none for integers of 64 bits, and up to 2^53 ns (104 days) they
//! are exact. Infinity is "never".

use std::ops::Range;

use slicescheduler_gmg::units::Nanos;

use super::order::Network;
use super::record::{GANG, NEVER};
use super::steps::Steps;
use super::{LaneRef, OpRef, Schedule, ScheduleError};

/// Times up to this are exact.
const EXACT: u64 = 1 << 53;

/// In one scenario, an operator takes another time than in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScenarioChange {
    /// Which scenario, below the number of scenarios.
    pub scenario: usize,
    /// Which operator. The rest of its group takes as long.
    pub op: OpRef,
    /// How long it takes, at least 1 ns; [`Nanos::MAX`] if it never finishes.
    pub duration: Nanos,
}

/// What happens in `N` scenarios. Reused from one sweep to the next.
#[derive(Clone, Debug, Default)]
pub struct Scenarios<const N: usize> {
    finish: Vec<[f64; N]>,
    free_at: Vec<[f64; N]>,
    changes: Vec<(u32, u32, f64)>,
}

impl<const N: usize> Scenarios<N> {
    /// Sweeps `schedule` once for all scenarios. Later changes of the same operator in the same
    /// scenario replace earlier ones. O(operators + edges) vector operations.
    ///
    /// # Errors
    /// When a change names no operator or a scenario from `N` on, the schedule was rewired since
    /// its order was found, or a scenario could last more than 2^53 ns.
    pub fn sweep(&mut self, schedule: &Schedule, changes: &[ScenarioChange]) -> Result<(), ScheduleError> {
        let steps = schedule.steps()?;
        self.changes.clear();
        let mut longest = schedule.longest();
        for change in changes {
            let known = schedule.records.get(change.op.0 as usize).is_some_and(|record| record.is_operator());
            if !known || change.scenario >= N {
                return Err(ScheduleError::NoSuchOp(change.op));
            }
            if change.duration.0 != NEVER {
                longest = longest.saturating_add(change.duration.0);
            }
            let step = steps.step_of[schedule.leader(change.op.0) as usize];
            self.changes.push((step, change.scenario as u32, time(change.duration.0.max(1))));
        }
        if longest >= EXACT {
            return Err(ScheduleError::TooLong { most: Nanos(EXACT), asked: Nanos(longest) });
        }
        self.changes.sort_by_key(|&(step, ..)| step);
        self.finish.resize(steps.places, [0.0; N]);
        for (place, &fixed) in (steps.count()..).zip(&schedule.fixed) {
            self.finish[place] = [time(schedule.records[fixed as usize].release); N];
        }
        self.free_at.clear();
        self.free_at.extend(schedule.lanes.iter().map(|&head| [time(schedule.record(head).release); N]));
        let (finish, free_at) = (&mut self.finish[..], &mut self.free_at[..]);
        let mut from = 0;
        for of_step in self.changes.chunk_by(|one, other| one.0 == other.0) {
            let step = of_step[0].0 as usize;
            sweep_range(steps, from..step, free_at, finish);
            let mut durations = [time(steps.durations[step]); N];
            for &(_, scenario, duration) in of_step {
                durations[scenario as usize] = duration;
            }
            take(steps, step, &durations, free_at, finish);
            from = step + 1;
        }
        sweep_range(steps, from..steps.count(), free_at, finish);
        Ok(())
    }

    /// When `op` of `schedule`, which was swept last, finishes in `scenario`; [`Nanos::MAX`] if
    /// never, zero if there is no such operator or scenario.
    pub fn finish(&self, schedule: &Schedule, op: OpRef, scenario: usize) -> Nanos {
        let step = schedule.steps().ok().and_then(|steps| steps.step_of.get(op.0 as usize));
        let row = step.and_then(|&step| self.finish.get(step as usize));
        row.and_then(|row| row.get(scenario)).map_or(Nanos::ZERO, |&finish| nanos(finish))
    }

    /// When the last operator of `lane` finishes in `scenario`.
    pub fn lane_end(&self, lane: LaneRef, scenario: usize) -> Nanos {
        let row = self.free_at.get(lane.0 as usize);
        row.and_then(|row| row.get(scenario)).map_or(Nanos::ZERO, |&free_at| nanos(free_at))
    }
}

/// Steps that take the same time in all scenarios.
fn sweep_range<const N: usize>(steps: &Steps, range: Range<usize>, free_at: &mut [[f64; N]], finish: &mut [[f64; N]]) {
    if range.is_empty() {
        return;
    }
    let begins = &steps.pred_begins[range.start..=range.end];
    let columns = steps.lanes[range.clone()].iter().zip(&steps.durations[range.clone()]);
    let columns = columns.zip(&steps.releases[range.clone()]).zip(begins.windows(2));
    for (step, (((&lane, &duration), &release), begins)) in range.zip(columns) {
        if lane & GANG != 0 {
            take(steps, step, &[time(duration); N], free_at, finish);
            continue;
        }
        let free_at = &mut free_at[lane as usize];
        let mut ready = [time(release); N];
        raise(&mut ready, free_at);
        for &pred in &steps.preds[begins[0] as usize..begins[1] as usize] {
            raise(&mut ready, &finish[pred as usize]);
        }
        let duration = time(duration);
        ready.iter_mut().for_each(|ready| *ready += duration);
        *free_at = ready;
        finish[step] = ready;
    }
}

/// One step with a duration per scenario.
fn take<const N: usize>(
    steps: &Steps,
    step: usize,
    durations: &[f64; N],
    free_at: &mut [[f64; N]],
    finish: &mut [[f64; N]],
) {
    let mut ready = [time(steps.releases[step]); N];
    for &pred in steps.preds_of(step) {
        raise(&mut ready, &finish[pred as usize]);
    }
    let lane = steps.lanes[step];
    let alone = [(lane, step as u32)];
    let members = if lane & GANG == 0 { &alone[..] } else { steps.members_of(lane) };
    for &(lane, _) in members {
        raise(&mut ready, &free_at[lane as usize]);
    }
    ready.iter_mut().zip(durations).for_each(|(ready, duration)| *ready += duration);
    for &(lane, place) in members {
        free_at[lane as usize] = ready;
        finish[place as usize] = ready;
    }
}

#[inline(always)]
fn raise<const N: usize>(values: &mut [f64; N], others: &[f64; N]) {
    for (value, &other) in values.iter_mut().zip(others) {
        // Not `f64::max`, which has to look for NaN.
        *value = if other > *value { other } else { *value };
    }
}

fn time(nanos: u64) -> f64 {
    if nanos == NEVER { f64::INFINITY } else { nanos as i64 as f64 }
}

fn nanos(time: f64) -> Nanos {
    if time == f64::INFINITY { Nanos::MAX } else { Nanos(time as u64) }
}
