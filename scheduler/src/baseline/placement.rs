//! Which weights lie where, before anything runs.

use slicescheduler_gmg::id::TenantId;
use slicescheduler_gmg::tenant::Class;
use slicescheduler_gmg::units::Bytes;

use crate::policy::{Residency, TenantShape, owners_only};

/// The share of a device's usable bytes that weights may take when guests' weights are added:
/// the rest is for KV cache, the dominant lever of throughput. In percent.
pub(crate) const WEIGHT_PERCENT: u64 = 70;

/// Adds every best-effort tenant to every device on which its weights fit.
pub(crate) fn add_best_effort(residency: &mut Residency, tenants: &[TenantShape<'_>], memory: &[Bytes]) {
    for (models, &memory) in residency.iter_mut().zip(memory) {
        for (index, shape) in tenants.iter().enumerate() {
            let tenant = TenantId(index as u32);
            let best_effort = shape.class == Class::BestEffort && shape.can_be_guest();
            if best_effort && !models.contains(&tenant) && fits(models, shape.weights, tenants, memory) {
                models.push(tenant);
            }
        }
    }
}

/// Every tenant at home, and every best-effort tenant wherever else its weights fit.
pub(crate) fn owners_and_best_effort(tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
    let mut residency = owners_only(tenants, memory.len());
    add_best_effort(&mut residency, tenants, memory);
    residency
}

/// True if `weights` more fit beside `models` and leave room for KV cache.
pub(crate) fn fits(models: &[TenantId], weights: Bytes, tenants: &[TenantShape<'_>], memory: Bytes) -> bool {
    let used: Bytes = models.iter().filter_map(|tenant| tenants.get(tenant.index())).map(|shape| shape.weights).sum();
    used + weights <= memory.scale(WEIGHT_PERCENT, 100)
}

/// Every tenant on as many devices as weights fit on: owners at home, then in rounds over the tenants, each
/// with the fewest copies first, on the device with the fewest models.
pub(super) fn replicated(tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
    let mut residency = owners_only(tenants, memory.len());
    let count = |residency: &Residency, tenant| residency.iter().filter(|models| models.contains(&tenant)).count();
    loop {
        let mut order: Vec<(usize, TenantId)> =
            (0..tenants.len() as u32).map(TenantId).map(|tenant| (count(&residency, tenant), tenant)).collect();
        order.sort_unstable();
        let place = order.iter().find_map(|&(_, tenant)| {
            let shape = tenants.get(tenant.index()).filter(|shape| shape.can_be_guest())?;
            let weights = shape.weights;
            let free = |(models, memory): (&Vec<TenantId>, &Bytes)| {
                !models.contains(&tenant) && fits(models, weights, tenants, *memory)
            };
            let devices = residency.iter().zip(memory).enumerate().filter(|&(_, device)| free(device));
            let (device, _) = devices.min_by_key(|(device, (models, _))| (models.len(), *device))?;
            Some((tenant, device))
        });
        let Some((tenant, device)) = place else { return residency };
        residency[device].push(tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slicescheduler_gmg::id::DeviceId;
    use slicescheduler_gmg::tenant::LendingMode;

    #[test]
    fn replicas_are_spread_evenly_until_memory_is_full() {
        let homes: Vec<[DeviceId; 1]> = (0..4).map(|device| [DeviceId(device)]).collect();
        let shape = |home| TenantShape {
            class: Class::LatencySensitive,
            lending: LendingMode::SloSlack,
            weights: Bytes::gb(16),
            devices: home,
            ranks: 1,
        };
        let tenants: Vec<_> = homes.iter().map(|home| shape(&home[..])).collect();
        let residency = replicated(&tenants, &[Bytes::gb(72); 4]);
        for (device, models) in residency.iter().enumerate() {
            assert_eq!(models[0], TenantId(device as u32), "the owner first");
            assert_eq!(models.len(), 3, "70 % of 72 GB hold three models of 16 GB");
        }
        for tenant in (0..4).map(TenantId) {
            assert_eq!(residency.iter().filter(|models| models.contains(&tenant)).count(), 3);
        }
    }
}
