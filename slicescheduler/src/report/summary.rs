//! The figures of a replay, as they are written to `summary.json`.

use serde::{Deserialize, Serialize};

use slicescheduler_gmg::units::Nanos;
use slicescheduler_simulator::cost::Coverage;

use crate::learned::Predictions;

/// All policies of one replay.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Summary {
    /// Version of this form.
    pub schema: u32,
    /// True if real kernels ran; false if the world was simulated.
    pub measured: bool,
    /// What was replayed.
    pub scenario: String,
    /// Seed of everything random.
    pub seed: u64,
    /// The measuring window, in seconds.
    pub duration_s: f64,
    /// Factor on the arrival rates.
    pub rate_scale: f64,
    /// How many times the arithmetic of one core two cores did just before the runs, where lanes of this machine
    /// ran. Below [`USEFUL_SCALING`] ratios between policies mean nothing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub core_scaling: Option<f64>,
    /// One entry per policy, in the order in which they ran.
    pub policies: Vec<PolicySummary>,
}

/// What one policy reached. Rates are per second of the measuring window and count requests that
/// completed inside it.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct PolicySummary {
    /// The policy.
    pub name: String,
    /// Input and output tokens per second. Input that came from a prefix cache does not count, here and below.
    pub token_throughput: f64,
    /// Input tokens per second.
    pub input_token_throughput: f64,
    /// Output tokens per second.
    pub output_token_throughput: f64,
    /// Arithmetic of the completed requests, in TFLOP per second.
    pub flop_weighted_throughput: f64,
    /// Input and output tokens per second of requests that kept their service level; best-effort
    /// requests always do.
    pub goodput: f64,
    /// Share of violating requests of the worst latency-sensitive tenant.
    pub sla_violation_rate: f64,
    /// Every tenant.
    pub tenants: Vec<TenantSummary>,
    /// Reservations that failed because of guests' bytes, and owners preempted or delayed by them.
    pub memory_violations: u64,
    /// Share of device time in which something ran.
    pub busy_share: f64,
    /// Share of the device time that owners left idle in which guests ran.
    pub idle_slice_recovery: f64,
    /// The most bytes in use on any device, in GiB.
    pub peak_memory_gib: f64,
    /// The most bytes that were forecast for any device before each action, in GiB, for worlds that run in real time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub forecast_peak_memory_gib: Option<f64>,
    /// Jobs that were cut at an operator boundary.
    pub recalls: u64,
    /// Decisions taken.
    pub decisions: u64,
    /// Time of a decision, in microseconds. Measured, whatever the world is.
    pub decision_us: DecisionFigures,
    /// What-if questions asked.
    pub what_ifs: u64,
    /// Operators that forecasts covered per millisecond spent forecasting; an undisturbed iteration
    /// counts with all its operators. Measured.
    pub sim_ops_per_ms: f64,
    /// Lane entries that forecasts simulated per millisecond; an undisturbed iteration counts once.
    /// Measured.
    pub sim_entries_per_ms: f64,
    /// Wall-clock seconds that the replay of this policy took. Measured.
    pub wall_s: f64,
    /// Requests that were answered under every policy, for worlds that compute real tokens.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub answers_compared: Option<u64>,
    /// A hash of the output tokens of these requests. Equal hashes mean equal answers.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tokens_hash: Option<String>,
    /// How true forecasts of times were, for worlds that run in real time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub predictions: Option<PredictionFigures>,
    /// Of the time that forecasts gave the iterations that ran: how their cost model knows it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub forecast_coverage: Option<CoverageFigures>,
}

/// What two cores must do at least, times the work of one, for ratios between policies on lanes to mean something.
pub const USEFUL_SCALING: f64 = 1.7;

/// Predicted times of stretches of operators beside measured ones; see [`Predictions`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct PredictionFigures {
    /// Stretches that had been predicted when they were launched.
    pub stretches: u64,
    /// By what share the sum of the predicted times is above that of the measured ones.
    pub makespan_error: f64,
    /// The differences, without their signs, as a share of the measured sum.
    pub mean_error: f64,
    /// Spearman's, between predicted and measured times.
    pub rank_correlation: Option<f64>,
}

impl PredictionFigures {
    /// The figures of `predictions`; none if nothing was predicted.
    pub fn of(predictions: &Predictions) -> Option<Self> {
        Some(Self {
            stretches: predictions.stretches,
            makespan_error: predictions.makespan_error()?,
            mean_error: predictions.mean_error()?,
            rank_correlation: predictions.rank_correlation,
        })
    }
}

/// How a cost model knows the times that it gave; see [`Coverage`]. Shares of these times, one in sum.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct CoverageFigures {
    /// At samples.
    pub measured: f64,
    /// Between samples.
    pub interpolated: f64,
    /// Beyond samples.
    pub extrapolated: f64,
    /// The farthest extrapolation, in percent of the nearest sample.
    pub farthest_percent: u32,
    /// From a formula, without samples.
    pub modelled: f64,
}

impl CoverageFigures {
    /// The figures of `coverage`; none if nothing was estimated.
    pub fn of(coverage: &Coverage) -> Option<Self> {
        let total = coverage.total();
        let share = |part: Nanos| part.as_secs_f64() / total.as_secs_f64();
        (!total.is_zero()).then(|| Self {
            measured: share(coverage.measured),
            interpolated: share(coverage.interpolated),
            extrapolated: share(coverage.extrapolated),
            farthest_percent: coverage.farthest_percent,
            modelled: share(coverage.modelled),
        })
    }
}

/// Quantiles of the time of a decision, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct DecisionFigures {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Mean.
    pub mean: f64,
}

/// Quantiles of a latency, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct LatencyFigures {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// One tenant under one policy.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct TenantSummary {
    /// Its name.
    pub name: String,
    /// `latency-sensitive` or `best-effort`.
    pub class: String,
    /// Share of its requests that violated the service level; zero for best-effort tenants.
    pub sla_violation_rate: f64,
    /// Time to first token, over the requests that completed.
    pub ttft_ms: LatencyFigures,
    /// Mean time per output token after the first, per request that completed.
    pub tpot_ms: LatencyFigures,
    /// Input and output tokens per second.
    pub token_throughput: f64,
    /// Requests that arrived in the window.
    pub arrived: u64,
    /// Requests that completed in the window.
    pub completed: u64,
    /// Times that a request lost its KV cache and was recomputed.
    pub preemptions: u64,
    /// What its prefix cache did, if it has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prefix_cache: Option<PrefixFigures>,
}

/// What the prefix cache of a tenant did. Tokens that came from it are in no other figure: they were not computed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct PrefixFigures {
    /// Tokens of prompts per second that were there already, of requests that completed in the window.
    pub token_throughput: f64,
    /// The same as a share of all tokens of these prompts.
    pub hit_rate: f64,
    /// Blocks of it that other tenants took, in the whole run.
    pub displaced_blocks: u64,
}
