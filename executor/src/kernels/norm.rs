//! Root-mean-square normalisation.

use super::simd::{sum_of_squares, versioned};
use super::{check, nonzero};
use crate::error::Result;

/// Normalises each row of `x[rows, width]` into `out`:
/// `out = x / sqrt(mean(x^2) + epsilon) * weight` (Zhang and Sennrich 2019).
///
/// # Errors
/// When a length does not fit.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) -> Result<()> {
    let width = weight.len();
    nonzero("rms_norm", "width", width)?;
    check("rms_norm", "x", x.len(), x.len() / width * width)?;
    check("rms_norm", "out", out.len(), x.len())?;
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        normalise(x, weight, epsilon, out);
    }
    Ok(())
}

versioned! {
    fn normalise(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        let mean = sum_of_squares(x) / x.len() as f32;
        let scale = 1.0 / (mean + epsilon).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_double_precision(
            (x, weight) in (1usize..200).prop_flat_map(|width| (
                prop::collection::vec(-10.0f32..10.0, width * 3),
                prop::collection::vec(-2.0f32..2.0, width),
            )),
        ) {
            let mut out = vec![0.0; x.len()];
            rms_norm(&x, &weight, 1e-5, &mut out).unwrap();
            for (x, out) in x.chunks(weight.len()).zip(out.chunks(weight.len())) {
                let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / x.len() as f64;
                for ((x, w), out) in x.iter().zip(&weight).zip(out) {
                    let exact = f64::from(*x) * f64::from(*w) / (mean + 1e-5).sqrt();
                    prop_assert!((f64::from(*out) - exact).abs() <= 1e-6 * (1.0 + exact.abs()));
                }
            }
        }
    }

    #[test]
    fn a_row_of_the_wrong_width_is_refused() {
        assert!(rms_norm(&[1.0; 5], &[1.0; 2], 1e-5, &mut [0.0; 5]).is_err());
        assert!(rms_norm(&[], &[], 1e-5, &mut []).is_err());
    }
}
