//! KV sequences of requests, in one part or one per rank.

use smallvec::SmallVec;

use crate::error::GmgError;
use crate::gang::Members;
use crate::id::{DeviceId, LaneId, RequestId, TenantId};
use crate::job::{Job, JobSpec};
use crate::request::{Request, RequestState};
use crate::state::Store;

/// Which part of the sequences of its batch a job needs: the first, unless it is one of a gang whose
/// ranks all have a part of the same sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) rank: u32,
    /// True if the parts of the ranks before it will be placed first.
    pub(crate) planned: bool,
}

impl Part {
    pub(crate) const FIRST: Self = Self { rank: 0, planned: false };

    pub(super) fn of(job: &Job) -> Self {
        let shared = job.gang.as_ref().is_some_and(Members::shares_batch);
        let rank = job.spec.gang.filter(|_| shared).map_or(0, |gang| gang.rank);
        Self { rank, planned: false }
    }
}

/// Why a part of a sequence cannot be on `device`.
pub(super) fn refuse_part<S: Store>(
    store: &S,
    request: RequestId,
    Part { rank, planned }: Part,
    device: DeviceId,
) -> Result<(), GmgError> {
    let found = store.request(request).filter(|found| !found.state.is_final());
    let home = found.ok_or(GmgError::NoSuchRequest(request))?.device;
    let elsewhere = |on| Err(GmgError::SequenceElsewhere { request, on, to: device });
    let Some(behind) = rank.checked_sub(1) else {
        return home.filter(|&on| on != device).map_or(Ok(()), elsewhere);
    };
    let Some(home) = home else {
        return if planned { Ok(()) } else { Err(GmgError::RankOutOfOrder { request, placed: 0, rank }) };
    };
    let parts = store.memory(home).map_or(&[][..], |memory| memory.kv().parts(request));
    match parts.get(behind as usize) {
        Some(&on) if on == device => Ok(()),
        Some(&on) => elsewhere(on),
        None if parts.len() != behind as usize && !planned => {
            Err(GmgError::RankOutOfOrder { request, placed: parts.len() as u32 + 1, rank })
        }
        None if home == device || parts.contains(&device) => Err(GmgError::SharedDevice(device)),
        None => Ok(()),
    }
}

/// True if `device` has a part of the sequence of `found`.
pub(super) fn has_part<S: Store>(store: &S, request: RequestId, found: &Request, device: DeviceId) -> bool {
    let Some(home) = found.device else { return false };
    home == device || is_part(store, request, home, device)
}

fn is_part<S: Store>(store: &S, request: RequestId, home: DeviceId, device: DeviceId) -> bool {
    store.memory(home).is_some_and(|memory| memory.kv().parts(request).contains(&device))
}

/// Grows the sequences of a batch on `device`. A request that has none there begins one, if only an
/// empty one, so that whatever befalls the device reaches it.
pub(super) fn grow<S: Store>(store: &mut S, spec: &JobSpec, device: DeviceId) {
    let tenant = store.model(spec.model).map_or(TenantId(0), |model| model.tenant);
    for id in spec.requests() {
        match store.request(id).map(|request| request.device) {
            Some(None) => {
                if let Some(request) = store.request_mut(id) {
                    request.state = RequestState::Running;
                    request.device = Some(device);
                }
                store.grow_kv(device, id, tenant, 0);
            }
            Some(Some(home)) if home != device && !is_part(store, id, home, device) => {
                if let Some(memory) = store.memory_mut(home) {
                    memory.add_kv_part(id, device);
                }
                store.grow_kv(device, id, tenant, 0);
            }
            _ => {}
        }
    }
    for growth in spec.growth.iter().filter(|growth| growth.blocks > 0) {
        store.grow_kv(device, growth.request, tenant, growth.blocks);
    }
}

/// Frees all parts of a sequence whose first part is on `home`.
pub(super) fn release<S: Store>(store: &mut S, id: RequestId, home: DeviceId) {
    let parts: SmallVec<[DeviceId; 8]> =
        store.memory(home).map_or_else(SmallVec::new, |memory| memory.kv().parts(id).into());
    for device in std::iter::once(home).chain(parts) {
        store.release_kv(device, id);
    }
}

/// Why the sequence of `request`, whose first part is on `home`, must stay: a job that uses it is on
/// a lane.
pub(super) fn refuse_in_use<S: Store>(store: &S, request: RequestId, home: DeviceId) -> Result<(), GmgError> {
    let parts = store.memory(home).map_or(&[][..], |memory| memory.kv().parts(request));
    for &device in std::iter::once(&home).chain(parts) {
        let lanes = store.cluster().devices().get(device.index()).map_or(0, |device| device.spec.lanes);
        for index in 0..lanes {
            let Some(lane) = store.lane(LaneId::new(device, index)) else { continue };
            for entry in lane.queue() {
                let uses = store.job(entry.job).is_some_and(|job| job.spec.requests().any(|used| used == request));
                if uses {
                    return Err(GmgError::RequestInUse { request, job: entry.job });
                }
            }
        }
    }
    Ok(())
}
