//! The operands of one operator, at the places that were planned for them.

use std::cell::Cell;
use std::sync::Arc;

use slicescheduler_gmg::graph::ActivationLayout;
use slicescheduler_gmg::id::TensorId;
use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::units::Bytes;

use crate::arena::{Arena, Element, Operands, Region};
use crate::error::{ExecutorError, Result};
use crate::kernels::{
    ExpertMatrices, KvCache, KvLayout, KvPool, PanelMatrix, Parts, QuantMatrix, Sampling, TokenRows, WeightMatrix,
};
use crate::model::{Home, MatrixFormat, WeightShape};
use crate::registry::{BoundModel, BoundOp};

/// Inputs that an operator may have.
pub(super) const INPUTS: usize = u64::BITS as usize;

/// The rows of a job's batch, as the kernels take them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    /// Per row: its token.
    pub(crate) tokens: Vec<u32>,
    /// Per row: its position.
    pub(crate) positions: Vec<u32>,
    /// Rows that give an output token.
    pub(crate) logit_rows: Vec<u32>,
    /// Of each of those: how the token is chosen, and its position.
    pub(crate) choices: Vec<(Sampling, u32)>,
    /// Per sequence: its rows.
    pub(crate) lengths: Vec<u32>,
    /// Per sequence: its first row.
    pub(crate) first_rows: Vec<u32>,
    /// Per row: its sequence, a row of the block tables.
    pub(crate) sequences: Vec<u32>,
    /// Blocks of all sequences, numbered through.
    pub(crate) blocks: Vec<u32>,
    /// Where each sequence's blocks begin.
    pub(crate) table_starts: Vec<u32>,
    /// Which block of the pool each of `blocks` is.
    pub(crate) own: Arc<[u32]>,
}

/// The memory that a job was granted, and what it holds.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    pub(crate) arena: Arc<Arena>,
    /// The job's activations, for this lane only.
    pub(crate) activations: Region,
    /// The places of the tensors within them.
    pub(crate) layout: ActivationLayout,
    /// The weights, which nobody writes meanwhile.
    pub(crate) slot: Region,
    /// The device's KV blocks, of which the batch's own are for this lane only.
    pub(crate) pool: KvPool,
    pub(crate) kv_layout: KvLayout,
    pub(crate) model: Arc<BoundModel>,
    pub(crate) batch: Batch,
}

impl Space {
    /// Where an activation lies on the device.
    pub(crate) fn region(&self, tensor: TensorId) -> Option<Region> {
        let place = self.layout.region(self.model.model.template(), tensor)?;
        Some(Region::new(self.activations.offset + place.offset, place.bytes))
    }
}

/// The operands of an operator, for as long as it runs.
///
/// Activations are slices at their planned places; what is written is held once. Weights are read
/// from the model's slot. KV blocks are those of the batch's own sequences.
#[derive(Debug)]
pub struct Call<'a> {
    space: &'a Space,
    op: &'a BoundOp,
    operands: Operands<'a>,
    cache_taken: bool,
    /// The weights that were given, by input; one bit each, of [`INPUTS`].
    weights_taken: Cell<u64>,
    parts: Parts<'a>,
}

/// A region of the device that an operator was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Touched {
    /// What lies there.
    pub kind: ByteKind,
    /// Where it is.
    pub region: Region,
    /// Whether it may be written.
    pub written: bool,
}

impl<'a> Call<'a> {
    /// The call of `op`.
    ///
    /// # Safety
    /// As long as the result or an operand that it handed out lives, nobody else may touch the
    /// space's activations and the batch's own blocks, or write the weight slot.
    pub(crate) unsafe fn new(space: &'a Space, op: &'a BoundOp, parts: Parts<'a>) -> Self {
        // SAFETY: that nobody else touches the activations is the caller's promise.
        let operands = unsafe { space.arena.operands_within(space.activations) };
        Self { space, op, operands, cache_taken: false, weights_taken: Cell::new(0), parts }
    }

