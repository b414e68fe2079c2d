//! Runs of operators in the same state.
//!
//! A run is kept as 28 bytes: where it begins, its state, its lane and its times. It ends where the
//! next one begins. Two runs lie in the job itself. A job that is cut into more gets one array on the
//! heap, and a larger one when it is cut into more than [`SPILLED`]; that one has room for every
//! operator on its own, so a job allocates for its states twice in its life at most, and never more
//! than 28 bytes per operator.

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;

use crate::id::{DeviceId, LaneId};
use crate::job::StoredState;
use crate::units::Nanos;

/// A run of consecutive operators in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Segment {
    /// First operator.
    pub first: u32,
    /// One past the last operator.
    pub end: u32,
    /// Their state.
    pub state: StoredState,
    /// Where they were placed.
    pub lane: Option<LaneId>,
    /// When the first of them started, once known.
    pub start: Nanos,
    /// When the last of them finished, once known.
    pub finish: Nanos,
}

impl Segment {
    fn same_kind(&self, other: &Self) -> bool {
        self.state == other.state
            && self.lane == other.lane
            && (self.state == StoredState::Pending || self.start == other.start)
    }
}

/// A segment without its end. Times are halved into words, so that nothing is lost to alignment.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Run {
    first: u32,
    /// [`NOWHERE`] for operators that were not placed.
    device: u32,
    start: [u32; 2],
    finish: [u32; 2],
    lane: u16,
    state: StoredState,
}

/// No device has this number: a cluster has fewer than 2^32 - 1.
const NOWHERE: u32 = u32::MAX;

/// Runs for which the first array on the heap has room.
const SPILLED: usize = 16;

impl Run {
    #[inline]
    fn of(segment: &Segment) -> Self {
        let (device, lane) = segment.lane.map_or((NOWHERE, 0), |lane| (lane.device.0, lane.index));
        Self {
            first: segment.first,
            device,
            start: halves(segment.start),
            finish: halves(segment.finish),
            lane,
            state: segment.state,
        }
    }

    #[inline]
    fn lane(&self) -> Option<LaneId> {
        (self.device != NOWHERE).then(|| LaneId::new(DeviceId(self.device), self.lane))
    }

    #[inline]
    fn segment(&self, end: u32) -> Segment {
        Segment {
            first: self.first,
            end,
            state: self.state,
            lane: self.lane(),
            start: joined(self.start),
            finish: joined(self.finish),
        }
    }
}

fn halves(time: Nanos) -> [u32; 2] {
    [(time.get() >> 32) as u32, time.get() as u32]
}

fn joined([high, low]: [u32; 2]) -> Nanos {
    Nanos(u64::from(high) << 32 | u64::from(low))
}

/// The segments of a job: ascending, without gaps or overlap, covering every operator; no two
/// neighbours could be one.
#[derive(PartialEq, Eq)]
pub struct Segments {
    runs: SmallVec<[Run; 2]>,
    end: u32,
}

impl Segments {
    /// Bytes that a segment takes.
    pub const SEGMENT_BYTES: usize = size_of::<Run>();

    /// `ops` operators, all pending.
    pub fn pending(ops: u32) -> Self {
        let mut runs = SmallVec::new();
        if ops > 0 {
            let times = (Nanos::ZERO, Nanos::ZERO);
            let (state, lane, (start, finish)) = (StoredState::Pending, None, times);
            runs.push(Run::of(&Segment { first: 0, end: ops, state, lane, start, finish }));
        }
        Self { runs, end: ops }
    }

    /// The segments of `ops` operators, given in order; [`None`] if there could not be these.
    #[cfg(feature = "serde")]
    pub(crate) fn of(ops: u32, segments: &[Segment]) -> Option<Self> {
        let mut next = 0;
        for segment in segments {
            if segment.first != next || segment.end <= next || segment.end > ops {
                return None;
            }
            next = segment.end;
        }
        let joined = segments.windows(2).any(|pair| pair[0].same_kind(&pair[1]));
        (next == ops && !joined).then(|| Self { runs: segments.iter().map(Run::of).collect(), end: ops })
    }

