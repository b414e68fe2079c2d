//! From a scenario to a graph: cluster, memory layouts, tenants, batching.

use std::sync::Arc;

use slicescheduler_gmg::cluster::{Cluster, ClusterError, DeviceSpec, Endpoint};
use slicescheduler_gmg::graph::{GraphError, OpGraph};
use slicescheduler_gmg::id::{DeviceId, ModelId, TenantId};
use slicescheduler_gmg::memory::DeviceLayout;
use slicescheduler_gmg::plan::{Action, Source};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::tenant::{Container, Model, Tenant};
use slicescheduler_gmg::units::{Bandwidth, Bytes, FlopRate};
use slicescheduler_gmg::{Gmg, GmgError, GmgView, templates};
use slicescheduler_scheduler::batching::{BatchOptions, Batcher};
use slicescheduler_scheduler::policy::{Policy, Residency, TenantShape};

use crate::scenario::{Class, DeviceKind, NodeSpec, Scenario, Workload};

/// Why a scenario cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The hardware is impossible.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A model's figures do not make a graph.
    #[error("tenant {tenant:?}: {source}")]
    Template {
        /// Whose model.
        tenant: String,
        /// What is wrong.
        source: GraphError,
    },
    /// A model that does not fit its container.
    #[error(
        "tenant {tenant:?}: model {model} needs {weights} of weights, {activations} of activations and room for KV \
         cache on {device}, which has {usable} usable of {memory}"
    )]
    DoesNotFit {
        /// Whose model.
        tenant: String,
        /// Its name.
        model: String,
        /// Bytes of its weights.
        weights: Bytes,
        /// Bytes of its activations in the largest iteration.
        activations: Bytes,
        /// The device, by its place in the cluster.
        device: String,
        /// Bytes that may be used there.
        usable: Bytes,
        /// Bytes that the device has.
        memory: Bytes,
    },
    /// The graph refused.
    #[error(transparent)]
    Gmg(#[from] GmgError),
}

/// A scenario under one policy, ready to run.
#[derive(Debug)]
pub struct Setup {
    /// The graph, with owners' weights resident.
    pub gmg: Gmg,
    /// One batcher per tenant.
    pub batching: Vec<Batcher>,
    /// One model per tenant.
    pub models: Vec<ModelId>,
    /// Brings guests' weights to their devices.
    pub prefetch: Vec<Action>,
}

struct Parts {
    template: Arc<OpGraph>,
    weights: Bytes,
    activations: Bytes,
    kv_per_token: Bytes,
}

impl Setup {
    /// Sets up `scenario` the way `policy` wants weights to lie.
    ///
    /// # Errors
    /// If the cluster is impossible or a model does not fit its container.
    pub fn new(scenario: &Scenario, policy: &dyn Policy) -> Result<Self, SetupError> {
        let cluster = cluster(scenario)?;
        let parts = scenario.tenants.iter().map(|tenant| parts(scenario, tenant)).collect::<Result<Vec<_>, _>>()?;
        let usable: Vec<Bytes> =
            cluster.devices().iter().map(|device| share(device.spec.memory, scenario.cluster.usable)).collect();
        check_fit(scenario, &cluster, &parts, &usable)?;
        let shapes: Vec<TenantShape<'_>> = scenario
            .tenants
            .iter()
            .zip(&parts)
            .map(|(tenant, parts)| TenantShape {
                class: tenant.class,
                lending: tenant.lending,
                weights: parts.weights,
                devices: &tenant.container.devices,
            })
            .collect();
        let residency = policy.residency(&shapes, &usable);
        let mut gmg = Gmg::new(cluster);
        for (device, (tenants, &usable)) in residency.iter().zip(&usable).enumerate() {
            gmg.lay_out(DeviceId(device as u32), layout(scenario, &parts, tenants, usable))?;
        }
        let (models, batching) = enter_tenants(scenario, &parts, &residency, &mut gmg)?;
        let prefetch = prefetch(&gmg, scenario, &residency, &models);
        Ok(Self { gmg, batching, models, prefetch })
    }
}

fn share(bytes: Bytes, share: f64) -> Bytes {
    bytes.scale((share.clamp(0.0, 1.0) * 1e6) as u64, 1_000_000)
}

