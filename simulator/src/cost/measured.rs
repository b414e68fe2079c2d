//! Cost models over measured tables, and chains of models.

use std::sync::Arc;

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::graph::Role;
use slicescheduler_gmg::semantics::{Collective, OpKind};
use slicescheduler_gmg::shape::{Binding, Dim};

use super::attention::{self, AttentionTables, BatchParts, PromptTable};
use super::exchange::payload;
use super::{Compiled, CostModel, Estimate, Operation};
use crate::profile::{self, AttentionShape, Axis, DeviceProfile, Measure, Scaling, Table};

/// A model that knows some operators only.
///
/// # Contract
///
/// That of [`CostModel`], and: whether [`lookup`](Self::lookup) answers depends on the operator,
/// its template and the device, not on the dims of the job.
pub trait CostSource: std::fmt::Debug + Send + Sync {
    /// Its name in reports.
    fn name(&self) -> &str;

    /// Changes whenever estimates do.
    fn version(&self) -> u64 {
        0
    }

    /// How long the operator takes alone, if that is known.
    fn lookup(&self, operation: &Operation<'_>) -> Option<Estimate>;

    /// As [`CostModel::compile`]; [`None`] also if the operator is not known.
    fn compile(&self, operation: &Operation<'_>) -> Option<Compiled> {
        let _ = operation;
        None
    }
}

/// Asks one source after the other, and a model that knows everything last.
///
/// ```
/// use std::sync::Arc;
/// use slicescheduler_gmg::cluster::DeviceSpec;
/// use slicescheduler_simulator::cost::{Chain, CostModel, Measured, Roofline};
/// use slicescheduler_simulator::profile::DeviceProfile;
///
/// let profile = DeviceProfile::new(DeviceSpec::h100_sxm());
/// let model = Chain::new(Roofline::default()).after(Measured::new([profile]));
/// assert_eq!(model.name(), "measured, else roofline");
/// ```
#[derive(Clone, Debug)]
pub struct Chain {
    name: String,
    sources: Vec<Arc<dyn CostSource>>,
    last: Arc<dyn CostModel>,
}

impl Chain {
    /// A chain of `last` alone.
    pub fn new(last: impl CostModel + 'static) -> Self {
        Self { name: last.name().into(), sources: Vec::new(), last: Arc::new(last) }
    }

    /// This chain, asked only about what `source` does not know.
    #[must_use]
    pub fn after(mut self, source: impl CostSource + 'static) -> Self {
        self.name = format!("{}, else {}", source.name(), self.name);
        self.sources.insert(0, Arc::new(source));
        self
    }
}

impl CostModel for Chain {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> u64 {
        let versions = self.sources.iter().map(|source| source.version());
        versions.fold(self.last.version(), |all, version| all.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(version))
    }

    fn estimate(&self, operation: &Operation<'_>) -> Estimate {
        let known = self.sources.iter().find_map(|source| source.lookup(operation));
        known.unwrap_or_else(|| self.last.estimate(operation))
    }

    fn compile(&self, operation: &Operation<'_>) -> Option<Compiled> {
        match self.sources.iter().find(|source| source.lookup(operation).is_some()) {
            Some(source) => source.compile(operation),
            None => self.last.compile(operation),
        }
    }
}

/// The tables of measured operators.
///
/// Answers for devices with one lane whose specification has the name of a profile's, and for
/// operators whose fixed sizes are covered by a table: those of the weight of a product, or the
/// heads of attention, may lie between the measured ones, and up to a factor of two outside of
/// them. Dims of the job, such as tokens, may lie anywhere; estimates beyond the measured ones say
/// so.
///
/// | kind | table | read at |
/// |---|---|---|
/// | `MatMul` | [`Measure::MatMul`] of the weight's type (`F16` and `BF16` stand for each other) | rows of the input; a residual is taken to be free |
/// | `Attention` | [`Measure::Decode`], and [`Measure::Chunk`] or [`Measure::Prefill`] | the parts of the batch, see [`BatchParts`] |
/// | `Collective` | [`Measure::Collective`] of as many ranks on one node; [`SendRecv`](profile::Collective::SendRecv) for both ends of a message | payload: the larger of what a rank takes and gives |
/// | others | [`Measure::Elementwise`] of the kind's name | bytes read and written |
#[derive(Clone, Debug)]
pub struct Measured {
    profiles: Vec<Profiled>,
}

/// The tables of a device, sorted for look-ups that allocate nothing.
#[derive(Clone, Debug)]
struct Profiled {
    device: DeviceSpec,
    matmul: Vec<(DType, Arc<Table>)>,
    decode: Vec<(AttentionShape, Arc<Table>)>,
    chunk: Vec<(AttentionShape, Arc<Table>)>,
    prefill: Vec<(AttentionShape, Arc<Table>)>,
    elementwise: Vec<(Arc<str>, Arc<Table>)>,
    collectives: Vec<((profile::Collective, u32), Arc<Table>)>,
}

impl Measured {
    /// The operators of these profiles.
    pub fn new(profiles: impl IntoIterator<Item = DeviceProfile>) -> Self {
        Self { profiles: profiles.into_iter().map(|profile| Profiled::of(&profile)).collect() }
    }

