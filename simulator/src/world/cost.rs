//! The durations of the simulated world.

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::semantics::{Collective, OpKind};
use slicescheduler_gmg::units::{Bandwidth, Nanos};

use crate::collective::GroupLinks;
use crate::cost::{Compiled, CostModel, Estimate, Exchange, Operation, Overlap};

/// A cost model that differs from [`Roofline`](crate::cost::Roofline) in kind, so that a forecast
/// made with the one is wrong about a world made with the other, as forecasts are.
///
/// Arithmetic and memory traffic overlap in part only, matrix products come in tiles of 64 rows,
/// and attention reaches less of the memory bandwidth than streaming weights does.
#[derive(Clone, Copy, Debug)]
pub struct WorldCost {
    /// Share of peak arithmetic that matrix products reach, in percent.
    pub matmul_percent: u64,
    /// Share of peak arithmetic that attention reaches, in percent.
    pub attention_percent: u64,
    /// Share of memory bandwidth that streaming reaches, in percent.
    pub streaming_percent: u64,
    /// Share of memory bandwidth that attention reaches, in percent.
    pub gather_percent: u64,
    /// Share of the shorter of the two times that does not overlap with the longer, in percent.
    pub exposed_percent: u64,
    /// Time of an operator that does nothing.
    pub overhead: Nanos,
    /// Share of a link's bandwidth that collectives reach, in percent.
    pub link_percent: u64,
    /// Time of a step of a collective behind the first.
    pub step: Nanos,
}

impl Default for WorldCost {
    fn default() -> Self {
        Self {
            matmul_percent: 75,
            attention_percent: 45,
            streaming_percent: 90,
            gather_percent: 80,
            exposed_percent: 6,
            overhead: Nanos(1_300),
            link_percent: 72,
            step: Nanos(2_300),
        }
    }
}

/// Rows of a tile of a matrix product.
const TILE: u64 = 64;

impl CostModel for WorldCost {
    fn name(&self) -> &str {
        "world"
    }

    fn estimate(&self, operation: &Operation<'_>) -> Estimate {
        self.compiled(operation).estimate(operation.binding, operation.cost)
    }

    fn compile(&self, operation: &Operation<'_>) -> Option<Compiled> {
        Some(self.compiled(operation))
    }
}

impl WorldCost {
    fn compiled(&self, operation: &Operation<'_>) -> Compiled {
        match operation.kind {
            OpKind::Collective(collective) => Compiled::Exchange(self.exchange(*collective, operation.device)),
            _ => Compiled::Overlap(self.overlap(operation)),
        }
    }

    fn exchange(&self, collective: Collective, device: &DeviceSpec) -> Exchange {
        let (link, hop) = device.peer_link();
        let bandwidth = Bandwidth((link.get() as u128 * u128::from(self.link_percent) / 100) as u64);
        Exchange { collective, links: GroupLinks { first: hop.times(2) + self.overhead, step: self.step, bandwidth } }
    }

    fn overlap(&self, operation: &Operation<'_>) -> Overlap {
        let device = operation.device;
        let (compute, memory) = match operation.kind {
            OpKind::Attention { .. } => (self.attention_percent, self.gather_percent),
            _ => (self.matmul_percent, self.streaming_percent),
        };
        Overlap {
            compute: (device.rate(operation.dtype()), compute),
            memory: (device.bandwidth, memory),
            exposed_percent: self.exposed_percent,
            overhead: self.overhead,
            tile: if matches!(operation.kind, OpKind::MatMul) { TILE } else { 1 },
        }
    }
}
