//! How long operators take.
//!
//! A [`CostModel`] turns the work of one operator into time. Nobody asks it while a simulation
//! runs: a job's durations are compiled once into a [`JobCost`], which answers for any run of its
//! operators in constant time, because a repeated block repeats its durations. Who binds many jobs
//! of one template keeps a [`CostTable`] of it, which gives the same durations several times faster.
//!
//! | model | what it is made of | confidence of its estimates |
//! |---|---|---|
//! | [`Measured`] | tables of measured operators: products by `m`, `n`, `k`; attention by batch, context and heads; collectives by message and ranks; elementwise operators by bytes | measured at a sample, interpolated between, extrapolated beyond, with the distance in percent |
//! | [`Roofline`] | peaks of the device and efficiencies by kind, which [`fit`] finds from tables; collectives as [`Exchange`] says | modelled |
//! | [`Chain`] | a source that knows some operators, else another model | that of whichever answers |
//! | [`Calibrated`](crate::calibration::Calibrated) | another model times factors from observed durations | that of the other model |
//!
//! # Your own measurements
//!
//! Measure each kind of operator over its axes, write the files of [`profile::own`](crate::profile::own)
//! and put a [`Chain`] in front of a roofline:
//!
//! ```
//! use slicescheduler_gmg::cluster::DeviceSpec;
//! use slicescheduler_gmg::shape::Binding;
//! use slicescheduler_gmg::templates::{DenseSpec, dense};
//! use slicescheduler_simulator::JobCost;
//! use slicescheduler_simulator::cost::{Chain, Measured, Profile, Roofline, fit};
//! use slicescheduler_simulator::profile::{Columns, own};
//!
//! let device = DeviceSpec::l4();
//! // Usually own::read_folder("my-l4".as_ref(), &device)?
//! let text = "device,weight,scaling,m,n,k,time_us\n\
//!             L4,bf16,whole,1,4096,4096,131\n\
//!             L4,bf16,whole,64,4096,4096,140\n\
//!             L4,bf16,whole,1,28672,4096,880\n\
//!             L4,bf16,whole,64,28672,4096,905\n";
//! let profile = own::matmul(&Columns::from_csv("matmul.csv", text.as_bytes())?, &device)?;
//!
//! // What the tables do not cover is left to a roofline with the efficiencies that they show.
//! let fitted = fit([&profile], Profile::GPU);
//! let model = Chain::new(Roofline::new(fitted.profile)).after(Measured::new([profile]));
//!
//! let template = dense(&DenseSpec::llama3_8b())?;
//! let cost = JobCost::bind(&model, &template, &Binding::iteration(64, 64, 6400, 6400), &device);
//! println!("{} for an iteration, {:?} at the worst", cost.total(0..cost.op_count()), cost.confidence());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod attention;
mod compiled;
mod coverage;
mod exchange;
mod fit;
mod job;
mod measured;
mod roofline;
mod table;

use std::fmt::Debug;
use std::sync::Arc;

pub use compiled::{Compiled, Overlap};
pub use coverage::Coverage;
pub use exchange::Exchange;
pub use fit::{Family, Fit, fit};
pub use job::JobCost;
pub use measured::{Chain, CostSource, Measured};
pub use roofline::{Efficiency, Profile, Roofline};
pub use table::CostTable;

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::graph::{OpGraph, OpView};
use slicescheduler_gmg::semantics::{OpCost, OpKind};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::{Bytes, Flops, Nanos};

/// How an estimate came about, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Confidence {
    /// Measured with these dims on this kind of device.
    Measured,
    /// Between measured dims.
    Interpolated,
    /// Beyond the measured dims.
    Extrapolated {
        /// How far, in percent of the nearest measured dim; at least 1, summed over the dims.
        percent: u32,
    },
    /// From a formula, without measurements.
    Modelled,
}

/// A roofline whose ceilings do not depend on the dims of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Time that no work explains.
    pub overhead: Nanos,
    /// Nanoseconds per operation at the rate that the operator reaches.
    pub nanos_per_flop: f64,
    /// Nanoseconds per byte at the bandwidth that the operator reaches.
    pub nanos_per_byte: f64,
}

