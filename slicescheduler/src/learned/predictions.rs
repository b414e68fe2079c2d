//! What was predicted beside what was measured.

use std::fmt;

use slicescheduler_gmg::units::Nanos;

/// Stretches that are ranked, the last ones.
const RANKED: usize = 4096;

/// Predicted times of stretches of operators, made when these were launched, beside the measured ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Predictions {
    /// Stretches that ran without a break and had been predicted.
    pub stretches: u64,
    /// The sum of the predicted times.
    pub predicted: Nanos,
    /// The sum of the measured times.
    pub measured: Nanos,
    /// The sum of the differences, each without its sign.
    pub off: Nanos,
    /// Spearman's rank correlation between predicted and measured times of the last 4096 stretches: 1 if the order in
    /// which they were predicted to be fast is that in which they were. None for fewer than two.
    pub rank_correlation: Option<f64>,
}

impl Predictions {
    /// By what share the predicted sum is above the measured one; none if nothing was predicted.
    pub fn makespan_error(&self) -> Option<f64> {
        (self.measured > Nanos::ZERO).then(|| self.predicted.as_secs_f64() / self.measured.as_secs_f64() - 1.0)
    }

    /// The differences as a share of the measured sum; none if nothing was predicted.
    pub fn mean_error(&self) -> Option<f64> {
        (self.measured > Nanos::ZERO).then(|| self.off.as_secs_f64() / self.measured.as_secs_f64())
    }
}

impl fmt::Display for Predictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(makespan), Some(mean)) = (self.makespan_error(), self.mean_error()) else {
            return f.write_str("no makespan was predicted");
        };
        let (predicted, measured) = (self.predicted.as_secs_f64(), self.measured.as_secs_f64());
        write!(
            f,
            "makespans of {} stretches: predicted {predicted:.2} s, measured {measured:.2} s ({:+.1} %), off by {:.1} % each",
            self.stretches,
            makespan * 100.0,
            mean * 100.0,
        )?;
        self.rank_correlation.map_or(Ok(()), |correlation| write!(f, ", rank correlation {correlation:.3}"))
    }
}

/// Keeps account of predictions.
#[derive(Debug, Default)]
pub(super) struct Account {
    sums: Predictions,
    last: Vec<(Nanos, Nanos)>,
    /// Where the next one goes once `last` is full.
    next: usize,
}

impl Account {
    pub(super) fn add(&mut self, predicted: Nanos, measured: Nanos) {
        self.sums.stretches += 1;
        self.sums.predicted += predicted;
        self.sums.measured += measured;
        self.sums.off += Nanos(predicted.get().abs_diff(measured.get()));
        if self.last.len() < RANKED {
            self.last.push((predicted, measured));
        } else if let Some(oldest) = self.last.get_mut(self.next) {
            *oldest = (predicted, measured);
            self.next = (self.next + 1) % RANKED;
        }
    }

    pub(super) fn figures(&self) -> Predictions {
        let predicted: Vec<Nanos> = self.last.iter().map(|pair| pair.0).collect();
        let measured: Vec<Nanos> = self.last.iter().map(|pair| pair.1).collect();
        Predictions { rank_correlation: correlation(&ranks(&predicted), &ranks(&measured)), ..self.sums }
    }
}

/// The rank of each value, from 0; equal ones have the mean of their ranks.
fn ranks(values: &[Nanos]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by_key(|&at| values[at]);
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    for equal in order.chunk_by(|&a, &b| values[a] == values[b]) {
        let rank = first as f64 + (equal.len() - 1) as f64 / 2.0;
        equal.iter().for_each(|&at| ranks[at] = rank);
        first += equal.len();
    }
    ranks
}

/// Pearson's correlation; none of fewer than two pairs, or where one side is all equal.
fn correlation(x: &[f64], y: &[f64]) -> Option<f64> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (x_mean, y_mean) = (mean(x), mean(y));
    let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in x.iter().zip(y) {
        let (x, y) = (x - x_mean, y - y_mean);
        (xy, xx, yy) = (xy + x * y, xx + x * x, yy + y * y);
    }
    (xx > 0.0 && yy > 0.0).then(|| xy / (xx * yy).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(pairs: &[(u64, u64)]) -> Predictions {
        let mut account = Account::default();
        pairs.iter().for_each(|&(predicted, measured)| account.add(Nanos::ms(predicted), Nanos::ms(measured)));
        account.figures()
    }

    #[test]
    fn errors_are_of_the_sum_and_of_each() {
        let figures = account(&[(10, 20), (30, 20)]);
        assert_eq!((figures.makespan_error(), figures.mean_error()), (Some(0.0), Some(0.5)));
        assert_eq!(account(&[]).to_string(), "no makespan was predicted");
        let text = account(&[(1000, 2000), (3500, 3000)]).to_string();
        assert!(text.starts_with("makespans of 2 stretches: predicted 4.50 s, measured 5.00 s (-10.0 %)"), "{text}");
    }

    /// By hand: ranks 0 1 2 3 beside 1 0 2 3 differ by 1 in two places, 1 - 6 * 2 / (4 * 15) = 0.8.
    #[test]
    fn the_rank_correlation_is_spearmans() {
        let figures = account(&[(1, 20), (2, 10), (3, 30), (4, 1000)]);
        assert!((figures.rank_correlation.unwrap() - 0.8).abs() < 1e-12);
        assert_eq!(account(&[(1, 2)]).rank_correlation, None);
        assert_eq!(account(&[(1, 2), (1, 3)]).rank_correlation, None, "all were predicted alike");
        assert!((account(&[(1, 5), (1, 5), (2, 7)]).rank_correlation.unwrap() - 1.0).abs() < 1e-12);
    }
}
