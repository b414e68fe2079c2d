//! Sequences that begin alike: batching and graph agree, and every block that is built on holds what it is taken for.
//!
//! Oracle: [`Contents`] is told which block holds what when that was computed, and nothing else; it knows neither
//! hashes of the pool nor its queue.

use std::collections::HashMap;

use proptest::prelude::*;
use slicescheduler::driver::Driver;
use slicescheduler::scenario::Scenario;
use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, RequestId, TenantId};
use slicescheduler_gmg::memory::KvPool;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_scheduler::baseline::BASELINES;
use slicescheduler_scheduler::batching::{Batcher, Sequence};

use crate::accounted::{accounted, troubles};
use crate::rig::{Driven, Faults, POLICIES, ROOMY, TIGHT, Watched, small};

/// A sequence as it was seen last.
struct Seen {
    device: DeviceId,
    computed: u32,
    ahead: u32,
    preemptions: u32,
    table: Vec<u32>,
    /// What is in the blocks that will be full when what is under way has ended.
    hashes: Vec<u64>,
}

#[derive(Default)]
struct Contents {
    /// What the full blocks hold that somebody has computed.
    blocks: HashMap<(DeviceId, u32), (TenantId, u64)>,
    seen: HashMap<RequestId, Seen>,
    tenants: HashMap<RequestId, TenantId>,
    /// Blocks with which sequences began that they had not computed.
    found: u64,
    looks: u64,
}

impl Contents {
    fn look(&mut self, driver: &Driver<Watched>) {
        let view = driver.gmg().view();
        self.looks += 1;
        self.blocks.retain(|&(device, _), _| !view.is_lost(device));
        self.let_go(driver);
        for batcher in driver.batching() {
            for replica in batcher.replicas() {
                let kv = view.memory(replica.device).unwrap().kv();
                for sequence in replica.running() {
                    self.look_at(sequence, batcher, (replica.device, kv));
                }
            }
        }
        if self.looks.is_multiple_of(64) {
            references_are_right(driver);
        }
    }

    fn look_at(&mut self, sequence: &Sequence, batcher: &Batcher, (device, kv): (DeviceId, &KvPool)) {
        let (tenant, block_tokens) = (batcher.tenant(), batcher.options().block_tokens);
        let &Sequence { request: id, computed, ahead, preemptions, blocks, .. } = sequence;
        let (table, full) = (kv.table(id), computed / block_tokens);
        assert_eq!(table.len() as u32, blocks, "{id} on {device}");
        let before = self
            .seen
            .get(&id)
            .map(|before| (before.computed / block_tokens, &before.table, (before.computed, before.ahead)));
        if before.is_some_and(|(_, known, at)| *known == table && at == (computed, ahead))
            && !self.looks.is_multiple_of(64)
        {
            return;
        }
        let mut moved = Vec::new();
        let (mut new, mut known) = (0, 0);
        if let Some((full, table_before, _)) = before {
            (new, known) = (full, table_before.len());
            moved = table_before.iter().copied().zip(table.iter().copied()).filter(|(from, to)| from != to).collect();
        } else {
            self.found += u64::from(full);
        }
        for (from, to) in moved {
            // The pool has given back blocks to weights.
            assert!(from >= kv.total() && to < kv.total(), "{id}: {from} became {to} on {device}");
            if let Some(content) = self.blocks.remove(&(device, from)) {
                self.blocks.insert((device, to), content);
            }
        }
        let is_new = known == 0;
        for (place, hash) in (0u32..).zip(sequence.block_hashes(0..full)) {
            let block = (device, table[place as usize]);
            // What it began with is there already.
            if place >= new && !is_new {
                self.blocks.insert(block, (tenant, hash));
            }
            assert_eq!(self.blocks.get(&block), Some(&(tenant, hash)), "block {place} of {id} on {device}");
        }
        for (place, &block) in (0u32..).zip(table).skip(full as usize) {
            self.blocks.remove(&(device, block));
            assert_eq!(kv.holders(id, place), 1, "block {place} of {id} is written");
        }
        self.tenants.insert(id, tenant);
        let hashes = sequence.block_hashes(0..(computed + ahead) / block_tokens);
        self.seen.insert(id, Seen { device, computed, ahead, preemptions, table: table.to_vec(), hashes });
    }

