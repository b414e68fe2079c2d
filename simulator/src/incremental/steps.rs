//! A sweep: every operator once, in the order of starts.
//!
//! The order is kept as columns, so that a sweep streams through memory; what it looks up, the lanes
//! and the operators of a moment ago, is small enough to stay in the cache. A group is one step on
//! several lanes.

use std::ops::Range;

use super::order::Network;
use super::record::GANG;
use super::{LaneRef, Schedule};

/// A step that differs from what the columns say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edit {
    pub(super) step: u32,
    pub(super) duration: u64,
    pub(super) release: u64,
}

/// The operators in the order of their starts. Behind the steps there are places for the records
/// that are no operators, and for the members of groups that are not leaders.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps {
    /// The operator of each step; of a group, its leader.
    pub(super) ops: Vec<u32>,
    pub(super) durations: Vec<u64>,
    /// Of a group, the latest of its members' releases.
    pub(super) releases: Vec<u64>,
    /// The lane of each step; of a group, its row of `members` with the flag [`GANG`].
    pub(super) lanes: Vec<u32>,
    groups: Vec<Range<u32>>,
    /// Lane and place of each member.
    members: Vec<(u32, u32)>,
    /// Where the rows of `preds` begin; one more than there are steps.
    pub(super) pred_begins: Vec<u32>,
    /// Steps, or the places behind them.
    pub(super) preds: Vec<u32>,
    /// By record; for those that have no step, their place.
    pub(super) step_of: Vec<u32>,
    /// Steps and places.
    pub(super) places: usize,
}

impl Steps {
    /// The steps for `order`, in which every operator comes behind its inputs.
    pub(super) fn new(schedule: &Schedule, order: Vec<u32>) -> Self {
        let mut lane_of = vec![0u32; schedule.records.len()];
        for lane in 0..schedule.lanes.len() as u32 {
            schedule.lane_ops(LaneRef(lane)).for_each(|op| lane_of[op.0 as usize] = lane);
        }
        let mut steps = Self { step_of: vec![0; schedule.records.len()], ..Self::default() };
        for (place, &fixed) in (order.len() as u32..).zip(&schedule.fixed) {
            steps.step_of[fixed as usize] = place;
        }
        steps.places = order.len() + schedule.fixed.len();
        for (step, &op) in (0..).zip(&order) {
            steps.step_of[op as usize] = step;
            for member in schedule.unit(op).filter(|&member| member != op) {
                steps.step_of[member as usize] = steps.places as u32;
                steps.places += 1;
            }
        }
        for &op in &order {
            steps.pred_begins.push(steps.preds.len() as u32);
            steps.durations.push(schedule.records[op as usize].duration);
            steps.releases.push(schedule.unit_release(op));
            let lane = match schedule.gang_of(op) {
                None => lane_of[op as usize],
                Some(_) => {
                    let first = steps.members.len() as u32;
                    let member = |op: u32| (lane_of[op as usize], steps.step_of[op as usize]);
                    steps.members.extend(schedule.unit(op).map(member));
                    steps.groups.push(first..steps.members.len() as u32);
                    GANG | (steps.groups.len() - 1) as u32
                }
            };
            steps.lanes.push(lane);
            for member in schedule.unit(op) {
                schedule.each_pred(member, |pred| {
                    if pred & GANG == 0 {
                        steps.preds.push(steps.step_of[pred as usize]);
                    }
                });
            }
        }
        steps.pred_begins.push(steps.preds.len() as u32);
        steps.ops = order;
        steps
    }

    pub(super) fn count(&self) -> usize {
        self.ops.len()
    }

    /// Lanes and places of the members of a group.
    pub(super) fn members_of(&self, group: u32) -> &[(u32, u32)] {
        let range = self.groups.get((group & !GANG) as usize).cloned().unwrap_or_default();
        &self.members[range.start as usize..range.end as usize]
    }

    pub(super) fn preds_of(&self, step: usize) -> &[u32] {
        &self.preds[self.pred_begins[step] as usize..self.pred_begins[step + 1] as usize]
    }

    /// Fills `finish` in, one value per step. `free_at` says from when on each lane is free, and
    /// the values behind the steps in `finish` are given. `edits` are ascending.
    pub(super) fn sweep(&self, edits: &[Edit], free_at: &mut [u64], finish: &mut [u64]) {
        let mut from = 0;
        for edit in edits {
            let step = edit.step as usize;
            self.sweep_range(from..step, free_at, finish);
            self.take(step, edit.duration, edit.release, free_at, finish);
            from = step + 1;
        }
        self.sweep_range(from..self.count(), free_at, finish);
    }

    fn sweep_range(&self, range: Range<usize>, free_at: &mut [u64], finish: &mut [u64]) {
        if range.is_empty() {
            return;
        }
        let begins = &self.pred_begins[range.start..=range.end];
        let columns = self.lanes[range.clone()].iter().zip(&self.durations[range.clone()]);
        let columns = columns.zip(&self.releases[range.clone()]).zip(begins.windows(2));
        for (step, (((&lane, &duration), &release), begins)) in range.zip(columns) {
            if lane & GANG != 0 {
                self.take(step, duration, release, free_at, finish);
                continue;
            }
            let free_at = &mut free_at[lane as usize];
            let mut ready = release.max(*free_at);
            for &pred in &self.preds[begins[0] as usize..begins[1] as usize] {
                ready = ready.max(finish[pred as usize]);
            }
            *free_at = ready.saturating_add(duration);
            finish[step] = *free_at;
        }
    }

    fn take(&self, step: usize, duration: u64, release: u64, free_at: &mut [u64], finish: &mut [u64]) {
        let ready = self.preds_of(step).iter().map(|&pred| finish[pred as usize]).fold(release, u64::max);
        let lane = self.lanes[step];
        let alone = [(lane, step as u32)];
        let members = if lane & GANG == 0 { &alone[..] } else { self.members_of(lane) };
        let ready = members.iter().map(|&(lane, _)| free_at[lane as usize]).fold(ready, u64::max);
        let end = ready.saturating_add(duration);
        for &(lane, place) in members {
            free_at[lane as usize] = end;
            finish[place as usize] = end;
        }
    }
}
