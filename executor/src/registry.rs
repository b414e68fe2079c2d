//! Which kernel runs an operator.
//!
//! A [`KernelRegistry`] has one [`Kernel`] per operator kind and element type. When a world is made,
//! each stored operator of a model is bound once: the kernel unpacks its parameters and prepares
//! what it needs (a rotary kernel its table), and the result is run on the operands of a [`Call`].

mod call;
mod cpu;

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::sync::Arc;

use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::graph::{OpGraph, OpView, TensorView};
use slicescheduler_gmg::id::TensorId;
use slicescheduler_gmg::semantics::OpKind;

use call::INPUTS;
pub(crate) use call::{Batch, Space};
pub use call::{Call, Touched};
pub use cpu::CpuKernels;

use crate::error::{ExecutorError, Result};
use crate::model::{CpuModel, ModelKind};

/// A stored operator that is to be bound: its first repetition stands for all.
#[derive(Clone, Copy, Debug)]
pub struct Site<'g> {
    /// The operator.
    pub op: OpView<'g>,
    /// Its template.
    pub template: &'g OpGraph,
    /// Positions that a sequence may have: those of the model, and of a decoder no more than KV blocks hold.
    pub max_context: u32,
}

impl<'g> Site<'g> {
    /// Input `index`, if there is one.
    pub fn input(&self, index: usize) -> Option<TensorView<'g>> {
        self.op.inputs().nth(index).and_then(|id| self.template.tensor(id))
    }

    /// Output `index`, if there is one.
    pub fn output(&self, index: usize) -> Option<TensorView<'g>> {
        self.op.outputs().nth(index).and_then(|id| self.template.tensor(id))
    }

    /// The element type that decides which kernel runs: that of the first weight, else of the first
    /// floating-point operand, inputs before outputs.
    pub fn dtype(&self) -> DType {
        let weight = self.op.weights().next().map(|view| view.tensor.dtype);
        let operands = self.op.inputs().chain(self.op.outputs());
        let mut floats = operands.filter_map(|id| self.template.tensor(id)).map(|view| view.tensor.dtype);
        weight.or_else(|| floats.find(|dtype| dtype.is_float())).unwrap_or(DType::U32)
    }
}

/// Makes operators of one kind runnable.
///
/// # Contract
/// `bind` is called once per stored operator when a world is made. It must refuse what the result
/// could not run. A decorator binds the kernel it wraps and wraps the result:
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use slicescheduler_executor::Result;
/// use slicescheduler_executor::registry::{BoundKernel, Call, CpuKernels, Kernel, KernelRegistry, Site};
/// use slicescheduler_gmg::dtype::DType;
/// use slicescheduler_gmg::semantics::OpKind;
///
/// /// Counts the products of a run.
/// #[derive(Debug, Clone, Default)]
/// struct Counted(Arc<AtomicU64>);
///
/// #[derive(Debug)]
/// struct BoundCounted(Arc<AtomicU64>, Arc<dyn BoundKernel>);
///
/// impl Kernel for Counted {
///     fn bind(&self, site: &Site<'_>) -> Result<Arc<dyn BoundKernel>> {
///         Ok(Arc::new(BoundCounted(self.0.clone(), CpuKernels.bind(site)?)))
///     }
/// }
///
/// impl BoundKernel for BoundCounted {
///     fn run(&self, call: &mut Call<'_>) -> Result<()> {
///         self.0.fetch_add(1, Ordering::Relaxed);
///         self.1.run(call)
///     }
/// }
///
/// let mut kernels = KernelRegistry::cpu();
/// kernels.register(&OpKind::MatMul, DType::F32, Arc::new(Counted::default()));
/// ```
pub trait Kernel: Debug + Send + Sync {
    /// Prepares the operator at `site`.
    ///
    /// # Errors
    /// When the operator has operands that the kernel can not work on.
    fn bind(&self, site: &Site<'_>) -> Result<Arc<dyn BoundKernel>>;
}

/// A kernel with the parameters of one stored operator.
///
/// # Contract
/// `run` reads the call's inputs and writes all of its outputs. The bits of a row depend on that
/// row's sequence alone (see [`kernels`](crate::kernels)). It does not block, starts no thread, and
/// may be called by several lanes at a time. A panic fails the job, not the lane.
pub trait BoundKernel: Debug + Send + Sync {
    /// Runs the operator once.
    ///
    /// # Errors
    /// Whatever keeps it from its result; the job fails, and its outputs are not used.
    fn run(&self, call: &mut Call<'_>) -> Result<()>;
}

/// Kernels by operator kind (its parameters do not count) and element type.
#[derive(Clone, Debug, Default)]
pub struct KernelRegistry {
    kernels: HashMap<(KindName, DType), Arc<dyn Kernel>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct KindName {
    custom: bool,
    name: Box<str>,
}

impl KindName {
    fn of(kind: &OpKind) -> Self {
        Self { custom: matches!(kind, OpKind::Custom(_)), name: kind.to_string().into() }
    }
}

impl KernelRegistry {
    /// A registry without a kernel.
    pub fn new() -> Self {
        Self::default()
    }