    /// What sequences have left that ended or lost their blocks. What was under way may have been computed.
    fn let_go(&mut self, driver: &Driver<Watched>) {
        let (view, mut running) = (driver.gmg().view(), HashMap::new());
        for batcher in driver.batching() {
            for replica in batcher.replicas() {
                running.extend(replica.running().iter().map(|one| (one.request, (replica.device, one.preemptions))));
            }
        }
        let blocks = &mut self.blocks;
        self.seen.retain(|id, seen| {
            let stays = running.get(id) == Some(&(seen.device, seen.preemptions));
            if let Some(&tenant) = self.tenants.get(id).filter(|_| !stays && !view.is_lost(seen.device)) {
                let filled = seen.table.iter().zip(&seen.hashes);
                blocks.extend(filled.map(|(&block, &hash)| ((seen.device, block), (tenant, hash))));
            }
            stays
        });
    }
}

/// Every block has as many holders as there are tables with it, all of one tenant, and is free if it is in none.
fn references_are_right(driver: &Driver<Watched>) {
    let view = driver.gmg().view();
    for device in (0..view.cluster().devices().len() as u32).map(DeviceId) {
        let kv = view.memory(device).unwrap().kv();
        let mut tables: HashMap<u32, (u32, TenantId)> = HashMap::new();
        let running = driver.batching().iter().flat_map(|batcher| {
            let here = batcher.replicas().iter().filter(move |replica| replica.device == device);
            here.flat_map(|replica| replica.running()).map(move |sequence| (batcher.tenant(), sequence.request))
        });
        let running: HashMap<RequestId, TenantId> = running.map(|(tenant, id)| (id, tenant)).collect();
        for id in kv.sequences() {
            let tenant = running.get(&id).copied();
            let tenant =
                tenant.unwrap_or_else(|| panic!("{id} has blocks on {device}, and batching knows nothing of it"));
            for &block in kv.table(id) {
                let (holders, of) = tables.entry(block).or_insert((0, tenant));
                *holders += 1;
                assert_eq!(*of, tenant, "block {block} of {device}");
            }
        }
        assert_eq!(kv.used_blocks() as usize, tables.len(), "{device} at {}", driver.now());
        for id in kv.sequences() {
            for (place, block) in (0u32..).zip(kv.table(id)) {
                assert_eq!(kv.holders(id, place), tables[block].0, "block {block} of {device}");
            }
        }
        let cached: u32 = kv.cachers().map(|tenant| kv.cached_by(tenant)).sum();
        assert!(cached <= kv.free_blocks(), "{device}");
    }
    for waiting in driver.batching().iter().flat_map(|batcher| batcher.waiting()) {
        let device = view.request(waiting.request).unwrap().device;
        assert_eq!((device, waiting.blocks), (None, 0), "{} waits", waiting.request);
    }
}

/// As [`small`], with prefix caches.
fn caching(usable: f64, duration: Nanos, seed: u64) -> Scenario {
    let mut scenario = small(usable, duration, seed);
    scenario.tenants.iter_mut().for_each(|tenant| tenant.prefix_caching = true);
    scenario
}

fn checked(usable: f64, seed: u64, policy: &str, faults: &Faults) -> (Driven<Watched>, Contents) {
    let scenario = caching(usable, Nanos::secs(4), seed);
    let mut contents = Contents::default();
    let run = accounted(&scenario, policy, faults, Nanos::secs(16), |driver| contents.look(driver));
    (run, contents)
}

#[test]
fn every_policy_shares_blocks_and_leaves_nothing_behind() {
    for policy in BASELINES.iter().map(|baseline| baseline.name).chain(["slice-fill"]) {
        let (run, contents) = checked(ROOMY, 5, policy, &Faults::default());
        assert!(contents.found > 100, "{policy}: {} blocks were found", contents.found);
        let cached: u64 = run.completed.iter().map(|done| u64::from(done.cached)).sum();
        assert!(cached > 1000, "{policy}: {cached} tokens came from a prefix cache");
        let open =
            run.driver.batching().iter().flat_map(|batcher| batcher.replicas()).any(|one| !one.running().is_empty());
        let view = run.driver.gmg().view();
        for device in view.cluster().devices() {
            let kv = view.memory(device.id).unwrap().kv();
            assert!(open || kv.used_blocks() == 0, "{policy}: {} on {}", kv.used_blocks(), device.id);
        }
    }
}

/// Memory for few sequences: they are preempted and evicted, weights come and go, and blocks move.
#[test]
fn scarce_memory_changes_nothing_about_it() {
    for policy in POLICIES {
        let (run, contents) = checked(TIGHT, 7, policy, &Faults::default());
        assert!(contents.found > 100, "{policy}: {} blocks were found", contents.found);
        assert!(!run.completed.is_empty(), "{policy}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn whatever_fails_blocks_hold_what_they_are_taken_for((seed, usable, faults) in troubles(Nanos::secs(8), 5, 4)) {
        for policy in POLICIES {
            checked(usable, seed, policy, &faults);
        }
    }
}
