//! A weight matrix as it lies in a slot, of any element type.

use super::{PanelMatrix, QuantMatrix};

/// A weight matrix `W[n, k]`, packed.
#[derive(Clone, Copy, Debug)]
pub enum WeightMatrix<'a> {
    /// Of floats.
    Panels(PanelMatrix<'a>),
    /// In blocks of small integers with a scale.
    Quantized(QuantMatrix<'a>),
}

impl WeightMatrix<'_> {
    /// Rows of the matrix: the output features.
    pub const fn n(&self) -> usize {
        match self {
            Self::Panels(matrix) => matrix.n(),
            Self::Quantized(matrix) => matrix.n(),
        }
    }

    /// Columns of the matrix: the input features.
    pub const fn k(&self) -> usize {
        match self {
            Self::Panels(matrix) => matrix.k(),
            Self::Quantized(matrix) => matrix.k(),
        }
    }

    /// Writes row `row` of the matrix, `k` elements, to `out`; both are checked by the caller.
    pub(super) fn copy_row(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::Panels(matrix) => matrix.copy_row(row, out),
            Self::Quantized(matrix) => matrix.copy_row(row, out),
        }
    }
}

impl<'a> From<PanelMatrix<'a>> for WeightMatrix<'a> {
    fn from(matrix: PanelMatrix<'a>) -> Self {
        Self::Panels(matrix)
    }
}

impl<'a> From<QuantMatrix<'a>> for WeightMatrix<'a> {
    fn from(matrix: QuantMatrix<'a>) -> Self {
        Self::Quantized(matrix)
    }
}
