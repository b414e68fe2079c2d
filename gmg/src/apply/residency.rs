//! Weights that come and go.

use std::ops::Range;

use super::intent::{memory, usable_device};
use crate::delta::{Divergence, Effect};
use crate::error::GmgError;
use crate::id::{DeviceId, JobId, LaneId, ModelId};
use crate::memory::{DeviceMemory, Residency, WeightState};
use crate::plan::Source;
use crate::state::Store;
use crate::tenant::Model;
use crate::units::Bytes;

/// Why operators of a model cannot run on a device: some of their weights are not there.
pub(super) fn refuse_weights(
    memory: &DeviceMemory,
    id: ModelId,
    model: &Model,
    ops: &Range<u32>,
    device: DeviceId,
) -> Result<(), GmgError> {
    if model.weights.is_zero() || memory.weight_state(id) == Some(WeightState::Resident) {
        return Ok(());
    }
    let ops = ops.start..ops.end.min(model.template.op_count());
    match memory.residency(id, &ops) {
        Residency::Resident => Ok(()),
        state if memory.weight_parts().iter().any(|part| part.model == id) => {
            Err(GmgError::OpsAbsent { model: id, ops, device, state })
        }
        _ => Err(GmgError::WeightsAbsent { model: id, device }),
    }
}

pub(super) fn load_ops<S: Store>(
    store: &mut S,
    (id, ops): (ModelId, Range<u32>),
    device: DeviceId,
    source: Source,
) -> Result<Effect, GmgError> {
    let bytes = refuse_ops(store, id, &ops)?;
    let target = usable_device(store, device)?;
    if target.has_any_of(id, &ops) {
        return Err(GmgError::WeightsPresent { model: id, device });
    }
    let available = target.weight_slots().largest_gap();
    if available < bytes {
        return Err(GmgError::NoMemory { device, what: "weights", wanted: bytes, available });
    }
    if let Source::Device(from) = source
        && (store.is_lost(from) || store.residency(id, &ops, from) != Residency::Resident)
    {
        return Err(GmgError::NoSource(source, id));
    }
    memory(store, device)?.reserve_part(id, ops, bytes);
    Ok(Effect::None)
}

pub(super) fn evict_ops<S: Store>(
    store: &mut S,
    (id, ops): (ModelId, Range<u32>),
    device: DeviceId,
) -> Result<Effect, GmgError> {
    refuse_ops(store, id, &ops)?;
    let target = usable_device(store, device)?;
    if target.weight_part(id, &ops).is_none_or(|part| part.state == WeightState::Loading) {
        let state = target.residency(id, &ops);
        return Err(GmgError::OpsAbsent { model: id, ops, device, state });
    }
    refuse_in_use(store, id, &ops, device)?;
    memory(store, device)?.release_part(id, &ops);
    Ok(Effect::None)
}

pub(super) fn drain_weights<S: Store>(store: &mut S, id: ModelId, device: DeviceId) -> Result<Effect, GmgError> {
    store.model(id).ok_or(GmgError::NoSuchModel(id))?;
    if usable_device(store, device)?.weight_state(id) != Some(WeightState::Resident) {
        return Err(GmgError::WeightsAbsent { model: id, device });
    }
    memory(store, device)?.drain_weights(id);
    Ok(Effect::None)
}

/// The bytes of the operators' weights, if the model has such operators.
fn refuse_ops<S: Store>(store: &S, id: ModelId, ops: &Range<u32>) -> Result<Bytes, GmgError> {
    let model = store.model(id).ok_or(GmgError::NoSuchModel(id))?;
    let count = model.template.op_count();
    if ops.start >= ops.end || ops.end > count {
        return Err(GmgError::NoSuchModelOps { model: id, ops: ops.clone(), count });
    }
    Ok(model.template.weight_bytes_of(ops.clone()))
}

/// Why weights must stay: some of these operators are on a lane of the device.
fn refuse_in_use<S: Store>(store: &S, id: ModelId, ops: &Range<u32>, device: DeviceId) -> Result<(), GmgError> {
    match user(store, id, ops, device) {
        Some(job) => Err(GmgError::WeightsInUse { model: id, device, job }),
        None => Ok(()),
    }
}

fn user<S: Store>(store: &S, id: ModelId, ops: &Range<u32>, device: DeviceId) -> Option<JobId> {
    let lanes = store.cluster().device(device).map_or(0, |device| device.spec.lanes);
    (0..lanes).filter_map(|index| store.lane(LaneId::new(device, index))).find_map(|lane| {
        let uses = |job: JobId| store.job(job).is_some_and(|job| job.spec.model == id);
        let overlaps = |other: &Range<u32>| other.start < ops.end && ops.start < other.end;
        lane.queue().iter().find(|entry| overlaps(&entry.ops) && uses(entry.job)).map(|entry| entry.job)
    })
}

pub(super) fn progress<S: Store>(
    store: &mut S,
    (model, ops): (ModelId, &Range<u32>),
    device: DeviceId,
    loaded: Bytes,
) -> Option<Divergence> {
    let expected = store.memory_mut(device).is_some_and(|memory| memory.weights_progress(model, ops, loaded));
    (!expected).then_some(Divergence::UnexpectedWeights { model, device })
}

pub(super) fn ops_loaded<S: Store>(
    store: &mut S,
    (model, ops): (ModelId, &Range<u32>),
    device: DeviceId,
) -> Option<Divergence> {
    let part = store.memory_mut(device).and_then(|memory| memory.part_mut(model, ops));
    match part {
        Some(part) if part.state == WeightState::Loading => {
            part.state = WeightState::Resident;
            part.loaded = Bytes::ZERO;
            None
        }
        _ => Some(Divergence::UnexpectedWeights { model, device }),
    }
}

/// What was to go is gone. Operators that still use it are an error of the world, which will say more
/// about them.
pub(super) fn evicted<S: Store>(store: &mut S, model: ModelId, device: DeviceId) -> Option<Divergence> {
    let state = store.memory(device).and_then(|memory| memory.weight_state(model));
    if state.is_some()
        && let Some(memory) = store.memory_mut(device)
    {
        memory.release_weights(model);
    }
    let expected = state == Some(WeightState::Evicting) && user(store, model, &(0..u32::MAX), device).is_none();
    (!expected).then_some(Divergence::UnexpectedWeights { model, device })
}
