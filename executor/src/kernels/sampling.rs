//! The choice of the next token.

use super::simd::versioned;
use super::{check, nonzero};
use crate::error::{ExecutorError, Result};

/// Greedy sampling: for each row of `logits[rows, vocabulary]` the index of the largest element,
/// the lowest index if several are equal. What is not a number is never chosen.
///
/// # Errors
/// When a length does not fit, or a row has no number in it (of which its request must hear).
pub fn argmax_rows(logits: &[f32], vocabulary: usize, tokens: &mut [u32]) -> Result<()> {
    nonzero("argmax_rows", "vocabulary", vocabulary)?;
    if u32::try_from(vocabulary).is_err() {
        return Err(ExecutorError::Dimension {
            kernel: "argmax_rows",
            dimension: "vocabulary",
            value: vocabulary,
            requirement: "below 2^32",
        });
    }
    check("argmax_rows", "logits", logits.len(), tokens.len().saturating_mul(vocabulary))?;
    for (row, (logits, token)) in logits.chunks_exact(vocabulary).zip(tokens).enumerate() {
        let largest = maximum(logits);
        let Some(index) = logits.iter().position(|&value| value == largest) else {
            return Err(ExecutorError::NoNumber { kernel: "argmax_rows", row });
        };
        *token = index as u32;
    }
    Ok(())
}

versioned! {
    /// The largest number in `x`, negative infinity if there is none.
    fn maximum(x: &[f32]) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; 32];
        let (chunks, tail) = x.as_chunks::<32>();
        for chunk in chunks {
            for (lane, &value) in lanes.iter_mut().zip(chunk) {
                *lane = if value > *lane { value } else { *lane };
            }
        }
        for (lane, &value) in lanes.iter_mut().zip(tail) {
            *lane = if value > *lane { value } else { *lane };
        }
        lanes.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_scan_from_the_left(row in prop::collection::vec(-5i8..5, 1..200)) {
            let logits: Vec<f32> = row.iter().map(|&v| f32::from(v)).collect();
            let mut token = [0];
            argmax_rows(&logits, logits.len(), &mut token).unwrap();
            let mut best = 0;
            for (i, value) in row.iter().enumerate() {
                if *value > row[best] {
                    best = i;
                }
            }
            prop_assert_eq!(token[0] as usize, best);
        }
    }

    #[test]
    fn what_is_not_a_number_is_never_chosen() {
        let mut tokens = [9, 9];
        argmax_rows(&[f32::NAN, -1.0, f32::NEG_INFINITY, f32::NAN], 2, &mut tokens).unwrap();
        assert_eq!(tokens, [1, 0]);
        let error = argmax_rows(&[0.0, 0.0, f32::NAN, f32::NAN], 2, &mut tokens).unwrap_err();
        assert!(matches!(error, ExecutorError::NoNumber { row: 1, .. }));
    }
}
