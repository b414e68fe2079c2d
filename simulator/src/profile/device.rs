//! All tables of one kind of device.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::dtype::DType;

use super::axis::Axis;
use super::error::{Place, ProfileError};
use super::plausible::{CYCLES_NANOS, KERNEL_NANOS, Limits};
use super::table::{Table, TableBuilder};

/// How the scales of eight-bit weights are laid out, which decides about the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scaling {
    /// No scales, or one per tensor or row.
    #[default]
    Whole,
    /// One per block of a tensor.
    Blocks,
}

/// A collective operation, or a send between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Collective {
    /// Everybody ends with the sum of all.
    AllReduce,
    /// Everybody ends with the parts of all.
    AllGather,
    /// Everybody ends with its part of the sum.
    ReduceScatter,
    /// Everybody sends a part to everybody.
    AllToAll,
    /// One sends to another.
    SendRecv,
}

impl Collective {
    /// Its name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::SendRecv => "send_recv",
        }
    }

    /// All of them.
    pub const ALL: [Self; 5] = [Self::AllReduce, Self::AllGather, Self::ReduceScatter, Self::AllToAll, Self::SendRecv];
}

/// The attention that a table is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttentionShape {
    /// Elements of a head.
    pub head_dim: u32,
    /// The type of the KV cache.
    pub kv: DType,
    /// The number of last tokens that are attended to; 0 if all are.
    pub window: u32,
}

/// What a table measures, and over which axes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Measure {
    /// Products with a weight, over `m` (rows), `n` (outputs) and `k` (inputs).
    MatMul {
        /// The type of the weight.
        weight: DType,
        /// How its scales are laid out.
        scaling: Scaling,
    },
    /// Causal attention of whole prompts, over `batch`, `length`, `heads` and `kv_heads`.
    Prefill(AttentionShape),
    /// Causal attention of one chunk of a prompt, over `length`, `cached` (tokens before it),
    /// `heads` and `kv_heads`.
    Chunk(AttentionShape),
    /// Attention of one new token per sequence, over `batch`, `context` (tokens of a sequence,
    /// the new one included), `heads` and `kv_heads`.
    Decode(AttentionShape),
    /// A collective over `bytes`: what the whole of the message is, over all ranks.
    Collective {
        /// Which.
        kind: Collective,
        /// The devices that take part.
        ranks: u32,
        /// True if every one of them is on another node.
        across_nodes: bool,
    },
    /// Operators whose time is that of their memory traffic, over `bytes`: those of the kind of
    /// this name.
    Elementwise(Arc<str>),
    /// Whole iterations of a model, over `batch` and `length`: prompts of that length, or one
    /// token of each sequence of that context.
    Iteration {
        /// The model.
        model: Arc<str>,
        /// The devices that share it.
        tensor_parallel: u32,
        /// True for prompts.
        prompt: bool,
    },
}

impl Measure {
    /// The axes of its table, without knots.
    pub fn axes(&self) -> Vec<Axis> {
        let attention = |first, second| vec![first, second, Axis::linear("heads"), Axis::linear("kv_heads")];
        match self {
            Self::MatMul { .. } => ["m", "n", "k"].map(Axis::linear).into(),
            Self::Prefill(_) => attention(Axis::linear("batch"), Axis::quadratic("length")),
            Self::Chunk(_) => attention(Axis::quadratic("length"), Axis::linear("cached")),
            Self::Decode(_) => attention(Axis::linear("batch"), Axis::linear("context")),
            Self::Collective { .. } | Self::Elementwise(_) => vec![Axis::linear("bytes")],
            Self::Iteration { .. } => vec![Axis::linear("batch"), Axis::linear("length")],
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attention = |f: &mut fmt::Formatter<'_>, what, shape: &AttentionShape| {
            write!(f, "{what}, head_dim {}, kv {}", shape.head_dim, shape.kv)?;
            if shape.window > 0 { write!(f, ", window {}", shape.window) } else { Ok(()) }
        };
        match self {
            Self::MatMul { weight, scaling: Scaling::Whole } => write!(f, "matmul {weight}"),
            Self::MatMul { weight, scaling: Scaling::Blocks } => write!(f, "matmul {weight}, scales in blocks"),
            Self::Prefill(shape) => attention(f, "prefill", shape),
            Self::Chunk(shape) => attention(f, "chunk", shape),
            Self::Decode(shape) => attention(f, "decode", shape),
            Self::Collective { kind, ranks, across_nodes } => {
                write!(f, "{}, {ranks} ranks{}", kind.name(), if *across_nodes { " across nodes" } else { "" })
            }
            Self::Elementwise(kind) => write!(f, "{kind}"),
            Self::Iteration { model, tensor_parallel, prompt } => {
                write!(f, "{model} x{tensor_parallel}, {}", if *prompt { "prompts" } else { "tokens" })
            }
        }
    }
}

