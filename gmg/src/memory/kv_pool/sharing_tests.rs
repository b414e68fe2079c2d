//! Oracle: the pool against lists and maps that are searched from end to end.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const BLOCKS: u32 = 10;
const HASHES: u64 = 7;
const REQUESTS: u64 = 5;

/// One queue from the start, as vLLM V1 has it; blocks with their contents and when they got them.
struct Naive {
    queue: Vec<usize>,
    contents: Vec<Option<(u32, u64, usize)>>,
    last_had_by: Vec<u32>,
    tables: BTreeMap<u64, Vec<usize>>,
    displaced: [u64; 2],
    /// Whose contents go last.
    keeper: Option<u32>,
    clock: usize,
}

fn tenant(request: u64) -> u32 {
    (request % 2) as u32
}

impl Naive {
    fn new() -> Self {
        let blocks = BLOCKS as usize;
        Self {
            queue: (0..blocks).collect(),
            contents: vec![None; blocks],
            last_had_by: vec![9; blocks],
            tables: BTreeMap::new(),
            displaced: [0; 2],
            keeper: None,
            clock: 0,
        }
    }

    fn holders(&self, block: usize) -> usize {
        self.tables.values().flatten().filter(|&&held| held == block).count()
    }

    fn pop(&mut self, by: u32) -> usize {
        let is_kept = |&block: &usize| self.contents[block].is_some_and(|(owner, ..)| Some(owner) == self.keeper);
        let place = self.queue.iter().position(|block| !is_kept(block)).unwrap_or(0);
        let block = self.queue.remove(place);
        if let Some((owner, ..)) = self.contents[block].take() {
            self.displaced[owner as usize] += u64::from(owner != by);
        }
        block
    }

    fn grow(&mut self, request: u64, blocks: u32) -> bool {
        if blocks as usize > self.queue.len() {
            return false;
        }
        let taken: Vec<_> = (0..blocks).map(|_| self.pop(tenant(request))).collect();
        self.tables.entry(request).or_default().extend(taken);
        true
    }

    fn release(&mut self, request: u64) -> u32 {
        let mut table = self.tables.remove(&request).unwrap_or_default();
        table.reverse();
        let before = self.queue.len();
        for (at, &block) in table.iter().enumerate() {
            if self.holders(block) == 0 && !table[at + 1..].contains(&block) {
                self.queue.push(block);
                self.last_had_by[block] = tenant(request);
            }
        }
        (self.queue.len() - before) as u32
    }

    fn find(&self, of: u32, hash: u64) -> Option<usize> {
        let with = (0..self.contents.len()).filter_map(|block| Some((self.contents[block]?, block)));
        let equal = with.filter(|&((owner, content, _), _)| (owner, content) == (of, hash));
        equal.min_by_key(|&((.., since), _)| since).map(|(_, block)| block)
    }

    fn share(&mut self, request: u64, hashes: &[u64]) -> u32 {
        if self.tables.contains_key(&request) {
            return 0;
        }
        let found: Vec<_> = hashes.iter().map_while(|&hash| self.find(tenant(request), hash)).collect();
        self.queue.retain(|block| !found.contains(block));
        let count = found.len() as u32;
        if count > 0 {
            self.tables.insert(request, found);
        }
        count
    }

    fn publish(&mut self, request: u64, first: u32, hashes: &[u64]) -> bool {
        let table = self.tables.get(&request).cloned().unwrap_or_default();
        if first as usize + hashes.len() > table.len() {
            return false;
        }
        for (&block, &hash) in table[first as usize..].iter().zip(hashes) {
            self.clock += 1;
            self.contents[block].get_or_insert((tenant(request), hash, self.clock));
        }
        true
    }

    fn fork(&mut self, of: u64, request: u64) -> bool {
        match self.tables.get(&of).cloned() {
            Some(table) if !self.tables.contains_key(&request) => self.tables.insert(request, table).is_none(),
            _ => false,
        }
    }

