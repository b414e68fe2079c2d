//! What is evaluated: experiments over scenarios, rates, seeds and conditions.
//!
//! A suite is a TOML file:
//!
//! ```toml
//! seeds = [1, 2, 3]              # each once; circular shifts of traces, new starts of generators
//! tolerance = 0.09               # optional; share of late requests at which capacity ends
//!
//! [tuning]                       # optional: every baseline with parameters, the same effort
//! scenarios = ["azure-4"]
//! seeds = [101]                  # none of those above
//! evaluations = 6                # settings that are tried for each policy
//! duration = "2m"
//!
//! [[experiments]]
//! name = "azure-4"
//! group = "workload"             # workload, regime or ablation
//! scenario = "azure-4"           # the file azure-4.toml
//! duration = "4m"
//! warm_up = "20s"
//! rates = [1.0, 2.0, 4.0]
//! seeds = 2                      # the first two of those above; all of them if absent
//! policies = ["static", "slice-fill"]       # every policy if absent
//! capacity = { least = 0.5, most = 8.0 }    # where to search; not searched if absent
//! variants = [{ name = "strict", lending = "strict" }, { name = "unshifted", unshifted = true }]
//!
//! [[small_cases]]                # policies beside the best schedule, found by search
//! name = "two owners"
//! scenario = "oracle"            # at most three devices
//! requests = 4                   # the first of each tenant; at most twelve of all
//! duration = "600ms"             # what ends later does not count
//! rate = 1.0                     # optional
//! ttft_ms = 100                  # optional, as in variants
//! states = 1000000               # optional: where the search ends unproven; at most twenty million
//! policies = ["static", "slice-fill"]
//! ```

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::bound::oracle::MOST_REQUESTS;
use crate::evaluate::EvaluateError;
use crate::evaluate::conditions::Conditions;
use crate::replay::policy_names;
use crate::scenario::Scenario;

/// A set of experiments.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// The seeds that are reported.
    pub seeds: Vec<u64>,
    /// How baselines get their settings; they keep the usual ones if absent.
    #[serde(default)]
    pub tuning: Option<Tuning>,
    /// What is run.
    pub experiments: Vec<Experiment>,
    /// Small cases, on which policies are held against the best schedule.
    #[serde(default)]
    pub small_cases: Vec<SmallCase>,
    /// What targets ask for and nothing here can show yet, and why.
    #[serde(default)]
    pub unsupported: Vec<Unsupported>,
}

/// How the settings of baselines are found.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// On what.
    pub scenarios: Vec<String>,
    /// With which seeds: none that is reported.
    pub seeds: Vec<u64>,
    /// Settings tried for each policy that has any, the usual one included.
    pub evaluations: usize,
    /// How long requests arrive.
    pub duration: String,
    /// Factor on every arrival rate.
    #[serde(default = "one")]
    pub rate: f64,
}

/// What an experiment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// A workload that somebody has: the headline.
    Workload,
    /// A workload on which slicing is hard, or cannot help.
    Regime,
    /// A part of the method taken away, or a parameter of the world varied.
    Ablation,
}

/// One scenario, run in several ways.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name, unique in the suite.
    pub name: String,
    /// What it is for.
    pub group: Group,
    /// The scenario, by name.
    pub scenario: String,
    /// How long requests arrive; as the scenario says if absent.
    #[serde(default)]
    pub duration: Option<String>,
    /// The first part, which is not measured; as the scenario says if absent.
    #[serde(default)]
    pub warm_up: Option<String>,
    /// Factors on every arrival rate.
    #[serde(default = "just_one")]
    pub rates: Vec<f64>,
    /// How many of the suite's seeds are run; all if absent.
    #[serde(default)]
    pub seeds: Option<usize>,
    /// Which policies run; every one if absent. Ratios are to the static containers.
    #[serde(default)]
    pub policies: Option<Vec<String>>,
    /// Where the greatest rate that a policy can serve is searched.
    #[serde(default)]
    pub capacity: Option<Span>,
    /// The ways in which it is run; unchanged if absent.
    #[serde(default)]
    pub variants: Vec<Conditions>,
}

/// Rates between which a capacity is searched.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// The least that is tried.
    pub least: f64,
    /// The greatest that is tried.
    pub most: f64,
}

/// Something that cannot be shown.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Unsupported {
    /// What.
    pub what: String,
    /// Why not.
    pub why: String,
}

