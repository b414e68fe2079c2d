//! Which devices to look at, and when: so that an event costs what it touches, however many devices there are.

use std::collections::BTreeSet;

use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, View};
use smallvec::SmallVec;

/// A time per device, and the earliest of all. What must stay true: both hold the same times.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    by_time: BTreeSet<(Nanos, DeviceId)>,
    by_device: Vec<Option<Nanos>>,
}

impl Agenda {
    /// The time of a device.
    pub(super) fn get(&self, device: DeviceId) -> Option<Nanos> {
        self.by_device.get(device.index()).copied().flatten()
    }

    /// Sets or takes out the time of a device. O(log devices).
    pub(super) fn set(&mut self, device: DeviceId, at: Option<Nanos>) {
        if self.by_device.len() <= device.index() {
            if at.is_none() {
                return;
            }
            self.by_device.resize(device.index() + 1, None);
        }
        let before = std::mem::replace(&mut self.by_device[device.index()], at);
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.by_time.remove(&(before, device));
        }
        if let Some(at) = at {
            self.by_time.insert((at, device));
        }
    }

    /// The earliest time.
    pub(super) fn first(&self) -> Option<Nanos> {
        self.by_time.first().map(|&(at, _)| at)
    }

    /// Takes out a device whose time has come, the earliest first.
    pub(super) fn pop(&mut self, now: Nanos) -> Option<DeviceId> {
        let &(_, device) = self.by_time.first().filter(|&&(at, _)| at <= now)?;
        self.set(device, None);
        Some(device)
    }
}

/// Where tenants are.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// By tenant: the devices of its container, ascending.
    homes: Vec<SmallVec<[DeviceId; 4]>>,
    /// By tenant: devices of others that had its weights at some time, ascending.
    guests: Vec<Vec<DeviceId>>,
    /// By tenant: where its weights were asked for last.
    pub(super) fetching: Vec<Option<DeviceId>>,
    /// Devices whose lane may be empty: all of those where it is.
    pub(super) idle: BTreeSet<DeviceId>,
}

impl Places {
    /// Looks at every device, once. O(devices).
    pub(super) fn learn(&mut self, view: View<'_>) {
        if !self.homes.is_empty() {
            return;
        }
        self.homes.resize(view.tenants().len(), SmallVec::new());
        self.guests.resize(view.tenants().len(), Vec::new());
        self.fetching.resize(view.tenants().len(), None);
        for device in (0..view.cluster().devices().len() as u32).map(DeviceId) {
            self.idle.insert(device);
            if let Some(homes) = view.owner(device).and_then(|owner| self.homes.get_mut(owner.index())) {
                homes.push(device);
            }
            for tenant in tenants_on(view, device) {
                self.came(view, tenant, device);
            }
        }
    }

    /// The weights of `tenant` are on a device.
    pub(super) fn came(&mut self, view: View<'_>, tenant: TenantId, device: DeviceId) {
        let Some(guests) = self.guests.get_mut(tenant.index()).filter(|_| view.owner(device) != Some(tenant)) else {
            return;
        };
        if let Err(place) = guests.binary_search(&device) {
            guests.insert(place, device);
        }
    }

    /// The devices of a tenant.
    pub(super) fn homes(&self, tenant: TenantId) -> &[DeviceId] {
        self.homes.get(tenant.index()).map_or(&[], |homes| homes)
    }

    /// Devices of others that may have its weights.
    pub(super) fn guests(&self, tenant: TenantId) -> &[DeviceId] {
        self.guests.get(tenant.index()).map_or(&[], |guests| guests)
    }
}

/// The tenants with weights on a device, ascending.
pub(super) fn tenants_on(view: View<'_>, device: DeviceId) -> SmallVec<[TenantId; 8]> {
    let models = view.memory(device).into_iter().flat_map(|memory| memory.models());
    let mut tenants: SmallVec<[TenantId; 8]> =
        models.filter_map(|(model, _)| Some(view.model(model)?.tenant())).collect();
    tenants.sort_unstable();
    tenants.dedup();
    tenants
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_agenda_gives_devices_in_the_order_of_their_times(
            steps in prop::collection::vec((0u32..8, prop::option::of(0u64..50)), 0..60), now in 0u64..50,
        ) {
            let (mut agenda, mut plain) = (Agenda::default(), [None; 8]);
            for (device, at) in steps {
                agenda.set(DeviceId(device), at.map(Nanos));
                plain[device as usize] = at;
                prop_assert_eq!(agenda.first(), plain.iter().flatten().min().map(|&at| Nanos(at)));
            }
            let mut due: Vec<_> = (0u32..).zip(plain).filter_map(|(device, at)| Some((at?, device))).collect();
            due.retain(|&(at, _)| at <= now);
            due.sort_unstable();
            let popped: Vec<_> = std::iter::from_fn(|| agenda.pop(Nanos(now))).collect();
            prop_assert_eq!(popped, due.into_iter().map(|(_, device)| DeviceId(device)).collect::<Vec<_>>());
        }
    }
}
