//! What operators mean: the shapes they accept and produce, and the work they do.
//!
//! Costs are what the algorithm needs and not what an implementation happens to do: every input is
//! read once and every output written once. Cost models turn them into time.

pub(crate) mod builtin;
mod collective;
mod recorded;

use std::fmt;
use std::ops::{Add, AddAssign};
use std::sync::Arc;

pub use collective::Collective;
pub use recorded::Recorded;
use smallvec::SmallVec;

use crate::dtype::DType;
use crate::graph::Tensor;
use crate::shape::{Binding, Shape};
use crate::units::{Bytes, Flops};

/// What an operator computes.
///
/// Weights are stored as `[outputs, inputs]`, the layout of checkpoints. Every kind lists its
/// inputs in order; the costs of each are in the table below, with `n` rows.
///
/// | kind | operations | source |
/// |---|---|---|
/// | `Embedding`, `Gather` | 0 | copies |
/// | `RmsNorm` | 4 per element | square, sum, two products; Zhang & Sennrich 2019 |
/// | `MatMul` | `2 * n * k * m`, and 1 per element of the residual | a multiply-add counts as two |
/// | `Rotary` | 3 per element of q and k | two products and a sum; Su et al. 2021 |
/// | `Attention` | `4 * heads * head_dim * pairs` | q·k and p·v, `2 * head_dim` each; the softmax is left out, as is custom (Dao et al. 2022) |
/// | `SwiGlu` | 5 per output element | exp, sum, quotient, two products; Shazeer 2020 |
/// | `Sample` | 1 per logit | a comparison |
/// | `Add` | 1 per element | |
/// | `Softmax` | 5 per element | maximum, difference, exp, sum, quotient |
/// | `LayerNorm` | 7 per element | two sums, difference, square, three for scale and shift; Ba et al. 2016 |
/// | `Linear` | as `MatMul`, and 1 per element of the bias | |
/// | `Gelu` | 5 per element | quotient, erf, sum, two products; Hendrycks & Gimpel 2016 |
/// | `Tanh` | 1 per element | |
/// | `Normalize` | 3 per element | square, sum, quotient |
/// | `SelfAttention` | as `Attention` | |
/// | `MeanPool` | 1 per input element and 1 per output element | sum, quotient |
/// | `HeadNorm` | as `RmsNorm` on queries and keys | |
/// | `TopK` | 5 per logit | as `Softmax` |
/// | `Permute` | 0 | copies |
/// | `GroupedMatMul` | `2 * n * top * k * m` | every row with the weight of its expert; Shazeer et al. 2017 |
/// | `Combine` | 2 per routed element, and 1 per element of the residual | product, sum |
/// | `Collective` | `(ranks - 1) / ranks` per element where it sums | see [`Collective`] |
///
/// A `GroupedMatMul` reads the weights of the experts that were chosen: on average, with every token
/// taking any `top` of all experts with equal probability, `1 - (1 - top / all) ^ tokens` of them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum OpKind {
    /// Looks up rows of a table. Inputs: ids `[n]`, table `[vocab, m]`. Output: `[n, m]`.
    Embedding,
    /// Scales each row by the inverse of its root mean square, then by a weight.
    /// Inputs: `[n, m]`, weight `[m]`. Output: `[n, m]`.
    RmsNorm {
        /// Added to the mean square before the root.
        epsilon: f32,
    },
    /// Multiplies by a transposed weight. Inputs: `[n, k]`, weight `[m, k]` and, optionally, a
    /// residual `[n, m]` that is added to the product. Output: `[n, m]`.
    MatMul,
    /// Rotates queries and keys by their position and appends keys and values to the cache.
    /// Inputs: fused queries, keys and values `[n, (heads + 2 * kv_heads) * head_dim]`, positions
    /// `[n]`, KV cache `[context, 2 * kv_heads * head_dim]`. Output: queries
    /// `[n, heads * head_dim]`.
    Rotary {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// The base of the rotation frequencies.
        theta: f32,
    },
    /// Causal attention over the paged KV cache, each sequence over its own tokens.
    /// Inputs: queries `[n, heads * head_dim]`, KV cache `[context, 2 * kv_heads * head_dim]`.
    /// Output: `[n, heads * head_dim]`.
    Attention {
        /// Query heads.
        heads: u32,
        /// Key and value heads; each serves `heads / kv_heads` query heads.
        kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
    },
    /// `silu(gate) * up`. Input: gate and up side by side `[n, 2 * m]`. Output: `[n, m]`.
    SwiGlu,
    /// Selects rows, such as those that need logits. Inputs: `[n, m]`, row numbers `[r]`. Output:
    /// `[r, m]`.
    Gather,
    /// Greedy sampling: the first column with the largest value of each row. Input: logits
    /// `[n, m]`. Output: ids `[n]`.
    Sample,
    /// The elementwise sum. Inputs: two of equal shape. Output: the same shape.
    Add,
    /// Softmax over the last dimension. Input: `[n, m]`. Output: `[n, m]`.
    Softmax,
    /// Takes the mean off each row, scales it by the inverse of its standard deviation, then by a
    /// weight, and adds a bias. Inputs: `[n, m]`, weight `[m]`, bias `[m]`. Output: `[n, m]`.
    LayerNorm {
        /// Added to the variance before the root.
        epsilon: f32,
    },
    /// A product with a bias. Inputs: `[n, k]`, weight `[m, k]`, bias `[m]` and, optionally, a
    /// residual `[n, m]` that is added to the sum. Output: `[n, m]`.
    Linear,
    /// `x * Phi(x)`, with the distribution function of the normal distribution. Input: `[n, m]`.
    /// Output: `[n, m]`.
    Gelu,
    /// The hyperbolic tangent. Input: `[n, m]`. Output: `[n, m]`.
    Tanh,
    /// Scales each row to length 1. Input: `[n, m]`. Output: `[n, m]`.
    Normalize,
    /// Attention of every row to all rows of its sequence, before and after it, without a cache. The
    /// rows of a sequence lie together. Inputs: fused queries, keys and values
    /// `[n, 3 * heads * head_dim]`, the lengths of the sequences `[s]`, which sum to `n`. Output:
    /// `[n, heads * head_dim]`. The job's pairs are the sum of the squared lengths.
    SelfAttention {
        /// Heads.
        heads: u32,
        /// Elements of a head.
        head_dim: u32,
    },
    /// The mean of the rows of each sequence. Inputs: `[n, m]`, the lengths of the sequences `[s]`.
    /// Output: `[s, m]`.
    MeanPool,
    /// Scales each head of queries and keys by the inverse of its root mean square, then by a
    /// weight; values stay as they are. Inputs: fused queries, keys and values
    /// `[n, (heads + 2 * kv_heads) * head_dim]`, a weight for queries `[head_dim]`, one for keys
    /// `[head_dim]`. Output: as the first input.
    HeadNorm {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Added to the mean square before the root.
        epsilon: f32,
    },
    /// Chooses experts: softmax over the logits, then the `top` largest of each row, scaled to a sum
    /// of 1. Input: logits `[n, experts]`. Outputs: weights `[n, top]`, expert numbers `[n, top]`.
    TopK {
        /// Experts per row.
        top: u32,
    },
    /// Copies each row once for every expert that it was routed to, in the order of the experts.
    /// Inputs: `[n, m]`, expert numbers `[n, top]`. Output: `[n * top, m]`.
    Permute,
    /// Multiplies each routed row by the transposed weight of its expert. Inputs: routed rows
    /// `[n * top, k]`, expert numbers `[n, top]`, weights `[experts, m, k]`. Output: `[n * top, m]`.
    GroupedMatMul {
        /// Experts that this rank holds.
        experts: u32,
        /// Experts per token.
        top: u32,
        /// Ranks over which the experts are spread; each token takes `top` of `experts * ranks`.
        ranks: u32,
    },
    /// Brings routed rows back to where they came from and sums those of a row, each times its
    /// weight. Inputs: routed rows `[n * top, m]`, expert numbers `[n, top]`, weights `[n, top]` and,
    /// optionally, a residual `[n, m]` that is added. Output: `[n, m]`.
    Combine,
    /// An exchange with other ranks.
    Collective(Collective),
    /// Anything else: what it means is said by the [`OpSemantics`] registered under this name.
    Custom(Arc<str>),
}

