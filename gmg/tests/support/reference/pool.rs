//! KV blocks: one queue from the start, searched from end to end. Blocks are counted as they come; which
//! number the graph gives them does not matter, as long as it is always the same.

use std::collections::BTreeMap;

use slicescheduler_gmg::id::{RequestId, TenantId};

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) queue: Vec<usize>,
    /// Whose, what, and when it was.
    contents: Vec<Option<(TenantId, u64, usize)>>,
    pub(super) tables: BTreeMap<RequestId, (TenantId, Vec<usize>)>,
    displaced: BTreeMap<TenantId, u64>,
    /// Whose contents go last.
    pub(super) keeper: Option<TenantId>,
    clock: usize,
}

impl Pool {
    pub(super) fn new(blocks: u32, keeper: Option<TenantId>) -> Self {
        Self {
            queue: (0..blocks as usize).collect(),
            contents: vec![None; blocks as usize],
            tables: BTreeMap::new(),
            displaced: BTreeMap::new(),
            keeper,
            clock: 0,
        }
    }

    pub(super) fn table(&self, request: RequestId) -> &[usize] {
        self.tables.get(&request).map_or(&[], |(_, table)| table)
    }

    pub(super) fn holders(&self, block: usize) -> usize {
        self.tables.values().flat_map(|(_, table)| table).filter(|&&held| held == block).count()
    }

    pub(super) fn cached_by(&self, tenant: TenantId) -> u32 {
        let of = |block: &&usize| self.contents[**block].is_some_and(|(owner, ..)| owner == tenant);
        self.queue.iter().filter(of).count() as u32
    }

    pub(super) fn displaced(&self, tenant: TenantId) -> u64 {
        self.displaced.get(&tenant).copied().unwrap_or(0)
    }

    fn pop(&mut self, by: TenantId) -> usize {
        let is_kept = |&block: &usize| self.contents[block].is_some_and(|(owner, ..)| Some(owner) == self.keeper);
        let place = self.queue.iter().position(|block| !is_kept(block)).unwrap_or(0);
        let block = self.queue.remove(place);
        if let Some((owner, ..)) = self.contents[block].take() {
            *self.displaced.entry(owner).or_default() += u64::from(owner != by);
        }
        block
    }

    pub(super) fn grow(&mut self, request: RequestId, tenant: TenantId, blocks: u32) {
        let owner = self.tables.entry(request).or_insert((tenant, vec![])).0;
        for _ in 0..blocks {
            let block = self.pop(owner);
            self.tables.entry(request).and_modify(|(_, table)| table.push(block));
        }
    }

    pub(super) fn release(&mut self, request: RequestId) {
        let Some((_, mut table)) = self.tables.remove(&request) else { return };
        while let Some(block) = table.pop() {
            if !table.contains(&block) && self.holders(block) == 0 {
                self.queue.push(block);
            }
        }
    }

    fn find(&self, tenant: TenantId, hash: u64) -> Option<usize> {
        let found = (0..self.contents.len()).filter_map(|block| {
            let (owner, content, since) = self.contents[block]?;
            ((owner, content) == (tenant, hash)).then_some((since, block))
        });
        found.min().map(|(_, block)| block)
    }

    pub(super) fn share(&mut self, request: RequestId, tenant: TenantId, hashes: &[u64]) -> bool {
        let table: Vec<_> = hashes.iter().map_while(|&hash| self.find(tenant, hash)).collect();
        if table.is_empty() {
            return false;
        }
        self.queue.retain(|block| !table.contains(block));
        self.tables.insert(request, (tenant, table));
        true
    }

    pub(super) fn publish(&mut self, request: RequestId, first: usize, hashes: &[u64]) {
        let (tenant, table) = self.tables[&request].clone();
        for (&block, &hash) in table[first..].iter().zip(hashes) {
            if self.contents[block].is_none() {
                self.contents[block] = Some((tenant, hash, self.clock));
                self.clock += 1;
            }
        }
    }

    pub(super) fn fork(&mut self, of: RequestId, request: RequestId) {
        let copy = self.tables[&of].clone();
        self.tables.insert(request, copy);
    }

    pub(super) fn own(&mut self, request: RequestId, index: usize) {
        let (tenant, table) = self.tables[&request].clone();
        if self.holders(table[index]) == 1 {
            self.contents[table[index]] = None;
        } else {
            let block = self.pop(tenant);
            self.tables.entry(request).and_modify(|(_, table)| table[index] = block);
        }
    }

    pub(super) fn drop_cached(&mut self, of: impl Fn(TenantId) -> bool) {
        let mut last = Vec::new();
        for &block in &self.queue {
            if let Some((owner, ..)) = self.contents[block].take_if(|(owner, ..)| of(*owner))
                && Some(owner) == self.keeper
            {
                last.push(block);
            }
        }
        self.queue.retain(|block| !last.contains(block));
        self.queue.extend(last);
    }
}
