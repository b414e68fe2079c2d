//! The durations of one job, compiled.

use std::ops::Range;

use smallvec::SmallVec;

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::OpIndex;
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::Nanos;

use super::{Confidence, CostModel, Estimate, Operation};

/// A run of operators that is repeated with the same durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// Its first operator.
    first: u32,
    /// One past its last operator, over all repetitions.
    end: u32,
    /// Operators of one repetition; at least 1.
    length: u32,
    /// Where its row of `offsets` begins.
    row: u32,
    /// Time from the job's first operator to the run's.
    start: Nanos,
    /// Duration of one repetition.
    period: Nanos,
}

/// How long the operators of one job take on one kind of device.
///
/// Keeps one number per stored operator of the template, not per operator: what it says about a
/// range is exactly the sum over the operators of that range, and takes O(stored runs). Up to 16
/// stored operators it lives without an allocation.
///
/// No duration exceeds [`Nanos::MAX`] divided by the number of operators, so no sum saturates.
#[derive(Debug, PartialEq, Eq)]
pub struct JobCost {
    runs: SmallVec<[Run; 4]>,
    /// Per stored operator, the time from the start of its repetition.
    offsets: SmallVec<[Nanos; 16]>,
    total: Nanos,
    confidence: Confidence,
}

impl Clone for JobCost {
    fn clone(&self) -> Self {
        Self {
            runs: SmallVec::from_slice(&self.runs),
            offsets: SmallVec::from_slice(&self.offsets),
            total: self.total,
            confidence: self.confidence,
        }
    }
}

impl JobCost {
    /// Asks `model` for every stored operator of `template`. O(stored operators); allocates only
    /// for templates with more than 16 of them.
    pub fn bind(model: &dyn CostModel, template: &OpGraph, binding: &Binding, device: &DeviceSpec) -> Self {
        let mut cost = Self::empty();
        for segment in template.segments() {
            let ops = segment.op_range();
            let durations = (ops.start..).zip(segment.slots()).filter_map(|(index, slot)| {
                let (op, kind) = (template.op(OpIndex(index))?, template.kind(slot)?);
                let operation = Operation { template, op, kind, cost: template.cost(slot, binding), binding, device };
                Some(model.estimate(&operation))
            });
            cost.push_run(ops, segment.repeat(), template.op_count(), durations);
        }
        cost
    }

    /// The durations of a job without repetitions, one per operator; zero counts as 1 ns.
    pub fn from_durations(durations: &[Nanos]) -> Self {
        Self::from_block(durations, 1)
    }

    /// The durations of a job that is one block, repeated `repeat` times; zero counts as 1 ns.
    pub fn from_block(durations: &[Nanos], repeat: u32) -> Self {
        let mut cost = Self::empty();
        let count = u32::try_from(durations.len()).unwrap_or(u32::MAX);
        let length = count.min(u32::MAX / repeat.max(1));
        let ops = length * repeat;
        let measured = |&duration| Estimate { duration, confidence: Confidence::Measured };
        cost.push_run(0..ops, repeat, ops, durations[..length as usize].iter().map(measured));
        cost
    }

    /// Appends a block of operators that is repeated `repeat` times; `all` operators are to be in
    /// the job in the end.
    pub(super) fn push_run(
        &mut self,
        ops: Range<u32>,
        repeat: u32,
        all: u32,
        estimates: impl Iterator<Item = Estimate>,
    ) {
        if ops.is_empty() {
            return;
        }
        let cap = Nanos(u64::MAX / u64::from(all.max(1)));
        let row = self.offsets.len() as u32;
        let mut period = Nanos::ZERO;
        let mut confidence = self.confidence;
        self.offsets.extend(estimates.map(|estimate| {
            let start = period;
            confidence = confidence.max(estimate.confidence);
            period += estimate.duration.max(Nanos(1)).min(cap);
            start
        }));
        self.confidence = confidence;
        let length = self.offsets.len() as u32 - row;
        if length > 0 {
            self.runs.push(Run { first: ops.start, end: ops.end, length, row, start: self.total, period });
            self.total += period.times(u64::from(repeat));
        }
    }

    pub(super) fn empty() -> Self {
        Self { runs: SmallVec::new(), offsets: SmallVec::new(), total: Nanos::ZERO, confidence: Confidence::Measured }
    }

