//! Transfers that share links.
//!
//! The rate of a flow is max-min fair: no flow can be faster without slowing one that is not
//! faster than it. Rates are whole bytes per second, what is left is counted in billionths of a
//! byte, so progress over whole nanoseconds is exact and does not depend on how often it is
//! computed.
//!
//! A flow that begins or ends can change the rates only of flows that it is connected to by shared
//! links. Only these are computed anew, and only those whose rate differs get a new end.
//!
//! A full-duplex link is two links here, one for each direction, each with the whole bandwidth; a
//! shared one is a single link that the routes of both directions cross. A link without bandwidth
//! has failed: the flows on it are cut.

use std::ops::Range;

use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};

use super::node::NONE;
use super::tournament::Tournament;

const PER_BYTE: u128 = 1_000_000_000;

/// Work that moves bytes, whether it has begun or not.
#[derive(Clone, Debug)]
struct Transfer {
    links: Range<u32>,
    bytes: Bytes,
    latency: Nanos,
}

/// A transfer under way.
#[derive(Clone, Debug)]
struct Flow {
    /// The node that it carries out; none if the slot is free.
    node: u32,
    /// Its links, as a range of `routes`.
    links: Range<u32>,
    /// What was left at `based`, in billionths of a byte; `based` is in the future while only latency
    /// passes.
    left: u128,
    based: Nanos,
    /// Bytes per second; zero before it begins.
    rate: u64,
    moves: bool,
    /// True while the rates of its component are computed and its own is not known yet.
    open: bool,
}

#[derive(Clone, Debug, Default)]
struct Link {
    capacity: u64,
    /// The flows that move over it, by slot.
    flows: Vec<u32>,
    /// While rates are computed: what is left of it, and for how many flows.
    spare: u64,
    waiting: u32,
    in_component: bool,
}

/// The links and the flows on them at one time.
#[derive(Debug, Default)]
pub(crate) struct Network {
    links: Vec<Link>,
    routes: Vec<u32>,
    transfers: Vec<Transfer>,
    /// By slot; a free slot keeps the flow that had it last.
    flows: Vec<Flow>,
    free: Vec<u32>,
    active: u32,
    /// By slot: when the flow begins or ends.
    events: Tournament,
    slots: usize,
    /// Links whose flows have to be shared out anew.
    dirty: Vec<u32>,
    component: Vec<u32>,
}

impl Network {
    pub(crate) fn reset(&mut self) {
        self.links.clear();
        self.routes.clear();
        self.transfers.clear();
        self.flows.clear();
        self.free.clear();
        self.active = 0;
        self.slots = 0;
        self.dirty.clear();
    }

    pub(crate) fn add_link(&mut self, bandwidth: Bandwidth) -> u32 {
        self.links.push(Link { capacity: bandwidth.get(), ..Link::default() });
        (self.links.len() - 1) as u32
    }

    /// Keeps a transfer; links that do not exist are left out.
    pub(crate) fn add_transfer(&mut self, links: impl Iterator<Item = u32>, bytes: Bytes, latency: Nanos) -> u32 {
        let first = self.routes.len() as u32;
        let known = self.links.len() as u32;
        self.routes.extend(links.filter(|&link| link < known));
        self.transfers.push(Transfer { links: first..self.routes.len() as u32, bytes, latency });
        (self.transfers.len() - 1) as u32
    }

