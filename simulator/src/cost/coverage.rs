//! How much of a forecast rests on measurements.

use std::fmt;

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::OpIndex;
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::Nanos;

use super::{Confidence, CostModel, Operation};

/// Forecast time by how its estimates came about.
///
/// ```
/// use slicescheduler_gmg::cluster::DeviceSpec;
/// use slicescheduler_gmg::shape::Binding;
/// use slicescheduler_gmg::templates::{DenseSpec, dense};
/// use slicescheduler_simulator::cost::{Coverage, Roofline};
///
/// let mut coverage = Coverage::default();
/// let template = dense(&DenseSpec::tiny())?;
/// coverage.add(&Roofline::default(), &template, &Binding::iteration(8, 8, 64, 64), &DeviceSpec::l4());
/// assert_eq!(coverage.modelled, coverage.total());
/// assert!(coverage.to_string().ends_with("modelled 100.0 %"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// At samples.
    pub measured: Nanos,
    /// Between samples.
    pub interpolated: Nanos,
    /// Beyond samples.
    pub extrapolated: Nanos,
    /// The farthest extrapolation, in percent of the nearest sample.
    pub farthest_percent: u32,
    /// Without samples.
    pub modelled: Nanos,
}

impl Coverage {
    /// Adds all operators of a job. O(stored operators).
    pub fn add(&mut self, model: &dyn CostModel, template: &OpGraph, binding: &Binding, device: &DeviceSpec) {
        for segment in template.segments() {
            for (index, slot) in (segment.op_range().start..).zip(segment.slots()) {
                let (Some(op), Some(kind)) = (template.op(OpIndex(index)), template.kind(slot)) else { continue };
                let operation = Operation { template, op, kind, cost: template.cost(slot, binding), binding, device };
                let estimate = model.estimate(&operation);
                let time = estimate.duration.max(Nanos(1)).times(u64::from(segment.repeat()));
                self.count(estimate.confidence, time);
            }
        }
    }

    /// Adds `time` that was estimated with `confidence`.
    pub fn count(&mut self, confidence: Confidence, time: Nanos) {
        let part = match confidence {
            Confidence::Measured => &mut self.measured,
            Confidence::Interpolated => &mut self.interpolated,
            Confidence::Extrapolated { percent } => {
                self.farthest_percent = self.farthest_percent.max(percent);
                &mut self.extrapolated
            }
            Confidence::Modelled => &mut self.modelled,
        };
        *part += time;
    }

    /// Adds what `other` counted.
    pub fn merge(&mut self, other: &Self) {
        self.measured += other.measured;
        self.interpolated += other.interpolated;
        self.extrapolated += other.extrapolated;
        self.farthest_percent = self.farthest_percent.max(other.farthest_percent);
        self.modelled += other.modelled;
    }

    /// All of the time.
    pub fn total(&self) -> Nanos {
        self.measured + self.interpolated + self.extrapolated + self.modelled
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total().get().max(1) as f64;
        let percent = |part: Nanos| part.get() as f64 / total * 100.0;
        write!(
            f,
            "measured {:.1} %, interpolated {:.1} %, extrapolated {:.1} % (by up to {} %), modelled {:.1} %",
            percent(self.measured),
            percent(self.interpolated),
            percent(self.extrapolated),
            self.farthest_percent,
            percent(self.modelled)
        )
    }
}
