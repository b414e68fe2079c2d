//! From tenants, models and devices to a graph: memory layouts, residency, batching. What the builder
//! and a scenario have in common.

use slicescheduler_gmg::cluster::{Cluster, DeviceSpec, Endpoint};
use slicescheduler_gmg::id::{DeviceId, ModelId, TenantId};
use slicescheduler_gmg::memory::DeviceLayout;
use slicescheduler_gmg::plan::{Action, Source};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::tenant::{Class, Container, Model, Tenant};
use slicescheduler_gmg::units::{Bandwidth, Bytes, FlopRate};
use slicescheduler_gmg::{Gmg, GmgError, GmgView};
use slicescheduler_scheduler::batching::{BatchOptions, Batcher};
use slicescheduler_scheduler::policy::{Policy, Residency, TenantShape};

/// Boundary of the parts of a device's memory, in bytes: that of the slots within.
const ALIGN: u64 = 256;

/// The smallest KV block. Batching counts sequences in blocks, also where no model has a cache.
const LEAST_BLOCK: Bytes = Bytes::kib(4);

/// The fewest KV blocks of a device that its owner can work with: a sequence that takes two, one to
/// grow into, and one that a policy may keep free.
const LEAST_BLOCKS: u32 = 4;

/// A tenant that is to join, with its model and its devices.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) tenant: Tenant,
    /// With the bytes that its weights take on a device.
    pub(crate) model: Model,
    pub(crate) devices: Vec<DeviceId>,
    /// Devices over which each replica is spread, those that follow each other in `devices`; the model is one rank's.
    pub(crate) ranks: u32,
    /// How it batches. A block of its tokens takes about as many bytes as one of another member's: blocks of
    /// a device are as large as the largest of those that may lie there.
    pub(crate) options: BatchOptions,
}

impl Member {
    pub(crate) fn is_sensitive(&self) -> bool {
        self.tenant.class == Class::LatencySensitive
    }

    /// The first device of each replica.
    fn leaders(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.devices.iter().copied().step_by(self.ranks.max(1) as usize)
    }

    /// True if a replica of it begins on another device and goes on on this one.
    fn follows_on(&self, device: DeviceId) -> bool {
        self.devices.contains(&device) && !self.leaders().any(|leader| leader == device)
    }
}

/// Why tenants, models and devices do not make a graph; told in the errors of those who assemble one.
#[derive(Debug)]
pub(crate) enum AssemblyError {
    DoesNotFit {
        tenant: String,
        model: String,
        weights: Bytes,
        activations: Bytes,
        kv: Bytes,
        device: String,
        /// Part of the memory, where a scenario says which; devices of a builder may be used whole.
        #[cfg_attr(not(feature = "replay"), expect(dead_code))]
        usable: Bytes,
        memory: Bytes,
    },
    Gmg(GmgError),
}

impl From<GmgError> for AssemblyError {
    fn from(error: GmgError) -> Self {
        Self::Gmg(error)
    }
}

/// A graph that is ready to run.
#[derive(Debug)]
pub(crate) struct Assembly {
    /// With owners' weights resident.
    pub(crate) gmg: Gmg,
    /// One per tenant.
    pub(crate) batching: Vec<Batcher>,
    /// One per tenant.
    pub(crate) models: Vec<ModelId>,
    /// Brings guests' weights to their devices.
    pub(crate) prefetch: Vec<Action>,
}

