//! From the file as written to a scenario: defaults, and everything that relates values.

mod drift;
mod slo;
mod workload;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::path::Path;

use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::id::DeviceId;
use slicescheduler_gmg::templates::DenseSpec;
use slicescheduler_gmg::tenant::{Layout, LendingMode};
use slicescheduler_gmg::units::{Bandwidth, Nanos};
use toml::Spanned;

use super::raw::{
    NameOr, RawCluster, RawContainer, RawEngine, RawLayout, RawLink, RawModel, RawPolicy, RawScenario, RawTenant, Text,
};
use super::{
    ClusterSpec, ContainerSpec, DeviceKind, EngineLimits, LinkOverride, Location, MODELS, ModelSpec, NodeSpec,
    POLICIES, PolicySpec, Scenario, ScenarioError, Tenant, named_model,
};

/// Devices in a cluster: as many as routes between all of them are computed for in a second or two.
const MOST_DEVICES: u64 = 1 << 10;
/// The longest that a link may take before the first byte is there.
const LONGEST_LATENCY: Nanos = Nanos::secs(1);
/// The largest dimension of a model.
const LARGEST_DIM: u32 = 1 << 24;

pub(super) struct Validator<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
    pub(super) data_dir: Option<&'a Path>,
    /// Where stand-ins of missing traces are noted; without it a missing trace is an error.
    pub(super) stand_ins: Option<&'a RefCell<Vec<String>>>,
}

/// The devices of the cluster, and which tenants have them.
struct Devices<'t> {
    total: usize,
    owners: BTreeMap<u32, &'t str>,
    /// By device: its node, and what it is.
    places: Vec<(usize, DeviceKind)>,
}

type Checked<T> = Result<T, ScenarioError>;

