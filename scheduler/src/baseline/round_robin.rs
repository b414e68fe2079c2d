//! Tenants take turns on a device.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::plan::{Event, Plan};
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::baseline::candidates::candidate_in;
use crate::baseline::placement::replicated;
use crate::baseline::queues::plan_free_after;
use crate::baseline::room::{RESERVE, Room};
use crate::baseline::turns::{BEST_EFFORT_LAST, groups};
use crate::baseline::{Baseline, Parameter, Settings};
use crate::batching::Iteration;
use crate::policy::{Context, Policy, Residency, TenantShape};

const QUANTUM: Parameter = Parameter {
    name: "quantum_ms",
    what: "how long a tenant of weight one has a device before the next has its turn",
    default: 20,
    least: 1,
    most: 10_000,
    grid: &[5, 20, 50, 100],
};

pub(super) const ENTRY: Baseline = Baseline {
    name: "round-robin",
    rule: "models share every device in time, a quantum each in turn",
    source: "Xiao et al., Gandiva, OSDI 2018; Yu and Chowdhury, Salus, MLSys 2020",
    parameters: &[QUANTUM, BEST_EFFORT_LAST, RESERVE],
    build: |settings| Box::new(RoundRobin::new(settings)),
};

/// Round-robin temporal sharing: every model has a replica wherever its weights fit, and the tenants that have
/// work take turns on a device, each for a quantum times its weight.
///
/// A turn ends with the iteration in which the quantum runs out, as in Salus, which switches between
/// iterations; Gandiva suspends jobs with their state in host memory, which is not needed here since weights
/// and cache of all of them stay on the device.
#[derive(Debug)]
pub struct RoundRobin {
    quantum: Nanos,
    best_effort_last: bool,
    room: Room,
    devices: Vec<Turn>,
    scratch: Iteration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    tenant: Option<TenantId>,
    until: Nanos,
}

impl Default for RoundRobin {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

impl RoundRobin {
    fn new(settings: &Settings) -> Self {
        Self {
            quantum: Nanos::ms(settings.get(&QUANTUM)),
            best_effort_last: settings.is_on(&BEST_EFFORT_LAST),
            room: Room::of(settings),
            devices: Vec::new(),
            scratch: Iteration::default(),
        }
    }

    fn fill(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) {
        let turn = self.devices[device.index()];
        let holder = turn.tenant.filter(|_| context.now < turn.until);
        let others = groups(context.view, turn.tenant, self.best_effort_last).flatten();
        for tenant in holder.into_iter().chain(others) {
            let sequences = u32::MAX;
            let found = candidate_in(context, tenant, device, &mut self.room, sequences, plan, &mut self.scratch);
            let Some(found) = found else { continue };
            if holder != Some(tenant) {
                let weight = context.view.tenant(tenant).map_or(1, |tenant| tenant.weight);
                let until = context.now + self.quantum.times(u64::from(weight.max(1)));
                self.devices[device.index()] = Turn { tenant: Some(tenant), until };
            }
            found.start(context, plan);
            return;
        }
    }
}

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        replicated(tenants, memory)
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        self.devices.resize(context.view.cluster().devices().len(), Turn::default());
        self.room.note(context, event);
        plan_free_after(context, event, |context, device, plan| self.fill(context, device, plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::rig::{BATCH, CHAT, MAIL, Rig};

    fn rig(settings: &[(&str, u64)]) -> Rig {
        Rig::new(ENTRY.build(settings.iter().copied()).unwrap(), 1)
    }

    /// Quantum 20 ms, iterations of 8 ms: a tenant has three of them, the third begins at 16 ms.
    #[test]
    fn a_tenant_keeps_the_device_for_its_quantum_and_the_next_follows() {
        let mut rig = rig(&[("best_effort_last", 0)]);
        rig.arrive(CHAT, 64);
        rig.arrive(MAIL, 64);
        rig.arrive(BATCH, 64);
        let mut order = vec![rig.running(0)];
        for _ in 0..9 {
            rig.pass(Nanos::ms(8));
            rig.finish(0);
            order.push(rig.running(0));
        }
        let turn = |tenant| std::iter::repeat_n(Some(tenant), 3);
        let expected: Vec<_> = turn(CHAT).chain(turn(MAIL)).chain(turn(BATCH)).chain([Some(CHAT)]).collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn a_tenant_without_work_gives_up_the_rest_of_its_quantum() {
        let mut rig = rig(&[]);
        rig.arrive(CHAT, 64);
        rig.arrive(MAIL, 64);
        rig.pass(Nanos::ms(1));
        rig.end(0);
        assert_eq!(rig.running(0), Some(MAIL), "19 ms before the end of the turn");
    }

    #[test]
    fn best_effort_tenants_wait_for_all_others_if_told_to() {
        let mut rig = rig(&[]);
        rig.arrive(CHAT, 64);
        rig.arrive(BATCH, 64);
        rig.pass(Nanos::ms(30));
        rig.finish(0);
        assert_eq!(rig.running(0), Some(CHAT));
        rig.end(0);
        assert_eq!(rig.running(0), Some(BATCH));
    }
}