impl OpKind {
    /// A custom kind called `name`.
    pub fn custom(name: &str) -> Self {
        Self::Custom(name.into())
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Embedding => "embedding",
            Self::RmsNorm { .. } => "rms_norm",
            Self::MatMul => "matmul",
            Self::Rotary { .. } => "rotary",
            Self::Attention { .. } => "attention",
            Self::SwiGlu => "swiglu",
            Self::Gather => "gather",
            Self::Sample => "sample",
            Self::Add => "add",
            Self::Softmax => "softmax",
            Self::LayerNorm { .. } => "layer_norm",
            Self::Linear => "linear",
            Self::Gelu => "gelu",
            Self::Tanh => "tanh",
            Self::Normalize => "normalize",
            Self::SelfAttention { .. } => "self_attention",
            Self::MeanPool => "mean_pool",
            Self::HeadNorm { .. } => "head_norm",
            Self::TopK { .. } => "top_k",
            Self::Permute => "permute",
            Self::GroupedMatMul { .. } => "grouped_matmul",
            Self::Combine => "combine",
            Self::Collective(collective) => collective.name(),
            Self::Custom(name) => name,
        })
    }
}

/// The work of one operator, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpCost {
    /// Arithmetic.
    pub flops: Flops,
    /// Weights read.
    pub weights: Bytes,
    /// Everything else that is read: activations and KV.
    pub read: Bytes,
    /// Activations and KV written.
    pub written: Bytes,
}

impl OpCost {
    /// Memory traffic: all that is read and written.
    pub fn bytes(&self) -> Bytes {
        self.weights + self.read + self.written
    }