    /// [`None`]: impossible; true: a copy was made.
    fn own(&mut self, request: u64, index: u32) -> Option<bool> {
        let block = *self.tables.get(&request)?.get(index as usize)?;
        if self.holders(block) == 1 {
            self.contents[block] = None;
            return Some(false);
        }
        if self.queue.is_empty() {
            return None;
        }
        let copy = self.pop(tenant(request));
        self.tables.get_mut(&request)?[index as usize] = copy;
        Some(true)
    }

    fn shrink(&mut self, request: u64, count: u32) -> u32 {
        let Some(held) = self.tables.get(&request).map(Vec::len) else { return 0 };
        if held <= count as usize {
            return self.release(request);
        }
        let mut freed = 0;
        for _ in 0..count {
            let Some(block) = self.tables.get_mut(&request).and_then(Vec::pop) else { break };
            if self.holders(block) == 0 {
                self.queue.push(block);
                freed += 1;
            }
        }
        freed
    }

    fn drop_cached(&mut self, of: Option<u32>) -> u32 {
        let (mut dropped, mut last) = (0, Vec::new());
        for &block in &self.queue {
            let content = &mut self.contents[block];
            if let Some((owner, ..)) = content.take_if(|(owner, ..)| of.is_none_or(|of| of == *owner)) {
                dropped += 1;
                last.extend((Some(owner) == self.keeper).then_some(block));
            }
        }
        self.queue.retain(|block| !last.contains(block));
        self.queue.extend(last);
        dropped
    }

    fn cached_by(&self, of: u32) -> u32 {
        self.queue.iter().filter(|&&block| self.contents[block].is_some_and(|(owner, ..)| owner == of)).count() as u32
    }
}

/// For every block of every sequence the place of its first mention.
fn pattern<B: Copy + PartialEq>(tables: impl Iterator<Item = Vec<B>>) -> Vec<Vec<usize>> {
    let mut seen: Vec<B> = Vec::new();
    let mut place = |block: B| {
        seen.iter().position(|&other| other == block).unwrap_or_else(|| {
            seen.push(block);
            seen.len() - 1
        })
    };
    tables.map(|table| table.into_iter().map(&mut place).collect()).collect()
}

fn assert_same(pool: &KvPool, naive: &Naive) {
    let of_pool = pattern((0..REQUESTS).map(|request| pool.table(RequestId(request)).to_vec()));
    let of_naive = pattern((0..REQUESTS).map(|request| naive.tables.get(&request).cloned().unwrap_or_default()));
    assert_eq!(of_pool, of_naive);
    assert_eq!(pool.free_blocks() as usize, naive.queue.len());
    for of in 0..2 {
        let held = (0..BLOCKS as usize).filter(|&block| {
            naive.tables.iter().any(|(&request, table)| tenant(request) == of && table.contains(&block))
        });
        assert_eq!(pool.used_by(TenantId(of)) as usize, held.count());
        assert_eq!(pool.cached_by(TenantId(of)), naive.cached_by(of));
        assert_eq!(pool.displaced(TenantId(of)), naive.displaced[of as usize]);
        for hash in 0..HASHES {
            let found = naive.find(of, hash);
            let free = found.is_some_and(|block| naive.queue.contains(&block));
            assert_eq!(pool.find(TenantId(of), &[hash]), (found.is_some().into(), free.into()), "{of}, {hash}");
        }
    }
    let cachers: Vec<_> = pool.cachers().collect();
    assert_eq!(cachers, (0..2).filter(|&of| naive.cached_by(of) > 0).map(TenantId).collect::<Vec<_>>());
}

