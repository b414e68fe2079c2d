//! Devices that are lent whole, and reclaimed whole.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::plan::{Action, Event, Fate, Plan, Rank};
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::baseline::candidates::{candidate_in, ready_replica};
use crate::baseline::harvest::{Busy, Harvest, busy};
use crate::baseline::queues::devices_after;
use crate::baseline::room::Room;
use crate::baseline::{Baseline, Parameter, Settings, owners_and_best_effort};
use crate::placing::{is_latency, lane_of};
use crate::policy::{Context, Policy, Residency, TenantShape};

const EPOCH: Parameter = Parameter {
    name: "epoch_ms",
    what: "how often it is decided which devices are lent",
    default: 5000,
    least: 1,
    most: 1_000_000,
    grid: &[1000, 5000, 30_000],
};

const HEADROOM: Parameter = Parameter {
    name: "headroom_percent",
    what: "what an owner keeps beyond the devices that it used in the last epoch",
    default: 50,
    least: 0,
    most: 1000,
    grid: &[20, 50, 100],
};

const PATIENCE: Parameter = Parameter {
    name: "patience_ms",
    what: "how long an owner's request waits before a device is reclaimed between two epochs",
    default: 20,
    least: 0,
    most: 1_000_000,
    grid: &[0, 20, 100],
};

pub(super) const ENTRY: Baseline = Baseline {
    name: "container-loaning",
    rule: "devices that their owner does not need are lent whole to best-effort tenants, and reclaimed whole",
    source: "Li et al., Lyra (Aryl): elastic scheduling for deep learning clusters, EuroSys 2023, arXiv 2202.07896",
    parameters: &[EPOCH, HEADROOM, PATIENCE],
    build: |settings| Box::new(ContainerLoaning::new(settings)),
};

/// Capacity loaning of Aryl: every epoch, latency-sensitive owners keep as many devices as they used in the last
/// one, and a headroom; the others are lent whole to best-effort tenants once the owner's sequences on them have
/// ended. When requests of the owner wait for longer than its patience, a device is reclaimed: the guest is
/// preempted and loses its sequences there.
///
/// An owner keeps at least one device. Aryl moves jobs between clusters, which takes a container's start; here the
/// weights of best-effort tenants lie ready on every device on which they fit, so a loan begins and ends at
/// once, which is to the baseline's advantage. Elastic scaling of jobs has no counterpart: a guest's replica is a
/// device.
#[derive(Debug)]
pub struct ContainerLoaning {
    epoch: Nanos,
    headroom_percent: u64,
    patience: Nanos,
    harvest: Harvest,
    lent: Vec<bool>,
    /// By tenant: lane time since the epoch began.
    used: Vec<Nanos>,
    began: Nanos,
}

impl Default for ContainerLoaning {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

impl ContainerLoaning {
    fn new(settings: &Settings) -> Self {
        Self {
            epoch: Nanos::ms(settings.get(&EPOCH)),
            headroom_percent: settings.get(&HEADROOM),
            patience: Nanos::ms(settings.get(&PATIENCE)),
            harvest: Harvest { room: Room::of(settings), ..Harvest::default() },
            lent: Vec::new(),
            used: Vec::new(),
            began: Nanos::ZERO,
        }
    }

    fn note(&mut self, context: &Context<'_>, event: &Event) {
        self.lent.resize(context.view.cluster().devices().len(), false);
        self.used.resize(context.view.tenants().len(), Nanos::ZERO);
        if let Event::Finished { job, started, at, .. } | Event::Recalled { job, started, at, .. } = event {
            let tenant = context.view.job(*job).map(|job| job.spec.key.tenant as usize);
            if let Some(used) = tenant.and_then(|tenant| self.used.get_mut(tenant)) {
                *used += *at - *started;
            }
        }
    }

