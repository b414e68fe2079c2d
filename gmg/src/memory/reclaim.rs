//! What an owner can get back of its device, in which order, and how soon.

use crate::id::{DeviceId, LaneId, ModelId, RequestId, TenantId};
use crate::units::{Bandwidth, Bytes, Nanos};
use crate::view::GmgView;

/// Something of another tenant that lies on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lent {
    /// A copy of a guest's weights.
    Replica(ModelId),
    /// What a guest's ended sequences left in KV blocks, for others that begin alike. A growth takes
    /// these blocks by itself, but whose have been free longest first, the owner's among them; had back, they
    /// go before the owner's own.
    Prefixes(TenantId),
    /// The KV sequence of a guest's request.
    Sequence(RequestId),
}

/// Bytes that can be had back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclaim {
    /// What goes.
    pub what: Lent,
    /// How much is free then.
    pub bytes: Bytes,
    /// How long it takes, once it is its turn.
    pub time: Nanos,
}

/// What reclaiming takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimTimes {
    /// Until guests' work on a lane has come to its next operator boundary and what it uses can go.
    pub boundary: Nanos,
    /// How fast a sequence is copied away before it goes. [`None`]: it is dropped, and its tokens are
    /// computed again.
    pub keep_at: Option<Bandwidth>,
}

/// What `device` has lent, in the order in which it is to be had back, appended to `into`: copies of
/// weights, which are somewhere else as well, before cached prefixes, which nobody waits for, before sequences;
/// of each kind what nobody uses at the moment first; ascending by id among equals.
///
/// Nothing of the owner's is in it, and nothing of a device that no one owns. O(what is on the device
/// and queued there).
pub fn reclaim_order(view: &impl GmgView, device: DeviceId, times: ReclaimTimes, into: &mut Vec<Reclaim>) {
    let (Some(owner), Some(memory)) = (view.owner(device), view.memory(device)) else { return };
    let (mut models, mut requests) = (Vec::new(), Vec::new());
    let lanes = view.cluster().devices().get(device.index()).map_or(0, |device| device.spec.lanes);
    for lane in (0..lanes).filter_map(|index| view.lane(LaneId::new(device, index))) {
        for job in lane.queue().iter().filter_map(|entry| view.job(entry.job)) {
            models.push(job.spec.model);
            requests.extend(job.spec.requests());
        }
    }
    let is_guest = |tenant: Option<TenantId>| tenant.is_some_and(|tenant| tenant != owner);
    let wait = |used: bool| if used { times.boundary } else { Nanos::ZERO };
    let replicas = memory.models().filter(|&(model, _)| is_guest(view.model(model).map(|model| model.tenant)));
    let replicas = replicas.filter_map(|(model, _)| Some((model, memory.weight_region(model)?.bytes)));
    let mut lent: Vec<_> = replicas
        .map(|(model, bytes)| Reclaim { what: Lent::Replica(model), bytes, time: wait(models.contains(&model)) })
        .collect();
    lent.sort_by_key(|reclaim| reclaim.time);
    into.append(&mut lent);

    let block = memory.layout().kv_block;
    into.extend(memory.kv().cachers().filter(|&tenant| tenant != owner).map(|tenant| Reclaim {
        what: Lent::Prefixes(tenant),
        bytes: block.times(u64::from(memory.kv().cached_by(tenant))),
        time: Nanos::ZERO,
    }));
    let sequences = memory.kv().sequences().into_iter();
    let guests = sequences.filter(|&request| is_guest(view.request(request).map(|request| request.tenant)));
    lent.extend(guests.map(|request| {
        let bytes = block.times(memory.kv().table(request).len() as u64);
        let copy = times.keep_at.map_or(Nanos::ZERO, |bandwidth| bandwidth.time_for(bytes));
        Reclaim { what: Lent::Sequence(request), bytes, time: wait(requests.contains(&request)) + copy }
    }));
    let in_use = |reclaim: &Reclaim| matches!(reclaim.what, Lent::Sequence(request) if requests.contains(&request));
    lent.sort_by_key(in_use);
    into.append(&mut lent);
}

/// How long it takes until `wanted` bytes are free, going through `order` from the front, one after
/// the other; [`None`] if it does not hold that much.
pub fn time_to_free(order: &[Reclaim], wanted: Bytes) -> Option<Nanos> {
    let (mut free, mut time) = (Bytes::ZERO, Nanos::ZERO);
    let mut order = order.iter();
    while free < wanted {
        let next = order.next()?;
        (free, time) = (free + next.bytes, time + next.time);
    }
    Some(time)
}
