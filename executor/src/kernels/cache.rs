//! The paged cache of keys and values.

use std::marker::PhantomData;
use std::ptr::NonNull;

use slicescheduler_gmg::units::Bytes;

use super::{check, check_indices, nonzero};
use crate::arena::{Arena, Region};
use crate::error::{ExecutorError, Result};

/// How a block of the cache is laid out.
///
/// A block holds `block_tokens` positions of one sequence for **all** layers, so that a block is
/// what is moved, copied, cleared and counted. Within it, per layer: the keys of each head as
/// `[head_dim, block_tokens]` (scores then run over positions with unit stride), then the values of
/// each head as `[block_tokens, head_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers of the model.
    pub layers: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Positions per block.
    pub block_tokens: usize,
}

impl KvLayout {
    /// Elements of one head of one layer, keys or values.
    const fn slab(&self) -> usize {
        self.head_dim.saturating_mul(self.block_tokens)
    }

    /// Elements of a block.
    pub const fn block_elements(&self) -> usize {
        self.slab().saturating_mul(2).saturating_mul(self.kv_heads).saturating_mul(self.layers)
    }

    /// Size of a block.
    pub const fn block_bytes(&self) -> Bytes {
        Bytes((self.block_elements() as u64).saturating_mul(size_of::<f32>() as u64))
    }

    fn validate(&self) -> Result<()> {
        nonzero("kv cache", "layers", self.layers)?;
        nonzero("kv cache", "kv_heads", self.kv_heads)?;
        nonzero("kv cache", "head_dim", self.head_dim)?;
        nonzero("kv cache", "block_tokens", self.block_tokens)
    }
}

/// Where the blocks of a device lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPool {
    /// All of them, side by side.
    pub region: Region,
    /// From the start of one to the start of the next.
    pub block_bytes: Bytes,
}

impl KvPool {
    /// The bytes of a block.
    pub fn block(&self, block: u32) -> Region {
        Region::new(self.region.offset + self.block_bytes.times(u64::from(block)), self.block_bytes)
    }
}

/// The blocks of a device's pool, as one operator sees them.
///
/// # Who may touch what
/// The pool is shared by the lanes of a device, each of which holds its own `KvCache` on it. What
/// keeps them apart: a block that an operator writes belongs to one sequence, and a sequence is in
/// at most one running job; a block that several sequences share (a common prefix) is only read.
#[derive(Debug)]
pub struct KvCache<'a> {
    base: NonNull<f32>,
    /// Blocks in the pool.
    pool_blocks: usize,
    /// Elements from the start of one block of the pool to that of the next.
    stride: usize,
    /// Which blocks of the pool this cache has, all within it; all of them if `None`.
    own: Option<&'a [u32]>,
    layout: KvLayout,
    pool: PhantomData<&'a mut [f32]>,
}

// SAFETY: a KvCache is a restricted `&mut [f32]`, which is Send.
unsafe impl Send for KvCache<'_> {}

impl<'a> KvCache<'a> {
    /// A cache over a pool that nobody else uses; what does not make a whole block is left out.
    ///
    /// # Errors
    /// When a dimension of the layout is zero.
    pub fn new(pool: &'a mut [f32], layout: KvLayout) -> Result<Self> {
        layout.validate()?;
        let stride = layout.block_elements();
        let pool_blocks = pool.len() / stride;
        Ok(Self { base: NonNull::from(pool).cast(), pool_blocks, stride, own: None, layout, pool: PhantomData })
    }

    /// A cache over some blocks of a pool that other lanes use at the same time. Block `i` of the
    /// cache is block `own[i]` of the pool; no other can be reached through it.
    ///
    /// # Errors
    /// When the region is not within the arena or not made of whole f32, a dimension of the layout
    /// is zero, the pool's blocks are too small for it, or the pool lacks one of `own`.
    ///
    /// # Safety
    /// As long as the result lives, nobody else may read or write the blocks `own`.
    pub unsafe fn shared(arena: &'a Arena, pool: KvPool, layout: KvLayout, own: &'a [u32]) -> Result<Self> {
        layout.validate()?;
        let (base, elements) = arena.elements::<f32>(pool.region)?;
        let element = size_of::<f32>() as u64;
        let fits = pool.block_bytes >= layout.block_bytes() && pool.block_bytes.get().is_multiple_of(element);
        if !fits {
            return Err(ExecutorError::Dimension {
                kernel: "kv cache",
                dimension: "block_bytes",
                value: usize::try_from(pool.block_bytes.get()).unwrap_or(usize::MAX),
                requirement: "a whole number of f32 and at least a block of the layout",
            });
        }
        let stride = usize::try_from(pool.block_bytes.get() / element).unwrap_or(usize::MAX);
        let pool_blocks = elements / stride;
        check_indices("kv cache", "own", own, pool_blocks)?;
        Ok(Self { base, pool_blocks, stride, own: Some(own), layout, pool: PhantomData })
    }

    /// How the blocks are laid out.
    pub const fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Blocks that it has.
    pub fn blocks(&self) -> usize {
        self.own.map_or(self.pool_blocks, <[u32]>::len)
    }

    /// Where a block begins.
    fn block_start(&self, block: usize) -> usize {
        let block = self.own.map_or(block, |own| own[block] as usize);
        assert!(block < self.pool_blocks);
        block * self.stride
    }