proptest! {
    #[test]
    fn it_shares_keeps_and_evicts_as_the_lists_do(
        steps in prop::collection::vec((0u8..16, 0..REQUESTS, 0..REQUESTS, 0u32..5, prop::collection::vec(0..HASHES, 0..5)), 1..120),
    ) {
        let caching = steps.len() % 2 == 0;
        let keeper = [None, Some(0), Some(1)][steps.len() / 2 % 3];
        let (mut pool, mut naive) = (if caching { KvPool::caching(BLOCKS) } else { KvPool::new(BLOCKS) }, Naive::new());
        for (kind, request, other, number, hashes) in steps {
            let (id, of) = (RequestId(request), TenantId(tenant(request)));
            match kind {
                0..=2 => prop_assert_eq!(pool.grow(id, of, number), naive.grow(request, number)),
                3..=4 => prop_assert_eq!(pool.release(id), naive.release(request)),
                5..=7 => {
                    prop_assert_eq!(pool.publish(id, number / 3, &hashes), naive.publish(request, number / 3, &hashes));
                    if let Some(keeper) = keeper {
                        pool.keep_for(TenantId(keeper));
                        naive.keeper = keeper.into();
                    }
                }
                8..=9 => prop_assert_eq!(pool.share(id, of, &hashes), naive.share(request, &hashes)),
                10 => {
                    let fork = other % 2 == request % 2;
                    prop_assert_eq!(fork && pool.fork(RequestId(other), id), fork && naive.fork(other, request));
                }
                11..=12 => {
                    let shared = pool.is_shared(id, number);
                    let before = pool.table(id).get(number as usize).copied();
                    let owned = pool.own(id, number);
                    prop_assert_eq!(owned.map(|owned| owned != Owned::InPlace), naive.own(request, number));
                    if let Some(Owned::Copied { from, to }) = owned {
                        prop_assert!(shared);
                        prop_assert_eq!((Some(from), Some(to)), (before, pool.table(id).get(number as usize).copied()));
                    }
                }
                13..=14 => prop_assert_eq!(pool.shrink(id, number), naive.shrink(request, number)),
                _ => {
                    let which = (number > 1).then_some(number % 2);
                    prop_assert_eq!(pool.drop_cached(which.map(TenantId)), naive.drop_cached(which));
                }
            }
            assert_same(&pool, &naive);
        }
    }
}

proptest! {
    /// What a draft finds is what the pool finds once the same was done to it.
    #[test]
    fn a_draft_finds_what_would_be_found(
        steps in prop::collection::vec((0u8..8, 0..REQUESTS, 0u32..5, prop::collection::vec(0..HASHES, 0..5)), 1..60),
        planned in prop::collection::vec((any::<bool>(), 0u32..2, 0..HASHES, 0u32..4), 0..8),
    ) {
        let mut pool = KvPool::caching(BLOCKS);
        pool.keep_for(TenantId(steps.len() as u32 % 3));
        for (kind, request, number, hashes) in steps {
            let (id, of) = (RequestId(request), TenantId(tenant(request)));
            match kind {
                0..=2 => drop(pool.grow(id, of, number)),
                3 => drop(pool.release(id)),
                4..=6 => pool.publish_up_to(id, number, |index| hashes.get(index as usize).copied().unwrap_or(0)),
                _ => drop(pool.share(id, of, &hashes)),
            }
        }
        let (mut done, mut draft) = (pool.clone(), pool.draft());
        for (id, (share, of, hash, count)) in (100..).map(RequestId).zip(planned) {
            let of = TenantId(of);
            if let Some(block) = draft.find(of, hash).filter(|_| share) {
                draft.share(block);
                prop_assert_eq!(done.share(id, of, &[hash]), 1);
            } else if !share {
                draft.take(count);
                prop_assert!(done.grow(id, of, count.min(done.free_blocks())));
            }
            let found = |of, hash| done.shared.as_ref().and_then(|shared| shared.find(of, hash));
            for (of, hash) in (0..2).map(TenantId).flat_map(|of| (0..HASHES).map(move |hash| (of, hash))) {
                prop_assert_eq!(draft.find(of, hash), found(of, hash));
                let free = found(of, hash).map(|_| done.find(of, &[hash]).1 == 0);
                prop_assert_eq!(draft.find(of, hash).map(|block| draft.is_held(block)), free);
            }
        }
    }
}

