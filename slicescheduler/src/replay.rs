//! Traces in, figures out: the same driver over a simulated or the real world.

mod cpu;
mod recorder;
mod run;
mod scaling;
mod slices;

use std::sync::Arc;

use slicescheduler_executor::ExecutorError;
use slicescheduler_gmg::id::DeviceId;
use slicescheduler_gmg::plan::Clock;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_scheduler::baseline::SettingError;
use slicescheduler_scheduler::policy::Policy;
use slicescheduler_scheduler::{SliceFill, SliceFillOptions, baseline};
use slicescheduler_simulator::cost::{CostModel, Roofline};
use slicescheduler_simulator::world::WorldOptions;

use crate::driver::DriverError;
use crate::report::{RunRecord, Summary};
use crate::scenario::{OptionValue, PolicySpec, Scenario};
use crate::setup::SetupError;
use crate::workload::WorkloadError;

pub use cpu::replay_on_cpu;
pub use recorder::Recorder;
pub(crate) use recorder::violates;
pub use run::{ReplayWorld, Run, run_policy, simulate};
pub use scaling::core_scaling;

/// Why a replay stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The scenario cannot be set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A trace is damaged.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The loop cannot go on.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The lanes of this machine cannot be used.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// A slowdown is of a device that the cluster does not have.
    #[error("a slowdown is of device {device}: expected one of 0 to {last}")]
    NoSuchDevice {
        /// Its number.
        device: u32,
        /// The greatest that there is.
        last: u32,
    },
    /// No policy has this name.
    #[error("there is no policy {name:?}; known are {}", known.join(", "))]
    NoSuchPolicy {
        /// What was asked for.
        name: String,
        /// What there is.
        known: &'static [&'static str],
    },
    /// A baseline does not have this setting.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A policy does not have this option, or not with this value.
    #[error("policy {policy:?}: option {option} = {value}: {expected}")]
    PolicyOption {
        /// The policy.
        policy: String,
        /// The option.
        option: String,
        /// Its value.
        value: String,
        /// What would be right.
        expected: String,
    },
}

/// Told how far a replay is.
pub trait Progress {
    /// `policy` has come to `now` of `end`.
    fn advance(&mut self, policy: &str, now: Nanos, end: Nanos);
}

/// Progress that nobody looks at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn advance(&mut self, _policy: &str, _now: Nanos, _end: Nanos) {}
}

/// How to replay.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// How the simulated world behaves; its seed is taken from the scenario.
    pub world: WorldOptions,
    /// What policies ask.
    pub forecast: ForecastOptions,
    /// Devices that do not keep their speed.
    pub slowdowns: Vec<Slowdown>,
    /// Measures decisions; without it none is measured.
    pub stopwatch: Option<Arc<dyn Clock>>,
    /// How many requests that violated their service level each [`RunRecord`] explains.
    pub explain: usize,
}

/// The forecaster of a replay.
#[derive(Clone, Debug)]
pub struct ForecastOptions {
    /// How long operators are thought to take.
    pub cost: Arc<dyn CostModel>,
    /// How far forecasts reach.
    pub horizon: Nanos,
    /// Each forecast simulates the whole cluster instead of the devices that it is about; see
    /// [`Timeline::whole_cluster`](slicescheduler_simulator::timeline::Timeline::whole_cluster).
    pub whole_cluster: bool,
}

impl Default for ForecastOptions {
    /// A roofline, two seconds.
    fn default() -> Self {
        Self { cost: Arc::new(Roofline::default()), horizon: Nanos::secs(2), whole_cluster: false }
    }
}

/// A device that runs at a part of its speed for a while. Only the world knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowdown {
    /// Which.
    pub device: DeviceId,
    /// From when on.
    pub from: Nanos,
    /// Until when.
    pub until: Nanos,
    /// The speed meanwhile, in percent of its own.
    pub percent: u32,
}

/// Runs every policy of `scenario` on a simulated cluster, one after the other.
///
/// # Errors
/// If the scenario is impossible or a trace is damaged.
pub fn replay(
    scenario: &Scenario,
    name: &str,
    options: &ReplayOptions,
    progress: &mut dyn Progress,
) -> Result<(Summary, Vec<RunRecord>), ReplayError> {
    let mut runs = Vec::new();
    for spec in &scenario.policies {
        runs.push(simulate(scenario, policy(spec)?, options, progress)?);
    }
    Ok((summary(scenario, name, false, &runs), runs))
}

/// The figures of finished runs.
pub fn summary(scenario: &Scenario, name: &str, measured: bool, runs: &[RunRecord]) -> Summary {
    Summary {
        schema: 1,
        measured,
        scenario: name.to_owned(),
        seed: scenario.seed,
        duration_s: (scenario.duration - scenario.warm_up).as_secs_f64(),
        rate_scale: scenario.rate_scale,
        core_scaling: None,
        policies: runs.iter().map(|run| run.summary.clone()).collect(),
    }
}

