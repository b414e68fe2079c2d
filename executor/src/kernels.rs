//! CPU kernels of transformer models. Activations are f32; weights are f32, f16, bf16 or quantized.
//!
//! Each is a plain function over slices: row-major activations, one row per token, weights
//! [packed](WeightMatrix), keys and values in [blocks](KvCache). None starts a thread. What a kernel needs besides its
//! operands it keeps per thread: a lane that has run as much before allocates nothing, which is tested with weights of
//! every type. The exception is the gemm crate, which multiplies floats where there are no 512-bit registers and
//! takes room for each call from the allocator.
//!
//! **Batch invariance.** The bits of a row depend on that row's sequence alone: not on how many
//! rows there are, which ones, how a prompt was cut into chunks, how long a block of the cache is
//! and which blocks a sequence has, on the lane or its thread. So the tokens of a run that was
//! sliced, recalled and batched anew equal those of an undisturbed one. Nor do products depend on the
//! instruction set: all versions of one that a machine can run give the same bits, which is tested.

mod activation;
mod attention;
mod cache;
mod embedding;
mod experts;
mod matmul;
mod norm;
mod parts;
mod pool;
mod quantized;
mod rotary;
mod sampling;
mod simd;
mod vector;
mod weights;

pub use activation::{add_bias, gelu, swiglu, tanh};
pub use attention::{AttentionDims, attention, attention_in_parts, self_attention, self_attention_in_parts};
pub use cache::{KvCache, KvLayout, KvPool, TokenRows};
pub use embedding::{embed, embed_panels, gather_rows};
pub use experts::{combine_rows, grouped_matmul, permute_rows, top_k};
pub use matmul::{HalfFormat, Output, OwnedPanels, PANEL, PanelMatrix, matmul, matmul_in_parts, pack_panels};
pub use norm::{head_norm, layer_norm, normalize_rows, rms_norm};
pub use parts::Parts;
pub use pool::mean_pool;
pub use quantized::{BLOCK, COLUMNS, QuantFormat, QuantMatrix, dequantize, pack_quantized, quantize};
pub use rotary::{RotaryTable, rotary_frequencies, rotate_and_store};
pub use sampling::{Sampling, argmax_rows, sample};
pub use weights::{ExpertMatrices, WeightMatrix};

use crate::error::{ExecutorError, Result};

/// Refuses an operand of the wrong length.
fn check(kernel: &'static str, operand: &'static str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(ExecutorError::OperandLength { kernel, operand, found, expected })
}

/// Refuses a zero dimension.
fn nonzero(kernel: &'static str, dimension: &'static str, value: usize) -> Result<()> {
    if value > 0 {
        return Ok(());
    }
    Err(ExecutorError::Dimension { kernel, dimension, value, requirement: "at least 1" })
}

/// Refuses an operand with an index of `limit` or more.
fn check_indices(kernel: &'static str, operand: &'static str, indices: &[u32], limit: usize) -> Result<()> {
    match indices.iter().position(|&index| index as usize >= limit) {
        None => Ok(()),
        Some(at) => Err(ExecutorError::IndexOutOfRange { kernel, operand, at, value: indices[at] as usize, limit }),
    }
}
