//! Fair shares of two resources.

use super::{CoRunner, Demand, Interference, Rate};

/// Max-min fair rates: nobody can be faster without slowing one that is not faster than it.
///
/// By progressive filling (Bertsekas & Gallager, Data Networks, 6.5.2) over both resources: all
/// rates rise together until a resource is used up, which fixes the rates of all that demand it; the
/// others go on rising, at most to one. So a kernel that is bound by arithmetic hardly slows one that
/// is bound by memory, as is measured for kernels that share a GPU (Strati et al., Orion, EuroSys
/// 2024). With rates of progress instead of amounts it is dominant resource fairness (Ghodsi et al.,
/// NSDI 2011) for tasks that cannot use more than they demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaxMin;

impl Interference for MaxMin {
    fn name(&self) -> &str {
        "max-min"
    }

    fn rates(&self, running: &[CoRunner], rates: &mut [Rate]) {
        fill(rates, |at| {
            let demand = running[at].demand;
            [u64::from(demand.compute()), u64::from(demand.bandwidth())]
        });
    }
}

/// All of a resource at full rate.
const CAPACITY: u64 = Demand::FULL as u64 * Rate::ONE.get() as u64;

/// Progressive filling. `demand` gives the two demands of a place, in multiples of 2^-14.
pub(super) fn fill(rates: &mut [Rate], demand: impl Fn(usize) -> [u64; 2]) {
    const OPEN: Rate = Rate(0);
    let mut wanted = (0..rates.len()).map(&demand).fold([0; 2], |sum, more| [sum[0] + more[0], sum[1] + more[1]]);
    if wanted.iter().all(|&wanted| wanted <= u64::from(Demand::FULL)) {
        return rates.fill(Rate::ONE);
    }
    let mut left = [CAPACITY; 2];
    rates.fill(OPEN);
    loop {
        let level = |resource: usize| left[resource].checked_div(wanted[resource]).unwrap_or(u64::MAX);
        let crowded = usize::from(level(1) < level(0));
        let level = Rate(level(crowded).clamp(1, u64::from(Rate::ONE.get())) as u32);
        // At full rate all that are left are fixed, whatever they demand.
        let last = level == Rate::ONE;
        for (at, rate) in rates.iter_mut().enumerate().filter(|(_, rate)| **rate == OPEN) {
            let demand = demand(at);
            if last || demand[crowded] > 0 {
                *rate = level;
                for resource in 0..2 {
                    wanted[resource] -= demand[resource];
                    left[resource] = left[resource].saturating_sub(demand[resource] * u64::from(level.get()));
                }
            }
        }
        if last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interference::tests::co_runners;
    use proptest::prelude::*;

    /// Arithmetic is wanted 2.25 times, so its users run at 4/9. The third, which wants only
    /// bandwidth, could have 1 - 4/9 * 1/4 = 8/9 of it and wants 3/4.
    #[test]
    fn who_does_not_need_the_crowded_resource_is_not_slowed() {
        let quarter = Demand::FULL / 4;
        let demands = [Demand::new(4 * quarter, 0), Demand::new(4 * quarter, quarter), Demand::new(quarter, 0)];
        let third = Demand::new(0, 3 * quarter);
        let running: Vec<_> =
            (0..).zip(demands.into_iter().chain([third])).map(|(lane, demand)| CoRunner { lane, demand }).collect();
        let mut rates = [Rate::ONE; 4];
        MaxMin.rates(&running, &mut rates);
        assert_eq!(rates, [Rate::of(4, 9), Rate::of(4, 9), Rate::of(4, 9), Rate::ONE]);
    }

    proptest! {
        /// The definition: whoever is not at full rate demands a used-up resource all of whose
        /// users are at most as fast.
        #[test]
        fn everybody_is_as_fast_as_fairness_allows(running in co_runners()) {
            let mut rates = vec![Rate::ONE; running.len()];
            MaxMin.rates(&running, &mut rates);
            for (at, rate) in rates.iter().enumerate().filter(|(_, rate)| **rate < Rate::ONE) {
                let is_bottleneck = |part: fn(&Demand) -> u16| {
                    let demand = |at: usize| u64::from(part(&running[at].demand));
                    let used: u64 = (0..running.len()).map(|at| demand(at) * u64::from(rates[at].get())).sum();
                    let wanted: u64 = (0..running.len()).map(demand).sum();
                    // Rates are rounded down, by less than one step each.
                    let used_up = used + wanted > CAPACITY;
                    demand(at) > 0 && used_up && (0..running.len()).all(|other| demand(other) == 0 || rates[other] <= *rate)
                };
                prop_assert!(is_bottleneck(Demand::compute) || is_bottleneck(Demand::bandwidth), "{rates:?}");
            }
        }
    }
}
