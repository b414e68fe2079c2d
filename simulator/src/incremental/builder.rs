//! From lanes, operators and edges to a schedule.

use std::ops::Range;

use slicescheduler_gmg::units::{Bytes, Nanos};

use super::blocks::Blocks;
use super::order::discover;
use super::record::{Effect, GANG, Hold, ID, Lateness, ORIGIN, Record};
use super::steps::Steps;
use super::usage::Usage;
use super::{AccountRef, LaneRef, OpRef, Schedule, ScheduleError};

/// Collects a schedule lane by lane, so that what follows each other on a lane lies together.
#[derive(Clone, Debug)]
pub struct ScheduleBuilder {
    records: Vec<Record>,
    lanes: Vec<u32>,
    edges: Vec<(u32, u32)>,
    gangs: Vec<Vec<u32>>,
    effects: Vec<(u32, Effect)>,
    accounts: Vec<(Bytes, Bytes)>,
}

impl Default for ScheduleBuilder {
    fn default() -> Self {
        Self {
            records: vec![Record::REMOVED],
            lanes: Vec::new(),
            edges: Vec::new(),
            gangs: Vec::new(),
            effects: Vec::new(),
            accounts: Vec::new(),
        }
    }
}

impl ScheduleBuilder {
    /// Begins a lane that is free from `free_at` on. Operators that are pushed from now on are its.
    pub fn lane(&mut self, free_at: Nanos) -> LaneRef {
        let head = self.records.len() as u32;
        self.records.push(Record { release: free_at.0, finish: free_at.0, prev: head, next: head, ..Record::REMOVED });
        self.lanes.push(head);
        LaneRef((self.lanes.len() - 1) as u32)
    }

    /// Appends an operator to the lane that was begun last. It does not start before `release` and
    /// takes `duration`, at least 1 ns. Before any lane was begun, it gets a lane of its own.
    pub fn push(&mut self, duration: Nanos, release: Nanos) -> OpRef {
        if self.lanes.is_empty() {
            self.lane(Nanos::ZERO);
        }
        let head = self.lanes[self.lanes.len() - 1];
        let op = self.records.len() as u32;
        let prev = self.records[head as usize].prev;
        self.records.push(Record { finish: 0, release: release.0, duration: duration.0.max(1), prev, next: head });
        self.records[prev as usize].next = op;
        self.records[head as usize].prev = op;
        OpRef(op)
    }

    /// `to` does not start before `from` has finished. Edges between neighbours of a lane are not
    /// needed.
    pub fn edge(&mut self, from: OpRef, to: OpRef) -> &mut Self {
        self.edges.push((from.0, to.0));
        self
    }

    /// Makes operators on different lanes one: a collective, or an operator that is sharded over
    /// devices. Each holds its lane from its own arrival; they finish together, as long after the
    /// last arrival as the longest of them takes.
    pub fn gang(&mut self, members: &[OpRef]) -> &mut Self {
        self.gangs.push(members.iter().map(|member| member.0).collect());
        self
    }

    /// Adds a part of a device's memory of which `used` bytes are in use at time zero.
    pub fn account(&mut self, used: Bytes, limit: Bytes) -> AccountRef {
        self.accounts.push((used, limit));
        AccountRef((self.accounts.len() - 1) as u32)
    }

    /// Bytes that `op` takes when it starts and frees when it finishes. Of a group, it takes them
    /// when the group starts.
    pub fn hold(&mut self, op: OpRef, hold: Hold) -> &mut Self {
        self.effects.push((op.0, hold.into()));
        self
    }

    /// `op` should finish by `due`.
    pub fn due(&mut self, op: OpRef, due: Nanos) -> &mut Self {
        self.effects.push((op.0, Effect::Due(due.0)));
        self
    }

