//! What a caller changes in a scenario after reading it.

use std::collections::BTreeMap;

use slicescheduler_gmg::units::Nanos;

use super::{POLICIES, PolicySpec, Scenario, ScenarioError, Workload, text};

/// The least and the greatest rate scale.
const RATE_SCALES: std::ops::RangeInclusive<f64> = 1e-4..=1e4;

impl Scenario {
    /// Multiplies the arrival rate of every tenant that has one.
    ///
    /// A scenario with a trace also gets shorter by the factor (duration, warm-up and times of drifts), so that it
    /// replays the same requests at every rate; without a trace the duration stays.
    ///
    /// # Errors
    /// [`ScenarioError::Setting`] for a factor that is not from 0.0001 to 10000.
    pub fn scale_rate(&mut self, factor: f64) -> Result<(), ScenarioError> {
        if !RATE_SCALES.contains(&factor) {
            return Err(setting("rate scale", factor, "a number from 0.0001 to 10000"));
        }
        self.rate_scale *= factor;
        if self.tenants.iter().any(|tenant| matches!(tenant.workload, Workload::Trace { .. } | Workload::Client { .. }))
        {
            let shorten = |time: &mut Nanos| *time = Nanos::from_secs_f64(time.as_secs_f64() / factor);
            shorten(&mut self.duration);
            shorten(&mut self.warm_up);
            for drift in self.tenants.iter_mut().filter_map(|tenant| tenant.workload.lengths_mut().drift.as_mut()) {
                shorten(&mut drift.from);
                drift.until.iter_mut().for_each(shorten);
            }
        }
        Ok(())
    }

    /// Sets the duration, written as in a scenario file: `30m`.
    ///
    /// # Errors
    /// [`ScenarioError::Setting`] for anything that is no time, and for one that the warm-up does
    /// not fit in.
    pub fn set_duration(&mut self, duration: &str) -> Result<(), ScenarioError> {
        let time = text::time(duration).ok_or_else(|| setting("duration", format!("{duration:?}"), text::TIME))?;
        if time <= self.warm_up {
            return Err(setting("duration", time, format!("more than the warm-up ({})", self.warm_up)));
        }
        self.duration = time;
        Ok(())
    }

    /// Sets the warm-up, written as in a scenario file: `20s`.
    ///
    /// # Errors
    /// [`ScenarioError::Setting`] for anything that is no time, and for one as long as the duration.
    pub fn set_warm_up(&mut self, warm_up: &str) -> Result<(), ScenarioError> {
        let time = text::time(warm_up).ok_or_else(|| setting("warm-up", format!("{warm_up:?}"), text::TIME))?;
        if time >= self.duration {
            return Err(setting("warm-up", time, format!("less than the duration ({})", self.duration)));
        }
        self.warm_up = time;
        Ok(())
    }

    /// Sets the policies, by their names. Those that the scenario lists keep their options.
    ///
    /// # Errors
    /// [`ScenarioError::Setting`] for a name that is not in [`POLICIES`] or is there twice, and for
    /// no names.
    pub fn set_policies<'n>(&mut self, names: impl IntoIterator<Item = &'n str>) -> Result<(), ScenarioError> {
        let mut policies: Vec<PolicySpec> = Vec::new();
        for name in names {
            if !POLICIES.contains(&name) {
                return Err(setting("policy", format!("{name:?}"), format!("one of {}", POLICIES.join(", "))));
            }
            if policies.iter().any(|policy| policy.name == name) {
                return Err(setting("policy", format!("{name:?}"), "each policy once"));
            }
            let listed = self.policies.iter().find(|policy| policy.name == name);
            let options = listed.map_or_else(BTreeMap::new, |policy| policy.options.clone());
            policies.push(PolicySpec { name: name.into(), options });
        }
        if policies.is_empty() {
            return Err(setting("policy", "empty", format!("some of {}", POLICIES.join(", "))));
        }
        self.policies = policies;
        Ok(())
    }
}

fn setting(name: &'static str, value: impl ToString, expected: impl Into<String>) -> ScenarioError {
    ScenarioError::Setting { name, value: value.to_string(), expected: expected.into() }
}
