//! The product itself: the same operations for every output, however many are computed together.

use std::cell::RefCell;
use std::ops::Range;

use super::rows::{PLACE, QuantRows};
use super::{BLOCK, COLUMNS, Output, QuantFormat, QuantMatrix, halves};
use crate::kernels::matmul::chunks;
use crate::kernels::parts::{Parts, WORK};

/// Rows whose rounded activations are held at a time: they stay in the second-level cache.
const ROWS: usize = 256;

thread_local! {
    /// The rounded activations of a product, kept for the next one.
    static ROUNDED: RefCell<QuantRows> = RefCell::default();
}

/// The product of `x[rows, k]` and the transpose of `weights[n, k]`, into `y[rows, n]`; the caller
/// has checked the lengths, and there are rows and outputs. About `rows n k / 32` vector
/// instructions where the processor multiplies 16-bit integers by pairs.
pub(in crate::kernels) fn multiply_quantized(
    x: &[f32],
    weights: QuantMatrix<'_>,
    output: Output,
    y: &mut [f32],
    parts: &mut Parts<'_>,
) {
    multiply(x, weights, output, y, Version::best(), parts);
}

/// How a product is computed; the bits are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Vnni,
}

impl Version {
    fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if super::vnni::is_available() {
            return Self::Vnni;
        }
        Self::Portable
    }
}

fn multiply(
    x: &[f32],
    weights: QuantMatrix<'_>,
    output: Output,
    y: &mut [f32],
    version: Version,
    parts: &mut Parts<'_>,
) {
    let (n, k) = (weights.n, weights.k);
    if k == 0 {
        if output == Output::Overwrite {
            y.fill(0.0);
        }
        return;
    }
    let panels = weights.panels();
    let mut begun = 0;
    ROUNDED.with_borrow_mut(|rounded| {
        for (x, y) in x.chunks(ROWS * k).zip(y.chunks_mut(ROWS * n)) {
            let together = panels_of_a_part(y.len() / n, k);
            let first = begun;
            begun += panels.div_ceil(together);
            if begun <= parts.first() {
                continue;
            }
            rounded.fill(x);
            for part in first.max(parts.first())..begun {
                if parts.stop_before(part) {
                    return;
                }
                let start = (part - first) * together;
                let some = start..panels.min(start + together);
                match version {
                    Version::Portable => portable(rounded, weights, some, output, y),
                    #[cfg(target_arch = "x86_64")]
                    Version::Vnni => super::vnni::multiply(rounded, weights, some, output, y),
                }
            }
        }
    });
}

/// How many parts a product with so many rows has; there are rows, and weights.
pub(in crate::kernels) fn quantized_parts(rows: usize, weights: &QuantMatrix<'_>) -> usize {
    chunks(rows, ROWS).map(|rows| weights.panels().div_ceil(panels_of_a_part(rows, weights.k))).sum()
}

/// Panels that make a part of a product of so many rows: whole groups of those that a lone row takes together.
fn panels_of_a_part(rows: usize, k: usize) -> usize {
    let panels = (WORK / (rows * COLUMNS * k)).clamp(1, 256);
    if rows == 1 { panels.next_multiple_of(4) } else { panels }
}

fn portable(x: &QuantRows, weights: QuantMatrix<'_>, panels: Range<usize>, output: Output, y: &mut [f32]) {
    let (blocks, format) = (weights.blocks(), weights.format);
    for panel in panels {
        let first = panel * COLUMNS;
        let width = COLUMNS.min(weights.n - first);
        let panel = weights.panel(panel);
        let per_block = COLUMNS * format.quant_bytes();
        for (row, y) in y.chunks_exact_mut(weights.n).enumerate() {
            let mut sums = [0.0f32; COLUMNS];
            for block in 0..blocks {
                let at = row * blocks + block;
                let (quants, _) = x.quants[at * BLOCK..].as_chunks::<4>();
                let products = dot(format, &panel.quants[block * per_block..], quants, x.sums[at]);
                let scales = halves(panel.scales, block);
                for ((sum, product), scale) in sums.iter_mut().zip(products).zip(scales) {
                    *sum += scale * x.scales[at] * product as f32;
                }
                if format.has_minimum() {
                    for (sum, minimum) in sums.iter_mut().zip(halves(panel.minima, block)) {
                        *sum += minimum * x.totals[at];
                    }
                }
            }
            store(output, &sums[..width], &mut y[first..first + width]);
        }
    }
}

