//! How the memory of a device is divided, once.

use crate::memory::BestFit;
use crate::units::Bytes;

/// How the memory of a device is divided. The KV pool gets what the other parts leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceLayout {
    /// Bytes that may be used in all; the rest is the driver's and the host's.
    pub usable: Bytes,
    /// Bytes for weights.
    pub weights: Bytes,
    /// Bytes for activations.
    pub arena: Bytes,
    /// Bytes for transfers under way.
    pub staging: Bytes,
    /// Bytes of one KV block; zero for a device without a KV pool.
    pub kv_block: Bytes,
    /// Tokens that one KV block holds.
    pub kv_block_tokens: u32,
}

impl DeviceLayout {
    /// The most KV blocks of a device, borrowed ones included. One growth can take them all, and each takes four
    /// bytes of its sequence's table.
    pub const MOST_BLOCKS: u32 = 1 << 26;

    /// What [`of`](Self::of) divides at most: as much as blocks of 2 MiB can be counted of.
    const MOST_MEMORY: Bytes = Bytes((Self::MOST_BLOCKS as u64) << 21);

    /// A layout for a device of which nothing is known but its memory: half for weights, 1/8 for
    /// activations, 1/64 for staging, the rest in KV blocks of 2 MiB for 16 tokens. No part is larger than
    /// [`BestFit::LARGEST`], and nothing beyond 128 TiB is used.
    pub fn of(memory: Bytes) -> Self {
        let memory = memory.min(Self::MOST_MEMORY);
        let part = |n: u64| Bytes(memory.get() / n).min(BestFit::LARGEST);
        Self {
            usable: memory,
            weights: part(2),
            arena: part(8),
            staging: part(64),
            kv_block: Bytes::mib(2),
            kv_block_tokens: 16,
        }
    }

    /// Why a device with `memory` cannot be laid out so.
    pub(crate) fn fault(&self, memory: Bytes) -> Option<LayoutFault> {
        if self.kv_offset() > self.usable || self.usable > memory {
            return Some(LayoutFault::TooLarge);
        }
        let parts = [("weights", self.weights), ("activations", self.arena), ("staging", self.staging)];
        if let Some((what, bytes)) = parts.into_iter().find(|&(_, bytes)| bytes > BestFit::LARGEST) {
            return Some(LayoutFault::Part { what, bytes });
        }
        let blocks = self.usable.get().checked_div(self.kv_block.get()).unwrap_or(0);
        (blocks > u64::from(Self::MOST_BLOCKS)).then_some(LayoutFault::Blocks(blocks))
    }

    /// Bytes that are left for KV blocks.
    pub fn kv_bytes(&self) -> Bytes {
        self.usable - (self.weights + self.arena + self.staging)
    }

    /// KV blocks that fit.
    pub fn kv_blocks(&self) -> u32 {
        match self.kv_block.get() {
            0 => 0,
            block => u32::try_from(self.kv_bytes().get() / block).unwrap_or(u32::MAX),
        }
    }

    /// Where the KV blocks begin.
    pub fn kv_offset(&self) -> Bytes {
        self.weights + self.arena + self.staging
    }

    /// Blocks between the part for weights and the KV blocks, in the raster of the KV blocks.
    fn between(&self) -> u64 {
        (self.arena + self.staging).get().div_ceil(self.kv_block.get().max(1))
    }

    /// The most KV blocks that the part for weights has room for, without any weights.
    pub fn most_borrowed(&self) -> u32 {
        match self.kv_block.get() {
            0 => 0,
            block => u32::try_from((self.kv_offset().get() / block).saturating_sub(self.between())).unwrap_or(u32::MAX),
        }
    }

    /// The most KV blocks that the part for weights has room for from `offset` on.
    pub fn borrowable_from(&self, offset: Bytes) -> u32 {
        let most = u64::from(self.most_borrowed());
        let room = self.weights_end(1) + self.kv_block - offset;
        (room.get() / self.kv_block.get().max(1)).min(most) as u32
    }

    /// Where the part for weights ends while its last bytes hold `borrowed` KV blocks.
    pub fn weights_end(&self, borrowed: u32) -> Bytes {
        match borrowed {
            0 => self.weights,
            _ => self.kv_offset() - self.kv_block.times(self.between() + u64::from(borrowed)),
        }
    }

    /// Where a KV block lies. Blocks with a number of [`kv_blocks`](Self::kv_blocks) and more are
    /// borrowed: they lie in the part for weights, from its end downwards. All blocks are in one raster,
    /// so a kernel can address them as one array.
    pub fn block_offset(&self, block: u32) -> Bytes {
        match block.checked_sub(self.kv_blocks()) {
            None => self.kv_offset() + self.kv_block.times(u64::from(block)),
            Some(borrowed) => self.weights_end(borrowed.saturating_add(1)),
        }
    }
}

/// Why a device cannot be laid out in some way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayoutFault {
    /// The parts are larger than what is usable, or that than the device.
    TooLarge,
    /// A part is larger than [`BestFit::LARGEST`].
    Part { what: &'static str, bytes: Bytes },
    /// More KV blocks than [`DeviceLayout::MOST_BLOCKS`].
    Blocks(u64),
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Room for four models of 100 units, and for ten KV blocks of 30 units behind 50 others.
    pub(in crate::memory) fn layout() -> DeviceLayout {
        let unit = |n: u64| Bytes(256 * n);
        DeviceLayout {
            usable: unit(400 + 50 + 300),
            weights: unit(400),
            arena: unit(40),
            staging: unit(10),
            kv_block: unit(30),
            kv_block_tokens: 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::layout;
    use super::*;

    #[test]
    fn borrowed_blocks_lie_in_the_raster_of_the_others_below_what_is_between() {
        let layout = layout();
        assert_eq!(layout.kv_blocks(), 10);
        assert_eq!(layout.most_borrowed(), 13, "450 units are 15 blocks, of which 50 units take two");
        assert_eq!(layout.block_offset(9), layout.kv_offset() + Bytes(256 * 270));
        assert_eq!(layout.block_offset(10), layout.kv_offset() - Bytes(256 * 90));
        assert_eq!(layout.block_offset(22), Bytes::ZERO);
        assert_eq!((layout.weights_end(0), layout.weights_end(1)), (Bytes(256 * 400), layout.block_offset(10)));
        assert_eq!(layout.borrowable_from(Bytes(256 * 101)), 9, "259 units");
    }
}
