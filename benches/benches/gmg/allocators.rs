//! Bookkeeping of memory.

use std::hint::black_box;

use criterion::Criterion;
use range_alloc::RangeAllocator;
use slicescheduler_gmg::id::{RequestId, TenantId};
use slicescheduler_gmg::memory::{BestFit, KvPool, Region};
use slicescheduler_gmg::units::Bytes;

use crate::{lowest, timed};

/// Regions that are live at a time.
const LIVE: usize = 64;

fn sizes() -> Vec<Bytes> {
    (0..97u64).map(|n| Bytes(256 + n * n * 5003 % (1 << 20))).collect()
}

/// The sizes of activations of small and large iterations, in turn, 64 regions live.
pub(crate) fn best_fit(criterion: &mut Criterion) -> f64 {
    let mut memory = BestFit::new(Region { offset: Bytes::ZERO, bytes: Bytes::gib(10) });
    let sizes = sizes();
    let mut live: Vec<_> = (0..LIVE).filter_map(|n| memory.allocate(sizes[n * 7 % 97])).collect();
    let mut step = 0usize;
    lowest(criterion, "best fit, allocate and free", |iterations| {
        timed(iterations, || {
            step += 1;
            let place = step * 29 % live.len();
            memory.free(live[place]);
            if let Some(region) = memory.allocate(sizes[step % 97]) {
                live[place] = region;
            }
        })
    })
}

/// The same sizes through the range allocator of the crate `range-alloc`, in units of 256 bytes.
pub(crate) fn range_alloc(criterion: &mut Criterion) -> f64 {
    let units: Vec<_> = sizes().into_iter().map(|bytes| bytes.get().div_ceil(256)).collect();
    let mut memory = RangeAllocator::new(0..Bytes::gib(10).get() / 256);
    let mut live: Vec<_> = (0..LIVE).filter_map(|n| memory.allocate_range(units[n * 7 % 97]).ok()).collect();
    let mut step = 0usize;
    lowest(criterion, "range-alloc, allocate and free", |iterations| {
        timed(iterations, || {
            step += 1;
            let place = step * 29 % live.len();
            memory.free_range(live[place].clone());
            if let Ok(range) = memory.allocate_range(units[step % 97]) {
                live[place] = range;
            }
        })
    })
}

/// 48 sequences of 1 to 8 blocks; one goes and comes again.
pub(crate) fn kv_pool(criterion: &mut Criterion) -> f64 {
    let mut pool = KvPool::new(14_000);
    for request in 0..48 {
        pool.grow(RequestId(request), TenantId(0), 1 + request as u32 % 8);
    }
    let mut step = 0u64;
    lowest(criterion, "KV pool, release and grow", |iterations| {
        timed(iterations, || {
            step += 1;
            let request = RequestId(step * 29 % 48);
            black_box(pool.release(request));
            pool.grow(request, TenantId(0), 1 + step as u32 % 8);
        })
    })
}
