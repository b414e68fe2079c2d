//! Matrix products with block-quantized weights, without unpacking them.
//!
//! **Formats** are those of GGUF: blocks of 32 weights of one row with a scale `d` in binary16, and
//! for Q4_1 a minimum `m`. A weight is `d q` with `q` in -128..=127 (Q8_0), `d (q - 8)` with `q` in
//! 0..=15 (Q4_0), or `d q + m` (Q4_1).
//!
//! **Layout.** A matrix `W[n, k]` is packed once, when a model is loaded, into panels of
//! [`COLUMNS`] outputs and takes as many bytes as in its file (with `n` rounded up to whole panels).
//! A panel holds the quants of all blocks, then their scales, then their minima:
//! - quants: per block, per group of four weights, per output: the four bytes of the group. The low
//!   halves of the bytes of group `g` are weights `4 g..` of the block, the high halves weights
//!   `16 + 4 g..`; eight-bit weights are stored plus 128. So one instruction multiplies two weights
//!   of all outputs by the same two activations.
//! - scales and minima: per block, one binary16 per output.
//!
//! **Arithmetic.** A row of activations is rounded to sixteen bits per block of 32, with a scale of
//! its own. Eight bits, which others take, are not enough to keep what the weights say: with SmolLM2-135M in
//! Q4_1 they move the logits by 0.6 (root mean square, against double precision), sixteen by 0.001; and
//! weights, not activations, are what a decode step waits for. Products within a block
//! are summed as integers, thus exactly; block sums are scaled and added in ascending order without
//! fused operations. So a row's bits depend on that row and the weights only: not on the batch, and
//! not on the instruction set either.

mod encode;
mod pack;
mod product;
mod rows;
#[cfg(target_arch = "x86_64")]
mod vnni;

use half::f16;
use half::slice::HalfFloatSliceExt;
use slicescheduler_gmg::dtype::DType;

use super::{Output, check};
use crate::error::{ExecutorError, Result};

pub use encode::{dequantize, quantize};
pub use pack::pack_quantized;
pub(super) use product::{multiply_quantized, quantized_parts};

/// Weights of a block.
pub const BLOCK: usize = 32;
/// Outputs per panel: what one 512-bit register of 32-bit sums covers.
pub const COLUMNS: usize = 16;

/// How the blocks of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantFormat {
    /// Eight bits per weight, and a scale.
    Q8_0,
    /// Four bits per weight, and a scale.
    Q4_0,
    /// Four bits per weight, a scale and a minimum.
    Q4_1,
}

impl QuantFormat {
    /// The format of a quantized element type.
    pub const fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::Q8_0 => Some(Self::Q8_0),
            DType::Q4_0 => Some(Self::Q4_0),
            DType::Q4_1 => Some(Self::Q4_1),
            _ => None,
        }
    }

    /// Bytes of a block in a file and in a panel.
    pub const fn block_bytes(self) -> usize {
        self.quant_bytes() + if self.has_minimum() { 4 } else { 2 }
    }

    /// Bytes of the quants of a block.
    const fn quant_bytes(self) -> usize {
        match self {
            Self::Q8_0 => BLOCK,
            Self::Q4_0 | Self::Q4_1 => BLOCK / 2,
        }
    }

    const fn has_minimum(self) -> bool {
        matches!(self, Self::Q4_1)
    }

    /// What the unsigned quants of a panel are above the weights' integers.
    const fn offset(self) -> i32 {
        match self {
            Self::Q8_0 => 128,
            Self::Q4_0 => 8,
            Self::Q4_1 => 0,
        }
    }
}

/// A quantized weight matrix `W[n, k]` in panels.
#[derive(Clone, Copy, Debug)]
pub struct QuantMatrix<'a> {
    data: &'a [u8],
    n: usize,
    k: usize,
    format: QuantFormat,
}

/// The parts of a panel.
#[derive(Clone, Copy, Debug)]
struct Panel<'a> {
    quants: &'a [u8],
    scales: &'a [u8],
    /// Empty where the format has none.
    minima: &'a [u8],
}

