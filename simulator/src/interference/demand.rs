//! What operators demand of their device.

use smallvec::SmallVec;

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::OpIndex;
use slicescheduler_gmg::semantics::{OpCost, OpKind};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::Nanos;

use crate::cost::{JobCost, Operation};

/// The share of a device that an operator uses when nothing slows it, in multiples of 2^-14.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Demand {
    compute: u16,
    bandwidth: u16,
}

impl Demand {
    /// All of a resource.
    pub const FULL: u16 = 1 << 14;

    /// Nothing: an operator that disturbs nobody.
    pub const NONE: Self = Self { compute: 0, bandwidth: 0 };

    /// Shares of the arithmetic units and of the memory bandwidth, in multiples of 2^-14; what is
    /// above [`FULL`](Self::FULL) counts as that.
    pub const fn new(compute: u16, bandwidth: u16) -> Self {
        const fn at_most_full(part: u16) -> u16 {
            if part < Demand::FULL { part } else { Demand::FULL }
        }
        Self { compute: at_most_full(compute), bandwidth: at_most_full(bandwidth) }
    }

    /// What an operator of this work demands if it takes `duration`: how much of the device's peak
    /// arithmetic and of its bandwidth it uses meanwhile. Rounded down.
    pub fn of(cost: OpCost, dtype: DType, kind: &OpKind, duration: Nanos, device: &DeviceSpec) -> Self {
        let rate = match kind {
            OpKind::MatMul | OpKind::Attention { .. } => device.rate(dtype),
            _ => device.f32_rate,
        };
        let share = |work: u64, per_second: u64| {
            let possible = u128::from(per_second) * u128::from(duration.get());
            let used = u128::from(work) * 1_000_000_000 * u128::from(Self::FULL);
            used.checked_div(possible).unwrap_or(0).min(u128::from(Self::FULL)) as u16
        };
        Self {
            compute: share(cost.flops.get(), rate.get()),
            bandwidth: share(cost.bytes().get(), device.bandwidth.get()),
        }
    }

    /// Both shares in one word.
    pub(crate) const fn bits(&self) -> u32 {
        (self.compute as u32) << 16 | self.bandwidth as u32
    }

    /// The share of the arithmetic units.
    pub const fn compute(&self) -> u16 {
        self.compute
    }

    /// The share of the memory bandwidth.
    pub const fn bandwidth(&self) -> u16 {
        self.bandwidth
    }
}

/// What the operators of one job demand: one entry per stored operator, as in its [`JobCost`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobDemand {
    /// One for all, or one per stored operator.
    stored: SmallVec<[Demand; 16]>,
}

impl JobDemand {
    /// The same for all operators.
    pub fn uniform(demand: Demand) -> Self {
        Self { stored: SmallVec::from_elem(demand, 1) }
    }

    /// One per operator of a block, in order, for a job that repeats the block.
    pub fn from_block(demands: &[Demand]) -> Self {
        Self { stored: SmallVec::from_slice(demands) }
    }

    /// What the operators of a job demand that take as long as `cost` says. O(stored operators).
    pub fn bind(cost: &JobCost, template: &OpGraph, binding: &Binding, device: &DeviceSpec) -> Self {
        let mut stored = SmallVec::new();
        for segment in template.segments() {
            for (index, slot) in (segment.op_range().start..).zip(segment.slots()) {
                let known = template.op(OpIndex(index)).zip(template.kind(slot));
                stored.push(known.map_or(Demand::NONE, |(op, kind)| {
                    let operation =
                        Operation { template, op, kind, cost: template.cost(slot, binding), binding, device };
                    Demand::of(operation.cost, operation.dtype(), kind, cost.duration(index), device)
                }));
            }
        }
        Self { stored }
    }

    /// The mean over all operators, weighted by how long they take. O(operators).
    pub fn mean(&self, cost: &JobCost) -> Demand {
        let (mut compute, mut bandwidth, mut all) = (0u128, 0u128, 0u128);
        for op in 0..cost.op_count() {
            let demand = self.of_stored(cost.stored(op));
            let takes = u128::from(cost.duration(op).get());
            compute += takes * u128::from(demand.compute);
            bandwidth += takes * u128::from(demand.bandwidth);
            all += takes;
        }
        let mean = |sum: u128| sum.checked_div(all).unwrap_or(0) as u16;
        Demand { compute: mean(compute), bandwidth: mean(bandwidth) }
    }

    /// What stored operator `position` demands.
    pub(crate) fn of_stored(&self, position: usize) -> Demand {
        let at = if self.stored.len() == 1 { 0 } else { position };
        self.stored.get(at).copied().unwrap_or(Demand::NONE)
    }
}

impl Default for JobDemand {
    fn default() -> Self {
        Self::uniform(Demand::NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slicescheduler_gmg::units::{Bandwidth, Bytes, FlopRate, Flops};

    /// 500 flops in 1 ns at a peak of 1e12 per second are half of it; 100 bytes at 400 GB/s take a
    /// quarter.
    #[test]
    fn a_demand_is_the_part_of_the_peak_that_is_used() {
        let device = DeviceSpec::custom("d", Bytes::gb(1), Bandwidth::gb_per_s(400), FlopRate::tflops(1));
        let cost = OpCost { flops: Flops(500), weights: Bytes(50), read: Bytes(10), written: Bytes(40) };
        let demand = Demand::of(cost, DType::F16, &OpKind::MatMul, Nanos(1), &device);
        assert_eq!(demand, Demand::new(Demand::FULL / 2, Demand::FULL / 4));
        let slower = Demand::of(cost, DType::F16, &OpKind::MatMul, Nanos(4), &device);
        assert_eq!(slower, Demand::new(Demand::FULL / 8, Demand::FULL / 16));
    }
}
