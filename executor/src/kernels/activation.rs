//! The gated activation between the projections of a feed-forward block.

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
