//! Noise that is keyed by what happens, not by when it is asked for.

use slicescheduler_gmg::id::JobKey;
use slicescheduler_gmg::plan::Launch;
use slicescheduler_gmg::units::Nanos;

use crate::cost::JobCost;

/// Factors are in units of 1 / 1024.
const ONE: u64 = 1024;

/// The noise of one world. Factors are uniform around one, in integer arithmetic.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    seed: u64,
    operator: u64,
    iteration: u64,
}

impl Noise {
    /// Standard deviations in percent of the duration.
    pub fn new(seed: u64, operator_percent: u32, iteration_percent: u32) -> Self {
        Self { seed, operator: half_width(operator_percent), iteration: half_width(iteration_percent) }
    }

    /// How long the operators of `launch` take in all.
    pub(super) fn length(&self, launch: &Launch, cost: &JobCost) -> Nanos {
        let mut total = Nanos::ZERO;
        self.walk(launch, cost, |_, duration| {
            total += duration;
            true
        });
        total
    }

    /// The first operator boundary of `launch` at least `elapsed` after its start: the operator that
    /// would be next, and the time from the start.
    pub(super) fn boundary(&self, launch: &Launch, cost: &JobCost, elapsed: Nanos) -> (u32, Nanos) {
        let (mut next, mut total) = (launch.ops.start, Nanos::ZERO);
        self.walk(launch, cost, |op, duration| {
            if total >= elapsed {
                return false;
            }
            total += duration;
            next = op + 1;
            true
        });
        (next, total)
    }

    /// Calls `visit` with the operators of `launch` and their durations until it returns false.
    fn walk(&self, launch: &Launch, cost: &JobCost, mut visit: impl FnMut(u32, Nanos) -> bool) {
        let base = self.base(launch.spec.key);
        let shared = factor(base, self.iteration);
        for segment in launch.template.segments() {
            let range = segment.op_range();
            let (first, end) = (range.start.max(launch.ops.start), range.end.min(launch.ops.end));
            if first >= end {
                continue;
            }
            let length = segment.slots().len() as u32;
            let durations: smallvec::SmallVec<[u64; 16]> =
                (0..length).map(|slot| cost.duration(range.start + slot).get() * shared / ONE).collect();
            let mut slot = (first - range.start) % length;
            for op in first..end {
                let own = factor(mix(base ^ u64::from(op + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)), self.operator);
                let duration = Nanos((durations[slot as usize].saturating_mul(own) / ONE).max(1));
                if !visit(op, duration) {
                    return;
                }
                slot += 1;
                if slot == length {
                    slot = 0;
                }
            }
        }
    }

    fn base(&self, key: JobKey) -> u64 {
        let place = u64::from(key.tenant) << 32 | u64::from(key.replica);
        mix(mix(self.seed ^ mix(place)) ^ key.iteration)
    }
}

/// Half the width of a uniform distribution with this standard deviation, in units of 1 / 1024:
/// the deviation times the square root of 3, at most one.
fn half_width(percent: u32) -> u64 {
    (u64::from(percent) * 17_737 / 1_000).min(ONE)
}

/// A factor within `half_width` of one.
fn factor(random: u64, half_width: u64) -> u64 {
    ONE - half_width + (((random >> 40) * (2 * half_width + 1)) >> 24)
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
/// OOPSLA 2014).
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_have_the_mean_and_the_deviation_asked_for() {
        for percent in [0, 5, 10, 50] {
            let width = half_width(percent);
            let factors: Vec<f64> = (0..100_000).map(|i| factor(mix(i), width) as f64 / ONE as f64).collect();
            let mean = factors.iter().sum::<f64>() / 1e5;
            let variance = factors.iter().map(|f| (f - mean).powi(2)).sum::<f64>() / 1e5;
            assert!((mean - 1.0).abs() < 0.003, "{percent} %: mean {mean}");
            assert!((variance.sqrt() - f64::from(percent) / 100.0).abs() < 0.005, "{percent} %: {}", variance.sqrt());
        }
    }
}
