//! Sequences that begin alike hold the same blocks, in the graph, its branches, its logs and its hash.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{DeviceId, RequestId};
use slicescheduler_gmg::memory::{ByteKind, Lent, Owned, Reclaim, ReclaimTimes, reclaim_order};
use slicescheduler_gmg::plan::{DeviceReport, Event, Source};
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_gmg::{Delta, Effect, Gmg, GmgError, GmgView, Intent, wire};
use support::digest::digest;
use support::{BATCH, CHAIN, CHAT, DIAMOND, OPS, batch, dispatch, finished, gmg, lane, request};

const HOME: DeviceId = DeviceId(0);

fn share(request: RequestId, hashes: &[u64]) -> Intent {
    Intent::SharePrefix { request, device: HOME, hashes: hashes.into() }
}

fn publish(request: RequestId, first: u32, hashes: &[u64]) -> Intent {
    Intent::PublishBlocks { request, device: HOME, first, hashes: hashes.into() }
}

fn free(gmg: &Gmg) -> u32 {
    gmg.state().memory(HOME).unwrap().kv().free_blocks()
}

/// A graph in which a request has three blocks on device 0, two of them published.
fn published() -> (Gmg, RequestId) {
    let mut gmg = gmg();
    let first = request(&mut gmg, CHAT);
    let job = gmg.submit(batch(CHAIN, &[first], 3)).unwrap();
    dispatch(&mut gmg, job, 0..OPS, lane(0, 0)).unwrap();
    gmg.apply(finished(job, 0..OPS, lane(0, 0), 1)).unwrap();
    gmg.apply(publish(first, 0, &[1, 2])).unwrap();
    (gmg, first)
}

#[test]
fn a_block_is_counted_once_however_many_hold_it_and_stays_when_none_does() {
    let (mut gmg, first) = published();
    let second = request(&mut gmg, CHAT);
    assert_eq!(gmg.apply(share(second, &[1, 2, 3])).unwrap().effect, Effect::Shared { blocks: 2 });
    assert_eq!(free(&gmg), 12 - 3);
    assert_eq!(gmg.state().memory(HOME).unwrap().ledger().of(ByteKind::Kv), Bytes::kib(3));
    gmg.apply(Intent::RetireRequest { request: first }).unwrap();
    assert_eq!(free(&gmg), 12 - 2);
    gmg.apply(Intent::RetireRequest { request: second }).unwrap();
    assert_eq!((free(&gmg), gmg.state().memory(HOME).unwrap().kv().cached_by(CHAT)), (12, 2));
    assert_eq!(gmg.state().memory(HOME).unwrap().ledger().of(ByteKind::Kv), Bytes::ZERO);
    let third = request(&mut gmg, CHAT);
    assert_eq!(gmg.apply(share(third, &[1, 9])).unwrap().effect, Effect::Shared { blocks: 1 });
    let other = request(&mut gmg, BATCH);
    assert_eq!(gmg.apply(share(other, &[1])).unwrap().effect, Effect::Shared { blocks: 0 });
    assert_eq!(gmg.state().request(other).unwrap().device, None);
}

#[test]
fn a_copy_is_made_when_one_of_two_writes() {
    let (mut gmg, first) = published();
    let second = request(&mut gmg, CHAT);
    gmg.apply(Intent::ForkSequence { of: first, request: second }).unwrap();
    assert_eq!(free(&gmg), 12 - 3);
    let write = |request| Intent::OwnBlock { request, device: HOME, block: 2 };
    let Effect::Owned(Owned::Copied { from, to }) = gmg.apply(write(second)).unwrap().effect else { panic!() };
    let kv = gmg.state().memory(HOME).unwrap().kv();
    assert_eq!((kv.table(first)[2], kv.table(second)[2]), (from, to));
    assert_eq!((kv.table(first)[..2].to_vec(), free(&gmg)), (kv.table(second)[..2].to_vec(), 12 - 4));
    assert_eq!(gmg.apply(write(first)).unwrap().effect, Effect::Owned(Owned::InPlace));
}

#[test]
fn what_cannot_be_shared_is_refused_and_nothing_changes() {
    let (mut gmg, first) = published();
    let (waits, other) = (request(&mut gmg, CHAT), request(&mut gmg, BATCH));
    let before = digest(gmg.state());
    let mut refused = |intent: Intent| gmg.apply(intent).unwrap_err();
    assert!(matches!(refused(share(first, &[1])), GmgError::RequestStarted { .. }));
    assert!(matches!(refused(publish(waits, 0, &[1])), GmgError::NoSequence { .. }));
    assert!(matches!(refused(publish(first, 2, &[1, 2])), GmgError::NoSuchBlocks { count: 3, .. }));
    assert!(matches!(refused(publish(first, u32::MAX, &[1])), GmgError::NoSuchBlocks { .. }));
    let fork = |of, request| Intent::ForkSequence { of, request };
    assert!(matches!(refused(fork(first, other)), GmgError::OtherTenant { .. }));
    assert!(matches!(refused(fork(RequestId(99), waits)), GmgError::NoSuchRequest(_)));
    assert!(matches!(refused(fork(waits, waits)), GmgError::RequestWaits(_)));
    let own = Intent::OwnBlock { request: first, device: HOME, block: u32::MAX };
    assert!(matches!(refused(own), GmgError::NoSuchBlocks { .. }));
    assert_eq!(digest(gmg.state()), before);
}

