//! The figures of a replay, as they are written to `summary.json`.

use serde::{Deserialize, Serialize};

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
    /// One entry per policy, in the order in which they ran.
    pub policies: Vec<PolicySummary>,
}

/// What one policy reached. Rates are per second of the measuring window and count requests that
/// completed inside it.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct PolicySummary {
    /// The policy.
    pub name: String,
    /// Input and output tokens per second.
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
}
