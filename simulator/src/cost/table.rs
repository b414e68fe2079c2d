//! A cost model compiled for one template on one kind of device.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::graph::{OpGraph, OpSlot};
use slicescheduler_gmg::id::OpIndex;
use slicescheduler_gmg::semantics::OpKind;
use slicescheduler_gmg::shape::{Binding, CONTEXT, Dim, PAIRS, SEQUENCES, Symbol, TOKENS};
use slicescheduler_gmg::units::{Bytes, Flops};

use super::attention::{AttentionTables, BatchParts};
use super::exchange::Exchange;
use super::{Ceilings, Compiled, Confidence, CostModel, Estimate, JobCost, Operation, Overlap};
use crate::profile::Table;
use crate::profile::axis::Position;

const SYMBOLS: [Symbol; 4] = [TOKENS, SEQUENCES, CONTEXT, PAIRS];

/// A work that is a constant plus a multiple of each standard symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Affine {
    constant: u64,
    factors: [u64; SYMBOLS.len()],
}

impl Affine {
    /// The affine function that `work` is, if it is one.
    ///
    /// `work` is a polynomial with whole coefficients that are not negative. Whatever in it is not
    /// affine is zero or counted into the factors where at most one symbol is 1, and adds too much
    /// where all are larger; nothing can make up for it.
    fn of(work: impl Fn(&Binding) -> u64) -> Option<Self> {
        let at = |values: [u64; SYMBOLS.len()]| work(&Binding::iteration(values[0], values[1], values[2], values[3]));
        let constant = at([0; SYMBOLS.len()]);
        let mut factors = [0; SYMBOLS.len()];
        for (position, factor) in factors.iter_mut().enumerate() {
            let mut one = [0; SYMBOLS.len()];
            one[position] = 1;
            *factor = at(one).checked_sub(constant)?;
        }
        let affine = Self { constant, factors };
        let probe = [2, 3, 5, 7];
        (affine.checked(&probe)? == at(probe)).then_some(affine)
    }

    fn checked(&self, values: &[u64; SYMBOLS.len()]) -> Option<u64> {
        let mut terms = self.factors.iter().zip(values);
        terms.try_fold(self.constant, |sum, (factor, value)| sum.checked_add(factor.checked_mul(*value)?))
    }

    /// The value, for values that are known not to overflow.
    fn eval(&self, values: &[u64; SYMBOLS.len()]) -> u64 {
        let terms = self.factors.iter().zip(values);
        terms.fold(self.constant, |sum, (factor, value)| sum.wrapping_add(factor.wrapping_mul(*value)))
    }

    /// The one of both that is at least the other everywhere, if there is one.
    fn larger(self, other: Self) -> Option<Self> {
        let bound = self.upper_bound(&other);
        [self, other].into_iter().find(|one| *one == bound)
    }

    /// The factors that are at least those of both.
    fn upper_bound(&self, other: &Self) -> Self {
        let mut bound = *self;
        bound.constant = bound.constant.max(other.constant);
        bound.factors.iter_mut().zip(other.factors).for_each(|(factor, other)| *factor = (*factor).max(other));
        bound
    }
}

/// How one stored operator is priced by a plain roofline.
#[derive(Clone, Copy, Debug)]
struct RooflineRow {
    flops: Affine,
    bytes: Affine,
    ceilings: Ceilings,
}

/// How one stored operator is priced.
#[derive(Clone, Debug)]
struct Row {
    rule: Rule,
    /// What the result is multiplied by, one after the other.
    factors: SmallVec<[f64; 1]>,
}

#[derive(Clone, Debug)]
enum Rule {
    Overlap {
        flops: Affine,
        bytes: Affine,
        overlap: Overlap,
    },
    Ceilings {
        flops: Affine,
        bytes: Affine,
        ceilings: Ceilings,
    },
    /// At the position with this number.
    Rows {
        position: usize,
        table: Arc<Table>,
    },
    Traffic {
        bytes: Affine,
        table: Arc<Table>,
    },
    Message {
        payload: Affine,
        table: Arc<Table>,
    },
    Exchange {
        payload: Affine,
        exchange: Exchange,
    },
    Attention(Arc<AttentionTables>),
}