impl Validator<'_> {
    pub(super) fn scenario(&self, raw: RawScenario) -> Checked<Scenario> {
        let duration = self.positive("duration", &raw.duration)?;
        let warm_up = match &raw.warm_up {
            None => Nanos::ZERO,
            Some(warm_up) if warm_up.get_ref().0 < duration => warm_up.get_ref().0,
            Some(warm_up) => {
                let expected = format!("less than the duration ({duration})");
                return Err(self.error(warm_up.span(), "warm_up", warm_up.get_ref().0, expected));
            }
        };
        let cluster = self.cluster(raw.cluster)?;
        let tenants = self.tenants(&raw.tenants, &cluster, duration)?;
        Ok(Scenario {
            seed: raw.seed.unwrap_or(0),
            duration,
            warm_up,
            rate_scale: raw.rate_scale.map_or(1.0, |factor| factor.0),
            cluster,
            tenants,
            policies: self.policies(&raw.policies)?,
            engine: self.engine(&raw.engine)?,
        })
    }

    fn cluster(&self, raw: RawCluster) -> Checked<ClusterSpec> {
        let usable = match &raw.usable {
            None => 0.9,
            Some(share) if *share.get_ref() > 0.0 && *share.get_ref() <= 1.0 => *share.get_ref(),
            Some(share) => {
                return Err(self.error(share.span(), "cluster.usable", share.get_ref(), "a share above 0, at most 1"));
            }
        };
        let mut nodes = Vec::new();
        let mut total = 0_u64;
        for (index, node) in raw.nodes.get_ref().iter().enumerate() {
            let key = format!("cluster.nodes[{index}]");
            let node = node.get_ref();
            let devices = self.at_least_one(&format!("{key}.devices"), &node.devices)?;
            let count = match &node.count {
                Some(count) => self.at_least_one(&format!("{key}.count"), count)?,
                None => 1,
            };
            total += u64::from(count) * u64::from(devices);
            if total > MOST_DEVICES {
                let expected = format!("at most {MOST_DEVICES} devices in the cluster");
                return Err(self.error(node.devices.span(), &key, format!("{count} x {devices} devices"), expected));
            }
            let spec = NodeSpec {
                devices,
                kind: node.kind.0,
                nvlink: self.link(&format!("{key}.nvlink"), &node.nvlink)?,
                pcie: self.link(&format!("{key}.pcie"), &node.pcie)?,
                host_memory: node.host_memory.map(|memory| memory.0),
            };
            nodes.extend(std::iter::repeat_n(spec, count as usize));
        }
        if nodes.is_empty() {
            return Err(self.error(raw.nodes.span(), "cluster.nodes", "empty", "at least one node"));
        }
        Ok(ClusterSpec { nodes, usable, network: self.link("cluster.network", &raw.network)? })
    }

    fn link(&self, key: &str, raw: &RawLink) -> Checked<LinkOverride> {
        let bandwidth = match &raw.bandwidth {
            None => None,
            Some(bandwidth) if bandwidth.get_ref().0 == Bandwidth::ZERO => {
                return Err(self.error(bandwidth.span(), &format!("{key}.bandwidth"), "zero", "more than zero"));
            }
            Some(bandwidth) => Some(bandwidth.get_ref().0),
        };
        let latency = match &raw.latency {
            None => None,
            Some(latency) if latency.get_ref().0 > LONGEST_LATENCY => {
                let expected = format!("at most {LONGEST_LATENCY}");
                return Err(self.error(latency.span(), &format!("{key}.latency"), latency.get_ref().0, expected));
            }
            Some(latency) => Some(latency.get_ref().0),
        };
        Ok(LinkOverride { bandwidth, latency })
    }

    fn tenants(
        &self,
        raw: &Spanned<Vec<Spanned<RawTenant>>>,
        cluster: &ClusterSpec,
        duration: Nanos,
    ) -> Checked<Vec<Tenant>> {
        let mut tenants = Vec::new();
        let mut names = BTreeMap::new();
        let of_node = |(node, spec): (usize, &NodeSpec)| std::iter::repeat_n((node, spec.kind), spec.devices as usize);
        let places = cluster.nodes.iter().enumerate().flat_map(of_node).collect();
        let mut devices = Devices { total: cluster.devices().count(), owners: BTreeMap::new(), places };
        for (index, tenant) in raw.get_ref().iter().enumerate() {
            let key = format!("tenants[{index}]");
            let name = &tenant.get_ref().name;
            if let Some(first) = names.insert(name.get_ref(), index) {
                let expected = format!("a name of its own (tenants[{first}] has it)");
                return Err(self.error(name.span(), &format!("{key}.name"), quoted(name.get_ref()), expected));
            }
            tenants.push(self.tenant(&key, tenant.get_ref(), &mut devices, duration)?);
        }
        if tenants.is_empty() {
            return Err(self.error(raw.span(), "tenants", "empty", "at least one tenant"));
        }
        Ok(tenants)
    }

    fn tenant<'t>(&self, key: &str, raw: &'t RawTenant, devices: &mut Devices<'t>, duration: Nanos) -> Checked<Tenant> {
        let name = raw.name.get_ref();
        if name.trim().is_empty() {
            return Err(self.error(raw.name.span(), &format!("{key}.name"), quoted(name), "a name"));
        }
        let class = raw.class.0;
        let weight = match &raw.weight {
            None => 1,
            Some(weight) => self.at_least_one(&format!("{key}.weight"), weight)?,
        };
        let model = self.model(&format!("{key}.model"), &raw.model)?;
        let (slo, relative_slo) = self.slo(key, class, raw)?;
        let container = self.container(&format!("{key}.container"), &raw.container, name, &model, devices)?;
        let caching = raw.prefix_caching.as_ref().filter(|caching| *caching.get_ref());
        if let Some(caching) = caching.filter(|_| container.layout.ranks() > 1) {
            let expected = "false for a model that is spread over devices";
            return Err(self.error(caching.span(), &format!("{key}.prefix_caching"), "true", expected));
        }
        if let Some(caching) = caching.filter(|_| !raw.workload.get_ref().says_what_prompts_begin_with()) {
            let expected = "false for a workload that is no trace of format \"mooncake\", whose prompts share nothing";
            return Err(self.error(caching.span(), &format!("{key}.prefix_caching"), "true", expected));
        }
        Ok(Tenant {
            class,
            container,
            prefix_caching: caching.is_some(),
            model,
            slo,
            relative_slo,
            weight,
            lending: raw.lending.map_or_else(LendingMode::default, |lending| lending.0),
            workload: self.workload(&format!("{key}.workload"), class, &raw.workload, duration)?,
            name: name.clone(),
        })
    }

    fn container<'t>(
        &self,
        key: &str,
        raw: &RawContainer,
        tenant: &'t str,
        model: &ModelSpec,
        cluster: &mut Devices<'t>,
    ) -> Checked<ContainerSpec> {
        let container = key;
        let key = format!("{key}.devices");
        let mut devices = Vec::new();
        for device in raw.devices.get_ref() {
            let id = *device.get_ref();
            if id as usize >= cluster.total {
                let expected = format!("device numbers from 0 to {}", cluster.total - 1);
                return Err(self.error(device.span(), &key, id, expected));
            }
            if let Some(owner) = cluster.owners.insert(id, tenant) {
                let expected = format!("a device in no other container (it is in that of tenant {owner:?})");
                return Err(self.error(device.span(), &key, id, expected));
            }
            devices.push(DeviceId(id));
        }
        if devices.is_empty() {
            return Err(self.error(raw.devices.span(), &key, "empty", "at least one device"));
        }
        let layout = self.layout(container, raw, model, &mut devices, cluster)?;
        Ok(ContainerSpec { devices, layout })
    }

    /// How a model lies on its devices, which are put in order where several of them have a part of it each.
    fn layout(
        &self,
        key: &str,
        raw: &RawContainer,
        model: &ModelSpec,
        devices: &mut [DeviceId],
        cluster: &Devices<'_>,
    ) -> Checked<Layout> {
        let ranks_key = format!("{key}.ranks");
        if raw.layout.map(|layout| layout.0).unwrap_or_default() == RawLayout::Replicas {
            return match &raw.ranks {
                None => Ok(Layout::Replicas),
                Some(ranks) => {
                    let expected = "set only beside layout = \"tensor-parallel\"";
                    Err(self.error(ranks.span(), &ranks_key, ranks.get_ref(), expected))
                }
            };
        }
        let count = devices.len() as u32;
        let (ranks, at) = match &raw.ranks {
            None => (count, raw.devices.span()),
            Some(ranks) => (*ranks.get_ref(), ranks.span()),
        };
        if ranks == 0 || !count.is_multiple_of(ranks) {
            let expected = format!("a divisor of the {count} devices of the container");
            return Err(self.error(at, &ranks_key, ranks, expected));
        }
        if let Err(unfit) = model.sharded(ranks).template() {
            let expected = format!("ranks over which the model can be spread: {unfit}");
            return Err(self.error(at, &ranks_key, ranks, expected));
        }
        devices.sort_unstable();
        for group in devices.chunks(ranks as usize) {
            let place = |device: &DeviceId| cluster.places.get(device.index()).copied();
            let first = group.first().and_then(place);
            if let Some(&odd) = group.iter().find(|&device| place(device) != first) {
                let expected = format!("{ranks} devices of one kind on one node for each replica");
                return Err(self.error(raw.devices.span(), &format!("{key}.devices"), odd.0, expected));
            }
            if ranks > 1 && first.is_some_and(|(_, kind)| kind == DeviceKind::Cpu) {
                let expected = "accelerators for a model that is spread over several devices";
                return Err(self.error(raw.devices.span(), &format!("{key}.devices"), "cpu", expected));
            }
        }
        Ok(if ranks > 1 { Layout::Tensor(ranks) } else { Layout::Replicas })
    }

    fn model(&self, key: &str, raw: &Spanned<NameOr<RawModel>>) -> Checked<ModelSpec> {
        match raw.get_ref() {
            NameOr::Name(name) => named_model(name).ok_or_else(|| {
                let expected = format!("one of {}, or a table of dimensions", MODELS.join(", "));
                self.error(raw.span(), key, quoted(name), expected)
            }),
            NameOr::Table(model) => self.dimensions(key, model).map(ModelSpec::from),
        }
    }

    fn dimensions(&self, key: &str, model: &RawModel) -> Checked<DenseSpec> {
        let dim = |name: &str, value: &Spanned<u32>| {
            if (1..=LARGEST_DIM).contains(value.get_ref()) {
                Ok(*value.get_ref())
            } else {
                let expected = format!("a whole number from 1 to {LARGEST_DIM}");
                Err(self.error(value.span(), &format!("{key}.{name}"), value.get_ref(), expected))
            }
        };
        let heads = dim("heads", &model.heads)?;
        let hidden = dim("hidden", &model.hidden)?;
        let kv_heads = match &model.kv_heads {
            None => heads,
            Some(kv_heads) if heads % dim("kv_heads", kv_heads)? == 0 => *kv_heads.get_ref(),
            Some(kv_heads) => {
                let expected = format!("a divisor of heads ({heads})");
                return Err(self.error(kv_heads.span(), &format!("{key}.kv_heads"), kv_heads.get_ref(), expected));
            }
        };
        let head_dim = match &model.head_dim {
            Some(head_dim) => dim("head_dim", head_dim)?,
            None if hidden % heads == 0 => hidden / heads,
            None => {
                let expected = format!("a multiple of heads ({heads}), or head_dim");
                return Err(self.error(model.hidden.span(), &format!("{key}.hidden"), hidden, expected));
            }
        };
        let mut spec = DenseSpec::llama3_8b().with_dtype(model.dtype.map_or(DType::BF16, |dtype| dtype.0));
        spec.name = model.name.clone().unwrap_or_else(|| "custom".into()).into();
        spec.layers = dim("layers", &model.layers)?;
        spec.hidden = hidden.into();
        spec.heads = heads;
        spec.kv_heads = kv_heads;
        spec.head_dim = head_dim;
        spec.intermediate = dim("intermediate", &model.intermediate)?.into();
        spec.vocab = dim("vocab", &model.vocab)?.into();
        spec.tied_embeddings = model.tied_embeddings;
        if let Some(max_context) = &model.max_context {
            spec.max_context = dim("max_context", max_context)?;
        }
        Ok(spec)
    }

    fn policies(&self, raw: &Spanned<Vec<Spanned<NameOr<RawPolicy>>>>) -> Checked<Vec<PolicySpec>> {
        let mut policies: Vec<PolicySpec> = Vec::new();
        for (index, policy) in raw.get_ref().iter().enumerate() {
            let spec = match policy.get_ref() {
                NameOr::Name(name) => PolicySpec { name: name.clone(), options: BTreeMap::new() },
                NameOr::Table(table) => PolicySpec { name: table.name.clone(), options: table.options.clone() },
            };
            let key = format!("policies[{index}]");
            if !POLICIES.contains(&spec.name.as_str()) {
                let expected = format!("one of {}", POLICIES.join(", "));
                return Err(self.error(policy.span(), &key, quoted(&spec.name), expected));
            }
            if policies.iter().any(|other| other.name == spec.name) {
                return Err(self.error(policy.span(), &key, quoted(&spec.name), "each policy once"));
            }
            policies.push(spec);
        }
        if policies.is_empty() {
            return Err(self.error(raw.span(), "policies", "empty", format!("some of {}", POLICIES.join(", "))));
        }
        Ok(policies)
    }

    fn engine(&self, raw: &RawEngine) -> Checked<EngineLimits> {
        let limit = |name: &str, value: &Option<Spanned<u32>>, default: u32| match value {
            None => Ok(default),
            Some(value) => self.at_least_one(&format!("engine.{name}"), value),
        };
        let defaults = EngineLimits::default();
        Ok(EngineLimits {
            token_budget: limit("token_budget", &raw.token_budget, defaults.token_budget)?,
            max_sequences: limit("max_sequences", &raw.max_sequences, defaults.max_sequences)?,
            block_tokens: limit("block_tokens", &raw.block_tokens, defaults.block_tokens)?,
        })
    }

    fn positive(&self, key: &str, value: &Spanned<Text<Nanos>>) -> Checked<Nanos> {
        match value.get_ref().0 {
            Nanos::ZERO => Err(self.error(value.span(), key, "zero", "a time above zero")),
            time => Ok(time),
        }
    }

    fn at_least_one(&self, key: &str, value: &Spanned<u32>) -> Checked<u32> {
        match *value.get_ref() {
            0 => Err(self.error(value.span(), key, 0, "a whole number of at least 1")),
            number => Ok(number),
        }
    }

    fn location(&self, span: Range<usize>) -> Location {
        Location::at(self.file, self.text, span.start)
    }

    fn error(&self, span: Range<usize>, key: &str, value: impl Display, expected: impl Into<String>) -> ScenarioError {
        let value = value.to_string();
        ScenarioError::Value { at: self.location(span), key: key.into(), value, expected: expected.into() }
    }
}

fn quoted(text: &str) -> String {
    let short: String = text.chars().take(64).collect();
    format!("{short:?}")
}