    fn find(&self, operation: &Operation<'_>) -> Option<Found<'_>> {
        let mut profiles = self.profiles.iter();
        let device = operation.device;
        let profile = profiles.find(|known| known.device.name == device.name && device.lanes == 1)?;
        match operation.kind {
            OpKind::MatMul => {
                let weight = operation.op.weights().next()?.tensor;
                let [n, k] = *weight.shape.dims() else { return None };
                let (n, k) = (n.as_fixed()? as f64, k.as_fixed()? as f64);
                let rows = operation.op.inputs().find_map(|id| {
                    let tensor = operation.template.tensor(id)?.tensor;
                    if tensor.role == Role::Weight { None } else { tensor.shape.dims().first().copied() }
                })?;
                let table = alike(&profile.matmul, |known| known == weight.dtype, |known| twins(known, weight.dtype))?;
                let covered = covers(&table.axes()[1], n) && covers(&table.axes()[2], k);
                covered.then_some(Found::MatMul { table, rows, n, k })
            }
            OpKind::Attention { heads, kv_heads, head_dim } => {
                let caches = operation.op.inputs().filter_map(|id| operation.template.tensor(id));
                let kv = caches.map(|view| view.tensor).find(|tensor| tensor.role == Role::KvCache)?.dtype;
                let heads = [f64::from(*heads), f64::from(*kv_heads)];
                let shape = AttentionShape { head_dim: *head_dim, kv, window: 0 };
                let decode = attention_table(&profile.decode, shape, heads)?;
                let (chunks, prompts) = match attention_table(&profile.chunk, shape, heads) {
                    Some(table) => (true, table),
                    None => (false, attention_table(&profile.prefill, shape, heads)?),
                };
                Some(Found::Attention { decode, prompts, chunks, heads })
            }
            OpKind::Collective(collective) => {
                let sought = (measured_as(*collective)?, collective.ranks());
                let (_, table) = profile.collectives.iter().find(|(known, _)| *known == sought)?;
                Some(Found::Message(table))
            }
            other => {
                let name = elementwise_name(other)?;
                let (_, table) = profile.elementwise.iter().find(|(kind, _)| **kind == *name)?;
                Some(Found::Elementwise(table))
            }
        }
    }
}

/// The table of an operator, and what is fixed about it.
enum Found<'a> {
    MatMul { table: &'a Arc<Table>, rows: Dim, n: f64, k: f64 },
    Attention { decode: &'a Arc<Table>, prompts: &'a Arc<Table>, chunks: bool, heads: [f64; 2] },
    Elementwise(&'a Arc<Table>),
    Message(&'a Arc<Table>),
}

impl CostSource for Measured {
    fn name(&self) -> &str {
        "measured"
    }

    fn lookup(&self, operation: &Operation<'_>) -> Option<Estimate> {
        let binding: &Binding = operation.binding;
        let reading = match self.find(operation)? {
            Found::MatMul { table, rows, n, k } => table.read(&[rows.eval(binding) as f64, n, k]),
            Found::Attention { decode, prompts, chunks, heads: [heads, kv_heads] } => attention::read(
                BatchParts::of(binding),
                chunks,
                |[batch, context]| decode.read(&[batch, context, heads, kv_heads]),
                |[first, second]| prompts.read(&[first, second, heads, kv_heads]),
            ),
            Found::Message(table) => table.read(&[payload(operation.cost).get() as f64]),
            Found::Elementwise(table) => table.read(&[operation.cost.bytes().get() as f64]),
        };
        Some(reading.into())
    }

    fn compile(&self, operation: &Operation<'_>) -> Option<Compiled> {
        Some(match self.find(operation)? {
            Found::MatMul { table, rows, n, k } => Compiled::Rows { dim: rows, table: table.fix(k).fix(n).into() },
            Found::Attention { decode, prompts, chunks, heads: [heads, kv_heads] } => {
                let fix = |table: &Table| Arc::new(table.fix(kv_heads).fix(heads));
                let prompts = if chunks { PromptTable::Chunks(fix(prompts)) } else { PromptTable::Whole(fix(prompts)) };
                Compiled::Attention(Arc::new(AttentionTables { decode: fix(decode), prompts }))
            }
            Found::Message(table) => Compiled::Message(Arc::clone(table)),
            Found::Elementwise(table) => Compiled::Traffic(Arc::clone(table)),
        })
    }
}

impl Profiled {
    fn of(profile: &DeviceProfile) -> Self {
        let mut found = Self {
            device: profile.device().clone(),
            matmul: Vec::new(),
            decode: Vec::new(),
            chunk: Vec::new(),
            prefill: Vec::new(),
            elementwise: Vec::new(),
            collectives: Vec::new(),
        };
        for (measure, table) in profile.tables() {
            let table = Arc::clone(table);
            match measure {
                Measure::MatMul { weight, scaling: Scaling::Whole } => found.matmul.push((*weight, table)),
                Measure::Decode(shape) => found.decode.push((*shape, table)),
                Measure::Chunk(shape) => found.chunk.push((*shape, table)),
                Measure::Prefill(shape) => found.prefill.push((*shape, table)),
                Measure::Elementwise(kind) => found.elementwise.push((Arc::clone(kind), table)),
                Measure::Collective { kind, ranks, across_nodes: false } => {
                    found.collectives.push(((*kind, *ranks), table));
                }
                _ => {}
            }
        }
        found
    }
}

/// The first table whose key is `exact`, or else the first whose key is `near`.
fn alike<K: Copy>(
    tables: &[(K, Arc<Table>)],
    exact: impl Fn(K) -> bool,
    near: impl Fn(K) -> bool,
) -> Option<&Arc<Table>> {
    let find = |fits: &dyn Fn(K) -> bool| tables.iter().find(|(key, _)| fits(*key)).map(|(_, table)| table);
    find(&exact).or_else(|| find(&near))
}

/// The table of `shape`, or of the same one with a twin of its type, if it covers `heads`: those
/// of queries, and those of keys and values.
fn attention_table(
    tables: &[(AttentionShape, Arc<Table>)],
    shape: AttentionShape,
    heads: [f64; 2],
) -> Option<&Arc<Table>> {
    let twin = |known: AttentionShape| twins(known.kv, shape.kv) && AttentionShape { kv: shape.kv, ..known } == shape;
    let table = alike(tables, |known| known == shape, twin)?;
    let covered = covers(&table.axes()[2], heads[0]) && covers(&table.axes()[3], heads[1]);
    covered.then_some(table)
}

/// True for types of the same size on the same arithmetic units.
fn twins(a: DType, b: DType) -> bool {
    matches!((a, b), (DType::F16, DType::BF16) | (DType::BF16, DType::F16))
}

/// True if `value` lies on `axis` or at most a factor of two outside of it; a single knot covers
/// nothing but itself.
fn covers(axis: &Axis, value: f64) -> bool {
    match *axis.knots() {
        [] => false,
        [only] => value == only,
        [first, .., last] => value >= first * 0.5 && value <= last * 2.0,
    }
}

/// What a collective is called in profiles; [`None`] if none measures it.
fn measured_as(collective: Collective) -> Option<profile::Collective> {
    Some(match collective {
        Collective::AllReduce { .. } => profile::Collective::AllReduce,
        Collective::AllGather { .. } => profile::Collective::AllGather,
        Collective::ReduceScatter { .. } => profile::Collective::ReduceScatter,
        Collective::AllToAll { .. } => profile::Collective::AllToAll,
        Collective::Send { .. } | Collective::Receive { .. } => profile::Collective::SendRecv,
        _ => return None,
    })
}

/// The name of the kind in profiles, if its time is that of its traffic.
fn elementwise_name(kind: &OpKind) -> Option<&str> {
    Some(match kind {
        OpKind::Embedding => "embedding",
        OpKind::RmsNorm { .. } => "rms_norm",
        OpKind::Rotary { .. } => "rotary",
        OpKind::SwiGlu => "swiglu",
        OpKind::Gather => "gather",
        OpKind::Sample => "sample",
        OpKind::Add => "add",
        OpKind::Softmax => "softmax",
        OpKind::Custom(name) => name,
        _ => return None,
    })
}
