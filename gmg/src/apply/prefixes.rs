//! Sequences that begin alike hold the same blocks.
//!
//! What sequences of a device's owner left is taken last there, whoever takes it.

use smallvec::SmallVec;

use super::intent::{memory, usable_device};
use super::sequences::{self, Part};
use crate::delta::Effect;
use crate::error::GmgError;
use crate::id::{DeviceId, RequestId, TenantId};
use crate::request::{Request, RequestState};
use crate::state::Store;

/// A request that has not ended.
fn open<S: Store>(store: &S, id: RequestId) -> Result<&Request, GmgError> {
    store.request(id).filter(|request| !request.state.is_final()).ok_or(GmgError::NoSuchRequest(id))
}

/// A request that has not ended and has no sequence.
fn waiting<S: Store>(store: &S, id: RequestId) -> Result<TenantId, GmgError> {
    let request = open(store, id)?;
    match request.device {
        Some(device) => Err(GmgError::RequestStarted { request: id, device }),
        None => Ok(request.tenant),
    }
}

fn begin<S: Store>(store: &mut S, id: RequestId, device: DeviceId) {
    if let Some(request) = store.request_mut(id) {
        request.state = RequestState::Running;
        request.device = Some(device);
    }
}

pub(super) fn share<S: Store>(
    store: &mut S,
    request: RequestId,
    device: DeviceId,
    hashes: &[u64],
) -> Result<Effect, GmgError> {
    let tenant = waiting(store, request)?;
    sequences::refuse_part(store, request, Part::FIRST, device)?;
    let found = usable_device(store, device)?.kv().find(tenant, hashes).0;
    if found > 0 {
        memory(store, device)?.share_kv(request, tenant, hashes);
        begin(store, request, device);
    }
    Ok(Effect::Shared { blocks: found })
}

pub(super) fn publish<S: Store>(
    store: &mut S,
    request: RequestId,
    (device, first): (DeviceId, u32),
    hashes: &[u64],
) -> Result<Effect, GmgError> {
    let found = open(store, request)?;
    let count = usable_device(store, device)?.kv().table(request).len() as u32;
    if !sequences::has_part(store, request, found, device) {
        return Err(GmgError::NoSequence { request, device });
    }
    let end = u32::try_from(hashes.len()).ok().and_then(|new| first.checked_add(new)).unwrap_or(u32::MAX);
    if end > count {
        return Err(GmgError::NoSuchBlocks { request, device, blocks: first..end, count });
    }
    let owner = store.owner(device);
    let memory = memory(store, device)?;
    memory.publish_kv(request, first, hashes);
    owner.into_iter().for_each(|owner| memory.keep_kv_for(owner));
    Ok(Effect::None)
}

pub(super) fn fork<S: Store>(store: &mut S, of: RequestId, request: RequestId) -> Result<Effect, GmgError> {
    let tenant = waiting(store, request)?;
    let origin = open(store, of)?;
    if origin.tenant != tenant {
        return Err(GmgError::OtherTenant { request, of });
    }
    let home = origin.device.ok_or(GmgError::RequestWaits(of))?;
    let parts: SmallVec<[DeviceId; 8]> =
        usable_device(store, home)?.kv().parts(of).iter().copied().chain([home]).collect();
    for &device in &parts {
        usable_device(store, device)?;
    }
    for &device in &parts {
        let owner = store.owner(device);
        let memory = memory(store, device)?;
        memory.fork_kv(of, request);
        owner.into_iter().for_each(|owner| memory.keep_kv_for(owner));
    }
    begin(store, request, home);
    Ok(Effect::None)
}

pub(super) fn own<S: Store>(
    store: &mut S,
    request: RequestId,
    device: DeviceId,
    block: u32,
) -> Result<Effect, GmgError> {
    open(store, request)?;
    let found = usable_device(store, device)?;
    let (kv, count) = (found.kv(), found.kv().table(request).len() as u32);
    if block >= count {
        return Err(GmgError::NoSuchBlocks { request, device, blocks: block..block.saturating_add(1), count });
    }
    if kv.is_shared(request, block) && kv.free_blocks() == 0 {
        let wanted = found.layout().kv_block;
        return Err(GmgError::NoMemory { device, what: "KV blocks", wanted, available: crate::units::Bytes::ZERO });
    }
    Ok(memory(store, device)?.own_kv(request, block).map_or(Effect::None, Effect::Owned))
}

pub(super) fn drop_cached<S: Store>(store: &mut S, tenant: TenantId, device: DeviceId) -> Result<Effect, GmgError> {
    store.tenant(tenant).ok_or(GmgError::NoSuchTenant(tenant))?;
    memory(store, device)?.drop_cached_kv(Some(tenant));
    Ok(Effect::None)
}
