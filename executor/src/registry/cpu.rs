//! The CPU kernels as operators.

mod encoder;
mod experts;

use std::sync::Arc;

use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::graph::TensorView;
use slicescheduler_gmg::semantics::OpKind;

use super::{BoundKernel, Call, Kernel, Site};
use crate::error::{ExecutorError, Result};
use crate::kernels::{
    AttentionDims, Output, RotaryTable, TokenRows, argmax_rows, attention_in_parts, embed_panels, gather_rows,
    head_norm, matmul_in_parts, rms_norm, rotary_frequencies, rotate_and_store, sample, swiglu,
};

/// The kernels of [`kernels`](crate::kernels), for every kind that a decoder, dense or a mixture of experts, or an encoder has.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuKernels;

impl CpuKernels {
    /// The element types of weights. Activations are `F32`.
    pub(super) const DTYPES: [DType; 6] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_1];

    /// The kinds, with parameters that do not count.
    pub(super) fn kinds() -> [OpKind; 21] {
        let (heads, kv_heads, head_dim) = (1, 1, 2);
        [
            OpKind::Embedding,
            OpKind::RmsNorm { epsilon: 0.0 },
            OpKind::MatMul,
            OpKind::HeadNorm { heads, kv_heads, head_dim, epsilon: 0.0 },
            OpKind::Rotary { heads, kv_heads, head_dim, theta: 1.0 },
            OpKind::Attention { heads, kv_heads, head_dim },
            OpKind::SwiGlu,
            OpKind::Gather,
            OpKind::Sample,
            OpKind::Add,
            OpKind::LayerNorm { epsilon: 0.0 },
            OpKind::Linear,
            OpKind::Gelu,
            OpKind::Tanh,
            OpKind::SelfAttention { heads, head_dim },
            OpKind::MeanPool,
            OpKind::Normalize,
            OpKind::TopK { top: 1 },
            OpKind::Permute,
            OpKind::GroupedMatMul { experts: 1, top: 1, ranks: 1 },
            OpKind::Combine,
        ]
    }
}

impl Kernel for CpuKernels {
    fn bind(&self, site: &Site<'_>) -> Result<Arc<dyn BoundKernel>> {
        let dims = |heads: u32, kv_heads: u32, head_dim: u32| {
            AttentionDims::new(heads as usize, kv_heads as usize, head_dim as usize)
        };
        Ok(match *site.op.kind() {
            OpKind::Embedding => Arc::new(Embedding),
            OpKind::RmsNorm { epsilon } => Arc::new(RmsNorm { epsilon }),
            OpKind::MatMul => Arc::new(MatMul),
            OpKind::HeadNorm { heads, kv_heads, head_dim, epsilon } => {
                Arc::new(HeadNorm { dims: dims(heads, kv_heads, head_dim), epsilon })
            }
            OpKind::Rotary { heads, kv_heads, head_dim, theta } => {
                let frequencies = rotary_frequencies(f64::from(theta), head_dim as usize);
                let table = RotaryTable::new(&frequencies, site.max_context as usize)?;
                Arc::new(Rotary { dims: dims(heads, kv_heads, head_dim), table })
            }
            OpKind::Attention { heads, kv_heads, head_dim } => {
                Arc::new(Attention { dims: dims(heads, kv_heads, head_dim) })
            }
            OpKind::SwiGlu => Arc::new(SwiGlu { width: columns(site.output(0))? }),
            OpKind::Gather => Arc::new(Gather { width: columns(site.input(0))? }),
            OpKind::Sample => Arc::new(Sample { vocabulary: columns(site.input(0))? }),
            _ => {
                if let Some(bound) = encoder::bind(site)? {
                    return Ok(bound);
                }
                if let Some(bound) = experts::bind(site)? {
                    return Ok(bound);
                }
                return Err(ExecutorError::NoKernel {
                    op: site.op.name().to_string(),
                    kind: site.op.kind().to_string(),
                    dtype: site.dtype(),
                });
            }
        })
    }
}

