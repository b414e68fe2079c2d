//! The choice of the next token.

use std::cell::RefCell;
use std::cmp::Ordering;

use super::simd::{exp, versioned};
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

/// How the next token of a sequence is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// What logits are divided by. At 0 the token with the largest logit is chosen, whatever else is
    /// said.
    pub temperature: f32,
    /// Only this many tokens with the largest logits are possible; all of them if 0.
    pub top_k: u32,
    /// Of those, only the most probable ones that together have this probability (Holtzman et al.
    /// 2020); all of them from 1 on.
    pub top_p: f32,
    /// With the position of the token, decides which of the possible ones it is.
    pub seed: u64,
}

impl Sampling {
    /// The token with the largest logit.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 };

    /// True if the token with the largest logit is chosen.
    pub fn is_greedy(&self) -> bool {
        // A temperature that is not a number counts as 0.
        !matches!(self.temperature.partial_cmp(&0.0), Some(Ordering::Greater))
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self::GREEDY
    }
}

thread_local! {
    /// The tokens that are possible, with their logits and then their weights.
    static POSSIBLE: RefCell<Vec<(f32, u32)>> = const { RefCell::new(Vec::new()) };
}

/// Chooses a token for one row of logits. `position` is that of the token in its sequence: with equal
/// logits, the same seed and position give the same token, whatever else is in the batch.
///
/// # Errors
/// When the row has no number in it.
pub fn sample(logits: &[f32], sampling: Sampling, position: u32) -> Result<u32> {
    let Sampling { temperature, top_k, top_p, seed } = sampling;
    let mut best = [0];
    argmax_rows(logits, logits.len(), &mut best)?;
    let largest = logits[best[0] as usize];
    // Of infinite logits there is no distribution.
    if sampling.is_greedy() || largest.is_infinite() {
        return Ok(best[0]);
    }
    POSSIBLE.with_borrow_mut(|possible| {
        possible.clear();
        let numbers = logits.iter().zip(0..).filter(|(logit, _)| !logit.is_nan());
        possible.extend(numbers.map(|(&logit, token)| (logit, token)));
        let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        let limit = top_k as usize;
        if limit > 0 && limit < possible.len() {
            possible.select_nth_unstable_by(limit - 1, order);
            possible.truncate(limit);
        }
        possible.sort_unstable_by(order);
        let mut total = 0.0f64;
        for (value, _) in possible.iter_mut() {
            *value = exp((*value - largest) / temperature);
            total += f64::from(*value);
        }
        if top_p < 1.0 {
            let (wanted, mut kept, mut count) = (f64::from(top_p) * total, 0.0, 0);
            while count == 0 || (kept < wanted && count < possible.len()) {
                kept += f64::from(possible[count].0);
                count += 1;
            }
            possible.truncate(count);
            total = kept;
        }
        let mut left = uniform(seed, position) * total;
        let chosen = possible.iter().find(|(weight, _)| {
            left -= f64::from(*weight);
            left < 0.0
        });
        Ok(chosen.or(possible.last()).map_or(best[0], |&(_, token)| token))
    })
}

/// A number in `0..1`, by two rounds of SplitMix64's finalizer (Steele, Lea and Flood 2014).
fn uniform(seed: u64, position: u32) -> f64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let keyed = mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ u64::from(position);
    (mix(keyed.wrapping_add(0x9e37_79b9_7f4a_7c15)) >> 11) as f64 / (1u64 << 53) as f64
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

    /// How often each token is chosen over many positions.
    fn shares(logits: &[f32], sampling: Sampling) -> Vec<f64> {
        const DRAWS: u32 = 40_000;
        let mut counts = vec![0u32; logits.len()];
        for position in 0..DRAWS {
            counts[sample(logits, sampling, position).unwrap() as usize] += 1;
        }
        counts.into_iter().map(|count| f64::from(count) / f64::from(DRAWS)).collect()
    }

    fn assert_near(found: &[f64], expected: &[f64]) {
        // Over five standard deviations of a share of 40,000 draws.
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.0135), "{found:?}, expected {expected:?}");
    }

    #[test]
    fn tokens_are_drawn_with_their_probabilities() {
        let logits = [0.5f32.ln(), 0.2f32.ln(), f32::NEG_INFINITY, 0.3f32.ln(), f32::NAN];
        let sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY };
        assert_near(&shares(&logits, sampling), &[0.5, 0.2, 0.0, 0.3, 0.0]);
        // At temperature 1/2 probabilities are squared: 25, 4, 9 of 38.
        let sharper = Sampling { temperature: 0.5, ..sampling };
        assert_near(&shares(&logits, sharper), &[25.0 / 38.0, 4.0 / 38.0, 0.0, 9.0 / 38.0, 0.0]);
        assert_near(&shares(&logits, Sampling { top_k: 2, ..sampling }), &[0.625, 0.0, 0.0, 0.375, 0.0]);
        assert_near(&shares(&logits, Sampling { top_p: 0.6, ..sampling }), &[0.625, 0.0, 0.0, 0.375, 0.0]);
        assert_near(&shares(&logits, Sampling { top_p: 0.45, ..sampling }), &[1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_near(&shares(&logits, Sampling { top_p: 0.0, ..sampling }), &[1.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_choice_depends_on_seed_and_position_only() {
        let logits: Vec<f32> = (0..100).map(|i| (i as f32).sin()).collect();
        let draw = |seed, position| {
            sample(&logits, Sampling { temperature: 1.0, seed, ..Sampling::GREEDY }, position).unwrap()
        };
        let first: Vec<u32> = (0..50).map(|position| draw(1, position)).collect();
        assert_eq!(first, (0..50).map(|position| draw(1, position)).collect::<Vec<_>>());
        assert_ne!(first, (0..50).map(|position| draw(2, position)).collect::<Vec<_>>());
        assert_eq!(sample(&logits, Sampling { seed: 9, ..Sampling::GREEDY }, 3).unwrap(), 33);
        assert!(sample(&[f32::NAN], Sampling { temperature: 1.0, ..Sampling::GREEDY }, 0).is_err());
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
