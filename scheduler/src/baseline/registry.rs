//! Baselines by name, with what can be tuned about them.

use std::fmt;

use smallvec::SmallVec;

use crate::policy::Policy;

/// Something that a tuner may set: a whole number, in the unit that its name ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, as in a scenario file.
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    /// Its value where nobody sets it.
    pub default: u64,
    /// The least value.
    pub least: u64,
    /// The greatest value.
    pub most: u64,
    /// Values worth trying, ascending; the default is among them.
    pub grid: &'static [u64],
}

/// Values for the parameters of one baseline.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    set: SmallVec<[(&'static str, u64); 4]>,
}

impl Settings {
    /// The value of a parameter: what was set, or its default.
    pub fn get(&self, parameter: &Parameter) -> u64 {
        let found = self.set.iter().find(|(name, _)| *name == parameter.name);
        found.map_or(parameter.default, |&(_, value)| value)
    }

    /// As [`get`](Self::get), as far as 32 bits hold it.
    pub(super) fn get_u32(&self, parameter: &Parameter) -> u32 {
        u32::try_from(self.get(parameter)).unwrap_or(u32::MAX)
    }

    /// As [`get`](Self::get), for switches.
    pub(super) fn is_on(&self, parameter: &Parameter) -> bool {
        self.get(parameter) > 0
    }
}

/// A baseline that can be built by its name.
#[derive(Clone, Copy)]
pub struct Baseline {
    /// Its name in kebab case, stable.
    pub name: &'static str,
    /// Its rule, in a line.
    pub rule: &'static str,
    /// Where the rule was published.
    pub source: &'static str,
    /// What can be tuned.
    pub parameters: &'static [Parameter],
    pub(super) build: fn(&Settings) -> Box<dyn Policy>,
}

impl Baseline {
    /// The policy with these settings; parameters that are not named have their defaults.
    ///
    /// # Errors
    /// If there is no such parameter, it is set twice, or its value is out of bounds.
    pub fn build<'s>(
        &self,
        settings: impl IntoIterator<Item = (&'s str, u64)>,
    ) -> Result<Box<dyn Policy>, SettingError> {
        let mut known = Settings::default();
        for (name, value) in settings {
            let policy = self.name;
            let Some(parameter) = self.parameters.iter().find(|parameter| parameter.name == name) else {
                let known = self.parameters.iter().map(|parameter| parameter.name).collect();
                return Err(SettingError::Unknown { policy, name: name.to_owned(), known });
            };
            if known.set.iter().any(|(set, _)| *set == name) {
                return Err(SettingError::Twice { policy, name: parameter.name });
            }
            if !(parameter.least..=parameter.most).contains(&value) {
                let Parameter { name, least, most, .. } = *parameter;
                return Err(SettingError::OutOfBounds { policy, name, value, least, most });
            }
            known.set.push((parameter.name, value));
        }
        Ok((self.build)(&known))
    }
}

impl fmt::Debug for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, rule, source, parameters, build: _ } = self;
        let mut shown = f.debug_struct("Baseline");
        shown.field("name", name).field("rule", rule).field("source", source).field("parameters", parameters);
        shown.finish()
    }
}

/// A setting that a baseline does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// No parameter of this name.
    #[error("policy {policy:?} has no parameter {name:?}: {}", Known(known))]
    Unknown {
        /// The policy.
        policy: &'static str,
        /// What was to be set.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// Set more than once.
    #[error("policy {policy:?}: {name} is set twice")]
    Twice {
        /// The policy.
        policy: &'static str,
        /// The parameter.
        name: &'static str,
    },
    /// A value that it can not have.
    #[error("policy {policy:?}: {name} is {value}: expected {least} to {most}")]
    OutOfBounds {
        /// The policy.
        policy: &'static str,
        /// The parameter.
        name: &'static str,
        /// The value.
        value: u64,
        /// The least value.
        least: u64,
        /// The greatest value.
        most: u64,
    },
}

struct Known<'a>(&'a [&'static str]);

impl fmt::Display for Known<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("it has none"),
            names => write!(f, "known are {}", names.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::{BASELINES, find};

    #[test]
    fn names_are_unique_and_every_setting_of_a_grid_can_be_built() {
        for (index, baseline) in BASELINES.iter().enumerate() {
            assert!(BASELINES[..index].iter().all(|other| other.name != baseline.name), "{}", baseline.name);
            assert_eq!(baseline.build([]).unwrap().name(), baseline.name);
            for parameter in baseline.parameters {
                let Parameter { name, default, least, most, grid, .. } = *parameter;
                assert!(grid.is_sorted() && grid.contains(&default), "{}: {name}", baseline.name);
                assert!(grid.iter().all(|value| (least..=most).contains(value)), "{}: {name}", baseline.name);
                for &value in grid {
                    assert!(baseline.build([(name, value)]).is_ok());
                }
            }
        }
    }

    #[test]
    fn settings_that_a_baseline_does_not_have_are_refused_with_what_it_has() {
        let error = |name: &str, settings: &[(&str, u64)]| {
            find(name).unwrap().build(settings.iter().copied()).err().unwrap().to_string()
        };
        assert_eq!(
            error("static", &[("quantum_ms", 5)]),
            r#"policy "static" has no parameter "quantum_ms": it has none"#
        );
        let zero = error("round-robin", &[("quantum_ms", 0)]);
        assert_eq!(zero, r#"policy "round-robin": quantum_ms is 0: expected 1 to 10000"#);
        let twice = error("round-robin", &[("quantum_ms", 5), ("quantum_ms", 6)]);
        assert_eq!(twice, r#"policy "round-robin": quantum_ms is set twice"#);
    }
}