fn parts(scenario: &Scenario, tenant: &crate::scenario::Tenant) -> Result<Parts, SetupError> {
    let template = templates::dense(&tenant.model)
        .map_err(|source| SetupError::Template { tenant: tenant.name.clone(), source })?;
    let (tokens, sequences) = (u64::from(scenario.engine.token_budget), u64::from(scenario.engine.max_sequences));
    let largest = Binding::iteration(tokens.max(sequences), sequences, tokens, tokens);
    Ok(Parts {
        weights: template.weight_bytes(),
        activations: template.activation_bytes(&largest),
        template: Arc::new(template),
        kv_per_token: tenant.model.kv_bytes_per_token(),
    })
}

/// Every replica has at most one iteration under way on its device, running or recalled, so one
/// set of activations per resident model is enough; a quarter more covers what best fit loses to
/// regions of different size.
fn arena(activations: Bytes) -> Bytes {
    activations.scale(5, 4) + Bytes::mib(1)
}

/// `resident` are the tenants whose weights are to lie on the device, the owner first. Where a
/// latency-sensitive guest has a slot, another may come in its place, so blocks and activations
/// are large enough for any.
fn layout(scenario: &Scenario, parts: &[Parts], resident: &[TenantId], usable: Bytes) -> DeviceLayout {
    let of = |tenant: &TenantId| parts.get(tenant.index());
    let sensitive = |tenant: &TenantId| {
        scenario.tenants.get(tenant.index()).is_some_and(|tenant| tenant.class == Class::LatencySensitive)
    };
    let weights: Bytes = resident.iter().filter_map(of).map(|parts| parts.weights.align_up(256)).sum();
    let mut activations: Bytes = resident.iter().filter_map(of).map(|parts| parts.activations).sum();
    let mut per_token = resident.iter().filter_map(of).map(|parts| parts.kv_per_token).max().unwrap_or(Bytes::ZERO);
    if resident.iter().skip(1).any(sensitive) {
        let others = (0..parts.len() as u32).map(TenantId).filter(|t| sensitive(t) && !resident.contains(t));
        let guests = resident.iter().skip(1).filter(|tenant| sensitive(tenant)).count() as u64;
        let mut largest = Bytes::ZERO;
        for parts in others.filter_map(|tenant| parts.get(tenant.index())) {
            largest = largest.max(parts.activations);
            per_token = per_token.max(parts.kv_per_token);
        }
        let smallest = resident.iter().skip(1).filter(|t| sensitive(t)).filter_map(of).map(|p| p.activations).min();
        activations += (largest - smallest.unwrap_or_default()).times(guests);
    }
    DeviceLayout {
        usable,
        weights,
        arena: arena(activations).align_up(256),
        staging: Bytes::ZERO,
        kv_block: per_token.times(u64::from(scenario.engine.block_tokens)),
        kv_block_tokens: scenario.engine.block_tokens,
    }
}

fn check_fit(scenario: &Scenario, cluster: &Cluster, parts: &[Parts], usable: &[Bytes]) -> Result<(), SetupError> {
    for (index, (tenant, parts)) in scenario.tenants.iter().zip(parts).enumerate() {
        for device in &tenant.container.devices {
            let Some((spec, &usable)) = cluster.device(*device).zip(usable.get(device.index())) else { continue };
            let alone = layout(scenario, std::slice::from_ref(parts), &[TenantId(0)], usable);
            if alone.kv_offset() > usable || alone.kv_blocks() < 2 {
                return Err(SetupError::DoesNotFit {
                    tenant: tenant.name.clone(),
                    model: scenario.tenants[index].model.name.to_string(),
                    weights: parts.weights,
                    activations: alone.arena,
                    device: format!("device {}", cluster.device_name(*device)),
                    usable,
                    memory: spec.spec.memory,
                });
            }
        }
    }
    Ok(())
}

fn enter_tenants(
    scenario: &Scenario,
    parts: &[Parts],
    residency: &Residency,
    gmg: &mut Gmg,
) -> Result<(Vec<ModelId>, Vec<Batcher>), SetupError> {
    let (mut models, mut batching) = (Vec::new(), Vec::new());
    for (index, (tenant, parts)) in scenario.tenants.iter().zip(parts).enumerate() {
        let id = gmg.add_tenant(Tenant {
            name: tenant.name.as_str().into(),
            class: tenant.class,
            slo: tenant.slo.filter(|_| tenant.class == Class::LatencySensitive),
            weight: tenant.weight,
            lending: tenant.lending,
        })?;
        let model = Model::new(&tenant.model.name, parts.template.clone()).kv_bytes_per_token(parts.kv_per_token);
        let devices = tenant.container.devices.iter().map(|device| device.0);
        let model = gmg.add_model(id, model, Container::replicas(devices))?;
        let window = match tenant.workload {
            Workload::Backlog { window, .. } => window,
            _ => u32::MAX,
        };
        let engine = scenario.engine;
        let options = BatchOptions {
            token_budget: engine.token_budget,
            max_sequences: engine.max_sequences,
            block_tokens: engine.block_tokens,
            window,
            ..BatchOptions::default()
        };
        let mut batcher = Batcher::new(id, options);
        let home = tenant.container.devices.iter().copied();
        let resident = |device: &DeviceId| residency[device.index()].contains(&TenantId(index as u32));
        // Weights of latency-sensitive tenants may be fetched to any device.
        let possible = |device: &DeviceId| tenant.class == Class::LatencySensitive || resident(device);
        let all = (0..residency.len() as u32).map(DeviceId);
        let guests = all.filter(|device| possible(device) && !tenant.container.devices.contains(device));
        for device in home.chain(guests) {
            batcher.add_replica(model, device);
        }
        models.push(model);
        batching.push(batcher);
    }
    Ok((models, batching))
}

