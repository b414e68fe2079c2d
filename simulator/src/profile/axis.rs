//! One axis of a table.

use std::borrow::Cow;
use std::ops::Range;

/// How durations grow along an axis beyond its last sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Growth {
    /// By the value itself: tokens, sequences, bytes.
    Linear,
    /// By the square of the value: the length of prompts in causal attention.
    Quadratic,
}

impl Growth {
    /// The quantity in which durations grow linearly.
    fn work(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Quadratic => value * value,
        }
    }
}

/// An axis: its name, the values that were measured, and how durations grow beyond them.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    name: Cow<'static, str>,
    growth: Growth,
    /// Ascending, finite, not negative, without repetitions.
    knots: Box<[f64]>,
    /// Follows from the knots.
    index: Index,
}

/// Finds the knots around a value by its leading bits: the exponent and [`Index::FRACTION`] bits
/// of the fraction, which order numbers as their values do.
#[derive(Clone, Debug, Default, PartialEq)]
struct Index {
    /// The leading bits of the first knot above zero.
    first: u64,
    /// At `i`, how many knots have leading bits below `first + i`; the last one counts all.
    below: Box<[u32]>,
}

impl Index {
    /// Eight buckets per power of two: hardly more than one knot in each, and at most 2^14 of them.
    const FRACTION: u32 = 3;

    fn of(knots: &[f64]) -> Self {
        let zeros = knots.partition_point(|&knot| knot <= 0.0);
        let (first, last) = match &knots[zeros..] {
            [] => return Self::default(),
            [first, .., last] => (Self::bits(*first), Self::bits(*last)),
            [only] => (Self::bits(*only), Self::bits(*only)),
        };
        let below = |bits| zeros + knots[zeros..].partition_point(|&knot| Self::bits(knot) < bits);
        Self { first, below: (first..=last + 1).map(|bits| below(bits) as u32).collect() }
    }

    /// The leading bits of a value above zero.
    fn bits(value: f64) -> u64 {
        value.to_bits() >> (f64::MANTISSA_DIGITS - 1 - Self::FRACTION)
    }

    /// Those of `knots` that share the leading bits of `value`, which is above the first knot: none
    /// before them is at or above it, and all behind them are.
    fn around(&self, knots: &[f64], value: f64) -> Range<usize> {
        let Some(last) = self.below.len().checked_sub(2) else { return 0..knots.len() };
        let bucket = (Self::bits(value).saturating_sub(self.first) as usize).min(last);
        self.below[bucket] as usize..self.below[bucket + 1] as usize
    }
}

/// Where a value lies on an axis: between the knots `lower` and `upper`, or beyond the ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    /// The knot below; the last but some if the value lies beyond the end.
    pub lower: usize,
    /// The knot above; equal to `lower` on a knot and before the first one.
    pub upper: usize,
    /// The share of `upper`; above 1 beyond the end.
    pub weight: f64,
    /// How far the value lies outside of the knots, in percent of the nearest one; at least 1 there.
    pub beyond_percent: u32,
}

impl Axis {
    /// An axis along which durations grow linearly, without knots yet.
    pub fn linear(name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), growth: Growth::Linear, knots: Box::default(), index: Index::default() }
    }

    /// An axis along which durations grow quadratically, without knots yet.
    pub fn quadratic(name: impl Into<Cow<'static, str>>) -> Self {
        Self { growth: Growth::Quadratic, ..Self::linear(name) }
    }

    /// This axis with the knots `values`, in any order; values that are not finite or negative
    /// are left out.
    #[must_use]
    pub(super) fn with_knots(mut self, values: impl IntoIterator<Item = f64>) -> Self {
        let mut knots: Vec<_> = values.into_iter().filter(|value| value.is_finite() && *value >= 0.0).collect();
        knots.sort_by(f64::total_cmp);
        knots.dedup();
        self.index = Index::of(&knots);
        self.knots = knots.into();
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How durations grow beyond its end.
    pub fn growth(&self) -> Growth {
        self.growth
    }

    /// The values that were measured, ascending.
    pub fn knots(&self) -> &[f64] {
        &self.knots
    }

    /// The number of the knot at `value`, if there is one.
    pub fn knot(&self, value: f64) -> Option<usize> {
        self.knots.binary_search_by(|knot| knot.total_cmp(&value)).ok()
    }

    /// Where `value` lies. O(log knots) at the worst; constant where knots are evenly spaced, by
    /// steps or by factors.
    ///
    /// Beyond the end the line goes through the last knot and through the last of those before it
    /// that are at most three quarters of it, so that two samples side by side do not decide about
    /// the slope. Before the first knot durations are taken to be those of the first: what is
    /// left there is overhead.
    pub fn locate(&self, value: f64) -> Position {
        self.position(value, self.knots_below(value))
    }

    /// The number of knots below `value`.
    fn knots_below(&self, value: f64) -> usize {
        if self.knots.first().is_none_or(|&first| value.is_nan() || value <= first) {
            return 0;
        }
        let around = self.index.around(&self.knots, value);
        around.start + self.knots[around].partition_point(|&knot| knot < value)
    }

    /// [`locate`](Self::locate), if the number of knots below `value` is known to be `above`.
    fn position(&self, value: f64, above: usize) -> Position {
        let on = |knot, beyond_percent| Position { lower: knot, upper: knot, weight: 0.0, beyond_percent };
        let Some(&knot) = self.knots.get(above) else { return self.beyond(value) };
        if knot == value {
            return on(above, 0);
        }
        let Some(&below) = above.checked_sub(1).and_then(|below| self.knots.get(below)) else {
            return on(0, percent(knot - value, knot));
        };
        Position { lower: above - 1, upper: above, weight: (value - below) / (knot - below), beyond_percent: 0 }
    }

    fn beyond(&self, value: f64) -> Position {
        let Some((&last, before)) = self.knots.split_last() else {
            return Position { lower: 0, upper: 0, weight: 0.0, beyond_percent: u32::MAX };
        };
        let upper = before.len();
        let far = before.partition_point(|&knot| knot <= last * 0.75).checked_sub(1);
        let lower = far.unwrap_or(upper.saturating_sub(1));
        let work = |knot: f64| self.growth.work(knot);
        let span = work(last) - self.knots.get(lower).map_or(0.0, |&knot| work(knot));
        let weight = if lower < upper { 1.0 + (work(value) - work(last)) / span } else { 0.0 };
        Position { lower, upper, weight, beyond_percent: percent(value - last, last) }
    }
}

