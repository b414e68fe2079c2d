//! What a lane has to do, as far as has been reported.

use std::ops::Range;

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::View;
use slicescheduler_gmg::id::{JobId, LaneId};
use slicescheduler_gmg::job::{JobSpec, StoredState};
use slicescheduler_gmg::plan::Rank;
use slicescheduler_gmg::units::Nanos;

use crate::cost::JobCost;
use crate::engine::{Engine, Node};

/// Operators queued on a lane.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) job: JobId,
    /// What is left of them, as far as is known.
    pub(super) ops: Range<u32>,
    pub(super) rank: Rank,
    /// What is left does not start before.
    pub(super) release: Nanos,
    pub(super) cost: JobCost,
    /// True if it is a rank of a gang: then only a report says how far it is, since that depends on other lanes.
    pub(super) in_gang: bool,
}

/// A lane since its last report.
///
/// Which entry runs now is not kept. It follows from the entries: a simulation that starts in the
/// past, where each entry is released when it was dispatched, takes the same decisions as the lane
/// took.
#[derive(Clone, Debug)]
pub(super) struct LaneMirror {
    pub(super) id: LaneId,
    /// In the order of the graph's queue.
    pub(super) entries: Vec<Entry>,
    /// When the last entry left it.
    free_at: Nanos,
}

impl LaneMirror {
    pub(super) fn new(id: LaneId) -> Self {
        Self { id, entries: Vec::new(), free_at: Nanos::ZERO }
    }

    /// Makes the entries agree with the graph's queue. What is new was dispatched at `now`; `bind`
    /// gives its durations.
    pub(super) fn sync(&mut self, view: View<'_>, now: Nanos, bind: impl Fn(&JobSpec) -> Option<JobCost>) {
        let queue = view.lane(self.id).map_or(&[][..], |lane| lane.queue());
        let mut place = 0;
        for queued in queue {
            let is_it = |entry: &Entry| {
                entry.job == queued.job && entry.ops.start < queued.ops.end && queued.ops.start < entry.ops.end
            };
            if let Some(found) = self.entries[place..].iter().position(is_it) {
                self.entries[place..=place + found].rotate_right(1);
                let entry = &mut self.entries[place];
                entry.ops = entry.ops.start.max(queued.ops.start)..queued.ops.end;
                entry.rank = queued.rank;
                place += 1;
                continue;
            }
            let Some(job) = view.job(queued.job) else { continue };
            let started = job.segments.at(queued.ops.start).filter(|segment| segment.state == StoredState::Running);
            let release = match started {
                Some(segment) => segment.start,
                None => now.max(job.spec.release).max(self.free_at),
            };
            let Some(cost) = bind(&job.spec) else { continue };
            let (ops, rank, in_gang) = (queued.ops.clone(), queued.rank, job.gang.is_some());
            let entry = Entry { job: queued.job, ops, rank, release, cost, in_gang };
            self.entries.insert(place, entry);
            place += 1;
        }
        self.entries.truncate(place);
    }

    /// `job` started at `at`. Nothing else ran on the lane since, so what others did before is
    /// accounted for now.
    pub(super) fn started(&mut self, job: JobId, at: Nanos, engine: &mut Engine) {
        self.advance_others(job, at, engine);
        for entry in &mut self.entries {
            entry.release = if entry.job == job { at } else { entry.release.max(at) };
        }
    }

    /// `job` left the lane, or part of it did, after it had run from `started` to `at`.
    pub(super) fn ended(&mut self, job: JobId, started: Nanos, at: Nanos, engine: &mut Engine) {
        self.advance_others(job, started, engine);
        for entry in &mut self.entries {
            entry.release = entry.release.max(at);
        }
        self.free_at = self.free_at.max(at);
    }

    /// What the other entries did until `job` started: those that were there before it may have
    /// run until they had to yield.
    fn advance_others(&mut self, job: JobId, started: Nanos, engine: &mut Engine) {
        let arrival = self.entries.iter().find(|entry| entry.job == job).map_or(started, |entry| entry.release);
        let before = arrival.min(started);
        let others = |entry: &Entry| entry.job != job && !entry.in_gang;
        if !self.entries.iter().any(|entry| others(entry) && entry.release < before) {
            return;
        }
        engine.reset(Nanos::ZERO);
        let lane = engine.add_lane();
        let add = |entry: &Entry| {
            let cost = engine.add_cost(entry.cost.clone());
            engine.add(Node::operators(lane, cost, entry.ops.clone()).rank(entry.rank).release(entry.release))
        };
        let nodes: Vec<_> = self.entries.iter().filter(|entry| others(entry)).map(add).collect();
        engine.run(started);
        for (entry, node) in self.entries.iter_mut().filter(|entry| others(entry)).zip(nodes) {
            // The entry is still queued, so at least its last operator is not done.
            let last = entry.ops.end.saturating_sub(1).max(entry.ops.start);
            entry.ops.start = engine.progress(node, started).clamp(entry.ops.start, last);
        }
    }
}