    /// The CPU kernels of Llama-family decoders, dense or mixtures of experts, and of BERT-family encoders, for weights of
    /// every type that they know.
    pub fn cpu() -> Self {
        let mut registry = Self::new();
        let kernels: Arc<dyn Kernel> = Arc::new(CpuKernels);
        for kind in CpuKernels::kinds() {
            for dtype in CpuKernels::DTYPES {
                registry.register(&kind, dtype, kernels.clone());
            }
        }
        registry
    }

    /// Sets the kernel for `kind`, whose parameters do not count, with elements of `dtype` (see
    /// [`Site::dtype`]). Returns the one that it replaces.
    pub fn register(&mut self, kind: &OpKind, dtype: DType, kernel: Arc<dyn Kernel>) -> Option<Arc<dyn Kernel>> {
        self.kernels.insert((KindName::of(kind), dtype), kernel)
    }

    /// The kernel for `kind` with elements of `dtype`.
    pub fn get(&self, kind: &OpKind, dtype: DType) -> Option<&Arc<dyn Kernel>> {
        self.kernels.get(&(KindName::of(kind), dtype))
    }

    /// Binds every stored operator of a template, for sequences that take `room` positions of KV blocks at most: what
    /// a file says of its model's context alone decides about no memory.
    pub(crate) fn bind(&self, model: CpuModel, room: u32) -> Result<BoundModel> {
        let max_context = match model.kind() {
            ModelKind::Decoder => model.max_context().min(room),
            ModelKind::Encoder => model.max_context(),
        };
        let template = model.template().clone();
        let mut kernels: Vec<Option<Arc<dyn BoundKernel>>> = vec![None; template.slot_count() as usize];
        let mut ops = Vec::with_capacity(template.op_count() as usize);
        for op in template.ops() {
            let bound = &mut kernels[op.slot().index()];
            let kernel = match bound {
                Some(kernel) => kernel.clone(),
                None => {
                    let site = Site { op, template: &template, max_context };
                    bound.insert(self.bind_site(&site)?).clone()
                }
            };
            let inputs: Box<[_]> = op.inputs().collect();
            check_inputs(op.name(), inputs.len())?;
            ops.push(BoundOp { kernel, inputs, outputs: op.outputs().collect() });
        }
        Ok(BoundModel { model, ops })
    }

    fn bind_site(&self, site: &Site<'_>) -> Result<Arc<dyn BoundKernel>> {
        let (kind, dtype) = (site.op.kind(), site.dtype());
        let kernel = self.get(kind, dtype).ok_or_else(|| ExecutorError::NoKernel {
            op: site.op.name().to_string(),
            kind: kind.to_string(),
            dtype,
        })?;
        kernel.bind(site)
    }
}

/// A call keeps account of so many inputs and no more.
fn check_inputs(op: impl Display, inputs: usize) -> Result<()> {
    if inputs > INPUTS {
        return Err(ExecutorError::Inputs { op: op.to_string(), inputs, most: INPUTS });
    }
    Ok(())
}

/// An operator of a template, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct BoundOp {
    pub(crate) kernel: Arc<dyn BoundKernel>,
    pub(crate) inputs: Box<[TensorId]>,
    pub(crate) outputs: Box<[TensorId]>,
}

/// A model whose operators are bound, by index.
#[derive(Clone, Debug)]
pub(crate) struct BoundModel {
    pub(crate) model: CpuModel,
    pub(crate) ops: Vec<BoundOp>,
}

#[cfg(test)]
mod tests {
    use slicescheduler_gmg::templates::{DenseSpec, dense};

    use super::*;
    use crate::model::SeededWeights;

    #[test]
    fn parameters_of_a_kind_do_not_count_but_custom_names_are_apart() {
        let registry = KernelRegistry::cpu();
        assert!(registry.get(&OpKind::RmsNorm { epsilon: 0.5 }, DType::F32).is_some());
        assert!(registry.get(&OpKind::MatMul, DType::Q4_1).is_some());
        assert!(registry.get(&OpKind::MatMul, DType::F8).is_none());
        assert!(registry.get(&OpKind::custom("matmul"), DType::F32).is_none());
    }

    #[test]
    fn an_operator_with_more_inputs_than_are_accounted_for_is_refused() {
        assert!(check_inputs("wide", 64).is_ok());
        let refused = check_inputs("wide", 65).unwrap_err();
        assert!(matches!(refused, ExecutorError::Inputs { inputs: 65, most: 64, .. }), "{refused}");
    }

    #[test]
    fn an_operator_without_a_kernel_is_named() {
        let spec = DenseSpec::tiny();
        let model = CpuModel::decoder(&spec, Arc::new(dense(&spec).unwrap()), &SeededWeights::new(0)).unwrap();
        let error = KernelRegistry::new().bind(model, 64).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no kernel for embedding of f32 elements, which operator \"embed\" needs; register one"
        );
    }
}
