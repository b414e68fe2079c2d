//! Requests that arrive: entered into the graph and put into their tenant's batching, or refused.

use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::id::{DeviceId, ModelId, RequestId, TenantId};
use slicescheduler_gmg::plan::{Event, Observer, World};
use slicescheduler_gmg::tenant::Slo;
use slicescheduler_gmg::{GmgError, GmgView, Intent};
use slicescheduler_scheduler::batching::{BlockHashes, ReplicaState, Sequence};
use slicescheduler_scheduler::demand::Demand;

use crate::driver::{Driver, DriverError, RequestError};

/// A request as it comes to [`Driver::submit`]: what the graph enters, and what only some requests have. A
/// [`NewRequest`] is one without either.
///
/// ```
/// use slicescheduler::driver::Arrival;
/// use slicescheduler_gmg::delta::NewRequest;
/// use slicescheduler_gmg::id::TenantId;
/// use slicescheduler_gmg::tenant::Slo;
/// use slicescheduler_gmg::units::Nanos;
///
/// let request = NewRequest { tenant: TenantId(0), arrival: Nanos::ZERO, prompt: 2048, max_output: 256 };
/// let urgent = Arrival::from(request).slo(Slo { ttft: Nanos::ms(200), tpot: Nanos::ms(20) });
/// assert_eq!(urgent.request, request);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Arrival {
    /// Whose it is, when it comes, and how many tokens it has and may get.
    pub request: NewRequest,
    /// A service level of its own, in place of its tenant's.
    pub slo: Option<Slo>,
    /// What the full KV blocks of its prompt contain, as far as that is known.
    pub hashes: BlockHashes,
}

impl Arrival {
    /// With a service level of its own, in place of its tenant's, if there is one. Only tenants that have a
    /// service level may have such requests.
    #[must_use]
    pub fn slo(mut self, own: impl Into<Option<Slo>>) -> Self {
        self.slo = own.into();
        self
    }

    /// With a prompt of which it is known what its blocks contain: where its tenant
    /// [shares blocks](slicescheduler_scheduler::batching::BatchOptions::prefix_caching), what is there already is
    /// not computed again. One hash per full block of as many tokens as the tenant's blocks have.
    #[must_use]
    pub fn hashes(mut self, hashes: BlockHashes) -> Self {
        self.hashes = hashes;
        self
    }
}

impl From<NewRequest> for Arrival {
    fn from(request: NewRequest) -> Self {
        Self { request, slo: None, hashes: BlockHashes::default() }
    }
}

impl<W: World> Driver<W> {
    /// Enters a request and decides what follows from it.
    ///
    /// # Errors
    /// If the tenant is unknown, or has no service level but the request one of its own; then nothing is entered.
    /// If the world is broken. A request that can never fit is entered and [lost](Self::take_lost) at once.
    pub fn submit(
        &mut self,
        arrival: impl Into<Arrival>,
        observer: &mut dyn Observer,
    ) -> Result<RequestId, DriverError> {
        let Arrival { request, slo: own, hashes } = arrival.into();
        let view = self.gmg.view();
        let tenant = view.tenant(request.tenant).ok_or(GmgError::NoSuchTenant(request.tenant))?;
        if own.is_some() && tenant.slo.is_none() {
            return Err(GmgError::NoDueTimes(request.tenant).into());
        }
        let slo = own.or(tenant.slo);
        self.now = self.now.max(request.arrival);
        let id = self.gmg.next_request_id();
        self.apply(Intent::Submit(request))?;
        if let Some(slo) = own {
            self.apply(Intent::SetSlo { request: id, slo })?;
        }
        let sequence = Sequence::new(id, request.arrival, slo, request.prompt, request.max_output).with_hashes(hashes);
        let waiting = self.batching.waiting(request.tenant);
        let refused = self.admission.check(self.now, slo, waiting).err().map(RequestError::NotAdmitted);
        if let Some(reason) = self.never_fits(request.tenant, request.prompt).or(refused) {
            self.apply(Intent::Reject { request: id })?;
            self.lose(id, request.tenant, reason)?;
            return Ok(id);
        }
        self.batching[request.tenant.index()].enter(sequence);
        let event = Event::Arrived { request: id, at: self.now };
        self.observe(event.clone())?;
        observer.on_event(&event, self.gmg.view());
        if let Some(log) = &mut self.log {
            log.on_event(&event, self.gmg.view());
        }
        self.decide(&event, observer)?;
        Ok(id)
    }

    /// Why a prompt of this tenant could not be computed on any of its own devices.
    pub(super) fn never_fits(&self, tenant: TenantId, tokens: u32) -> Option<RequestError> {
        if self.is_homeless(tenant) {
            return Some(RequestError::NoDevice);
        }
        let batcher = self.batching.get(tenant.index())?;
        let blocks = tokens.div_ceil(batcher.options().block_tokens.max(1)).saturating_add(1);
        let own = self.homes.get(tenant.index())?.iter().filter_map(|&device| batcher.replica_on(device));
        let own = own.filter_map(|replica| batcher.replicas().get(replica.index as usize));
        let view = self.gmg.view();
        let most_on = |replica: &ReplicaState| match view.group(replica.device) {
            [] => self.most_blocks(replica.model, replica.device),
            group => group.iter().map(|&device| self.most_blocks(replica.model, device)).min().flatten(),
        };
        let most = own.filter_map(most_on).max().unwrap_or(0);
        (blocks > most).then_some(RequestError::TooLong { tokens, blocks, most })
    }

    /// The KV blocks that an owner's sequence can have on its device: all of them, and where weights give
    /// way to it, those of the part for weights that its own leave.
    fn most_blocks(&self, model: ModelId, device: DeviceId) -> Option<u32> {
        let view = self.gmg.view();
        let memory = view.memory(device)?;
        let shared = self.shares_slots && self.policy.shares_slots();
        let own = memory.weight_region(model).filter(|_| shared).map(|region| region.end());
        let borrowed = own.map_or(0, |end| memory.layout().borrowable_from(end));
        Some(memory.kv().total().max(memory.layout().kv_blocks() + borrowed))
    }
}