    /// Computes the schedule. O(operators * log operators + edges).
    ///
    /// # Errors
    /// When operators wait for each other, a reference is not of this builder, an operator is in
    /// two groups, or there are more operators than fit.
    pub fn build(self) -> Result<Schedule, ScheduleError> {
        let count = self.records.len();
        if count >= ID as usize {
            return Err(ScheduleError::TooLarge { most: ID as usize - 1, asked: count - 1 });
        }
        self.check()?;
        let Self { mut records, lanes, mut edges, gangs, mut effects, accounts } = self;
        let mut members = Vec::new();
        let mut ranges: Vec<Range<u32>> = Vec::with_capacity(gangs.len());
        for gang in &gangs {
            let first = members.len() as u32;
            let longest = gang.iter().map(|&member| records[member as usize].duration).max().unwrap_or(1);
            for &member in gang {
                records[member as usize].duration = longest;
                edges.push((GANG | ranges.len() as u32, member));
            }
            members.extend_from_slice(gang);
            ranges.push(first..members.len() as u32);
        }
        let (links, preds, succs) = rows(count, &edges);
        effects.sort_by_key(|(op, _)| *op);
        let effect_begin = if effects.is_empty() { Vec::new() } else { row_begins(count, &effects) };
        let mut schedule = Schedule {
            records,
            links,
            preds,
            succs,
            gangs: ranges,
            members,
            lanes,
            steps: Steps::default(),
            steps_hold: false,
            blocks: Blocks::default(),
            more: Default::default(),
            effect_begin,
            effects: effects.into_iter().map(|(_, effect)| effect).collect(),
            usages: Vec::new(),
            late: Lateness::default(),
            fixed: Vec::new(),
            version: 0,
        };
        schedule.fixed = std::iter::once(ORIGIN).chain(schedule.lanes.iter().copied()).collect();
        let order = discover(&schedule)?;
        schedule.fill_in(&order);
        schedule.find_order()?;
        schedule.usages = accounts.into_iter().map(|(used, limit)| Usage::new(used, limit)).collect();
        schedule.count_effects();
        schedule.blocks = Blocks::new(&schedule);
        Ok(schedule)
    }

    fn check(&self) -> Result<(), ScheduleError> {
        let mut grouped = vec![false; self.records.len()];
        let known = |op: u32| match self.records.get(op as usize) {
            Some(record) if record.is_operator() => Ok(()),
            _ => Err(ScheduleError::NoSuchOp(OpRef(op))),
        };
        for &(from, to) in &self.edges {
            known(from)?;
            known(to)?;
        }
        for &(op, effect) in &self.effects {
            known(op)?;
            match effect {
                Effect::Hold { account, .. } if account as usize >= self.accounts.len() => {
                    return Err(ScheduleError::NoSuchAccount(AccountRef(account)));
                }
                _ => {}
            }
        }
        for &member in self.gangs.iter().flatten() {
            known(member)?;
            if std::mem::replace(&mut grouped[member as usize], true) {
                return Err(ScheduleError::GroupedTwice(OpRef(member)));
            }
        }
        Ok(())
    }
}

/// Where the rows of predecessors and successors begin, and the rows. Groups come as edges from
/// their number with [`GANG`], which appear as predecessors only.
fn rows(count: usize, edges: &[(u32, u32)]) -> (Vec<[u32; 2]>, Vec<u32>, Vec<u32>) {
    let mut links = vec![[0u32; 2]; count + 1];
    for &(from, to) in edges {
        links[to as usize + 1][0] += 1;
        if from & GANG == 0 {
            links[from as usize + 1][1] += 1;
        }
    }
    for row in 0..count {
        let [preds, succs] = links[row];
        links[row + 1][0] += preds;
        links[row + 1][1] += succs;
    }
    let [pred_count, succ_count] = links[count];
    let (mut preds, mut succs) = (vec![0; pred_count as usize], vec![0; succ_count as usize]);
    let mut at = links.clone();
    for &(from, to) in edges {
        let place = &mut at[to as usize][0];
        preds[*place as usize] = from;
        *place += 1;
        if from & GANG == 0 {
            let place = &mut at[from as usize][1];
            succs[*place as usize] = to;
            *place += 1;
        }
    }
    (links, preds, succs)
}

fn row_begins(count: usize, sorted: &[(u32, Effect)]) -> Vec<u32> {
    let mut begins = vec![0u32; count + 1];
    for (op, _) in sorted {
        begins[*op as usize + 1] += 1;
    }
    for row in 0..count {
        begins[row + 1] += begins[row];
    }
    begins
}
