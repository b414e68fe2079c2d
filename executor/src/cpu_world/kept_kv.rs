//! Copies of sequences' keys and values in host memory: what lets a sequence leave a device and go on elsewhere
//! without being computed again.
//!
//! A sequence that is [kept](super::CpuWorld::keep_kv) has its blocks copied as they become full, by the lane that
//! filled them, at the end of the job. A block that is full is written again only by a job that computes its tokens
//! anew, with the same bits (kernels are batch-invariant), so each is copied once and its copy stays true. What
//! evicting the sequence loses is at most the tokens of one block. Copies go back into blocks before
//! the first operator of the job that [needs them](super::CpuWorld::restore_kv), and over a link to another world
//! ([`KvCopy::outgoing`], [`IncomingKv`]), from memory that no lane uses: while they are under way, lanes go on.
//!
//! What must stay true: of a copy, one lane at a time writes, and only blocks from the number that is
//! published on; whoever else reads, reads below that number.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use slicescheduler_gmg::id::{RequestId, TransferId};
use slicescheduler_gmg::units::Bytes;

use crate::arena::{Arena, Region};
use crate::error::{ExecutorError, Result};
use crate::model::CpuModel;
use crate::transport::{Place, Transfer};

/// How blocks lie in a copy: side by side, without what is between those of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    /// Bytes of one.
    bytes: Bytes,
    /// Its tokens.
    tokens: u32,
    /// How many there is room for.
    count: u32,
}

impl Blocks {
    /// Those of `count` times `tokens` tokens of a model.
    pub(super) fn of(model: &CpuModel, tokens: u32, count: u32) -> Self {
        Self { bytes: model.kv_block_bytes(tokens), tokens, count }
    }

    /// Bytes of all that there is room for.
    pub(super) fn size(self) -> Bytes {
        self.bytes.times(u64::from(self.count))
    }

    /// Tokens of a block.
    pub(super) const fn tokens(self) -> u32 {
        self.tokens
    }

    fn region(self, first: u32, count: u32) -> Region {
        Region::new(self.bytes.times(u64::from(first)), self.bytes.times(u64::from(count)))
    }
}

#[derive(Debug)]
struct Shared {
    memory: Arc<Arena>,
    blocks: Blocks,
    /// Blocks that are there; set after they were written.
    full: AtomicU32,
    /// Held by who writes.
    writing: Mutex<()>,
}

/// The copy of one sequence, which its world goes on writing.
#[derive(Clone, Debug)]
pub(super) struct KeptKv(Arc<Shared>);

impl KeptKv {
    /// An empty copy.
    pub(super) fn new(blocks: Blocks) -> Result<Self> {
        let memory = Arena::new(blocks.size())?.into();
        Ok(Self(Arc::new(Shared { memory, blocks, full: AtomicU32::new(0), writing: Mutex::new(()) })))
    }

    /// Tokens whose keys and values are there.
    pub(super) fn tokens(&self) -> u32 {
        self.full() * self.0.blocks.tokens
    }

    fn full(&self) -> u32 {
        self.0.full.load(Ordering::Acquire)
    }

    /// A handle for whoever reads it.
    pub(super) fn copy(&self) -> KvCopy {
        KvCopy(self.0.clone())
    }

    /// True if it is of blocks like these, however many.
    pub(super) fn is_of(&self, blocks: Blocks) -> bool {
        (self.0.blocks.bytes, self.0.blocks.tokens) == (blocks.bytes, blocks.tokens)
    }

    /// Copies those of `blocks`, which are all of the sequence's, that are full with `tokens` tokens and are not
    /// there yet.
    ///
    /// Does nothing while another lane does the same, which only a graph that is wrong makes happen.
    ///
    /// # Safety
    /// Nobody writes the sequence's blocks during the call.
    pub(super) unsafe fn keep(&self, arena: &Arena, blocks: impl Iterator<Item = Region>, tokens: u32) -> Result<()> {
        let Ok(_writing) = self.0.writing.try_lock() else { return Ok(()) };
        let of = self.0.blocks;
        let (kept, full) = (self.full(), (tokens / of.tokens.max(1)).min(of.count));
        for (number, block) in (kept..full).zip(blocks.skip(kept as usize)) {
            let from = Region::new(block.offset, of.bytes);
            // SAFETY: nobody writes the block (the caller's promise); of the copy, nobody reads a block that is not
            // published, and nobody else writes while the lock is held.
            unsafe { arena.copy_to(from, &self.0.memory, of.region(number, 1))? };
            self.0.full.store(number + 1, Ordering::Release);
        }
        Ok(())
    }

