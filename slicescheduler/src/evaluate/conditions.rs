//! What an experiment changes: in the scenario, in the world, in forecasts, in what a policy may do.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use slicescheduler_gmg::id::DeviceId;
use slicescheduler_gmg::units::{Bandwidth, Nanos};
use slicescheduler_scheduler::policy::Policy;

use crate::evaluate::handicap::{Ability, Handicapped};
use crate::evaluate::skewed::Skewed;
use crate::evaluate::whole_requests::WholeRequests;
use crate::replay::{ForecastOptions, ReplayOptions, Slowdown};
use crate::scenario::{Class, LendingMode, OptionValue, Scenario, Workload};
use crate::workload::{Drift, Shift};

/// Changes to a scenario and to the way it is replayed. What is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Conditions {
    /// What this way to run is called, unique in its experiment; empty where nothing is changed.
    pub name: String,
    /// How every tenant lends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lending: Option<Lending>,
    /// Every request of a latency-sensitive tenant is due in so many times what it takes alone; see
    /// [`Alone`](crate::alone::Alone).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative_slo: Option<f64>,
    /// Time to first token of every latency-sensitive tenant that has one for all requests, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<u64>,
    /// Time per output token of every latency-sensitive tenant that has one for all requests, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpot_ms: Option<u64>,
    /// Prompts of latency-sensitive tenants whose traces say what they begin with share KV blocks.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prefix_caching: bool,
    /// Every trace starts at its beginning and tenants with one generator have one seed, so that
    /// bursts come together.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unshifted: bool,
    /// Lengths of all requests that arrive, of every class, change from the first to the last. A backlog, whose requests
    /// have no times, keeps its own: otherwise every policy would be given others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drifting>,
    /// The share of device memory that may be planned with, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usable_percent: Option<u32>,
    /// Bandwidth between devices of a machine, in GB/s; 0 leaves none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_gb_per_s: Option<u64>,
    /// Bandwidth between a device and its machine, in GB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_gb_per_s: Option<u64>,
    /// Standard deviation of the world's noise per operator, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_noise_percent: Option<u32>,
    /// Standard deviation of the world's noise per iteration, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iteration_noise_percent: Option<u32>,
    /// Operators that start within this time after a recall still run, in microseconds. Longer than an
    /// iteration, it makes iterations indivisible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launched_window_us: Option<u64>,
    /// Guests keep a device until the requests that they have running there have ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whole_requests: bool,
    /// Forecast durations, in percent of what they would be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast_percent: Option<u32>,
    /// Greatest error of a forecast duration to either side, in percent, by operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast_error_percent: Option<u32>,
    /// How far forecasts reach, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon_ms: Option<u64>,
    /// Each forecast simulates the whole cluster; answers stay the same.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whole_cluster: bool,
    /// The policy is told of arrivals and timers only so often, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told_every_ms: Option<u64>,
    /// Actions that are kept from the policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<Ability>,
    /// Devices that run slower for a while.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<Slow>,
    /// Options of the policy.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, OptionValue>,
}

/// How tenants lend; see [`LendingMode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lending {
    /// Guests run only while the owner has nothing to run.
    Strict,
    /// Guests may use the slack of the owner's service level.
    SloSlack,
}

impl From<Lending> for LendingMode {
    fn from(lending: Lending) -> Self {
        match lending {
            Lending::Strict => Self::Strict,
            Lending::SloSlack => Self::SloSlack,
        }
    }
}

/// Lengths that change in the course of a run; see [`Drift`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Drifting {
    /// What prompt lengths are multiplied by in the end.
    pub prompts: f64,
    /// What output lengths are multiplied by in the end.
    pub answers: f64,
}

impl Default for Drifting {
    /// Changes nothing.
    fn default() -> Self {
        Self { prompts: 1.0, answers: 1.0 }
    }
}

impl From<Drifting> for Drift {
    fn from(Drifting { prompts, answers }: Drifting) -> Self {
        Self { prompts, answers, from: Nanos::ZERO, until: None }
    }
}

/// A device that runs slower for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// Its number.
    pub device: u32,
    /// Its speed, in percent.
    pub percent: u32,
    /// From when on, in seconds.
    pub from_s: u64,
    /// Until when, in seconds.
    pub until_s: u64,
}

/// The percentages that a speed, a share or an error may have.
const PERCENT: std::ops::RangeInclusive<u32> = 1..=100;

/// The factors that a condition may state, those of scenarios.
const FACTORS: std::ops::RangeInclusive<f64> = 1e-4..=1e4;

/// The longest time that a condition may state, in milliseconds: an hour.
const LONGEST_MS: u64 = 3_600_000;