/// Assembles the graph as `policy` wants weights to lie. `usable` is what may be used of each device.
pub(crate) fn assemble(
    cluster: Cluster,
    members: &[Member],
    usable: &[Bytes],
    policy: &dyn Policy,
) -> Result<Assembly, AssemblyError> {
    let plans: Vec<Plan<'_>> = members.iter().map(Plan::of).collect();
    for plan in &plans {
        plan.check_fit(&cluster, usable)?;
    }
    let shapes: Vec<TenantShape<'_>> = members.iter().map(shape).collect();
    let mut residency = policy.residency(&shapes, usable);
    residency.resize_with(usable.len(), Vec::new);
    let mut gmg = Gmg::new(cluster);
    for ((device, resident), &usable) in (0..).map(DeviceId).zip(&mut residency).zip(usable) {
        let owner = |tenant: &TenantId| members[tenant.index()].devices.contains(&device);
        let lent = policy.lends_ranks() || !members.iter().any(|member| member.follows_on(device));
        resident.retain(|tenant| tenant.index() < members.len());
        resident.retain(|tenant| owner(tenant) || (members[tenant.index()].ranks == 1 && lent));
        resident.sort_by_key(|tenant| !owner(tenant));
        // A policy counts weights alone; guests that leave no room for anything else stay away.
        while resident.len() > 1 && !has_room(&layout(&plans, resident, usable)) {
            resident.pop();
        }
        gmg.lay_out(device, layout(&plans, resident, usable))?;
    }
    let (mut models, mut batching) = (Vec::new(), Vec::new());
    for (index, member) in members.iter().enumerate() {
        let tenant = gmg.add_tenant(member.tenant.clone())?;
        let devices = member.devices.iter().map(|device| device.0);
        let container =
            if member.ranks > 1 { Container::tensor(devices, member.ranks) } else { Container::replicas(devices) };
        let model = gmg.add_model(tenant, member.model.clone(), container)?;
        let mut batcher = Batcher::new(tenant, member.options);
        // Weights of latency-sensitive tenants may be fetched to any device, and all of them by a policy whose
        // weights come and go.
        let possible = |device: &DeviceId| {
            let resident = residency[device.index()].contains(&TenantId(index as u32));
            let lent = policy.lends_ranks() || !members.iter().any(|member| member.follows_on(*device));
            let wanted = member.is_sensitive() || resident || policy.shares_slots();
            wanted && lent && member.ranks == 1 && !member.devices.contains(device)
        };
        let guests = (0..residency.len() as u32).map(DeviceId).filter(possible);
        for device in member.leaders().chain(guests) {
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
    fn of(member: &'a Member) -> Self {
        let (tokens, sequences) = (u64::from(member.options.token_budget), u64::from(member.options.max_sequences));
        let largest = Binding::iteration(tokens.max(sequences), sequences, tokens, tokens);
        Self { member, activations: member.model.template.activation_bytes(&largest) }
    }

    fn check_fit(&self, cluster: &Cluster, usable: &[Bytes]) -> Result<(), AssemblyError> {
        let Member { tenant, model, devices, .. } = self.member;
        for &id in devices {
            let Some((device, &usable)) = cluster.device(id).zip(usable.get(id.index())) else { continue };
            let alone = layout(std::slice::from_ref(self), &[TenantId(0)], usable);
            if !has_room(&alone) {
                return Err(AssemblyError::DoesNotFit {
                    tenant: tenant.name.to_string(),
                    model: model.name.to_string(),
                    weights: alone.weights,
                    activations: alone.arena,
                    kv: alone.kv_block.times(u64::from(LEAST_BLOCKS)),
                    device: cluster.device_name(id).to_string(),
                    usable,
                    memory: device.spec.memory,
                });
            }
        }
        Ok(())
    }
}

fn shape(member: &Member) -> TenantShape<'_> {
    let Tenant { class, lending, .. } = member.tenant;
    TenantShape { class, lending, weights: member.model.weights, devices: &member.devices, ranks: member.ranks }
}

fn has_room(layout: &DeviceLayout) -> bool {
    layout.kv_offset() <= layout.usable && layout.kv_blocks() >= LEAST_BLOCKS
}

/// The layout of a device on which `resident` have their weights, the owner first.
///
/// Every replica has at most one iteration under way on its device, running or recalled, so one set
/// of activations for each is enough; a quarter more covers what best fit loses to regions of
/// different size. Where a latency-sensitive guest has a slot, another may come in its place, so
/// blocks and activations are large enough for any.
fn layout(plans: &[Plan<'_>], resident: &[TenantId], usable: Bytes) -> DeviceLayout {
    let residents = || resident.iter().filter_map(|tenant| plans.get(tenant.index()));
    let block = |plan: &Plan<'_>| kv_block(plan.member);
    let mut activations: Bytes = residents().map(|plan| plan.activations).sum();
    let mut kv_block = residents().map(block).max().unwrap_or(LEAST_BLOCK);
    let guests = || residents().skip(1).filter(|plan| plan.member.is_sensitive());
    if let Some(smallest) = guests().map(|plan| plan.activations).min() {
        let sensitive = || plans.iter().filter(|plan| plan.member.is_sensitive());
        let largest = sensitive().map(|plan| plan.activations).max().unwrap_or(smallest);
        activations += (largest - smallest).times(guests().count() as u64);
        kv_block = kv_block.max(sensitive().map(block).max().unwrap_or(LEAST_BLOCK));
    }
    DeviceLayout {
        usable,
        weights: residents().map(|plan| plan.member.model.weights.align_up(ALIGN)).sum(),
        arena: (activations.scale(5, 4) + Bytes::kib(4)).align_up(ALIGN),
        staging: Bytes::ZERO,
        kv_block,
        kv_block_tokens: residents().map(|plan| plan.member.options.block_tokens).next().unwrap_or(1),
    }
}

/// Bytes of a block of the member's tokens.
fn kv_block(member: &Member) -> Bytes {
    match member.model.kv_bytes_per_token {
        Bytes::ZERO => LEAST_BLOCK,
        per_token => per_token.times(u64::from(member.options.block_tokens)),
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
    let mut copies = vec![0usize; members.len()];
    for (device, resident) in (0..).map(DeviceId).zip(residency) {
        for tenant in resident.iter().filter(|tenant| !members[tenant.index()].devices.contains(&device)) {
            let homes = &members[tenant.index()].devices;
            let best = homes.iter().map(|&home| bandwidth(Endpoint::Device(home), device)).max();
            let fastest = |home: &&DeviceId| Some(bandwidth(Endpoint::Device(**home), device)) == best;
            let equal = homes.iter().filter(fastest).count().max(1);
            let nearest = homes.iter().filter(fastest).nth(copies[tenant.index()] % equal).copied();
            copies[tenant.index()] += 1;
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

/// One core as a device. Forecasts go by its rates, which are those of a core with 512-bit vectors:
/// large products in single precision reach about 100 GFLOP/s.
pub(crate) fn cpu_device(memory: Bytes) -> DeviceSpec {
    DeviceSpec::cpu(1, memory, Bandwidth::gb_per_s(15), FlopRate::gflops(100))
}
