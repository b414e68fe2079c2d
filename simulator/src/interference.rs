//! What operators that share a device do to each other.
//!
//! An operator alone on its device makes progress at [`Rate::ONE`]: a nanosecond of its duration per
//! nanosecond. Beside others it makes less, by how much all of them demand of what the device has:
//! its arithmetic units and its memory bandwidth. An [`Interference`] turns demands into rates.
//!
//! | model | rates |
//! |---|---|
//! | [`Exclusive`] | one: lanes do not disturb each other |
//! | [`Proportional`] | the same for all: one over the demand for the more crowded resource |
//! | [`MaxMin`] | max-min fair: who does not need the crowded resource is not slowed |
//! | [`SmShares`] | max-min fair, with the arithmetic units divided among the lanes beforehand |
//!
//! Rates are whole multiples of 2^-20 and rounded down, so they are equal on every machine.

mod demand;
mod max_min;
mod shares;

use std::fmt::Debug;

pub use demand::{Demand, JobDemand};
pub use max_min::MaxMin;
pub use shares::SmShares;

/// How fast an operator makes progress, in multiples of 2^-20 of its speed alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u32);

impl Rate {
    /// The speed of an operator that is alone on its device.
    pub const ONE: Self = Self(1 << 20);

    /// `numerator / denominator`, rounded down, at least 2^-20 and at most one. Work never stands
    /// still: what is not to run does not start.
    ///
    /// ```
    /// use slicescheduler_simulator::interference::Rate;
    ///
    /// assert_eq!(Rate::of(3, 2), Rate::ONE);
    /// assert_eq!(Rate::of(1, 3).get(), 349_525);
    /// assert_eq!(Rate::of(0, 0).get(), 1);
    /// ```
    pub fn of(numerator: u64, denominator: u64) -> Self {
        let one = u128::from(Self::ONE.0);
        let scaled = u128::from(numerator) * one / u128::from(denominator.max(1));
        Self(scaled.clamp(1, one) as u32)
    }

    /// The multiple of 2^-20.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// This speed on a device that runs at `other`, rounded down, at least 2^-20.
    #[must_use]
    pub fn slowed(self, other: Self) -> Self {
        Self::of(u64::from(self.0) * u64::from(other.0), 1 << 40)
    }
}

/// An operator that runs on a lane of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoRunner {
    /// The number of the lane on its device.
    pub lane: u16,
    /// What the operator demands of the device when nothing slows it.
    pub demand: Demand,
}

/// Turns the demands of operators that share a device into their rates of progress.
///
/// # Contract
///
/// - Pure: equal co-runners give equal rates, on every call and every machine; no floating point.
/// - `running` is in the order of lanes, at most one operator per lane. `rates` is as long; every
///   entry is to be written.
/// - An operator alone runs at [`Rate::ONE`]: that is what its duration means. The simulator relies
///   on it and does not ask then.
///
/// # Example
///
/// ```
/// use slicescheduler_simulator::interference::{CoRunner, Interference, Rate};
///
/// /// Time slicing: everybody gets the device in turn.
/// #[derive(Debug)]
/// struct InTurn;
///
/// impl Interference for InTurn {
///     fn name(&self) -> &str {
///         "in turn"
///     }
///
///     fn rates(&self, running: &[CoRunner], rates: &mut [Rate]) {
///         rates.fill(Rate::of(1, running.len() as u64));
///     }
/// }
/// ```
pub trait Interference: Debug + Send + Sync {
    /// Its name in reports.
    fn name(&self) -> &str;

    /// Writes the rate of each of `running` to the same place of `rates`.
    fn rates(&self, running: &[CoRunner], rates: &mut [Rate]);
}

/// Lanes do not disturb each other: durations hold whatever runs beside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exclusive;

impl Interference for Exclusive {
    fn name(&self) -> &str {
        "exclusive"
    }

    fn rates(&self, _: &[CoRunner], rates: &mut [Rate]) {
        rates.fill(Rate::ONE);
    }
}

/// All are slowed alike: `1 / max(1, sum of compute, sum of bandwidth)`.
///
/// The resources of the device are handed out in proportion to the demands, and everybody waits for
/// the more crowded one. It is what a roofline says about one kernel that does the work of all
/// (Williams, Waterman, Patterson 2009).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proportional;

impl Interference for Proportional {
    fn name(&self) -> &str {
        "proportional"
    }

    fn rates(&self, running: &[CoRunner], rates: &mut [Rate]) {
        let full = u64::from(Demand::FULL);
        let sum = |part: fn(&Demand) -> u16| running.iter().map(|other| u64::from(part(&other.demand))).sum::<u64>();
        let crowded = sum(Demand::compute).max(sum(Demand::bandwidth)).max(full);
        rates.fill(Rate::of(full, crowded));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(super) fn co_runners() -> impl Strategy<Value = Vec<CoRunner>> {
        let demand = (0..=Demand::FULL, 0..=Demand::FULL);
        prop::collection::vec(demand, 1..7).prop_map(|demands| {
            let runners = (0..).zip(demands);
            runners
                .map(|(lane, (compute, bandwidth))| CoRunner { lane, demand: Demand::new(compute, bandwidth) })
                .collect()
        })
    }

    /// Half of the arithmetic and all of the bandwidth beside all of the arithmetic: 1.5 times
    /// what there is of the one, as much as there is of the other.
    #[test]
    fn the_more_crowded_resource_decides() {
        let full = Demand::FULL;
        let running = [
            CoRunner { lane: 0, demand: Demand::new(full / 2, full) },
            CoRunner { lane: 1, demand: Demand::new(full, 0) },
        ];
        let mut rates = [Rate::ONE; 2];
        Proportional.rates(&running, &mut rates);
        assert_eq!(rates, [Rate::of(2, 3); 2]);
    }

    proptest! {
        #[test]
        fn nothing_is_slowed_alone(runners in co_runners()) {
            let models: [&dyn Interference; 4] =
                [&Exclusive, &Proportional, &MaxMin, &SmShares::equal(8)];
            for model in models {
                let mut rates = [Rate::of(1, 2)];
                model.rates(&runners[..1], &mut rates);
                prop_assert_eq!(rates, [Rate::ONE], "{}", model.name());
            }
        }

        /// Rates are rounded down, so no resource is handed out twice.
        #[test]
        fn no_more_is_used_than_there_is(runners in co_runners()) {
            let models: [&dyn Interference; 2] = [&Proportional, &MaxMin];
            for model in models {
                let mut rates = vec![Rate::ONE; runners.len()];
                model.rates(&runners, &mut rates);
                for part in [Demand::compute, Demand::bandwidth] {
                    let used: u64 = runners.iter().zip(&rates).map(|(r, rate)| u64::from(part(&r.demand)) * u64::from(rate.get())).sum();
                    // The lowest rate is 2^-20 even where that is too much.
                    let least: u64 = runners.iter().map(|r| u64::from(part(&r.demand))).sum();
                    prop_assert!(used <= (u64::from(Demand::FULL) * u64::from(Rate::ONE.get())).max(least), "{}", model.name());
                }
            }
        }
    }
}