impl Ceilings {
    /// The time for `flops` and `bytes`, the longer of the two, rounded to the nearest nanosecond,
    /// at least 1 ns. Bit for bit the same everywhere: one conversion, one product and one sum.
    pub fn duration(&self, flops: Flops, bytes: Bytes) -> Nanos {
        let computing = flops.get() as f64 * self.nanos_per_flop;
        let moving = bytes.get() as f64 * self.nanos_per_byte;
        let longer = if computing > moving { computing } else { moving };
        (self.overhead + Nanos((longer + 0.5) as u64)).max(Nanos(1))
    }
}

/// What a cost model says about one operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// How long it takes alone on a lane; at least 1 ns.
    pub duration: Nanos,
    /// How the estimate came about.
    pub confidence: Confidence,
}

/// One operator with everything that an estimate may depend on.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// The template that it is part of.
    pub template: &'a OpGraph,
    /// The operator in its template: names, tensors, shapes.
    pub op: OpView<'a>,
    /// What it computes.
    pub kind: &'a OpKind,
    /// Its work under `binding`.
    pub cost: OpCost,
    /// The dims of the job.
    pub binding: &'a Binding,
    /// The kind of device that it runs on.
    pub device: &'a DeviceSpec,
}

impl Operation<'_> {
    /// The element type that decides which arithmetic unit does the work: that of the operator's
    /// weight, or of its first output if it has none.
    pub fn dtype(&self) -> DType {
        let weight = self.op.weights().next().map(|weight| weight.tensor.dtype);
        let first = || self.op.outputs().next().and_then(|id| self.template.tensor(id)).map(|view| view.tensor.dtype);
        weight.or_else(first).unwrap_or(DType::F32)
    }
}

/// Turns the work of an operator into time.
///
/// # Contract
///
/// - Pure: equal operations give equal estimates until [`version`](Self::version) changes, on every
///   call and on every machine. Floating point is fine for `+ - * /`, which round alike everywhere;
///   functions of the platform's mathematics library are not.
/// - A duration is that of the operator alone on a lane of the device. What others on the device do
///   to it is not part of it.
/// - [`estimate`](Self::estimate) is called for every stored operator of every job: it must not
///   allocate, block or panic, and must accept every binding, zero sizes included.
/// - Zero durations are read as 1 ns, so that time moves on.
///
/// # Example
///
/// ```
/// use slicescheduler_gmg::units::Nanos;
/// use slicescheduler_simulator::cost::{Confidence, CostModel, Estimate, Operation};
///
/// /// Every operator takes as long as its bytes need at 100 GB/s.
/// #[derive(Debug)]
/// struct Copies;
///
/// impl CostModel for Copies {
///     fn name(&self) -> &str {
///         "copies"
///     }
///
///     fn estimate(&self, operation: &Operation<'_>) -> Estimate {
///         let duration = Nanos(operation.cost.bytes().get() / 100);
///         Estimate { duration, confidence: Confidence::Modelled }
///     }
/// }
/// ```
pub trait CostModel: Debug + Send + Sync {
    /// Its name in reports.
    fn name(&self) -> &str;

    /// Changes whenever estimates do.
    fn version(&self) -> u64 {
        0
    }

    /// How long the operator takes alone.
    fn estimate(&self, operation: &Operation<'_>) -> Estimate;

    /// What [`estimate`](Self::estimate) gives for this operator, as a function of a job's dims:
    /// [`Compiled::estimate`] must equal it for every binding. Lets a [`CostTable`] bind jobs
    /// without asking again; the binding and the cost of `operation` are not those of a job.
    fn compile(&self, operation: &Operation<'_>) -> Option<Compiled> {
        let _ = operation;
        None
    }
}

impl<T: CostModel + ?Sized> CostModel for Arc<T> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn version(&self) -> u64 {
        (**self).version()
    }

    fn estimate(&self, operation: &Operation<'_>) -> Estimate {
        (**self).estimate(operation)
    }

    fn compile(&self, operation: &Operation<'_>) -> Option<Compiled> {
        (**self).compile(operation)
    }
}
