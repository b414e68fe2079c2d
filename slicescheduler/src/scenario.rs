//! The description of a replay: cluster, tenants, their load, policies and limits.
//!
//! A scenario is a TOML file. Reading it validates everything that can be judged without running:
//! units, ranges, names, devices and the presence of trace files. What is left is plain data.
//!
//! ```
//! use slicescheduler::scenario::{Class, Scenario};
//!
//! let scenario = Scenario::embedded()?;
//! assert_eq!(scenario.cluster.devices().count(), 8);
//! assert_eq!(scenario.tenants.iter().filter(|t| t.class == Class::LatencySensitive).count(), 3);
//! # Ok::<(), slicescheduler::scenario::ScenarioError>(())
//! ```

mod error;
mod files;
mod model;
mod overrides;
mod raw;
mod source;
mod text;
mod validate;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use slicescheduler_gmg::id::DeviceId;
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};
use slicescheduler_scheduler::baseline::BASELINES;

use crate::workload::{ClientFile, Lengths, Preset, Shift, TraceFile};

pub use error::{Location, ScenarioError};
pub use model::{MODELS, ModelSpec, named_model};
pub use slicescheduler_gmg::templates::DenseSpec;
pub use slicescheduler_gmg::tenant::{Class, Layout, LendingMode, Slo};
pub use source::{BacklogRequests, Source};

/// The names of the policies that a scenario may list: the [baselines](slicescheduler_scheduler::baseline), and
/// `slice-fill`.
pub static POLICIES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| BASELINES.iter().map(|baseline| baseline.name).chain(["slice-fill"]).collect());

/// A replay, described.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The seed that every random number of the run is derived from.
    pub seed: u64,
    /// How long requests arrive; never zero.
    pub duration: Nanos,
    /// The first part of the duration that is run but not measured; shorter than the duration.
    pub warm_up: Nanos,
    /// Multiplies the arrival rate of every tenant that has one, on top of its own scale; see
    /// [`scale_rate`](Self::scale_rate).
    pub rate_scale: f64,
    /// The hardware.
    pub cluster: ClusterSpec,
    /// Who is served, in the order of the file; names are unique.
    pub tenants: Vec<Tenant>,
    /// The policies to compare, in the order of the file; never empty, names are unique.
    pub policies: Vec<PolicySpec>,
    /// Limits of continuous batching, the same for every tenant.
    pub engine: EngineLimits,
}

/// The hardware of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSpec {
    /// The nodes, repetitions written out; devices are numbered through in this order.
    pub nodes: Vec<NodeSpec>,
    /// The share of device memory that may be planned with, in (0, 1].
    pub usable: f64,
    /// The network between nodes, where it differs from the default of the profile.
    pub network: LinkOverride,
}

/// One machine.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSpec {
    /// Devices in the machine, at least one.
    pub devices: u32,
    /// What they are.
    pub kind: DeviceKind,
    /// The link between its devices, where it differs from the profile.
    pub nvlink: LinkOverride,
    /// The link between each device and host memory, where it differs from the profile.
    pub pcie: LinkOverride,
    /// Host memory, where it differs from the profile.
    pub host_memory: Option<Bytes>,
}

/// Figures of a link that replace those of the hardware profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkOverride {
    /// Bandwidth in one direction.
    pub bandwidth: Option<Bandwidth>,
    /// Latency of a transfer of no bytes.
    pub latency: Option<Nanos>,
}

/// The accelerators that have a hardware profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// NVIDIA H100 SXM, 80 GB.
    H100Sxm,
    /// NVIDIA A100 SXM, 80 GB.
    A100Sxm80,
    /// NVIDIA H200 SXM, 141 GB.
    H200Sxm,
    /// NVIDIA L4, 24 GB.
    L4,
    /// NVIDIA GeForce RTX 4090, 24 GB.
    Rtx4090,
    /// A core of this machine that acts as a device.
    Cpu,
}

