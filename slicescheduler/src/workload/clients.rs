//! Requests that arrive as a client of ServeGen sends them.

use slicescheduler_gmg::units::Nanos;

use super::ArrivalRecord;
use super::generator::LengthStream;
use super::preset::Preset;
use super::rng::{Seed, Stream};
use super::servegen::{ClientWindows, Gaps};

const GAPS: u64 = 1;

/// How a client is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientOptions {
    /// Where in its windows the replay starts, as a share of all of them; it goes round at their end.
    pub start: f64,
    /// How long a window lasts. Those that were published stand for 600 s.
    pub window: Nanos,
    /// Multiplies rates.
    pub rate_scale: f64,
    /// What lengths are like: the archives say nothing about them.
    pub lengths: Preset,
}

/// The requests of one client: gaps of the shape that a window gives, of mean 1, on a clock that runs at
/// the rate of the window. So the expected number of requests of a window is its rate times its length,
/// and what is left of a gap at the end of a window goes on in the next.
///
/// Does not end, unless no window has any requests. Memory: that of the windows, which are shared.
#[derive(Clone, Debug)]
pub struct Client {
    windows: ClientWindows,
    options: ClientOptions,
    gaps: Stream,
    lengths: LengthStream,
    now: Nanos,
    /// The window that holds at `now`, counted from the first and never reset.
    window: u64,
    until: Nanos,
}

impl Client {
    /// The requests of a client for `seed`.
    pub fn new(windows: ClientWindows, options: ClientOptions, seed: u64) -> Self {
        let options = ClientOptions { window: options.window.max(Nanos::ms(1)), ..options };
        let start = (options.start.clamp(0.0, 1.0) * windows.len() as f64) as u64;
        let seed = Seed(seed);
        Self {
            gaps: Stream::new(seed.derive(GAPS)),
            lengths: LengthStream::new(options.lengths, seed),
            windows,
            now: Nanos::ZERO,
            window: start,
            until: options.window,
            options,
        }
    }

    /// The rate now, and the shape of gaps.
    fn current(&self) -> (f64, Gaps) {
        let count = self.windows.len().max(1) as u64;
        let window = self.windows.get((self.window % count) as usize);
        window.map_or((0.0, Gaps::Exponential), |window| (window.rate * self.options.rate_scale, window.gaps))
    }
}

impl Iterator for Client {
    type Item = ArrivalRecord;

    fn next(&mut self) -> Option<ArrivalRecord> {
        let (_, gaps) = self.current();
        let mut missing = gap(&mut self.gaps, gaps);
        // A whole round without requests: there are none.
        let mut silent = 0;
        while silent <= self.windows.len() && self.now < Nanos::MAX {
            let (rate, _) = self.current();
            let expected = rate * (self.until - self.now).as_secs_f64();
            if missing < expected {
                self.now = (self.now + Nanos::from_secs_f64(missing / rate)).min(self.until);
                let (prompt, output) = self.lengths.draw();
                return Some(ArrivalRecord { at: self.now, prompt, output, prefix: None });
            }
            silent = if expected > 0.0 { 0 } else { silent + 1 };
            missing -= expected;
            self.now = self.until;
            self.window += 1;
            self.until += self.options.window;
        }
        None
    }
}

/// A gap of mean 1.
fn gap(stream: &mut Stream, gaps: Gaps) -> f64 {
    match gaps {
        Gaps::Exponential => stream.exponential(),
        // E^(1/k) is Weibull of shape k and mean gamma(1 + 1/k).
        Gaps::Weibull(shape) => {
            let scale = libm::tgamma(1.0 + 1.0 / shape);
            libm::pow(stream.exponential(), 1.0 / shape) / scale
        }
        Gaps::Gamma(shape) => gamma(stream, shape) / shape,
    }
}

/// A Gamma variable of scale 1 (Marsaglia and Tsang, "A simple method for generating gamma variables",
/// 2000); shapes below 1 by its section 6.
fn gamma(stream: &mut Stream, shape: f64) -> f64 {
    if shape < 1.0 {
        let power = libm::pow(stream.unit(), 1.0 / shape);
        return gamma(stream, shape + 1.0) * power;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / libm::sqrt(9.0 * d);
    loop {
        let x = normal(stream);
        let v = (1.0 + c * x).max(0.0);
        let v = v * v * v;
        if v > 0.0 && libm::log(stream.unit()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
            return d * v;
        }
    }
}

/// A standard normal variable, by the method of Box and Muller.
fn normal(stream: &mut Stream) -> f64 {
    let radius = libm::sqrt(2.0 * stream.exponential());
    radius * libm::cos(std::f64::consts::TAU * stream.unit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::servegen::ClientWindow;

    fn moments(gaps: Gaps) -> (f64, f64) {
        let mut stream = Stream::new(Seed(4));
        let draws: Vec<f64> = (0..200_000).map(|_| gap(&mut stream, gaps)).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / draws.len() as f64;
        (mean, variance)
    }

    // A Gamma distribution of shape k and mean 1 has variance 1/k; a Weibull distribution of shape 1/2 and
    // mean 1 has variance gamma(5) / gamma(3)^2 - 1 = 5.
    #[test]
    fn gaps_have_mean_one_and_the_variance_of_their_shape() {
        for (gaps, variance, within) in [
            (Gaps::Exponential, 1.0, 0.03),
            (Gaps::Gamma(0.5), 2.0, 0.06),
            (Gaps::Gamma(4.0), 0.25, 0.01),
            (Gaps::Weibull(0.5), 5.0, 0.5),
        ] {
            let (mean, found) = moments(gaps);
            assert!((mean - 1.0).abs() < 0.02, "{gaps:?}: {mean}");
            assert!((found - variance).abs() < within, "{gaps:?}: {found}");
        }
    }

    #[test]
    fn a_window_has_its_rate_and_silence_is_silent() {
        let window = |rate| ClientWindow { rate, gaps: Gaps::Gamma(2.0) };
        let windows: ClientWindows = [window(10.0), window(0.0), window(40.0)].into();
        let options =
            ClientOptions { start: 0.0, window: Nanos::secs(100), rate_scale: 2.0, lengths: Preset::AzureConv };
        let client = Client::new(windows.clone(), options, 3);
        let mut counts = [0_u32; 6];
        for record in client.take_while(|record| record.at < Nanos::secs(600)) {
            counts[(record.at.get() / Nanos::secs(100).get()) as usize] += 1;
        }
        assert_eq!((counts[1], counts[4]), (0, 0));
        for (count, expected) in [(counts[0], 2000), (counts[2], 8000), (counts[3], 2000), (counts[5], 8000)] {
            assert!(count.abs_diff(expected) < expected / 20, "{counts:?}");
        }
        // Two thirds on, the third window is the first.
        let later = Client::new(windows, ClientOptions { start: 0.67, ..options }, 3);
        assert!(later.take_while(|record| record.at < Nanos::secs(100)).count() > 7000);
    }

    #[test]
    fn a_client_without_requests_ends() {
        let windows: ClientWindows = [ClientWindow { rate: 0.0, gaps: Gaps::Exponential }].into();
        let options = ClientOptions { start: 0.0, window: Nanos::ZERO, rate_scale: 1.0, lengths: Preset::AzureCode };
        assert_eq!(Client::new(windows, options, 0).next(), None);
        assert_eq!(Client::new([].into(), options, 0).next(), None);
    }
}
