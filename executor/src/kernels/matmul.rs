//! Matrix products with weights of floats, `y = x W^T`.
//!
//! Weights in binary16 or bfloat16 are widened a block of a panel at a time, and give the bits of the
//! same weights in single precision.
//!
//! **Layout.** A weight matrix `W[n, k]` is packed once, when a model is loaded, into panels of
//! [`PANEL`] output columns: element `(j, i)` lies at `(j / PANEL) k PANEL + i PANEL + j % PANEL`.
//! A decode step then streams the weights in address order, which is what bounds it, and no
//! product repacks them.
//!
//! **Bits.** An element of `y` is the sum over blocks of `k` of a chain of fused multiply-adds in
//! ascending `k`, whatever the number of rows. The gemm crate gives that chain as long as it is
//! kept away from what it does for special shapes, so what must stay true is:
//! - a call never has more than [`DEPTH`] of `k` (longer ones are cut at boundaries that depend on
//!   the shape of the other operands and on the caches of the machine);
//! - a call never has a single row (matrix-vector code, another order): a lone row is computed
//!   beside a copy of itself, which is read through a row stride of zero;
//! - the weights' stride over `k` is not 1 (dot-product code, another order), and `k` is over 2
//!   (outer-product code, unfused).

use std::cell::RefCell;
use std::ops::Range;

use gemm::Parallelism;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use slicescheduler_gmg::dtype::DType;

use super::quantized::multiply_quantized;
use super::{WeightMatrix, check};
use crate::arena::Element;
use crate::error::Result;

/// Output columns per panel: what the widest micro-kernel covers (4 registers of 16 floats).
pub const PANEL: usize = 64;
/// The most of `k` that one chain of multiply-adds covers.
const DEPTH: usize = 512;
/// Rows per sweep over the weights; their `x` stays in the second-level cache.
const ROWS: usize = 256;

/// A weight matrix `W[n, k]` in panels.
#[derive(Clone, Copy, Debug)]
pub struct PanelMatrix<'a> {
    data: &'a [f32],
    n: usize,
    k: usize,
}

impl<'a> PanelMatrix<'a> {
    /// A view of packed weights.
    ///
    /// # Errors
    /// When `data` is not [`packed_len(n, k)`](Self::packed_len) long.
    pub fn new(data: &'a [f32], n: usize, k: usize) -> Result<Self> {
        check("matmul", "weights", data.len(), Self::packed_len(n, k))?;
        Ok(Self { data, n, k })
    }

    /// Elements of the packed form of an `n` by `k` matrix: `n` rounded up to whole panels, times
    /// `k`.
    pub const fn packed_len(n: usize, k: usize) -> usize {
        n.div_ceil(PANEL).saturating_mul(PANEL).saturating_mul(k)
    }

    /// Rows of the matrix: the output features.
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Columns of the matrix: the input features.
    pub const fn k(&self) -> usize {
        self.k
    }

    /// Copies row `row` of the matrix, `k` elements, to `out`; both are checked by the caller.
    pub(crate) fn copy_row(&self, row: usize, out: &mut [f32]) {
        let first = (row / PANEL) * self.k * PANEL + row % PANEL;
        for (out, value) in out.iter_mut().zip(self.data[first..].iter().step_by(PANEL)) {
            *out = *value;
        }
    }
}

/// A 16-bit floating-point type of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfFormat {
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    BF16,
}

impl HalfFormat {
    /// The format of an element type of 16 bits.
    pub const fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F16 => Some(Self::F16),
            DType::BF16 => Some(Self::BF16),
            _ => None,
        }
    }

    /// Widens numbers, as many as `into` has, exactly.
    pub(crate) fn widen(self, bits: &[u16], into: &mut [f32]) {
        match self {
            Self::F16 => bits.reinterpret_cast::<f16>().convert_to_f32_slice(into),
            Self::BF16 => bits.reinterpret_cast::<bf16>().convert_to_f32_slice(into),
        }
    }

    /// Rounds a number to nearest, ties to even.
    pub(crate) fn round(self, value: f32) -> u16 {
        match self {
            Self::F16 => f16::from_f32(value).to_bits(),
            Self::BF16 => bf16::from_f32(value).to_bits(),
        }
    }
}

/// A weight matrix `W[n, k]` of 16-bit floats in panels, as those of [`PanelMatrix`].
#[derive(Clone, Copy, Debug)]
pub struct HalfMatrix<'a> {
    data: &'a [u16],
    n: usize,
    k: usize,
    format: HalfFormat,
}

impl<'a> HalfMatrix<'a> {
    /// A view of packed weights, the bits of which are `data`.
    ///
    /// # Errors
    /// When `data` is not [`PanelMatrix::packed_len`] long.
    pub fn new(data: &'a [u16], n: usize, k: usize, format: HalfFormat) -> Result<Self> {
        check("matmul", "weights", data.len(), PanelMatrix::packed_len(n, k))?;
        Ok(Self { data, n, k, format })
    }

