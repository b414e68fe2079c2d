//! What the tenants want to run: the policy's view of batching.

use slicescheduler_gmg::id::{DeviceId, ModelId, ReplicaId, TenantId};
use slicescheduler_gmg::memory::KvPool;
use slicescheduler_gmg::plan::{BatchLimits, Continuation};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, View};

use crate::batching::{Batcher, Iteration, late_prefix};

/// Requests of a tenant that no replica has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// How many.
    pub requests: usize,
    /// Tokens that have to be computed before each has its next output token.
    pub tokens: u64,
    /// When the next token of the oldest is due.
    pub first_due: Nanos,
    /// When the next token of the youngest is due.
    pub last_due: Nanos,
}

/// One replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaInfo {
    /// Its name.
    pub id: ReplicaId,
    /// Where its sequences lie.
    pub device: DeviceId,
    /// The model that it runs.
    pub model: ModelId,
    /// Sequences that hold blocks.
    pub running: u32,
    /// True while an iteration was formed and did not end.
    pub in_flight: bool,
}

/// What the tenants want to run. A host with batching of its own implements this; everybody else
/// uses [`Batcher`].
///
/// Nothing here changes anything. The answers hold until the next event.
pub trait Demand {
    /// The replica of `tenant` on `device`.
    fn replica_on(&self, tenant: TenantId, device: DeviceId) -> Option<ReplicaInfo>;

    /// A replica by its name.
    fn replica(&self, replica: ReplicaId) -> Option<ReplicaInfo>;

    /// What waits for a replica of `tenant`; [`None`] if nothing does.
    fn waiting(&self, tenant: TenantId) -> Option<Waiting>;

    /// Those of [`waiting`](Self::waiting) whose next token is not due before `time`; of a long queue, the
    /// oldest of them.
    fn waiting_in_time(&self, tenant: TenantId, time: Nanos) -> Option<Waiting>;

    /// The next iteration of `replica` under `limits`, into `iteration`; empty if there is none.
    fn peek(&self, replica: ReplicaId, limits: BatchLimits, iteration: &mut Iteration);

    /// What `replica` would submit from now on, looking at the oldest `depth` waiting requests.
    fn forecast(&self, replica: ReplicaId, limits: BatchLimits, depth: usize) -> Option<Box<dyn Continuation>>;

    /// Most tokens of one iteration of `tenant`.
    fn token_budget(&self, tenant: TenantId) -> u32;
}

/// Requests that [`Demand::waiting_in_time`] counts at most: more than any one decision places.
const LOOKED_AT: usize = 256;

impl Demand for Vec<Batcher> {
    fn replica_on(&self, tenant: TenantId, device: DeviceId) -> Option<ReplicaInfo> {
        self.replica(self.get(tenant.index())?.replica_on(device)?)
    }

    fn replica(&self, id: ReplicaId) -> Option<ReplicaInfo> {
        let replica = self.get(id.tenant.index())?.replicas().get(id.index as usize)?;
        Some(ReplicaInfo {
            id,
            device: replica.device,
            model: replica.model,
            running: replica.running().len() as u32,
            in_flight: replica.is_in_flight(),
        })
    }

    fn waiting(&self, tenant: TenantId) -> Option<Waiting> {
        let batcher = self.get(tenant.index())?;
        let (first, last) = (batcher.waiting().front()?, batcher.waiting().back()?);
        Some(Waiting {
            requests: batcher.waiting().len(),
            tokens: batcher.waiting_tokens(),
            first_due: first.next_due(),
            last_due: last.next_due(),
        })
    }

    fn waiting_in_time(&self, tenant: TenantId, time: Nanos) -> Option<Waiting> {
        let waiting = self.get(tenant.index())?.waiting();
        let late = late_prefix(waiting, time);
        let (first, last) = (waiting.get(late)?, waiting.back()?);
        let looked_at = waiting.range(late..).take(LOOKED_AT);
        Some(Waiting {
            requests: (waiting.len() - late).min(LOOKED_AT),
            tokens: looked_at.map(|sequence| u64::from(sequence.remaining())).sum(),
            first_due: first.next_due(),
            last_due: last.next_due(),
        })
    }

    fn peek(&self, replica: ReplicaId, limits: BatchLimits, iteration: &mut Iteration) {
        match self.get(replica.tenant.index()) {
            Some(batcher) => batcher.peek(replica.index, limits, iteration),
            None => *iteration = Iteration::default(),
        }
    }

    fn forecast(&self, replica: ReplicaId, limits: BatchLimits, depth: usize) -> Option<Box<dyn Continuation>> {
        let forecast = self.get(replica.tenant.index())?.forecast(replica.index, limits, depth)?;
        Some(Box::new(forecast))
    }

    fn token_budget(&self, tenant: TenantId) -> u32 {
        self.get(tenant.index()).map_or(0, |batcher| batcher.options().token_budget)
    }
}

/// Batchers, one per tenant, whose sequences find blocks in the pools of a graph as far as they
/// [share blocks](Batcher::shares_blocks).
#[derive(Clone, Copy)]
pub struct OnGraph<'a> {
    batching: &'a Vec<Batcher>,
    view: View<'a>,
}

impl<'a> OnGraph<'a> {
    /// `batching` on the devices that `view` shows.
    pub fn new(batching: &'a Vec<Batcher>, view: View<'a>) -> Self {
        Self { batching, view }
    }

    /// The batcher of a replica, and the pool of its device.
    fn of(&self, replica: ReplicaId) -> Option<(&Batcher, Option<&KvPool>)> {
        let batcher = self.batching.get(replica.tenant.index())?;
        let device = batcher.replicas().get(replica.index as usize).map(|replica| replica.device);
        Some((batcher, device.and_then(|device| self.view.memory(device)).map(|memory| memory.kv())))
    }
}

impl Demand for OnGraph<'_> {
    fn replica_on(&self, tenant: TenantId, device: DeviceId) -> Option<ReplicaInfo> {
        self.batching.replica_on(tenant, device)
    }

    fn replica(&self, replica: ReplicaId) -> Option<ReplicaInfo> {
        self.batching.replica(replica)
    }

    fn waiting(&self, tenant: TenantId) -> Option<Waiting> {
        self.batching.waiting(tenant)
    }

    fn waiting_in_time(&self, tenant: TenantId, time: Nanos) -> Option<Waiting> {
        self.batching.waiting_in_time(tenant, time)
    }

    fn peek(&self, replica: ReplicaId, limits: BatchLimits, iteration: &mut Iteration) {
        match self.of(replica) {
            Some((batcher, pool)) => batcher.peek_in(replica.index, pool, limits, iteration),
            None => *iteration = Iteration::default(),
        }
    }

    fn forecast(&self, replica: ReplicaId, limits: BatchLimits, depth: usize) -> Option<Box<dyn Continuation>> {
        let (batcher, pool) = self.of(replica)?;
        Some(Box::new(batcher.forecast_in(replica.index, pool, limits, depth)?))
    }

    fn token_budget(&self, tenant: TenantId) -> u32 {
        self.batching.token_budget(tenant)
    }
}