    fn devices_of<'c>(context: &Context<'c>, owner: TenantId) -> impl Iterator<Item = DeviceId> + use<'c> {
        let view = context.view;
        context.devices().filter(move |&device| view.owner(device) == Some(owner) && !view.is_lost(device))
    }

    /// Decides anew what is lent, once per epoch.
    fn settle(&mut self, context: &Context<'_>, plan: &mut Plan) {
        if context.now < self.began + self.epoch {
            return plan.wake(self.began + self.epoch);
        }
        let length = (context.now - self.began).get().max(1);
        for owner in (0..self.used.len() as u32).map(TenantId).filter(|&owner| is_latency(context.view, owner)) {
            let used = std::mem::take(&mut self.used[owner.index()]).scale(100 + self.headroom_percent, 100);
            let needed = (used.get().div_ceil(length) as usize).max(1);
            let own: Vec<DeviceId> = Self::devices_of(context, owner).collect();
            let lent = own.iter().filter(|device| self.lent[device.index()]).count();
            let running = |device: &DeviceId| context.demand.replica_on(owner, *device).map_or(0, |one| one.running);
            let mut kept: Vec<DeviceId> = own.iter().copied().filter(|device| !self.lent[device.index()]).collect();
            kept.sort_by_key(|device| (running(device), std::cmp::Reverse(*device)));
            let spare = kept.len().saturating_sub(needed);
            for &device in &kept[..spare] {
                self.lent[device.index()] = true;
            }
            for _ in 0..needed.saturating_sub(own.len() - lent) {
                self.reclaim(context, owner, plan);
            }
        }
        self.used.iter_mut().for_each(|used| *used = Nanos::ZERO);
        self.began = context.now;
        plan.wake(self.began + self.epoch);
    }

    /// Takes a device back for `owner`, one that is idle if there is. False if none is lent.
    fn reclaim(&mut self, context: &Context<'_>, owner: TenantId, plan: &mut Plan) -> bool {
        let lent = Self::devices_of(context, owner).filter(|device| self.lent[device.index()]);
        let Some(device) = lent.min_by_key(|&device| (busy(context.view, device) != Busy::Free, device)) else {
            return false;
        };
        self.lent[device.index()] = false;
        let queue = context.view.lane(lane_of(device)).map_or(&[][..], |lane| lane.queue());
        for guest in queue.iter().filter(|entry| entry.rank == Rank::GuestBestEffort) {
            plan.actions.push(Action::Recall { job: guest.job, fate: Fate::Drop });
        }
        true
    }

    /// Reclaims a device for an owner whose requests wait for too long.
    fn reclaim_on_demand(&mut self, context: &Context<'_>, plan: &mut Plan) {
        for owner in (0..self.used.len() as u32).map(TenantId).filter(|&owner| is_latency(context.view, owner)) {
            let slo = context.view.tenant(owner).and_then(|tenant| tenant.slo);
            let (Some(waiting), Some(slo)) = (context.demand.waiting(owner), slo) else { continue };
            let is_lent = |device: DeviceId| self.lent[device.index()];
            if !Self::devices_of(context, owner).any(is_lent) {
                continue;
            }
            let patience_ends = (waiting.first_due - slo.ttft) + self.patience;
            if context.now >= patience_ends {
                self.reclaim(context, owner, plan);
            } else {
                plan.wake(patience_ends);
            }
        }
    }

    fn fill(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) {
        let state = busy(context.view, device);
        if state == Busy::Latency {
            return;
        }
        let owner = context.view.owner(device).filter(|&owner| is_latency(context.view, owner));
        let running = owner.and_then(|owner| ready_replica(context, owner, device)).map_or(0, |one| one.running);
        match owner {
            Some(owner) if !self.lent[device.index()] || running > 0 => {
                if state == Busy::BestEffort {
                    return;
                }
                if !self.lent[device.index()] {
                    self.harvest.room.evict_best_effort(context, device, u32::MAX, plan);
                }
                let most = if self.lent[device.index()] { running } else { u32::MAX };
                let Harvest { room, scratch } = &mut self.harvest;
                if let Some(found) = candidate_in(context, owner, device, room, most, plan, scratch) {
                    found.start(context, plan);
                }
            }
            _ if state == Busy::Free => {
                self.harvest.start_best_effort(context, device, u32::MAX, plan);
            }
            _ => {}
        }
    }
}

impl Policy for ContainerLoaning {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        owners_and_best_effort(tenants, memory)
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        let mut plan = context.plan();
        self.harvest.room.note(context, event);
        self.note(context, event);
        self.settle(context, &mut plan);
        self.reclaim_on_demand(context, &mut plan);
        for device in devices_after(context, event) {
            self.fill(context, device, &mut plan);
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::rig::{BATCH, CHAT, Rig};

    fn rig() -> Rig {
        Rig::new(ENTRY.build([("epoch_ms", 1000)]).unwrap(), 2)
    }

    /// CHAT owns both devices and uses none, so it keeps one.
    fn lent() -> Rig {
        let mut rig = rig();
        rig.arrive(BATCH, 64);
        assert_eq!((rig.running(0), rig.running(1)), (None, None), "nothing is lent at first");
        rig.pass(Nanos::secs(1));
        rig.timer();
        rig
    }

    #[test]
    fn an_owner_that_needs_fewer_devices_lends_the_rest_whole() {
        let mut rig = lent();
        assert_eq!((rig.running(0), rig.running(1)), (None, Some(BATCH)));
        rig.arrive(CHAT, 64);
        assert_eq!((rig.running(0), rig.queued(1)), (Some(CHAT), 1));
    }

    #[test]
    fn an_owner_that_used_its_devices_lends_none() {
        let mut rig = rig();
        rig.arrive(BATCH, 64);
        for _ in 0..2 {
            rig.arrive(CHAT, 64);
        }
        rig.pass(Nanos::ms(999));
        rig.end_after(0, Nanos::ms(999));
        rig.end_after(1, Nanos::ms(999));
        rig.pass(Nanos::ms(1));
        rig.timer();
        assert_eq!((rig.running(0), rig.running(1)), (None, None));
    }

    #[test]
    fn a_request_that_waits_for_too_long_has_a_device_reclaimed_and_emptied() {
        let mut rig = lent();
        let guest = rig.job(1).unwrap();
        rig.arrive(CHAT, 64);
        rig.arrive(CHAT, 64);
        assert!(rig.recalls.is_empty());
        assert_eq!(rig.wake_at, Some(Nanos::ms(1020)));
        rig.pass(Nanos::ms(20));
        rig.timer();
        assert_eq!(rig.recalls, [guest]);
        rig.recall(1, BATCH);
        assert_eq!(rig.running(1), Some(CHAT));
        assert_eq!(rig.gmg.view().memory(DeviceId(1)).unwrap().kv().used_by(BATCH), 0, "its sequences are gone");
    }
}
