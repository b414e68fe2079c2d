//! The time of iterations as a function of their sums: for every group of alike operators, a roofline.

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::OpIndex;
use slicescheduler_gmg::semantics::{OpCost, OpKind};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_simulator::cost::{Compiled, CostModel, Operation, Overlap};

use crate::bound::needs::Needs;

/// A cost model has something else than a roofline for an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cost model {model:?} gives no roofline for operator {op}: a bound needs one of arithmetic and traffic")]
pub struct NoRoofline {
    /// The cost model.
    pub model: String,
    /// The operator.
    pub op: String,
}

/// Iterations, tokens, output tokens, context, pairs: what the time of iterations depends on.
pub(super) const SUMS: usize = 5;

/// Operators that are bound by the same thing. The time of `i` iterations with sums `x` is at least that of
/// `max(c, m) + exposed * min(c, m) + overhead * i`, where `c` and `m` are the products of
/// [`compute`](Self::compute) and [`memory`](Self::memory) with `x`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Work {
    /// Whether they are matrix products, and the sums that they depend on.
    kind: (bool, u32),
    /// Seconds of arithmetic for each unit of each sum.
    pub(super) compute: [f64; SUMS],
    /// Seconds of memory traffic for each unit of each sum.
    pub(super) memory: [f64; SUMS],
    /// Share of the shorter time that does not overlap.
    pub(super) exposed: f64,
    /// Seconds per iteration beside that.
    pub(super) overhead: f64,
}

/// Where the growth of a cost is read off: beyond what any iteration has, so that a cost that levels off has.
const FAR: u64 = 1 << 24;

/// The work of an iteration of `template` on `device`, by groups of operators.
///
/// Sums of several operators' arithmetic and traffic take no longer in one roofline than each in its own, so
/// grouping keeps the bound a bound. Exchanges between ranks count as free, for the same reason. Likewise, a cost that grows less the larger it is (the experts that a batch
/// touches) is at least its growth far out, on top of what an empty iteration has.
pub(super) fn work(model: &dyn CostModel, template: &OpGraph, device: &DeviceSpec) -> Result<Vec<Work>, NoRoofline> {
    let mut groups: Vec<Work> = Vec::new();
    for segment in template.segments() {
        for (index, slot) in (segment.op_range().start..).zip(segment.slots()) {
            let (Some(op), Some(kind)) = (template.op(OpIndex(index)), template.kind(slot)) else { continue };
            if let OpKind::Collective(_) = kind {
                continue;
            }
            let empty = Binding::iteration(0, 0, 0, 0);
            let cost = template.cost(slot, &empty);
            let operation = Operation { template, op, kind, cost, binding: &empty, device };
            let Some(Roof { compute, memory, exposed, overhead }) = model.compile(&operation).and_then(roof) else {
                return Err(NoRoofline { model: model.name().to_owned(), op: op.name().to_string() });
            };
            let times = f64::from(segment.repeat());
            let mut added = Work {
                kind: (matches!(kind, OpKind::MatMul), 0),
                compute: [compute * times * cost.flops.get() as f64, 0.0, 0.0, 0.0, 0.0],
                memory: [memory * times * cost.bytes().get() as f64, 0.0, 0.0, 0.0, 0.0],
                exposed,
                overhead: overhead * times,
            };
            for sum in 1..SUMS {
                let at = |amount: u64| {
                    let value = |this: usize| if this == sum { amount } else { 0 };
                    template.cost(slot, &Binding::iteration(value(1), value(2), value(3), value(4)))
                };
                let (near, far) = (at(FAR), at(2 * FAR));
                let growth = |of: fn(&OpCost) -> u64| of(&far).saturating_sub(of(&near)) as f64 / FAR as f64;
                added.compute[sum] = compute * times * growth(|cost| cost.flops.get());
                added.memory[sum] = memory * times * growth(|cost| cost.bytes().get());
                added.kind.1 |= u32::from(added.compute[sum] > 0.0 || added.memory[sum] > 0.0) << sum;
            }
            match groups.iter_mut().find(|group| group.kind == added.kind && group.exposed == added.exposed) {
                Some(group) => group.add(&added),
                None => groups.push(added),
            }
        }
    }
    Ok(groups)
}

