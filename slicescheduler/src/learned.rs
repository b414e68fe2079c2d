//! A cost model of this machine, learned from the jobs that it runs.
//!
//! A world reports how long whole iterations took, not operators. [`Learned`] explains these times by the work of
//! the operators: each takes a constant, and a time per operation (of products, and of attention) and per byte
//! moved. The four rates are the non-negative ones with the least squared error, relative to what is expected, over the
//! last iterations of a template on a kind of device. So iterations of any size are forecast, operator by operator, and what is said
//! of a part of an iteration is consistent with the whole. Until enough has run, another model answers.
//!
//! [`Learned`] also keeps account of what it predicted, of every stretch of operators when it was launched, beside
//! what was measured: [`Predictions`].

mod least_squares;
mod predictions;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::JobId;
use slicescheduler_gmg::plan::{Command, Event, Launch, Observer};
use slicescheduler_gmg::semantics::{OpCost, OpKind};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, View};
use slicescheduler_simulator::cost::{Confidence, CostModel, Estimate, JobCost, Operation};

use least_squares::{WORK, rates};
pub use predictions::Predictions;

/// Iterations of a template on a kind of device that count, the last ones.
const KEPT: usize = 256;
/// Iterations that are needed before anything is concluded.
const NEEDED: usize = 16;
/// Jobs that are remembered until they end.
const UNDER_WAY: usize = 4096;
/// New iterations after which the rates are found anew.
const REFIT: u32 = 32;

/// A cost model that learns while it is used; cheap to clone, clones learn together.
///
/// It has to see what happens: it is an [`Observer`]. Times are those of operators that run alone on a lane, so a
/// world whose lanes slow each other teaches it what they usually cost under way.
///
/// ```
/// use std::sync::Arc;
///
/// use slicescheduler::learned::Learned;
/// use slicescheduler::simulator::cost::{CostModel, Roofline};
///
/// let learned = Learned::new(Arc::new(Roofline::default()));
/// assert_eq!((learned.version(), learned.predictions().stretches), (0, 0));
/// ```
#[derive(Clone)]
pub struct Learned(Arc<Shared>);

struct Shared {
    base: Arc<dyn CostModel>,
    /// Changes with the rates.
    version: AtomicU64,
    rates: RwLock<Vec<(Kind, [f64; WORK])>>,
    seen: Mutex<Seen>,
}

/// A template on a kind of device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
    template: Arc<str>,
    device: Arc<str>,
}

impl Kind {
    fn is(&self, template: &OpGraph, device: &DeviceSpec) -> bool {
        *self.template == *template.name() && *self.device == *device.name
    }
}

#[derive(Default)]
struct Seen {
    launched: HashMap<JobId, Expected>,
    iterations: Vec<(Kind, Iterations)>,
    predictions: predictions::Account,
}

/// What ran of one kind.
#[derive(Default)]
struct Iterations {
    last: VecDeque<([f64; WORK], f64)>,
    /// Since the rates were found.
    new: u32,
}

/// A job that was launched.
struct Expected {
    kind: Kind,
    /// Its operators, and all of their work.
    ops: u32,
    work: [f64; WORK],
    /// What this model said, if it had learned something.
    cost: Option<JobCost>,
}

/// The work of one operator, by what it is charged for.
fn work(kind: &OpKind, cost: OpCost) -> [f64; WORK] {
    let (flops, bytes) = (cost.flops.get() as f64, cost.bytes().get() as f64);
    match kind {
        OpKind::Attention { .. } | OpKind::SelfAttention { .. } => [1.0, 0.0, flops, bytes],
        _ => [1.0, flops, 0.0, bytes],
    }
}

/// The work of all operators of a job.
fn work_of(template: &OpGraph, binding: &Binding) -> [f64; WORK] {
    let mut sum = [0.0; WORK];
    for segment in template.segments() {
        let repeat = f64::from(segment.repeat());
        for slot in segment.slots() {
            let Some(kind) = template.kind(slot) else { continue };
            for (sum, part) in sum.iter_mut().zip(work(kind, template.cost(slot, binding))) {
                *sum += repeat * part;
            }
        }
    }
    sum
}

impl Learned {
    /// Knows nothing yet, and says what `base` says.
    pub fn new(base: Arc<dyn CostModel>) -> Self {
        Self(Arc::new(Shared { base, version: AtomicU64::new(0), rates: RwLock::default(), seen: Mutex::default() }))
    }

    /// An observer that learns from what happens and passes it on to `next`.
    pub fn before(self, next: Box<dyn Observer + Send>) -> impl Observer + Send {
        Before { learned: self, next }
    }

