//! One lane of a simulated world.

use std::collections::VecDeque;

use slicescheduler_gmg::id::{JobId, LaneId};
use slicescheduler_gmg::plan::{Fate, Launch};
use slicescheduler_gmg::units::Nanos;

use crate::cost::JobCost;
use crate::world::Noise;

/// How an entry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Finished,
    /// Before this operator.
    Cut(u32, Fate),
}

#[derive(Debug)]
struct Running {
    launch: Launch,
    cost: JobCost,
    start: Nanos,
    finish: Nanos,
    cut: Option<(u32, Fate)>,
}

/// In order by rank, then by arrival. At most one entry runs.
#[derive(Debug)]
pub(super) struct SimLane {
    id: LaneId,
    running: Option<Running>,
    queue: VecDeque<Launch>,
    taken_back: Vec<(Launch, Fate)>,
}

impl SimLane {
    pub(super) fn new(id: LaneId) -> Self {
        Self { id, running: None, queue: VecDeque::new(), taken_back: Vec::new() }
    }

    pub(super) fn id(&self) -> LaneId {
        self.id
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    pub(super) fn is_running(&self, job: JobId) -> bool {
        self.running.as_ref().is_some_and(|running| running.launch.job == job)
    }

    pub(super) fn push(&mut self, launch: Launch) {
        let at = self.queue.partition_point(|other| other.rank >= launch.rank);
        self.queue.insert(at, launch);
    }

    pub(super) fn pop(&mut self) -> Option<Launch> {
        self.queue.pop_front()
    }

    /// True if the running entry has to make way for the first of the queue.
    pub(super) fn should_yield(&self) -> bool {
        match (&self.running, self.queue.front()) {
            (Some(running), Some(next)) => running.cut.is_none() && running.launch.rank < next.rank,
            _ => false,
        }
    }

    pub(super) fn start(&mut self, launch: Launch, cost: JobCost, start: Nanos, finish: Nanos) {
        self.running = Some(Running { launch, cost, start, finish, cut: None });
    }

    /// Lets the running entry end at its first boundary not before `not_before`. Returns the new
    /// end; [`None`] if it ends there or earlier anyway.
    pub(super) fn cut(&mut self, noise: &Noise, not_before: Nanos, fate: Fate) -> Option<Nanos> {
        let running = self.running.as_mut().filter(|running| running.cut.is_none())?;
        let (op, elapsed) = noise.boundary(&running.launch, &running.cost, not_before - running.start);
        if op >= running.launch.ops.end {
            return None;
        }
        running.cut = Some((op, fate));
        running.finish = running.start + elapsed;
        Some(running.finish)
    }

    /// Takes back an entry that has not started.
    fn take_back(&mut self, job: JobId, fate: Fate) -> bool {
        let Some(index) = self.queue.iter().position(|launch| launch.job == job) else { return false };
        if let Some(launch) = self.queue.remove(index) {
            self.taken_back.push((launch, fate));
        }
        true
    }

    /// Takes back every entry of `job` that has not started: its operators run in order, so none can
    /// run before those that were cut off.
    /// Returns false if there is none.
    pub(super) fn take_back_rest(&mut self, job: JobId, fate: Fate) -> bool {
        let before = self.taken_back.len();
        while self.take_back(job, fate) {}
        self.taken_back.len() > before
    }

    pub(super) fn taken_back(&mut self) -> Vec<(Launch, Fate)> {
        std::mem::take(&mut self.taken_back)
    }

    /// The running entry, if it ends now.
    pub(super) fn end(&mut self, now: Nanos) -> Option<(Launch, Nanos, Ending)> {
        let Running { launch, start, cut, .. } = self.running.take_if(|running| running.finish == now)?;
        let ending = cut.map_or(Ending::Finished, |(op, fate)| Ending::Cut(op, fate));
        Some((launch, start, ending))
    }

    pub(super) fn clear(&mut self) {
        self.running = None;
        self.queue.clear();
        self.taken_back.clear();
    }
}
