//! What a few seeds say about all of them.

use serde::{Deserialize, Serialize};

/// A mean with the interval that has the true one in 95 of 100 experiments like this.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct Interval {
    /// The mean of the samples.
    pub mean: f64,
    /// The lower end; the mean itself where there is one sample.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// Samples.
    pub samples: usize,
}

impl Interval {
    /// The arithmetic mean with Student's interval, or [`None`] of no samples.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let count = samples.len();
        let mean = samples.iter().sum::<f64>() / count as f64;
        if count == 0 || !mean.is_finite() {
            return None;
        }
        let squares: f64 = samples.iter().map(|sample| (sample - mean) * (sample - mean)).sum();
        let half = match count.checked_sub(1).filter(|&freedom| freedom > 0) {
            Some(freedom) => student(freedom) * (squares / freedom as f64 / count as f64).sqrt(),
            None => 0.0,
        };
        Some(Self { mean, low: mean - half, high: mean + half, samples: count })
    }

    /// The geometric mean of ratios, with the interval of their logarithms. Ratios that are not above
    /// zero count as no sample.
    pub fn of_ratios(ratios: &[f64]) -> Option<Self> {
        let logs: Vec<f64> = ratios.iter().filter(|ratio| **ratio > 0.0).map(|ratio| libm::log(*ratio)).collect();
        let of_logs = Self::of(&logs)?;
        let Self { mean, low, high, samples } = of_logs;
        Some(Self { mean: libm::exp(mean), low: libm::exp(low), high: libm::exp(high), samples })
    }
}

/// The geometric mean, or [`None`] unless there is a ratio and all are above zero.
pub fn geometric_mean(ratios: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0_u32);
    for ratio in ratios {
        if ratio <= 0.0 || !ratio.is_finite() {
            return None;
        }
        sum += libm::log(ratio);
        count += 1;
    }
    (count > 0).then(|| libm::exp(sum / f64::from(count)))
}

/// The 97.5 % quantile of Student's distribution with `freedom` degrees of freedom, as tables give it
/// (Fisher and Yates); that of the normal distribution beyond 30.
fn student(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    ];
    freedom.checked_sub(1).and_then(|index| TABLE.get(index)).copied().unwrap_or(1.960)
}

#[cfg(test)]
mod tests {
    use super::*;

    // By hand: 1, 2, 3 have mean 2 and standard deviation 1, so the half width is 4.303 / sqrt(3).
    #[test]
    fn an_interval_is_students() {
        let interval = Interval::of(&[1.0, 2.0, 3.0]).unwrap();
        assert_eq!((interval.mean, interval.samples), (2.0, 3));
        assert!((interval.high - 2.0 - 4.303 / 3_f64.sqrt()).abs() < 1e-12);
        assert!((2.0 - interval.low - 4.303 / 3_f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn one_sample_has_no_width_and_none_has_no_interval() {
        let interval = Interval::of(&[5.0]).unwrap();
        assert_eq!((interval.low, interval.mean, interval.high), (5.0, 5.0, 5.0));
        assert_eq!(Interval::of(&[]), None);
        assert_eq!(Interval::of_ratios(&[0.0, f64::NAN]), None);
    }

    #[test]
    fn ratios_have_a_geometric_mean() {
        let interval = Interval::of_ratios(&[0.5, 2.0]).unwrap();
        assert!((interval.mean - 1.0).abs() < 1e-12 && interval.low < 0.5 && interval.high > 2.0);
        assert!((geometric_mean([2.0, 8.0]).unwrap() - 4.0).abs() < 1e-12);
        assert_eq!(geometric_mean([2.0, 0.0]), None);
        assert_eq!(geometric_mean([]), None);
    }
}
