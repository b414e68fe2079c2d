//! Weights of floats in panels.

use std::cell::RefCell;
use std::ops::Range;

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use slicescheduler_gmg::dtype::DType;

use crate::arena::Element;
use crate::error::Result;
use crate::kernels::check;

/// Output columns per panel: what the widest micro-kernel covers (4 registers of 16 floats).
pub const PANEL: usize = 64;

/// A weight matrix `W[n, k]` of floats in panels.
#[derive(Clone, Copy, Debug)]
pub struct PanelMatrix<'a> {
    data: Data<'a>,
    n: usize,
    k: usize,
}

/// The elements, in single precision or as the bits of a narrower type.
#[derive(Clone, Copy, Debug)]
enum Data<'a> {
    Single(&'a [f32]),
    Half(&'a [u16], HalfFormat),
}

thread_local! {
    /// Room for a widened block of a panel.
    static WIDENED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl<'a> PanelMatrix<'a> {
    /// A view of packed weights.
    ///
    /// # Errors
    /// When `data` is not [`packed_len(n, k)`](Self::packed_len) long.
    pub fn new(data: &'a [f32], n: usize, k: usize) -> Result<Self> {
        check("matmul", "weights", data.len(), Self::packed_len(n, k))?;
        Ok(Self { data: Data::Single(data), n, k })
    }

    /// A view of packed weights of 16 bits each, which are `data`.
    ///
    /// # Errors
    /// When `data` is not [`packed_len(n, k)`](Self::packed_len) long.
    pub fn half(data: &'a [u16], n: usize, k: usize, format: HalfFormat) -> Result<Self> {
        check("matmul", "weights", data.len(), Self::packed_len(n, k))?;
        Ok(Self { data: Data::Half(data, format), n, k })
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
        match self.data {
            Data::Single(data) => {
                for (out, value) in out.iter_mut().zip(data[first..].iter().step_by(PANEL)) {
                    *out = *value;
                }
            }
            Data::Half(bits, format) => {
                for (out, value) in out.iter_mut().zip(bits[first..].iter().step_by(PANEL)) {
                    format.widen(&[*value], std::slice::from_mut(out));
                }
            }
        }
    }

    /// Calls `with` on the elements of `depth` of a panel, `[depth, PANEL]`, in single precision.
    pub(super) fn block(&self, panel: usize, depth: Range<usize>, with: impl FnOnce(&[f32])) {
        let place = (panel * self.k + depth.start) * PANEL..(panel * self.k + depth.end) * PANEL;
        match self.data {
            Data::Single(data) => with(&data[place]),
            Data::Half(bits, format) => WIDENED.with_borrow_mut(|widened| {
                widened.resize(place.len(), 0.0);
                format.widen(&bits[place], widened);
                with(widened);
            }),
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

    /// The view that [`matmul`](super::matmul) takes.
    pub fn view(&self) -> PanelMatrix<'_> {
        PanelMatrix { data: Data::Single(&self.data), n: self.n, k: self.k }
    }
}