impl Work {
    fn add(&mut self, other: &Self) {
        for sum in 0..SUMS {
            self.compute[sum] += other.compute[sum];
            self.memory[sum] += other.memory[sum];
        }
        self.overhead += other.overhead;
    }

    /// Seconds that rows with these needs take at least beside others: of matrix products the arithmetic, of all
    /// else the traffic, without what an iteration takes by itself. They add up over the rows of an iteration.
    pub(super) fn marginal(&self, needs: &Needs) -> f64 {
        let (is_product, _) = self.kind;
        let by = if is_product { &self.compute } else { &self.memory };
        by[1] * needs.tokens + by[2] * needs.outputs + by[3] * needs.context + by[4] * needs.pairs
    }

    /// The least seconds that iterations with these sums take.
    #[cfg(test)]
    fn seconds(&self, sums: [f64; SUMS]) -> f64 {
        let product = |by: &[f64; SUMS]| by.iter().zip(sums).map(|(one, other)| one * other).sum::<f64>();
        let (compute, memory) = (product(&self.compute), product(&self.memory));
        compute.max(memory) + self.exposed * compute.min(memory) + self.overhead * sums[0]
    }
}

/// A roofline in seconds per operation, per byte, and per operator.
struct Roof {
    compute: f64,
    memory: f64,
    exposed: f64,
    overhead: f64,
}

fn roof(compiled: Compiled) -> Option<Roof> {
    match compiled {
        Compiled::Overlap(Overlap { compute, memory, exposed_percent, overhead, tile: _ }) => Some(Roof {
            compute: 100.0 / compute.1 as f64 / compute.0.get() as f64,
            memory: 100.0 / memory.1 as f64 / memory.0.get() as f64,
            exposed: exposed_percent as f64 / 100.0,
            overhead: overhead.as_secs_f64(),
        }),
        Compiled::Ceilings(ceilings) => Some(Roof {
            compute: ceilings.nanos_per_flop * 1e-9,
            memory: ceilings.nanos_per_byte * 1e-9,
            exposed: 0.0,
            overhead: ceilings.overhead.as_secs_f64(),
        }),
        Compiled::Scaled { factor, of } => roof(*of).map(|roof| Roof {
            compute: roof.compute * factor,
            memory: roof.memory * factor,
            exposed: roof.exposed,
            overhead: roof.overhead * factor,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use slicescheduler_gmg::templates::{DenseSpec, dense};
    use slicescheduler_simulator::cost::Roofline;
    use slicescheduler_simulator::{JobCost, world::WorldCost};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// And not by much more than tiles of 64 rows explain.
        #[test]
        fn no_iteration_is_faster_than_its_work(
            tokens in 1u64..2048, most_outputs in 0u64..256, context in 0u64..200_000, pairs in 0u64..4_000_000,
        ) {
            let (template, device) = (dense(&DenseSpec::llama3_8b()).unwrap(), DeviceSpec::h100_sxm());
            let outputs = most_outputs.min(tokens);
            let models: [&dyn CostModel; 2] = [&WorldCost::default(), &Roofline::default()];
            for model in models {
                let groups = work(model, &template, &device).unwrap();
                let sums = [1, tokens, outputs, context, pairs].map(|sum| sum as f64);
                let least: f64 = groups.iter().map(|group| group.seconds(sums)).sum();
                let binding = Binding::iteration(tokens, outputs, context, pairs);
                let cost = JobCost::bind(model, &template, &binding, &device);
                let real = cost.total(0..cost.op_count()).as_secs_f64();
                let rounding = 1e-9 * f64::from(cost.op_count());
                prop_assert!(least <= real + rounding, "{}: {least} > {real}", model.name());
                prop_assert!(least >= 0.7 * real, "{}: {least} of {real}", model.name());
            }
        }
    }
}