/// The last dimension of a tensor, the same for every job.
fn columns(view: Option<TensorView<'_>>) -> Result<usize> {
    const EXPECTED: &str = "a matrix with a fixed number of columns";
    let view = view.ok_or(ExecutorError::NoOperand { side: "operands", index: 0, expected: EXPECTED })?;
    let last = view.tensor.shape.dims().last().and_then(|dim| dim.as_fixed());
    last.and_then(|columns| usize::try_from(columns).ok()).ok_or_else(|| ExecutorError::UnsupportedTensor {
        tensor: view.name().to_string(),
        dtype: view.tensor.dtype,
        shape: view.tensor.shape.to_string(),
        expected: EXPECTED,
    })
}

#[derive(Debug)]
struct Embedding;

impl BoundKernel for Embedding {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        embed_panels(call.input(0)?, call.matrix(1)?, call.output(0)?)
    }
}

#[derive(Debug)]
struct RmsNorm {
    epsilon: f32,
}

impl BoundKernel for RmsNorm {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        rms_norm(call.input(0)?, call.vector(1)?, self.epsilon, call.output(0)?)
    }
}

#[derive(Debug)]
struct MatMul;

impl BoundKernel for MatMul {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        let (x, weights, y) = (call.input(0)?, call.matrix(1)?, call.output::<f32>(0)?);
        let rows = y.len() / weights.n().max(1);
        if call.inputs() < 3 {
            return matmul_in_parts(x, rows, weights, Output::Overwrite, y, call.parts());
        }
        if call.parts().first() == 0 {
            start_from("matmul", call.input(2)?, y)?;
        }
        matmul_in_parts(x, rows, weights, Output::Accumulate, y, call.parts())
    }
}

/// Begins a sum with a residual.
fn start_from(kernel: &'static str, residual: &[f32], y: &mut [f32]) -> Result<()> {
    let (found, expected) = (residual.len(), y.len());
    if found != expected {
        return Err(ExecutorError::OperandLength { kernel, operand: "residual", found, expected });
    }
    y.copy_from_slice(residual);
    Ok(())
}

#[derive(Debug)]
struct HeadNorm {
    dims: AttentionDims,
    epsilon: f32,
}

impl BoundKernel for HeadNorm {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        let (qkv, queries, keys) = (call.input(0)?, call.vector(1)?, call.vector(2)?);
        head_norm(qkv, self.dims, queries, keys, self.epsilon, call.output(0)?)
    }
}

#[derive(Debug)]
struct Rotary {
    dims: AttentionDims,
    table: RotaryTable,
}

impl BoundKernel for Rotary {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        let (qkv, positions) = (call.input(0)?, call.input(1)?);
        let (layer, mut cache) = call.cache(2)?;
        let rows = TokenRows { positions, ..call.rows() };
        rotate_and_store(qkv, rows, self.dims, &self.table, layer, &mut cache, call.output(0)?)
    }
}

#[derive(Debug)]
struct Attention {
    dims: AttentionDims,
}

impl BoundKernel for Attention {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        let queries = call.input(0)?;
        let (layer, cache) = call.cache(1)?;
        let (rows, out) = (call.rows(), call.output(0)?);
        attention_in_parts(queries, rows, self.dims, layer, &cache, out, call.parts())
    }
}

#[derive(Debug)]
struct SwiGlu {
    width: usize,
}

impl BoundKernel for SwiGlu {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        swiglu(call.input(0)?, self.width, call.output(0)?)
    }
}

#[derive(Debug)]
struct Gather {
    width: usize,
}

impl BoundKernel for Gather {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        gather_rows(call.input(0)?, self.width, call.input(1)?, call.output(0)?)
    }
}

#[derive(Debug)]
struct Sample {
    vocabulary: usize,
}

impl BoundKernel for Sample {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        let (logits, choices, tokens) = (call.input::<f32>(0)?, call.choices(), call.output::<u32>(0)?);
        if choices.len() != tokens.len() || choices.iter().all(|(sampling, _)| sampling.is_greedy()) {
            return argmax_rows(logits, self.vocabulary, tokens);
        }
        for ((logits, token), &(sampling, position)) in logits.chunks(self.vocabulary).zip(tokens).zip(choices) {
            *token = sample(logits, sampling, position)?;
        }
        Ok(())
    }
}