#[test]
fn the_end_of_a_sequence_goes_before_its_beginning_and_the_oldest_sequence_first() {
    let (mut pool, chat) = (KvPool::new(6), TenantId(0));
    for (request, hashes) in [(0, [1, 2, 3]), (1, [4, 5, 6])] {
        pool.grow(RequestId(request), chat, 3);
        pool.publish(RequestId(request), 0, &hashes);
    }
    pool.release(RequestId(1));
    pool.release(RequestId(0));
    // By the rule the queue is 6 5 4 3 2 1: four blocks take 6, 5, 4 and 3.
    pool.grow(RequestId(2), TenantId(1), 4);
    assert_eq!(pool.find(chat, &[1, 2, 3]), (2, 2));
    assert_eq!(pool.find(chat, &[4]), (0, 0));
    assert_eq!((pool.displaced(chat), pool.cached_by(chat)), (4, 2));
}

proptest! {
    /// Whatever is shared and cached: blocks that go take nothing with them that a sequence holds, and tables are as they
    /// were, each block in its new place.
    #[test]
    fn a_pool_that_shrinks_moves_what_sequences_hold(
        steps in prop::collection::vec((0u8..8, 0..REQUESTS, 0u32..4, prop::collection::vec(0..HASHES, 0..4)), 1..60),
        total in 0..BLOCKS,
        keeper in 0u32..3,
    ) {
        let mut pool = KvPool::caching(BLOCKS);
        pool.keep_for(TenantId(keeper));
        for (kind, request, number, hashes) in steps {
            let (id, of) = (RequestId(request), TenantId(tenant(request)));
            match kind {
                0..=2 => drop(pool.grow(id, of, number)),
                3 => drop(pool.release(id)),
                4..=6 => drop(pool.publish(id, 0, &hashes)),
                _ => drop(pool.share(id, of, &hashes)),
            }
        }
        let before = pool.clone();
        let held = |pool: &KvPool, hash| (0..2).map(TenantId).map(|of| {
            let (found, free) = pool.find(of, &[hash]);
            found - free
        }).collect::<Vec<_>>();
        let Some(moves) = pool.resize(total) else {
            prop_assert!(before.used_blocks() > total);
            return Ok(());
        };
        prop_assert!(moves.iter().all(|&(from, to)| to < total && total <= from) && moves.is_sorted());
        let place = |block: &u32| moves.iter().find(|(from, _)| from == block).map_or(*block, |&(_, to)| to);
        for request in (0..REQUESTS).map(RequestId) {
            let expected: Vec<u32> = before.table(request).iter().map(place).collect();
            prop_assert_eq!(pool.table(request), expected);
            for index in 0..pool.table(request).len() as u32 {
                prop_assert_eq!(pool.holders(request, index), before.holders(request, index));
            }
        }
        prop_assert_eq!((pool.total(), pool.used_blocks()), (total, before.used_blocks()));
        for hash in 0..HASHES {
            prop_assert!(held(&pool, hash) >= held(&before, hash), "what is held is found as before");
        }
        // The pool goes on: every free block can be taken, once.
        let free = pool.free_blocks();
        prop_assert!(pool.grow(RequestId(99), TenantId(0), free) && !pool.grow(RequestId(98), TenantId(0), 1));
        let all: std::collections::HashSet<u32> = pool.sequences().into_iter().flat_map(|id| pool.table(id).to_vec()).collect();
        prop_assert_eq!(all.len() as u32, total);
        prop_assert!(all.into_iter().all(|block| block < total));
        pool.sequences().into_iter().for_each(|id| {
            pool.release(id);
        });
        prop_assert_eq!(pool.free_blocks(), total);
    }
}
