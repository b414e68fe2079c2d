//! A job's operators as a lane runs them.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use slicescheduler_gmg::id::LaneId;

use super::kept_kv::Keeping;
use crate::error::{ExecutorError, Result};
use crate::fault::{Fault, Faults, Point};
use crate::kernels::Parts;
use crate::lane::{Program, Step, Wanted};
use crate::model::{Input, Output};
use crate::registry::{Call, Space};

/// What a job leaves, in the order of the rows that emit.
#[derive(Debug)]
pub(super) enum Results {
    Tokens(Vec<u32>),
    Embeddings(Vec<Arc<[f32]>>),
}

impl Default for Results {
    fn default() -> Self {
        Self::Tokens(Vec::new())
    }
}

/// How far a job has come; shared by its entries on lanes and the world.
#[derive(Debug)]
pub(super) struct Progress {
    /// The next operator. Entries of a job are on one lane, and whoever hands a job to another one
    /// has seen its event, so it is never read while it is written.
    next: AtomicU32,
    /// Of the next operator, the part that is next.
    part: AtomicUsize,
    /// What its last operator left.
    results: Mutex<Results>,
}

impl Progress {
    /// A job whose operators before `next` have run, and of that one the parts before `part`.
    pub(super) fn new(next: u32, part: usize) -> Self {
        Self { next: AtomicU32::new(next), part: AtomicUsize::new(part), results: Mutex::default() }
    }

    /// The next operator, and its next part.
    pub(super) fn place(&self) -> (u32, usize) {
        (self.next.load(Ordering::Relaxed), self.part.load(Ordering::Relaxed))
    }

    /// What it left; no tokens before the last operator.
    pub(super) fn take_results(&self) -> Results {
        std::mem::take(&mut *self.results.lock().unwrap_or_else(PoisonError::into_inner))
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
    /// Sequences of which copies are kept.
    keepings: Vec<Keeping>,
    progress: Arc<Progress>,
    /// What goes wrong, and on which lane that is.
    faults: Option<(LaneId, Arc<dyn Faults>)>,
}

impl Launched {
    pub(super) fn new(space: Space, clear: Vec<u32>, progress: Arc<Progress>) -> Self {
        Self { space, clear, keepings: Vec::new(), progress, faults: None }
    }

    pub(super) fn with_faults(mut self, lane: LaneId, faults: Option<Arc<dyn Faults>>) -> Self {
        self.faults = faults.map(|faults| (lane, faults));
        self
    }

    pub(super) fn keeping(mut self, keepings: Vec<Keeping>) -> Self {
        self.keepings = keepings;
        self
    }

    /// Fills blocks from copies, once.
    fn restore(&mut self) -> Result<()> {
        for keeping in self.keepings.iter_mut().filter(|keeping| keeping.restore > 0) {
            let blocks = self.space.batch.own[keeping.own.clone()].iter().map(|&block| self.space.pool.block(block));
            // SAFETY: the blocks are claimed for this lane.
            unsafe { keeping.kept.restore(&self.space.arena, blocks, keeping.restore)? };
            keeping.restore = 0;
        }
        Ok(())
    }

    /// Copies what has become full.
    fn keep(&self) -> Result<()> {
        for keeping in &self.keepings {
            let blocks = self.space.batch.own[keeping.own.clone()].iter().map(|&block| self.space.pool.block(block));
            // SAFETY: the blocks are claimed for this lane, and a sequence is in at most one job that runs.
            unsafe { keeping.kept.keep(&self.space.arena, blocks, keeping.end)? };
        }
        Ok(())
    }