/// The diamond's tenant ran two sequences of two blocks on `device`, one of which has ended.
fn with_cache(gmg: &mut Gmg, device: u32) -> RequestId {
    let [ended, kept] = [request(gmg, BATCH), request(gmg, BATCH)];
    for (sequence, hashes) in [(ended, [5, 6]), (kept, [5, 7])] {
        let job = gmg.submit(batch(DIAMOND, &[sequence], 2)).unwrap();
        dispatch(gmg, job, 0..4, lane(device, 0)).unwrap();
        gmg.apply(finished(job, 0..4, lane(device, 0), 1)).unwrap();
        let device = DeviceId(device);
        gmg.apply(Intent::PublishBlocks { request: sequence, device, first: 0, hashes: hashes.into() }).unwrap();
    }
    gmg.apply(Intent::RetireRequest { request: ended }).unwrap();
    assert_eq!(gmg.state().memory(DeviceId(device)).unwrap().kv().cached_by(BATCH), 2);
    kept
}

fn order(gmg: &Gmg, device: u32) -> Vec<Lent> {
    let mut order: Vec<Reclaim> = Vec::new();
    reclaim_order(&gmg.view(), DeviceId(device), ReclaimTimes { boundary: Nanos(1), keep_at: None }, &mut order);
    order.into_iter().map(|reclaim| reclaim.what).collect()
}

#[test]
fn a_guests_cache_is_had_back_before_its_sequences() {
    let mut gmg = gmg();
    gmg.apply(Intent::LoadWeights { model: DIAMOND, device: HOME, source: Source::Host }).unwrap();
    gmg.apply(Event::WeightsLoaded { model: DIAMOND, device: HOME, at: Nanos(1) }).unwrap();
    let kept = with_cache(&mut gmg, 0);
    assert_eq!(order(&gmg, 0), [Lent::Replica(DIAMOND), Lent::Prefixes(BATCH), Lent::Sequence(kept)]);
    gmg.apply(Intent::DropPrefixes { tenant: BATCH, device: HOME }).unwrap();
    assert_eq!(order(&gmg, 0), [Lent::Replica(DIAMOND), Lent::Sequence(kept)]);
}

#[test]
fn an_agent_that_says_what_it_has_has_no_cache() {
    let mut gmg = gmg();
    let kept = with_cache(&mut gmg, 1);
    assert_eq!(order(&gmg, 1), []);
    let (device, models) = (DeviceId(1), vec![DIAMOND]);
    let report = DeviceReport { device, queued: vec![], jobs: vec![], models, sequences: vec![kept] };
    gmg.apply(Event::Resync { devices: vec![report], at: Nanos(9) }).unwrap();
    let memory = gmg.state().memory(device).unwrap();
    assert_eq!((memory.kv().cached_by(BATCH), memory.kv().table(kept).len()), (0, 2));
}

#[test]
fn sharing_is_logged_replayed_published_and_part_of_the_hash() {
    let (mut gmg, first) = published();
    let mut readers = gmg.publish();
    let (second, third) = (request(&mut gmg, CHAT), request(&mut gmg, CHAT));
    let intents = [
        share(second, &[1, 2]),
        Intent::ForkSequence { of: first, request: third },
        Intent::OwnBlock { request: third, device: HOME, block: 2 },
        publish(third, 2, &[7]),
        Intent::RetireRequest { request: third },
        Intent::DropPrefixes { tenant: CHAT, device: HOME },
    ];
    let (mut replayed, again) = published();
    assert_eq!(again, first);
    assert_eq!([request(&mut replayed, CHAT), request(&mut replayed, CHAT)], [second, third]);
    let mut hashes = vec![gmg.state().content_hash()];
    let none: &[std::sync::Arc<OpGraph>] = &[];
    for intent in intents {
        let delta = Delta::from(intent);
        gmg.apply(delta.clone()).unwrap();
        readers = gmg.publish();
        assert_eq!(digest(&readers.view()), digest(gmg.state()));
        let json = wire::to_json(&delta).unwrap();
        assert_eq!(wire::to_json(&wire::from_json(&json, none).unwrap()).unwrap(), json);
        replayed.apply(wire::from_bytes(&wire::to_bytes(&delta).unwrap(), none).unwrap()).unwrap();
        assert_eq!(digest(replayed.state()), digest(gmg.state()));
        let hash = gmg.state().content_hash();
        assert_eq!(replayed.state().content_hash(), hash);
        assert!(!hashes.contains(&hash), "{json}");
        hashes.push(hash);
    }
    drop(readers);
}
