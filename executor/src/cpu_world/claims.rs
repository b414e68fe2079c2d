//! Who uses which bytes of a device.
//!
//! The graph reserves memory so that nobody's bytes overlap. This table holds it to that: lanes and
//! transfers run on other threads, and two of them on the same bytes would be undefined behaviour,
//! whatever a host does with its graph. What must stay true: of two claims of different holders
//! that share a byte, neither writes.
//!
//! A lane runs one entry at a time, so claims of one lane may overlap: the parts of a job that are
//! queued one behind the other do.

use slicescheduler_gmg::id::{DeviceId, TenantId};

use crate::arena::Region;
use crate::error::{ExecutorError, Result};

/// Who claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Lane(u16),
    Transfer(u64),
}

/// What for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// A region that somebody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) region: Region,
    pub(super) access: Access,
    pub(super) holder: Holder,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// The lane that uses it, if `uses` is not zero.
    lane: u16,
    uses: u32,
    /// Whose tokens it holds, if anybody's.
    tenant: Option<TenantId>,
}

/// The claims on one device.
#[derive(Debug)]
pub(super) struct Claims {
    device: DeviceId,
    held: Vec<Claim>,
    blocks: Vec<Block>,
}

impl Claims {
    /// Nothing is used on a device with this many KV blocks.
    pub(super) fn new(device: DeviceId, blocks: u32) -> Self {
        Self { device, held: Vec::new(), blocks: vec![Block::default(); blocks as usize] }
    }

    /// True if nobody is in the way. O(claims), of which there are a few per lane.
    pub(super) fn is_free(&self, claim: &Claim) -> bool {
        let clashes = |held: &Claim| {
            let writes = held.access == Access::Write || claim.access == Access::Write;
            writes && held.holder != claim.holder && held.region.overlaps(&claim.region)
        };
        !self.held.iter().any(clashes)
    }

    /// Takes a claim.
    pub(super) fn take(&mut self, claim: Claim) -> Result<()> {
        if !self.is_free(&claim) {
            let Region { offset, size } = claim.region;
            return Err(ExecutorError::RegionInUse { device: self.device, offset, size });
        }
        self.held.push(claim);
        Ok(())
    }

    /// Gives back a claim that was taken.
    pub(super) fn give_back(&mut self, claim: &Claim) {
        if let Some(index) = self.held.iter().position(|held| held == claim) {
            self.held.swap_remove(index);
        }
    }

    /// Takes KV blocks for a lane, all or none. Those that hold another tenant's tokens are
    /// appended to `clear`, which the lane must zero first.
    pub(super) fn take_blocks(
        &mut self,
        lane: u16,
        blocks: &[u32],
        tenant: TenantId,
        clear: &mut Vec<u32>,
    ) -> Result<()> {
        for &number in blocks {
            let block = self.block(number)?;
            if block.uses > 0 && block.lane != lane {
                return Err(ExecutorError::BlockInUse { device: self.device, block: number });
            }
        }
        for &number in blocks {
            let block = &mut self.blocks[number as usize];
            // A block that an entry ahead of this one uses is that entry's to clear.
            if block.uses == 0 && block.tenant.is_some_and(|other| other != tenant) {
                clear.push(number);
            }
            block.lane = lane;
            block.uses += 1;
        }
        Ok(())
    }

    fn block(&self, number: u32) -> Result<&Block> {
        let blocks = self.blocks.len() as u32;
        let missing = ExecutorError::NoBlock { device: self.device, block: number, blocks };
        self.blocks.get(number as usize).ok_or(missing)
    }

    /// Gives back blocks that were taken. If the lane `used` them they hold tokens of `tenant` now.
    pub(super) fn give_back_blocks(&mut self, blocks: &[u32], used: Option<TenantId>) {
        for &block in blocks {
            if let Some(block) = self.blocks.get_mut(block as usize) {
                block.uses = block.uses.saturating_sub(1);
                block.tenant = used.or(block.tenant);
            }
        }
    }

    /// True if nothing is claimed.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.blocks.iter().all(|block| block.uses == 0)
    }
}

#[cfg(test)]
mod tests {
    use slicescheduler_gmg::units::Bytes;

    use super::*;

    const A: TenantId = TenantId(0);
    const B: TenantId = TenantId(1);

    fn claim(offset: u64, size: u64, access: Access, holder: Holder) -> Claim {
        Claim { region: Region::new(Bytes(offset), Bytes(size)), access, holder }
    }

    #[test]
    fn of_two_holders_of_a_byte_neither_writes() {
        use Access::{Read, Write};
        let mut claims = Claims::new(DeviceId(0), 0);
        let read = claim(0, 100, Read, Holder::Lane(0));
        claims.take(read).unwrap();
        claims.take(claim(50, 100, Read, Holder::Lane(1))).unwrap();
        assert!(claims.take(claim(99, 1, Write, Holder::Transfer(0))).is_err());
        assert!(claims.take(claim(150, 1, Write, Holder::Transfer(0))).is_ok());
        assert!(claims.take(claim(150, 1, Read, Holder::Lane(0))).is_err());
        assert!(claims.take(claim(0, 10, Write, Holder::Lane(0))).is_ok(), "a lane does not disturb itself");
        claims.give_back(&claim(0, 10, Write, Holder::Lane(0)));
        claims.give_back(&read);
        assert!(claims.take(claim(0, 10, Write, Holder::Lane(1))).is_ok());
    }

    #[test]
    fn blocks_are_taken_all_or_none_and_by_one_lane() {
        let mut claims = Claims::new(DeviceId(0), 4);
        let mut clear = Vec::new();
        claims.take_blocks(0, &[1, 2], A, &mut clear).unwrap();
        assert!(claims.take_blocks(1, &[0, 2], A, &mut clear).is_err());
        let missing = claims.take_blocks(1, &[0, 4], A, &mut clear);
        assert!(matches!(missing, Err(ExecutorError::NoBlock { block: 4, blocks: 4, .. })), "there are four");
        claims.take_blocks(0, &[2, 3], A, &mut clear).unwrap();
        claims.give_back_blocks(&[1, 2], Some(A));
        assert!(claims.take_blocks(1, &[2], A, &mut clear).is_err(), "the lane has it twice");
        claims.give_back_blocks(&[2, 3], Some(A));
        claims.take_blocks(1, &[0, 1, 2, 3], A, &mut clear).unwrap();
        assert!(clear.is_empty());
        claims.give_back_blocks(&[0, 1, 2, 3], None);
        assert!(claims.is_empty());
    }

    #[test]
    fn blocks_of_another_tenant_are_to_be_cleared_until_they_were_used() {
        let mut claims = Claims::new(DeviceId(0), 3);
        let mut clear = Vec::new();
        claims.take_blocks(0, &[0, 1], A, &mut clear).unwrap();
        claims.give_back_blocks(&[0, 1], Some(A));
        claims.take_blocks(0, &[1, 2], B, &mut clear).unwrap();
        claims.take_blocks(0, &[1, 2], B, &mut clear).unwrap();
        assert_eq!(clear, [1], "once, by the entry that is first on the lane");
        claims.give_back_blocks(&[1, 2], None);
        claims.give_back_blocks(&[1, 2], None);
        clear.clear();
        claims.take_blocks(0, &[1], B, &mut clear).unwrap();
        assert_eq!(clear, [1], "again, since nothing ran");
        claims.give_back_blocks(&[1], Some(B));
        clear.clear();
        claims.take_blocks(0, &[1], B, &mut clear).unwrap();
        assert!(clear.is_empty());
    }
}