impl Row {
    /// The affine functions that must not overflow.
    fn affine(&self) -> impl Iterator<Item = &Affine> {
        let (one, other) = match &self.rule {
            Rule::Ceilings { flops, bytes, .. } | Rule::Overlap { flops, bytes, .. } => (Some(flops), Some(bytes)),
            Rule::Traffic { bytes: one, .. }
            | Rule::Message { payload: one, .. }
            | Rule::Exchange { payload: one, .. } => (Some(one), None),
            Rule::Rows { .. } | Rule::Attention(_) => (None, None),
        };
        one.into_iter().chain(other)
    }

    /// This row as one of a plain roofline, if it is one.
    fn as_roofline(&self) -> Option<RooflineRow> {
        match self.rule {
            Rule::Ceilings { flops, bytes, ceilings } if self.factors.is_empty() => {
                Some(RooflineRow { flops, bytes, ceilings })
            }
            _ => None,
        }
    }

    fn estimate(&self, values: &[u64; SYMBOLS.len()], positions: &[Position], attention: &mut OnePart) -> Estimate {
        let estimate = match &self.rule {
            Rule::Ceilings { flops, bytes, ceilings } => Estimate {
                duration: ceilings.duration(Flops(flops.eval(values)), Bytes(bytes.eval(values))),
                confidence: Confidence::Modelled,
            },
            Rule::Overlap { flops, bytes, overlap } => Estimate {
                duration: overlap.duration(values[0], Flops(flops.eval(values)), Bytes(bytes.eval(values))),
                confidence: Confidence::Modelled,
            },
            Rule::Rows { position, table } => table.read_line(&positions[*position]).into(),
            Rule::Traffic { bytes, table } => table.read(&[bytes.eval(values) as f64]).into(),
            Rule::Message { payload, table } => table.read(&[payload.eval(values) as f64]).into(),
            Rule::Exchange { payload, exchange } => {
                Estimate { duration: exchange.duration(Bytes(payload.eval(values))), confidence: Confidence::Modelled }
            }
            Rule::Attention(tables) => tables.read_parts(attention.get(values)).into(),
        };
        self.factors.iter().fold(estimate, |estimate, factor| estimate.scaled(*factor))
    }
}

/// The parts of the batch, worked out at most once per job.
#[derive(Default)]
struct OnePart(Option<BatchParts>);

impl OnePart {
    fn get(&mut self, values: &[u64; SYMBOLS.len()]) -> BatchParts {
        let [tokens, sequences, context, pairs] = *values;
        *self.0.get_or_insert_with(|| BatchParts::of(&Binding::iteration(tokens, sequences, context, pairs)))
    }
}

#[derive(Clone, Debug)]
struct Block {
    ops: Range<u32>,
    repeat: u32,
    slots: Range<u32>,
}

/// Binds the jobs of one template on one kind of device: the same [`JobCost`] as
/// [`JobCost::bind`], bit for bit, but without asking the model where its answer is known.
///
/// Compiled for the model's version at the time; compile it again when that changes.
#[derive(Clone, Debug)]
pub struct CostTable {
    model: Arc<dyn CostModel>,
    template: Arc<OpGraph>,
    device: Arc<DeviceSpec>,
    blocks: SmallVec<[Block; 4]>,
    /// By slot; empty if some operator has to be asked for.
    rows: Vec<Row>,
    /// The same, if all rows are of a plain roofline; else empty. A shorter loop.
    roofline: Vec<RooflineRow>,
    /// The dims that tables are read at, each with a table that has its axis: operators that share
    /// a dim and the knots of an axis share the search.
    axes: Vec<(Dim, Arc<Table>)>,
    bound: Affine,
}

