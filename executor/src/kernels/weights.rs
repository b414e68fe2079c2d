//! A weight matrix as it lies in a slot, of any element type.

use super::{HalfFormat, PanelMatrix, QuantFormat, QuantMatrix, check};
use crate::error::{ExecutorError, Result};

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

/// The weight matrices `W[n, k]` of the experts of a layer, packed one after the other.
#[derive(Clone, Copy, Debug)]
pub struct ExpertMatrices<'a> {
    data: ExpertData<'a>,
    experts: usize,
    n: usize,
    k: usize,
}

#[derive(Clone, Copy, Debug)]
enum ExpertData<'a> {
    Single(&'a [f32]),
    Half(&'a [u16], HalfFormat),
    Quantized(&'a [u8], QuantFormat),
}

impl<'a> ExpertMatrices<'a> {
    /// Matrices in single precision, each [`PanelMatrix::packed_len`] elements of `data`.
    ///
    /// # Errors
    /// When `data` is not as long as that many.
    pub fn single(data: &'a [f32], [experts, n, k]: [usize; 3]) -> Result<Self> {
        check("grouped_matmul", "weights", data.len(), PanelMatrix::packed_len(n, k).saturating_mul(experts))?;
        Ok(Self { data: ExpertData::Single(data), experts, n, k })
    }

    /// As [`single`](Self::single), of 16 bits per element.
    ///
    /// # Errors
    /// As there.
    pub fn half(data: &'a [u16], [experts, n, k]: [usize; 3], format: HalfFormat) -> Result<Self> {
        check("grouped_matmul", "weights", data.len(), PanelMatrix::packed_len(n, k).saturating_mul(experts))?;
        Ok(Self { data: ExpertData::Half(data, format), experts, n, k })
    }

    /// Quantized matrices, each [`QuantMatrix::packed_len`] bytes of `data`.
    ///
    /// # Errors
    /// When `data` is not as long as that many.
    pub fn quantized(data: &'a [u8], [experts, n, k]: [usize; 3], format: QuantFormat) -> Result<Self> {
        check("grouped_matmul", "weights", data.len(), QuantMatrix::packed_len(n, k, format).saturating_mul(experts))?;
        Ok(Self { data: ExpertData::Quantized(data, format), experts, n, k })
    }

    /// How many experts there are.
    pub const fn len(&self) -> usize {
        self.experts
    }

    /// True without an expert.
    pub const fn is_empty(&self) -> bool {
        self.experts == 0
    }

    /// Rows of each matrix: the output features.
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Columns of each matrix: the input features.
    pub const fn k(&self) -> usize {
        self.k
    }

    /// The matrix of an expert.
    ///
    /// # Errors
    /// When there is no such expert.
    pub fn get(&self, expert: usize) -> Result<WeightMatrix<'a>> {
        let Self { data, experts, n, k } = *self;
        if expert >= experts {
            let (kernel, operand) = ("grouped_matmul", "experts");
            return Err(ExecutorError::IndexOutOfRange { kernel, operand, at: 0, value: expert, limit: experts });
        }
        let place = |length: usize| expert * length..(expert + 1) * length;
        Ok(match data {
            ExpertData::Single(data) => PanelMatrix::new(&data[place(PanelMatrix::packed_len(n, k))], n, k)?.into(),
            ExpertData::Half(data, format) => {
                PanelMatrix::half(&data[place(PanelMatrix::packed_len(n, k))], n, k, format)?.into()
            }
            ExpertData::Quantized(data, format) => {
                QuantMatrix::new(&data[place(QuantMatrix::packed_len(n, k, format))], n, k, format)?.into()
            }
        })
    }
}