/// The names of all policies, static containers first.
pub fn policy_names() -> &'static [&'static str] {
    &crate::scenario::POLICIES
}

/// Something that a policy can be tuned by.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The option.
    pub name: &'static str,
    /// The values worth trying.
    pub values: Vec<OptionValue>,
}

/// What a policy of this name can be tuned by. Nothing for [`SliceFill`], whose one setting serves every
/// workload.
pub fn parameters(policy: &str) -> Vec<Parameter> {
    let of_baseline = baseline::find(policy).map_or(&[][..], |baseline| baseline.parameters);
    let values = |grid: &[u64]| grid.iter().map(|&value| OptionValue::Integer(value as i64)).collect();
    of_baseline.iter().map(|parameter| Parameter { name: parameter.name, values: values(parameter.grid) }).collect()
}

/// The policy that a scenario names.
///
/// # Errors
/// If there is no such policy, or it has no such option.
pub fn policy(spec: &PolicySpec) -> Result<Box<dyn Policy>, ReplayError> {
    let refused = |option: &str, value: &OptionValue, expected: &str| ReplayError::PolicyOption {
        policy: spec.name.clone(),
        option: option.to_owned(),
        value: value.to_string(),
        expected: expected.to_owned(),
    };
    if spec.name == "slice-fill" {
        let mut options = SliceFillOptions::default();
        for (option, value) in &spec.options {
            slice_fill_option(&mut options, option, value).map_err(|expected| refused(option, value, expected))?;
        }
        return Ok(Box::new(SliceFill::new(options)));
    }
    let Some(baseline) = baseline::find(&spec.name) else {
        return Err(ReplayError::NoSuchPolicy { name: spec.name.clone(), known: &crate::scenario::POLICIES });
    };
    let mut settings = Vec::new();
    for (option, value) in &spec.options {
        let number = match *value {
            OptionValue::Integer(number) => u64::try_from(number).ok(),
            OptionValue::Bool(on) => Some(u64::from(on)),
            OptionValue::Float(_) | OptionValue::Text(_) => None,
        };
        settings.push((option.as_str(), number.ok_or_else(|| refused(option, value, "a whole number is expected"))?));
    }
    Ok(baseline.build(settings)?)
}

fn slice_fill_option(options: &mut SliceFillOptions, name: &str, value: &OptionValue) -> Result<(), &'static str> {
    use slicescheduler_gmg::tenant::LendingMode;
    let whole = |most: i64| match value {
        OptionValue::Integer(number) if (0..=most).contains(number) => Ok(*number as u64),
        _ => Err("a whole number is expected, percentages from 0 to 100"),
    };
    match name {
        "reserve_percent" => options.reserve_percent = whole(100)?,
        "overflow_margin_percent" => options.overflow_margin_percent = whole(100)?,
        "pace_percent" => options.pace_percent = whole(100)?,
        "small_prompts" => options.small_prompts = whole(i64::from(u32::MAX))? as u32,
        "prompt_wait_percent" => options.prompt_wait_percent = whole(100)?,
        "owner_rate_percent" => options.owner_rate_percent = whole(100)?,
        "min_slice_us" => options.min_slice = Nanos::us(whole(1_000_000)?),
        "guest_tokens" => options.guest_tokens = whole(i64::from(u32::MAX))?.max(1) as u32,
        "guest_blocks_percent" => options.guest_blocks_percent = whole(100)? as u32,
        "owner_cache_percent" => options.owner_cache_percent = whole(100)? as u32,
        "burst_ttfts" => options.burst_ttfts = whole(1_000_000)?,
        "borrow_burst_ms" => options.borrow_burst = Nanos::ms(whole(1_000_000_000)?),
        "guest_stay_ms" => options.guest_stay = Nanos::ms(whole(1_000_000_000)?),
        "borrow_percent" => options.borrow_percent = whole(100)?,
        "owner_blocks_percent" => options.owner_blocks_percent = whole(100)? as u32,
        "overflow" => match value {
            OptionValue::Bool(overflow) => options.overflow = *overflow,
            _ => return Err("true or false is expected"),
        },
        "lending" => match value {
            OptionValue::Text(mode) if mode == "strict" => options.lending = Some(LendingMode::Strict),
            OptionValue::Text(mode) if mode == "slo_slack" => options.lending = Some(LendingMode::SloSlack),
            _ => return Err("\"strict\" or \"slo_slack\" is expected"),
        },
        _ => {
            return Err(
                "known are reserve_percent, overflow_margin_percent, pace_percent, small_prompts, prompt_wait_percent, \
                        min_slice_us, guest_tokens, owner_blocks_percent, owner_rate_percent, guest_blocks_percent, overflow, burst_ttfts, borrow_burst_ms, borrow_percent, guest_stay_ms, lending",
            );
        }
    }
    Ok(())
}
