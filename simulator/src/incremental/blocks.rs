//! Stretches of a lane that a shift passes through in one step.
//!
//! A block is [`LENGTH`] operators that follow one another on a lane, and in memory, without an edge
//! to another lane, a group, or an effect. Whatever time `t` the lane reaches it, it leaves at
//! `max(t + sum, floor)`: `sum` are its durations, `floor` is when it ends if the lane is free from
//! the beginning of time. A shift along a lane therefore costs one evaluation per block. The operators
//! inside are computed when somebody asks; until then the block is *stale*, except for its first and its last
//! operator. A trial that changes something inside a block *opens* it: it goes operator by operator
//! there.

use super::order::Network;
use super::record::{MORE_IN, MORE_OUT, NEVER, Record};
use super::{Schedule, Trial};

/// Operators in a block.
const LENGTH: u32 = 64;

#[derive(Clone, Copy, Debug)]
struct Block {
    /// [`NEVER`] if the operators are not alone with each other, or one of them never finishes.
    sum: u64,
    floor: u64,
}

/// The blocks of a schedule: block `n` has the records from `n * LENGTH` on.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks(Vec<Block>);

/// What a trial did to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    /// Every finish in it is what it should be.
    Current,
    /// Only the first and the last one are.
    Stale,
    /// Something in it was changed.
    Open,
}

impl Blocks {
    pub(super) fn new(schedule: &Schedule) -> Self {
        let count = schedule.records.len() as u32 / LENGTH;
        Self((0..count).map(|block| Block::new(schedule, block)).collect())
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// A record in the block of `op` was changed.
    pub(super) fn refresh(schedule: &mut Schedule, op: u32) {
        let block = op / LENGTH;
        if (block as usize) < schedule.blocks.0.len() {
            schedule.blocks.0[block as usize] = Block::new(schedule, block);
        }
    }
}

impl Block {
    const NONE: Self = Self { sum: NEVER, floor: NEVER };

    fn new(schedule: &Schedule, block: u32) -> Self {
        let first = block * LENGTH;
        let (mut sum, mut floor) = (0u64, 0u64);
        for op in first..first + LENGTH {
            let record = &schedule.records[op as usize];
            let follows = op == first || record.prev() == op - 1;
            let row = |op: u32| schedule.links[op as usize];
            let alone = row(op) == row(op + 1) && record.prev & MORE_IN == 0 && record.next & MORE_OUT == 0;
            if !record.is_operator() || !follows || !alone || !schedule.effects_of(op).is_empty() {
                return Self::NONE;
            }
            sum = sum.saturating_add(record.duration);
            floor = floor.max(record.release).saturating_add(record.duration);
        }
        Self { sum, floor }
    }
}

impl Trial<'_> {
    /// If a block that may be passed in one step begins with `op`: when that operator finishes, the
    /// last operator, and when that finishes.
    pub(super) fn block_from(&self, op: u32) -> Option<(u64, u32, u64)> {
        let block = (op / LENGTH) as usize;
        if !op.is_multiple_of(LENGTH) || self.scratch.blocks.get(block).is_none_or(|state| *state == BlockState::Open) {
            return None;
        }
        let Block { sum, floor } = *self.base.blocks.0.get(block)?;
        if sum == NEVER {
            return None;
        }
        let record = self.record(op);
        let reached = self.finish_of(record.prev());
        Some((record.finish_after(reached), op + LENGTH - 1, reached.saturating_add(sum).max(floor)))
    }

    /// The operators of the block that begins with `op` are not computed.
    pub(super) fn leave_stale(&mut self, op: u32) {
        self.set_state(op / LENGTH, BlockState::Stale);
    }

    /// The record with its finish, also inside a stale block.
    pub(super) fn current(&self, op: u32) -> Record {
        let mut record = self.view(op);
        let first = op / LENGTH * LENGTH;
        if self.state(op) == BlockState::Stale && op != first && op != first + LENGTH - 1 {
            let reached = self.finish_of(self.record(first).prev());
            record.finish = (first..=op).fold(reached, |reached, op| self.record(op).finish_after(reached));
        }
        record
    }

    /// Something in the block of `op` is about to be changed.
    pub(super) fn open(&mut self, op: u32) {
        let state = self.state(op);
        if state == BlockState::Open || op as usize >= self.scratch.blocks.len() * LENGTH as usize {
            return;
        }
        if state == BlockState::Stale {
            self.compute_block(op / LENGTH);
        }
        if self.base.blocks.0[(op / LENGTH) as usize].sum != NEVER {
            self.set_state(op / LENGTH, BlockState::Open);
        }
    }

    /// Computes what is stale.
    pub(super) fn compute_blocks(&mut self) {
        for place in 0..self.scratch.block_log.len() {
            let block = self.scratch.block_log[place].0;
            if self.state(block * LENGTH) == BlockState::Stale {
                self.compute_block(block);
                self.set_state(block, BlockState::Current);
            }
        }
    }

    /// All finishes are computed by other means.
    pub(super) fn close_blocks(&mut self) {
        for place in 0..self.scratch.block_log.len() {
            let block = self.scratch.block_log[place].0;
            if self.state(block * LENGTH) == BlockState::Stale {
                self.set_state(block, BlockState::Current);
            }
        }
    }

    fn compute_block(&mut self, block: u32) {
        let first = block * LENGTH;
        let mut reached = self.finish_of(self.record(first).prev());
        for op in first..first + LENGTH {
            let record = self.view(op);
            reached = record.finish_after(reached);
            if reached != record.finish {
                self.set_finish(op, reached);
            }
        }
    }

    fn state(&self, op: u32) -> BlockState {
        self.scratch.blocks.get((op / LENGTH) as usize).copied().unwrap_or(BlockState::Current)
    }

    fn set_state(&mut self, block: u32, state: BlockState) {
        let was = std::mem::replace(&mut self.scratch.blocks[block as usize], state);
        if was != state {
            self.scratch.block_log.push((block, was));
        }
    }
}

impl Record {
    /// When it finishes if its lane is free from `reached` on.
    fn finish_after(&self, reached: u64) -> u64 {
        reached.max(self.release).saturating_add(self.duration)
    }
}