/// A few requests on a few devices, run with every seed of the suite.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct SmallCase {
    /// Its name, unique in the suite.
    pub name: String,
    /// The scenario, by name.
    pub scenario: String,
    /// How many requests of each tenant take part, from the first.
    pub requests: usize,
    /// When the case is over: what ends later does not count.
    pub duration: String,
    /// Factor on every arrival rate.
    #[serde(default = "one")]
    pub rate: f64,
    /// Another time to first token of all latency-sensitive tenants, in milliseconds.
    #[serde(default)]
    pub ttft_ms: Option<u64>,
    /// States after which the search ends without a proof.
    #[serde(default = "states")]
    pub states: u64,
    /// The policies that run.
    pub policies: Vec<String>,
}

fn states() -> u64 {
    1_000_000
}

fn one() -> f64 {
    1.0
}

fn just_one() -> Vec<f64> {
    vec![1.0]
}

/// The rates that a scenario can be run at.
const RATES: RangeInclusive<f64> = 1e-3..=1e3;

/// The most states of a search: some gigabytes of memory.
const MOST_STATES: u64 = 20_000_000;

/// The most runs of an experiment: a slip of the pen rather than an evaluation.
const MOST_RUNS: usize = 100_000;

impl Suite {
    /// Reads a suite; `file` is its name in messages.
    ///
    /// # Errors
    /// [`EvaluateError::Suite`] for the first thing that is wrong.
    pub fn parse(text: &str, file: &Path) -> Result<Self, EvaluateError> {
        let wrong = |message: String| EvaluateError::Suite { file: file.to_owned(), message };
        let mut suite: Self = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        for experiment in &mut suite.experiments {
            if experiment.variants.is_empty() {
                experiment.variants.push(Conditions::default());
            }
        }
        suite.check().map_err(wrong)?;
        Ok(suite)
    }

    /// Keeps the experiments called `name`, or of the group of that name.
    ///
    /// # Errors
    /// [`EvaluateError::Suite`] if there are none.
    pub fn keep_only(&mut self, name: &str, file: &Path) -> Result<(), EvaluateError> {
        let group = |experiment: &Experiment| format!("{:?}", experiment.group).to_lowercase() == name;
        let known: Vec<String> = self
            .experiments
            .iter()
            .map(|experiment| &experiment.name)
            .chain(self.small_cases.iter().map(|case| &case.name))
            .cloned()
            .collect();
        self.experiments.retain(|experiment| experiment.name == name || group(experiment));
        self.small_cases.retain(|case| case.name == name || name == "small cases");
        if self.experiments.is_empty() && self.small_cases.is_empty() {
            let message = format!(
                "there is no experiment {name:?}: expected workload, regime, ablation, small cases or one of {}",
                known.join(", ")
            );
            return Err(EvaluateError::Suite { file: file.to_owned(), message });
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.seeds.is_empty() || self.experiments.is_empty() {
            return Err("expected at least one seed and one experiment".into());
        }
        once("seed", &self.seeds)?;
        let mut names = BTreeSet::new();
        for experiment in &self.experiments {
            experiment.check(self.seeds.len())?;
            if !names.insert(&experiment.name) {
                return Err(format!("there are two experiments {:?}: expected names of their own", experiment.name));
            }
        }
        for case in &self.small_cases {
            case.check()?;
            if !names.insert(&case.name) {
                return Err(format!("there are two experiments {:?}: expected names of their own", case.name));
            }
        }
        match &self.tuning {
            Some(tuning) => tuning.check(&self.seeds),
            None => Ok(()),
        }
    }
}

impl Tuning {
    fn check(&self, reported: &[u64]) -> Result<(), String> {
        if let Some(seed) = self.seeds.iter().find(|seed| reported.contains(seed)) {
            return Err(format!("tuning has seed {seed}, which is reported: expected others"));
        }
        if self.seeds.is_empty() || self.scenarios.is_empty() || !(1..=10_000).contains(&self.evaluations) {
            return Err("tuning: expected at least one seed and one scenario, and 1 to 10000 evaluations".into());
        }
        once("seed", &self.seeds)
            .and_then(|()| once("scenario", &self.scenarios))
            .map_err(|message| format!("tuning: {message}"))?;
        rate(self.rate)
    }
}

impl SmallCase {
    fn check(&self) -> Result<(), String> {
        let wrong = |what: String| Err(format!("small case {:?}: {what}", self.name));
        if self.name.trim().is_empty() || self.requests == 0 || self.states == 0 || self.policies.is_empty() {
            return wrong("expected a name, a request of each tenant, a state and a policy".into());
        }
        if self.requests > MOST_REQUESTS {
            let requests = self.requests;
            return wrong(format!("{requests} requests of each tenant: expected at most {MOST_REQUESTS} of all"));
        }
        if self.states > MOST_STATES {
            return wrong(format!("{} states: expected at most {MOST_STATES}, which are kept in memory", self.states));
        }
        once("policy", &self.policies).or_else(wrong)?;
        if let Some(unknown) = self.policies.iter().find(|name| !policy_names().contains(&name.as_str())) {
            return wrong(format!("policy {unknown:?}: expected one of {}", policy_names().join(", ")));
        }
        if let Some(objection) = self.conditions().objection() {
            return wrong(objection.into());
        }
        rate(self.rate).or_else(wrong)
    }

