//! Learning from observed durations.
//!
//! A [`Calibration`] collects how long operators took, relative to what a base model said, and
//! publishes models that say so: [`Calibrated`], the base model times a factor per operator or per
//! kind of operator. A published model never changes; the next one has another version. Who keeps
//! forecasts replaces the model and forecasts anew what [`Published::changed`] names.
//!
//! The factor is a quantile of the last [`Window`] of ratios, the median unless asked otherwise: a
//! burst of outliers that is shorter than half of the window does not move it beyond what has been
//! seen before. Nothing is random and no clock is read: equal observations give equal models.
//!
//! ```
//! use std::sync::Arc;
//! use slicescheduler_gmg::cluster::DeviceSpec;
//! use slicescheduler_gmg::id::OpIndex;
//! use slicescheduler_gmg::shape::Binding;
//! use slicescheduler_gmg::templates::{DenseSpec, dense};
//! use slicescheduler_gmg::units::Nanos;
//! use slicescheduler_simulator::calibration::{Calibration, Observation};
//! use slicescheduler_simulator::cost::{JobCost, Roofline};
//!
//! let (template, device) = (dense(&DenseSpec::tiny())?, DeviceSpec::l4());
//! let batch = Binding::iteration(8, 8, 64, 64);
//! let mut calibration = Calibration::new(Arc::new(Roofline::default()));
//! for _ in 0..16 {
//!     // Everything takes 30 us here.
//!     let op = OpIndex(0);
//!     calibration.observe(&Observation { template: &template, op, binding: &batch, device: &device, took: Nanos::us(30) });
//! }
//! let published = calibration.publish(0.01).expect("it has learned something");
//! let cost = JobCost::bind(&*published.model, &template, &batch, &device);
//! assert!(cost.duration(0).get().abs_diff(30_000) < 30);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::OpIndex;
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::Nanos;

use crate::cost::{Compiled, CostModel, Estimate, Operation};

/// How much of the past counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The ratios that are kept, at least 1.
    pub kept: usize,
    /// The ratios that are needed before anything is concluded, at least 1.
    pub needed: usize,
}

impl Default for Window {
    /// The last 64, at least 8.
    fn default() -> Self {
        Self { kept: 64, needed: 8 }
    }
}

/// One operator that ran undisturbed.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// Its template.
    pub template: &'a OpGraph,
    /// Which operator.
    pub op: OpIndex,
    /// The dims of its job.
    pub binding: &'a Binding,
    /// Where it ran.
    pub device: &'a DeviceSpec,
    /// How long it took.
    pub took: Nanos,
}

/// What a factor holds for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// A stored operator of a template, in all of its repetitions, on one kind of device.
    Operator {
        /// The device's specification.
        device: Arc<str>,
        /// The template.
        template: Arc<str>,
        /// The stored operator.
        slot: u32,
    },
    /// All operators of a kind on one kind of device: for those that were not seen themselves.
    Kind {
        /// The device's specification.
        device: Arc<str>,
        /// The kind's name.
        kind: Arc<str>,
    },
}

/// The last ratios of observed to estimated durations.
#[derive(Clone, Debug, Default)]
struct Ratios {
    /// A ring once it is full.
    last: Vec<f64>,
    next: usize,
}

impl Ratios {
    fn push(&mut self, ratio: f64, kept: usize) {
        if self.last.len() < kept {
            self.last.push(ratio);
        } else if let Some(oldest) = self.last.get_mut(self.next) {
            *oldest = ratio;
        }
        self.next = (self.next + 1) % kept.max(1);
    }

    /// The smallest ratio that at least `share` of all do not exceed; the lower one of two.
    fn quantile(&self, share: f64, needed: usize) -> Option<f64> {
        if self.last.len() < needed.max(1) {
            return None;
        }
        let mut sorted = self.last.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied()
    }
}

/// Collects observations and publishes models.
#[derive(Debug)]
pub struct Calibration {
    base: Arc<dyn CostModel>,
    window: Window,
    ratios: BTreeMap<Scope, Ratios>,
    published: Arc<BTreeMap<Scope, f64>>,
    version: u64,
}

/// A new model, and for what it says something new.
#[derive(Clone, Debug)]
pub struct Published {
    /// The model.
    pub model: Arc<Calibrated>,
    /// Whose estimates changed. An operator that has no factor of its own follows that of its kind.
    pub changed: Vec<Scope>,
}

impl Calibration {
    /// A calibration of `base` with the usual window.
    pub fn new(base: Arc<dyn CostModel>) -> Self {
        Self::with_window(base, Window::default())
    }

    /// A calibration of `base`; zeros in `window` count as 1.
    pub fn with_window(base: Arc<dyn CostModel>, window: Window) -> Self {
        let window = Window { kept: window.kept.max(1), needed: window.needed.clamp(1, window.kept.max(1)) };
        Self { base, window, ratios: BTreeMap::new(), published: Arc::default(), version: 0 }
    }

