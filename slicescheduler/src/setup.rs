//! From a scenario to a graph: cluster, memory layouts, tenants, batching.

use std::sync::Arc;

use slicescheduler_executor::model::CpuModel;
use slicescheduler_gmg::cluster::{Cluster, ClusterError, DeviceSpec};
use slicescheduler_gmg::graph::GraphError;
use slicescheduler_gmg::id::ModelId;
use slicescheduler_gmg::plan::Action;
use slicescheduler_gmg::tenant::{Model, Tenant};
use slicescheduler_gmg::units::{Bandwidth, Bytes};
use slicescheduler_gmg::{Gmg, GmgError};
use slicescheduler_scheduler::batching::{BatchOptions, Batcher};
use slicescheduler_scheduler::policy::Policy;

use crate::alone::{Alone, RelativeLevels};
use crate::assembly::{Assembly, AssemblyError, Member, assemble, cpu_device};
use crate::scenario::{Class, DeviceKind, NodeSpec, Scenario, Workload};
use crate::workload::WorkloadError;

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
        "tenant {tenant:?}: model {model} needs {weights} of weights, {activations} of activations and {kv} of KV \
         cache on device {device}, which has {usable} usable of {memory}"
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
        /// Bytes of the fewest KV blocks that it can work with.
        kv: Bytes,
        /// The device, by its place in the cluster.
        device: String,
        /// Bytes that may be used there.
        usable: Bytes,
        /// Bytes that the device has.
        memory: Bytes,
    },
    /// A trace is damaged.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The graph refused.
    #[error(transparent)]
    Gmg(#[from] GmgError),
}

impl From<AssemblyError> for SetupError {
    fn from(error: AssemblyError) -> Self {
        match error {
            AssemblyError::DoesNotFit { tenant, model, weights, activations, kv, device, usable, memory } => {
                Self::DoesNotFit { tenant, model, weights, activations, kv, device, usable, memory }
            }
            AssemblyError::Gmg(error) => Self::Gmg(error),
        }
    }
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
    /// Service levels of requests of their own, where the scenario has such.
    pub levels: RelativeLevels,
}

impl Setup {
    /// Sets up `scenario` the way `policy` wants weights to lie. A tenant whose service level is relative to each
    /// request gets that of its median request, for what policies ask of tenants.
    ///
    /// # Errors
    /// If the cluster is impossible, a model does not fit its container, or the trace of a tenant with a relative
    /// service level is damaged.
    pub fn new(scenario: &Scenario, policy: &dyn Policy) -> Result<Self, SetupError> {
        let cluster = cluster(scenario)?;
        let mut members =
            scenario.tenants.iter().map(|tenant| member(scenario, tenant)).collect::<Result<Vec<_>, _>>()?;
        fit_blocks(&mut members, scenario.engine.block_tokens);
        let mut levels = Vec::new();
        for (index, (tenant, member)) in scenario.tenants.iter().zip(&mut members).enumerate() {
            let home = member.devices.first().and_then(|&device| cluster.device(device));
            let Some((factor, home)) = tenant.relative_slo.zip(home).filter(|_| member.is_sensitive()) else {
                levels.push(None);
                continue;
            };
            let (prompt, answer) = scenario.median_lengths(index)?.unwrap_or((1, 1));
            let budget = member.options.token_budget;
            let alone = Alone::new(member.model.template.clone(), home.spec.clone(), budget, answer);
            member.tenant.slo = Some(alone.slo(factor, prompt));
            levels.push(Some((factor, alone)));
        }
        let usable: Vec<Bytes> =
            cluster.devices().iter().map(|device| share(device.spec.memory, scenario.cluster.usable)).collect();
        let Assembly { gmg, batching, models, prefetch } = assemble(cluster, &members, &usable, policy)?;
        Ok(Self { gmg, batching, models, prefetch, levels: RelativeLevels::new(levels) })
    }
}

