//! Real against predicted.

use serde::Serialize;

use super::run::Load;
use super::{Outcome, Prediction, Run, RunRequest};
use crate::gmg::units::Nanos;
use crate::report::CoverageFigures;

/// What is compared of requests. Clocks start when the engine took a request in, on either side at its own time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Time to first token.
    Ttft,
    /// Time per output token after the first.
    Tpot,
    /// Time to the last token.
    E2e,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ttft, Self::Tpot, Self::E2e];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ttft => "TTFT",
            Self::Tpot => "TPOT",
            Self::E2e => "E2E",
        }
    }

    /// Of a request that was queued at `queued` and got `output` tokens; [`None`] for the pace of a single token.
    fn of(self, queued: Nanos, first: Nanos, last: Nanos, output: u32) -> Option<f64> {
        let span = |from: Nanos, to: Nanos| (to - from).as_secs_f64();
        match self {
            Self::Ttft => Some(span(queued, first)),
            Self::Tpot => (output > 1).then(|| span(first, last) / f64::from(output - 1)),
            Self::E2e => Some(span(queued, last)),
        }
    }
}

/// Statistics of a metric, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Statistics {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Statistics {
    /// The names of the fields, in order.
    pub const NAMES: [&'static str; 5] = ["mean", "p50", "p90", "p95", "p99"];

    /// Of `values`, in any order. Percentiles lie on a line between the two nearest ranks.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let Some(last) = values.len().checked_sub(1) else { return Self::default() };
        let at = |share: f64| {
            let rank = share * last as f64;
            let below = rank as usize;
            let above = (below + 1).min(last);
            values[below] + (values[above] - values[below]) * (rank - below as f64)
        };
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Self { mean, p50: at(0.5), p90: at(0.9), p95: at(0.95), p99: at(0.99) }
    }

    /// The fields, in the order of [`NAMES`](Self::NAMES).
    pub fn values(&self) -> [f64; 5] {
        [self.mean, self.p50, self.p90, self.p95, self.p99]
    }
}

/// One metric, real against predicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Which metric.
    pub metric: Metric,
    /// What was measured.
    pub real: Statistics,
    /// What is predicted.
    pub predicted: Statistics,
}

impl Compared {
    /// Predicted over real, less one, in percent, by field of [`Statistics`].
    pub fn errors(&self) -> [f64; 5] {
        let (real, predicted) = (self.real.values(), self.predicted.values());
        std::array::from_fn(|field| 100.0 * (predicted[field] / real[field] - 1.0))
    }
}

/// Mean absolute errors of the engine's state over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LoadError {
    /// Of the running requests.
    pub running: f64,
    /// Of the waiting requests.
    pub waiting: f64,
    /// Of the KV share, in percentage points; [`None`] if the run has none.
    pub kv: Option<f64>,
}

/// A run against its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The run's folder.
    pub run: String,
    /// The model.
    pub model: String,
    /// The device.
    pub device: String,
    /// By metric, in the order of [`Metric::ALL`].
    pub metrics: Vec<Compared>,
    /// The state over time.
    pub load: Option<LoadError>,
    /// The time of the last token: real, predicted, in seconds since the first arrival.
    pub end: [f64; 2],
    /// KV blocks: assumed, and derived by the engine's rules.
    pub kv_blocks: [Option<u32>; 2],
    /// Iterations.
    pub steps: u64,
    /// Iterations without prompts.
    pub decode_steps: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Tokens found in the prefix cache.
    pub reused_tokens: u64,
    /// How the predicted times are known.
    pub coverage: Option<CoverageFigures>,
    /// What was derived or left out.
    pub notes: Vec<String>,
}

/// Sets `prediction` beside what `run` measured.
pub fn compare(run: &Run, prediction: &Prediction) -> Comparison {
    let pairs = || run.requests.iter().zip(&prediction.outcomes);
    let metrics = Metric::ALL.map(|metric| {
        let real = |(request, _): (&RunRequest, &Outcome)| {
            metric.of(request.queued, request.first_token, request.last_token, request.output)
        };
        let predicted = |(request, outcome): (&RunRequest, &Outcome)| {
            metric.of(outcome.queued, outcome.first_token, outcome.last_token, request.output)
        };
        Compared {
            metric,
            real: Statistics::of(pairs().filter_map(real).collect()),
            predicted: Statistics::of(pairs().filter_map(predicted).collect()),
        }
    });
    let latest = |times: &mut dyn Iterator<Item = Nanos>| times.max().unwrap_or_default().as_secs_f64();
    Comparison {
        run: run.folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        model: run.model.clone(),
        device: run.device.clone().unwrap_or_default(),
        metrics: metrics.into(),
        load: load_error(&run.loads, &prediction.loads),
        end: [
            latest(&mut run.requests.iter().map(|request| request.last_token)),
            latest(&mut prediction.outcomes.iter().map(|outcome| outcome.last_token)),
        ],
        kv_blocks: [prediction.kv.as_ref().map(|kv| kv.blocks), prediction.kv.as_ref().and_then(|kv| kv.derived)],
        steps: prediction.steps,
        decode_steps: prediction.decode_steps,
        preemptions: prediction.preemptions,
        reused_tokens: prediction.reused_tokens,
        coverage: CoverageFigures::of(&prediction.coverage),
        notes: prediction.notes.clone(),
    }
}

/// Compares at the real instants; the predicted state is that of the last iteration formed before.
fn load_error(real: &[Load], predicted: &[Load]) -> Option<LoadError> {
    let at = |time: f64| {
        let after = predicted.partition_point(|load| load.at <= time);
        after.checked_sub(1).and_then(|before| predicted.get(before))
    };
    let pairs: Vec<_> = real.iter().filter_map(|real| Some((real, at(real.at)?))).collect();
    if pairs.is_empty() {
        return None;
    }
    let mean = |of: fn(&Load) -> f64| {
        pairs.iter().map(|(real, predicted)| (of(real) - of(predicted)).abs()).sum::<f64>() / pairs.len() as f64
    };
    let has_kv = real.iter().any(|load| load.kv > 0.0);
    Some(LoadError {
        running: mean(|load| load.running),
        waiting: mean(|load| load.waiting),
        kv: has_kv.then(|| mean(|load| load.kv)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: ranks 0 to 4; p90 is at rank 3.6.
    #[test]
    fn percentiles_lie_between_ranks() {
        let statistics = Statistics::of(vec![5.0, 1.0, 2.0, 4.0, 3.0]);
        assert_eq!((statistics.mean, statistics.p50), (3.0, 3.0));
        assert!((statistics.p90 - 4.6).abs() < 1e-12 && (statistics.p99 - 4.96).abs() < 1e-12);
        assert_eq!(Statistics::of(Vec::new()), Statistics::default());
    }

    #[test]
    fn the_state_is_compared_at_real_instants() {
        let load = |at, running| Load { at, running, waiting: 0.0, kv: 0.0 };
        let real = [load(0.5, 1.0), load(1.0, 4.0), load(2.0, 4.0)];
        let predicted = [load(0.9, 2.0), load(1.5, 4.0)];
        let error = load_error(&real, &predicted).unwrap();
        assert_eq!((error.running, error.kv), (1.0, None), "nothing is predicted before 0.9");
    }
}