    /// Copies block `from` to block `to`, as when a sequence writes into a block it shares.
    ///
    /// # Errors
    /// When one of them is not in the pool.
    pub fn copy_block(&mut self, from: u32, to: u32) -> Result<()> {
        check_indices("copy_block", "blocks", &[from, to], self.blocks())?;
        let (from, to) = (self.block_start(from as usize), self.block_start(to as usize));
        // SAFETY: both blocks are within the pool (asserted by `block_start`), so are their
        // elements, of which there are no more than the stride. They are whole blocks, thus equal
        // or disjoint, and `copy` allows both. Access is the constructor's contract.
        unsafe {
            let source = self.base.add(from);
            source.copy_to(self.base.add(to), self.layout.block_elements());
        }
        Ok(())
    }

    /// Where the keys (`part` 0) or values (`part` 1) of a head begin.
    fn slab_start(&self, layer: usize, part: usize, head: usize, block: usize) -> usize {
        let KvLayout { layers, kv_heads, .. } = self.layout;
        assert!(layer < layers && part < 2 && head < kv_heads);
        self.block_start(block) + ((layer * 2 + part) * kv_heads + head) * self.layout.slab()
    }

    fn slab(&self, layer: usize, part: usize, head: usize, block: usize) -> &[f32] {
        let start = self.slab_start(layer, part, head, block);
        // SAFETY: block, layer, part and head are in range (asserted), so the slab is within the
        // pool; nobody writes it while the borrow lives, by the constructor's contract.
        unsafe { std::slice::from_raw_parts(self.base.add(start).as_ptr(), self.layout.slab()) }
    }

    fn slab_mut(&mut self, layer: usize, part: usize, head: usize, block: usize) -> &mut [f32] {
        let start = self.slab_start(layer, part, head, block);
        // SAFETY: as in `slab`; and nobody else reads it, by the constructor's contract.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start).as_ptr(), self.layout.slab()) }
    }

    /// The keys of a head, `[head_dim, block_tokens]`.
    #[inline]
    pub(super) fn keys(&self, layer: usize, head: usize, block: u32) -> &[f32] {
        self.slab(layer, 0, head, block as usize)
    }

    /// The values of a head, `[block_tokens, head_dim]`.
    #[inline]
    pub(super) fn values(&self, layer: usize, head: usize, block: u32) -> &[f32] {
        self.slab(layer, 1, head, block as usize)
    }

    /// Writes the key and the value of a head at one place of a block.
    pub(super) fn store(
        &mut self,
        layer: usize,
        head: usize,
        block: u32,
        slot: usize,
        key: impl Iterator<Item = f32>,
        value: &[f32],
    ) {
        let KvLayout { block_tokens, head_dim, .. } = self.layout;
        let keys = self.slab_mut(layer, 0, head, block as usize);
        for (place, key) in keys[slot..].iter_mut().step_by(block_tokens).zip(key) {
            *place = key;
        }
        let values = self.slab_mut(layer, 1, head, block as usize);
        values[slot * head_dim..(slot + 1) * head_dim].copy_from_slice(value);
    }
}

/// Which token each row of a batch is, and where each sequence's blocks are.
#[derive(Clone, Copy, Debug)]
pub struct TokenRows<'a> {
    /// Per row: the sequence it belongs to, a row of the block tables.
    pub sequences: &'a [u32],
    /// Per row: its position in the sequence, from 0.
    pub positions: &'a [u32],
    /// The blocks of all sequences, one sequence after the other, in order of position.
    pub blocks: &'a [u32],
    /// Where in `blocks` each sequence begins, and at last where the last one ends.
    pub table_starts: &'a [u32],
}

impl<'a> TokenRows<'a> {
    /// Rows of the batch.
    pub const fn len(&self) -> usize {
        self.positions.len()
    }

    /// True without a row.
    pub const fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// The blocks of the row's sequence. The rows have been validated.
    #[inline]
    pub(super) fn table(&self, row: usize) -> &'a [u32] {
        let sequence = self.sequences[row] as usize;
        &self.blocks[self.table_starts[sequence] as usize..self.table_starts[sequence + 1] as usize]
    }

    /// Checks that every row's sequence has a table, its position a block in it, and that the pool
    /// has all blocks.
    pub(super) fn validate(&self, kernel: &'static str, cache: &KvCache<'_>) -> Result<()> {
        check(kernel, "sequences", self.sequences.len(), self.positions.len())?;
        check_indices(kernel, "sequences", self.sequences, self.table_starts.len().saturating_sub(1))?;
        check_indices(kernel, "table_starts", self.table_starts, self.blocks.len() + 1)?;
        check_indices(kernel, "blocks", self.blocks, cache.blocks())?;
        for (sequence, pair) in self.table_starts.windows(2).enumerate() {
            if pair[0] > pair[1] {
                let (value, limit) = (pair[0] as usize, pair[1] as usize + 1);
                return Err(ExecutorError::IndexOutOfRange {
                    kernel,
                    operand: "table_starts",
                    at: sequence,
                    value,
                    limit,
                });
            }
        }
        for (row, &position) in self.positions.iter().enumerate() {
            let limit = self.table(row).len().saturating_mul(cache.layout().block_tokens);
            if position as usize >= limit {
                let value = position as usize;
                return Err(ExecutorError::IndexOutOfRange { kernel, operand: "positions", at: row, value, limit });
            }
        }
        Ok(())
    }
}
