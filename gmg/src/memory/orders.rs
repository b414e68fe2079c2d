//! Whether memory suffices in every order in which work may happen.
//!
//! Lanes run beside each other and nobody knows which is faster. A step takes bytes when it starts and
//! frees bytes when it finishes; all that is certain is which steps come before which, on a lane or
//! along an edge. What has happened at some moment is a set of starts and finishes that holds with
//! each also everything before it, and every such set is reached by some order. So the most that can
//! ever be in use is the heaviest such set: a closure of greatest weight, which a minimum cut gives
//! exactly (Picard 1976).

use petgraph::algo::ford_fulkerson;
use petgraph::graph::{DiGraph, NodeIndex};

use crate::id::{DeviceId, LaneId};
use crate::plan::Rank;
use crate::units::Bytes;
use crate::view::GmgView;

/// Work on one device that takes and frees memory, in all orders that are possible.
///
/// ```
/// use slicescheduler_gmg::memory::Orders;
/// use slicescheduler_gmg::units::Bytes;
///
/// // Two lanes with two steps each, all of which free what they take.
/// let mut orders = Orders::new(Bytes(100));
/// let [a, b, c, d] = [30, 10, 20, 40].map(|bytes| orders.step(Bytes(bytes), Bytes(bytes)));
/// orders.before(a, b)?;
/// orders.before(c, d)?;
/// assert_eq!(orders.peak(), Bytes(100 + 30 + 40));
/// orders.before(a, d)?;
/// assert_eq!(orders.peak(), Bytes(100 + 10 + 40));
/// # Ok::<(), slicescheduler_gmg::memory::NotBefore>(())
/// ```
#[derive(Clone, Debug)]
pub struct Orders {
    in_use: Bytes,
    steps: Vec<(Bytes, Bytes)>,
    edges: Vec<(Step, Step)>,
}

/// A step of one [`Orders`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step(u32);

/// Steps are entered in an order in which they could happen; a later one cannot come before an
/// earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("step {} cannot come before step {}, which was entered no later, or one of them does not exist", first.0, then.0)]
pub struct NotBefore {
    /// What was to come first.
    pub first: Step,
    /// What was to come behind.
    pub then: Step,
}

/// More may be in use at some moment than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("up to {peak} may be in use at a time, in an order that is possible; there are {capacity}")]
pub struct MayExceed {
    /// The most that may be in use.
    pub peak: Bytes,
    /// What there is.
    pub capacity: Bytes,
}

impl Orders {
    /// No work, on a device with `in_use` bytes in use.
    pub fn new(in_use: Bytes) -> Self {
        Self { in_use, steps: Vec::new(), edges: Vec::new() }
    }

    /// What is queued on the lanes of `device`, on top of what is in use there. The activations of queued
    /// jobs are reserved already, so their steps take nothing, and free them with their last operators.
    ///
    /// Appends to `last` the last step of each lane and rank, behind which more work of that rank comes.
    /// Work of another rank may go first or not: a running entry may be about to yield.
    pub fn queued(view: &impl GmgView, device: DeviceId, last: &mut Vec<(LaneId, Rank, Step)>) -> Self {
        let mut orders = Self::new(view.memory(device).map_or(Bytes::ZERO, |memory| memory.ledger().total()));
        let lanes = view.cluster().devices().get(device.index()).map_or(0, |device| device.spec.lanes);
        for id in (0..lanes).map(|index| LaneId::new(device, index)) {
            let mut before: Option<(Rank, Step)> = None;
            for entry in view.lane(id).map_or(&[][..], |lane| lane.queue()) {
                let job = view.job(entry.job).filter(|job| job.op_count() == entry.ops.end);
                let arena = job.and_then(|job| job.arena).filter(|&(on, _)| on == device);
                let step = orders.step(Bytes::ZERO, arena.map_or(Bytes::ZERO, |(_, region)| region.bytes));
                match before {
                    Some((rank, first)) if rank == entry.rank => orders.edges.push((first, step)),
                    Some((rank, first)) => last.push((id, rank, first)),
                    None => {}
                }
                before = Some((entry.rank, step));
            }
            last.extend(before.map(|(rank, step)| (id, rank, step)));
        }
        orders
    }

    /// Enters a step. `takes` are in use from its start, and `frees`, which it or a step before it took
    /// or which were in use already, until its finish.
    pub fn step(&mut self, takes: Bytes, frees: Bytes) -> Step {
        self.steps.push((takes, frees));
        Step(self.steps.len() as u32 - 1)
    }

    /// `first` finishes before `then` starts.
    ///
    /// # Errors
    /// If `first` was not entered before `then`: so no cycle can arise.
    pub fn before(&mut self, first: Step, then: Step) -> Result<(), NotBefore> {
        if first >= then || then.0 as usize >= self.steps.len() {
            return Err(NotBefore { first, then });
        }
        self.edges.push((first, then));
        Ok(())
    }

