//! From tenants, models and devices to a graph: memory layouts, residency, batching.

use slicescheduler_gmg::cluster::{Cluster, Endpoint};
use slicescheduler_gmg::id::{DeviceId, ModelId, TenantId};
use slicescheduler_gmg::memory::DeviceLayout;
use slicescheduler_gmg::plan::{Action, Source};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::tenant::{Container, Model, Tenant};
use slicescheduler_gmg::units::{Bandwidth, Bytes};
use slicescheduler_gmg::{Gmg, GmgView};
use slicescheduler_scheduler::batching::{BatchOptions, Batcher};
use slicescheduler_scheduler::policy::{Policy, Residency, TenantShape};

use crate::builder::BuildError;

/// Boundary of the parts of a device's memory, in bytes: that of the slots within.
const ALIGN: u64 = 256;

/// The fewest KV blocks of a device that its owner can work with: a sequence that takes two, one to
/// grow into, and one that a policy may keep free.
const LEAST_BLOCKS: u32 = 4;

/// A tenant that is to join, with its model and its devices.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) tenant: Tenant,
    /// With the bytes that its weights take on a device.
    pub(super) model: Model,
    pub(super) devices: Vec<DeviceId>,
}

/// A graph that is ready to run.
#[derive(Debug)]
pub(super) struct Assembly {
    /// With owners' weights resident.
    pub(super) gmg: Gmg,
    /// One per tenant.
    pub(super) batching: Vec<Batcher>,
    /// One per tenant.
    pub(super) models: Vec<ModelId>,
    /// Brings guests' weights to their devices.
    pub(super) prefetch: Vec<Action>,
}

pub(super) fn assemble(
    cluster: Cluster,
    members: &[Member],
    policy: &dyn Policy,
    options: BatchOptions,
) -> Result<Assembly, BuildError> {
    let memory: Vec<Bytes> = cluster.devices().iter().map(|device| device.spec.memory).collect();
    let plans: Vec<Plan<'_>> = members.iter().map(|member| Plan::of(member, options)).collect();
    for plan in &plans {
        plan.check_fit(&cluster, options)?;
    }
    let shapes: Vec<TenantShape<'_>> = members.iter().map(shape).collect();
    let mut residency = policy.residency(&shapes, &memory);
    residency.resize_with(memory.len(), Vec::new);
    let mut gmg = Gmg::new(cluster);
    for ((device, resident), &usable) in (0..).map(DeviceId).zip(&mut residency).zip(&memory) {
        let owner = |tenant: &TenantId| members[tenant.index()].devices.contains(&device);
        resident.retain(|tenant| tenant.index() < members.len());
        resident.sort_by_key(|tenant| !owner(tenant));
        // A policy counts weights alone; guests that leave no room for anything else stay away.
        while resident.len() > 1 && !has_room(&layout(&plans, resident, usable, options)) {
            resident.pop();
        }
        gmg.lay_out(device, layout(&plans, resident, usable, options))?;
    }
    let (mut models, mut batching) = (Vec::new(), Vec::new());
    for (index, member) in members.iter().enumerate() {
        let tenant = gmg.add_tenant(member.tenant.clone())?;
        let container = Container::replicas(member.devices.iter().map(|device| device.0));
        let model = gmg.add_model(tenant, member.model.clone(), container)?;
        let mut batcher = Batcher::new(tenant, options);
        let is_guest = |device: &DeviceId| {
            residency[device.index()].contains(&TenantId(index as u32)) && !member.devices.contains(device)
        };
        let guests = (0..residency.len() as u32).map(DeviceId).filter(is_guest);
        for device in member.devices.iter().copied().chain(guests) {
            batcher.add_replica(model, device);
        }
        models.push(model);
        batching.push(batcher);
    }
    let prefetch = prefetch(&gmg, members, &residency, &models);
    Ok(Assembly { gmg, batching, models, prefetch })
}