    /// The number of operators.
    pub fn op_count(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.end)
    }

    /// The worst confidence among the operators.
    pub fn confidence(&self) -> Confidence {
        self.confidence
    }

    /// How long operator `op` takes; zero if the job has no such operator.
    pub fn duration(&self, op: u32) -> Nanos {
        self.total(op..op.saturating_add(1))
    }

    /// How long the operators of `ops` take one after another: the sum of their durations.
    pub fn total(&self, ops: Range<u32>) -> Nanos {
        if ops.start == 0 && ops.end >= self.op_count() {
            return self.total;
        }
        self.before(ops.end) - self.before(ops.start)
    }

    /// The first operator boundary of `ops` that is not before `elapsed`, counted from the start
    /// of `ops`: the operator that would be next there (the end of `ops` if none is left), and the
    /// time at which it is reached. O(stored operators).
    ///
    /// ```
    /// use slicescheduler_gmg::units::Nanos;
    /// use slicescheduler_simulator::cost::JobCost;
    ///
    /// let cost = JobCost::from_block(&[Nanos(10), Nanos(5)], 3);
    /// assert_eq!(cost.boundary_at_or_after(1..6, Nanos(16)), (4, Nanos(20)));
    /// assert_eq!(cost.boundary_at_or_after(1..6, Nanos(20)), (4, Nanos(20)));
    /// assert_eq!(cost.boundary_at_or_after(1..6, Nanos(99)), (6, Nanos(35)));
    /// ```
    pub fn boundary_at_or_after(&self, ops: Range<u32>, elapsed: Nanos) -> (u32, Nanos) {
        let origin = self.before(ops.start);
        let target = origin + elapsed;
        let next = self.first_boundary(target).clamp(ops.start, ops.end.max(ops.start));
        (next, self.before(next) - origin)
    }

    /// How long the shortest operator takes; [`Nanos::MAX`] without any. O(stored operators).
    pub(crate) fn shortest(&self) -> Nanos {
        let of_run = |run: &Run| {
            let row = &self.offsets[run.row as usize..(run.row + run.length) as usize];
            let ends = row.iter().skip(1).copied().chain([run.period]);
            row.iter().zip(ends).map(|(start, end)| end - *start).min()
        };
        self.runs.iter().filter_map(of_run).min().unwrap_or(Nanos::MAX)
    }

    /// Where operator `op` is among the stored ones, as
    /// [`JobDemand`](crate::interference::JobDemand) counts them; 0 if the job has no such operator.
    pub(crate) fn stored(&self, op: u32) -> usize {
        let run = self.runs.iter().find(|run| op < run.end);
        run.map_or(0, |run| (run.row + op.saturating_sub(run.first) % run.length) as usize)
    }

    /// The time from the job's first operator to the start of `op`.
    fn before(&self, op: u32) -> Nanos {
        let Some(run) = self.runs.iter().find(|run| op < run.end) else { return self.total };
        let offset = op.saturating_sub(run.first);
        let (repetition, within) = (offset / run.length, offset % run.length);
        run.start + run.period.times(u64::from(repetition)) + self.offsets[(run.row + within) as usize]
    }

    /// The first operator that starts at or after `target`; the number of operators if none does.
    fn first_boundary(&self, target: Nanos) -> u32 {
        let Some(run) = self.runs.iter().rfind(|run| run.start < target) else { return 0 };
        let elapsed = target - run.start;
        let repetition = elapsed.get() / run.period.get();
        let rest = Nanos(elapsed.get() % run.period.get());
        let repetitions = u64::from((run.end - run.first) / run.length);
        if repetition >= repetitions {
            return run.end;
        }
        let row = &self.offsets[run.row as usize..(run.row + run.length) as usize];
        let within = row.partition_point(|&offset| offset < rest) as u32;
        run.first + repetition as u32 * run.length + within
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same durations, spelled out.
    fn expanded(block: &[u64], repeat: u32) -> Vec<u64> {
        block.iter().map(|&duration| duration.max(1)).cycle().take(block.len() * repeat as usize).collect()
    }

    #[test]
    fn no_sum_saturates() {
        let cost = JobCost::from_block(&[Nanos::MAX, Nanos(7)], 1000);
        assert!(cost.total(0..2000) < Nanos::MAX);
        assert_eq!(cost.total(1998..2000), cost.duration(1998) + cost.duration(1999));
    }

    #[test]
    fn a_job_without_operators_takes_no_time() {
        let cost = JobCost::from_durations(&[]);
        assert_eq!(cost.total(0..5), Nanos::ZERO);
        assert_eq!(cost.boundary_at_or_after(0..0, Nanos(3)), (0, Nanos::ZERO));
    }

    proptest! {
        #[test]
        fn a_range_takes_the_sum_of_its_operators(
            block in prop::collection::vec(0u64..50, 1..20),
            repeat in 1u32..6,
            ends in (0u32..120, 0u32..120),
        ) {
            let durations = expanded(&block, repeat);
            let block: Vec<_> = block.into_iter().map(Nanos).collect();
            let cost = JobCost::from_block(&block, repeat);
            let count = durations.len() as u32;
            let (first, end) = (ends.0.min(ends.1).min(count), ends.0.max(ends.1).min(count));
            let sum: u64 = durations[first as usize..end as usize].iter().sum();
            prop_assert_eq!(cost.total(first..end), Nanos(sum));
            prop_assert_eq!(cost.op_count(), count);
            for (op, &duration) in (0..).zip(&durations) {
                prop_assert_eq!(cost.duration(op), Nanos(duration));
            }
        }

        #[test]
        fn a_boundary_is_the_first_one_that_is_not_earlier(
            block in prop::collection::vec(0u64..50, 1..20),
            repeat in 1u32..6,
            ends in (0u32..120, 0u32..120),
            elapsed in 0u64..4000,
        ) {
            let durations = expanded(&block, repeat);
            let block: Vec<_> = block.into_iter().map(Nanos).collect();
            let cost = JobCost::from_block(&block, repeat);
            let count = durations.len() as u32;
            let (first, end) = (ends.0.min(ends.1).min(count), ends.0.max(ends.1).min(count));
            let (mut next, mut at) = (first, 0);
            while next < end && at < elapsed {
                at += durations[next as usize];
                next += 1;
            }
            prop_assert_eq!(cost.boundary_at_or_after(first..end, Nanos(elapsed)), (next, Nanos(at)));
        }
    }
}
