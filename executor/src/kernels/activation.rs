//! Activations between the projections of a feed-forward block, and biases.

use super::simd::{exp, versioned};
use super::{check, nonzero};
use crate::error::Result;

/// `out = silu(gate) * up` with `silu(g) = g / (1 + exp(-g))` (Shazeer 2020), per row: a row of
/// `gate_up[rows, 2 width]` holds `gate`, then `up`; `out` is `[rows, width]`.
///
/// # Errors
/// When a length does not fit.
pub fn swiglu(gate_up: &[f32], width: usize, out: &mut [f32]) -> Result<()> {
    nonzero("swiglu", "width", width)?;
    let rows = out.len() / width;
    check("swiglu", "out", out.len(), rows * width)?;
    check("swiglu", "gate_up", gate_up.len(), out.len().saturating_mul(2))?;
    for (row, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
        let (gate, up) = row.split_at(width);
        activate(gate, up, out);
    }
    Ok(())
}

versioned! {
    fn activate(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = gate / (1.0 + exp(-gate)) * up;
        }
    }
}

/// `out = x Phi(x)` with the distribution function of the normal distribution (Hendrycks and Gimpel
/// 2016), elementwise; within `1e-7 |x|`.
///
/// # Errors
/// When the lengths differ.
pub fn gelu(x: &[f32], out: &mut [f32]) -> Result<()> {
    check("gelu", "out", out.len(), x.len())?;
    gelu_of(x, out);
    Ok(())
}

versioned! {
    fn gelu_of(x: &[f32], out: &mut [f32]) {
        // Phi(x) is half of 1 + erf(x / sqrt 2), erf by formula 7.1.26 of Abramowitz and Stegun, whose
        // error is below 1.5e-7.
        for (out, &x) in out.iter_mut().zip(x) {
            let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
            let t = 1.0 / (1.0 + 0.327_591_1 * z);
            let series = ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_8) * t - 0.284_496_74) * t + 0.254_829_6) * t;
            let tail = 0.5 * series * exp(-z * z);
            *out = x * if x < 0.0 { tail } else { 1.0 - tail };
        }
    }
}

/// The hyperbolic tangent, elementwise.
///
/// # Errors
/// When the lengths differ.
pub fn tanh(x: &[f32], out: &mut [f32]) -> Result<()> {
    check("tanh", "out", out.len(), x.len())?;
    tanh_of(x, out);
    Ok(())
}

versioned! {
    fn tanh_of(x: &[f32], out: &mut [f32]) {
        for (out, &x) in out.iter_mut().zip(x) {
            // Around zero the quotient below would lose what is left; x - x^3 / 3 + 2 x^5 / 15 does not.
            let square = x * x;
            let near = x * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0)));
            let decay = exp(-2.0 * x.abs());
            let far = (1.0 - decay) / (1.0 + decay);
            *out = if square < 0.01 { near } else if x < 0.0 { -far } else { far };
        }
    }
}

/// Adds `bias[width]` to each row of `y[rows, width]`.
///
/// # Errors
/// When a length does not fit.
pub fn add_bias(y: &mut [f32], bias: &[f32]) -> Result<()> {
    nonzero("add_bias", "width", bias.len())?;
    check("add_bias", "y", y.len(), y.len() / bias.len() * bias.len())?;
    for row in y.chunks_exact_mut(bias.len()) {
        for (y, bias) in row.iter_mut().zip(bias) {
            *y += bias;
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
        fn agrees_with_double_precision(row in prop::collection::vec((-100.0f32..100.0, -5.0f32..5.0), 1..70)) {
            let mut gate_up: Vec<f32> = row.iter().map(|pair| pair.0).collect();
            gate_up.extend(row.iter().map(|pair| pair.1));
            let mut out = vec![0.0; row.len()];
            swiglu(&gate_up, row.len(), &mut out).unwrap();
            for ((gate, up), out) in row.iter().zip(out) {
                let (gate, up) = (f64::from(*gate), f64::from(*up));
                let exact = gate / (1.0 + (-gate).exp()) * up;
                prop_assert!((f64::from(out) - exact).abs() <= 1e-6 * exact.abs() + 1e-30);
            }
        }

        #[test]
        fn gelu_and_tanh_agree_with_double_precision(x in prop::collection::vec(-12.0f32..12.0, 1..70)) {
            let (mut gelu_out, mut tanh_out) = (vec![0.0; x.len()], vec![0.0; x.len()]);
            gelu(&x, &mut gelu_out).unwrap();
            tanh(&x, &mut tanh_out).unwrap();
            for ((x, gelu), tanh) in x.iter().map(|&x| f64::from(x)).zip(gelu_out).zip(tanh_out) {
                // The integral of the density, by Simpson's rule.
                let (steps, density) = (400, |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt());
                let width = x / f64::from(steps);
                let weight = |i: i32| if i == 0 || i == steps { 1.0 } else if i % 2 == 1 { 4.0 } else { 2.0 };
                let area: f64 = (0..=steps).map(|i| weight(i) * density(f64::from(i) * width)).sum::<f64>() * width / 3.0;
                prop_assert!((f64::from(gelu) - x * (0.5 + area)).abs() <= 3e-7 * x.abs() + 1e-9);
                prop_assert!((f64::from(tanh) - x.tanh()).abs() <= 2e-6 * x.tanh().abs());
            }
        }

        #[test]
        fn an_element_has_the_same_bits_wherever_it_stands(gate in -90.0f32..90.0, up in -5.0f32..5.0, width in 1usize..70) {
            let mut alone = [0.0];
            swiglu(&[gate, up], 1, &mut alone).unwrap();
            let mut gate_up = vec![gate; width];
            gate_up.resize(2 * width, up);
            let mut out = vec![0.0; width];
            swiglu(&gate_up, width, &mut out).unwrap();
            prop_assert!(out.iter().all(|v| v.to_bits() == alone[0].to_bits()));
        }
    }
}
