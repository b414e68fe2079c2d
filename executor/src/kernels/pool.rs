//! One row for each sequence.

use super::{check, nonzero};
use crate::error::Result;

/// The mean of the rows of each sequence of `x[rows, width]`, into `out[sequences, width]`. The rows
/// of a sequence lie together, and `lengths` says how many each has. Rows are added in order.
///
/// # Errors
/// When a length does not fit, the lengths do not sum to the rows, or a sequence has none.
pub fn mean_pool(x: &[f32], lengths: &[u32], width: usize, out: &mut [f32]) -> Result<()> {
    nonzero("mean_pool", "width", width)?;
    let rows: usize = lengths.iter().map(|&length| length as usize).sum();
    check("mean_pool", "x", x.len(), rows.saturating_mul(width))?;
    check("mean_pool", "out", out.len(), lengths.len().saturating_mul(width))?;
    let mut rows = x.chunks_exact(width);
    for (&length, out) in lengths.iter().zip(out.chunks_exact_mut(width)) {
        nonzero("mean_pool", "length", length as usize)?;
        out.fill(0.0);
        for row in rows.by_ref().take(length as usize) {
            out.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        out.iter_mut().for_each(|sum| *sum /= length as f32);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_sequence_are_averaged_and_no_others() {
        let x = [1.0, 10.0, 3.0, 30.0, 7.0, 70.0];
        let mut out = [0.0; 4];
        mean_pool(&x, &[2, 1], 2, &mut out).unwrap();
        assert_eq!(out, [2.0, 20.0, 7.0, 70.0]);
        assert!(mean_pool(&x, &[3, 0], 2, &mut out).is_err());
        assert!(mean_pool(&x, &[2, 2], 2, &mut out).is_err());
    }
}