    /// Copies the first `count` blocks to the first of `blocks`.
    ///
    /// # Safety
    /// Nobody else uses these blocks during the call.
    pub(super) unsafe fn restore(&self, arena: &Arena, blocks: impl Iterator<Item = Region>, count: u32) -> Result<()> {
        for (number, block) in (0..count.min(self.full())).zip(blocks) {
            let to = Region::new(block.offset, self.0.blocks.bytes);
            // SAFETY: blocks that are published are not written, and nobody else uses `to` (the caller's promise).
            unsafe { self.0.memory.copy_to(self.0.blocks.region(number, 1), arena, to)? };
        }
        Ok(())
    }
}

/// What was kept of a sequence's keys and values, to be read. Cheap to clone; it lives on when its world forgets
/// the sequence.
#[derive(Clone, Debug)]
pub struct KvCopy(Arc<Shared>);

impl KvCopy {
    /// Tokens, from the first, whose keys and values are there.
    pub fn tokens(&self) -> u32 {
        self.0.full.load(Ordering::Acquire) * self.0.blocks.tokens
    }

    /// Tokens of a block. The other end of a transfer must have the same.
    pub fn block_tokens(&self) -> u32 {
        self.0.blocks.tokens
    }

    /// This process's half of a transfer of the first `tokens` tokens, whole blocks of them. It may be under way while the
    /// sequence is computed on and more of it is kept.
    ///
    /// # Errors
    /// When it has not that many tokens, or they are no whole blocks.
    pub fn outgoing(&self, id: TransferId, tokens: u32) -> Result<Transfer> {
        let blocks = self.0.blocks;
        let count = whole_blocks(tokens, blocks.tokens, self.tokens())?;
        let from = Place { memory: self.0.memory.clone(), region: blocks.region(0, count) };
        // SAFETY: blocks that are published are never written again.
        unsafe { Transfer::outgoing(id, from) }
    }
}

/// Room for a sequence's keys and values that come from another world.
#[derive(Debug)]
pub struct IncomingKv {
    kept: KeptKv,
    count: u32,
}

impl IncomingKv {
    /// Room for `tokens` tokens of `model`, in blocks of `block_tokens` as devices have them in both worlds.
    ///
    /// # Errors
    /// When these are no whole blocks, or there is no memory.
    pub fn new(model: &CpuModel, block_tokens: u32, tokens: u32) -> Result<Self> {
        let count = whole_blocks(tokens, block_tokens, tokens)?;
        Ok(Self { kept: KeptKv::new(Blocks::of(model, block_tokens, count))?, count })
    }

    /// This process's half of the transfer.
    ///
    /// # Errors
    /// None, of room that was made here.
    ///
    /// # Safety
    /// [`arrived`](Self::arrived) is not called before the transfer was reported, and no other half of this room
    /// is under way.
    pub unsafe fn incoming(&self, id: TransferId) -> Result<Transfer> {
        let to = Place { memory: self.kept.0.memory.clone(), region: self.kept.0.blocks.region(0, self.count) };
        // SAFETY: nobody reads or writes it until it has arrived, which is the caller's promise.
        unsafe { Transfer::incoming(id, to) }
    }

    /// The transfer was reported, without an error: the keys and values are there.
    pub fn arrived(self) -> ArrivedKv {
        self.kept.0.full.store(self.count, Ordering::Release);
        ArrivedKv(self.kept)
    }
}

/// Keys and values from another world, for [`CpuWorld::adopt_kv`](super::CpuWorld::adopt_kv).
#[derive(Debug)]
pub struct ArrivedKv(pub(super) KeptKv);

/// How many blocks `tokens` make, of which there are `most`.
fn whole_blocks(tokens: u32, block_tokens: u32, most: u32) -> Result<u32> {
    if tokens == 0 || tokens > most || tokens.checked_rem(block_tokens).is_none_or(|rest| rest != 0) {
        return Err(ExecutorError::KvTokens { tokens, block_tokens, most });
    }
    Ok(tokens / block_tokens)
}

/// What a job does with the copy of one of its sequences.
#[derive(Clone, Debug)]
pub(super) struct Keeping {
    pub(super) request: RequestId,
    pub(super) kept: KeptKv,
    /// Which of the batch's own blocks are the sequence's.
    pub(super) own: std::ops::Range<usize>,
    /// Tokens that are computed when the job is done.
    pub(super) end: u32,
    /// The sequence goes on from the copy here, also if nothing of it is needed.
    pub(super) restores: bool,
    /// Blocks that come from the copy first.
    pub(super) restore: u32,
}
