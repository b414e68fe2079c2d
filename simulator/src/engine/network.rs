//! Transfers that share links.
//!
//! The rate of a flow is max-min fair: no flow can be faster without slowing one that is not
//! faster than it. Rates are whole bytes per second, what is left is counted in billionths of a
//! byte, so progress over whole nanoseconds is exact and does not depend on how often it is
//! computed.

use std::ops::Range;

use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};

use super::tournament::Tournament;

const PER_BYTE: u128 = 1_000_000_000;

#[derive(Clone, Debug)]
struct Flow {
    /// The node that it carries out.
    node: u32,
    /// Its links, as a range of `routes`.
    links: Range<u32>,
    /// What is left, in billionths of a byte.
    left: u128,
    /// Bytes per second; zero before it begins.
    rate: u64,
    /// When its first byte moves: before that only latency passes.
    begins: Nanos,
}

/// The links and the flows on them at one time.
#[derive(Debug, Default)]
pub(super) struct Network {
    capacity: Vec<u64>,
    routes: Vec<u32>,
    flows: Vec<Flow>,
    /// What is left of each flow is as of this time.
    at: Nanos,
    spare: Vec<u64>,
    waiting: Vec<u32>,
    fixed: Vec<bool>,
}

impl Network {
    pub(super) fn reset(&mut self) {
        self.capacity.clear();
        self.routes.clear();
        self.flows.clear();
        self.at = Nanos::ZERO;
    }

    pub(super) fn add_link(&mut self, bandwidth: Bandwidth) -> u32 {
        self.capacity.push(bandwidth.get());
        (self.capacity.len() - 1) as u32
    }

    /// Keeps a route; links that do not exist are left out.
    pub(super) fn add_route(&mut self, links: impl Iterator<Item = u32>) -> Range<u32> {
        let first = self.routes.len() as u32;
        let known = self.capacity.len() as u32;
        self.routes.extend(links.filter(|&link| link < known));
        first..self.routes.len() as u32
    }

    /// `node` starts to move `bytes` at `now`.
    pub(super) fn start(&mut self, node: u32, links: Range<u32>, bytes: Bytes, latency: Nanos, now: Nanos) {
        self.advance(now);
        let begins = now + if bytes.is_zero() { latency.max(Nanos(1)) } else { latency };
        self.flows.push(Flow { node, links, left: u128::from(bytes.get()) * PER_BYTE, rate: 0, begins });
        self.share(now);
    }

    /// Moves on to `now`, where something begins or ends; calls `done` for the nodes whose last
    /// byte has arrived, in the order of their start. Nothing ends before `floor`.
    pub(super) fn step(&mut self, now: Nanos, floor: Nanos, mut done: impl FnMut(u32)) {
        self.advance(now);
        self.flows.retain(|flow| {
            let ended = flow.left == 0 && flow.begins <= now && now >= floor;
            if ended {
                done(flow.node);
            }
            !ended
        });
        self.share(now);
    }

    /// When something begins or ends next.
    pub(super) fn next(&self, floor: Nanos) -> u64 {
        let event = |flow: &Flow| {
            if flow.begins > self.at {
                // A flow without bytes ends where it would begin.
                return if flow.left == 0 { flow.begins.max(floor) } else { flow.begins };
            }
            match flow.left.div_ceil(u128::from(flow.rate.max(1))) {
                0 => self.at.max(floor),
                left => (self.at + Nanos(u64::try_from(left).unwrap_or(Tournament::NEVER))).max(floor),
            }
        };
        self.flows.iter().map(|flow| event(flow).get()).min().unwrap_or(Tournament::NEVER)
    }

    fn advance(&mut self, now: Nanos) {
        for flow in &mut self.flows {
            let moving = now - flow.begins.max(self.at);
            flow.left = flow.left.saturating_sub(u128::from(flow.rate) * u128::from(moving.get()));
        }
        self.at = now;
    }

    /// Progressive filling (Bertsekas & Gallager, Data Networks, 6.5.2): the tightest link fixes
    /// the rate of its flows, and so on with what it leaves. Ties go to the lower link.
    fn share(&mut self, now: Nanos) {
        let Self { capacity, routes, flows, spare, waiting, fixed, .. } = self;
        spare.clone_from(capacity);
        waiting.clear();
        waiting.resize(capacity.len(), 0);
        fixed.clear();
        for flow in flows.iter_mut() {
            let links = &routes[flow.links.start as usize..flow.links.end as usize];
            let moves = flow.begins <= now && flow.left > 0 && !links.is_empty();
            fixed.push(!moves);
            if moves {
                links.iter().for_each(|&link| waiting[link as usize] += 1);
            } else {
                flow.rate = if links.is_empty() { u64::MAX } else { 0 };
            }
        }
        loop {
            let level = |link: usize| (spare[link] / u64::from(waiting[link])).max(1);
            let crowded = (0..spare.len()).filter(|&link| waiting[link] > 0);
            let Some(tightest) = crowded.min_by_key(|&link| level(link)) else { return };
            let rate = level(tightest);
            for (flow, fixed) in flows.iter_mut().zip(fixed.iter_mut()).filter(|(_, fixed)| !**fixed) {
                let links = &routes[flow.links.start as usize..flow.links.end as usize];
                if !links.contains(&(tightest as u32)) {
                    continue;
                }
                *fixed = true;
                flow.rate = rate;
                for &link in links {
                    spare[link as usize] = spare[link as usize].saturating_sub(rate);
                    waiting[link as usize] -= 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The definition of max-min fairness: every flow crosses a full link on which nobody is
        /// faster.
        #[test]
        fn every_flow_has_a_full_link_on_which_it_is_among_the_fastest(
            capacity in prop::collection::vec(1_000u64..1_000_000, 1..6),
            routes in prop::collection::vec(prop::collection::btree_set(0u32..6, 1..4), 1..8),
        ) {
            let mut network = Network::default();
            for &bandwidth in &capacity {
                network.add_link(Bandwidth(bandwidth));
            }
            let mut kept = Vec::new();
            for (node, route) in (0..).zip(routes) {
                let links = network.add_route(route.into_iter());
                if !links.is_empty() {
                    kept.push(links.clone());
                    network.start(node, links, Bytes::gb(1), Nanos::ZERO, Nanos::ZERO);
                }
            }
            let links_of = |range: &Range<u32>| network.routes[range.start as usize..range.end as usize].to_vec();
            let rates: Vec<_> = network.flows.iter().map(|flow| flow.rate).collect();
            let mut load = vec![0; capacity.len()];
            for (route, rate) in kept.iter().zip(&rates) {
                links_of(route).iter().for_each(|&link| load[link as usize] += rate);
            }
            let users = |link: u32| -> Vec<usize> {
                (0..kept.len()).filter(|&flow| links_of(&kept[flow]).contains(&link)).collect()
            };
            for (link, &bandwidth) in capacity.iter().enumerate() {
                prop_assert!(load[link] <= bandwidth);
            }
            for (flow, route) in kept.iter().enumerate() {
                // Whole rates leave less than one byte per second and flow unused.
                let bottleneck = links_of(route).iter().any(|&link| {
                    let users = users(link);
                    let full = capacity[link as usize] - load[link as usize] < users.len() as u64;
                    full && users.iter().all(|&other| rates[other] <= rates[flow] + 1)
                });
                prop_assert!(bottleneck, "flow {} of {:?} over {:?}", flow, rates, kept);
            }
        }
    }
}