    /// The segments in operator order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Segment> + DoubleEndedIterator + Clone + '_ {
        (0..self.runs.len()).map(|index| self.segment(index))
    }

    /// The segment that holds `op`. O(log segments).
    #[inline]
    pub fn at(&self, op: u32) -> Option<Segment> {
        (op < self.end).then(|| self.segment(self.index_of(op)))
    }

    /// True if every operator of `ops` satisfies `holds`; true for an empty range.
    #[inline]
    pub fn all(&self, ops: Range<u32>, mut holds: impl FnMut(&Segment) -> bool) -> bool {
        self.overlap(&ops).all(|index| holds(&self.segment(index)))
    }

    /// True if every operator is done.
    #[inline]
    pub fn all_done(&self) -> bool {
        self.runs.iter().all(|run| run.state == StoredState::Done)
    }

    /// True if some operator is in a state that `holds`.
    #[inline]
    pub fn any_state(&self, mut holds: impl FnMut(StoredState) -> bool) -> bool {
        self.runs.iter().any(|run| holds(run.state))
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        if self.runs.spilled() { self.runs.capacity() * size_of::<Run>() } else { 0 }
    }

    /// Rewrites the operators of `ops`: splits segments at the borders, applies `change` to each
    /// piece inside, and joins neighbours that have become alike. O(log segments) to find them, and
    /// O(segments of `ops` and behind) to move them.
    #[inline]
    pub fn update(&mut self, ops: Range<u32>, mut change: impl FnMut(&mut Segment)) {
        let ops = ops.start..ops.end.min(self.end);
        if ops.start >= ops.end {
            return;
        }
        if let [only] = self.runs.as_mut_slice()
            && ops == (0..self.end)
        {
            let mut segment = only.segment(self.end);
            change(&mut segment);
            *only = Run::of(&segment);
        } else {
            self.update_some(ops, &mut change);
        }
    }

    fn update_some(&mut self, ops: Range<u32>, change: &mut dyn FnMut(&mut Segment)) {
        let changed = self.overlap(&ops);
        let around = changed.start.saturating_sub(1)..(changed.end + 1).min(self.runs.len());
        let mut pieces: SmallVec<[Segment; 5]> = SmallVec::new();
        for index in around.clone() {
            let segment = self.segment(index);
            let (first, end) = (segment.first.max(ops.start), segment.end.min(ops.end));
            if first >= end {
                push_joined(&mut pieces, segment);
                continue;
            }
            if segment.first < first {
                push_joined(&mut pieces, Segment { end: first, ..segment });
            }
            let mut inside = Segment { first, end, ..segment };
            change(&mut inside);
            push_joined(&mut pieces, inside);
            if end < segment.end {
                push_joined(&mut pieces, Segment { first: end, ..segment });
            }
        }
        self.replace(around, &pieces);
    }

    fn replace(&mut self, old: Range<usize>, new: &[Segment]) {
        let kept = old.len().min(new.len());
        for (run, segment) in self.runs[old.start..].iter_mut().zip(&new[..kept]) {
            *run = Run::of(segment);
        }
        if new.len() > old.len() {
            let needed = self.runs.len() + new.len() - old.len();
            if needed > self.runs.capacity() {
                let room = if needed <= SPILLED { SPILLED.min(self.end as usize) } else { self.end as usize };
                self.runs.reserve_exact(room.max(needed) - self.runs.len());
            }
            self.runs.insert_many(old.end, new[kept..].iter().map(Run::of));
        } else if new.len() < old.len() {
            self.runs.drain(old.start + kept..old.end);
        }
    }

    #[inline]
    fn segment(&self, index: usize) -> Segment {
        let end = self.runs.get(index + 1).map_or(self.end, |next| next.first);
        self.runs[index].segment(end)
    }

    /// The run that holds `op`, which is one of the job's.
    #[inline]
    fn index_of(&self, op: u32) -> usize {
        match self.runs.len() {
            0..=2 => usize::from(self.runs.get(1).is_some_and(|second| second.first <= op)),
            _ => self.runs.partition_point(|run| run.first <= op) - 1,
        }
    }

    /// The runs that hold operators of `ops`.
    #[inline]
    fn overlap(&self, ops: &Range<u32>) -> Range<usize> {
        if ops.start >= ops.end || ops.start >= self.end {
            return 0..0;
        }
        self.index_of(ops.start)..self.index_of(ops.end.min(self.end) - 1) + 1
    }
}

impl Clone for Segments {
    fn clone(&self) -> Self {
        Self { runs: SmallVec::from_slice(&self.runs), end: self.end }
    }
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

fn push_joined(pieces: &mut SmallVec<[Segment; 5]>, piece: Segment) {
    match pieces.last_mut() {
        Some(last) if last.same_kind(&piece) => {
            last.end = piece.end;
            last.finish = piece.finish;
        }
        _ => pieces.push(piece),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_run_takes_28_bytes_however_large_its_times_and_its_device() {
        assert_eq!(Segments::SEGMENT_BYTES, 28);
        let segment = Segment {
            first: 3,
            end: 9,
            state: StoredState::Running,
            lane: Some(LaneId::new(DeviceId(u32::MAX - 1), u16::MAX)),
            start: Nanos(u64::MAX - 1),
            finish: Nanos(u64::MAX),
        };
        assert_eq!(Run::of(&segment).segment(9), segment);
    }

    proptest! {
        /// Against one entry per operator.
        #[test]
        fn updates_equal_those_of_single_operators(
            ops in 1u32..40,
            updates in prop::collection::vec((any::<u32>(), any::<u32>(), 0u8..4, 0u64..3), 1..80),
        ) {
            const STATES: [StoredState; 4] =
                [StoredState::Pending, StoredState::Dispatched, StoredState::Running, StoredState::Done];
            let mut segments = Segments::pending(ops);
            let mut plain = vec![(StoredState::Pending, None, Nanos(0)); ops as usize];
            for (from, to, state, start) in updates {
                let (from, to) = (from % (ops + 2), to % (ops + 3));
                let state = STATES[usize::from(state)];
                let lane = (state != StoredState::Pending).then(|| LaneId::new(DeviceId(start as u32), 0));
                segments.update(from..to, |segment| {
                    (segment.state, segment.lane, segment.start) = (state, lane, Nanos(start));
                });
                for op in plain.iter_mut().take(to as usize).skip(from as usize) {
                    *op = (state, lane, Nanos(start));
                }
                let mut next = 0;
                for segment in segments.iter() {
                    prop_assert!(segment.first == next && segment.first < segment.end);
                    next = segment.end;
                    for op in segment.first..segment.end {
                        prop_assert_eq!(segments.at(op), Some(segment));
                        let (state, lane, start) = plain[op as usize];
                        prop_assert_eq!((segment.state, segment.lane), (state, lane));
                        prop_assert!(state == StoredState::Pending || segment.start == start);
                    }
                }
                prop_assert_eq!(next, ops);
                prop_assert_eq!(segments.at(ops), None);
                let all: Vec<_> = segments.iter().collect();
                prop_assert!(all.windows(2).all(|pair| !pair[0].same_kind(&pair[1])));
                let mut backwards: Vec<_> = segments.iter().rev().collect();
                backwards.reverse();
                prop_assert_eq!(all, backwards);
                prop_assert!(segments.heap_bytes() <= 28 * ops as usize);
            }
        }
    }
}