impl CostTable {
    /// Compiles the table. O(stored operators).
    pub fn new(model: Arc<dyn CostModel>, template: Arc<OpGraph>, device: Arc<DeviceSpec>) -> Self {
        let blocks = template
            .segments()
            .map(|segment| {
                let mut slots = segment.slots();
                let count = slots.len() as u32;
                let first = slots.next().map_or(0, |slot| slot.0);
                Block { ops: segment.op_range(), repeat: segment.repeat(), slots: first..first + count }
            })
            .collect();
        let (rows, axes) = compile(&*model, &template, &device).unwrap_or_default();
        let none = Affine { constant: 0, factors: [0; SYMBOLS.len()] };
        let bound = rows.iter().flat_map(Row::affine).fold(none, |bound, affine| bound.upper_bound(affine));
        let roofline = rows.iter().map(Row::as_roofline).collect::<Option<_>>().unwrap_or_default();
        Self { model, template, device, blocks, rows, roofline, axes, bound }
    }

    /// True if jobs are bound without asking the model.
    pub fn is_compiled(&self) -> bool {
        !self.rows.is_empty()
    }

    /// The durations of a job with these dims.
    pub fn bind(&self, binding: &Binding) -> JobCost {
        let values = SYMBOLS.map(|symbol| binding.value(symbol));
        if self.rows.is_empty() || self.bound.checked(&values).is_none() {
            return JobCost::bind(&*self.model, &self.template, binding, &self.device);
        }
        if !self.roofline.is_empty() {
            return self.bind_roofline(&values);
        }
        let locate = |(dim, table): &(Dim, Arc<Table>)| table.axes()[0].locate(dim.eval(binding) as f64);
        let positions: SmallVec<[Position; 4]> = self.axes.iter().map(locate).collect();
        let mut attention = OnePart::default();
        let mut cost = JobCost::empty();
        let all = self.template.op_count();
        for block in &self.blocks {
            let rows = &self.rows[block.slots.start as usize..block.slots.end as usize];
            let estimates = rows.iter().map(|row| row.estimate(&values, &positions, &mut attention));
            cost.push_run(block.ops.clone(), block.repeat, all, estimates);
        }
        cost
    }
}

impl CostTable {
    fn bind_roofline(&self, values: &[u64; SYMBOLS.len()]) -> JobCost {
        let mut cost = JobCost::empty();
        let all = self.template.op_count();
        for block in &self.blocks {
            let rows = &self.roofline[block.slots.start as usize..block.slots.end as usize];
            let estimates = rows.iter().map(|row| {
                let (flops, bytes) = (Flops(row.flops.eval(values)), Bytes(row.bytes.eval(values)));
                Estimate { duration: row.ceilings.duration(flops, bytes), confidence: Confidence::Modelled }
            });
            cost.push_run(block.ops.clone(), block.repeat, all, estimates);
        }
        cost
    }
}

type Rows = (Vec<Row>, Vec<(Dim, Arc<Table>)>);

