//! One lane of a simulated world.

use std::collections::VecDeque;
use std::sync::Arc;

use slicescheduler_gmg::id::{JobId, JobKey, LaneId};
use slicescheduler_gmg::plan::{Fate, Launch};
use slicescheduler_gmg::units::Nanos;

use crate::cost::JobCost;
use crate::interference::{Demand, Rate};
use crate::world::Noise;

/// How an entry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Finished,
    /// Before this operator.
    Cut(u32, Fate),
}

/// The entry that runs. Its work is counted in multiples of 2^-20 ns at full rate.
#[derive(Debug)]
struct Running {
    launch: Launch,
    /// Of all ranks of its gang, by rank, or its own alone.
    costs: Arc<[JobCost]>,
    demand: Demand,
    start: Nanos,
    /// Where it ends: the length of its operators up to the end or the cut.
    length: Nanos,
    cut: Option<(u32, Fate)>,
    /// What was done at `based`; nothing is done before.
    done: u128,
    based: Nanos,
    rate: Rate,
    /// What its own device allows; a gang makes progress at the least of its members'.
    own_rate: Rate,
}

const RATE_BITS: u32 = Rate::ONE.get().trailing_zeros();

impl Running {
    fn finish(&self) -> Nanos {
        let left = (u128::from(self.length.get()) << RATE_BITS).saturating_sub(self.done);
        let needs = left.div_ceil(u128::from(self.rate.get()));
        self.based + Nanos(u64::try_from(needs).unwrap_or(u64::MAX))
    }

    fn done_at(&self, at: Nanos) -> u128 {
        self.done + u128::from(self.rate.get()) * u128::from((at - self.based).get())
    }

    /// What is done at `now` is settled; nothing more is done before `until`.
    fn rebase(&mut self, now: Nanos, until: Nanos) {
        self.done = self.done_at(now);
        self.based = self.based.max(until);
    }
}

/// In order by rank, then by arrival. At most one entry runs.
#[derive(Debug)]
pub(super) struct SimLane {
    id: LaneId,
    running: Option<Running>,
    queue: VecDeque<Launch>,
    taken_back: Vec<(Launch, Fate)>,
    /// Nothing starts before.
    held: Nanos,
}

impl SimLane {
    pub(super) fn new(id: LaneId) -> Self {
        Self { id, running: None, queue: VecDeque::new(), taken_back: Vec::new(), held: Nanos::ZERO }
    }

    pub(super) fn id(&self) -> LaneId {
        self.id
    }

    /// Nothing that has not started starts before `until`.
    pub(super) fn hold(&mut self, until: Nanos) {
        self.held = self.held.max(until);
    }

