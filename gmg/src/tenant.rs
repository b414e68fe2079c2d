//! Who shares the cluster: tenants with their service level, models, and containers.

use std::sync::Arc;

use crate::graph::OpGraph;
use crate::id::{DeviceId, TenantId};
use crate::units::{Bytes, Nanos};

/// What a tenant is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Class {
    /// Every request has due times ([`Slo`]).
    LatencySensitive,
    /// Throughput counts; no request has a due time.
    BestEffort,
}

/// What others may do to a tenant on the tenant's own devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum LendingMode {
    /// Guests run only while the tenant has nothing to run, and leave at the next operator
    /// boundary when it has.
    Strict,
    /// Guests may also delay the tenant as long as its due times hold.
    #[default]
    SloSlack,
}

/// A service level: token `i` of a request is due at `arrival + ttft + i * tpot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Slo {
    /// Time to first token.
    pub ttft: Nanos,
    /// Time per output token after the first.
    pub tpot: Nanos,
}

impl Slo {
    /// When token `index` (0 is the first) of a request that arrived at `arrival` is due.
    pub fn due(&self, arrival: Nanos, index: u32) -> Nanos {
        arrival + self.ttft + self.tpot.times(u64::from(index))
    }
}

/// One customer of the cluster.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Tenant {
    /// Its name, unique in a graph.
    pub name: Arc<str>,
    /// Latency-sensitive or best-effort.
    pub class: Class,
    /// Its service level; [`None`] for best-effort tenants.
    pub slo: Option<Slo>,
    /// Its share when several tenants of a class compete; relative to the others'.
    pub weight: u32,
    /// What guests may do on its devices.
    pub lending: LendingMode,
}

impl Tenant {
    /// A tenant whose requests have due times. The service level starts at TTFT 400 ms and TPOT
    /// 40 ms; see [`ttft`](Self::ttft) and [`tpot`](Self::tpot).
    pub fn latency_sensitive(name: &str) -> Self {
        Self {
            name: name.into(),
            class: Class::LatencySensitive,
            slo: Some(Slo { ttft: Nanos::ms(400), tpot: Nanos::ms(40) }),
            weight: 1,
            lending: LendingMode::default(),
        }
    }

    /// A tenant without due times.
    pub fn best_effort(name: &str) -> Self {
        Self { class: Class::BestEffort, slo: None, ..Self::latency_sensitive(name) }
    }

    /// Sets the time to first token. No effect on a best-effort tenant.
    #[must_use]
    pub fn ttft(mut self, ttft: Nanos) -> Self {
        if let Some(slo) = &mut self.slo {
            slo.ttft = ttft;
        }
        self
    }

    /// Sets the time per output token. No effect on a best-effort tenant.
    #[must_use]
    pub fn tpot(mut self, tpot: Nanos) -> Self {
        if let Some(slo) = &mut self.slo {
            slo.tpot = tpot;
        }
        self
    }

    /// Sets the weight among tenants of a class.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Sets what guests may do on its devices.
    #[must_use]
    pub fn lending(mut self, lending: LendingMode) -> Self {
        self.lending = lending;
        self
    }

    /// True if its requests have due times.
    pub fn is_latency_sensitive(&self) -> bool {
        self.class == Class::LatencySensitive
    }
}

/// A model that a tenant serves.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its name, for messages.
    pub name: Arc<str>,
    /// See [`Model::tenant`].
    pub(crate) tenant: TenantId,
    /// The operators of one iteration.
    pub template: Arc<OpGraph>,
    /// Bytes of all weights, as they lie on a device.
    pub weights: Bytes,
    /// Bytes of KV cache per token; zero for models without one.
    pub kv_bytes_per_token: Bytes,
}

impl Model {
    /// A model from its template, with the template's weights and no KV cache.
    pub fn new(name: &str, template: Arc<OpGraph>) -> Self {
        let weights = template.weight_bytes();
        Self { name: name.into(), tenant: TenantId(0), template, weights, kv_bytes_per_token: Bytes::ZERO }
    }

    /// The tenant that it belongs to: the one for which it was entered. Of a model that is in no graph yet, the
    /// first tenant.
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Sets the bytes of all weights, where a device keeps more of them than the template says: tables, padding.
    #[must_use]
    pub fn weights(mut self, bytes: Bytes) -> Self {
        self.weights = bytes;
        self
    }

    /// Sets the bytes of KV cache per token.
    #[must_use]
    pub fn kv_bytes_per_token(mut self, bytes: Bytes) -> Self {
        self.kv_bytes_per_token = bytes;
        self
    }
}

/// How a container uses its devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Layout {
    /// A whole model on each device.
    #[default]
    Replicas,
    /// Models whose heads and columns are spread over so many consecutive devices; the template and
    /// the weights of such a [`Model`] are those of one rank.
    Tensor(u32),
    /// Models whose layers are cut into so many stages, each a [`Model`] of its own: the first on the
    /// first device, the second on the second, and around again for the next replica.
    Pipeline(u32),
}

impl Layout {
    /// Devices of one replica.
    pub const fn ranks(self) -> u32 {
        match self {
            Self::Replicas => 1,
            Self::Tensor(ranks) | Self::Pipeline(ranks) => ranks,
        }
    }
}

/// Devices reserved for one tenant, or for several that share them as a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Container {
    /// See [`Container::tenant`].
    pub(crate) tenant: TenantId,
    /// Other tenants whose models it holds as well. All of them are at home on its devices.
    pub sharers: Vec<TenantId>,
    /// Its devices, ascending.
    pub devices: Vec<DeviceId>,
    /// How the model lies on them.
    pub layout: Layout,
}

impl Container {
    /// One replica of the model on each device.
    pub fn replicas(devices: impl IntoIterator<Item = u32>) -> Self {
        let mut devices: Vec<_> = devices.into_iter().map(DeviceId).collect();
        devices.sort_unstable();
        devices.dedup();
        Self { tenant: TenantId(0), sharers: Vec::new(), devices, layout: Layout::Replicas }
    }

    /// A replica of the model on every `ranks` consecutive devices.
    pub fn tensor(devices: impl IntoIterator<Item = u32>, ranks: u32) -> Self {
        Self { layout: Layout::Tensor(ranks), ..Self::replicas(devices) }
    }

    /// A replica of the model, one stage per device, on every `stages` consecutive devices.
    pub fn pipeline(devices: impl IntoIterator<Item = u32>, stages: u32) -> Self {
        Self { layout: Layout::Pipeline(stages), ..Self::replicas(devices) }
    }

    /// The tenant that it was entered for. Of a container that is in no graph yet, the first tenant.
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Which rank of its replica `device` has; [`None`] if it is not of this container.
    pub fn rank_of(&self, device: DeviceId) -> Option<u32> {
        let place = self.devices.binary_search(&device).ok()?;
        Some(place as u32 % self.layout.ranks().max(1))
    }

    /// The devices of the replica that `device` has a part of, by rank; empty if it is not of this container.
    pub fn group_of(&self, device: DeviceId) -> &[DeviceId] {
        let Ok(place) = self.devices.binary_search(&device) else { return &[] };
        let ranks = self.layout.ranks().max(1) as usize;
        let first = place - place % ranks;
        self.devices.get(first..first + ranks).unwrap_or_default()
    }

    /// True if `tenant` is at home here.
    pub fn is_home_of(&self, tenant: TenantId) -> bool {
        self.tenant == tenant || self.sharers.contains(&tenant)
    }
}
