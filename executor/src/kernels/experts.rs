//! The feed-forward network of a mixture of experts: routing, and products with the weights of whoever was
//! chosen.
//!
//! **Order of routed rows.** A token that chose `top` experts has `top` routed rows. They lie in ascending order of
//! the experts, and of one expert in the order of the tokens: what belongs to one expert is one product. Every
//! kernel here finds this order from the experts' numbers again, so none needs room for it; finding it costs
//! one look at all numbers per chosen expert, next to nothing beside the products.
//!
//! **Bits.** A routed row has the bits that a [product](super::matmul()) gives it, which do not depend on the rows
//! beside it, and a token sums its rows in ascending order of its own experts. So what a token gets depends on
//! neither the batch nor how many others chose its experts.

use super::matmul::parts_of;
use super::simd::exp;
use super::{ExpertMatrices, Output, Parts, check, check_indices, matmul_in_parts, nonzero};
use crate::error::{ExecutorError, Result};

/// Chooses `top` of the `experts` of each row of `logits[rows, experts]`: those with the largest logits, of equal
/// ones the first, in that order, into `chosen[rows, top]`. Their `weights[rows, top]` are the softmax over the chosen
/// ones, which is the softmax over all scaled to a sum of one (Jiang et al. 2024). O(rows experts top).
///
/// # Errors
/// When a length does not fit, there are fewer than `top` experts, or a row has fewer numbers than that.
pub fn top_k(logits: &[f32], experts: usize, top: usize, weights: &mut [f32], chosen: &mut [u32]) -> Result<()> {
    const KERNEL: &str = "top_k";
    nonzero(KERNEL, "top", top)?;
    if experts < top || u32::try_from(experts).is_err() {
        let requirement = "at least as many as are chosen, and below 2^32";
        return Err(ExecutorError::Dimension { kernel: KERNEL, dimension: "experts", value: experts, requirement });
    }
    let rows = chosen.len() / top;
    check(KERNEL, "chosen", chosen.len(), rows * top)?;
    check(KERNEL, "weights", weights.len(), chosen.len())?;
    check(KERNEL, "logits", logits.len(), rows.saturating_mul(experts))?;
    let rows = logits.chunks_exact(experts).zip(weights.chunks_exact_mut(top)).zip(chosen.chunks_exact_mut(top));
    for (row, ((logits, weights), chosen)) in rows.enumerate() {
        for (place, weight) in weights.iter_mut().enumerate() {
            let (taken, free) = chosen.split_at_mut(place);
            let open = logits.iter().zip(0u32..).filter(|(logit, expert)| !logit.is_nan() && !taken.contains(expert));
            let best = open.reduce(|best, other| if other.0 > best.0 { other } else { best });
            let Some((&logit, expert)) = best else { return Err(ExecutorError::NoNumber { kernel: KERNEL, row }) };
            (free[0], *weight) = (expert, logit);
        }
        softmax(weights);
    }
    Ok(())
}

/// The softmax of numbers of which the first is the largest. Of infinite ones there is no distribution: the first
/// has all.
fn softmax(values: &mut [f32]) {
    let largest = values[0];
    let mut sum = 0.0f32;
    for (place, value) in values.iter_mut().enumerate() {
        *value = if largest.is_infinite() { f32::from(u8::from(place == 0)) } else { exp(*value - largest) };
        sum += *value;
    }
    values.iter_mut().for_each(|value| *value /= sum);
}

/// Copies row `token` of `x[tokens, width]` once for each expert in `chosen[tokens, top]` of that token, to
/// `routed[tokens top, width]` in the order of routed rows.
///
/// # Errors
/// When a length does not fit.
pub fn permute_rows(x: &[f32], width: usize, chosen: &[u32], routed: &mut [f32]) -> Result<()> {
    const KERNEL: &str = "permute_rows";
    nonzero(KERNEL, "width", width)?;
    let top = per_token(KERNEL, chosen, x.len() / width)?;
    check(KERNEL, "x", x.len(), chosen.len() / top * width)?;
    check(KERNEL, "routed", routed.len(), chosen.len().saturating_mul(width))?;
    for (slot, routed) in order(chosen).zip(routed.chunks_exact_mut(width)) {
        routed.copy_from_slice(&x[slot / top * width..][..width]);
    }
    Ok(())
}

/// The product of each row of `x[chosen, k]`, in the order of routed rows, and the transpose of the matrix of its
/// expert, into `y[chosen, n]`. As many operations as one [product](super::matmul()) of as many rows. `parts` says what is
/// to be done now: the parts of the products of the experts that were chosen, one expert after the other.
///
/// # Errors
/// When a length does not fit, or an expert was chosen that there is not.
pub fn grouped_matmul(
    x: &[f32],
    chosen: &[u32],
    experts: ExpertMatrices<'_>,
    y: &mut [f32],
    parts: &mut Parts<'_>,
) -> Result<()> {
    const KERNEL: &str = "grouped_matmul";
    let (n, k) = (experts.n(), experts.k());
    check(KERNEL, "x", x.len(), chosen.len().saturating_mul(k))?;
    check(KERNEL, "y", y.len(), chosen.len().saturating_mul(n))?;
    check_indices(KERNEL, "chosen", chosen, experts.len())?;
    let (mut x, mut y, mut base) = (x, y, 0);
    for (expert, rows) in loads(chosen) {
        let (own, rest) = x.split_at(rows * k);
        let (out, others) = y.split_at_mut(rows * n);
        let weights = experts.get(expert as usize)?;
        let end = base + parts_of(rows, &weights);
        if parts.first() < end {
            if parts.stop_before(base) {
                return Ok(());
            }
            parts.within(base, |parts| matmul_in_parts(own, rows, weights, Output::Overwrite, out, parts))?;
            if parts.left().is_some() {
                return Ok(());
            }
        }
        (x, y, base) = (rest, others, end);
    }
    Ok(())
}

