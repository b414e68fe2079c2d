//! What collectives take without measurements.

use slicescheduler_gmg::semantics::{Collective, OpCost};
use slicescheduler_gmg::units::{Bytes, Nanos};

use crate::collective::{Algorithm, GroupLinks};

/// A collective on the links of its group, by a ring.
///
/// A cost model knows the device that an operator runs on, not the others of the group: it takes
/// [`GroupLinks::between_peers`], and routes over several nodes are for whoever has a cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchange {
    /// What is exchanged, and among how many.
    pub collective: Collective,
    /// What carries it.
    pub links: GroupLinks,
}

impl Exchange {
    /// The time for a payload as [`Collective::wire_bytes`] means it; 1 ns if there is nobody to exchange with.
    pub fn duration(&self, payload: Bytes) -> Nanos {
        self.links.time(self.collective, Algorithm::Ring, payload)
    }
}

/// What one rank has of what is exchanged: the larger of what it takes and gives.
pub(super) fn payload(cost: OpCost) -> Bytes {
    cost.read.max(cost.written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use slicescheduler_gmg::cluster::DeviceSpec;

    fn among(collective: Collective, device: &DeviceSpec) -> Exchange {
        Exchange { collective, links: GroupLinks::between_peers(device) }
    }

    /// Eight H100 that sum 64 MiB: 14 steps, of which the first takes two hops of 8 us and the
    /// others 13 * 1.9 us; 14 chunks of 8 MiB at 360 GB/s take 117,440,512 B / 360 GB/s =
    /// 326,223.6 ns.
    #[test]
    fn a_sum_of_eight_takes_what_a_hand_calculation_says() {
        let sum = among(Collective::AllReduce { ranks: 8 }, &DeviceSpec::h100_sxm());
        assert_eq!(sum.duration(Bytes::mib(64)), Nanos(16_000 + 24_700 + 326_224));
        assert_eq!(sum.duration(Bytes::ZERO), Nanos(40_700));
    }

    /// An L4 has its link to the host only: 36 MB at 0.8 of it.
    #[test]
    fn devices_without_links_of_their_own_go_over_the_host() {
        let l4 = DeviceSpec::l4();
        let sent = among(Collective::Send { distance: 1 }, &l4).duration(Bytes(36_000_000));
        let moving = 36e6 / (0.8 * l4.host_link.get() as f64) * 1e9;
        assert_eq!(sent, l4.host_latency.times(2) + Nanos(moving.ceil() as u64));
    }

    #[test]
    fn nobody_to_exchange_with_costs_nothing() {
        let alone = among(Collective::AllReduce { ranks: 1 }, &DeviceSpec::h100_sxm());
        assert_eq!(alone.duration(Bytes::gb(1)), Nanos(1));
    }
}