    /// Which part of its work the operator is to do now, and when to stop. A kernel that does not ask does all of it.
    pub fn parts(&mut self) -> &mut Parts<'a> {
        &mut self.parts
    }

    /// The rows of the batch. Their sequences' blocks are numbered as those of
    /// [`cache`](Self::cache).
    pub fn rows(&self) -> TokenRows<'a> {
        let batch = &self.space.batch;
        TokenRows {
            sequences: &batch.sequences,
            positions: &batch.positions,
            blocks: &batch.blocks,
            table_starts: &batch.table_starts,
        }
    }

    /// For each output token of the batch: how it is to be chosen, and its position in its sequence.
    pub fn choices(&self) -> &'a [(Sampling, u32)] {
        &self.space.batch.choices
    }

    /// How many inputs the operator has.
    pub fn inputs(&self) -> usize {
        self.op.inputs.len()
    }

    /// The elements of input `index`, an activation.
    ///
    /// # Errors
    /// When it is not an activation, its size is no whole number of `T`, or it is held for writing.
    pub fn input<T: Element>(&mut self, index: usize) -> Result<&'a [T]> {
        let tensor = self.op.inputs.get(index).copied();
        let region = tensor.and_then(|tensor| self.space.region(tensor));
        self.operands.read(region.ok_or(no_operand("inputs", index, "an activation"))?)
    }

    /// The elements of output `index`, to be written. What was in them before is undefined, though
    /// every bit pattern is a value.
    ///
    /// # Errors
    /// When there is none, its size is no whole number of `T`, or it is held already.
    pub fn output<T: Element>(&mut self, index: usize) -> Result<&'a mut [T]> {
        let tensor = self.op.outputs.get(index).copied();
        let region = tensor.and_then(|tensor| self.space.region(tensor));
        self.operands.write(region.ok_or(no_operand("outputs", index, "an activation"))?)
    }

    /// Input `index`, a weight of one dimension.
    ///
    /// # Errors
    /// When it is something else.
    pub fn vector(&self, index: usize) -> Result<&'a [f32]> {
        match self.weight(index)? {
            // SAFETY: see `read_weight`.
            (offset, shape @ WeightShape::Vector(_)) => unsafe { self.read_weight(offset, shape) },
            _ => Err(no_operand("inputs", index, "a weight of one dimension")),
        }
    }

    /// Input `index`, a weight of two dimensions.
    ///
    /// # Errors
    /// When it is something else.
    pub fn matrix(&self, index: usize) -> Result<WeightMatrix<'a>> {
        let (offset, shape) = self.weight(index)?;
        let WeightShape::Matrix { n, k, format } = shape else {
            return Err(no_operand("inputs", index, "a weight of two dimensions"));
        };
        // SAFETY: see `read_weight`.
        Ok(unsafe {
            match format {
                MatrixFormat::Single => PanelMatrix::new(self.read_weight(offset, shape)?, n, k)?.into(),
                MatrixFormat::Half(half) => PanelMatrix::half(self.read_weight(offset, shape)?, n, k, half)?.into(),
                MatrixFormat::Quantized(blocks) => {
                    QuantMatrix::new(self.read_weight(offset, shape)?, n, k, blocks)?.into()
                }
            }
        })
    }

    /// Input `index`, a weight with a matrix for each expert.
    ///
    /// # Errors
    /// When it is something else.
    pub fn experts(&self, index: usize) -> Result<ExpertMatrices<'a>> {
        let (offset, shape) = self.weight(index)?;
        let WeightShape::Experts { experts, n, k, format } = shape else {
            return Err(no_operand("inputs", index, "a weight with a matrix for each expert"));
        };
        let dims = [experts, n, k];
        // SAFETY: see `read_weight`.
        unsafe {
            match format {
                MatrixFormat::Single => ExpertMatrices::single(self.read_weight(offset, shape)?, dims),
                MatrixFormat::Half(half) => ExpertMatrices::half(self.read_weight(offset, shape)?, dims, half),
                MatrixFormat::Quantized(blocks) => {
                    ExpertMatrices::quantized(self.read_weight(offset, shape)?, dims, blocks)
                }
            }
        }
    }

    /// All memory of the device that the operator was given so far: activations as they were asked for, weights whole, and
    /// every block of the batch once the cache was asked for. A kernel has no other way to any. For whoever holds
    /// what ran against what was planned.
    pub fn touched(&self) -> impl Iterator<Item = Touched> + '_ {
        let activations = self.operands.held().map(|(region, written)| (ByteKind::Activations, region, written));
        let taken = (0..self.op.inputs.len().min(INPUTS)).filter(|index| self.weights_taken.get() & (1 << index) != 0);
        let weights = taken.filter_map(|index| match self.home(index)? {
            Home::Slot(offset, shape) => {
                Some((ByteKind::Weights, shape.region(self.space.slot.offset + offset), false))
            }
            _ => None,
        });
        let own = if self.cache_taken { &*self.space.batch.own } else { &[] };
        let blocks = own.iter().map(|&block| (ByteKind::Kv, self.space.pool.block(block), true));
        activations.chain(weights).chain(blocks).map(|(kind, region, written)| Touched { kind, region, written })
    }

    fn weight(&self, index: usize) -> Result<(Bytes, WeightShape)> {
        match self.home(index) {
            Some(Home::Slot(offset, shape)) => {
                self.weights_taken.set(self.weights_taken.get() | 1u64.checked_shl(index as u32).unwrap_or(0));
                Ok((offset, shape))
            }
            _ => Err(no_operand("inputs", index, "a weight")),
        }
    }

    /// # Safety
    /// `offset` and `shape` are those of a weight of the model: within a slot of its size, which the
    /// space has. That nobody writes the slot is the promise made to `new`.
    unsafe fn read_weight<T: Element>(&self, offset: Bytes, shape: WeightShape) -> Result<&'a [T]> {
        // SAFETY: the caller's promise.
        unsafe { self.space.arena.read_shared(shape.region(self.space.slot.offset + offset)) }
    }

    /// Input `index`, the KV cache of one layer: which layer, and the blocks of the batch.
    ///
    /// # Errors
    /// When it is something else, or the call has given it away already.
    pub fn cache(&mut self, index: usize) -> Result<(usize, KvCache<'a>)> {
        let Some(Home::Cache(layer)) = self.home(index).filter(|_| !self.cache_taken) else {
            return Err(no_operand("inputs", index, "a KV cache that is not in use"));
        };
        self.cache_taken = true;
        let Space { arena, pool, kv_layout, batch, .. } = self.space;
        // SAFETY: that nobody else touches the batch's own blocks is the promise made to `new`, and
        // they are given away once per call.
        let cache = unsafe { KvCache::shared(arena, *pool, *kv_layout, &batch.own)? };
        Ok((layer, cache))
    }

    fn home(&self, index: usize) -> Option<Home> {
        self.op.inputs.get(index).and_then(|&tensor| self.space.model.model.home(tensor))
    }
}

fn no_operand(side: &'static str, index: usize, expected: &'static str) -> ExecutorError {
    ExecutorError::NoOperand { side, index, expected }
}
