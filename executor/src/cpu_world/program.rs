//! A job's operators as a lane runs them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{ExecutorError, Result};
use crate::lane::Program;
use crate::registry::{Call, Space};

/// How far a job has come; shared by its entries on lanes and the world.
#[derive(Debug)]
pub(super) struct Progress {
    /// The next operator. Entries of a job are on one lane, and whoever hands a job to another one
    /// has seen its event, so it is never read while it is written.
    next: AtomicU32,
    /// What its last operator sampled.
    sampled: Mutex<Vec<u32>>,
}

impl Progress {
    /// A job whose operators before `next` have run.
    pub(super) fn new(next: u32) -> Self {
        Self { next: AtomicU32::new(next), sampled: Mutex::default() }
    }

    /// The sampled tokens, in the order of the rows that emit; none before the last operator.
    pub(super) fn take_sampled(&self) -> Vec<u32> {
        std::mem::take(&mut *self.sampled.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The operators of one launch, over the memory that the graph granted to its job.
///
/// Made only by the world, which holds the claims on the activations, the weight slot and the
/// batch's own blocks for the lane until the entry has been reported: that is what the unsafe
/// blocks here rely on. A lane runs one operator at a time.
pub(super) struct Launched {
    space: Space,
    /// Blocks that hold another tenant's tokens.
    clear: Vec<u32>,
    progress: Arc<Progress>,
}

impl Launched {
    pub(super) fn new(space: Space, clear: Vec<u32>, progress: Arc<Progress>) -> Self {
        Self { space, clear, progress }
    }

    /// Writes what the host gives to the job. Not later: the places serve other tensors then.
    fn fill_inputs(&self) -> Result<()> {
        let (ports, batch) = (self.space.model.model.ports(), &self.space.batch);
        // SAFETY: the activations are claimed for this lane.
        let mut operands = unsafe { self.space.arena.operands_within(self.space.activations) };
        let inputs = [
            (ports.token_ids, &batch.tokens),
            (ports.positions, &batch.positions),
            (ports.logit_rows, &batch.logit_rows),
        ];
        for (tensor, values) in inputs {
            let region = self.space.region(tensor).unwrap_or_default();
            let place = operands.write::<u32>(region)?;
            if place.len() != values.len() {
                return Err(ExecutorError::OperandLength {
                    kernel: "inputs",
                    operand: "rows",
                    found: values.len(),
                    expected: place.len(),
                });
            }
            place.copy_from_slice(values);
        }
        Ok(())
    }

    /// Copies what the host is to have out of the activations, which others get next.
    fn keep_sampled(&self) -> Result<()> {
        let region = self.space.region(self.space.model.model.ports().next_ids).unwrap_or_default();
        // SAFETY: the activations are claimed for this lane.
        let mut operands = unsafe { self.space.arena.operands_within(self.space.activations) };
        let ids = operands.read::<u32>(region)?;
        let mut sampled = self.progress.sampled.lock().unwrap_or_else(PoisonError::into_inner);
        sampled.clear();
        sampled.extend_from_slice(ids);
        Ok(())
    }

    fn clear_blocks(&mut self) -> Result<()> {
        for block in self.clear.drain(..) {
            let region = self.space.pool.block(block);
            // SAFETY: the block is claimed for this lane.
            unsafe { self.space.arena.clear_shared(region)? };
        }
        Ok(())
    }
}

impl Program for Launched {
    fn len(&self) -> u32 {
        self.space.model.ops.len() as u32
    }

    fn step(&mut self, op: u32) -> Result<()> {
        let next = self.progress.next.load(Ordering::Relaxed);
        if next != op {
            return Err(ExecutorError::NotReached { op, next });
        }
        self.clear_blocks()?;
        if op == 0 {
            self.fill_inputs()?;
        }
        if let Some(bound) = self.space.model.ops.get(op as usize) {
            // SAFETY: activations and blocks are claimed for this lane, the weight slot against
            // writers.
            let mut call = unsafe { Call::new(&self.space, bound) };
            bound.kernel.run(&mut call)?;
        }
        self.progress.next.store(op + 1, Ordering::Relaxed);
        if op + 1 == self.len() { self.keep_sampled() } else { Ok(()) }
    }
}