    /// `node` starts to carry out a transfer at `now`.
    pub(crate) fn start(&mut self, node: u32, transfer: u32, now: Nanos) {
        let Transfer { links, bytes, latency } = self.transfers[transfer as usize].clone();
        let begins = now + if bytes.is_zero() { latency.max(Nanos(1)) } else { latency };
        let left = u128::from(bytes.get()) * PER_BYTE;
        let flow = Flow { node, links, left, based: begins, rate: 0, moves: false, open: false };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.flows[slot as usize] = flow;
                slot
            }
            None => {
                self.flows.push(flow);
                (self.flows.len() - 1) as u32
            }
        };
        self.active += 1;
        if slot as usize >= self.slots {
            self.grow();
        }
        if begins > now {
            self.events.set(slot, begins.get());
        } else {
            self.begin(slot);
        }
    }

    fn grow(&mut self) {
        let known: Vec<_> = (0..self.slots as u32).map(|slot| self.events.key(slot)).collect();
        self.slots = (2 * self.slots).max(64);
        self.events.reset(self.slots);
        (0..).zip(known).for_each(|(slot, key)| self.events.set(slot, key));
    }

    fn links_of(&self, slot: u32) -> Range<usize> {
        let links = &self.flows[slot as usize].links;
        links.start as usize..links.end as usize
    }

    /// Its first byte moves.
    fn begin(&mut self, slot: u32) {
        self.flows[slot as usize].moves = true;
        let links = self.links_of(slot);
        if links.is_empty() {
            // The way from a place to itself takes no time.
            self.flows[slot as usize].rate = u64::MAX;
            self.set_end(slot);
        }
        for at in links {
            let link = self.routes[at];
            self.links[link as usize].flows.push(slot);
            self.dirty.push(link);
        }
    }

    fn set_end(&mut self, slot: u32) {
        let flow = &self.flows[slot as usize];
        let needs = div_ceil(flow.left, flow.rate.max(1));
        self.events.set(slot, (flow.based + Nanos(needs)).get());
    }

    fn remove(&mut self, slot: u32) {
        if self.flows[slot as usize].moves {
            for at in self.links_of(slot) {
                let link = self.routes[at];
                self.links[link as usize].flows.retain(|&other| other != slot);
                self.dirty.push(link);
            }
        }
        self.events.set(slot, Tournament::NEVER);
        self.flows[slot as usize].node = NONE;
        self.free.push(slot);
        self.active -= 1;
    }

    /// `node` carries its transfer no further. O(flows).
    pub(crate) fn stop(&mut self, node: u32) {
        if let Some(slot) = self.flows.iter().position(|flow| flow.node == node) {
            self.remove(slot as u32);
        }
    }

    /// Forgets all transfers, if none is under way.
    pub(crate) fn forget_transfers(&mut self) {
        if self.active == 0 {
            self.transfers.clear();
            self.routes.clear();
            self.flows.clear();
            self.free.clear();
        }
    }

    /// Moves on to `now`, where something begins or ends; calls `done` for the nodes whose last
    /// byte has arrived. Nothing ends before `floor`. Rates are as before until the next
    /// [`share`](Self::share).
    pub(crate) fn step(&mut self, now: Nanos, floor: Nanos, mut done: impl FnMut(u32)) {
        while self.active > 0 {
            let (slot, at) = self.events.first();
            if at > now.get() {
                return;
            }
            let flow = &self.flows[slot as usize];
            if !flow.moves && flow.left > 0 {
                self.events.set(slot, Tournament::NEVER);
                self.begin(slot);
            } else if now < floor {
                self.events.set(slot, floor.get());
            } else {
                let node = flow.node;
                self.remove(slot);
                done(node);
            }
        }
    }

    /// When something begins or ends next, as far as rates are known.
    pub(crate) fn next(&self) -> u64 {
        if self.active == 0 { Tournament::NEVER } else { self.events.first().1 }
    }

    /// Sets what a link carries. Nothing carries on over a link that carries nothing.
    pub(crate) fn set_bandwidth(&mut self, link: u32, bandwidth: Bandwidth) {
        if let Some(state) = self.links.get_mut(link as usize) {
            state.capacity = bandwidth.get();
            self.dirty.push(link);
        }
    }

    /// Calls `cut` for the nodes whose flow has a link that has failed.
    pub(crate) fn cut_failed(&mut self, mut cut: impl FnMut(u32)) {
        for index in 0..self.dirty.len() {
            let link = &mut self.links[self.dirty[index] as usize];
            if link.capacity > 0 {
                continue;
            }
            for slot in std::mem::take(&mut link.flows) {
                let node = self.flows[slot as usize].node;
                self.remove(slot);
                cut(node);
            }
        }
    }

    /// Shares the links out anew, wherever flows have begun or ended.
    pub(crate) fn share(&mut self, now: Nanos) {
        while let Some(link) = self.dirty.pop() {
            self.component.clear();
            self.collect(link);
            self.fill(now);
        }
    }

    /// The links that share flows with `first`, directly or over others; all of their flows are
    /// open then.
    fn collect(&mut self, first: u32) {
        self.component.push(first);
        self.links[first as usize].in_component = true;
        let mut next = 0;
        while let Some(&link) = self.component.get(next) {
            next += 1;
            let state = &mut self.links[link as usize];
            (state.spare, state.waiting) = (state.capacity, state.flows.len() as u32);
            for index in 0..self.links[link as usize].flows.len() {
                let slot = self.links[link as usize].flows[index];
                if std::mem::replace(&mut self.flows[slot as usize].open, true) {
                    continue;
                }
                for at in self.links_of(slot) {
                    let other = self.routes[at];
                    if !std::mem::replace(&mut self.links[other as usize].in_component, true) {
                        self.component.push(other);
                    }
                }
            }
        }
        // Ties go to the lower link.
        self.component.sort_unstable();
    }

    /// Progressive filling (Bertsekas & Gallager, Data Networks, 6.5.2): the tightest link fixes
    /// the rate of its flows, and so on with what it leaves.
    fn fill(&mut self, now: Nanos) {
        loop {
            let links = &self.links;
            let level = |link: &u32| {
                let Link { spare, waiting, .. } = links[*link as usize];
                spare.checked_div(u64::from(waiting)).map(|level| level.max(1))
            };
            let crowded = self.component.iter().filter_map(|link| Some((level(link)?, *link)));
            let Some((rate, tightest)) = crowded.min() else { break };
            for index in 0..self.links[tightest as usize].flows.len() {
                let slot = self.links[tightest as usize].flows[index];
                if std::mem::take(&mut self.flows[slot as usize].open) {
                    self.set_rate(slot, rate, now);
                    for at in self.links_of(slot) {
                        let link = &mut self.links[self.routes[at] as usize];
                        link.spare = link.spare.saturating_sub(rate);
                        link.waiting -= 1;
                    }
                }
            }
        }
        for &link in &self.component {
            self.links[link as usize].in_component = false;
        }
    }

    fn set_rate(&mut self, slot: u32, rate: u64, now: Nanos) {
        let flow = &mut self.flows[slot as usize];
        if flow.rate == rate {
            return;
        }
        let moved = u128::from(flow.rate) * u128::from((now - flow.based).get());
        flow.left = flow.left.saturating_sub(moved);
        flow.based = flow.based.max(now);
        flow.rate = rate;
        self.set_end(slot);
    }
}

