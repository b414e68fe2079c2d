//! The seam of a policy: events in, plans out.

use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::plan::{Event, Plan, WhatIf};
use slicescheduler_gmg::tenant::{Class, LendingMode};
use slicescheduler_gmg::units::{Bytes, Nanos};
use slicescheduler_gmg::{GmgView, View};

use crate::demand::Demand;
use crate::explain::{Considered, Explain, Reason, Verdict, What};

/// How much a decision may cost, in what-if questions. Counted, not timed, so that a replay decides
/// the same on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Questions that may still be asked.
    pub evaluations: u32,
}

impl Budget {
    /// At most `evaluations` questions.
    pub const fn evaluations(evaluations: u32) -> Self {
        Self { evaluations }
    }

    /// Takes one question; false if none is left.
    pub fn take(&mut self) -> bool {
        let left = self.evaluations > 0;
        self.evaluations = self.evaluations.saturating_sub(1);
        left
    }
}

/// What a policy sees: the past and the present, never the future.
pub struct Context<'a> {
    /// The time.
    pub now: Nanos,
    /// The graph.
    pub view: View<'a>,
    /// What the tenants want to run.
    pub demand: &'a dyn Demand,
    /// The forecast.
    pub what_if: &'a mut dyn WhatIf,
    /// How much the decision may cost.
    pub budget: Budget,
    /// True if KV blocks may lie in the part of a device for weights, and what they hold may be moved:
    /// [`Action::BorrowSlots`](slicescheduler_gmg::plan::Action::BorrowSlots).
    pub shares_slots: bool,
    /// Is told every candidate, if anybody wants to know.
    pub explain: Option<&'a mut (dyn Explain + 'a)>,
}

impl Context<'_> {
    /// A plan without actions for the graph as it is.
    pub fn plan(&self) -> Plan {
        Plan::nothing(self.view.version())
    }

    /// Says that a candidate was chosen, or why not.
    pub fn say(
        &mut self,
        device: DeviceId,
        tenant: TenantId,
        what: What,
        rejected: Option<Reason>,
        finish: Option<Nanos>,
    ) {
        let at = self.now;
        if let Some(explain) = &mut self.explain {
            let verdict = rejected.map_or(Verdict::Accepted, Verdict::Rejected);
            explain.considered(&Considered { at, device, tenant, what, verdict, finish });
        }
    }

    /// The devices, ascending.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..self.view.cluster().devices().len() as u32).map(DeviceId)
    }
}

/// A tenant before the graph exists, for [`Policy::residency`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TenantShape<'a> {
    /// Latency-sensitive or best-effort.
    pub class: Class,
    /// What guests may do on its devices.
    pub lending: LendingMode,
    /// Bytes of its model's weights.
    pub weights: Bytes,
    /// Its devices.
    pub devices: &'a [DeviceId],
    /// Devices over which each of its replicas is spread; 1 for a whole model on each. The weights are those of one.
    pub ranks: u32,
}

impl TenantShape<'_> {
    /// True if other devices than its own may have its weights: a model that is spread over several stays at home.
    pub fn can_be_guest(&self) -> bool {
        self.ranks <= 1
    }
}

/// Which tenants' weights lie on which device: one list per device, the owner's own included.
pub type Residency = Vec<Vec<TenantId>>;

/// A scheduling policy.
///
/// The caller tells every event, in the order in which the graph took it, and carries the plan out
/// before it tells the next. The implementer returns a plan that is valid for the graph that it
/// was shown: it places work only on lanes that exist, never counts on an action of an earlier plan
/// that may have been dropped, and decides the same for the same inputs. It must not keep a
/// reference to anything in the context.
pub trait Policy: Send {
    /// Its name, for reports.
    fn name(&self) -> &'static str;

    /// Which weights should lie where, before anything runs. `memory` is what is usable on each
    /// device. The default: every tenant on its own devices and nowhere else.
    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        owners_only(tenants, memory.len())
    }

    /// True if an owner that needs it gets the whole memory of its device, but for its own weights, where
    /// [`Context::shares_slots`] says so. A request that only fits then is taken in, not refused.
    fn shares_slots(&self) -> bool {
        false
    }

    /// True if it lends single devices of a group, a container whose model is spread over several of them. Otherwise
    /// a group is one place to it: guests' weights lie on the first device only.
    fn lends_ranks(&self) -> bool {
        false
    }

    /// Decides.
    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan;
}

/// Every tenant on its own devices.
pub(crate) fn owners_only(tenants: &[TenantShape<'_>], devices: usize) -> Residency {
    let mut residency = vec![Vec::new(); devices];
    for (index, tenant) in tenants.iter().enumerate() {
        for device in tenant.devices {
            if let Some(models) = residency.get_mut(device.index()) {
                models.push(TenantId(index as u32));
            }
        }
    }
    residency
}