    /// What was predicted so far, and what came of it.
    pub fn predictions(&self) -> Predictions {
        self.seen().predictions.figures()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Nothing panics while it is held.
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rates of operators of a template on a device.
    fn rates(&self, template: &OpGraph, device: &DeviceSpec) -> Option<[f64; WORK]> {
        let rates = self.0.rates.read().unwrap_or_else(PoisonError::into_inner);
        rates.iter().find(|(kind, _)| kind.is(template, device)).map(|(_, rates)| *rates)
    }

    fn launched(&self, launch: &Launch, view: View<'_>) {
        let mut seen = self.seen();
        if launch.ops.start > 0 && seen.launched.contains_key(&launch.job) {
            return;
        }
        let Some(device) = view.cluster().device(launch.lane.device).map(|device| &device.spec) else { return };
        // Jobs that were cancelled are never heard of again.
        if seen.launched.len() >= UNDER_WAY {
            seen.launched.clear();
        }
        let (template, binding) = (&*launch.template, &launch.spec.binding);
        let known = self.rates(template, device).is_some();
        let expected = Expected {
            kind: Kind { template: template.name().into(), device: (&*device.name).into() },
            ops: template.op_count(),
            work: work_of(template, binding),
            cost: known.then(|| JobCost::bind(self, template, binding, device)),
        };
        seen.launched.insert(launch.job, expected);
    }

    fn ran(&self, job: JobId, ops: std::ops::Range<u32>, took: Nanos) {
        let mut seen = self.seen();
        let Seen { launched, iterations, predictions } = &mut *seen;
        let Some(expected) = launched.get(&job) else { return };
        if let Some(cost) = expected.cost.as_ref().filter(|_| !ops.is_empty()) {
            predictions.add(cost.total(ops.clone()), took);
        }
        if ops != (0..expected.ops) {
            return;
        }
        let at = iterations.iter().position(|(kind, _)| *kind == expected.kind).unwrap_or_else(|| {
            iterations.push((expected.kind.clone(), Iterations::default()));
            iterations.len() - 1
        });
        let (kind, of_kind) = &mut iterations[at];
        if of_kind.last.len() == KEPT {
            of_kind.last.pop_front();
        }
        of_kind.last.push_back((expected.work, took.max(Nanos(1)).get() as f64));
        of_kind.new += 1;
        let first = of_kind.last.len() == NEEDED;
        if first || of_kind.new >= REFIT {
            of_kind.new = 0;
            let found = rates(of_kind.last.make_contiguous());
            self.adopt(kind, found);
        }
    }

    fn adopt(&self, kind: &Kind, found: [f64; WORK]) {
        let mut rates = self.0.rates.write().unwrap_or_else(PoisonError::into_inner);
        match rates.iter_mut().find(|(known, _)| known == kind) {
            Some((_, rates)) => *rates = found,
            None => rates.push((kind.clone(), found)),
        }
        drop(rates);
        self.0.version.fetch_add(1, Ordering::Relaxed);
    }
}

struct Before {
    learned: Learned,
    next: Box<dyn Observer + Send>,
}

impl Observer for Before {
    fn on_event(&mut self, event: &Event, view: View<'_>) {
        self.learned.on_event(event, view);
        self.next.on_event(event, view);
    }

    fn on_command(&mut self, now: Nanos, command: &Command, view: View<'_>) {
        self.learned.on_command(now, command, view);
        self.next.on_command(now, command, view);
    }
}

impl fmt::Debug for Learned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Learned").field("base", &self.0.base).field("version", &self.version()).finish_non_exhaustive()
    }
}

impl CostModel for Learned {
    fn name(&self) -> &str {
        "learned from this run"
    }

    fn version(&self) -> u64 {
        self.0.base.version().wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(self.0.version.load(Ordering::Relaxed))
    }

    fn estimate(&self, operation: &Operation<'_>) -> Estimate {
        let Some(rates) = self.rates(operation.template, operation.device) else {
            return self.0.base.estimate(operation);
        };
        let work = work(operation.kind, operation.cost);
        let nanos: f64 = rates.iter().zip(work).map(|(rate, work)| rate * work).sum();
        Estimate { duration: Nanos((nanos + 0.5) as u64).max(Nanos(1)), confidence: Confidence::Interpolated }
    }
}

impl Observer for Learned {
    fn on_event(&mut self, event: &Event, _view: View<'_>) {
        match event {
            Event::Finished { job, ops, started, at, .. } => {
                self.ran(*job, ops.clone(), *at - *started);
                let mut seen = self.seen();
                if seen.launched.get(job).is_some_and(|expected| expected.ops == ops.end) {
                    seen.launched.remove(job);
                }
            }
            Event::Recalled { job, done, started, at, .. } => self.ran(*job, done.clone(), *at - *started),
            Event::Failed { job, .. } => drop(self.seen().launched.remove(job)),
            Event::DeviceLost { .. } => self.seen().launched.clear(),
            _ => {}
        }
    }

    fn on_command(&mut self, _now: Nanos, command: &Command, view: View<'_>) {
        if let Command::Launch(launch) = command {
            self.launched(launch, view);
        }
    }
}