/// Rounded up, at most [`u64::MAX`]. Most dividends fit into 64 bits, where division is several
/// times faster.
pub(crate) fn div_ceil(dividend: u128, divisor: u64) -> u64 {
    match u64::try_from(dividend) {
        Ok(dividend) => dividend.div_ceil(divisor),
        Err(_) => u64::try_from(dividend.div_ceil(u128::from(divisor))).unwrap_or(u64::MAX),
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
            routes in prop::collection::vec((prop::collection::btree_set(0u32..6, 1..4), any::<bool>()), 1..10),
        ) {
            let mut network = Network::default();
            for &bandwidth in &capacity {
                network.add_link(Bandwidth(bandwidth));
            }
            // Some flows end again, so that rates are those of components that fell apart.
            let mut ending = Vec::new();
            for (node, (route, ends)) in (0..).zip(routes) {
                let transfer = network.add_transfer(route.into_iter(), Bytes::gb(1), Nanos::ZERO);
                network.start(node, transfer, Nanos::ZERO);
                network.share(Nanos::ZERO);
                if ends {
                    ending.push(node);
                }
            }
            for slot in ending {
                network.remove(slot);
                network.share(Nanos::ZERO);
            }
            let moving: Vec<u32> = (0..network.flows.len() as u32).filter(|slot| !network.free.contains(slot)).collect();
            let links_of = |slot: u32| network.routes[network.links_of(slot)].to_vec();
            let rate = |slot: u32| network.flows[slot as usize].rate;
            let users = |link: u32| -> Vec<u32> { moving.iter().copied().filter(|&flow| links_of(flow).contains(&link)).collect() };
            let load = |link: u32| users(link).into_iter().map(rate).sum::<u64>();
            for (link, &bandwidth) in capacity.iter().enumerate() {
                prop_assert!(load(link as u32) <= bandwidth);
            }
            for &flow in moving.iter().filter(|&&flow| !links_of(flow).is_empty()) {
                // Whole rates leave less than one byte per second and flow unused.
                let bottleneck = links_of(flow).iter().any(|&link| {
                    let full = capacity[link as usize] - load(link) < users(link).len() as u64;
                    full && users(link).iter().all(|&other| rate(other) <= rate(flow) + 1)
                });
                prop_assert!(bottleneck, "flow {} at {} over {:?}", flow, rate(flow), links_of(flow));
            }
        }
    }
}
