//! Requests that arrive like those of a production trace, without the trace.

use slicescheduler_gmg::units::Nanos;

use super::ArrivalRecord;
use super::preset::{LengthModel, Preset};
use super::rate::ModulatedRate;
use super::rng::{Seed, Stream};

const RATE: u64 = 0;
const GAPS: u64 = 1;
const LENGTHS: u64 = 2;

/// Arrivals of a doubly stochastic Poisson process: a random rate, and a Poisson process of that
/// rate. Prompt and output lengths are drawn independently of each other and of the arrivals.
///
/// The iterator does not end (in 584 years). Each record costs a few logarithms and a walk over
/// the rate's windows since the last one; memory is constant.
#[derive(Clone, Debug)]
pub struct Generator {
    rate: ModulatedRate,
    gaps: Stream,
    lengths: LengthStream,
    now: Nanos,
}

impl Generator {
    /// The arrivals of `preset` for `seed`.
    pub fn new(preset: Preset, seed: u64) -> Self {
        let seed = Seed(seed);
        Self {
            rate: ModulatedRate::new(preset.rate(), seed.derive(RATE)),
            gaps: Stream::new(seed.derive(GAPS)),
            lengths: LengthStream::new(preset, seed),
            now: Nanos::ZERO,
        }
    }
}

impl Iterator for Generator {
    type Item = ArrivalRecord;

    /// The next arrival is where the integral of the rate has grown by an exponential variable.
    fn next(&mut self) -> Option<ArrivalRecord> {
        let mut missing = self.gaps.exponential();
        while self.now < Nanos::MAX {
            let (rate, until) = self.rate.at(self.now);
            let expected = rate * (until - self.now).as_secs_f64();
            if missing < expected {
                self.now = (self.now + Nanos::from_secs_f64(missing / rate)).min(until);
                let (prompt, output) = self.lengths.draw();
                return Some(ArrivalRecord { at: self.now, prompt, output, prefix: None });
            }
            missing -= expected;
            self.now = until;
        }
        None
    }
}

/// Requests that are all there from the start and never run out, in the order they are served:
/// pairs of prompt and output length.
#[derive(Clone, Debug)]
pub struct Backlog {
    lengths: LengthStream,
}

impl Backlog {
    /// Requests with the lengths of `preset` for `seed`.
    pub fn new(preset: Preset, seed: u64) -> Self {
        Self { lengths: LengthStream::new(preset, Seed(seed)) }
    }
}

impl Iterator for Backlog {
    type Item = (u32, u32);

    fn next(&mut self) -> Option<(u32, u32)> {
        Some(self.lengths.draw())
    }
}

/// Prompt and output lengths.
#[derive(Clone, Debug)]
pub(super) struct LengthStream {
    model: LengthModel,
    units: Stream,
}

impl LengthStream {
    pub(super) fn new(preset: Preset, seed: Seed) -> Self {
        Self { model: preset.lengths(), units: Stream::new(seed.derive(LENGTHS)) }
    }

    pub(super) fn draw(&mut self) -> (u32, u32) {
        let prompt = self.model.prompt.at(self.units.unit());
        let output = self.model.output.at(self.units.unit());
        (prompt, output)
    }
}
