//! A pool as plain lists, for snapshots that are kept.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::shared::{SavedShared, Shared};
use super::{KvPool, Sequence};
use crate::id::{DeviceId, RequestId, TenantId};

/// Everything about a pool that its size does not say.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedPool {
    sequences: Vec<SavedSequence>,
    /// Free blocks that were handed out before: the one to be taken next is the last of a pool that shares
    /// nothing, and the first of one that does.
    free: Vec<u32>,
    /// Tenants of which something is counted.
    tenants: u32,
    shared: Option<SavedShared>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedSequence {
    request: RequestId,
    tenant: TenantId,
    table: Vec<u32>,
    parts: Vec<DeviceId>,
}

impl KvPool {
    pub(crate) fn save(&self) -> SavedPool {
        let saved = |request| {
            let Sequence { tenant, table, parts } = self.sequences.get(&request)?.clone();
            Some(SavedSequence { request, tenant, table, parts: parts.into_vec() })
        };
        let shared = self.shared.as_deref();
        SavedPool {
            sequences: self.sequences().into_iter().filter_map(saved).collect(),
            free: shared.map_or_else(|| self.free.clone(), |shared| shared.queue().map(|(block, _)| block).collect()),
            tenants: self.by_tenant.len() as u32,
            shared: shared.map(Shared::save),
        }
    }

    /// The pool of `total` blocks that was saved, in a graph with so many tenants. O(blocks that were handed
    /// out).
    ///
    /// # Errors
    /// What a pool could not be.
    pub(crate) fn restored(total: u32, saved: SavedPool, tenants: usize) -> Result<Self, &'static str> {
        let SavedPool { sequences, free, tenants: counted, shared } = saved;
        let listed = shared.as_ref().map_or(0, |shared| shared.displaced.len());
        let known = |tenant: &TenantId| tenant.index() < tenants;
        let had = shared.as_ref().map_or(&[][..], |shared| &shared.had);
        let owners = sequences.iter().map(|sequence| &sequence.tenant).chain(had);
        if counted as usize > tenants || listed > tenants || !owners.into_iter().all(known) {
            return Err("blocks of a tenant that there is not");
        }
        if sequences.iter().any(|sequence| sequence.tenant.index() >= counted as usize) {
            return Err("a sequence of a tenant of which nothing is counted");
        }
        if shared.iter().flat_map(|shared| &shared.displaced).any(|&displaced| displaced > u64::MAX / 2) {
            return Err("more blocks displaced than any pool reaches");
        }
        let held = sequences.iter().map(|sequence| sequence.table.len()).fold(free.len(), usize::saturating_add);
        let untouched = shared.as_ref().map_or(held, |shared| shared.had.len());
        if untouched > total as usize {
            return Err("more blocks than the device has");
        }
        let mut pool = Self { total, untouched: untouched as u32, ..Self::default() };
        pool.by_tenant.resize(counted as usize, 0);
        let mut seen = vec![false; untouched];
        let mut first = |block: u32| seen.get_mut(block as usize).is_some_and(|seen| !std::mem::replace(seen, true));
        for SavedSequence { request, tenant, table, parts } in sequences {
            for &block in &table {
                match first(block) {
                    true => pool.count(tenant, 1),
                    false if shared.is_some() => {}
                    false => return Err("a block that two sequences hold, in a pool that shares none"),
                }
            }
            if pool.sequences.insert(request, Sequence { tenant, table, parts: SmallVec::from_vec(parts) }).is_some() {
                return Err("two sequences of one request");
            }
        }
        match shared {
            Some(shared) => {
                let tables = pool.sequences.values().map(|sequence| (sequence.tenant, &sequence.table[..]));
                pool.shared = Some(Box::new(Shared::restored(shared, &free, tables)?));
            }
            None if free.iter().all(|&block| first(block)) => pool.free = free,
            None => return Err("a free block that is held, or free twice"),
        }
        Ok(pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_at_their_maximum_are_refused() {
        let (mut pool, owner, other) = (KvPool::caching(1), TenantId(0), TenantId(1));
        pool.grow(RequestId(0), owner, 1);
        pool.publish(RequestId(0), 0, &[7]);
        pool.release(RequestId(0));
        pool.grow(RequestId(1), other, 1);
        assert_eq!(pool.displaced(owner), 1);
        for (displaced, fits) in [(u64::MAX, false), (u64::MAX / 2 + 1, false), (u64::MAX / 2, true)] {
            let mut saved = pool.save();
            for count in saved.shared.iter_mut().flat_map(|shared| &mut shared.displaced) {
                *count = displaced;
            }
            assert_eq!(KvPool::restored(1, saved, 2).is_ok(), fits, "{displaced}");
        }
    }
}