/// The integer products of a block of all outputs with a block of activations.
#[inline(always)]
fn dot(format: QuantFormat, quants: &[u8], x: &[[i16; 4]], sum: i32) -> [i32; COLUMNS] {
    let mut products = [-format.offset() * sum; COLUMNS];
    let groups = quants.as_chunks::<{ 4 * COLUMNS }>().0.iter().take(format.quant_bytes() / 4);
    for (index, group) in groups.enumerate() {
        let low = |byte: u8| i32::from(if format == QuantFormat::Q8_0 { byte } else { byte & 0x0f });
        for (product, bytes) in products.iter_mut().zip(group.as_chunks::<4>().0) {
            for (byte, place) in bytes.iter().zip(PLACE) {
                *product += low(*byte) * i32::from(x[index][place]);
            }
            if format != QuantFormat::Q8_0 {
                for (byte, place) in bytes.iter().zip(PLACE) {
                    *product += i32::from(byte >> 4) * i32::from(x[index + 4][place]);
                }
            }
        }
    }
    products
}

pub(super) fn store(output: Output, sums: &[f32], y: &mut [f32]) {
    match output {
        Output::Overwrite => y.copy_from_slice(sums),
        Output::Accumulate => y.iter_mut().zip(sums).for_each(|(y, sum)| *y += sum),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::matmul;
    use crate::kernels::quantized::{dequantize, pack_quantized, quantize};

    const FORMATS: [QuantFormat; 3] = [QuantFormat::Q8_0, QuantFormat::Q4_0, QuantFormat::Q4_1];

    fn number(seed: u64, at: usize) -> f32 {
        let mut x = seed ^ (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// A packed matrix and its values.
    fn matrix(seed: u64, n: usize, k: usize, format: QuantFormat) -> (Vec<u8>, Vec<f32>) {
        let values: Vec<f32> = (0..n * k).map(|at| number(seed, at)).collect();
        let mut file = vec![0; n * k / BLOCK * format.block_bytes()];
        quantize(format, &values, &mut file).unwrap();
        let mut packed = vec![0; QuantMatrix::packed_len(n, k, format)];
        pack_quantized(&file, n, k, format, &mut packed).unwrap();
        let mut values = vec![0.0; n * k];
        dequantize(format, &file, &mut values).unwrap();
        (packed, values)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn agrees_with_double_precision_up_to_the_rounding_of_activations(
            seed: u64, rows in 1usize..20, n in 1usize..70, blocks in 1usize..7, which in 0usize..3,
        ) {
            let (format, k) = (FORMATS[which], blocks * BLOCK);
            let (packed, values) = matrix(seed, n, k, format);
            let weights = QuantMatrix::new(&packed, n, k, format).unwrap();
            let x: Vec<f32> = (0..rows * k).map(|at| number(!seed, at)).collect();
            let mut y = vec![1.0; rows * n];
            matmul(&x, rows, weights, Output::Accumulate, &mut y).unwrap();
            for row in 0..rows {
                for column in 0..n {
                    let pairs = x[row * k..][..k].iter().zip(&values[column * k..][..k]);
                    let exact = 1.0 + pairs.clone().map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
                    // Half a step of 1/32767 for each activation, and the roundings of the sums.
                    let bound = pairs.map(|(_, w)| f64::from(w.abs())).sum::<f64>() * 0.51 / 32_767.0 + 2e-5;
                    prop_assert!((f64::from(y[row * n + column]) - exact).abs() <= bound);
                }
            }
        }

        #[test]
        fn every_version_gives_the_same_bits(
            seed: u64, rows in 1usize..20, n in 1usize..150, blocks in 1usize..5, which in 0usize..3, add: bool,
        ) {
            let (format, k) = (FORMATS[which], blocks * BLOCK);
            let (packed, _) = matrix(seed, n, k, format);
            let weights = QuantMatrix::new(&packed, n, k, format).unwrap();
            let x: Vec<f32> = (0..rows * k).map(|at| number(!seed, at) * 5.0).collect();
            let output = if add { Output::Accumulate } else { Output::Overwrite };
            let (mut best, mut plain) = (vec![0.5; rows * n], vec![0.5; rows * n]);
            multiply(&x, weights, output, &mut best, Version::best(), &mut Parts::all());
            multiply(&x, weights, output, &mut plain, Version::Portable, &mut Parts::all());
            prop_assert!(best.iter().zip(&plain).all(|(a, b)| a.to_bits() == b.to_bits()));
        }

        #[test]
        fn a_row_has_the_same_bits_whatever_rows_are_beside_it(
            seed: u64, rows in 1usize..30, n in 1usize..150, which in 0usize..3,
        ) {
            let (format, k) = (FORMATS[which], 96);
            let (packed, _) = matrix(seed, n, k, format);
            let weights = QuantMatrix::new(&packed, n, k, format).unwrap();
            let x: Vec<f32> = (0..rows * k).map(|at| number(!seed, at)).collect();
            let mut together = vec![0.0; rows * n];
            matmul(&x, rows, weights, Output::Overwrite, &mut together).unwrap();
            for (x, together) in x.chunks(k).zip(together.chunks(n)) {
                let mut alone = vec![0.0; n];
                matmul(x, 1, weights, Output::Overwrite, &mut alone).unwrap();
                prop_assert!(alone.iter().zip(together).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        }
    }
}
