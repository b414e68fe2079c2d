//! Which devices each tenant gets.

use slicescheduler_gmg::cluster::Cluster;
use slicescheduler_gmg::id::DeviceId;

use crate::builder::BuildError;

/// A tenant, and the devices that it asked for, if it did.
pub(super) type Wish<'a> = (&'a str, Option<&'a [u32]>);

/// The devices of each tenant. Those that did not ask share what nobody asked for: each gets a run
/// of neighbours, in the order of the tenants, the first ones a device more if it does not come out
/// even.
pub(super) fn assign(cluster: &Cluster, wishes: &[Wish<'_>]) -> Result<Vec<Vec<DeviceId>>, BuildError> {
    let devices = cluster.devices().len();
    let mut owners: Vec<Option<&str>> = vec![None; devices];
    let mut assigned = vec![Vec::new(); wishes.len()];
    for (&(name, wish), own) in wishes.iter().zip(&mut assigned) {
        let Some(wish) = wish else { continue };
        let tenant = || name.to_owned();
        if wish.is_empty() {
            return Err(BuildError::EmptyContainer { tenant: tenant() });
        }
        for &device in wish {
            let id = DeviceId(device);
            match owners.get_mut(id.index()) {
                None => return Err(BuildError::NoSuchDevice { tenant: tenant(), device, devices }),
                Some(Some(owner)) => {
                    let (device, owner) = (cluster.device_name(id).to_string(), (*owner).to_owned());
                    return Err(BuildError::DeviceTaken { tenant: tenant(), device, owner });
                }
                Some(free) => *free = Some(name),
            }
            own.push(id);
        }
        own.sort_unstable();
    }
    let mut free = (0u32..).map(DeviceId).zip(&owners).filter(|(_, owner)| owner.is_none()).map(|(id, _)| id);
    let without: Vec<usize> = (0..wishes.len()).filter(|&index| wishes[index].1.is_none()).collect();
    let left = owners.iter().filter(|owner| owner.is_none()).count();
    if left < without.len() {
        let tenants = without.iter().map(|&index| wishes[index].0.to_owned()).collect();
        return Err(BuildError::NotEnoughDevices { tenants, free: left, devices });
    }
    let (share, more) = (left / without.len().max(1), left % without.len().max(1));
    for (turn, index) in without.into_iter().enumerate() {
        assigned[index].extend(free.by_ref().take(share + usize::from(turn < more)));
    }
    Ok(assigned)
}

#[cfg(test)]
mod tests {
    use slicescheduler_gmg::cluster::DeviceSpec;

    use super::*;

    fn assigned(devices: u32, wishes: &[Wish<'_>]) -> Vec<Vec<u32>> {
        let cluster = Cluster::builder().node("n", |node| node.devices(devices, DeviceSpec::l4())).build().unwrap();
        let assigned = assign(&cluster, wishes).unwrap();
        assigned.into_iter().map(|own| own.into_iter().map(|id| id.0).collect()).collect()
    }

    #[test]
    fn tenants_that_do_not_ask_share_what_is_left_in_order() {
        assert_eq!(assigned(5, &[("a", None), ("b", None)]), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(assigned(4, &[("a", None), ("b", Some(&[2, 0])), ("c", None)]), [vec![1], vec![0, 2], vec![3]]);
        assert_eq!(assigned(3, &[("a", Some(&[1]))]), [vec![1]]);
    }
}
