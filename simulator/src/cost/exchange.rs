//! What collectives take without measurements.

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::semantics::{Collective, OpCost};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};

/// The alpha-beta model of a collective among devices of one node:
///
/// `launch + (steps - 1) * step + wire bytes / (efficiency * bandwidth of the device's links)`
///
/// with the steps and bytes of a ring, [`Collective::steps`] and [`Collective::wire_bytes`]. The
/// first step is an empty message between two devices, launch included; the others cost what
/// NCCL's own tuning model gives a step of a ring on NVLink with 128-byte lines, 1.9 us (`hwLat` in
/// its `tuning.cc`). Devices without NVLink exchange over their links to the host. Routes over
/// several nodes are the business of [`collective`](crate::collective).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchange {
    collective: Collective,
    latency: Nanos,
    nanos_per_byte: f64,
}

/// A step behind the first one.
const STEP: Nanos = Nanos(1_900);
/// What rings reach of the links: 120 of 128 bytes of a line are payload, and NCCL's tests reach
/// 360-370 of the 450 GB/s of an H100.
const EFFICIENCY: f64 = 0.8;

impl Exchange {
    pub(super) fn of(collective: Collective, device: &DeviceSpec) -> Self {
        let (link, hop) = match device.nvlink {
            Bandwidth::ZERO => (device.host_link, device.host_latency),
            link => (link, device.nvlink_latency),
        };
        let further = u64::from(collective.steps().saturating_sub(1));
        Self {
            collective,
            latency: hop.times(2) + STEP.times(further),
            nanos_per_byte: 1e9 / (link.get().max(1) as f64 * EFFICIENCY),
        }
    }

    /// The time for a payload as [`Collective::wire_bytes`] means it, rounded to the nearest
    /// nanosecond; 1 ns if there is nobody to exchange with.
    pub fn duration(&self, payload: Bytes) -> Nanos {
        if self.collective.ranks() < 2 {
            return Nanos(1);
        }
        let moving = self.collective.wire_bytes(payload).get() as f64 * self.nanos_per_byte;
        self.latency + Nanos((moving + 0.5) as u64)
    }
}

/// What one rank has of what is exchanged: the larger of what it takes and gives.
pub(super) fn payload(cost: OpCost) -> Bytes {
    cost.read.max(cost.written)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight H100 that sum 64 MiB: 14 steps, of which the first takes two hops of 8 us and the
    /// others 13 * 1.9 us; 14 chunks of 8 MiB at 360 GB/s take 117,440,512 B / 360 GB/s =
    /// 326,223.6 ns.
    #[test]
    fn a_sum_of_eight_takes_what_a_hand_calculation_says() {
        let sum = Exchange::of(Collective::AllReduce { ranks: 8 }, &DeviceSpec::h100_sxm());
        assert_eq!(sum.duration(Bytes::mib(64)), Nanos(16_000 + 24_700 + 326_224));
        assert_eq!(sum.duration(Bytes::ZERO), Nanos(40_700));
    }

    /// An L4 has its link to the host only: 36 MB at 0.8 of it.
    #[test]
    fn devices_without_links_of_their_own_go_over_the_host() {
        let l4 = DeviceSpec::l4();
        let sent = Exchange::of(Collective::Send { distance: 1 }, &l4).duration(Bytes(36_000_000));
        let moving = 36e6 / (0.8 * l4.host_link.get() as f64) * 1e9;
        assert_eq!(sent, l4.host_latency.times(2) + Nanos((moving + 0.5) as u64));
    }

    #[test]
    fn nobody_to_exchange_with_costs_nothing() {
        let alone = Exchange::of(Collective::AllReduce { ranks: 1 }, &DeviceSpec::h100_sxm());
        assert_eq!(alone.duration(Bytes::gb(1)), Nanos(1));
    }
}
