//! Transfers that share links, max-min fairly.

use std::ops::Range;

use smallvec::SmallVec;

use slicescheduler_gmg::cluster::Cluster;
use slicescheduler_gmg::id::{DeviceId, LinkId, ModelId};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};

use crate::engine::Network;

/// Weights on their way to a device.
#[derive(Clone, Debug)]
pub(super) struct Weights {
    pub(super) model: ModelId,
    /// Of these operators; [`None`] for the whole model.
    pub(super) ops: Option<Range<u32>>,
    pub(super) device: DeviceId,
}

#[derive(Debug)]
struct Transfer {
    what: Weights,
    /// The transfer in the network.
    id: u32,
    /// True while a link of its way is cut. It starts over when the link is back.
    broken: bool,
}

/// All transfers of a world. The links of the network are those of the cluster.
#[derive(Debug)]
pub(super) struct Transfers {
    network: Network,
    /// By number of the network's node; none once it has arrived.
    started: Vec<Option<Transfer>>,
    active: usize,
}

impl Transfers {
    pub(super) fn new(cluster: &Cluster) -> Self {
        let mut network = Network::default();
        for link in cluster.links() {
            network.add_link(link.bandwidth);
        }
        Self { network, started: Vec::new(), active: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.active == 0
    }

    pub(super) fn start(
        &mut self,
        now: Nanos,
        what: Weights,
        bytes: Bytes,
        links: impl Iterator<Item = LinkId>,
        latency: Nanos,
    ) {
        let id = self.network.add_transfer(links.map(|link| link.0), bytes, latency);
        let node = self.started.len() as u32;
        self.started.push(Some(Transfer { what, id, broken: false }));
        self.active += 1;
        self.network.start(node, id, now);
        self.share(now);
    }

    /// When something happens next, if nothing changes.
    pub(super) fn next(&self) -> Option<Nanos> {
        Some(self.network.next()).filter(|&at| at != u64::MAX).map(Nanos)
    }

    /// Moves on to `now` and returns what has arrived.
    pub(super) fn advance(&mut self, now: Nanos) -> SmallVec<[Weights; 2]> {
        let mut arrived = SmallVec::new();
        let (started, active) = (&mut self.started, &mut self.active);
        self.network.step(now, Nanos::ZERO, |node| {
            if let Some(transfer) = started[node as usize].take() {
                *active -= 1;
                arrived.push(transfer.what);
            }
        });
        self.share(now);
        self.shrink();
        arrived
    }

    /// Drops what was on its way to a device.
    pub(super) fn drop_device(&mut self, now: Nanos, device: DeviceId) {
        for (node, transfer) in (0..).zip(&mut self.started) {
            if let Some(dropped) = transfer.take_if(|transfer| transfer.what.device == device) {
                self.active -= 1;
                if !dropped.broken {
                    self.network.stop(node);
                }
            }
        }
        self.share(now);
        self.shrink();
    }

    /// Sets what a link carries from now on. Without bandwidth, transfers over it wait until it is
    /// back, and start over then.
    pub(super) fn set_bandwidth(&mut self, now: Nanos, link: LinkId, bandwidth: Bandwidth) {
        self.network.set_bandwidth(link.0, bandwidth);
        for (node, transfer) in (0..).zip(&mut self.started) {
            if let Some(transfer) = transfer.as_mut().filter(|transfer| transfer.broken) {
                transfer.broken = false;
                self.network.start(node, transfer.id, now);
            }
        }
        self.share(now);
    }

    fn share(&mut self, now: Nanos) {
        let started = &mut self.started;
        self.network.cut_failed(|node| {
            if let Some(transfer) = &mut started[node as usize] {
                transfer.broken = true;
            }
        });
        self.network.share(now);
    }

    /// Numbers are given anew once nothing is on its way.
    fn shrink(&mut self) {
        if self.active == 0 {
            self.started.clear();
            self.network.forget_transfers();
        }
    }
}
