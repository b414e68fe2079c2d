//! One run: what it depends on, and making it unless it was made before.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use slicescheduler_gmg::plan::Clock;
use slicescheduler_gmg::units::Nanos;
use xxhash_rust::xxh3::Xxh3;

use crate::evaluate::EvaluateError;
use crate::evaluate::conditions::Conditions;
use crate::evaluate::outcome::Outcome;
use crate::evaluate::store::Store;
use crate::evaluate::workers::for_each;
use crate::replay::{Silent, policy, simulate};
use crate::scenario::{OptionValue, PolicySpec, Scenario, Workload};

/// One policy on one scenario at one rate with one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What the run is called in messages.
    pub label: String,
    /// The scenario, with rate, seed and conditions in it.
    pub scenario: Arc<Scenario>,
    /// The policy and its options.
    pub policy: PolicySpec,
    /// What else is changed.
    pub conditions: Arc<Conditions>,
}

/// A scenario that runs are made of, before rate and seed.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) name: String,
    pub(super) scenario: Scenario,
    pub(super) conditions: Arc<Conditions>,
}

impl Base {
    /// `scenario` under `conditions`.
    pub(super) fn new(name: String, mut scenario: Scenario, conditions: Conditions) -> Self {
        conditions.change(&mut scenario);
        Self { name, scenario, conditions: Arc::new(conditions) }
    }

    /// Sets duration and warm-up, where there are any; a warm-up that does not fit is cut to half.
    pub(super) fn last(&mut self, duration: Option<&str>, warm_up: Option<&str>) -> Result<(), EvaluateError> {
        if let Some(duration) = duration {
            self.scenario.warm_up = Nanos::ZERO;
            self.scenario.set_duration(duration)?;
        }
        if let Some(warm_up) = warm_up {
            self.scenario.set_warm_up(warm_up)?;
        }
        Ok(())
    }

    /// Its run at `rate` with `seed`. Requests arrive `rate` times as fast for as long as at any other.
    pub(super) fn at(&self, rate: f64, seed: u64) -> Point<'_> {
        let mut scenario = self.scenario.clone();
        scenario.rate_scale *= rate;
        scenario.seed = seed;
        Point { base: self, rate, scenario: Arc::new(scenario) }
    }
}

/// A scenario with rate and seed.
pub(super) struct Point<'a> {
    base: &'a Base,
    rate: f64,
    pub(super) scenario: Arc<Scenario>,
}

impl Point<'_> {
    /// The run of `policy` with `options`; options of the conditions are for the policies that know
    /// them.
    pub(super) fn case(&self, policy: &str, options: &BTreeMap<String, OptionValue>) -> Case {
        let mut options = options.clone();
        options.extend(self.base.conditions.options.clone());
        Case {
            label: format!("{}, rate {}, seed {}, {policy}", self.base.name, self.rate, self.scenario.seed),
            scenario: self.scenario.clone(),
            policy: PolicySpec { name: policy.to_owned(), options },
            conditions: self.base.conditions.clone(),
        }
    }
}

/// Told how far an evaluation is.
pub trait Watcher: Sync {
    /// A run has ended, or its result was there.
    fn ran(&self, case: &Case, outcome: &Outcome, kept: bool);

    /// A file in the place of a result was not one; its run is made again.
    fn damaged(&self, case: &Case, why: &str);
}

/// Makes runs, on several threads, and keeps their results.
pub struct Runner<'a> {
    /// Where results are kept.
    pub store: Store,
    /// A hash of the program: results of another one do not count.
    pub build: String,
    /// Threads that may run at a time.
    pub threads: usize,
    /// Measures decisions and runs.
    pub stopwatch: Option<Arc<dyn Clock>>,
    /// Is told of every run.
    pub watcher: &'a dyn Watcher,
    /// Hashes of trace files.
    traces: Mutex<BTreeMap<PathBuf, u128>>,
    made: AtomicUsize,
    kept: AtomicUsize,
}

