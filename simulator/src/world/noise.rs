//! Noise that is keyed by what happens, not by when it is asked for.

use smallvec::SmallVec;

use slicescheduler_gmg::id::JobKey;
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::Launch;
use slicescheduler_gmg::semantics::OpKind;
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

    /// How long the operators of `launch` take in all. `costs` are those of all ranks of its gang, by rank; of a
    /// job that needs no others, its own alone.
    pub(super) fn length(&self, launch: &Launch, costs: &[JobCost]) -> Nanos {
        let mut length = Nanos::ZERO;
        self.boundaries(launch, costs, |_, at| {
            length = at;
            true
        });
        length
    }

    /// The first operator boundary of `launch` at least `elapsed` after its start: the operator that
    /// would be next, and the time from the start. A gang is there when its last rank is.
    pub(super) fn boundary(&self, launch: &Launch, costs: &[JobCost], elapsed: Nanos) -> (u32, Nanos) {
        let (mut next, mut total) = (launch.ops.start, Nanos::ZERO);
        self.boundaries(launch, costs, |op, at| {
            if total >= elapsed {
                return false;
            }
            (next, total) = (op + 1, at);
            true
        });
        (next, total)
    }

    /// Calls `visit` with the operators of `launch` and the time from its start at which they are done on all
    /// ranks, until it returns false.
    fn boundaries(&self, launch: &Launch, costs: &[JobCost], mut visit: impl FnMut(u32, Nanos) -> bool) {
        if let [cost] = costs {
            let mut total = Nanos::ZERO;
            return self.walk(launch, cost, |op, duration| {
                total += duration;
                visit(op, total)
            });
        }
        let bases: SmallVec<[u64; 8]> = (0..costs.len() as u32).map(|rank| self.base(launch.spec.key, rank)).collect();
        let shared = factor(self.base(launch.spec.key, 0), self.iteration);
        let mut done: SmallVec<[Nanos; 8]> = SmallVec::from_elem(Nanos::ZERO, costs.len());
        let latest = |done: &[Nanos]| done.iter().copied().max().unwrap_or(Nanos::ZERO);
        for segment in launch.template.segments() {
            let range = segment.op_range();
            let is_exchange = |slot| matches!(launch.template.kind(slot), Some(OpKind::Collective(_)));
            let exchanges: SmallVec<[bool; 32]> = segment.slots().map(is_exchange).collect();
            let planned: SmallVec<[u64; 64]> = (range.start..range.start + exchanges.len() as u32)
                .flat_map(|op| costs.iter().map(move |cost| scaled(cost.duration(op).get(), shared)))
                .collect();
            for op in range.start.max(launch.ops.start)..range.end.min(launch.ops.end) {
                let slot = (op - range.start) as usize % exchanges.len();
                let duration = |rank: usize| varied(planned[slot * costs.len() + rank], bases[rank], op, self.operator);
                if exchanges[slot] {
                    let longest = (0..costs.len()).map(duration).max().unwrap_or(Nanos(1));
                    let met = latest(&done) + longest;
                    done.fill(met);
                } else {
                    for (rank, done) in done.iter_mut().enumerate() {
                        *done += duration(rank);
                    }
                }
                if !visit(op, latest(&done)) {
                    return;
                }
            }
        }
    }

    /// Calls `visit` with the operators of `launch` and their durations until it returns false.
    fn walk(&self, launch: &Launch, cost: &JobCost, mut visit: impl FnMut(u32, Nanos) -> bool) {
        let base = self.base(launch.spec.key, rank(&launch.spec));
        let shared = factor(self.base(launch.spec.key, 0), self.iteration);
        for segment in launch.template.segments() {
            let range = segment.op_range();
            let (first, end) = (range.start.max(launch.ops.start), range.end.min(launch.ops.end));
            if first >= end {
                continue;
            }
            let length = segment.slots().len() as u32;
            let durations: SmallVec<[u64; 16]> =
                (0..length).map(|slot| scaled(cost.duration(range.start + slot).get(), shared)).collect();
            let mut slot = (first - range.start) % length;
            for op in first..end {
                if !visit(op, varied(durations[slot as usize], base, op, self.operator)) {
                    return;
                }
                slot += 1;
                if slot == length {
                    slot = 0;
                }
            }
        }
    }

    /// What varies the operators of one rank of an iteration; what all ranks share goes by that of rank 0.
    fn base(&self, key: JobKey, rank: u32) -> u64 {
        let place = u64::from(key.tenant) << 32 | u64::from(key.replica);
        let base = mix(mix(self.seed ^ mix(place)) ^ key.iteration);
        if rank == 0 { base } else { mix(base ^ mix(u64::from(rank))) }
    }
}

fn rank(spec: &JobSpec) -> u32 {
    spec.gang.map_or(0, |gang| gang.rank)
}

/// How long operator `op` takes, at least 1 ns, where `planned` is what it would take without noise.
fn varied(planned: u64, base: u64, op: u32, half_width: u64) -> Nanos {
    let own = factor(mix(base ^ u64::from(op + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)), half_width);
    Nanos(scaled(planned, own).max(1))
}

/// `nanos` times `factor`, saturating.
fn scaled(nanos: u64, factor: u64) -> u64 {
    u64::try_from(u128::from(nanos) * u128::from(factor) / u128::from(ONE)).unwrap_or(u64::MAX)
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

    // 100,000 hours are 3.6e17 ns; 1024 times as many have no place in 64 bits.
    #[test]
    fn the_longest_times_are_scaled_without_overflow() {
        let hours = 360_000_000_000_000_000;
        assert_eq!(scaled(hours, ONE), hours);
        assert_eq!(scaled(hours, ONE / 2), hours / 2);
        assert_eq!(scaled(u64::MAX, 2 * ONE), u64::MAX);
        assert_eq!(varied(hours, 1, 0, 0), Nanos(hours));
    }

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
