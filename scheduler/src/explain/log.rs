//! The latest decisions, and what they meant for one request.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::View;
use slicescheduler_gmg::id::{DeviceId, JobId, RequestId, TenantId};
use slicescheduler_gmg::plan::{Command, Event, Observer};
use slicescheduler_gmg::units::Nanos;

use crate::explain::{Considered, Explain, Reason, Verdict};

/// The latest decisions and the latest requests, both in bounded memory.
///
/// As [`Explain`] it takes what a policy considered; as [`Observer`] it follows what became of requests.
#[derive(Debug)]
pub struct DecisionLog {
    most: usize,
    decisions: VecDeque<Considered>,
    requests: HashMap<RequestId, Story>,
    order: VecDeque<RequestId>,
    flying: HashMap<JobId, (Nanos, DeviceId, Vec<RequestId>)>,
}

#[derive(Debug)]
struct Story {
    tenant: TenantId,
    arrival: Nanos,
    runs: Vec<(Nanos, Nanos, DeviceId)>,
}

/// A part of a request's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It waited.
    Waited {
        /// Since when.
        from: Nanos,
        /// Until when.
        until: Nanos,
        /// Why candidates of its tenant were not chosen meanwhile, and how often, the most frequent first.
        because: Vec<(Reason, u32)>,
    },
    /// It was in an iteration.
    Ran {
        /// Since when it was on the lane.
        from: Nanos,
        /// Until when.
        until: Nanos,
        /// Where.
        device: DeviceId,
    },
}

/// What a request waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The request.
    pub request: RequestId,
    /// Its life so far, in order. Waits of no length are left out.
    pub steps: Vec<Step>,
}

impl DecisionLog {
    /// A log of the latest `most` decisions and the latest `most` requests.
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            decisions: VecDeque::new(),
            requests: HashMap::new(),
            order: VecDeque::new(),
            flying: HashMap::new(),
        }
    }

    /// The decisions, oldest first.
    pub fn decisions(&self) -> impl Iterator<Item = &Considered> {
        self.decisions.iter()
    }

    /// What a request waited for; [`None`] if it is too long ago. O(decisions + iterations of the request).
    pub fn explain(&self, request: RequestId) -> Option<Explanation> {
        let story = self.requests.get(&request)?;
        let mut steps = Vec::new();
        let mut now = story.arrival;
        for &(from, until, device) in &story.runs {
            if from > now {
                steps.push(Step::Waited { from: now, until: from, because: self.reasons(story.tenant, now, from) });
            }
            steps.push(Step::Ran { from, until, device });
            now = until;
        }
        Some(Explanation { request, steps })
    }

    fn reasons(&self, tenant: TenantId, from: Nanos, until: Nanos) -> Vec<(Reason, u32)> {
        let mut counts: BTreeMap<Reason, u32> = BTreeMap::new();
        let meanwhile = |one: &&Considered| one.tenant == tenant && from <= one.at && one.at <= until;
        for one in self.decisions.iter().filter(meanwhile) {
            if let Verdict::Rejected(reason) = one.verdict {
                *counts.entry(reason).or_default() += 1;
            }
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        counts
    }

    fn landed(&mut self, job: JobId, at: Nanos) {
        let Some((from, device, requests)) = self.flying.remove(&job) else { return };
        for request in requests {
            if let Some(story) = self.requests.get_mut(&request) {
                story.runs.push((from, at, device));
            }
        }
    }
}

impl Explain for DecisionLog {
    fn considered(&mut self, candidate: &Considered) {
        if self.decisions.len() == self.most {
            self.decisions.pop_front();
        }
        self.decisions.push_back(*candidate);
    }
}

impl Observer for DecisionLog {
    fn on_event(&mut self, event: &Event, view: View<'_>) {
        match event {
            Event::Arrived { request, .. } => {
                let Some(arrived) = view.request(*request) else { return };
                if self.order.len() == self.most
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.requests.remove(&oldest);
                }
                self.order.push_back(*request);
                let story = Story { tenant: arrived.tenant, arrival: arrived.arrival, runs: Vec::new() };
                self.requests.insert(*request, story);
            }
            Event::Finished { job, at, .. } | Event::Recalled { job, at, .. } | Event::Failed { job, at, .. } => {
                self.landed(*job, *at);
            }
            _ => {}
        }
    }

    fn on_command(&mut self, now: Nanos, command: &Command, _view: View<'_>) {
        // The first rank stands for all of an iteration.
        if let Command::Launch(launch) = command
            && launch.spec.gang.is_none_or(|gang| gang.rank == 0)
        {
            let requests = launch.spec.rows.iter().map(|row| row.request).collect();
            self.flying.insert(launch.job, (now, launch.lane.device, requests));
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.request)?;
        for step in &self.steps {
            match step {
                Step::Ran { from, until, device } => writeln!(f, "  {from} ran for {} on {device}", *until - *from)?,
                Step::Waited { from, until, because } => {
                    write!(f, "  {from} waited for {}", *until - *from)?;
                    for (index, (reason, count)) in because.iter().enumerate() {
                        write!(f, "{} {reason} ({count} times)", if index == 0 { ":" } else { "," })?;
                    }
                    writeln!(f)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::What;
    use slicescheduler_gmg::plan::Rank;

    #[test]
    fn a_wait_is_explained_by_what_was_rejected_meanwhile() {
        let mut log = DecisionLog::new(10);
        let story = Story { tenant: TenantId(1), arrival: Nanos(10), runs: vec![(Nanos(50), Nanos(70), DeviceId(2))] };
        log.requests.insert(RequestId(5), story);
        let mut say = |at, tenant, verdict| {
            let what = What::Iteration { rank: Rank::GuestBestEffort };
            let device = DeviceId(2);
            log.considered(&Considered { at: Nanos(at), device, tenant, what, verdict, finish: None });
        };
        say(5, TenantId(1), Verdict::Rejected(Reason::NoMemory));
        say(20, TenantId(1), Verdict::Rejected(Reason::NoBlocks));
        say(30, TenantId(0), Verdict::Accepted);
        say(30, TenantId(1), Verdict::Rejected(Reason::Behind(TenantId(0))));
        say(40, TenantId(1), Verdict::Rejected(Reason::Behind(TenantId(0))));
        say(50, TenantId(1), Verdict::Accepted);
        let explained = log.explain(RequestId(5)).unwrap();
        let because = vec![(Reason::Behind(TenantId(0)), 2), (Reason::NoBlocks, 1)];
        let waited = Step::Waited { from: Nanos(10), until: Nanos(50), because };
        assert_eq!(explained.steps, [waited, Step::Ran { from: Nanos(50), until: Nanos(70), device: DeviceId(2) }]);
        assert_eq!(log.explain(RequestId(6)), None);
    }

    #[test]
    fn the_log_forgets_the_oldest() {
        let mut log = DecisionLog::new(2);
        let what = What::Overflow;
        let (device, tenant, verdict) = (DeviceId(0), TenantId(0), Verdict::Accepted);
        (0..5)
            .for_each(|at| log.considered(&Considered { at: Nanos(at), device, tenant, what, verdict, finish: None }));
        assert_eq!(log.decisions().map(|one| one.at.get()).collect::<Vec<_>>(), [3, 4]);
    }
}
