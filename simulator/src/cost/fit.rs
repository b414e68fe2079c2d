//! Rooflines fitted to measured tables, for devices and operators that nobody measured.

use super::roofline::{Efficiency, Profile};
use crate::profile::{DeviceProfile, ErrorSummary, Measure, Scaling};
use slicescheduler_gmg::units::Nanos;

/// Samples of a kind that are looked at, at most; more tables than this are thinned out evenly.
const MOST: usize = 20_000;
/// Passes over the parameters; each halves the step.
const PASSES: u32 = 12;

/// The kinds of operators that have an efficiency of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Products with a weight.
    MatMul,
    /// Attention, of prompts and decoding sequences.
    Attention,
    /// What is bound by its memory traffic.
    Other,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::MatMul, Self::Attention, Self::Other];

    /// The family of a table's operators, if rooflines are for them.
    fn of(measure: &Measure) -> Option<Self> {
        match measure {
            // Products with scales in blocks have an overhead of their own, tens of microseconds.
            Measure::MatMul { scaling: Scaling::Whole, .. } => Some(Self::MatMul),
            Measure::Prefill(shape) | Measure::Chunk(shape) | Measure::Decode(shape) if shape.window == 0 => {
                Some(Self::Attention)
            }
            Measure::Elementwise(_) => Some(Self::Other),
            _ => None,
        }
    }
}

/// A roofline profile and how well it fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The profile; families without a sample keep the figures of the one that the fit started at.
    pub profile: Profile,
    /// The errors over the samples that it was fitted to.
    pub errors: Vec<(Family, ErrorSummary)>,
}

/// A measured operator: its times at the device's peaks and its duration, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Sample {
    computing: f64,
    moving: f64,
    nanos: f64,
}

/// Fits the efficiencies of every family to the samples of `profiles`, starting at `start`: those
/// with the least mean relative error, by a search that halves its steps. Deterministic.
///
/// The overhead of `start` stays; what a family takes beyond it is its latency.
pub fn fit<'a>(profiles: impl IntoIterator<Item = &'a DeviceProfile>, start: Profile) -> Fit {
    let profiles: Vec<_> = profiles.into_iter().collect();
    let mut profile = start;
    let mut errors = Vec::new();
    for family in Family::ALL {
        let samples: Vec<_> = profiles.iter().flat_map(|profile| samples(profile, family)).collect();
        let step = samples.len().div_ceil(MOST).max(1);
        let thin: Vec<_> = samples.iter().copied().step_by(step).collect();
        if thin.is_empty() {
            continue;
        }
        let place = profile.family_mut(family);
        *place = search(&thin, *place, start.overhead);
        errors.push((family, judge(&samples, profile.family(family), start.overhead)));
    }
    Fit { profile, errors }
}

impl Profile {
    /// How far a roofline with this profile is off the samples of `measured`, by family.
    pub fn judge(&self, measured: &DeviceProfile) -> Vec<(Family, ErrorSummary)> {
        let errors = Family::ALL.map(|family| {
            let samples: Vec<_> = samples(measured, family).collect();
            (family, judge(&samples, self.family(family), self.overhead))
        });
        errors.into_iter().filter(|(_, errors)| errors.count > 0).collect()
    }

    /// The efficiency of a family.
    pub fn family(&self, family: Family) -> &Efficiency {
        match family {
            Family::MatMul => &self.matmul,
            Family::Attention => &self.attention,
            Family::Other => &self.other,
        }
    }

    fn family_mut(&mut self, family: Family) -> &mut Efficiency {
        match family {
            Family::MatMul => &mut self.matmul,
            Family::Attention => &mut self.attention,
            Family::Other => &mut self.other,
        }
    }
}

fn samples(profile: &DeviceProfile, family: Family) -> impl Iterator<Item = Sample> {
    let device = profile.device();
    let tables = profile.tables().filter(move |(measure, _)| Family::of(measure) == Some(family));
    tables.flat_map(move |(measure, table)| {
        table.measured_points().filter_map(move |(point, nanos)| {
            let work = measure.work(&point)?;
            let computing = work.flops / device.rate(work.unit).get() as f64 * 1e9;
            let moving = work.bytes / device.bandwidth.get() as f64 * 1e9;
            Some(Sample { computing, moving, nanos })
        })
    })
}