/// The rows of all slots; [`None`] if one of them has to be asked for with every binding.
fn compile(model: &dyn CostModel, template: &OpGraph, device: &DeviceSpec) -> Option<Rows> {
    // Symbols of the graph's own cannot be probed.
    let binding = Binding::iteration(1, 1, 1, 1);
    template.check_binding(&binding).ok()?;
    let mut rows = Vec::with_capacity(template.slot_count() as usize);
    let mut axes: Vec<(Dim, Arc<Table>)> = Vec::new();
    for segment in template.segments() {
        for (index, slot) in (segment.op_range().start..).zip(segment.slots()) {
            let (op, kind) = (template.op(OpIndex(index))?, template.kind(slot)?);
            if matches!(kind, OpKind::Custom(_)) {
                return None;
            }
            let cost = |slot: OpSlot, binding: &Binding| template.cost(slot, binding);
            let operation = Operation { template, op, kind, cost: cost(slot, &binding), binding: &binding, device };
            let bytes = || Affine::of(|binding| cost(slot, binding).bytes().get());
            let flops = || Affine::of(|binding| cost(slot, binding).flops.get());
            let payload = || {
                let read = Affine::of(|binding| cost(slot, binding).read.get())?;
                read.larger(Affine::of(|binding| cost(slot, binding).written.get())?)
            };
            let mut compiled = model.compile(&operation)?;
            let mut factors = SmallVec::new();
            while let Compiled::Scaled { factor, of } = compiled {
                factors.push(factor);
                compiled = *of;
            }
            factors.reverse();
            let rule = match compiled {
                Compiled::Ceilings(ceilings) => Rule::Ceilings { flops: flops()?, bytes: bytes()?, ceilings },
                Compiled::Overlap(overlap) => Rule::Overlap { flops: flops()?, bytes: bytes()?, overlap },
                Compiled::Rows { dim, table } => {
                    let same = |(known, axis): &(Dim, Arc<Table>)| *known == dim && axis.axes() == table.axes();
                    let position = axes.iter().position(same).unwrap_or_else(|| {
                        axes.push((dim, Arc::clone(&table)));
                        axes.len() - 1
                    });
                    Rule::Rows { position, table }
                }
                Compiled::Traffic(table) => Rule::Traffic { bytes: bytes()?, table },
                Compiled::Message(table) => Rule::Message { payload: payload()?, table },
                Compiled::Exchange(exchange) => Rule::Exchange { payload: payload()?, exchange },
                Compiled::Attention(tables) => Rule::Attention(tables),
                Compiled::Scaled { .. } => return None,
            };
            rows.push(Row { rule, factors });
        }
    }
    Some((rows, axes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Roofline;
    use crate::world::WorldCost;
    use proptest::prelude::*;
    use slicescheduler_gmg::dtype::DType;
    use slicescheduler_gmg::shape::Shape;
    use slicescheduler_gmg::templates::{DenseSpec, dense};

    fn table(template: OpGraph, device: DeviceSpec) -> CostTable {
        CostTable::new(Arc::new(Roofline::default()), template.into(), device.into())
    }

    #[test]
    fn a_dense_decoder_is_compiled() {
        let table = table(dense(&DenseSpec::llama3_8b()).unwrap(), DeviceSpec::h100_sxm());
        assert_eq!(table.rows.len(), table.template.slot_count() as usize);
    }

    #[test]
    fn what_is_not_affine_is_found() {
        assert!(Affine::of(|b| 3 + 5 * b.value(TOKENS) + b.value(PAIRS)).is_some());
        assert!(Affine::of(|b| b.value(TOKENS) * b.value(TOKENS)).is_none());
        assert!(Affine::of(|b| b.value(TOKENS) * b.value(CONTEXT)).is_none());
        assert!(Affine::of(|b| b.value(SEQUENCES) * b.value(TOKENS) * b.value(CONTEXT)).is_none());
    }

    #[test]
    fn operators_with_quadratic_work_are_asked_for() {
        let mut graph = OpGraph::builder("scores");
        let x = graph.input("x", DType::F32, Shape::matrix(TOKENS, TOKENS));
        let y = graph.output("y", DType::F32, Shape::matrix(TOKENS, TOKENS));
        graph.op("softmax", OpKind::Softmax, &[x], &[y]);
        let table = table(graph.build().unwrap(), DeviceSpec::l4());
        assert!(table.rows.is_empty());
        let binding = Binding::iteration(300, 1, 1, 1);
        assert_eq!(table.bind(&binding), JobCost::bind(&*table.model, &table.template, &binding, &table.device));
    }

    proptest! {
        #[test]
        fn the_simulated_world_is_compiled_too(
            values in prop::array::uniform4(prop_oneof![0u64..100_000, any::<u64>()]),
        ) {
            let template = dense(&DenseSpec::llama3_8b()).unwrap();
            let table = CostTable::new(Arc::new(WorldCost::default()), template.into(), DeviceSpec::h100_sxm().into());
            prop_assert!(table.is_compiled());
            let binding = Binding::iteration(values[0], values[1], values[2], values[3]);
            let asked = JobCost::bind(&*table.model, &table.template, &binding, &table.device);
            prop_assert_eq!(table.bind(&binding), asked);
        }

        #[test]
        fn a_table_gives_the_durations_of_the_model(
            values in prop::array::uniform4(prop_oneof![0u64..100_000, any::<u64>()]),
        ) {
            let table = table(dense(&DenseSpec::llama3_8b()).unwrap(), DeviceSpec::h100_sxm());
            let binding = Binding::iteration(values[0], values[1], values[2], values[3]);
            let asked = JobCost::bind(&*table.model, &table.template, &binding, &table.device);
            prop_assert_eq!(table.bind(&binding), asked);
        }
    }
}