impl<'a> Runner<'a> {
    /// A runner on one thread without a stopwatch.
    pub fn new(store: Store, build: String, watcher: &'a dyn Watcher) -> Self {
        let (made, kept) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { store, build, threads: 1, stopwatch: None, watcher, traces: Mutex::default(), made, kept }
    }

    /// Runs that were made, and results that were there.
    pub fn counts(&self) -> (usize, usize) {
        (self.made.load(Ordering::Relaxed), self.kept.load(Ordering::Relaxed))
    }

    /// The results of `cases`, in their order.
    ///
    /// # Errors
    /// The first one.
    pub fn all(&self, cases: &[Case]) -> Result<Vec<Outcome>, EvaluateError> {
        for_each(self.threads, cases, |case| self.one(case))
    }

    /// The result of `case`.
    ///
    /// # Errors
    /// If it cannot be run, or its result not be kept.
    pub fn one(&self, case: &Case) -> Result<Outcome, EvaluateError> {
        let key = self.key(case)?;
        match self.store.get(&key)? {
            Some(Ok(outcome)) => {
                self.kept.fetch_add(1, Ordering::Relaxed);
                self.watcher.ran(case, &outcome, true);
                return Ok(outcome);
            }
            Some(Err(error)) => self.watcher.damaged(case, &error.to_string()),
            None => {}
        }
        let failed = |source| EvaluateError::Run { run: case.label.clone(), source: Box::new(source) };
        let policy = case.conditions.handicap(policy(&case.policy).map_err(failed)?);
        let mut options = case.conditions.replay_options();
        options.stopwatch.clone_from(&self.stopwatch);
        let run = simulate(&case.scenario, policy, &options, &mut Silent).map_err(failed)?;
        let window = (case.scenario.duration - case.scenario.warm_up).as_secs_f64();
        let outcome = self.store.put(&Outcome::of(key, &run, window))?;
        self.made.fetch_add(1, Ordering::Relaxed);
        self.watcher.ran(case, &outcome, false);
        Ok(outcome)
    }

    /// A hash of everything that the result of `case` depends on: the program, the scenario, the traces
    /// that it reads, the policy and the conditions.
    fn key(&self, case: &Case) -> Result<String, EvaluateError> {
        let mut hash = Xxh3::new();
        let Case { scenario, policy, .. } = case;
        // Equal runs of different experiments are one.
        let conditions = Conditions { name: String::new(), ..(*case.conditions).clone() };
        hash.update(format!("{}\n{scenario:?}\n{policy:?}\n{conditions:?}\n", self.build).as_bytes());
        for tenant in &scenario.tenants {
            let file = match &tenant.workload {
                Workload::Trace { file, .. } => &file.path,
                Workload::Client { file, .. } => &file.path,
                Workload::Generated { .. } | Workload::Backlog { .. } => continue,
            };
            hash.update(&self.trace(file)?.to_le_bytes());
        }
        Ok(format!("{:032x}", hash.digest128()))
    }

    fn trace(&self, file: &Path) -> Result<u128, EvaluateError> {
        let mut known = self.traces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&hash) = known.get(file) {
            return Ok(hash);
        }
        let hash = fingerprint(file)?;
        known.insert(file.to_owned(), hash);
        Ok(hash)
    }
}

/// A hash of the bytes of a file.
///
/// # Errors
/// If it cannot be read.
pub fn fingerprint(file: &Path) -> Result<u128, EvaluateError> {
    let failed = |source| EvaluateError::Read { file: file.to_owned(), source };
    let mut open = std::fs::File::open(file).map_err(failed)?;
    let mut hash = Xxh3::new();
    let mut part = vec![0; 1 << 16];
    loop {
        match open.read(&mut part).map_err(failed)? {
            0 => return Ok(hash.digest128()),
            read => hash.update(part.get(..read).unwrap_or_default()),
        }
    }
}