/// What a member needs of a device.
struct Plan<'a> {
    member: &'a Member,
    activations: Bytes,
}

impl<'a> Plan<'a> {
    fn of(member: &'a Member, options: BatchOptions) -> Self {
        let (tokens, sequences) = (u64::from(options.token_budget), u64::from(options.max_sequences));
        let largest = Binding::iteration(tokens.max(sequences), sequences, tokens, tokens);
        Self { member, activations: member.model.template.activation_bytes(&largest) }
    }

    fn check_fit(&self, cluster: &Cluster, options: BatchOptions) -> Result<(), BuildError> {
        let Member { tenant, model, devices } = self.member;
        for &id in devices {
            let Some(device) = cluster.device(id) else { continue };
            let memory = device.spec.memory;
            let alone = layout(std::slice::from_ref(self), &[TenantId(0)], memory, options);
            if !has_room(&alone) {
                return Err(BuildError::DoesNotFit {
                    tenant: tenant.name.to_string(),
                    model: model.name.to_string(),
                    weights: alone.weights,
                    activations: alone.arena,
                    kv: alone.kv_block.times(u64::from(LEAST_BLOCKS)),
                    device: cluster.device_name(id).to_string(),
                    memory,
                });
            }
        }
        Ok(())
    }
}

fn shape(member: &Member) -> TenantShape<'_> {
    let Tenant { class, lending, .. } = member.tenant;
    TenantShape { class, lending, weights: member.model.weights, devices: &member.devices }
}

fn has_room(layout: &DeviceLayout) -> bool {
    layout.kv_offset() <= layout.usable && layout.kv_blocks() >= LEAST_BLOCKS
}

/// The layout of a device on which `resident` have their weights. Every replica has at most one
/// iteration under way on its device, running or recalled, so one set of activations for each is
/// enough; half as much again covers what best fit loses to regions of different size.
fn layout(plans: &[Plan<'_>], resident: &[TenantId], usable: Bytes, options: BatchOptions) -> DeviceLayout {
    let plans = || resident.iter().filter_map(|tenant| plans.get(tenant.index()));
    let activations: Bytes = plans().map(|plan| plan.activations).sum();
    let per_token = plans().map(|plan| plan.member.model.kv_bytes_per_token).max().unwrap_or(Bytes::ZERO);
    DeviceLayout {
        usable,
        weights: plans().map(|plan| plan.member.model.weights.align_up(ALIGN)).sum(),
        arena: activations.scale(3, 2).align_up(ALIGN),
        staging: Bytes::ZERO,
        kv_block: per_token.times(u64::from(options.block_tokens)),
        kv_block_tokens: options.block_tokens,
    }
}

/// Guests' weights come from an owner's device over the fastest route, or from host memory.
fn prefetch(gmg: &Gmg, members: &[Member], residency: &Residency, models: &[ModelId]) -> Vec<Action> {
    let view = gmg.view();
    let cluster = view.cluster();
    let bandwidth = |from: Endpoint, to: DeviceId| {
        let route = cluster.route(from, Endpoint::Device(to));
        route.map_or(Bandwidth::ZERO, |route| route.bandwidth(cluster))
    };
    let mut actions = Vec::new();
    for (device, resident) in (0..).map(DeviceId).zip(residency) {
        for tenant in resident.iter().filter(|tenant| !members[tenant.index()].devices.contains(&device)) {
            let nearest = members[tenant.index()].devices.iter().copied();
            let nearest = nearest.max_by_key(|&home| bandwidth(Endpoint::Device(home), device));
            let host = cluster.device(device).map(|device| Endpoint::Host(device.node));
            let over_host = host.map_or(Bandwidth::ZERO, |host| bandwidth(host, device));
            let source = match nearest {
                Some(home) if bandwidth(Endpoint::Device(home), device) >= over_host => Source::Device(home),
                _ => Source::Host,
            };
            actions.push(Action::Prefetch { model: models[tenant.index()], device, source });
        }
    }
    actions
}