    /// Takes in how long an operator took; nothing if the template has no such operator.
    /// O(log scopes).
    pub fn observe(&mut self, observation: &Observation<'_>) {
        let &Observation { template, op, binding, device, took } = observation;
        let Some(view) = template.op(op) else { return };
        let slot = view.slot();
        let cost = template.cost(slot, binding);
        let operation = Operation { template, op: view, kind: view.kind(), cost, binding, device };
        let estimated = self.base.estimate(&operation).duration.max(Nanos(1));
        let ratio = took.max(Nanos(1)).get() as f64 / estimated.get() as f64;
        let name: Arc<str> = (&*device.name).into();
        let kind = view.kind().to_string().into();
        let scopes = [
            Scope::Operator { device: Arc::clone(&name), template: template.name().into(), slot: slot.0 },
            Scope::Kind { device: name, kind },
        ];
        for scope in scopes {
            self.ratios.entry(scope).or_default().push(ratio, self.window.kept);
        }
    }

    /// The `share` quantile of the ratios of observed to estimated durations, such as 0.9; a share below 0 or above 1
    /// counts as that. [`None`] before there are enough of them. O(window * log window).
    pub fn quantile(&self, scope: &Scope, share: f64) -> Option<f64> {
        self.ratios.get(scope)?.quantile(share, self.window.needed)
    }

    /// A model with the medians, if one of them differs by more than `moved` (0.01 is 1 %) from
    /// the last model's. O(scopes * window * log window).
    pub fn publish(&mut self, moved: f64) -> Option<Published> {
        let medians = self.factors(0.5);
        let changed: Vec<_> = medians
            .iter()
            .filter(|(scope, factor)| {
                let before = self.published.get(scope).copied().unwrap_or(1.0);
                (**factor / before - 1.0).abs() > moved
            })
            .map(|(scope, _)| scope.clone())
            .collect();
        if changed.is_empty() {
            return None;
        }
        self.version += 1;
        self.published = Arc::new(medians);
        Some(Published { model: Arc::new(self.model(Arc::clone(&self.published))), changed })
    }

    /// A model of durations that `share` of the operators do not exceed, for guards that must not
    /// be too optimistic. Its version is that of the last published model.
    pub fn at_quantile(&self, share: f64) -> Calibrated {
        self.model(Arc::new(self.factors(share)))
    }

    fn factors(&self, share: f64) -> BTreeMap<Scope, f64> {
        let known = self.ratios.iter();
        known.filter_map(|(scope, ratios)| Some((scope.clone(), ratios.quantile(share, self.window.needed)?))).collect()
    }

    fn model(&self, factors: Arc<BTreeMap<Scope, f64>>) -> Calibrated {
        Calibrated {
            name: format!("{}, calibrated", self.base.name()),
            base: Arc::clone(&self.base),
            factors,
            version: self.version,
        }
    }
}

/// A model times the factors that a [`Calibration`] found.
#[derive(Clone, Debug)]
pub struct Calibrated {
    name: String,
    base: Arc<dyn CostModel>,
    factors: Arc<BTreeMap<Scope, f64>>,
    version: u64,
}

impl Calibrated {
    /// The factor of an operator: its own, else that of its kind, else 1. O(factors): whoever asks
    /// often keeps a [`CostTable`](crate::cost::CostTable).
    pub fn factor(&self, operation: &Operation<'_>) -> f64 {
        let device = &*operation.device.name;
        let of_operator = self.factors.iter().find(|(scope, _)| match scope {
            Scope::Operator { device: on, template, slot } => {
                **on == *device && *slot == operation.op.slot().0 && **template == *operation.template.name()
            }
            Scope::Kind { .. } => false,
        });
        let of_kind = || {
            self.factors.iter().find(|(scope, _)| match scope {
                Scope::Kind { device: on, kind } => **on == *device && is_named(operation.kind, kind),
                Scope::Operator { .. } => false,
            })
        };
        of_operator.or_else(of_kind).map_or(1.0, |(_, factor)| *factor)
    }
}

/// True if `kind` is displayed as `name`; allocates nothing.
fn is_named(kind: &slicescheduler_gmg::semantics::OpKind, name: &str) -> bool {
    use std::fmt::Write;
    struct Rest<'a>(Option<&'a str>);
    impl Write for Rest<'_> {
        fn write_str(&mut self, part: &str) -> std::fmt::Result {
            self.0 = self.0.and_then(|rest| rest.strip_prefix(part));
            Ok(())
        }
    }
    let mut rest = Rest(Some(name));
    let written = write!(rest, "{kind}");
    written.is_ok() && rest.0 == Some("")
}

impl CostModel for Calibrated {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> u64 {
        self.base.version().wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(self.version)
    }

    fn estimate(&self, operation: &Operation<'_>) -> Estimate {
        self.base.estimate(operation).scaled(self.factor(operation))
    }

