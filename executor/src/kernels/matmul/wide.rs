//! The product with 512-bit registers, straight from where panels and activations lie.
//!
//! A panel is as wide as four registers, so six rows make 24 independent sums and leave room for a row of the
//! panel: per step of `k` ten loads for 24 multiply-adds. Nothing is packed again, which a general product does
//! for every panel and costs a quarter of the time at 256 rows.

use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps};

use super::tile::Tile;
use super::{PANEL, STEP as ROWS};

/// Floats of a register.
const LANES: usize = 16;

/// True if the processor has the instructions.
pub(super) fn is_available() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
}

/// As [`Tile::multiply`]. The processor must have the instructions.
pub(super) fn multiply(tile: &Tile<'_>, y: &mut [f32], y_stride: usize, accumulate: bool) {
    debug_assert!(is_available());
    tile.assert_bounds(y, y_stride);
    // Rows of a panel are read as a whole; a last one that is short is not one of packed weights.
    assert!(tile.panel.len() >= tile.depth * PANEL);
    let mut row = 0;
    while row < tile.rows {
        let y = &mut y[row * y_stride..];
        row += match tile.rows - row {
            1 => rows::<1>(tile, row, y, y_stride, accumulate),
            2 => rows::<2>(tile, row, y, y_stride, accumulate),
            3 => rows::<3>(tile, row, y, y_stride, accumulate),
            4 => rows::<4>(tile, row, y, y_stride, accumulate),
            5 => rows::<5>(tile, row, y, y_stride, accumulate),
            _ => rows::<ROWS>(tile, row, y, y_stride, accumulate),
        };
    }
}

/// `R` rows from `row` on; gives `R`.
fn rows<const R: usize>(tile: &Tile<'_>, row: usize, y: &mut [f32], y_stride: usize, accumulate: bool) -> usize {
    let x = &tile.x[row * tile.x_stride..];
    let mut sums = [[0.0; PANEL]; R];
    // SAFETY: the processor has the instructions (a condition of `multiply`), which has also checked that the
    // rows have `depth` elements and the panel `depth` rows.
    unsafe { sum_up(x.as_ptr(), tile.x_stride, tile.panel.as_ptr(), tile.depth, &mut sums) };
    for (y, sums) in y.chunks_mut(y_stride).zip(&sums) {
        let (y, sums) = (&mut y[..tile.width], &sums[..tile.width]);
        if accumulate {
            y.iter_mut().zip(sums).for_each(|(y, sum)| *y += sum);
        } else {
            y.copy_from_slice(sums);
        }
    }
    R
}

/// # Safety
/// The processor has the instructions. `depth` floats can be read at each of `R` rows that begin `x_stride`
/// apart at `x`, and `depth` times [`PANEL`] at `panel`.
#[target_feature(enable = "avx512f")]
#[allow(clippy::needless_range_loop, reason = "loops over registers, of a number known at compile time")]
unsafe fn sum_up<const R: usize>(
    x: *const f32,
    x_stride: usize,
    panel: *const f32,
    depth: usize,
    results: &mut [[f32; PANEL]; R],
) {
    const REGISTERS: usize = PANEL / LANES;
    let mut sums = [[_mm512_setzero_ps(); REGISTERS]; R];
    for i in 0..depth {
        let mut weights = [_mm512_setzero_ps(); REGISTERS];
        for c in 0..REGISTERS {
            // SAFETY: row `i` of the panel.
            weights[c] = unsafe { _mm512_loadu_ps(panel.add(i * PANEL + c * LANES)) };
        }
        for r in 0..R {
            // SAFETY: element `i` of row `r`.
            let value = _mm512_set1_ps(unsafe { *x.add(r * x_stride + i) });
            for c in 0..REGISTERS {
                sums[r][c] = _mm512_fmadd_ps(value, weights[c], sums[r][c]);
            }
        }
    }
    for (results, sums) in results.iter_mut().zip(sums) {
        for (result, sum) in results.as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
            // SAFETY: a chunk has the floats of a register.
            unsafe { _mm512_storeu_ps(result.as_mut_ptr(), sum) };
        }
    }
}
