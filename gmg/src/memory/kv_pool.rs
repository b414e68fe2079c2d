//! Blocks of KV cache and the block tables of sequences.

use smallvec::SmallVec;

use crate::id::{DeviceId, RequestId, TenantId};
use crate::id_map::IdMap;

/// A pool of equal blocks on one device. Every block is free or in the table of one sequence.
///
/// Block numbers are handed out last-freed first, so a log that is replayed gives equal tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvPool {
    total: u32,
    free: Vec<u32>,
    /// Blocks at and above this number were never handed out.
    untouched: u32,
    sequences: IdMap<RequestId, Sequence>,
    by_tenant: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sequence {
    tenant: TenantId,
    table: Vec<u32>,
    parts: SmallVec<[DeviceId; 1]>,
}

impl KvPool {
    /// A pool of `total` free blocks.
    pub fn new(total: u32) -> Self {
        Self { total, ..Self::default() }
    }

    /// All blocks.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Blocks that belong to no sequence.
    pub fn free_blocks(&self) -> u32 {
        self.total - self.untouched + self.free.len() as u32
    }

    /// Blocks that belong to sequences.
    pub fn used_blocks(&self) -> u32 {
        self.total - self.free_blocks()
    }

    /// Blocks that belong to sequences of `tenant`.
    pub fn used_by(&self, tenant: TenantId) -> u32 {
        self.by_tenant.get(tenant.index()).copied().unwrap_or(0)
    }

    /// The blocks of a sequence, in token order; empty if it has none.
    pub fn table(&self, request: RequestId) -> &[u32] {
        self.sequences.get(&request).map_or(&[], |sequence| &sequence.table)
    }

    /// Adds `blocks` blocks to the sequence of `request`, which belongs to `tenant`. Returns false,
    /// and changes nothing, if that many are not free.
    pub fn grow(&mut self, request: RequestId, tenant: TenantId, blocks: u32) -> bool {
        if blocks > self.free_blocks() {
            return false;
        }
        let sequence = self.sequences.entry(request).or_insert_with(|| Sequence {
            tenant,
            table: Vec::with_capacity(blocks as usize),
            parts: SmallVec::new(),
        });
        for _ in 0..blocks {
            let block = self.free.pop().unwrap_or_else(|| {
                self.untouched += 1;
                self.untouched - 1
            });
            sequence.table.push(block);
        }
        let owner = sequence.tenant.index();
        if self.by_tenant.len() <= owner {
            self.by_tenant.resize(owner + 1, 0);
        }
        self.by_tenant[owner] += blocks;
        true
    }

    /// The devices that hold the parts of the other ranks of a sequence whose first part is here, from
    /// rank 1 on; empty for a sequence in one part.
    pub fn parts(&self, request: RequestId) -> &[DeviceId] {
        self.sequences.get(&request).map_or(&[], |sequence| &sequence.parts)
    }

    /// The next rank's part of the sequence is on `device`. Nothing changes if one is there already.
    pub fn add_part(&mut self, request: RequestId, device: DeviceId) {
        if let Some(sequence) = self.sequences.get_mut(&request)
            && !sequence.parts.contains(&device)
        {
            sequence.parts.push(device);
        }
    }

    /// Frees every block of a sequence and returns how many there were.
    pub fn release(&mut self, request: RequestId) -> u32 {
        let Some(sequence) = self.sequences.remove(&request) else { return 0 };
        let blocks = sequence.table.len() as u32;
        self.by_tenant[sequence.tenant.index()] -= blocks;
        self.free.extend(sequence.table.into_iter().rev());
        blocks
    }

    /// True if there is no sequence, not even one without blocks.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// The sequences, ascending, those without blocks too.
    pub fn sequences(&self) -> Vec<RequestId> {
        let mut ids: Vec<_> = self.sequences.keys().copied().collect();
        ids.sort_unstable();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn a_growth_that_does_not_fit_changes_nothing() {
        let mut pool = KvPool::new(4);
        assert!(pool.grow(RequestId(1), TenantId(0), 3));
        let before = pool.clone();
        assert!(!pool.grow(RequestId(2), TenantId(0), 2));
        assert_eq!(pool, before);
        assert_eq!(pool.release(RequestId(9)), 0);
    }

    proptest! {
        #[test]
        fn every_block_has_one_owner(steps in prop::collection::vec((0u64..6, 0u32..5, any::<bool>()), 1..200)) {
            let mut pool = KvPool::new(24);
            let mut expected: HashMap<u64, u32> = HashMap::new();
            for (request, blocks, grow) in steps {
                let tenant = TenantId(request as u32 % 2);
                if grow {
                    let fits = blocks <= 24 - expected.values().sum::<u32>();
                    prop_assert_eq!(pool.grow(RequestId(request), tenant, blocks), fits);
                    if fits {
                        *expected.entry(request).or_default() += blocks;
                    }
                } else {
                    prop_assert_eq!(pool.release(RequestId(request)), expected.remove(&request).unwrap_or(0));
                }
                let mut seen = HashSet::new();
                for (&request, &blocks) in &expected {
                    let table = pool.table(RequestId(request));
                    prop_assert_eq!(table.len() as u32, blocks);
                    prop_assert!(table.iter().all(|&block| block < 24 && seen.insert(block)));
                }
                prop_assert_eq!(pool.used_blocks() as usize, seen.len());
                let even: u32 = expected.iter().filter(|(request, _)| *request % 2 == 0).map(|(_, blocks)| blocks).sum();
                prop_assert_eq!(pool.used_by(TenantId(0)), even);
            }
        }
    }
}
