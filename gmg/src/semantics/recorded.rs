//! Operators whose cost was recorded elsewhere.

use super::{DTypeRule, OpCost, OpSemantics, OutputType, Outputs, SemanticsError};
use crate::dtype::DType;
use crate::graph::Tensor;
use crate::shape::{Binding, Shape};

/// The meaning of one operator whose outputs and cost are known as they are: from a trace, a
/// profile, a paper. It accepts any inputs and costs the same under every binding.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
///
/// use slicescheduler_gmg::dtype::DType;
/// use slicescheduler_gmg::graph::OpGraph;
/// use slicescheduler_gmg::semantics::{OpCost, Recorded};
/// use slicescheduler_gmg::shape::{Binding, Shape};
/// use slicescheduler_gmg::units::Flops;
///
/// let mut graph = OpGraph::builder("measured");
/// let y = graph.output("y", DType::F32, Shape::vector(10));
/// let cost = OpCost { flops: Flops(500), ..OpCost::default() };
/// let meaning = Recorded::new(cost).output(DType::F32, Shape::vector(10));
/// graph.op_with("stencil", &"stencil".into(), Arc::new(meaning), &[], &[y]);
/// assert_eq!(graph.build()?.flops(&Binding::new()), Flops(500));
/// # Ok::<(), slicescheduler_gmg::graph::GraphError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    cost: OpCost,
    outputs: Outputs,
}

impl Recorded {
    /// An operator that costs `cost` and has no outputs.
    pub fn new(cost: OpCost) -> Self {
        Self { cost, outputs: Outputs::new() }
    }

    /// Adds an output.
    #[must_use]
    pub fn output(mut self, dtype: DType, shape: Shape) -> Self {
        self.outputs.push(OutputType { dtype: DTypeRule::Exactly(dtype), shape });
        self
    }
}

impl OpSemantics for Recorded {
    fn outputs(&self, _: &[&Tensor]) -> Result<Outputs, SemanticsError> {
        Ok(self.outputs.clone())
    }

    fn cost(&self, _: &[&Tensor], _: &[&Tensor], _: &Binding) -> OpCost {
        self.cost
    }
}
