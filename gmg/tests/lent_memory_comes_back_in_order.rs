//! What a device has lent can be had back in a fixed order, at a time that is known; what is queued on it
//! frees memory whatever the order.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod support;

use slicescheduler_gmg::id::DeviceId;
use slicescheduler_gmg::memory::{Lent, Orders, Reclaim, ReclaimTimes, reclaim_order, time_to_free};
use slicescheduler_gmg::plan::{Event, Fate, Source};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_gmg::{GmgView, Intent};
use support::{BATCH, CHAIN, CHAT, DIAMOND, batch, dispatch, gmg, lane, recalled, request};

/// Device 0 belongs to the chain's tenant. The diamond's weights are 3 KiB in four products of which
/// three have weights; blocks are 1 KiB, and 1 GB/s moves one in 1,024 ns.
#[test]
fn replicas_go_before_sequences_and_what_is_idle_before_what_is_used() {
    let home = DeviceId(0);
    let mut gmg = gmg();
    gmg.apply(Intent::LoadWeights { model: DIAMOND, device: home, source: Source::Host }).unwrap();
    gmg.apply(Event::WeightsLoaded { model: DIAMOND, device: home, at: Nanos(1) }).unwrap();
    let (owners, used, idle) = (request(&mut gmg, CHAT), request(&mut gmg, BATCH), request(&mut gmg, BATCH));
    let own = gmg.submit(batch(CHAIN, &[owners], 3)).unwrap();
    dispatch(&mut gmg, own, 0..6, lane(0, 1)).unwrap();
    for (request, blocks) in [(used, 2), (idle, 1)] {
        let job = gmg.submit(batch(DIAMOND, &[request], blocks)).unwrap();
        dispatch(&mut gmg, job, 0..4, lane(0, 0)).unwrap();
        if request == idle {
            gmg.apply(recalled(job, lane(0, 0), 0..0, 4, Fate::Keep)).unwrap();
        }
    }

    let mut order = Vec::new();
    let times = ReclaimTimes { boundary: Nanos(500), keep_at: Some(Bandwidth::gb_per_s(1)) };
    reclaim_order(&gmg.view(), home, times, &mut order);
    let expected = [
        Reclaim { what: Lent::Replica(DIAMOND), bytes: Bytes::kib(3), time: Nanos(500) },
        Reclaim { what: Lent::Sequence(idle), bytes: Bytes::kib(1), time: Nanos(1024) },
        Reclaim { what: Lent::Sequence(used), bytes: Bytes::kib(2), time: Nanos(500 + 2048) },
    ];
    assert_eq!(order, expected);
    assert_eq!(time_to_free(&order, Bytes::ZERO), Some(Nanos::ZERO));
    assert_eq!(time_to_free(&order, Bytes::kib(3)), Some(Nanos(500)));
    assert_eq!(time_to_free(&order, Bytes(3 * 1024 + 1)), Some(Nanos(500 + 1024)));
    assert_eq!(time_to_free(&order, Bytes::kib(7)), None);

    order.clear();
    reclaim_order(&gmg.view(), home, ReclaimTimes { boundary: Nanos(500), keep_at: None }, &mut order);
    let dropped: Vec<_> = order.iter().map(|reclaim| reclaim.time).collect();
    assert_eq!(dropped, [Nanos(500), Nanos(0), Nanos(500)]);

    order.clear();
    reclaim_order(&gmg.view(), DeviceId(2), times, &mut order);
    assert_eq!(order, [], "a device that no one owns lends nothing");
}

/// Hand calculation: two tokens of a chain take two buffers of 256 bytes. Weights are 6 KiB.
#[test]
fn queued_work_frees_its_activations_before_what_comes_behind_it_and_not_before_what_comes_beside_it() {
    let home = DeviceId(0);
    let mut gmg = gmg();
    for index in [0, 0, 1] {
        let job = gmg.submit(support::iteration(CHAIN, 2)).unwrap();
        dispatch(&mut gmg, job, 0..6, lane(0, index)).unwrap();
    }
    let in_use = gmg.view().memory(home).unwrap().ledger().total();
    assert_eq!(in_use, Bytes(6 * 1024 + 3 * 512));
    let mut last = Vec::new();
    let mut orders = Orders::queued(&gmg.view(), home, &mut last);
    assert_eq!(last.iter().map(|&(lane, ..)| lane).collect::<Vec<_>>(), [lane(0, 0), lane(0, 1)]);
    assert_eq!(orders.peak(), in_use);

    let behind = orders.step(Bytes(2048), Bytes(2048));
    orders.before(last[0].2, behind).unwrap();
    assert_eq!(orders.peak(), in_use + Bytes(2048) - Bytes(2 * 512));
    let beside = orders.step(Bytes(100), Bytes(100));
    orders.before(last[1].2, beside).unwrap();
    assert_eq!(orders.peak(), in_use + Bytes(2048 - 2 * 512));
    orders.step(Bytes(100), Bytes(100));
    assert_eq!(orders.peak(), in_use + Bytes(2048 - 2 * 512 + 100));
}
