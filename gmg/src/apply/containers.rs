//! Models and the containers that hold them.

use std::sync::Arc;

use super::intent::{memory, usable_device};
use crate::delta::Effect;
use crate::error::GmgError;
use crate::id::{ContainerId, DeviceId, ModelId, TenantId};
use crate::memory::WeightState;
use crate::state::Store;
use crate::tenant::{Container, Layout, Model};

pub(super) fn add_model<S: Store>(
    store: &mut S,
    tenant: TenantId,
    model: &Arc<Model>,
    container: &Arc<Container>,
) -> Result<Effect, GmgError> {
    let name = tenant_name(store, tenant)?;
    if let Layout::Pipeline(_) = container.layout {
        return Err(GmgError::WrongLayout {
            tenant: name,
            found: container.layout,
            expected: "replicas or tensor ranks; the stages of a pipeline are entered together",
        });
    }
    refuse_container(store, &name, container)?;
    for &device in &container.devices {
        refuse_room(store, &name, model, device)?;
    }
    let (model_id, container_id) = (ModelId(store.models().len() as u32), ContainerId(store.containers().len() as u32));
    for &device in &container.devices {
        hold(store, model_id, model, device);
    }
    enter_model(store, tenant, model);
    enter_container(store, tenant, container);
    Ok(Effect::Model(model_id, container_id))
}

pub(super) fn add_pipeline<S: Store>(
    store: &mut S,
    tenant: TenantId,
    stages: &[Arc<Model>],
    container: &Arc<Container>,
) -> Result<Effect, GmgError> {
    let name = tenant_name(store, tenant)?;
    if stages.is_empty() || container.layout != Layout::Pipeline(stages.len() as u32) {
        let expected = "a pipeline of as many stages as there are models";
        return Err(GmgError::WrongLayout { tenant: name, found: container.layout, expected });
    }
    refuse_container(store, &name, container)?;
    let held = || {
        let ranked = container.devices.iter().filter_map(|&device| Some((device, container.rank_of(device)?)));
        ranked.filter_map(|(device, stage)| Some((device, stage, stages.get(stage as usize)?)))
    };
    for (device, _, model) in held() {
        refuse_room(store, &name, model, device)?;
    }
    let first = store.models().len() as u32;
    for (device, stage, model) in held() {
        hold(store, ModelId(first + stage), model, device);
    }
    for model in stages {
        enter_model(store, tenant, model);
    }
    let id = enter_container(store, tenant, container);
    Ok(Effect::Stages(first..first + stages.len() as u32, id))
}

pub(super) fn share_container<S: Store>(
    store: &mut S,
    tenant: TenantId,
    model: &Arc<Model>,
    id: ContainerId,
) -> Result<Effect, GmgError> {
    let name = tenant_name(store, tenant)?;
    let container = store.containers().get(id.index()).ok_or(GmgError::NoSuchContainer(id))?.clone();
    if let Layout::Pipeline(_) = container.layout {
        let expected = "replicas or tensor ranks";
        return Err(GmgError::WrongLayout { tenant: name, found: container.layout, expected });
    }
    for &device in &container.devices {
        refuse_room(store, &name, model, device)?;
    }
    let model_id = ModelId(store.models().len() as u32);
    for &device in &container.devices {
        hold(store, model_id, model, device);
    }
    enter_model(store, tenant, model);
    if !container.is_home_of(tenant) {
        let mut shared = Container::clone(&container);
        shared.sharers.push(tenant);
        store.statics_mut().containers[id.index()] = Arc::new(shared);
    }
    Ok(Effect::Model(model_id, id))
}

fn tenant_name<S: Store>(store: &S, tenant: TenantId) -> Result<Arc<str>, GmgError> {
    Ok(store.tenant(tenant).ok_or(GmgError::NoSuchTenant(tenant))?.name.clone())
}

/// Why a container cannot be entered, whatever it is to hold.
fn refuse_container<S: Store>(store: &S, tenant: &Arc<str>, container: &Container) -> Result<(), GmgError> {
    if container.devices.is_empty() {
        return Err(GmgError::EmptyContainer(tenant.clone()));
    }
    let ranks = container.layout.ranks();
    if ranks == 0 || !container.devices.len().is_multiple_of(ranks as usize) {
        return Err(GmgError::UnevenContainer { tenant: tenant.clone(), devices: container.devices.len(), ranks });
    }
    if let Some(&sharer) = container.sharers.iter().find(|&&sharer| store.tenant(sharer).is_none()) {
        return Err(GmgError::NoSuchTenant(sharer));
    }
    let mut last = None;
    for &device in &container.devices {
        usable_device(store, device)?;
        match last.replace(device) {
            Some(before) if before == device => {
                let container = ContainerId(store.containers().len() as u32);
                return Err(GmgError::DeviceTaken { device, container });
            }
            Some(before) if before > device => {
                return Err(GmgError::UnsortedContainer { tenant: tenant.clone(), device, before });
            }
            _ => {}
        }
        if let Some(container) = store.container_of(device) {
            return Err(GmgError::DeviceTaken { device, container });
        }
    }
    Ok(())
}

fn refuse_room<S: Store>(store: &S, tenant: &Arc<str>, model: &Model, device: DeviceId) -> Result<(), GmgError> {
    let memory = usable_device(store, device)?;
    if memory.weight_slots().largest_gap() < model.weights {
        return Err(GmgError::ModelDoesNotFit {
            tenant: tenant.clone(),
            model: model.name.clone(),
            weights: model.weights,
            device,
            available: memory.weight_slots().largest_gap(),
            total: memory.layout().weights,
        });
    }
    Ok(())
}

fn hold<S: Store>(store: &mut S, id: ModelId, model: &Model, device: DeviceId) {
    if let Some(memory) = store.memory_mut(device) {
        memory.reserve_weights(id, model.weights, WeightState::Resident);
    }
}

fn enter_model<S: Store>(store: &mut S, tenant: TenantId, model: &Model) {
    let model = Arc::new(Model { tenant, ..model.clone() });
    store.statics_mut().models.push(model);
}

fn enter_container<S: Store>(store: &mut S, tenant: TenantId, container: &Container) -> ContainerId {
    let id = ContainerId(store.containers().len() as u32);
    let statics = store.statics_mut();
    statics.containers.push(Arc::new(Container { tenant, ..container.clone() }));
    for &device in &container.devices {
        statics.container_of[device.index()] = Some(id);
    }
    for &device in &container.devices {
        if let Ok(memory) = memory(store, device) {
            memory.keep_kv_for(tenant);
        }
    }
    id
}
