//! A block of one panel times the same block of some rows: what every product is made of.

use gemm::Parallelism;

use super::PANEL;

/// A block of `depth` of one panel times the same block of some rows of `x`, into `width` columns of as
/// many rows of `y`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile<'a> {
    pub(super) x: &'a [f32],
    pub(super) x_stride: usize,
    pub(super) panel: &'a [f32],
    pub(super) depth: usize,
    pub(super) width: usize,
    pub(super) rows: usize,
}

impl Tile<'_> {
    /// Refuses what a version below could read or write out of bounds.
    pub(super) fn assert_bounds(&self, y: &[f32], y_stride: usize) {
        assert!(self.rows >= 1 && self.width >= 1 && self.width <= PANEL && self.depth >= 1);
        assert!(self.x.len() >= (self.rows - 1) * self.x_stride + self.depth);
        assert!(self.panel.len() >= (self.depth - 1) * PANEL + self.width);
        assert!(y.len() >= (self.rows - 1) * y_stride + self.width && y_stride >= self.width);
    }

    /// Writes the product to `y`, or adds it there.
    pub(super) fn multiply(&self, y: &mut [f32], y_stride: usize, accumulate: bool) {
        #[cfg(target_arch = "x86_64")]
        if super::wide::is_available() {
            return super::wide::multiply(self, y, y_stride, accumulate);
        }
        self.portable(y, y_stride, accumulate);
    }

    /// By the gemm crate. It gives chains of fused multiply-adds in ascending order as long as it is kept away
    /// from what it does for special shapes, so what must stay true is:
    /// - a call never has more of `k` than [`DEPTH`](super::DEPTH) (longer ones are cut at boundaries that
    ///   depend on the shape of the other operands and on the caches of the machine);
    /// - a call never has a single row (matrix-vector code, another order): a lone row is computed
    ///   beside a copy of itself, which is read through a row stride of zero;
    /// - the weights' stride over `k` is not 1 (dot-product code, another order), and `k` is over 2
    ///   (outer-product code, unfused).
    pub(super) fn portable(&self, y: &mut [f32], y_stride: usize, accumulate: bool) {
        if self.depth <= 2 {
            return self.outer_product(y, y_stride, accumulate);
        }
        if self.rows == 1 {
            let mut pair = [0.0; 2 * PANEL];
            let y = &mut y[..self.width];
            if accumulate {
                pair[..self.width].copy_from_slice(y);
            }
            Self { rows: 2, x_stride: 0, ..*self }.gemm(&mut pair, PANEL, accumulate);
            return y.copy_from_slice(&pair[..self.width]);
        }
        self.gemm(y, y_stride, accumulate);
    }

    /// The product for what is too short to keep the gemm crate to one order.
    fn outer_product(&self, y: &mut [f32], y_stride: usize, accumulate: bool) {
        for row in 0..self.rows {
            let (x, y) = (&self.x[row * self.x_stride..][..self.depth], &mut y[row * y_stride..][..self.width]);
            for (column, y) in y.iter_mut().enumerate() {
                let weights = self.panel[column..].iter().step_by(PANEL);
                let sum = x.iter().zip(weights).fold(0.0f32, |sum, (x, weight)| x.mul_add(*weight, sum));
                *y = if accumulate { *y + sum } else { sum };
            }
        }
    }

    fn gemm(&self, y: &mut [f32], y_stride: usize, accumulate: bool) {
        self.assert_bounds(y, y_stride);
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
