//! Models and the containers that hold them.

use std::ops::Range;
use std::sync::Arc;

use slicescheduler_gmg::Container;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{ContainerId, ModelId, OpIndex, TenantId};
use slicescheduler_gmg::memory::WeightState;
use slicescheduler_gmg::tenant::Layout;

use super::{Reference, align};

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) weights: u64,
    pub(super) template: Arc<OpGraph>,
    pub(super) tenant: TenantId,
}

impl Model {
    pub(super) fn of(model: &slicescheduler_gmg::Model, tenant: TenantId) -> Self {
        Self { weights: model.weights.get(), template: model.template.clone(), tenant }
    }
}

impl Reference {
    /// A kibibyte for every weight of these operators, if the model has them.
    pub(super) fn ops_bytes(&self, model: ModelId, ops: &Range<u32>) -> Option<u64> {
        let template = &self.models.get(model.index())?.template;
        if ops.is_empty() || ops.end > template.op_count() {
            return None;
        }
        let weights = |op: u32| template.op(OpIndex(op)).map_or(0, |op| op.weights().count() as u64);
        Some(ops.clone().map(weights).sum::<u64>() * 1024)
    }

    pub(super) fn add_model(
        &mut self,
        tenant: TenantId,
        model: &slicescheduler_gmg::Model,
        container: &Container,
    ) -> Option<()> {
        self.enter(tenant, std::slice::from_ref(model), container, false)
    }

    pub(super) fn add_pipeline(
        &mut self,
        tenant: TenantId,
        stages: &[Arc<slicescheduler_gmg::Model>],
        container: &Container,
    ) -> Option<()> {
        let stages: Vec<_> = stages.iter().map(|stage| (**stage).clone()).collect();
        let fits = container.layout == Layout::Pipeline(stages.len() as u32);
        if stages.is_empty() || !fits || !container.devices.len().is_multiple_of(stages.len()) {
            return None;
        }
        self.enter(tenant, &stages, container, true)
    }

    /// The devices hold the stages in turn.
    fn enter(
        &mut self,
        tenant: TenantId,
        stages: &[slicescheduler_gmg::Model],
        container: &Container,
        pipeline: bool,
    ) -> Option<()> {
        self.tenants.get(tenant.index())?;
        if container.devices.is_empty() {
            return None;
        }
        for (&device, stage) in container.devices.iter().zip(stages.iter().cycle()) {
            let device = self.usable(device).filter(|device| device.owner.is_none())?;
            device.weight_slot(stage.weights.get())?;
        }
        let first = self.models.len() as u32;
        for (nth, &device) in container.devices.iter().enumerate() {
            let stage = nth % stages.len();
            let device = &mut self.devices[device.index()];
            let offset = device.weight_slot(stages[stage].weights.get())?;
            let slot = (offset, align(stages[stage].weights.get()), WeightState::Resident);
            device.weights.insert(ModelId(first + stage as u32), slot);
            (device.owner, device.kv.keeper) = (Some(tenant), Some(tenant));
        }
        self.models.extend(stages.iter().map(|stage| Model::of(stage, tenant)));
        self.containers.push((container.devices.clone(), pipeline));
        Some(())
    }

    pub(super) fn share_container(
        &mut self,
        tenant: TenantId,
        model: &slicescheduler_gmg::Model,
        container: ContainerId,
    ) -> Option<()> {
        self.tenants.get(tenant.index())?;
        let (devices, _) = self.containers.get(container.index()).filter(|(_, pipeline)| !pipeline)?.clone();
        for &device in &devices {
            self.usable(device)?.weight_slot(model.weights.get())?;
        }
        let id = ModelId(self.models.len() as u32);
        for device in devices {
            let device = &mut self.devices[device.index()];
            let offset = device.weight_slot(model.weights.get())?;
            device.weights.insert(id, (offset, align(model.weights.get()), WeightState::Resident));
        }
        self.models.push(Model::of(model, tenant));
        Some(())
    }
}