    pub(super) fn held(&self) -> Nanos {
        self.held
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

    /// What starts next.
    pub(super) fn front(&self) -> Option<&Launch> {
        self.queue.front()
    }

    /// What runs.
    pub(super) fn running(&self) -> Option<&Launch> {
        self.running.as_ref().map(|running| &running.launch)
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

    /// Lets an entry run from `start` on; its operators take `length` at full rate.
    pub(super) fn start(
        &mut self,
        launch: Launch,
        costs: Arc<[JobCost]>,
        demand: Demand,
        (start, length): (Nanos, Nanos),
        own_rate: Rate,
    ) {
        let (cut, done, based, rate) = (None, 0, start, own_rate);
        let running = Running { launch, costs, demand, start, length, cut, done, based, rate, own_rate };
        self.running = Some(running);
    }

    /// What the device of the running entry allows from now on.
    pub(super) fn set_own_rate(&mut self, rate: Rate) {
        if let Some(running) = &mut self.running {
            running.own_rate = rate;
        }
    }

    /// What the device of the running entry allows.
    pub(super) fn own_rate(&self) -> Option<Rate> {
        self.running.as_ref().map(|running| running.own_rate)
    }

    /// When the running entry ends, if nothing changes.
    pub(super) fn finish(&self) -> Option<Nanos> {
        self.running.as_ref().map(Running::finish)
    }

    /// What the running entry demands of the device.
    pub(super) fn demand(&self) -> Option<Demand> {
        self.running.as_ref().map(|running| running.demand)
    }

    /// The running entry makes progress at `rate` from `now` on. True if that changes its end.
    pub(super) fn set_rate(&mut self, now: Nanos, rate: Rate) -> bool {
        let Some(running) = self.running.as_mut().filter(|running| running.rate != rate) else { return false };
        running.rebase(now, now);
        running.rate = rate;
        true
    }

    /// The running entry makes no progress before `until`. False if nothing runs.
    pub(super) fn stall(&mut self, now: Nanos, until: Nanos) -> bool {
        let Some(running) = self.running.as_mut() else { return false };
        running.rebase(now, until);
        true
    }

    /// Lets the running entry end at its first boundary not before `not_before`. False if it ends
    /// there or earlier anyway.
    pub(super) fn cut(&mut self, noise: &Noise, not_before: Nanos, fate: Fate) -> bool {
        let Some(running) = self.running.as_mut().filter(|running| running.cut.is_none()) else { return false };
        let done = running.done_at(not_before).div_ceil(1 << RATE_BITS);
        let done = Nanos(u64::try_from(done).unwrap_or(u64::MAX));
        let (op, length) = noise.boundary(&running.launch, &running.costs, done);
        if op >= running.launch.ops.end {
            return false;
        }
        running.cut = Some((op, fate));
        running.length = length;
        true
    }

    /// The gang that a queued job is of, if it is of one.
    pub(super) fn queued_gang(&self, job: JobId) -> Option<JobKey> {
        let queued = self.queue.iter().find(|launch| launch.job == job)?;
        queued.spec.gang.is_some().then_some(queued.spec.key)
    }

    /// Takes back what waits here of a gang. False if nothing does.
    pub(super) fn take_back_rank(&mut self, key: JobKey, fate: Fate) -> bool {
        let of_gang = |launch: &&Launch| launch.spec.gang.is_some() && launch.spec.key == key;
        let job = self.queue.iter().find(of_gang).map(|launch| launch.job);
        job.is_some_and(|job| self.take_back_rest(job, fate))
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
        let Running { launch, start, cut, .. } = self.running.take_if(|running| running.finish() == now)?;
        let ending = cut.map_or(Ending::Finished, |(op, fate)| Ending::Cut(op, fate));
        Some((launch, start, ending))
    }

    /// The running entry fails now: its launch, when it started, and the operator that ran.
    pub(super) fn fail(&mut self, noise: &Noise, now: Nanos) -> Option<(Launch, Nanos, u32)> {
        let running = self.running.take()?;
        let done = Nanos(u64::try_from(running.done_at(now) >> RATE_BITS).unwrap_or(u64::MAX));
        let (next, at) = noise.boundary(&running.launch, &running.costs, done);
        let op = if at > done { next.saturating_sub(1) } else { next };
        let op = op.clamp(running.launch.ops.start, running.launch.ops.end.saturating_sub(1));
        Some((running.launch, running.start, op))
    }

    /// Takes what `goes` out of the queue.
    pub(super) fn remove_queued(&mut self, goes: impl Fn(&Launch) -> bool) -> Vec<Launch> {
        let (gone, kept) = std::mem::take(&mut self.queue).into_iter().partition(|launch| goes(launch));
        self.queue = kept;
        Vec::from_iter::<VecDeque<Launch>>(gone)
    }

    /// The gangs that run or wait here.
    pub(super) fn gangs(&self) -> Vec<JobKey> {
        let running = self.running.as_ref().map(|running| &running.launch);
        let all = running.into_iter().chain(&self.queue).filter(|launch| launch.spec.gang.is_some());
        all.map(|launch| launch.spec.key).collect()
    }

    /// Forgets what `job` still has in the queue.
    pub(super) fn forget(&mut self, job: JobId) {
        self.queue.retain(|launch| launch.job != job);
    }

    pub(super) fn clear(&mut self) {
        self.running = None;
        self.queue.clear();
        self.taken_back.clear();
    }
}