    /// Rows of the matrix: the output features.
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Columns of the matrix: the input features.
    pub const fn k(&self) -> usize {
        self.k
    }

    /// Copies row `row` of the matrix, `k` elements, to `out`; both are checked by the caller.
    pub(crate) fn copy_row(&self, row: usize, out: &mut [f32]) {
        let first = (row / PANEL) * self.k * PANEL + row % PANEL;
        for (out, value) in out.iter_mut().zip(self.data[first..].iter().step_by(PANEL)) {
            self.format.widen(&[*value], std::slice::from_mut(out));
        }
    }
}

thread_local! {
    /// Room for a widened block of a panel: at most [`DEPTH`] times [`PANEL`] elements.
    static WIDENED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Weights in panels, of which a product takes blocks in single precision.
trait Panels {
    fn n(&self) -> usize;
    fn k(&self) -> usize;
    /// Calls `with` on the elements of `depth` of a panel, `[depth, PANEL]`.
    fn block(&self, panel: usize, depth: Range<usize>, with: impl FnOnce(&[f32]));
}

/// The elements of `depth` of a panel of `k`.
fn place(k: usize, panel: usize, depth: Range<usize>) -> Range<usize> {
    (panel * k + depth.start) * PANEL..(panel * k + depth.end) * PANEL
}

impl Panels for PanelMatrix<'_> {
    fn n(&self) -> usize {
        self.n
    }

    fn k(&self) -> usize {
        self.k
    }

    fn block(&self, panel: usize, depth: Range<usize>, with: impl FnOnce(&[f32])) {
        with(&self.data[place(self.k, panel, depth)]);
    }
}

impl Panels for HalfMatrix<'_> {
    fn n(&self) -> usize {
        self.n
    }

    fn k(&self) -> usize {
        self.k
    }

    fn block(&self, panel: usize, depth: Range<usize>, with: impl FnOnce(&[f32])) {
        let bits = &self.data[place(self.k, panel, depth)];
        WIDENED.with_borrow_mut(|widened| {
            widened.resize(bits.len(), 0.0);
            self.format.widen(bits, widened);
            with(widened);
        });
    }
}

/// Packs the row-major matrix `source[n, k]` into panels; what fills up the last panel is zero.
///
/// # Errors
/// When `source` is not `n k` long, or `packed` not [`PanelMatrix::packed_len`].
pub fn pack_panels<T: Element>(source: &[T], n: usize, k: usize, packed: &mut [T]) -> Result<()> {
    check("pack_panels", "source", source.len(), n.saturating_mul(k))?;
    check("pack_panels", "packed", packed.len(), PanelMatrix::packed_len(n, k))?;
    if k == 0 {
        return Ok(());
    }
    packed.fill(T::default());
    for (rows, panel) in source.chunks(PANEL * k).zip(packed.chunks_exact_mut(PANEL * k)) {
        for (column, row) in rows.chunks_exact(k).enumerate() {
            for (slot, value) in panel[column..].iter_mut().step_by(PANEL).zip(row) {
                *slot = *value;
            }
        }
    }
    Ok(())
}

/// What a product does with what is in `y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// `y = x W^T`.
    Overwrite,
    /// `y = y + x W^T`, as for a residual connection.
    Accumulate,
}

/// The product of `x[rows, k]` and the transpose of `weights[n, k]`, into `y[rows, n]`, both
/// row-major. `2 rows n k` floating-point operations, one thread. With quantized weights, `x` is
/// rounded to eight bits per 32 elements first, and products are those of integers (see
/// [`QuantMatrix`](super::QuantMatrix)).
///
/// # Errors
/// When `x` or `y` does not have `rows` rows.
pub fn matmul<'a>(
    x: &[f32],
    rows: usize,
    weights: impl Into<WeightMatrix<'a>>,
    output: Output,
    y: &mut [f32],
) -> Result<()> {
    let weights = weights.into();
    check("matmul", "x", x.len(), rows.saturating_mul(weights.k()))?;
    check("matmul", "y", y.len(), rows.saturating_mul(weights.n()))?;
    if weights.n() == 0 || rows == 0 {
        return Ok(());
    }
    match weights {
        WeightMatrix::Single(weights) => product(x, &weights, output, y),
        WeightMatrix::Half(weights) => product(x, &weights, output, y),
        WeightMatrix::Quantized(weights) => multiply_quantized(x, weights, output, y),
    }
    Ok(())
}

