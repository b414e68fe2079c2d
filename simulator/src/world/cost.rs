//! The durations of the simulated world.

use slicescheduler_gmg::semantics::OpKind;
use slicescheduler_gmg::shape::TOKENS;
use slicescheduler_gmg::units::{Bytes, Flops, Nanos};

use crate::cost::{Confidence, CostModel, Estimate, Operation};

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
        let device = operation.device;
        let (compute, memory) = match operation.kind {
            OpKind::Attention { .. } => (self.attention_percent, self.gather_percent),
            _ => (self.matmul_percent, self.streaming_percent),
        };
        let mut flops = operation.cost.flops;
        let rows = operation.binding.value(TOKENS);
        if matches!(operation.kind, OpKind::MatMul) && rows > 0 {
            flops = flops.scale(rows.div_ceil(TILE) * TILE, rows);
        }
        let bytes = operation.cost.bytes();
        let arithmetic = device.rate(operation.dtype()).time_for(Flops(flops.get())).scale(100, compute);
        let traffic = device.bandwidth.time_for(Bytes(bytes.get())).scale(100, memory);
        let (longer, shorter) = (arithmetic.max(traffic), arithmetic.min(traffic));
        let duration = longer + shorter.scale(self.exposed_percent, 100) + self.overhead;
        Estimate { duration, confidence: Confidence::Modelled }
    }
}