/// One customer of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// Its name, unique in the scenario.
    pub name: String,
    /// Whether its requests are due at a time.
    pub class: Class,
    /// The model that it serves.
    pub model: ModelSpec,
    /// When its tokens are due; present for [`Class::LatencySensitive`] unless each request has its own.
    pub slo: Option<Slo>,
    /// Each request is due in so many times what it takes alone, to its first token and from one to the next, in place
    /// of [`slo`](Self::slo); see [`Alone`](crate::alone::Alone).
    pub relative_slo: Option<f64>,
    /// Its share where tenants of a class compete, above zero.
    pub weight: u32,
    /// How much harm a guest on its devices may do.
    pub lending: LendingMode,
    /// True if prompts that begin alike, as far as its workload says so, share KV blocks; never with a model that is
    /// spread over devices.
    pub prefix_caching: bool,
    /// The devices reserved for it.
    pub container: ContainerSpec,
    /// The requests that it brings.
    pub workload: Workload,
}

/// Devices reserved for a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSpec {
    /// The devices, in the order of the file: within the cluster, in no other container.
    pub devices: Vec<DeviceId>,
    /// How the model lies on them.
    pub layout: Layout,
}

/// The requests that a tenant brings.
#[derive(Clone, Debug, PartialEq)]
pub enum Workload {
    /// Those of a recorded trace.
    Trace {
        /// The file, found and readable when the scenario was read.
        file: TraceFile,
        /// Where in the trace the replay starts; it goes on at the start of the trace after its end.
        shift: Shift,
        /// Divides the times of the trace.
        rate_scale: f64,
        /// Scales and caps the token counts.
        lengths: Lengths,
    },
    /// Those of a generator.
    Generated {
        /// What it arrives like.
        preset: Preset,
        /// Divides the times of the generator.
        rate_scale: f64,
        /// Its seed beside that of the scenario; the tenant's position where the file gives none.
        seed: Option<u64>,
        /// Scales and caps the token counts.
        lengths: Lengths,
    },
    /// Those of a client whose rate was recorded, window by window.
    Client {
        /// Where its windows are, found and readable when the scenario was read.
        file: ClientFile,
        /// What its lengths are like.
        preset: Preset,
        /// Where in its windows the replay starts.
        shift: Shift,
        /// How long a window lasts.
        window: Nanos,
        /// Multiplies its rates.
        rate_scale: f64,
        /// Its seed beside that of the scenario; the tenant's position where the file gives none.
        seed: Option<u64>,
        /// Scales and caps the token counts.
        lengths: Lengths,
    },
    /// Requests that are all there at time zero and never run out.
    Backlog {
        /// What its lengths are like.
        preset: Preset,
        /// How many of the oldest unfinished requests may be run at a time.
        window: u32,
        /// Its seed beside that of the scenario; the tenant's position where the file gives none.
        seed: Option<u64>,
        /// Scales and caps the token counts.
        lengths: Lengths,
    },
}

impl Workload {
    /// What scales and caps its token counts. A drift has no effect on a backlog, whose requests have no times: every
    /// policy would see others.
    pub fn lengths_mut(&mut self) -> &mut Lengths {
        match self {
            Self::Trace { lengths, .. }
            | Self::Generated { lengths, .. }
            | Self::Client { lengths, .. }
            | Self::Backlog { lengths, .. } => lengths,
        }
    }
}

/// A policy to run, with its options.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySpec {
    /// One of [`POLICIES`].
    pub name: String,
    /// Options that the policy understands.
    pub options: BTreeMap<String, OptionValue>,
}

/// The value of a policy's option.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum OptionValue {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A number.
    Float(f64),
    /// Anything else, such as a time with its unit.
    Text(String),
}

impl fmt::Display for OptionValue {
    /// As a scenario file has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Text(value) => write!(f, "{value:?}"),
        }
    }
}

/// Limits of continuous batching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Tokens in one iteration, prefill and decode together.
    pub token_budget: u32,
    /// Sequences in one iteration.
    pub max_sequences: u32,
    /// Tokens in a KV block.
    pub block_tokens: u32,
}

impl Default for EngineLimits {
    /// 2048 tokens, 256 sequences, blocks of 16 tokens: the defaults of vLLM V1.
    fn default() -> Self {
        Self { token_budget: 2048, max_sequences: 256, block_tokens: 16 }
    }
}

impl ClusterSpec {
    /// Every device with the position of its node in [`nodes`](Self::nodes) and its kind, in the
    /// order of their numbers.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, usize, DeviceKind)> + '_ {
        let placed = self.nodes.iter().enumerate();
        let placed = placed.flat_map(|(node, spec)| (0..spec.devices).map(move |_| (node, spec.kind)));
        placed.zip(0..).map(|((node, kind), device)| (DeviceId(device), node, kind))
    }
}
