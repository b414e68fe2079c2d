//! Rates that explain times by work, none of them negative.

/// Kinds of work that a time is explained by.
pub(super) const WORK: usize = 4;

/// Fits after the first.
const ROUNDS: usize = 3;
/// A time counts as no more than this many times what was expected: what had to wait for something else on the
/// machine for a hundred times as long says nothing about work.
const MOST: f64 = 5.0;

/// The non-negative rates that explain times by work, a time of any length being as sure as any other in
/// proportion. Times must be above zero.
///
/// Errors relative to the times themselves would make a time that was too short count for more than one that was
/// too long, and rates too low by about twice the squared relative deviation. So what was expected is what errors
/// are relative to, from fit to fit (iteratively reweighted least squares): where they settle, the mean of
/// `time / (work r)` is 1. O(samples + 2^WORK WORK^3).
pub(super) fn rates(samples: &[([f64; WORK], f64)]) -> [f64; WORK] {
    let expected =
        |rates: &[f64; WORK], work: &[f64; WORK]| -> f64 { rates.iter().zip(work).map(|(r, w)| r * w).sum() };
    let mut found = non_negative(samples.iter().map(|&(work, time)| (work, time, time)));
    for _ in 0..ROUNDS {
        let scaled = samples.iter().filter_map(|&(work, time)| {
            let expected = expected(&found, &work);
            (expected > 0.0).then(|| (work, time.min(MOST * expected), expected))
        });
        found = non_negative(scaled);
    }
    found
}

/// The non-negative rates `r` for which the sum of `((work r - time) / scale)^2` over samples of work, time and scale is
/// least: the best of the unconstrained solutions over every subset of the kinds of work, which contains that of the
/// constrained problem. Scales must be above zero.
fn non_negative(samples: impl Iterator<Item = ([f64; WORK], f64, f64)> + Clone) -> [f64; WORK] {
    // Scaled to a norm of 1, kinds of work of any size weigh alike.
    let mut norms = [0.0f64; WORK];
    for (work, _, scale) in samples.clone() {
        norms.iter_mut().zip(work).for_each(|(norm, work)| *norm += (work / scale).powi(2));
    }
    let norms = norms.map(|norm| if norm > 0.0 { norm.sqrt() } else { 1.0 });
    let (mut products, mut towards) = ([[0.0; WORK]; WORK], [0.0; WORK]);
    for (work, time, scale) in samples {
        let row: [f64; WORK] = std::array::from_fn(|i| work[i] / scale / norms[i]);
        for i in 0..WORK {
            towards[i] += row[i] * time / scale;
            for j in 0..WORK {
                products[i][j] += row[i] * row[j];
            }
        }
    }
    let (mut best, mut least) = ([0.0; WORK], f64::INFINITY);
    for subset in 1u32..1 << WORK {
        let Some(rates) = solve(subset, products, towards) else { continue };
        if rates.iter().any(|rate| *rate < 0.0) {
            continue;
        }
        // |A r - b|^2 without the constant.
        let quadratic: f64 =
            (0..WORK).map(|i| (0..WORK).map(|j| rates[i] * products[i][j] * rates[j]).sum::<f64>()).sum();
        let error = quadratic - 2.0 * rates.iter().zip(towards).map(|(rate, towards)| rate * towards).sum::<f64>();
        if error < least {
            (best, least) = (rates, error);
        }
    }
    std::array::from_fn(|i| best[i] / norms[i])
}

/// Solves the normal equations for the kinds of work in `subset`, the others being zero; none if they do not tell
/// them apart. Gauss-Jordan elimination with pivots in order, as the matrix is positive definite.
fn solve(subset: u32, mut matrix: [[f64; WORK]; WORK], mut right: [f64; WORK]) -> Option<[f64; WORK]> {
    /// What is left of a unit norm after elimination must be more than rounding leaves.
    const LEAST_PIVOT: f64 = 1e-9;
    let is_in = |i: usize| subset & (1 << i) != 0;
    for i in (0..WORK).filter(|&i| is_in(i)) {
        if matrix[i][i] < LEAST_PIVOT {
            return None;
        }
        for other in (0..WORK).filter(|&other| is_in(other) && other != i) {
            let factor = matrix[other][i] / matrix[i][i];
            let pivot = matrix[i];
            for (entry, above) in matrix[other].iter_mut().zip(pivot) {
                *entry -= factor * above;
            }
            right[other] -= factor * right[i];
        }
    }
    Some(std::array::from_fn(|i| if is_in(i) { right[i] / matrix[i][i] } else { 0.0 }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::rates as rates_of;
    use super::*;

    fn time(rates: [f64; WORK], work: [f64; WORK]) -> f64 {
        rates.iter().zip(work).map(|(rate, work)| rate * work).sum()
    }

    proptest! {
        #[test]
        fn rates_that_made_the_times_are_found_again(
            rates in prop::array::uniform4(0.1f64..10.0),
            works in prop::collection::vec(prop::array::uniform4(0.1f64..1.0), 12..40),
        ) {
            // As iterations have it, some kinds of work come in millions.
            let scale = [1.0, 1e6, 1e5, 1e4];
            let samples: Vec<_> = works.iter().map(|work| {
                let work: [f64; WORK] = std::array::from_fn(|i| work[i] * scale[i]);
                (work, time(rates, work))
            }).collect();
            let found = rates_of(&samples);
            for (work, time_of) in &samples {
                prop_assert!((time(found, *work) / time_of - 1.0).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn a_rate_that_would_be_negative_is_zero_and_the_others_make_up_for_it() {
        // The second kind of work seems to save time.
        let samples = [([1.0, 0.0, 0.0, 0.0], 2.0), ([1.0, 1.0, 0.0, 0.0], 1.0), ([2.0, 1.0, 0.0, 0.0], 3.0)];
        let found = non_negative(samples.into_iter().map(|(work, time)| (work, time, time)));
        assert_eq!(found[1..], [0.0; 3]);
        // The least of (r/2 - 1)^2 + (r - 1)^2 + (2 r/3 - 1)^2 is at r = (1/2 + 1 + 2/3) / (1/4 + 1 + 4/9).
        assert!((found[0] - (13.0 / 6.0) / (61.0 / 36.0)).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn iterations_that_are_all_alike_give_their_time() {
        let work = [293.0, 1e8, 1e5, 1e8];
        let found = rates_of(&[(work, 5e6); 20]);
        assert!((time(found, work) / 5e6 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn times_that_scatter_are_explained_by_their_mean() {
        // Two sizes of work, each with times 40 % below and above what a rate of 3 gives.
        let samples: Vec<_> = [1.0, 10.0].into_iter().flat_map(|size| [0.6, 1.4].map(|part| (size, part))).collect();
        let samples: Vec<_> = samples.iter().map(|(size, part)| ([*size, 0.0, 0.0, 0.0], 3.0 * size * part)).collect();
        assert!((rates_of(&samples)[0] - 3.0).abs() < 1e-12);
    }

    #[test]
    fn one_time_that_had_to_wait_says_little() {
        let work = [1.0, 0.0, 0.0, 0.0];
        let mut samples = vec![(work, 2.0); 255];
        samples.push((work, 2_000.0));
        // It counts as five times what is expected at most: 2 (255 + 5) / 256.
        let found = rates_of(&samples)[0];
        assert!(found > 2.0 && found < 2.05, "{found}");
    }
}