    fn compile(&self, operation: &Operation<'_>) -> Option<Compiled> {
        Some(self.base.compile(operation)?.scaled(self.factor(operation)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{CostTable, JobCost, Roofline};
    use proptest::prelude::*;
    use slicescheduler_gmg::templates::{DenseSpec, dense};

    struct Case {
        template: OpGraph,
        device: DeviceSpec,
        batch: Binding,
        truth: JobCost,
    }

    fn case() -> Case {
        let (template, device) = (dense(&DenseSpec::tiny()).unwrap(), DeviceSpec::l4());
        let batch = Binding::iteration(2000, 8, 9000, 9000);
        let truth = JobCost::bind(&Roofline::default(), &template, &batch, &device);
        Case { template, device, batch, truth }
    }

    /// Observes `op`, which takes `factor` times what the roofline says.
    fn observe(calibration: &mut Calibration, case: &Case, op: u32, factor: f64) {
        let took = Nanos((case.truth.duration(op).get() as f64 * factor + 0.5) as u64);
        let Case { template, device, batch, .. } = case;
        calibration.observe(&Observation { template, op: OpIndex(op), binding: batch, device, took });
    }

    fn scope(case: &Case, op: u32) -> Scope {
        let slot = case.template.op(OpIndex(op)).unwrap().slot().0;
        Scope::Operator { device: (&*case.device.name).into(), template: case.template.name().into(), slot }
    }

    #[test]
    fn nothing_is_concluded_from_little() {
        let case = case();
        let mut calibration = Calibration::new(Arc::new(Roofline::default()));
        (0..7).for_each(|_| observe(&mut calibration, &case, 2, 3.0));
        assert!(calibration.publish(0.0).is_none());
        observe(&mut calibration, &case, 2, 3.0);
        let published = calibration.publish(0.01).unwrap();
        assert_eq!(published.changed.len(), 2, "the operator and its kind: {:?}", published.changed);
        assert!(calibration.publish(0.01).is_none(), "nothing moved since");
    }

    #[test]
    fn an_operator_that_was_not_seen_follows_its_kind() {
        let case = case();
        let mut calibration = Calibration::new(Arc::new(Roofline::default()));
        // Operators 2 and 5 of a layer of the tiny decoder are products, operator 1 is a norm.
        (0..8).for_each(|_| observe(&mut calibration, &case, 2, 2.0));
        let model = calibration.publish(0.01).unwrap().model;
        let cost = JobCost::bind(&*model, &case.template, &case.batch, &case.device);
        let ratio = |op| cost.duration(op).get() as f64 / case.truth.duration(op).get() as f64;
        assert!((ratio(2) - 2.0).abs() < 1e-3 && (ratio(5) - 2.0).abs() < 1e-3, "{} {}", ratio(2), ratio(5));
        assert_eq!(cost.duration(1), case.truth.duration(1));
    }

    proptest! {
        #[test]
        fn a_known_factor_is_found_in_spite_of_noise(
            factor in 0.2f64..5.0,
            noise in prop::collection::vec(-0.1f64..0.1, 64),
        ) {
            let case = case();
            let mut calibration = Calibration::new(Arc::new(Roofline::default()));
            noise.iter().for_each(|noise| observe(&mut calibration, &case, 2, factor * (1.0 + noise)));
            let found = calibration.quantile(&scope(&case, 2), 0.5).unwrap();
            prop_assert!((found / factor - 1.0).abs() < 0.11, "{found} instead of {factor}");
            let (low, high) = (calibration.quantile(&scope(&case, 2), 0.1), calibration.quantile(&scope(&case, 2), 0.9));
            prop_assert!(low <= Some(found) && Some(found) <= high);
        }

        #[test]
        fn a_burst_of_outliers_moves_nothing_beyond_what_was_seen(
            usual in prop::collection::vec(0.9f64..1.1, 64),
            burst in prop::collection::vec(5.0f64..1000.0, 0..32),
        ) {
            let case = case();
            let mut calibration = Calibration::new(Arc::new(Roofline::default()));
            usual.iter().chain(&burst).for_each(|factor| observe(&mut calibration, &case, 2, *factor));
            let found = calibration.quantile(&scope(&case, 2), 0.5).unwrap();
            prop_assert!((0.89..1.11).contains(&found), "{found}");
        }

        #[test]
        fn equal_observations_give_equal_models_and_tables_say_what_models_say(
            seen in prop::collection::vec((0u32..12, 0.5f64..2.0), 0..200),
            tokens in 1u64..5000,
        ) {
            let case = case();
            let learn = || {
                let mut calibration = Calibration::new(Arc::new(Roofline::default()));
                seen.iter().for_each(|(op, factor)| observe(&mut calibration, &case, *op, *factor));
                calibration.at_quantile(0.5)
            };
            let (one, other) = (learn(), learn());
            let batch = Binding::iteration(tokens, 8, 2 * tokens, 3 * tokens);
            let cost = JobCost::bind(&one, &case.template, &batch, &case.device);
            prop_assert_eq!(&JobCost::bind(&other, &case.template, &batch, &case.device), &cost);
            let table = CostTable::new(Arc::new(one), case.template.clone().into(), case.device.clone().into());
            prop_assert_eq!(table.bind(&batch), cost);
        }
    }
}