/// Lets blocks of models with KV caches of different width take the same bytes, so that sequences of any of
/// them waste little of a block: of the sizes from `tokens` tokens of the narrowest model to four times as many, or
/// as many as a token of the widest takes, the one that wastes least.
fn fit_blocks(members: &mut [Member], tokens: u32) {
    let widths = || members.iter().map(|member| member.model.kv_bytes_per_token.get()).filter(|&width| width > 0);
    let (Some(narrowest), Some(widest)) = (widths().min(), widths().max()) else { return };
    if narrowest == widest {
        return;
    }
    let most = u64::from(tokens).max(widest.div_ceil(narrowest)).saturating_mul(4);
    let waste = |size: u64| widths().map(|width| (size % width) * 1000 / size.max(1)).max();
    let sizes = (u64::from(tokens)..=most).map(|count| count.saturating_mul(narrowest));
    let Some(size) = sizes.filter(|&size| size >= widest).min_by_key(|&size| (waste(size), size)) else { return };
    for member in members.iter_mut().filter(|member| member.model.kv_bytes_per_token > Bytes::ZERO) {
        let count = size / member.model.kv_bytes_per_token.get();
        member.options.block_tokens = u32::try_from(count).unwrap_or(u32::MAX).max(1);
    }
}

fn share(bytes: Bytes, share: f64) -> Bytes {
    bytes.scale((share.clamp(0.0, 1.0) * 1e6) as u64, 1_000_000)
}

fn member(scenario: &Scenario, tenant: &crate::scenario::Tenant) -> Result<Member, SetupError> {
    let ranks = tenant.container.layout.ranks().max(1);
    let shard = if ranks > 1 { tenant.model.sharded(ranks) } else { tenant.model.clone() };
    let template = shard.template().map_err(|source| SetupError::Template { tenant: tenant.name.clone(), source })?;
    let mut model = Model::new(shard.name(), Arc::new(template)).kv_bytes_per_token(shard.kv_bytes_per_token());
    if scenario.cluster.nodes.iter().all(|node| node.kind == DeviceKind::Cpu) {
        // Packed weights are padded. What has no kernels there is only simulated, with the weights that it has.
        model.weights = CpuModel::slot_bytes_for(&model.template).unwrap_or(model.weights);
    }
    let window = match tenant.workload {
        Workload::Backlog { window, .. } => window,
        _ => u32::MAX,
    };
    let engine = scenario.engine;
    Ok(Member {
        tenant: Tenant {
            name: tenant.name.as_str().into(),
            class: tenant.class,
            slo: tenant.slo.filter(|_| tenant.class == Class::LatencySensitive),
            weight: tenant.weight,
            lending: tenant.lending,
        },
        model,
        devices: tenant.container.devices.clone(),
        ranks,
        options: BatchOptions {
            token_budget: engine.token_budget,
            max_sequences: engine.max_sequences,
            block_tokens: engine.block_tokens,
            window,
            prefix_caching: tenant.prefix_caching,
            ..BatchOptions::default()
        },
    })
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

/// Memory that one CPU lane acts as having.
const CPU_MEMORY: Bytes = Bytes::mib(64);

fn device_spec(node: &NodeSpec) -> DeviceSpec {
    let mut spec = match node.kind {
        DeviceKind::H100Sxm => DeviceSpec::h100_sxm(),
        DeviceKind::A100Sxm80 => DeviceSpec::a100_sxm_80(),
        DeviceKind::H200Sxm => DeviceSpec::h200_sxm(),
        DeviceKind::L4 => DeviceSpec::l4(),
        DeviceKind::Rtx4090 => DeviceSpec::rtx_4090(),
        DeviceKind::Cpu => cpu_device(CPU_MEMORY),
    };
    spec.host_link = node.pcie.bandwidth.unwrap_or(spec.host_link);
    spec.host_latency = node.pcie.latency.unwrap_or(spec.host_latency);
    // What exchanges between the devices of a node are priced by.
    spec.nvlink = node.nvlink.bandwidth.unwrap_or(spec.nvlink);
    spec.nvlink_latency = node.nvlink.latency.unwrap_or(spec.nvlink_latency);
    spec
}
