//! Normalisation of rows.

use super::simd::{sum, sum_of_squares, versioned};
use super::{AttentionDims, check, nonzero};
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

/// Normalises each head of queries and of keys by itself, as [`rms_norm`] does a row; values stay as they are. A row of
/// `qkv` and of `out` holds the query heads, the key heads, then the value heads of `dims`; `queries` and `keys` are the
/// weights of a head of each (Qwen team 2025).
///
/// # Errors
/// When a length does not fit.
pub fn head_norm(
    qkv: &[f32],
    dims: AttentionDims,
    queries: &[f32],
    keys: &[f32],
    epsilon: f32,
    out: &mut [f32],
) -> Result<()> {
    const KERNEL: &str = "head_norm";
    let (width, head_dim) = (dims.qkv_width(), dims.head_dim);
    nonzero(KERNEL, "head_dim", head_dim)?;
    nonzero(KERNEL, "heads", dims.heads)?;
    check(KERNEL, "queries", queries.len(), head_dim)?;
    check(KERNEL, "keys", keys.len(), head_dim)?;
    check(KERNEL, "qkv", qkv.len(), qkv.len() / width * width)?;
    check(KERNEL, "out", out.len(), qkv.len())?;
    for (row, out) in qkv.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let heads = row.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
        for (head, (x, out)) in heads.enumerate() {
            match head {
                head if head < dims.heads => normalise(x, queries, epsilon, out),
                head if head < dims.heads + dims.kv_heads => normalise(x, keys, epsilon, out),
                _ => out.copy_from_slice(x),
            }
        }
    }
    Ok(())
}

/// Normalises each row of `x[rows, width]` into `out`:
/// `out = (x - mean(x)) / sqrt(var(x) + epsilon) * weight + bias` (Ba et al. 2016), with the variance
/// over `width`.
///
/// # Errors
/// When a length does not fit.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) -> Result<()> {
    let width = weight.len();
    nonzero("layer_norm", "width", width)?;
    check("layer_norm", "bias", bias.len(), width)?;
    check("layer_norm", "x", x.len(), x.len() / width * width)?;
    check("layer_norm", "out", out.len(), x.len())?;
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        standardise(x, weight, bias, epsilon, out);
    }
    Ok(())
}

versioned! {
    fn standardise(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
        let mean = sum(x) / x.len() as f32;
        for (out, x) in out.iter_mut().zip(x) {
            *out = x - mean;
        }
        let variance = sum_of_squares(out) / x.len() as f32;
        let scale = 1.0 / (variance + epsilon).sqrt();
        for ((out, weight), bias) in out.iter_mut().zip(weight).zip(bias) {
            *out = *out * scale * weight + bias;
        }
    }
}

/// Scales each row of `x[rows, width]` to length 1, into `out`; a row shorter than 1e-12 is scaled as
/// one of that length.
///
/// # Errors
/// When a length does not fit.
pub fn normalize_rows(x: &[f32], width: usize, out: &mut [f32]) -> Result<()> {
    nonzero("normalize_rows", "width", width)?;
    check("normalize_rows", "x", x.len(), x.len() / width * width)?;
    check("normalize_rows", "out", out.len(), x.len())?;
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let length = sum_of_squares(x).sqrt();
        let length = if length < 1e-12 { 1e-12 } else { length };
        for (out, x) in out.iter_mut().zip(x) {
            *out = x / length;
        }
    }
    Ok(())
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

    proptest! {
        #[test]
        fn standard_rows_agree_with_double_precision(
            (x, weight, bias) in (1usize..200).prop_flat_map(|width| (
                prop::collection::vec(-10.0f32..10.0, width * 2),
                prop::collection::vec(-2.0f32..2.0, width),
                prop::collection::vec(-2.0f32..2.0, width),
            )),
        ) {
            let mut out = vec![0.0; x.len()];
            layer_norm(&x, &weight, &bias, 1e-5, &mut out).unwrap();
            for (x, out) in x.chunks(weight.len()).zip(out.chunks(weight.len())) {
                let count = x.len() as f64;
                let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
                let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / count;
                for (((x, w), b), out) in x.iter().zip(&weight).zip(&bias).zip(out) {
                    let exact = (f64::from(*x) - mean) / (variance + 1e-5).sqrt() * f64::from(*w) + f64::from(*b);
                    // Where all are nearly equal, what is left of them are their roundings.
                    let bound = 1e-5 * (1.0 + exact.abs()) + 4e-6 / (variance + 1e-5).sqrt();
                    prop_assert!((f64::from(*out) - exact).abs() <= bound, "{out} for {exact}");
                }
            }
        }
    }

    /// Two query heads, one of keys and one of values, of two elements.
    #[test]
    fn heads_of_queries_and_keys_are_normalized_by_themselves_and_values_stay() {
        let dims = AttentionDims::new(2, 1, 2);
        let qkv = [3.0, 4.0, 0.0, 5.0, -1.0, 2.0, 7.0, 8.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0];
        let (queries, keys, mut out) = ([1.0, 2.0], [0.5, -1.0], [9.0; 16]);
        head_norm(&qkv, dims, &queries, &keys, 1e-6, &mut out).unwrap();
        for (x, out) in qkv.chunks(8).zip(out.chunks(8)) {
            let mut expected = [0.0; 8];
            rms_norm(&x[..4], &queries, 1e-6, &mut expected[..4]).unwrap();
            rms_norm(&x[4..6], &keys, 1e-6, &mut expected[4..6]).unwrap();
            expected[6..].copy_from_slice(&x[6..]);
            assert_eq!(out, expected);
        }
        assert!(head_norm(&qkv[1..], dims, &queries, &keys, 1e-6, &mut out).is_err());
        assert!(head_norm(&qkv, dims, &queries[1..], &keys, 1e-6, &mut out).is_err());
    }

    #[test]
    fn a_normalized_row_has_length_1_and_an_empty_one_stays_empty() {
        let mut out = [9.0; 4];
        normalize_rows(&[3.0, 4.0, 0.0, 0.0], 2, &mut out).unwrap();
        assert_eq!(out, [0.6, 0.8, 0.0, 0.0]);
    }

    #[test]
    fn a_row_of_the_wrong_width_is_refused() {
        assert!(rms_norm(&[1.0; 5], &[1.0; 2], 1e-5, &mut [0.0; 5]).is_err());
        assert!(rms_norm(&[], &[], 1e-5, &mut []).is_err());
    }
}