impl<'a> QuantMatrix<'a> {
    /// A view of packed weights.
    ///
    /// # Errors
    /// When `k` is no multiple of [`BLOCK`], or `data` is not [`packed_len`](Self::packed_len) long.
    pub fn new(data: &'a [u8], n: usize, k: usize, format: QuantFormat) -> Result<Self> {
        whole_blocks("matmul", k)?;
        check("matmul", "weights", data.len(), Self::packed_len(n, k, format))?;
        Ok(Self { data, n, k, format })
    }

    /// Bytes of the packed form of an `n` by `k` matrix: `n` rounded up to whole panels.
    pub const fn packed_len(n: usize, k: usize, format: QuantFormat) -> usize {
        let rows = n.div_ceil(COLUMNS).saturating_mul(COLUMNS);
        rows.saturating_mul(k / BLOCK).saturating_mul(format.block_bytes())
    }

    /// Rows of the matrix: the output features.
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Columns of the matrix: the input features.
    pub const fn k(&self) -> usize {
        self.k
    }

    fn blocks(&self) -> usize {
        self.k / BLOCK
    }

    fn panels(&self) -> usize {
        self.n.div_ceil(COLUMNS)
    }

    fn panel(&self, index: usize) -> Panel<'a> {
        let blocks = self.blocks();
        let bytes = blocks * COLUMNS * self.format.block_bytes();
        let panel = &self.data[index * bytes..(index + 1) * bytes];
        let (quants, rest) = panel.split_at(blocks * COLUMNS * self.format.quant_bytes());
        let (scales, minima) = rest.split_at(blocks * COLUMNS * 2);
        Panel { quants, scales, minima }
    }

    /// Writes row `row` of the matrix, `k` elements, to `out`; both are checked by the caller.
    pub(crate) fn copy_row(&self, row: usize, out: &mut [f32]) {
        let (panel, column) = (self.panel(row / COLUMNS), row % COLUMNS);
        for (block, out) in out.chunks_exact_mut(BLOCK).enumerate() {
            let scale = half_at(panel.scales, block * COLUMNS + column);
            let minimum = if self.format.has_minimum() { half_at(panel.minima, block * COLUMNS + column) } else { 0.0 };
            for (i, out) in out.iter_mut().enumerate() {
                let quant = panel.quant(self.format, block, column, i) - self.format.offset();
                *out = scale * quant as f32 + minimum;
            }
        }
    }
}

impl Panel<'_> {
    /// The unsigned quant of weight `i` of a block.
    fn quant(&self, format: QuantFormat, block: usize, column: usize, i: usize) -> i32 {
        let bytes = &self.quants[block * COLUMNS * format.quant_bytes()..];
        let of_group = |i: usize| bytes[(i / 4) * 4 * COLUMNS + column * 4 + i % 4];
        i32::from(match format {
            QuantFormat::Q8_0 => of_group(i),
            QuantFormat::Q4_0 | QuantFormat::Q4_1 if i < BLOCK / 2 => of_group(i) & 0x0f,
            QuantFormat::Q4_0 | QuantFormat::Q4_1 => of_group(i - BLOCK / 2) >> 4,
        })
    }
}

/// Binary16 number `index` of `bytes`.
fn half_at(bytes: &[u8], index: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
}

/// The binary16 numbers of all outputs of a panel for one block.
fn halves(bytes: &[u8], block: usize) -> [f32; COLUMNS] {
    let bytes = &bytes[2 * COLUMNS * block..];
    let numbers: [f16; COLUMNS] = std::array::from_fn(|i| f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]));
    let mut widened = [0.0; COLUMNS];
    numbers.convert_to_f32_slice(&mut widened);
    widened
}

fn whole_blocks(kernel: &'static str, k: usize) -> Result<()> {
    if k.is_multiple_of(BLOCK) {
        return Ok(());
    }
    Err(ExecutorError::Dimension { kernel, dimension: "k", value: k, requirement: "a multiple of 32" })
}