impl Conditions {
    /// What no scenario could be run under, in words; [`None`] if there is nothing.
    pub(super) fn objection(&self) -> Option<&'static str> {
        let percent = |value: Option<u32>, most: u32| value.is_none_or(|value| value <= most);
        let ms = |value: Option<u64>| value.is_none_or(|value| (1..=LONGEST_MS).contains(&value));
        if self.drift.is_some_and(|drift| ![drift.prompts, drift.answers].iter().all(|factor| FACTORS.contains(factor)))
        {
            return Some("drift has numbers from 0.0001 to 10000");
        }
        if self.usable_percent.is_some_and(|usable| !PERCENT.contains(&usable)) {
            return Some("usable_percent is from 1 to 100");
        }
        if !percent(self.operator_noise_percent, 100) || !percent(self.iteration_noise_percent, 100) {
            return Some("noise is from 0 to 100 percent");
        }
        if self.forecast_percent.is_some_and(|value| !(1..=10_000).contains(&value)) {
            return Some("forecast_percent is from 1 to 10000");
        }
        if !percent(self.forecast_error_percent, 99) {
            return Some("forecast_error_percent is from 0 to 99");
        }
        if ![self.ttft_ms, self.tpot_ms, self.horizon_ms, self.told_every_ms].into_iter().all(ms) {
            return Some("times are from 1 ms to one hour");
        }
        if self.relative_slo.is_some_and(|times| !FACTORS.contains(&times)) {
            return Some("relative_slo is a number from 0.0001 to 10000");
        }
        if self.relative_slo.is_some() && self.ttft_ms.or(self.tpot_ms).is_some() {
            return Some("relative_slo is in place of ttft_ms and tpot_ms");
        }
        if self.launched_window_us.is_some_and(|window| window > LONGEST_MS * 1000) {
            return Some("launched_window_us is at most one hour");
        }
        if self.pcie_gb_per_s == Some(0) || self.pcie_gb_per_s.max(self.nvlink_gb_per_s) > Some(1_000_000) {
            return Some("bandwidths are at most 1000000 GB/s, that of pcie above 0");
        }
        if self.slow.iter().any(|slow| !PERCENT.contains(&slow.percent) || slow.from_s >= slow.until_s) {
            return Some("a slow device has a speed from 1 to 100 percent, and from_s before until_s");
        }
        None
    }

    /// What `scenario` could not be run under, in words; [`None`] if there is nothing.
    pub(super) fn objection_of(&self, scenario: &Scenario) -> Option<String> {
        let devices = scenario.cluster.devices().count();
        let unknown = self.slow.iter().find(|slow| slow.device as usize >= devices)?;
        Some(format!("slow has device {}: expected device numbers from 0 to {}", unknown.device, devices - 1))
    }

    /// Changes `scenario`.
    pub(super) fn change(&self, scenario: &mut Scenario) {
        for (index, tenant) in scenario.tenants.iter_mut().enumerate() {
            if let Some(lending) = self.lending {
                tenant.lending = lending.into();
            }
            if self.relative_slo.is_some() && tenant.class == Class::LatencySensitive {
                (tenant.slo, tenant.relative_slo) = (None, self.relative_slo);
            }
            if self.prefix_caching && tenant.class == Class::LatencySensitive {
                tenant.prefix_caching = tenant.container.layout.ranks() <= 1;
            }
            if let Some(slo) = tenant.slo.as_mut().filter(|_| tenant.class == Class::LatencySensitive) {
                slo.ttft = self.ttft_ms.map_or(slo.ttft, Nanos::ms);
                slo.tpot = self.tpot_ms.map_or(slo.tpot, Nanos::ms);
            }
            if let Some(drift) = self.drift.filter(|_| !matches!(tenant.workload, Workload::Backlog { .. })) {
                tenant.workload.lengths_mut().drift = Some(drift.into());
            }
            match &mut tenant.workload {
                Workload::Trace { shift, .. } | Workload::Client { shift, .. } if self.unshifted => {
                    *shift = Shift::NONE
                }
                Workload::Generated { seed, .. } if self.unshifted => *seed = Some(0),
                Workload::Generated { seed, .. } => *seed = seed.or(Some(index as u64)),
                _ => {}
            }
        }
        if let Some(percent) = self.usable_percent {
            scenario.cluster.usable = f64::from(percent) / 100.0;
        }
        for node in &mut scenario.cluster.nodes {
            node.nvlink.bandwidth = self.nvlink_gb_per_s.map(Bandwidth::gb_per_s).or(node.nvlink.bandwidth);
            node.pcie.bandwidth = self.pcie_gb_per_s.map(Bandwidth::gb_per_s).or(node.pcie.bandwidth);
        }
    }

    /// How the scenario is replayed.
    pub(super) fn replay_options(&self) -> ReplayOptions {
        let mut options = ReplayOptions::default();
        let world = &mut options.world;
        world.operator_noise = self.operator_noise_percent.unwrap_or(world.operator_noise);
        world.iteration_noise = self.iteration_noise_percent.unwrap_or(world.iteration_noise);
        world.launched_window = self.launched_window_us.map_or(world.launched_window, Nanos::us);
        let ForecastOptions { cost, horizon, whole_cluster } = &mut options.forecast;
        *horizon = self.horizon_ms.map_or(*horizon, Nanos::ms);
        *whole_cluster = self.whole_cluster;
        if self.forecast_percent.is_some() || self.forecast_error_percent.is_some() {
            let bias = f64::from(self.forecast_percent.unwrap_or(100)) / 100.0;
            let error = f64::from(self.forecast_error_percent.unwrap_or(0)) / 100.0;
            *cost = Arc::new(Skewed::new(cost.clone(), bias, error));
        }
        options.slowdowns.extend(self.slow.iter().map(|slow| Slowdown {
            device: DeviceId(slow.device),
            from: Nanos::secs(slow.from_s),
            until: Nanos::secs(slow.until_s),
            percent: slow.percent,
        }));
        options
    }

    /// `policy` with what these conditions keep from it.
    pub(super) fn handicap(&self, policy: Box<dyn Policy>) -> Box<dyn Policy> {
        let policy: Box<dyn Policy> = if self.whole_requests { Box::new(WholeRequests::new(policy)) } else { policy };
        if self.without.is_empty() && self.told_every_ms.is_none() {
            return policy;
        }
        let every = self.told_every_ms.map(Nanos::ms);
        Box::new(Handicapped::new(policy, self.without.clone(), every))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(text: &str) -> Conditions {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn unshifted_traces_and_generators_come_together() {
        let mut scenario = Scenario::embedded().unwrap();
        conditions("unshifted = true").change(&mut scenario);
        let first = |tenant: usize| match scenario.requests(tenant).unwrap().unwrap() {
            crate::scenario::Source::Arrivals(mut arrivals) => arrivals.next().unwrap().unwrap().at,
            crate::scenario::Source::Backlog { .. } => Nanos::ZERO,
        };
        assert_eq!(first(0), first(1));
        let mut scenario = Scenario::embedded().unwrap();
        conditions("").change(&mut scenario);
        assert_eq!(
            scenario.requests(0).unwrap().is_some(),
            Scenario::embedded().unwrap().requests(0).unwrap().is_some()
        );
    }

    #[test]
    fn lengths_drift_wherever_requests_arrive() {
        let mut scenario = Scenario::embedded().unwrap();
        conditions("drift = { answers = 3.0 }").change(&mut scenario);
        let drift = Drift { prompts: 1.0, answers: 3.0, from: Nanos::ZERO, until: None };
        for tenant in &mut scenario.tenants {
            let backlog = matches!(tenant.workload, Workload::Backlog { .. });
            assert_eq!(tenant.workload.lengths_mut().drift, (!backlog).then_some(drift), "{}", tenant.name);
        }
    }

    #[test]
    fn levels_relative_to_each_request_are_in_place_of_those_of_tenants() {
        let mut scenario = Scenario::embedded().unwrap();
        conditions("relative_slo = 2").change(&mut scenario);
        for tenant in &scenario.tenants {
            let relative = (tenant.class == Class::LatencySensitive).then_some(2.0);
            assert_eq!((tenant.slo, tenant.relative_slo), (None, relative), "{}", tenant.name);
        }
    }

    #[test]
    fn impossible_conditions_are_objected_to() {
        for text in [
            "usable_percent = 0",
            "operator_noise_percent = 101",
            "forecast_percent = 0",
            "ttft_ms = 0",
            "relative_slo = 0",
            "relative_slo = nan",
            "relative_slo = 2\nttft_ms = 100",
            "relative_slo = 2\ntpot_ms = 10",
            "drift = { answers = 0 }",
            "drift = { prompts = inf }",
            "drift = { prompts = nan }",
            "pcie_gb_per_s = 0",
            "slow = [{ device = 0, percent = 50, from_s = 2, until_s = 2 }]",
        ] {
            assert!(conditions(text).objection().is_some(), "{text}");
        }
        assert_eq!(conditions("nvlink_gb_per_s = 0\nlending = \"strict\"").objection(), None);
    }

    #[test]
    fn a_slow_device_is_one_of_the_cluster() {
        let scenario = Scenario::embedded().unwrap();
        let slow = |device: u32| {
            let text = format!("slow = [{{ device = {device}, percent = 50, from_s = 0, until_s = 2 }}]");
            conditions(&text).objection_of(&scenario)
        };
        assert_eq!(slow(7), None);
        assert_eq!(slow(8).unwrap(), "slow has device 8: expected device numbers from 0 to 7");
        assert!(slow(u32::MAX).is_some());
    }
}
