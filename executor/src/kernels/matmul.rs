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
//! **Bits.** An element of `y` is the sum over blocks of at most [`DEPTH`] of `k` of a chain of fused
//! multiply-adds in ascending `k`, whatever the number of rows and the instruction set.

mod panels;
mod tile;
#[cfg(target_arch = "x86_64")]
mod wide;

use std::ops::Range;

use super::parts::{Parts, WORK};
use super::quantized::{multiply_quantized, quantized_parts};
use super::{WeightMatrix, check};
use crate::error::Result;
pub use panels::{HalfFormat, OwnedPanels, PANEL, PanelMatrix, pack_panels};
use tile::Tile;

/// The most of `k` that one chain of multiply-adds covers.
const DEPTH: usize = 512;
/// Rows per sweep over the weights; their `x` stays in the second-level cache.
const ROWS: usize = 256;
/// Rows that are computed together at most.
const STEP: usize = 6;

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
/// rounded to sixteen bits per 32 elements first, and products are those of integers (see
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
    matmul_in_parts(x, rows, weights, output, y, &mut Parts::all())
}

/// As [`matmul`], of which `parts` says what is to be done now: some columns of some rows make a part.
///
/// # Errors
/// As [`matmul`].
pub fn matmul_in_parts<'a>(
    x: &[f32],
    rows: usize,
    weights: impl Into<WeightMatrix<'a>>,
    output: Output,
    y: &mut [f32],
    parts: &mut Parts<'_>,
) -> Result<()> {
    let weights = weights.into();
    check("matmul", "x", x.len(), rows.saturating_mul(weights.k()))?;
    check("matmul", "y", y.len(), rows.saturating_mul(weights.n()))?;
    if weights.n() == 0 || rows == 0 {
        return Ok(());
    }
    match weights {
        WeightMatrix::Panels(weights) => product(x, weights, output, y, parts),
        WeightMatrix::Quantized(weights) => multiply_quantized(x, weights, output, y, parts),
    }
    Ok(())
}

/// How many parts [`matmul_in_parts`] makes of a product with `rows` rows; 1 of one without work.
pub(super) fn parts_of(rows: usize, weights: &WeightMatrix<'_>) -> usize {
    if rows == 0 || weights.n() == 0 || weights.k() == 0 {
        return 1;
    }
    match weights {
        WeightMatrix::Panels(weights) => {
            let together = rows_of_a_part(weights.k());
            let of_a_panel: usize = chunks(rows, ROWS).map(|rows| rows.div_ceil(together)).sum();
            of_a_panel * weights.n().div_ceil(PANEL)
        }
        WeightMatrix::Quantized(weights) => quantized_parts(rows, weights),
    }
}

/// The lengths of the chunks of so many rows.
pub(super) fn chunks(rows: usize, most: usize) -> impl Iterator<Item = usize> {
    (0..rows.div_ceil(most)).map(move |chunk| most.min(rows - chunk * most))
}

/// Rows of a panel that make a part: whole steps of the widest micro-kernel.
fn rows_of_a_part(k: usize) -> usize {
    (WORK / (PANEL * k) / STEP * STEP).clamp(STEP, ROWS)
}

fn product(x: &[f32], weights: PanelMatrix<'_>, output: Output, y: &mut [f32], parts: &mut Parts<'_>) {
    let (n, k) = (weights.n(), weights.k());
    if k == 0 {
        if output == Output::Overwrite {
            y.fill(0.0);
        }
        return;
    }
    let together = rows_of_a_part(k);
    let mut part = 0;
    for (x, y) in x.chunks(ROWS * k).zip(y.chunks_mut(ROWS * n)) {
        for panel in 0..n.div_ceil(PANEL) {
            let first = panel * PANEL;
            let width = PANEL.min(n - first);
            for (x, y) in x.chunks(together * k).zip(y.chunks_mut(together * n)) {
                part += 1;
                if part <= parts.first() {
                    continue;
                }
                if parts.stop_before(part - 1) {
                    return;
                }
                let rows = y.len() / n;
                let mut accumulate = output == Output::Accumulate;
                for depth in depth_blocks(k) {
                    let x = &x[depth.start..];
                    weights.block(panel, depth.clone(), |block| {
                        let tile = Tile { x, x_stride: k, panel: block, depth: depth.len(), width, rows };
                        tile.multiply(&mut y[first..], n, accumulate);
                    });
                    accumulate = true;
                }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(seed: u64, at: usize) -> f32 {
        let x = (seed ^ (at as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((x ^ (x >> 29)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    proptest! {
        #[test]
        fn every_version_gives_the_same_bits(
            seed: u64, rows in 1usize..20, width in 1usize..=PANEL, depth in 1usize..80, add: bool,
        ) {
            let x: Vec<f32> = (0..rows * depth).map(|at| number(seed, at)).collect();
            let panel: Vec<f32> = (0..depth * PANEL).map(|at| number(!seed, at)).collect();
            let tile = Tile { x: &x, x_stride: depth, panel: &panel, depth, width, rows };
            let (mut best, mut portable) = (vec![0.5; rows * width], vec![0.5; rows * width]);
            tile.multiply(&mut best, width, add);
            tile.portable(&mut portable, width, add);
            prop_assert!(best.iter().zip(&portable).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}