/// Everything that was measured on one kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProfile {
    device: DeviceSpec,
    tables: BTreeMap<Measure, Arc<Table>>,
}

impl DeviceProfile {
    /// A profile of `device` without tables.
    pub fn new(device: DeviceSpec) -> Self {
        Self { device, tables: BTreeMap::new() }
    }

    /// The device.
    pub fn device(&self) -> &DeviceSpec {
        &self.device
    }

    /// Its tables, in the order of what they measure.
    pub fn tables(&self) -> impl ExactSizeIterator<Item = (&Measure, &Arc<Table>)> {
        self.tables.iter()
    }

    /// The table of `measure`.
    pub fn table(&self, measure: &Measure) -> Option<&Arc<Table>> {
        self.tables.get(measure)
    }

    /// This profile with `table` as the table of `measure`.
    #[must_use]
    pub fn with(mut self, measure: Measure, table: Table) -> Self {
        self.tables.insert(measure, Arc::new(table));
        self
    }

    /// This profile with the tables of `other`, which replace its own of the same measure.
    #[must_use]
    pub fn with_all(mut self, other: Self) -> Self {
        self.tables.extend(other.tables);
        self
    }
}

/// Collects the samples of one file into tables.
#[derive(Debug)]
pub(super) struct Samples<'a> {
    device: &'a DeviceSpec,
    builders: BTreeMap<Measure, TableBuilder>,
    limits: BTreeMap<Measure, Limits>,
    shortest: f64,
    last: Option<Place>,
}

impl<'a> Samples<'a> {
    /// Samples of a GPU.
    pub(super) fn new(device: &'a DeviceSpec) -> Self {
        Self { device, builders: BTreeMap::new(), limits: BTreeMap::new(), shortest: KERNEL_NANOS, last: None }
    }

    /// Samples of a device of any kind, whose operators may be a few cycles long.
    pub(super) fn of_any(device: &'a DeviceSpec) -> Self {
        Self { shortest: CYCLES_NANOS, ..Self::new(device) }
    }

    /// Refuses a sample that took no longer than `nanos`, which is too short to be told from zero, if it cannot be
    /// true; it is in no table.
    pub(super) fn leave_out(
        &self,
        measure: &Measure,
        point: &[f64],
        nanos: f64,
        place: &Place,
    ) -> Result<(), ProfileError> {
        Limits::new(self.shortest).check(measure, point, nanos, self.device, place)
    }

    /// Adds a sample, unless it cannot be true.
    pub(super) fn add(
        &mut self,
        measure: Measure,
        point: &[f64],
        nanos: f64,
        place: Place,
    ) -> Result<(), ProfileError> {
        let limits = self.limits.entry(measure.clone()).or_insert(Limits::new(self.shortest));
        limits.check(&measure, point, nanos, self.device, &place)?;
        let builder = self.builders.entry(measure).or_insert_with_key(|measure| Table::builder(measure.axes()));
        builder.sample(point, nanos).map_err(|error| ProfileError::Malformed {
            file: Arc::clone(&place.file),
            row: place.row,
            what: error.to_string(),
        })?;
        self.last = Some(place);
        Ok(())
    }

    /// The profile of all samples. `file` and `expected` are for the error when there are none.
    pub(super) fn build(self, file: &Arc<str>, expected: &str) -> Result<DeviceProfile, ProfileError> {
        let Some(last) = self.last else {
            return Err(ProfileError::Empty { file: Arc::clone(file), expected: expected.into() });
        };
        for (measure, limits) in &self.limits {
            limits.check_all(measure, &last)?;
        }
        let mut profile = DeviceProfile::new(self.device.clone());
        for (measure, builder) in self.builders {
            let refused = |source| ProfileError::Table { file: Arc::clone(file), table: measure.to_string(), source };
            let table = builder.build().map_err(refused)?;
            profile.tables.insert(measure, Arc::new(table));
        }
        Ok(profile)
    }
}
