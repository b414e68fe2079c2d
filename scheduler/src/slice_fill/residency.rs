//! Which weights lie where.

use slicescheduler_gmg::id::TenantId;
use slicescheduler_gmg::tenant::Class;
use slicescheduler_gmg::units::Bytes;

use crate::baseline::fits;
use crate::policy::{Residency, TenantShape, owners_only};

/// Owners on their devices; best-effort tenants in turn on those that no best-effort tenant owns, one on each: two
/// would halve each other's batches and read two models' weights for them. Then latency-sensitive tenants in turn
/// on the devices of others, one on each, those of best-effort owners first, since nobody there has a due time to
/// lose. Not more than one: KV cache is worth more than a choice of guests.
pub(super) fn plan(tenants: &[TenantShape<'_>], memory: &[Bytes], overflow: bool) -> Residency {
    let mut residency = owners_only(tenants, memory.len());
    let is_of = |class| move |tenant: &TenantId| tenants.get(tenant.index()).is_some_and(|shape| shape.class == class);
    let guest_of = |class| {
        move |tenant: &TenantId| {
            tenants.get(tenant.index()).is_some_and(|shape| shape.class == class && shape.can_be_guest())
        }
    };
    let best_effort = is_of(Class::BestEffort);
    let (mut order, others): (Vec<usize>, Vec<usize>) =
        (0..memory.len()).partition(|&device| residency[device].first().is_some_and(best_effort));
    add_one_each(&mut residency, &others, tenants, memory, guest_of(Class::BestEffort));
    if overflow {
        order.extend(others);
        add_one_each(&mut residency, &order, tenants, memory, guest_of(Class::LatencySensitive));
    }
    residency
}

/// Adds one of the tenants that `may` to every device of `order`, those with the fewest copies first.
fn add_one_each(
    residency: &mut Residency,
    order: &[usize],
    tenants: &[TenantShape<'_>],
    memory: &[Bytes],
    may: impl Fn(&TenantId) -> bool,
) {
    let mut copies: Vec<usize> = vec![0; tenants.len()];
    for &device in order {
        let next = (0..tenants.len() as u32)
            .map(TenantId)
            .filter(|tenant| may(tenant) && !residency[device].contains(tenant))
            .filter(|tenant| fits(&residency[device], tenants[tenant.index()].weights, tenants, memory[device]))
            .min_by_key(|tenant| (copies[tenant.index()], *tenant));
        if let Some(tenant) = next {
            residency[device].push(tenant);
            copies[tenant.index()] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slicescheduler_gmg::id::DeviceId;
    use slicescheduler_gmg::tenant::LendingMode;

    #[test]
    fn every_tenant_gets_its_share_of_the_slots_and_kv_keeps_its_room() {
        let devices: Vec<_> = (0..8).map(DeviceId).collect();
        let shape = |class, devices| TenantShape {
            class,
            lending: LendingMode::SloSlack,
            weights: Bytes::gb(16),
            devices,
            ranks: 1,
        };
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
