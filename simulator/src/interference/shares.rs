//! Lanes that own a share of the arithmetic units.

use smallvec::SmallVec;

use super::max_min::fill;
use super::{CoRunner, Demand, Interference, Rate};

/// Every lane has a share of the streaming multiprocessors of its own (a green context, an MPS
/// partition); memory bandwidth is shared, max-min fairly.
///
/// Durations and demands of an operator are those on its lane's share: its arithmetic is slowed by
/// others only if the shares add up to more than the device. [`on_share`](Self::on_share) derives
/// them from measurements on the whole device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmShares {
    /// By lane, in multiples of 2^-14.
    shares: SmallVec<[u16; 8]>,
}

impl SmShares {
    /// Shares by lane, in multiples of 2^-14; lanes beyond the last have none and are not slowed by
    /// arithmetic of others.
    pub fn new(shares: &[u16]) -> Self {
        Self { shares: shares.iter().map(|share| (*share).min(Demand::FULL)).collect() }
    }

    /// The device divided equally among `lanes`.
    pub fn equal(lanes: u16) -> Self {
        Self { shares: SmallVec::from_elem(Demand::FULL / lanes.max(1), lanes as usize) }
    }

    fn share(&self, lane: u16) -> u16 {
        self.shares.get(lane as usize).copied().unwrap_or(0)
    }

    /// The part of the memory bandwidth that a share of the multiprocessors can use, in multiples
    /// of 2^-14: a fifth of an H100 reaches about three fifths of its bandwidth, all of it reaches
    /// all; straight lines between. Rounded down.
    pub fn reach(share: u16) -> u16 {
        let (full, share) = (u32::from(Demand::FULL), u32::from(share.min(Demand::FULL)));
        let knee = full / 5;
        let reached =
            if share <= knee { 3 * share } else { 3 * knee + (share - knee) * (full - 3 * knee) / (full - knee) };
        reached.min(full) as u16
    }

    /// How fast an operator runs on a lane alone that demands `demand` of the whole device at
    /// [`Rate::ONE`]: as its share of the arithmetic and the bandwidth that this can use allow. Its
    /// duration on the lane is that on the device divided by this rate.
    ///
    /// ```
    /// use slicescheduler_simulator::interference::{Demand, Rate, SmShares};
    ///
    /// let lanes = SmShares::new(&[Demand::FULL / 4, 3 * (Demand::FULL / 4)]);
    /// let arithmetic = Demand::new(Demand::FULL, 0);
    /// assert_eq!(lanes.on_share(0, arithmetic), Rate::of(1, 4));
    /// let copy = Demand::new(0, Demand::FULL);
    /// assert!(lanes.on_share(0, copy) > Rate::of(3, 5));
    /// ```
    pub fn on_share(&self, lane: u16, demand: Demand) -> Rate {
        let share = self.share(lane);
        let limit = |has: u16, wants: u16| if wants <= has { Rate::ONE } else { Rate::of(has.into(), wants.into()) };
        limit(share, demand.compute()).min(limit(Self::reach(share), demand.bandwidth()))
    }
}

impl Interference for SmShares {
    fn name(&self) -> &str {
        "SM shares"
    }

    fn rates(&self, running: &[CoRunner], rates: &mut [Rate]) {
        fill(rates, |at| {
            let CoRunner { lane, demand } = running[at];
            let compute = u64::from(demand.compute()) * u64::from(self.share(lane)) / u64::from(Demand::FULL);
            [compute, u64::from(demand.bandwidth())]
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_with_shares_of_their_own_share_only_the_bandwidth() {
        let half = Demand::FULL / 2;
        let lanes = SmShares::equal(2);
        let arithmetic = Demand::new(Demand::FULL, half);
        let running = [CoRunner { lane: 0, demand: arithmetic }, CoRunner { lane: 1, demand: arithmetic }];
        let mut rates = [Rate::of(1, 9); 2];
        lanes.rates(&running, &mut rates);
        assert_eq!(rates, [Rate::ONE; 2]);
        let copies = running.map(|other| CoRunner { demand: Demand::new(half, Demand::FULL), ..other });
        lanes.rates(&copies, &mut rates);
        assert_eq!(rates, [Rate::of(1, 2); 2]);
    }

    /// Stated for an H100: 20 % of the multiprocessors reach about 60 % of the bandwidth.
    #[test]
    fn a_fifth_of_the_device_reaches_three_fifths_of_its_bandwidth() {
        let reach = |percent: u32| u32::from(SmShares::reach((u32::from(Demand::FULL) * percent / 100) as u16)) * 100;
        assert_eq!((reach(20) + 8192) / u32::from(Demand::FULL), 60);
        assert_eq!((reach(60) + 8192) / u32::from(Demand::FULL), 80);
        assert_eq!(SmShares::reach(Demand::FULL), Demand::FULL);
    }
}
