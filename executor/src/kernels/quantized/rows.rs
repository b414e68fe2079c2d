//! Activations rounded to sixteen bits.

use super::BLOCK;
use crate::kernels::simd::versioned;

/// Where the numbers of a group lie. Its first and third, and its second and fourth, are neighbours, as
/// the bytes of a group of weights are that come out together when every second one is masked.
pub(super) const PLACE: [usize; 4] = [0, 2, 1, 3];
/// The largest rounded activation.
const LEVELS: f32 = 32_767.0;

/// Rows of activations as a product takes them; `k` is a whole number of blocks.
#[derive(Debug, Default)]
pub(super) struct QuantRows {
    /// `[rows, k]`, within -32767..=32767. Of each group of four, number `i` lies at [`PLACE`]`[i]`.
    pub(super) quants: Vec<i16>,
    /// Per row and block: what the quants are multiplied by.
    pub(super) scales: Vec<f32>,
    /// Per row and block: the sum of the quants.
    pub(super) sums: Vec<i32>,
    /// Per row and block: the sum of the rounded activations, `scale sum`.
    pub(super) totals: Vec<f32>,
}

impl QuantRows {
    /// Takes the rows of `x`, in the place of those before. Allocates only where there were never so
    /// many.
    pub(super) fn fill(&mut self, x: &[f32]) {
        let blocks = x.len() / BLOCK;
        self.quants.resize(x.len(), 0);
        self.scales.resize(blocks, 0.0);
        self.sums.resize(blocks, 0);
        self.totals.resize(blocks, 0.0);
        round(x, &mut self.quants, &mut self.scales, &mut self.sums, &mut self.totals);
    }
}

versioned! {
    /// What is not finite gives its block a scale that is not, and so does not get lost.
    fn round(x: &[f32], quants: &mut [i16], scales: &mut [f32], sums: &mut [i32], totals: &mut [f32]) {
        // Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the low bits of the sum.
        const ROUND: f32 = 12_582_912.0;
        let blocks = x.as_chunks::<BLOCK>().0.iter().zip(quants.as_chunks_mut::<BLOCK>().0);
        let figures = scales.iter_mut().zip(sums).zip(totals);
        for ((x, quants), ((scale, sum), total)) in blocks.zip(figures) {
            // Of non-negative floats the bits are in the order of the values, NaN above infinity.
            let mut top = 0;
            for value in x {
                top = top.max(value.to_bits() & 0x7fff_ffff);
            }
            let top = f32::from_bits(top);
            *scale = top / LEVELS;
            let inverse = if top > 0.0 { LEVELS / top } else { 0.0 };
            let mut added = 0;
            for (quants, values) in quants.as_chunks_mut::<4>().0.iter_mut().zip(x.as_chunks::<4>().0) {
                for (value, place) in values.iter().zip(PLACE) {
                    let quant = (value * inverse + ROUND).to_bits() as i16;
                    quants[place] = quant;
                    added += i32::from(quant);
                }
            }
            *sum = added;
            *total = *scale * added as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_rounded_activation_is_off_by_half_a_step_at_most(x in prop::collection::vec(-1e3f32..1e3, 2 * BLOCK)) {
            let mut rows = QuantRows::default();
            rows.fill(&x);
            for (block, x) in x.chunks(BLOCK).enumerate() {
                let quants = &rows.quants[block * BLOCK..(block + 1) * BLOCK];
                for (i, value) in x.iter().enumerate() {
                    let back = rows.scales[block] * f32::from(quants[i / 4 * 4 + PLACE[i % 4]]);
                    prop_assert!((value - back).abs() <= 0.51 * rows.scales[block]);
                }
                prop_assert_eq!(rows.sums[block], quants.iter().map(|&q| i32::from(q)).sum::<i32>());
            }
        }
    }

    #[test]
    fn what_is_not_finite_does_not_get_lost() {
        let mut rows = QuantRows::default();
        let mut x = [1.0; BLOCK];
        rows.fill(&[0.0; BLOCK]);
        assert_eq!((rows.scales[0], rows.sums[0]), (0.0, 0));
        x[3] = f32::NAN;
        rows.fill(&x);
        assert!(rows.scales[0].is_nan());
        x[3] = f32::NEG_INFINITY;
        rows.fill(&x);
        assert!(rows.scales[0].is_infinite());
        rows.fill(&[f32::MIN_POSITIVE / 4.0; BLOCK]);
        assert!(rows.totals[0].is_finite());
    }
}
