//! What an operator of a template takes, as a function of a job's dims alone.

use std::sync::Arc;

use slicescheduler_gmg::semantics::OpCost;
use slicescheduler_gmg::shape::{Binding, Dim, TOKENS};
use slicescheduler_gmg::units::{Bandwidth, Bytes, FlopRate, Flops, Nanos};

use super::attention::AttentionTables;
use super::exchange::{Exchange, payload};
use super::{Ceilings, Confidence, Estimate};
use crate::profile::{Reading, Table};

/// A roofline in whole nanoseconds whose two times overlap in part only, for work that may come in
/// tiles of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// Peak arithmetic, and the share of it that is reached, in percent.
    pub compute: (FlopRate, u64),
    /// Peak bandwidth, and the share of it that is reached, in percent.
    pub memory: (Bandwidth, u64),
    /// The share of the shorter time that does not overlap with the longer one, in percent.
    pub exposed_percent: u64,
    /// Time of an operator that does nothing.
    pub overhead: Nanos,
    /// Rows of a tile: arithmetic is that of whole tiles of the batch's tokens. 1 for none.
    pub tile: u64,
}

impl Overlap {
    /// The time for `flops` and `bytes` in a batch of `tokens` tokens.
    pub fn duration(&self, tokens: u64, flops: Flops, bytes: Bytes) -> Nanos {
        let padded = tokens.checked_next_multiple_of(self.tile.max(1)).unwrap_or(tokens);
        let flops = if padded == tokens { flops } else { flops.scale(padded, tokens) };
        let arithmetic = self.compute.0.time_for(flops).scale(100, self.compute.1);
        let traffic = self.memory.0.time_for(bytes).scale(100, self.memory.1);
        let (longer, shorter) = (arithmetic.max(traffic), arithmetic.min(traffic));
        longer + shorter.scale(self.exposed_percent, 100) + self.overhead
    }
}

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
    /// A roofline over the operator's work whose times overlap in part.
    Overlap(Overlap),
    /// A table over one dim of the job, such as the rows of a product whose weight is known.
    Rows {
        /// Which dim.
        dim: Dim,
        /// A table with one axis.
        table: Arc<Table>,
    },
    /// A table over the operator's memory traffic, in bytes.
    Traffic(Arc<Table>),
    /// A table over the payload of a collective, in bytes: the larger of what it reads and writes.
    Message(Arc<Table>),
    /// A collective over its payload, without measurements.
    Exchange(Exchange),
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
            Self::Overlap(overlap) => Estimate {
                duration: overlap.duration(binding.value(TOKENS), cost.flops, cost.bytes()),
                confidence: Confidence::Modelled,
            },
            Self::Rows { dim, table } => table.read(&[dim.eval(binding) as f64]).into(),
            Self::Traffic(table) => table.read(&[cost.bytes().get() as f64]).into(),
            Self::Message(table) => table.read(&[payload(cost).get() as f64]).into(),
            Self::Exchange(exchange) => {
                Estimate { duration: exchange.duration(payload(cost)), confidence: Confidence::Modelled }
            }
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
