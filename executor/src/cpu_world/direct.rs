//! The operators of one sequence, one after the other on the calling thread.

use std::sync::Arc;

use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::Bytes;

use super::program::{Results, fill_inputs, results};
use crate::arena::{Arena, Region};
use crate::backend::Memory;
use crate::error::{ExecutorError, Result};
use crate::kernels::{KvPool, Parts, Sampling};
use crate::model::CpuModel;
use crate::registry::{Batch, Call, KernelRegistry, Space};

/// Tokens of a KV block.
const BLOCK_TOKENS: u32 = 16;

/// A decoder with one sequence and nothing around it: no graph, no lane, no thread, no other tenant.
///
/// What [`CpuWorld`](super::CpuWorld) computes is held against it, in tokens and in time. The kernels
/// are the same, so the tokens are.
///
/// ```
/// use std::sync::Arc;
///
/// use slicescheduler_executor::cpu_world::Direct;
/// use slicescheduler_executor::model::{CpuModel, SeededWeights};
/// use slicescheduler_executor::registry::KernelRegistry;
/// use slicescheduler_gmg::templates::{DenseSpec, dense};
///
/// let spec = DenseSpec::tiny();
/// let model = CpuModel::decoder(&spec, Arc::new(dense(&spec)?), &SeededWeights::new(7))?;
/// let mut direct = Direct::new(model, &KernelRegistry::cpu(), 64, 8)?;
/// let first = direct.step(&[72, 101, 108, 108, 111])?;
/// let second = direct.step(&[first])?;
/// direct.restart();
/// assert_eq!(direct.step(&[72, 101, 108, 108, 111, first])?, second);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Direct {
    space: Space,
    /// Tokens that are in the cache.
    computed: u32,
    context: u32,
    chunk: u32,
}

impl Direct {
    /// Room for a sequence of `context` tokens, of which at most `chunk` are computed in a step; all
    /// memory is allocated here.
    ///
    /// # Errors
    /// When an operator has no kernel, the model has no such context or gives no tokens, or there is no
    /// memory.
    pub fn new(model: CpuModel, kernels: &KernelRegistry, context: u32, chunk: u32) -> Result<Self> {
        let (most, kernel) = (model.max_context(), "direct");
        if context == 0 || context > most {
            let (dimension, requirement) = ("context", "at least 1 and at most what the model has");
            return Err(ExecutorError::Dimension { kernel, dimension, value: context as usize, requirement });
        }
        let chunk = chunk.clamp(1, context);
        let widest = model.template().activation_layout(&Binding::iteration(chunk.into(), 1, context.into(), 1));
        let blocks = context.div_ceil(BLOCK_TOKENS);
        let block_bytes = model.kv_block_bytes(BLOCK_TOKENS);
        let slot = Region::new(Bytes::ZERO, model.slot_bytes());
        let activations = Region::new(aligned(slot.end()), widest.peak());
        let kv = Region::new(aligned(activations.end()), block_bytes.times(blocks.into()));
        let arena = Arena::new(kv.end())?;
        // SAFETY: the image is never written, and nobody else has the arena yet.
        unsafe { arena.write(slot.offset, model.image().read_shared(slot)?)? };
        let space = Space {
            arena: Arc::new(arena),
            activations,
            layout: widest,
            slot,
            pool: KvPool { region: kv, block_bytes },
            kv_layout: model.kv_layout(BLOCK_TOKENS),
            model: Arc::new(kernels.bind(model, context)?),
            batch: Batch { own: (0..blocks).collect(), blocks: (0..blocks).collect(), ..Batch::default() },
        };
        Ok(Self { space, computed: 0, context, chunk })
    }

    /// Computes the next tokens of the sequence and returns the one that is most likely behind them.
    ///
    /// # Errors
    /// When there are none, or more than a step or the sequence has room for, or an operator fails.
    pub fn step(&mut self, tokens: &[u32]) -> Result<u32> {
        let room = self.chunk.min(self.context - self.computed);
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        if count == 0 || count > room {
            let (dimension, requirement) = ("tokens", "at least 1 and at most the room of a step and of the sequence");
            return Err(ExecutorError::Dimension { kernel: "direct", dimension, value: tokens.len(), requirement });
        }
        let end = self.computed + count;
        let binding = {
            let mut binding = Binding::new();
            binding.add_chunk(count.into(), self.computed.into(), true);
            binding
        };
        let space = &mut self.space;
        space.layout = space.model.model.template().activation_layout(&binding);
        space.batch.tokens = tokens.to_vec();
        space.batch.positions = (self.computed..end).collect();
        space.batch.logit_rows = vec![count - 1];
        space.batch.choices = vec![(Sampling::GREEDY, end)];
        space.batch.lengths = vec![count];
        space.batch.first_rows = vec![0];
        space.batch.sequences = vec![0; tokens.len()];
        space.batch.table_starts = vec![0, space.batch.blocks.len() as u32];
        // SAFETY: `self` is borrowed exclusively and nobody else has its arena.
        let results = unsafe {
            fill_inputs(space)?;
            for op in &space.model.ops {
                op.kernel.run(&mut Call::new(space, op, Parts::all()))?;
            }
            results(space)?
        };
        self.computed = end;
        match results {
            Results::Tokens(tokens) => tokens.first().copied(),
            Results::Embeddings(_) => None,
        }
        .ok_or(ExecutorError::NoOperand { side: "outputs", index: 0, expected: "a token" })
    }

    /// Forgets the sequence.
    pub fn restart(&mut self) {
        self.computed = 0;
    }
}

/// The next boundary on which kernels want a region to start.
fn aligned(offset: Bytes) -> Bytes {
    Bytes(offset.get().next_multiple_of(crate::arena::ARENA_ALIGN as u64))
}