fn product(x: &[f32], weights: &impl Panels, output: Output, y: &mut [f32]) {
    let (n, k) = (weights.n(), weights.k());
    if k == 0 {
        if output == Output::Overwrite {
            y.fill(0.0);
        }
        return;
    }
    for (x, y) in x.chunks(ROWS * k).zip(y.chunks_mut(ROWS * n)) {
        for panel in 0..n.div_ceil(PANEL) {
            let first = panel * PANEL;
            let width = PANEL.min(n - first);
            if k <= 2 {
                weights.block(panel, 0..k, |block| outer_product(x, k, block, output, width, &mut y[first..], n));
                continue;
            }
            if y.len() == n {
                single_row(x, panel, weights, output, &mut y[first..first + width]);
                continue;
            }
            let mut accumulate = output == Output::Accumulate;
            for depth in depth_blocks(k) {
                let (x, rows) = (&x[depth.start..], y.len() / n);
                weights.block(panel, depth.clone(), |block| {
                    let tile = Tile { x, x_stride: k, panel: block, depth: depth.len(), width, rows };
                    tile.multiply(&mut y[first..], n, accumulate);
                });
                accumulate = true;
            }
        }
    }
}

/// The blocks of `0..k`: at most [`DEPTH`] each and equal up to one, so none is down to 1 or 2 where
/// `k` is not.
fn depth_blocks(k: usize) -> impl Iterator<Item = Range<usize>> {
    let blocks = k.div_ceil(DEPTH);
    (0..blocks).map(move |block| block * k / blocks..(block + 1) * k / blocks)
}

/// One row of a product, beside a copy of itself.
fn single_row(x: &[f32], panel: usize, weights: &impl Panels, output: Output, y: &mut [f32]) {
    let mut pair = [0.0; 2 * PANEL];
    let mut accumulate = output == Output::Accumulate;
    if accumulate {
        pair[..y.len()].copy_from_slice(y);
    }
    for depth in depth_blocks(x.len()) {
        let x = &x[depth.start..];
        weights.block(panel, depth.clone(), |block| {
            let tile = Tile { x, x_stride: 0, panel: block, depth: depth.len(), width: y.len(), rows: 2 };
            tile.multiply(&mut pair, PANEL, accumulate);
        });
        accumulate = true;
    }
    y.copy_from_slice(&pair[..y.len()]);
}

/// The product with one panel for `k <= 2`, too short for what keeps the gemm crate to one order.
fn outer_product(x: &[f32], k: usize, block: &[f32], output: Output, width: usize, y: &mut [f32], n: usize) {
    for (x, y) in x.chunks_exact(k).zip(y.chunks_mut(n)) {
        for (column, y) in y[..width].iter_mut().enumerate() {
            let weights = block[column..].iter().step_by(PANEL);
            let sum = x.iter().zip(weights).fold(0.0f32, |sum, (x, weight)| x.mul_add(*weight, sum));
            *y = if output == Output::Accumulate { *y + sum } else { sum };
        }
    }
}

/// A block of `depth` of one panel times the same block of some rows of `x`.
struct Tile<'a> {
    x: &'a [f32],
    x_stride: usize,
    panel: &'a [f32],
    depth: usize,
    width: usize,
    rows: usize,
}

impl Tile<'_> {
    fn multiply(&self, y: &mut [f32], y_stride: usize, accumulate: bool) {
        assert!(self.rows >= 2 && self.width >= 1 && self.width <= PANEL && self.depth >= 1);
        assert!(self.x.len() >= (self.rows - 1) * self.x_stride + self.depth);
        assert!(self.panel.len() >= (self.depth - 1) * PANEL + self.width);
        assert!(y.len() >= (self.rows - 1) * y_stride + self.width && y_stride >= self.width);
        // SAFETY: the product is the column-major y^T[width, rows] = panel[width, depth] x^T[depth,
        // rows]; the asserts above bound the last element of each by its slice, all strides are
        // non-negative, y is borrowed exclusively and its rows do not overlap. With `accumulate`
        // false y is not read.
        unsafe {
            gemm::gemm(
                self.width,
                self.rows,
                self.depth,
                y.as_mut_ptr(),
                y_stride as isize,
                1,
                accumulate,
                self.panel.as_ptr(),
                PANEL as isize,
                1,
                self.x.as_ptr(),
                self.x_stride as isize,
                1,
                1.0f32,
                1.0f32,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}

/// Packed weights that own their memory, for models that are loaded once.
#[derive(Clone, Debug)]
pub struct OwnedPanels {
    data: Vec<f32>,
    n: usize,
    k: usize,
}

impl OwnedPanels {
    /// Packs the row-major `source[n, k]`.
    ///
    /// # Errors
    /// When `source` is not `n k` long.
    pub fn pack(source: &[f32], n: usize, k: usize) -> Result<Self> {
        check("pack_panels", "source", source.len(), n.saturating_mul(k))?;
        let mut data = vec![0.0; PanelMatrix::packed_len(n, k)];
        pack_panels(source, n, k, &mut data)?;
        Ok(Self { data, n, k })
    }

    /// The view that [`matmul`] takes.
    pub fn view(&self) -> PanelMatrix<'_> {
        PanelMatrix { data: &self.data, n: self.n, k: self.k }
    }
}