fn estimate(sample: &Sample, efficiency: &Efficiency, overhead: Nanos) -> f64 {
    let (computing, moving) = (sample.computing / efficiency.compute, sample.moving / efficiency.bandwidth);
    (overhead + efficiency.latency).get() as f64 + computing.max(moving)
}

fn judge(samples: &[Sample], efficiency: &Efficiency, overhead: Nanos) -> ErrorSummary {
    ErrorSummary::of(samples.iter().map(|sample| estimate(sample, efficiency, overhead) / sample.nanos - 1.0))
}

/// The efficiency with the least mean error near `start`.
fn search(samples: &[Sample], start: Efficiency, overhead: Nanos) -> Efficiency {
    let error = |efficiency: &Efficiency| {
        let errors = samples.iter().map(|sample| (estimate(sample, efficiency, overhead) / sample.nanos - 1.0).abs());
        errors.sum::<f64>()
    };
    let mut best = (error(&start), start);
    let mut scale = 1.0;
    for _ in 0..PASSES {
        // A parameter is moved as long as that helps.
        loop {
            let Efficiency { compute, bandwidth, latency } = best.1;
            let share = |value: f64, by: f64| (value * by).clamp(0.001, 1.0);
            let later = (6_000.0 * scale) as u64;
            let moved = [
                Efficiency { compute: share(compute, 1.0 + scale), ..best.1 },
                Efficiency { compute: share(compute, 1.0 / (1.0 + scale)), ..best.1 },
                Efficiency { bandwidth: share(bandwidth, 1.0 + scale), ..best.1 },
                Efficiency { bandwidth: share(bandwidth, 1.0 / (1.0 + scale)), ..best.1 },
                Efficiency { latency: latency + Nanos(later), ..best.1 },
                Efficiency { latency: latency - Nanos(later), ..best.1 },
            ];
            let tried = moved.map(|efficiency| (error(&efficiency), efficiency));
            let Some(better) = tried.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).filter(|tried| tried.0 < best.0)
            else {
                break;
            };
            best = better;
        }
        scale *= 0.5;
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Table;
    use slicescheduler_gmg::cluster::DeviceSpec;
    use slicescheduler_gmg::dtype::DType;

    /// A profile of products that follow a roofline exactly.
    fn exact(device: DeviceSpec, truth: Efficiency) -> DeviceProfile {
        let measure = Measure::MatMul { weight: DType::BF16, scaling: Scaling::Whole };
        let mut table = Table::builder(measure.axes());
        for m in [1.0, 16.0, 64.0, 256.0, 1024.0, 4096.0] {
            for (n, k) in [(4096.0, 4096.0), (28_672.0, 4096.0), (4096.0, 14_336.0)] {
                let work = measure.work(&[m, n, k]).unwrap();
                let computing = work.flops / (truth.compute * device.rate(DType::BF16).get() as f64) * 1e9;
                let moving = work.bytes / (truth.bandwidth * device.bandwidth.get() as f64) * 1e9;
                let overhead = Profile::GPU.overhead + truth.latency;
                table.sample(&[m, n, k], overhead.get() as f64 + computing.max(moving)).unwrap();
            }
        }
        DeviceProfile::new(device).with(measure, table.build().unwrap())
    }

    #[test]
    fn a_known_roofline_is_found_and_holds_on_another_device() {
        let truth = Efficiency { compute: 0.61, bandwidth: 0.72, latency: Nanos(3_300) };
        let fitted = fit([&exact(DeviceSpec::h100_sxm(), truth)], Profile::GPU);
        let [(Family::MatMul, errors)] = *fitted.errors else { panic!("{fitted:?}") };
        assert!(errors.mean < 0.005, "{fitted:?}");
        assert_eq!(fitted.profile.attention, Profile::GPU.attention);
        let [(Family::MatMul, elsewhere)] = *fitted.profile.judge(&exact(DeviceSpec::l4(), truth)) else { panic!() };
        assert!(elsewhere.mean < 0.01, "{elsewhere:?}");
    }
}