    /// What is changed in its scenario.
    pub(super) fn conditions(&self) -> Conditions {
        Conditions { ttft_ms: self.ttft_ms, ..Conditions::default() }
    }
}

impl Experiment {
    /// The seeds of `all` that it runs with.
    pub fn seeds_of<'a>(&self, all: &'a [u64]) -> &'a [u64] {
        let count = self.seeds.unwrap_or(all.len()).min(all.len());
        all.get(..count).unwrap_or(all)
    }

    /// The policies that it runs.
    pub fn policies(&self) -> Vec<String> {
        self.policies.clone().unwrap_or_else(|| policy_names().iter().map(|name| (*name).to_owned()).collect())
    }

    fn check(&self, seeds: usize) -> Result<(), String> {
        let wrong = |what: String| Err(format!("experiment {:?}: {what}", self.name));
        if self.name.trim().is_empty() || self.rates.is_empty() || self.seeds == Some(0) {
            return wrong("expected a name, a rate and a seed".into());
        }
        for &value in &self.rates {
            rate(value).or_else(wrong)?;
        }
        once("rate", &self.rates).or_else(wrong)?;
        if self.seeds.is_some_and(|count| count > seeds) {
            return wrong(format!("expected at most the {seeds} seeds of the suite"));
        }
        let policies = self.policies();
        if let Some(unknown) = policies.iter().find(|name| !policy_names().contains(&name.as_str())) {
            return wrong(format!("policy {unknown:?}: expected one of {}", policy_names().join(", ")));
        }
        if policies.is_empty() {
            return wrong("expected at least one policy".into());
        }
        once("policy", &policies).or_else(wrong)?;
        if let Some(Span { least, most }) = self.capacity {
            rate(least).or_else(wrong)?;
            rate(most).or_else(wrong)?;
            if least >= most {
                return wrong(format!("capacity from {least} to {most}: expected least below most"));
            }
        }
        let mut names = BTreeSet::new();
        for variant in &self.variants {
            if !names.insert(&variant.name) {
                return wrong(format!("there are two variants {:?}: expected names of their own", variant.name));
            }
            if let Some(objection) = variant.objection() {
                return wrong(format!("variant {:?}: {objection}", variant.name));
            }
        }
        if self.rates.len() * seeds * policies.len() * self.variants.len() > MOST_RUNS {
            return wrong(format!("more than {MOST_RUNS} runs"));
        }
        Ok(())
    }
}

/// An error if one of `values` is there twice: the same runs again are no further samples.
fn once<T: PartialEq + std::fmt::Debug>(what: &str, values: &[T]) -> Result<(), String> {
    let again = values.iter().enumerate().find(|(index, value)| values[..*index].contains(value));
    again.map_or(Ok(()), |(_, value)| Err(format!("{what} {value:?} is there twice: expected each once")))
}

fn rate(value: f64) -> Result<(), String> {
    match RATES.contains(&value) {
        true => Ok(()),
        false => Err(format!("rate {value}: expected a number from {} to {}", RATES.start(), RATES.end())),
    }
}

/// Where scenarios come from.
pub trait Scenarios {
    /// The text of a scenario and the file that it is from, for messages and for paths in it.
    ///
    /// # Errors
    /// [`EvaluateError::Read`] if there is none.
    fn text(&self, name: &str) -> Result<(PathBuf, String), EvaluateError>;
}

/// Scenario files of one folder.
#[derive(Clone, Debug)]
pub struct Folder(pub PathBuf);

impl Scenarios for Folder {
    fn text(&self, name: &str) -> Result<(PathBuf, String), EvaluateError> {
        let file = self.0.join(format!("{name}.toml"));
        match std::fs::read_to_string(&file) {
            Ok(text) => Ok((file, text)),
            Err(source) => Err(EvaluateError::Read { file, source }),
        }
    }
}

/// A scenario with, for each trace that is not there, the generator that stands in for it.
pub(super) fn scenario(
    from: &dyn Scenarios,
    name: &str,
    data: Option<&Path>,
) -> Result<(Scenario, Vec<String>), EvaluateError> {
    let (file, text) = from.text(name)?;
    Ok(Scenario::parse_or_generate(&text, &file, data)?)
}

#[cfg(test)]
mod tests;
