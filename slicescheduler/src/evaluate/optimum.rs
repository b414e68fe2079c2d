//! Policies beside the best schedule of a few requests that are known beforehand.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slicescheduler_simulator::world::WorldCost;

use crate::bound::oracle::Case;
use crate::bound::trial::tokens_of;
use crate::evaluate::EvaluateError;
use crate::evaluate::results::OURS;
use crate::evaluate::run::Base;
use crate::evaluate::suite::SmallCase;
use crate::evaluate::tune::Options;
use crate::replay::policy;
use crate::scenario::PolicySpec;

/// A small case with one seed: what the oracle finds, and what policies reach without knowing what comes.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Optimum {
    /// The case.
    pub case: String,
    /// The seed of its requests.
    pub seed: u64,
    /// How many requests.
    pub requests: usize,
    /// Input and output tokens of the requests that count, under the best schedule that was found.
    pub best: u64,
    /// What no schedule of whole iterations exceeds; the same where the search was complete.
    pub at_most: u64,
    /// Tokens of the policies, counted alike.
    pub policies: BTreeMap<String, u64>,
}

impl Optimum {
    /// The tokens of `policy` over the best, where that is known and above nothing.
    pub fn share(&self, policy: &str) -> Option<f64> {
        let tokens = self.policies.get(policy).filter(|_| self.best == self.at_most && self.best > 0)?;
        Some(*tokens as f64 / self.best as f64)
    }

    /// Searches the best schedule of the requests of `base` with `seed`, and runs the policies of `small` on them.
    pub(super) fn of(
        small: &SmallCase,
        base: &Base,
        seed: u64,
        settings: &BTreeMap<String, Options>,
    ) -> Result<Self, EvaluateError> {
        let point = base.at(small.rate, seed);
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| EvaluateError::Oracle {
            case: format!("{}, seed {seed}", small.name),
            source,
        };
        let made = |name: &str| {
            let spec = PolicySpec { name: name.to_owned(), options: settings.get(name).cloned().unwrap_or_default() };
            policy(&spec).map_err(|error| failed(error.into()))
        };
        let model = WorldCost::default();
        let (case, durations) = Case::of_scenario(&point.scenario, &*made(OURS)?, &model, small.requests)
            .map_err(|error| failed(error.into()))?;
        let best = case.best(&durations, small.states).map_err(|error| failed(error.into()))?;
        let mut policies = BTreeMap::new();
        for name in &small.policies {
            let tokens = tokens_of(&point.scenario, made(name)?, &case).map_err(|error| failed(error.into()))?;
            policies.insert(name.clone(), tokens);
        }
        Ok(Self {
            case: small.name.clone(),
            seed,
            requests: case.requests.len(),
            best: best.tokens,
            at_most: best.at_most,
            policies,
        })
    }
}