/// Guests' weights come from an owner's device over the fastest route, or from host memory.
fn prefetch(gmg: &Gmg, scenario: &Scenario, residency: &Residency, models: &[ModelId]) -> Vec<Action> {
    let view = gmg.view();
    let cluster = view.cluster();
    let mut actions = Vec::new();
    let mut copies = vec![0usize; models.len()];
    for (device, tenants) in (0u32..).map(DeviceId).zip(residency) {
        for tenant in tenants {
            let home = &scenario.tenants[tenant.index()].container.devices;
            if home.contains(&device) {
                continue;
            }
            let from = home[copies[tenant.index()] % home.len()];
            copies[tenant.index()] += 1;
            let bandwidth = |from: Endpoint| {
                let route = cluster.route(from, Endpoint::Device(device));
                route.map_or(Bandwidth::ZERO, |route| route.bandwidth(cluster))
            };
            let host = cluster.device(device).map(|device| Endpoint::Host(device.node));
            let over_host = host.map_or(Bandwidth::ZERO, bandwidth);
            let source =
                if bandwidth(Endpoint::Device(from)) >= over_host { Source::Device(from) } else { Source::Host };
            actions.push(Action::Prefetch { model: models[tenant.index()], device, source });
        }
    }
    actions
}

/// The cluster of a scenario.
///
/// # Errors
/// If the hardware is impossible.
pub fn cluster(scenario: &Scenario) -> Result<Cluster, ClusterError> {
    let mut builder = Cluster::builder();
    for (index, node) in scenario.cluster.nodes.iter().enumerate() {
        builder = builder.node(format!("n{index}"), |described| {
            let mut described = described.devices(node.devices, device_spec(node));
            if let Some(bytes) = node.host_memory {
                described = described.host_memory(bytes);
            }
            match node.nvlink.bandwidth {
                Some(bandwidth) if bandwidth.is_zero() => described.without_nvlink(),
                Some(bandwidth) => described.nvlink(bandwidth),
                None => described,
            }
        });
    }
    let network = scenario.cluster.network;
    if let Some(bandwidth) = network.bandwidth {
        builder = builder.network(bandwidth, network.latency.unwrap_or_default());
    } else if scenario.cluster.nodes.len() > 1 {
        builder = builder.network(Bandwidth::gb_per_s(50), network.latency.unwrap_or_default());
    }
    builder.build()
}

/// Memory that one CPU lane acts as having, and the rates of one core with AVX-512: f32 products
/// reach 81-126 GFLOP/s on one core of the machine that the project was built on.
fn cpu_device() -> DeviceSpec {
    DeviceSpec::cpu(1, Bytes::mib(64), Bandwidth::gb_per_s(15), FlopRate::gflops(100))
}

fn device_spec(node: &NodeSpec) -> DeviceSpec {
    let mut spec = match node.kind {
        DeviceKind::H100Sxm => DeviceSpec::h100_sxm(),
        DeviceKind::A100Sxm80 => DeviceSpec::a100_sxm_80(),
        DeviceKind::H200Sxm => DeviceSpec::h200_sxm(),
        DeviceKind::L4 => DeviceSpec::l4(),
        DeviceKind::Rtx4090 => DeviceSpec::rtx_4090(),
        DeviceKind::Cpu => cpu_device(),
    };
    spec.host_link = node.pcie.bandwidth.unwrap_or(spec.host_link);
    spec.host_latency = node.pcie.latency.unwrap_or(spec.host_latency);
    spec.nvlink_latency = node.nvlink.latency.unwrap_or(spec.nvlink_latency);
    spec
}
