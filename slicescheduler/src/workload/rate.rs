//! A random arrival rate: the product of levels that change at different time scales.
//!
//! A level holds one factor per window of time. Factors have mean 1, are zero for a share of the
//! windows, and follow a Weibull distribution otherwise. Load that is bursty at many scales at
//! once, as that of production traces is, needs one level per scale; see [`super::preset`].

use slicescheduler_gmg::units::Nanos;

use super::rng::Seed;

const LARGEST_DECK: usize = 16;

/// One time scale of a random rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// How long a factor holds.
    pub window: Nanos,
    /// The share of windows whose factor is above zero, in (0, 1].
    pub active: f64,
    /// The spread of the factors above zero: they are proportional to the `spread`-th power of an
    /// exponential variable (a Weibull distribution of shape 1 / `spread`).
    pub spread: f64,
    /// From 1 to 16: of every so many consecutive windows, one falls into each of as many equally
    /// likely strata of the distribution, in random order. So a short run sees the whole
    /// distribution, and runs of different seeds carry similar load. 1 makes windows independent.
    pub deck: usize,
}

/// The mean rate of arrivals, and how it varies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateModel {
    /// The mean number of arrivals per second.
    pub mean_per_second: f64,
    /// The levels whose product modulates the mean.
    pub levels: &'static [Level],
}

/// One realization of a [`RateModel`], read forward in time.
///
/// Memory is one factor per level; a factor is a pure function of seed, level and window.
#[derive(Clone, Debug)]
pub struct ModulatedRate {
    mean_per_second: f64,
    levels: Vec<LevelState>,
}

#[derive(Clone, Debug)]
struct LevelState {
    level: Level,
    seed: Seed,
    /// How far into a window time zero lies, so that windows do not line up with the clock.
    phase: Nanos,
    /// The factor above zero is this times the power of an exponential variable.
    scale: f64,
    factor: f64,
    until: Nanos,
}

impl ModulatedRate {
    /// The realization of `model` for `seed`.
    pub fn new(model: RateModel, seed: Seed) -> Self {
        let levels =
            model.levels.iter().enumerate().map(|(index, level)| LevelState::new(*level, seed.derive(index as u64)));
        Self { mean_per_second: model.mean_per_second, levels: levels.collect() }
    }

    /// The rate at `now` in arrivals per second, and the time until which it certainly holds,
    /// which is after `now`. Calls must not go back in time.
    pub fn at(&mut self, now: Nanos) -> (f64, Nanos) {
        let mut rate = self.mean_per_second;
        let mut holds = Nanos::MAX;
        let mut silent = Nanos::ZERO;
        for level in &mut self.levels {
            level.advance(now);
            rate *= level.factor;
            holds = holds.min(level.until);
            if level.factor == 0.0 {
                silent = silent.max(level.until);
            }
        }
        (rate, holds.max(silent))
    }
}

impl LevelState {
    fn new(level: Level, seed: Seed) -> Self {
        let window = Nanos(level.window.0.max(1));
        let phase = Nanos((seed.unit(0) * window.0 as f64) as u64);
        let scale = 1.0 / (libm::tgamma(1.0 + level.spread) * level.active);
        Self { level: Level { window, ..level }, seed: seed.derive(0), phase, scale, factor: 0.0, until: Nanos::ZERO }
    }

    fn advance(&mut self, now: Nanos) {
        if now < self.until {
            return;
        }
        let window = self.level.window.0;
        let index = (now + self.phase).0 / window;
        self.factor = self.quantile(self.stratified(index));
        self.until = Nanos(window).times(index.saturating_add(1)) - self.phase;
    }

    /// A number in (0, 1) for window `index`, spread evenly over each deck.
    fn stratified(&self, index: u64) -> f64 {
        let unit = self.seed.unit(index);
        let size = self.level.deck.clamp(1, LARGEST_DECK);
        if size == 1 {
            return unit;
        }
        let deck = self.seed.derive(index / size as u64);
        let position = (index % size as u64) as usize;
        let mut strata: [usize; LARGEST_DECK] = std::array::from_fn(|stratum| stratum);
        for last in (1..size).rev() {
            strata.swap(last, (deck.number(last as u64) % (last as u64 + 1)) as usize);
        }
        (strata[position] as f64 + unit) / size as f64
    }

    fn quantile(&self, unit: f64) -> f64 {
        let silent = 1.0 - self.level.active;
        if unit <= silent {
            return 0.0;
        }
        let exponential = -libm::log((1.0 - unit) / self.level.active);
        self.scale * libm::pow(exponential.max(0.0), self.level.spread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVELS: &[Level] = &[
        Level { window: Nanos::secs(7), active: 0.5, spread: 0.5, deck: 10 },
        Level { window: Nanos::ms(900), active: 1.0, spread: 1.0, deck: 1 },
    ];
    const MODEL: RateModel = RateModel { mean_per_second: 3.0, levels: LEVELS };

    #[test]
    fn the_time_average_is_the_mean_rate() {
        let mut rate = ModulatedRate::new(MODEL, Seed(5));
        let end = Nanos::secs(200_000);
        let (mut now, mut arrivals, mut silent) = (Nanos::ZERO, 0.0, Nanos::ZERO);
        while now < end {
            let (per_second, until) = rate.at(now);
            assert!(until > now);
            arrivals += per_second * (until - now).as_secs_f64();
            if per_second == 0.0 {
                silent += until - now;
            }
            now = until;
        }
        let mean = arrivals / now.as_secs_f64();
        assert!((mean / 3.0 - 1.0).abs() < 0.02, "{mean}");
        assert!((silent.as_secs_f64() / now.as_secs_f64() - 0.5).abs() < 0.01);
    }

    #[test]
    fn a_deck_holds_each_stratum_once() {
        let state = LevelState::new(LEVELS[0], Seed(1));
        for deck in 0..50 {
            let mut tenths: Vec<usize> =
                (0..10).map(|position| (state.stratified(deck * 10 + position) * 10.0) as usize).collect();
            tenths.sort_unstable();
            assert_eq!(tenths, (0..10).collect::<Vec<_>>());
        }
    }

    #[test]
    fn reading_in_small_steps_gives_the_same_rate_as_reading_in_large_ones() {
        let mut fine = ModulatedRate::new(MODEL, Seed(2));
        let mut coarse = ModulatedRate::new(MODEL, Seed(2));
        let mut now = Nanos::ZERO;
        while now < Nanos::secs(100) {
            let (rate, until) = coarse.at(now);
            while now < until {
                assert_eq!(fine.at(now).0, rate, "at {now}");
                now += Nanos::ms(50);
            }
        }
    }
}
