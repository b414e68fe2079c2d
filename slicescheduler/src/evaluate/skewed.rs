//! Forecasts that are wrong by a stated amount.

use std::sync::Arc;

use slicescheduler_simulator::cost::{Compiled, CostModel, Estimate, Operation};

use crate::workload::rng::Seed;

/// A cost model whose durations are those of another one, times a factor that depends on the operator:
/// `bias * (1 + e)` with `e` uniform between `-error` and `error`.
#[derive(Clone, Debug)]
pub(super) struct Skewed {
    of: Arc<dyn CostModel>,
    bias: f64,
    error: f64,
}

impl Skewed {
    pub(super) fn new(of: Arc<dyn CostModel>, bias: f64, error: f64) -> Self {
        Self { of, bias, error }
    }

    /// One factor per operator of a template, the same for every job: a forecast that is wrong about a
    /// kernel is wrong about it every time.
    fn factor(&self, operation: &Operation<'_>) -> f64 {
        let name = operation.template.name().bytes();
        let seed = name.fold(Seed(0), |seed, byte| seed.derive(u64::from(byte)));
        let unit = seed.unit(u64::from(operation.op.index().0));
        self.bias * (1.0 + self.error * (2.0 * unit - 1.0))
    }
}

impl CostModel for Skewed {
    fn name(&self) -> &str {
        "skewed"
    }

    fn version(&self) -> u64 {
        self.of.version()
    }

    fn estimate(&self, operation: &Operation<'_>) -> Estimate {
        self.of.estimate(operation).scaled(self.factor(operation))
    }

    fn compile(&self, operation: &Operation<'_>) -> Option<Compiled> {
        Some(self.of.compile(operation)?.scaled(self.factor(operation)))
    }
}
