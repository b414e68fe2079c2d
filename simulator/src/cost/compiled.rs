//! What an operator of a template takes, as a function of a job's dims alone.

use std::sync::Arc;

use slicescheduler_gmg::semantics::OpCost;
use slicescheduler_gmg::shape::{Binding, Dim};
use slicescheduler_gmg::units::Nanos;

use super::attention::AttentionTables;
use super::{Ceilings, Confidence, Estimate};
use crate::profile::{Reading, Table};

/// The durations of one operator of a template on one kind of device for every binding: what is
/// left of a [`CostModel`](super::CostModel) when the operator is known.
///
/// A [`CostTable`](super::CostTable) keeps these instead of the model, so that binding a job makes
/// no dynamic call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Compiled {
    /// A roofline over the operator's work.
    Ceilings(Ceilings),
    /// A table over one dim of the job, such as the rows of a product whose weight is known.
    Rows {
        /// Which dim.
        dim: Dim,
        /// A table with one axis.
        table: Arc<Table>,
    },
    /// A table over the operator's memory traffic, in bytes.
    Traffic(Arc<Table>),
    /// Attention over the prompts and the decoding sequences of a batch.
    Attention(Arc<AttentionTables>),
    /// Another one, a constant number of times as long.
    Scaled {
        /// How many times.
        factor: f64,
        /// The other one.
        of: Box<Compiled>,
    },
}

impl Compiled {
    /// The estimate for a job with these dims, in which the operator's work is `cost`. Allocates
    /// nothing.
    pub fn estimate(&self, binding: &Binding, cost: OpCost) -> Estimate {
        match self {
            Self::Ceilings(ceilings) => {
                Estimate { duration: ceilings.duration(cost.flops, cost.bytes()), confidence: Confidence::Modelled }
            }
            Self::Rows { dim, table } => table.read(&[dim.eval(binding) as f64]).into(),
            Self::Traffic(table) => table.read(&[cost.bytes().get() as f64]).into(),
            Self::Attention(tables) => tables.read(binding).into(),
            Self::Scaled { factor, of } => of.estimate(binding, cost).scaled(*factor),
        }
    }

    /// This, `factor` times as long.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self::Scaled { factor, of: Box::new(self) }
    }
}

impl Estimate {
    /// This estimate with a duration `factor` times as long, rounded to the nearest nanosecond.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let duration = Nanos((self.duration.get() as f64 * factor + 0.5) as u64).max(Nanos(1));
        Self { duration, ..self }
    }
}

impl From<Reading> for Estimate {
    /// Rounds to the nearest nanosecond, at least 1.
    fn from(reading: Reading) -> Self {
        Self { duration: Nanos((reading.nanos + 0.5) as u64).max(Nanos(1)), confidence: reading.confidence }
    }
}
