//! A policy that may do less than it can.

use serde::{Deserialize, Serialize};
use slicescheduler_gmg::plan::{Action, Event, Plan};
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_scheduler::policy::{Context, Policy, Residency, TenantShape};

/// Something that can be kept from a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ability {
    /// Moving weights while the system runs.
    Transfers,
    /// Taking KV cache back from sequences.
    Eviction,
    /// Calling work back before its iteration has ended. The lane's own rule stays.
    Recall,
}

impl Ability {
    fn covers(self, action: &Action) -> bool {
        match self {
            Self::Transfers => matches!(action, Action::Prefetch { .. } | Action::PrefetchOps { .. }),
            Self::Eviction => matches!(action, Action::EvictSequences { .. } | Action::ReleaseKv { .. }),
            Self::Recall => matches!(action, Action::Recall { .. }),
        }
    }
}

/// Another policy, some of whose actions are dropped and that hears of arrivals and timers late. What
/// has ended it is always told at once, for its books depend on it.
pub(super) struct Handicapped {
    policy: Box<dyn Policy>,
    without: Vec<Ability>,
    every: Option<Nanos>,
    next: Nanos,
}

impl Handicapped {
    pub(super) fn new(policy: Box<dyn Policy>, without: Vec<Ability>, every: Option<Nanos>) -> Self {
        Self { policy, without, every, next: Nanos::ZERO }
    }

    /// True if the policy has to wait with `event` until [`next`](Self::next).
    fn is_late(&mut self, event: &Event, now: Nanos) -> bool {
        let Some(every) = self.every else { return false };
        if !matches!(event, Event::Arrived { .. } | Event::Timer { .. }) {
            return false;
        }
        if now < self.next {
            return true;
        }
        self.next = now + every;
        false
    }
}

impl Policy for Handicapped {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        self.policy.residency(tenants, memory)
    }

    fn lends_ranks(&self) -> bool {
        self.policy.lends_ranks()
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        if self.is_late(event, context.now) {
            let mut plan = context.plan();
            plan.wake_at = Some(self.next);
            return plan;
        }
        let timer = Event::Timer { at: context.now };
        let late = self.every.is_some() && matches!(event, Event::Arrived { .. });
        let mut plan = self.policy.on_event(context, if late { &timer } else { event });
        plan.actions.retain(|action| !self.without.iter().any(|ability| ability.covers(action)));
        plan
    }
}