/// Adds to each row of `y[tokens, width]` the token's rows of `x[chosen, width]`, which are in the order of routed
/// rows, each times its weight. `weights` are in the order of `chosen[tokens, top]`.
///
/// # Errors
/// When a length does not fit.
pub fn combine_rows(x: &[f32], chosen: &[u32], weights: &[f32], width: usize, y: &mut [f32]) -> Result<()> {
    const KERNEL: &str = "combine_rows";
    nonzero(KERNEL, "width", width)?;
    let top = per_token(KERNEL, chosen, y.len() / width)?;
    check(KERNEL, "y", y.len(), chosen.len() / top * width)?;
    check(KERNEL, "x", x.len(), chosen.len().saturating_mul(width))?;
    check(KERNEL, "weights", weights.len(), chosen.len())?;
    for (slot, x) in order(chosen).zip(x.chunks_exact(width)) {
        let weight = weights[slot];
        y[slot / top * width..][..width].iter_mut().zip(x).for_each(|(y, x)| *y += weight * x);
    }
    Ok(())
}

/// How many experts each of so many tokens chose; one where there is no token.
fn per_token(kernel: &'static str, chosen: &[u32], tokens: usize) -> Result<usize> {
    let top = chosen.len().checked_div(tokens).unwrap_or(1).max(1);
    check(kernel, "chosen", chosen.len(), tokens.saturating_mul(top))?;
    Ok(top)
}

/// The experts that were chosen, ascending, and how often each was.
fn loads(chosen: &[u32]) -> impl Iterator<Item = (u32, usize)> + '_ {
    let first = chosen.iter().copied().min();
    let experts = std::iter::successors(first, |&last| chosen.iter().copied().filter(|&expert| expert > last).min());
    experts.map(|expert| (expert, chosen.iter().filter(|&&other| other == expert).count()))
}

/// The places in `chosen` of the routed rows, in their order.
fn order(chosen: &[u32]) -> impl Iterator<Item = usize> + '_ {
    loads(chosen).flat_map(move |(expert, _)| (0..chosen.len()).filter(move |&slot| chosen[slot] == expert))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: of logits 1, 3, 3, 2 the second and the third are chosen with one half each, of 0, 0, ln 3, 0 the third
    /// and the first with three quarters and one quarter.
    #[test]
    fn the_largest_are_chosen_and_of_equal_ones_the_first() {
        let (mut weights, mut chosen) = ([0.0; 4], [9; 4]);
        let logits = [1.0, 3.0, 3.0, 2.0, 0.0, 0.0, 3f32.ln(), 0.0];
        top_k(&logits, 4, 2, &mut weights, &mut chosen).unwrap();
        assert_eq!(chosen, [1, 2, 2, 0]);
        assert!(weights.iter().zip([0.5, 0.5, 0.75, 0.25]).all(|(found, expected)| (found - expected).abs() < 1e-6));
    }

    #[test]
    fn what_is_no_number_is_not_chosen_and_infinity_has_all() {
        let (mut weights, mut chosen) = ([0.0; 2], [9; 2]);
        top_k(&[f32::NAN, f32::INFINITY, -1.0], 3, 2, &mut weights, &mut chosen).unwrap();
        assert_eq!((chosen, weights), ([1, 2], [1.0, 0.0]));
        top_k(&[f32::NEG_INFINITY; 3], 3, 2, &mut weights, &mut chosen).unwrap();
        assert_eq!((chosen, weights), ([0, 1], [1.0, 0.0]));
        let refused = top_k(&[f32::NAN, f32::NAN, 1.0], 3, 2, &mut weights, &mut chosen);
        assert!(matches!(refused, Err(ExecutorError::NoNumber { row: 0, .. })));
        assert!(matches!(top_k(&[], 1, 2, &mut [], &mut []), Err(ExecutorError::Dimension { .. })));
    }

    /// By hand: three tokens, two experts each, of which expert 2 has all.
    #[test]
    fn rows_go_to_their_experts_and_come_back() {
        let (x, chosen) = ([1.0, 10.0, 2.0, 20.0, 3.0, 30.0], [2, 0, 1, 2, 2, 1]);
        let mut routed = [0.0; 12];
        permute_rows(&x, 2, &chosen, &mut routed).unwrap();
        assert_eq!(routed, [1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
        assert_eq!(loads(&chosen).collect::<Vec<_>>(), [(0, 1), (1, 2), (2, 3)]);
        let mut y = [100.0; 6];
        // Every row comes back twice, with weights that sum to one.
        combine_rows(&routed, &chosen, &[0.25, 0.75, 0.5, 0.5, 1.0, 0.0], 2, &mut y).unwrap();
        assert_eq!(y, [101.0, 110.0, 102.0, 120.0, 103.0, 130.0]);
    }

    #[test]
    fn no_tokens_are_no_rows_and_lengths_that_do_not_fit_are_refused() {
        permute_rows(&[], 2, &[], &mut []).unwrap();
        combine_rows(&[], &[], &[], 2, &mut []).unwrap();
        assert!(permute_rows(&[1.0; 4], 2, &[0, 1, 2], &mut [0.0; 6]).is_err());
        assert!(permute_rows(&[1.0; 4], 2, &[0, 1], &mut [0.0; 6]).is_err());
        assert!(combine_rows(&[1.0; 4], &[0, 1], &[1.0], 2, &mut [0.0; 4]).is_err());
    }
}
