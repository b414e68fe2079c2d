//! Transfers that share links.
//!
//! Every transfer runs at the smallest equal share that any of its links has for it. That is a
//! little below max-min fairness where a link has transfers that are slow elsewhere.

use smallvec::SmallVec;

use slicescheduler_gmg::cluster::Cluster;
use slicescheduler_gmg::id::{DeviceId, LinkId, ModelId};
use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};

#[derive(Debug)]
struct Transfer {
    what: (ModelId, DeviceId),
    links: SmallVec<[LinkId; 4]>,
    left: Bytes,
    rate: Bandwidth,
    /// The latency of the links, before the first byte.
    begins: Nanos,
}

impl Transfer {
    fn end(&self, now: Nanos) -> Nanos {
        self.begins.max(now) + self.rate.time_for(self.left)
    }
}

#[derive(Debug)]
pub(super) struct Transfers {
    active: Vec<Transfer>,
    users: Vec<u32>,
    now: Nanos,
}

impl Transfers {
    pub(super) fn new(links: usize) -> Self {
        Self { active: Vec::new(), users: vec![0; links], now: Nanos::ZERO }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    pub(super) fn start(
        &mut self,
        cluster: &Cluster,
        now: Nanos,
        what: (ModelId, DeviceId),
        bytes: Bytes,
        links: impl Iterator<Item = LinkId>,
        latency: Nanos,
    ) {
        self.progress(now);
        let links: SmallVec<[LinkId; 4]> = links.collect();
        for link in &links {
            self.users[link.index()] += 1;
        }
        self.active.push(Transfer { what, links, left: bytes, rate: Bandwidth::ZERO, begins: now + latency });
        self.share(cluster);
    }

    /// The end of the first transfer to end, if nothing changes.
    pub(super) fn next_end(&self) -> Option<Nanos> {
        self.active.iter().map(|transfer| transfer.end(self.now)).min()
    }

    /// Moves on to `now` and returns what has arrived.
    pub(super) fn advance(&mut self, cluster: &Cluster, now: Nanos) -> SmallVec<[(ModelId, DeviceId); 2]> {
        let mut arrived = SmallVec::new();
        let before = self.now;
        for transfer in &self.active {
            if transfer.end(before) <= now {
                arrived.push(transfer.what);
            }
        }
        self.progress(now);
        self.remove(cluster, |transfer| arrived.contains(&transfer.what));
        arrived
    }

    /// Drops what was on its way to a device.
    pub(super) fn drop_device(&mut self, cluster: &Cluster, now: Nanos, device: DeviceId) {
        self.progress(now);
        self.remove(cluster, |transfer| transfer.what.1 == device);
    }

    fn remove(&mut self, cluster: &Cluster, gone: impl Fn(&Transfer) -> bool) {
        let users = &mut self.users;
        self.active.retain(|transfer| {
            let gone = gone(transfer);
            if gone {
                transfer.links.iter().for_each(|link| users[link.index()] -= 1);
            }
            !gone
        });
        self.share(cluster);
    }

    fn progress(&mut self, now: Nanos) {
        for transfer in &mut self.active {
            let elapsed = now - self.now.max(transfer.begins);
            transfer.left -= Bytes(Nanos(transfer.rate.get()).scale(elapsed.get(), 1_000_000_000).get());
        }
        self.now = self.now.max(now);
    }

    fn share(&mut self, cluster: &Cluster) {
        for transfer in &mut self.active {
            let shares = transfer.links.iter().filter_map(|&link| {
                let users = u64::from(self.users[link.index()].max(1));
                Some(Bandwidth(cluster.link(link)?.bandwidth.get() / users))
            });
            transfer.rate = shares.min().unwrap_or(Bandwidth::MAX);
        }
    }
}
