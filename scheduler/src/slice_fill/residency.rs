//! Which weights lie where.

use slicescheduler_gmg::id::TenantId;
use slicescheduler_gmg::tenant::Class;
use slicescheduler_gmg::units::Bytes;

use crate::baseline::{add_best_effort, fits};
use crate::policy::{Residency, TenantShape, owners_only};

/// Owners on their devices; best-effort tenants wherever they fit; then latency-sensitive tenants
/// in turn on the devices of others, one on each, those of best-effort owners first, since nobody
/// there has a due time to lose. Not more than one: KV cache is worth more than a choice of guests.
pub(super) fn plan(tenants: &[TenantShape<'_>], memory: &[Bytes], overflow: bool) -> Residency {
    let mut residency = owners_only(tenants, memory.len());
    add_best_effort(&mut residency, tenants, memory);
    if !overflow {
        return residency;
    }
    let sensitive = |index: usize| tenants.get(index).is_some_and(|shape| shape.class == Class::LatencySensitive);
    let mut order: Vec<usize> = (0..memory.len()).collect();
    let owned_by_sensitive = |device: &usize| residency[*device].first().is_some_and(|owner| sensitive(owner.index()));
    order.sort_by_key(|device| (owned_by_sensitive(device), *device));
    let mut copies: Vec<usize> = vec![0; tenants.len()];
    for device in order {
        let next = (0..tenants.len())
            .filter(|&index| sensitive(index) && !residency[device].contains(&TenantId(index as u32)))
            .filter(|&index| fits(&residency[device], tenants[index].weights, tenants, memory[device]))
            .min_by_key(|&index| (copies[index], index));
        if let Some(index) = next {
            residency[device].push(TenantId(index as u32));
            copies[index] += 1;
        }
    }
    residency
}

#[cfg(test)]
mod tests {
    use super::*;
    use slicescheduler_gmg::id::DeviceId;
    use slicescheduler_gmg::tenant::LendingMode;

    #[test]
    fn every_tenant_gets_its_share_of_the_slots_and_kv_keeps_its_room() {
        let devices: Vec<_> = (0..8).map(DeviceId).collect();
        let shape =
            |class, devices| TenantShape { class, lending: LendingMode::SloSlack, weights: Bytes::gb(16), devices };
        let tenants = [
            shape(Class::LatencySensitive, &devices[0..2]),
            shape(Class::LatencySensitive, &devices[2..4]),
            shape(Class::LatencySensitive, &devices[4..6]),
            shape(Class::BestEffort, &devices[6..8]),
        ];
        let residency = plan(&tenants, &[Bytes::gb(72); 8], true);
        for (device, models) in residency.iter().enumerate() {
            assert_eq!(models.len(), if device < 6 { 3 } else { 2 }, "owner, best-effort tenant, one guest");
            assert!(models.contains(&TenantId(3)));
        }
        for tenant in 0..3 {
            let guests = residency
                .iter()
                .enumerate()
                .filter(|(device, models)| device / 2 != tenant as usize && models.contains(&TenantId(tenant)));
            assert!((2..=3).contains(&guests.count()), "eight slots for three tenants");
        }
    }
}