    fn meet_faults(&self, op: u32) -> Result<()> {
        let Some((lane, faults)) = &self.faults else { return Ok(()) };
        match faults.at(Point::Operator { lane: *lane, op }) {
            None => Ok(()),
            Some(Fault::Fails) => Err(ExecutorError::MadeToFail { what: "the operator" }),
            // As a panic, without the words of the panic hook.
            Some(Fault::Panics) => std::panic::resume_unwind(Box::new("made to panic")),
            Some(Fault::LosesDevice) => Err(ExecutorError::DeviceLost(lane.device)),
            Some(Fault::PoisonsLane) => Err(ExecutorError::LanePoisoned),
        }
    }

    /// Runs the next operator, `op`, from the part on that is next; until the lane is `wanted`, if anybody says so.
    fn run(&mut self, op: u32, wanted: Option<&dyn Fn() -> bool>) -> Result<Step> {
        let (next, part) = self.progress.place();
        if next != op {
            return Err(ExecutorError::NotReached { op, next });
        }
        self.clear_blocks()?;
        self.restore()?;
        // An operator that fails, for whatever reason, leaves blocks that are its own tenant's: the world counts on it.
        self.meet_faults(op)?;
        if op == 0 && part == 0 {
            // SAFETY: the activations are claimed for this lane.
            unsafe { fill_inputs(&self.space)? };
        }
        if let Some(bound) = self.space.model.ops.get(op as usize) {
            let parts = Parts::from(part, wanted.unwrap_or(&|| false));
            // SAFETY: activations and blocks are claimed for this lane, the weight slot against
            // writers.
            let mut call = unsafe { Call::new(&self.space, bound, parts) };
            bound.kernel.run(&mut call)?;
            if let Some(part) = call.parts().left() {
                self.progress.part.store(part, Ordering::Relaxed);
                return Ok(Step::Stopped);
            }
        }
        self.progress.part.store(0, Ordering::Relaxed);
        self.progress.next.store(op + 1, Ordering::Relaxed);
        if op + 1 == self.space.model.ops.len() as u32 {
            // SAFETY: the activations are claimed for this lane.
            let results = unsafe { results(&self.space)? };
            self.keep()?;
            *self.progress.results.lock().unwrap_or_else(PoisonError::into_inner) = results;
        }
        Ok(Step::Done)
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

/// Writes what the host gives to a job. Before its first operator, not later: the places serve other
/// tensors then.
///
/// # Safety
/// Nobody else may touch the space's activations during the call.
pub(super) unsafe fn fill_inputs(space: &Space) -> Result<()> {
    let (ports, batch) = (space.model.model.ports(), &space.batch);
    // SAFETY: by this function's contract.
    let mut operands = unsafe { space.arena.operands_within(space.activations) };
    for &(tensor, input) in &ports.inputs {
        let region = space.region(tensor).unwrap_or_default();
        let place = operands.write::<u32>(region)?;
        let values = match input {
            Input::TokenIds => &batch.tokens,
            Input::Positions => &batch.positions,
            Input::LogitRows => &batch.logit_rows,
            Input::Lengths => &batch.lengths,
            Input::FirstRows => &batch.first_rows,
            Input::TokenTypes => {
                place.fill(0);
                continue;
            }
        };
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
///
/// # Safety
/// Nobody else may touch the space's activations during the call.
pub(super) unsafe fn results(space: &Space) -> Result<Results> {
    let output = space.model.model.ports().output;
    let (Output::Tokens(tensor) | Output::Embeddings(tensor)) = output;
    let region = space.region(tensor).unwrap_or_default();
    // SAFETY: by this function's contract.
    let mut operands = unsafe { space.arena.operands_within(space.activations) };
    Ok(match output {
        Output::Tokens(_) => Results::Tokens(operands.read::<u32>(region)?.to_vec()),
        Output::Embeddings(_) => {
            let (values, sequences) = (operands.read::<f32>(region)?, space.batch.lengths.len());
            let width = (values.len() / sequences.max(1)).max(1);
            Results::Embeddings(values.chunks(width).map(Arc::from).collect())
        }
    })
}

impl Program for Launched {
    fn len(&self) -> u32 {
        self.space.model.ops.len() as u32
    }

    fn step(&mut self, op: u32) -> Result<()> {
        self.run(op, None).map(|_| ())
    }

    fn step_until(&mut self, op: u32, wanted: &Wanted<'_>) -> Result<Step> {
        self.run(op, Some(&|| wanted.now()))
    }
}

#[cfg(test)]
mod tests {
    use slicescheduler_gmg::shape::Binding;
    use slicescheduler_gmg::templates::{DenseSpec, dense};
    use slicescheduler_gmg::units::Bytes;

    use super::*;
    use crate::arena::{Arena, Region};
    use crate::backend::Memory;
    use crate::kernels::{KvPool, Sampling};
    use crate::model::{CpuModel, SeededWeights};
    use crate::registry::{Batch, KernelRegistry};

    /// One token of one sequence whose block is number 1 of two that are full of ones.
    fn launched(arena: &Arc<Arena>, clear: Vec<u32>) -> Launched {
        let spec = DenseSpec::tiny();
        let template = Arc::new(dense(&spec).unwrap());
        let model = CpuModel::decoder(&spec, template.clone(), &SeededWeights::new(0)).unwrap();
        let block_bytes = model.kv_block_bytes(4);
        let pool = KvPool { region: Region::new(Bytes::mib(2), block_bytes.times(2)), block_bytes };
        let ones = vec![1; pool.region.size.get() as usize];
        // SAFETY: the test has the arena for itself.
        unsafe { arena.write(pool.region.offset, &ones).unwrap() };
        let batch = Batch {
            tokens: vec![5],
            positions: vec![0],
            logit_rows: vec![0],
            choices: vec![(Sampling::GREEDY, 1)],
            lengths: vec![1],
            first_rows: vec![0],
            sequences: vec![0],
            blocks: vec![0],
            table_starts: vec![0, 1],
            own: [1].into(),
        };
        let space = Space {
            arena: arena.clone(),
            activations: Region::new(Bytes::mib(1), Bytes::mib(1)),
            layout: template.activation_layout(&Binding::iteration(1, 1, 1, 1)),
            slot: Region::new(Bytes::ZERO, model.slot_bytes()),
            pool,
            kv_layout: model.kv_layout(4),
            model: Arc::new(KernelRegistry::cpu().bind(model, 64).unwrap()),
            batch,
        };
        Launched::new(space, clear, Arc::new(Progress::new(0, 0)))
    }

    fn blocks(arena: &Arena, program: &Launched) -> [Vec<u8>; 2] {
        [0, 1].map(|block| {
            let region = program.space.pool.block(block);
            let mut bytes = vec![9; region.size.get() as usize];
            // SAFETY: no lane runs.
            unsafe { arena.read(region.offset, &mut bytes).unwrap() };
            bytes
        })
    }

    #[test]
    fn blocks_of_another_tenant_are_zero_before_the_first_operator_and_no_others() {
        let arena = Arc::new(Arena::new(Bytes::mib(3)).unwrap());
        let mut program = launched(&arena, vec![1]);
        program.step(0).unwrap();
        let [other, own] = blocks(&arena, &program);
        assert!(own.iter().all(|&byte| byte == 0));
        assert!(other.iter().all(|&byte| byte == 1));
    }

    #[test]
    fn an_operator_whose_predecessors_have_not_run_touches_nothing() {
        let arena = Arc::new(Arena::new(Bytes::mib(3)).unwrap());
        let mut program = launched(&arena, vec![1]);
        assert!(matches!(program.step(4), Err(ExecutorError::NotReached { op: 4, next: 0 })));
        assert!(blocks(&arena, &program)[1].iter().all(|&byte| byte == 1));
        for op in 0..program.len() {
            program.step(op).unwrap();
        }
        assert!(matches!(program.progress.take_results(), Results::Tokens(tokens) if tokens.len() == 1));
    }
}
