//! What decisions and forecasts cost, in real time.

use std::sync::Arc;

use slicescheduler_gmg::id::{DeviceId, TenantId, Version};
use slicescheduler_gmg::plan::{Action, Clock, Forecast, Question, WhatIf, WhatIfError};
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_gmg::{Applied, View};

/// Buckets per power of two: quantiles are within 1/16 of the true value.
const STEPS: u32 = 16;

/// A histogram of the times of decisions, in constant memory.
#[derive(Clone, Debug, Default)]
pub struct DecisionTimes {
    buckets: Vec<u64>,
    measured: u64,
    total: Nanos,
    decisions: u64,
}

impl DecisionTimes {
    pub(crate) fn record(&mut self, time: Nanos) {
        let bucket = bucket(time.get());
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.measured += 1;
        self.total += time;
        self.decisions += 1;
    }

    pub(crate) fn count(&mut self) {
        self.decisions += 1;
    }

    /// Decisions, measured or not.
    pub fn decisions(&self) -> u64 {
        self.decisions
    }

    /// Mean time; zero if none was measured.
    pub fn mean(&self) -> Nanos {
        self.total.scale(1, self.measured.max(1))
    }

    /// The time that a share `quantile` (0 to 1) of the decisions did not exceed.
    pub fn quantile(&self, quantile: f64) -> Nanos {
        let rank = (quantile.clamp(0.0, 1.0) * self.measured as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, &count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Nanos(upper_bound(bucket));
            }
        }
        Nanos::ZERO
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < u64::from(STEPS) {
        return nanos as usize;
    }
    let octave = nanos.ilog2() - STEPS.ilog2();
    (octave * STEPS) as usize + (nanos >> octave) as usize
}

fn upper_bound(bucket: usize) -> u64 {
    let steps = STEPS as usize;
    if bucket < steps {
        return bucket as u64;
    }
    let octave = bucket / steps - 1;
    ((bucket - octave * steps + 1) as u64) << octave
}

/// Counts what a forecaster does, and passes everything on.
pub struct MeasuredWhatIf {
    inner: Box<dyn WhatIf + Send>,
    stopwatch: Option<Arc<dyn Clock>>,
    questions: u64,
    operators: u64,
    entries: u64,
    time: Nanos,
    /// By device: the most bytes that were forecast of what was then done.
    peaks: Vec<Bytes>,
    /// Room for answers.
    answer: Forecast,
}

impl MeasuredWhatIf {
    pub(crate) fn new(inner: Box<dyn WhatIf + Send>, stopwatch: Option<Arc<dyn Clock>>) -> Self {
        let (questions, operators, entries, time) = (0, 0, 0, Nanos::ZERO);
        let (peaks, answer) = (Vec::new(), Forecast::default());
        Self { inner, stopwatch, questions, operators, entries, time, peaks, answer }
    }

    /// Questions asked.
    pub fn questions(&self) -> u64 {
        self.questions
    }

    /// Operators that the answers covered; an undisturbed iteration counts with all of its own.
    pub fn operators(&self) -> u64 {
        self.operators
    }

    /// Lane entries that the answers covered; an undisturbed iteration counts once.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The most bytes in use on a device at one time, as forecast before each action that was carried out; none if that
    /// was not [asked for](crate::driver::DriverOptions::forecasts_memory).
    pub fn peak(&self, device: DeviceId) -> Option<Bytes> {
        self.peaks.get(device.index()).copied()
    }

    /// Forecasts what memory devices will use with `actions`. Not one of the questions that are counted. Of actions that
    /// make no future nothing is forecast: the graph will refuse them too.
    pub(crate) fn forecast_memory(&mut self, now: Nanos, actions: &[Action]) {
        let question = Question { actions, continuations: &mut [], horizon: Nanos::MAX };
        if self.inner.what_if(now, question, &mut self.answer).is_err() {
            return;
        }
        for forecast in &self.answer.memory {
            let device = forecast.device.index();
            if self.peaks.len() <= device {
                self.peaks.resize(device + 1, Bytes::ZERO);
            }
            self.peaks[device] = self.peaks[device].max(forecast.peak);
        }
    }

    /// Time spent on answers, if it was measured.
    pub fn time(&self) -> Nanos {
        self.time
    }
}

impl WhatIf for MeasuredWhatIf {
    fn version(&self) -> Version {
        self.inner.version()
    }

    fn observe(&mut self, applied: &Applied, view: View<'_>) -> Result<(), WhatIfError> {
        self.inner.observe(applied, view)
    }

    fn what_if(&mut self, now: Nanos, question: Question<'_>, answer: &mut Forecast) -> Result<(), WhatIfError> {
        let begun = self.stopwatch.as_ref().map(|stopwatch| stopwatch.now());
        let outcome = self.inner.what_if(now, question, answer);
        if let (Some(begun), Some(stopwatch)) = (begun, &self.stopwatch) {
            self.time += stopwatch.now() - begun;
        }
        self.questions += 1;
        self.operators += answer.operators;
        self.entries += answer.runs.len() as u64;
        outcome
    }

    fn output_bound(&self, tenant: TenantId, produced: u32, alpha_percent: u32) -> Option<u32> {
        self.inner.output_bound(tenant, produced, alpha_percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_the_bucket_that_bounds_it() {
        for nanos in (0..2000).chain([u64::from(u32::MAX), 1 << 40]) {
            let bucket = bucket(nanos);
            assert!(upper_bound(bucket) >= nanos, "{nanos}");
            assert!(bucket == 0 || upper_bound(bucket - 1) <= nanos, "{nanos}");
            assert!(upper_bound(bucket) - nanos <= nanos / 16 + 1, "{nanos}");
        }
    }

    #[test]
    fn quantiles_are_of_what_was_recorded() {
        let mut times = DecisionTimes::default();
        (1..=1000).for_each(|nanos| times.record(Nanos(nanos * 100)));
        let near = |value: Nanos, expected: f64| (value.get() as f64 / expected - 1.0).abs() < 0.07;
        assert!(near(times.quantile(0.5), 50_000.0) && near(times.quantile(0.99), 99_000.0));
        assert_eq!((times.mean(), times.decisions()), (Nanos(50_050), 1000));
    }
}