    /// The most bytes that are in use at any moment of any order. Exact.
    ///
    /// O(n^2 m) in the worst case for n steps and m edges, as a minimum cut is; windows have tens of
    /// steps. Ask [`admit`](Self::admit), which looks for a cut only when simpler bounds do not decide.
    pub fn peak(&self) -> Bytes {
        let weight = |bytes: Bytes| u128::from(bytes.get());
        let taken: u128 = self.steps.iter().map(|&(takes, _)| weight(takes)).sum();
        let beyond = taken + self.steps.iter().map(|&(_, frees)| weight(frees)).sum::<u128>() + 1;
        let mut cut = DiGraph::<(), u128>::new();
        let (source, sink) = (cut.add_node(()), cut.add_node(()));
        let events: Vec<(NodeIndex, NodeIndex)> =
            self.steps.iter().map(|_| (cut.add_node(()), cut.add_node(()))).collect();
        for (&(start, finish), &(takes, frees)) in events.iter().zip(&self.steps) {
            cut.add_edge(source, start, weight(takes));
            cut.add_edge(finish, sink, weight(frees));
            cut.add_edge(finish, start, beyond);
        }
        for &(first, then) in &self.edges {
            cut.add_edge(events[then.0 as usize].0, events[first.0 as usize].1, beyond);
        }
        let (flow, _) = ford_fulkerson(&cut, source, sink);
        let more = u64::try_from(taken - flow).unwrap_or(u64::MAX);
        Bytes(self.in_use.get().saturating_add(more))
    }

    /// Refuses the work if any order may need more than `capacity`. O(n) where everything fits at once.
    ///
    /// [`Gmg::accept`](crate::Gmg::accept) needs no such test: it reserves what an entry takes when the entry is
    /// placed, so what runs first cannot matter. This is the question of planners that want to place work
    /// whose bytes are there only once others have ended.
    ///
    /// # Errors
    /// With the exact peak.
    ///
    /// ```
    /// use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
    /// use slicescheduler_gmg::id::DeviceId;
    /// use slicescheduler_gmg::memory::{MayExceed, Orders};
    /// use slicescheduler_gmg::units::Bytes;
    /// use slicescheduler_gmg::{Gmg, GmgView};
    ///
    /// let cluster = Cluster::builder().node("a", |node| node.devices(1, DeviceSpec::h100_sxm())).build()?;
    /// let gmg = Gmg::new(cluster);
    /// let mut last = Vec::new();
    /// let mut orders = Orders::queued(&gmg.view(), DeviceId(0), &mut last);
    /// // Two steps in two lanes.
    /// let usable = Bytes::gib(60);
    /// let (half, third) = (Bytes::gib(30), Bytes::gib(20));
    /// orders.step(half, half);
    /// let second = orders.step(third, third);
    /// assert_eq!(orders.admit(usable), Ok(()));
    /// // Behind the second, in its lane, a third one. It may run while the first does, and then they do not fit.
    /// let behind = orders.step(third + third, third + third);
    /// orders.before(second, behind)?;
    /// assert_eq!(orders.admit(usable), Err(MayExceed { peak: Bytes::gib(70), capacity: usable }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn admit(&self, capacity: Bytes) -> Result<(), MayExceed> {
        let all = self.steps.iter().fold(self.in_use.get(), |all, (takes, _)| all.saturating_add(takes.get()));
        if all <= capacity.get() {
            return Ok(());
        }
        let peak = self.peak();
        if peak <= capacity { Ok(()) } else { Err(MayExceed { peak, capacity }) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Starts and finishes in every order that is possible, one after the other.
    fn enumerate(orders: &Orders, started: &mut Vec<bool>, finished: &mut Vec<bool>, used: i64, peak: &mut i64) {
        *peak = (*peak).max(used);
        for step in 0..orders.steps.len() {
            let waits = |finished: &[bool]| {
                orders.edges.iter().any(|(first, then)| then.0 as usize == step && !finished[first.0 as usize])
            };
            let (takes, frees) = orders.steps[step];
            if !started[step] && !waits(finished) {
                started[step] = true;
                enumerate(orders, started, finished, used + takes.get() as i64, peak);
                started[step] = false;
            } else if started[step] && !finished[step] {
                finished[step] = true;
                enumerate(orders, started, finished, used - frees.get() as i64, peak);
                finished[step] = false;
            }
        }
    }

    proptest! {
        #[test]
        fn the_peak_is_the_greatest_of_all_orders(
            steps in prop::collection::vec((0u64..9, 0u64..9), 1..6),
            edges in prop::collection::vec((0u32..6, 0u32..6), 0..7),
            in_use in 50u64..60,
        ) {
            let mut orders = Orders::new(Bytes(in_use));
            for (takes, frees) in steps {
                orders.step(Bytes(takes), Bytes(frees));
            }
            for (first, then) in edges {
                let count = orders.steps.len() as u32;
                let possible = first < then && then < count;
                prop_assert_eq!(orders.before(Step(first), Step(then)).is_ok(), possible);
            }
            let count = orders.steps.len();
            let mut peak = 0;
            enumerate(&orders, &mut vec![false; count], &mut vec![false; count], in_use as i64, &mut peak);
            prop_assert_eq!(orders.peak(), Bytes(peak as u64));
            prop_assert_eq!(orders.admit(Bytes(peak as u64)), Ok(()));
            let short = Bytes(peak as u64 - 1);
            prop_assert_eq!(orders.admit(short), Err(MayExceed { peak: Bytes(peak as u64), capacity: short }));
        }
    }

    #[test]
    fn absurd_sizes_are_counted_without_overflow() {
        let mut orders = Orders::new(Bytes(u64::MAX));
        let one = orders.step(Bytes(u64::MAX), Bytes::ZERO);
        let two = orders.step(Bytes(u64::MAX), Bytes(u64::MAX));
        orders.before(one, two).unwrap();
        assert_eq!(orders.peak(), Bytes(u64::MAX));
        assert!(orders.before(two, two).is_err() && orders.before(one, Step(9)).is_err());
    }
}