/// `distance` in percent of `of`, rounded up, at least 1.
fn percent(distance: f64, of: f64) -> u32 {
    // Multiplied first: whole percentages of whole numbers stay whole.
    ((distance * 100.0 / of).ceil() as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn axis() -> Axis {
        Axis::linear("m").with_knots([16.0, 1.0, 8.0, 8.0, f64::NAN, -4.0, 15.0])
    }

    #[test]
    fn knots_are_sorted_and_sane() {
        assert_eq!(axis().knots(), [1.0, 8.0, 15.0, 16.0]);
        assert_eq!(axis().knot(15.0), Some(2));
        assert_eq!(axis().knot(14.0), None);
    }

    #[test]
    fn a_value_lies_on_between_before_or_beyond_the_knots() {
        let position = |lower, upper, weight, beyond_percent| Position { lower, upper, weight, beyond_percent };
        assert_eq!(axis().locate(8.0), position(1, 1, 0.0, 0));
        assert_eq!(axis().locate(4.5), position(0, 1, 0.5, 0));
        assert_eq!(axis().locate(0.0), position(0, 0, 0.0, 100));
        // From 8 (15 is more than three quarters of 16): 16 is 8 further and 24 is 8 beyond it.
        assert_eq!(axis().locate(24.0), position(1, 3, 2.0, 50));
    }

    /// 7 / 100 is no binary fraction, and a hundred times the nearest one is above 7.
    #[test]
    fn whole_percentages_are_not_rounded_up() {
        let axis = Axis::linear("m").with_knots([100.0]);
        let beyond = |value: f64| axis.locate(value).beyond_percent;
        assert_eq!([107.0, 200.0, 93.0, 0.0].map(beyond), [7, 100, 7, 100]);
        assert_eq!([107.5, 100.01, 99.99].map(beyond), [8, 1, 1]);
        assert_eq!([f64::INFINITY, f64::MAX].map(beyond), [u32::MAX; 2]);
    }

    /// (40^2 - 20^2) / (20^2 - 10^2) = 4.
    #[test]
    fn quadratic_growth_takes_the_slope_in_squares() {
        let axis = Axis::quadratic("length").with_knots([10.0, 20.0]);
        assert_eq!(axis.locate(40.0).weight, 1.0 + 4.0);
        assert_eq!(axis.locate(15.0).weight, 0.5);
    }

    proptest! {
        #[test]
        fn the_index_finds_what_a_search_finds(
            knots in prop::collection::vec(prop_oneof![0.0..20.0, (0u32..70).prop_map(f64::from), 0.0..f64::MAX], 0..40),
            values in prop::collection::vec(prop_oneof![-1.0..30.0, (0u32..80).prop_map(f64::from), prop::num::f64::ANY], 1..40),
        ) {
            let axis = Axis::linear("m").with_knots(knots);
            for value in values.iter().chain(axis.knots()) {
                prop_assert_eq!(axis.knots_below(*value), axis.knots().partition_point(|knot| knot < value));
            }
        }
    }

    #[test]
    fn one_knot_or_none_answers_for_everything() {
        assert_eq!(Axis::linear("m").with_knots([4.0]).locate(9.0).weight, 0.0);
        assert_eq!(Axis::linear("m").locate(9.0).upper, 0);
    }
}
