//! What a plan would do to a pool.

use std::collections::HashSet;

use super::KvPool;
use super::shared::{NONE, Shared};
use crate::id::TenantId;

/// A pool as it would be if some of its free blocks were taken and others shared: for plans that are made before
/// anything is done. It keeps what it shares and where in the queue it stands, so one that takes and finds
/// nothing costs nothing.
///
/// ```
/// use slicescheduler_gmg::id::{RequestId, TenantId};
/// use slicescheduler_gmg::memory::KvPool;
///
/// let (mut pool, chat) = (KvPool::caching(4), TenantId(0));
/// pool.grow(RequestId(0), chat, 2);
/// pool.publish(RequestId(0), 0, &[0xa, 0xb]);
/// pool.release(RequestId(0));
/// let mut draft = pool.draft();
/// // Two blocks that were never used go first, then what has been free longest: the end of the sequence.
/// draft.take(3);
/// let found = draft.find(chat, 0xa).unwrap();
/// assert!(!draft.is_held(found));
/// draft.share(found);
/// draft.take(1);
/// assert_eq!((draft.find(chat, 0xa), draft.find(chat, 0xb)), (Some(found), None));
/// ```
#[derive(Clone, Debug)]
pub struct Draft<'p> {
    shared: Option<&'p Shared>,
    /// Blocks that were never handed out and are not taken: they go first.
    untouched: u32,
    /// Blocks of the queue before this one are taken, but for shared ones.
    cursor: u32,
    held: HashSet<u32>,
}

impl KvPool {
    /// The pool before a plan.
    pub fn draft(&self) -> Draft<'_> {
        let shared = self.shared.as_deref();
        let cursor = shared.map_or(NONE, Shared::front);
        Draft { shared, untouched: self.total - self.untouched, cursor, held: HashSet::new() }
    }
}

impl Draft<'_> {
    /// The next `count` free blocks are taken, or as many as there are; what they hold is not found any more.
    /// O(`count` + shared free blocks).
    pub fn take(&mut self, count: u32) {
        let Some(shared) = self.shared else { return };
        let fresh = count.min(self.untouched);
        self.untouched -= fresh;
        let mut left = count - fresh;
        while left > 0 && self.cursor != NONE {
            left -= u32::from(!self.held.contains(&self.cursor));
            self.cursor = shared.behind(self.cursor);
        }
    }

    /// The block of `tenant` that would be found under `hash`: of those that are left, the one that has had
    /// that content longest.
    pub fn find(&self, tenant: TenantId, hash: u64) -> Option<u32> {
        let shared = self.shared?;
        shared.twins(tenant, hash).find(|&block| self.is_held(block) || shared.is_from(block, self.cursor))
    }

    /// True if a sequence holds `block`, which [`find`](Self::find) gave, or would by this plan.
    pub fn is_held(&self, block: u32) -> bool {
        self.shared.is_some_and(|shared| shared.holders(block) > 0) || self.held.contains(&block)
    }

    /// A sequence that begins holds `block`, which [`find`](Self::find) gave, as well.
    pub fn share(&mut self, block: u32) {
        if !self.is_held(block) {
            self.held.insert(block);
        }
    }
}