    /// The cost of doing this `count` times, saturating.
    #[must_use]
    pub fn times(&self, count: u64) -> Self {
        Self {
            flops: self.flops.times(count),
            weights: self.weights.times(count),
            read: self.read.times(count),
            written: self.written.times(count),
        }
    }
}

impl Add for OpCost {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            flops: self.flops + other.flops,
            weights: self.weights + other.weights,
            read: self.read + other.read,
            written: self.written + other.written,
        }
    }
}

impl AddAssign for OpCost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// What an output's element type may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DTypeRule {
    /// This type.
    Exactly(DType),
    /// Any float that is not quantized.
    AnyFloat,
    /// Any integer.
    AnyInteger,
}

impl DTypeRule {
    /// True if `dtype` is allowed.
    pub fn allows(self, dtype: DType) -> bool {
        match self {
            Self::Exactly(only) => dtype == only,
            Self::AnyFloat => dtype.is_float() && dtype.block_elements() == 1,
            Self::AnyInteger => dtype.is_integer(),
        }
    }
}

impl fmt::Display for DTypeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(dtype) => write!(f, "{dtype}"),
            Self::AnyFloat => f.write_str("a float"),
            Self::AnyInteger => f.write_str("an integer"),
        }
    }
}

/// The type that an operator gives one of its outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputType {
    /// The element type.
    pub dtype: DTypeRule,
    /// The shape.
    pub shape: Shape,
}

/// The types of an operator's outputs, in order.
pub type Outputs = SmallVec<[OutputType; 1]>;

/// Why an operator does not accept its inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SemanticsError {
    /// The number of inputs is wrong.
    #[error("it has {found} inputs: expected {expected}")]
    Arity {
        /// The inputs that the kind takes, in words.
        expected: &'static str,
        /// The number of inputs it has.
        found: usize,
    },
    /// An input has the wrong shape.
    #[error("input \"{input}\" is {dtype} {shape}: expected the shape {expected}")]
    Shape {
        /// The input's name.
        input: String,
        /// Its element type.
        dtype: DType,
        /// Its shape.
        shape: Shape,
        /// The shape it must have.
        expected: String,
    },
    /// An input has the wrong element type.
    #[error("input \"{input}\" is {dtype} {shape}: expected {expected}")]
    DType {
        /// The input's name.
        input: String,
        /// Its element type.
        dtype: DType,
        /// Its shape.
        shape: Shape,
        /// The type it must have.
        expected: DTypeRule,
    },
    /// An input has the wrong role, such as an activation where the KV cache must be.
    #[error("input \"{input}\" is {found}: expected {expected}")]
    Role {
        /// The input's name.
        input: String,
        /// Its role, in words.
        found: &'static str,
        /// The role it must have, in words.
        expected: &'static str,
    },
    /// A parameter of the kind is wrong.
    #[error("{0}")]
    Invalid(String),
}

/// The meaning of a custom operator kind.
///
/// # Contract
///
/// - Both methods are pure: equal arguments give equal results, on every call and every machine.
/// - [`outputs`](Self::outputs) is called once per stored operator when a graph is built. It
///   refuses what it can not run: the graph trusts the shapes afterwards.
/// - [`cost`](Self::cost) is called while jobs are planned, often; it must not allocate, block or
///   panic, and must accept every binding, zero sizes included.
///
/// # Example
///
/// ```
/// use slicescheduler_gmg::graph::Tensor;
/// use slicescheduler_gmg::semantics::{DTypeRule, OpCost, OpSemantics, OutputType, Outputs, SemanticsError};
/// use slicescheduler_gmg::shape::Binding;
/// use slicescheduler_gmg::units::Flops;
///
/// /// `max(x, 0)`.
/// #[derive(Debug)]
/// struct Relu;
///
/// impl OpSemantics for Relu {
///     fn outputs(&self, inputs: &[&Tensor]) -> Result<Outputs, SemanticsError> {
///         let [x] = inputs else {
///             return Err(SemanticsError::Arity { expected: "one", found: inputs.len() });
///         };
///         Ok([OutputType { dtype: DTypeRule::Exactly(x.dtype), shape: x.shape.clone() }].into_iter().collect())
///     }
///
///     fn cost(&self, inputs: &[&Tensor], outputs: &[&Tensor], binding: &Binding) -> OpCost {
///         OpCost {
///             flops: Flops(outputs.iter().map(|y| y.shape.elements(binding)).sum()),
///             read: inputs.iter().map(|x| x.bytes(binding)).sum(),
///             written: outputs.iter().map(|y| y.bytes(binding)).sum(),
///             ..OpCost::default()
///         }
///     }
/// }
/// ```
pub trait OpSemantics: fmt::Debug + Send + Sync {
    /// Checks the inputs and gives the types of the outputs.
    fn outputs(&self, inputs: &[&Tensor]) -> Result<Outputs, SemanticsError>;

    /// The work under `binding`.
    fn cost(&self, inputs: &[&Tensor], outputs: &[&Tensor], binding: &Binding) -> OpCost;
}
