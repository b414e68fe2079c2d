//! The live graph.

use std::sync::Arc;

use crate::accept::accept;
use crate::apply::change;
use crate::cluster::Cluster;
use crate::delta::{Applied, Delta, Effect, Intent, NewRequest};
use crate::error::GmgError;
use crate::id::{DeviceId, JobId, ModelId, RequestId, TenantId, Version};
use crate::job::JobSpec;
use crate::memory::DeviceLayout;
use crate::plan::{Accepted, Plan};
use crate::snapshot::{Publisher, Snapshot};
use crate::state::{Recorded, State};
use crate::tenant::{Container, Model, Tenant};
use crate::view::{GmgView, View};

/// The Global Mapping Graph of one cluster. It has one owner, the driver, who applies deltas and
/// publishes snapshots; everybody else reads.
///
/// ```
/// use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
/// use slicescheduler_gmg::tenant::{Container, Tenant};
/// use slicescheduler_gmg::units::{Bandwidth, Nanos};
/// use slicescheduler_gmg::{Gmg, GmgView, Model, templates};
///
/// let cluster = Cluster::builder()
///     .node("a", |node| node.devices(8, DeviceSpec::h100_sxm()).nvlink(Bandwidth::gb_per_s(450)))
///     .build()?;
/// let mut gmg = Gmg::new(cluster);
/// let chat = gmg.add_tenant(Tenant::latency_sensitive("chat").ttft(Nanos::ms(400)))?;
/// let spec = templates::DenseSpec::llama3_8b();
/// let model = Model::new("llama3-8b", templates::dense(&spec)?.into());
/// let model = gmg.add_model(chat, model, Container::replicas([0, 1]))?;
/// assert!(gmg.view().is_resident(model, slicescheduler_gmg::id::DeviceId(1)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Gmg {
    state: State,
    publisher: Publisher,
}

impl Gmg {
    /// The graph of a cluster on which nothing runs. Every device is laid out as
    /// [`DeviceLayout::of`] its memory until [`lay_out`](Self::lay_out) says otherwise.
    pub fn new(cluster: Cluster) -> Self {
        Self { state: State::new(cluster), publisher: Publisher::default() }
    }

    /// A graph that goes on from a snapshot.
    pub fn restore(snapshot: &Snapshot) -> Self {
        Self { state: snapshot.state().clone(), publisher: Publisher::default() }
    }

    #[cfg(feature = "serde")]
    pub(crate) fn of(state: State) -> Self {
        Self { state, publisher: Publisher::default() }
    }

    /// The graph as it is now.
    pub fn view(&self) -> View<'_> {
        View::from(&self.state)
    }

    /// The live tables, for code that is generic over [`GmgView`].
    pub fn state(&self) -> &State {
        &self.state
    }

    /// How many deltas were applied.
    pub fn version(&self) -> Version {
        self.state.version
    }

    /// Applies one change. O(operators touched); no allocation for transitions of operators.
    ///
    /// # Errors
    /// An intent that cannot be carried out is refused, and the graph is as before. An observation
    /// is never refused: see [`Effect::Diverged`].
    #[inline]
    pub fn apply(&mut self, delta: impl Into<Delta>) -> Result<Applied, GmgError> {
        // Inlined, so that a delta is read where it was made and not moved around first.
        let delta = delta.into();
        let effect = self.change(&delta)?;
        Ok(Applied { version: self.state.version, delta, effect })
    }

    fn change(&mut self, delta: &Delta) -> Result<Effect, GmgError> {
        let state = &mut self.state;
        match self.publisher.listening() {
            Some(changes) => change(&mut Recorded { state, changes }, delta),
            None => change(state, delta),
        }
    }

    /// Reserves what the plan needs and drops what is stale or does not fit, each with a reason.
    /// Actions are taken in order; a dropped one does not affect the others.
    pub fn accept(&mut self, plan: Plan) -> Accepted {
        accept(self, plan)
    }

    /// Publishes the graph as it is now: brings a copy of the tables that no reader holds up to date. O(what changed
    /// since that copy was published).
    ///
    /// Three copies of the tables are kept at most: the one that readers hold, the one that takes turns with it,
    /// and one more while a reader lags behind. So the first two calls, one call when a reader lags, and every call
    /// while readers hold all three copies cost a copy of everything, O(graph). So does a call after more
    /// changes than are kept account of (64 k changes of requests or of memory since the last call).
    pub fn publish(&mut self) -> Snapshot {
        self.publisher.publish(&self.state)
    }

    /// Divides the memory of a device; see [`Intent::LayOut`].
    ///
    /// # Errors
    /// If the device is unknown, in use, or too small for the layout.
    pub fn lay_out(&mut self, device: DeviceId, layout: DeviceLayout) -> Result<(), GmgError> {
        self.apply(Intent::LayOut { device, layout }).map(|_| ())
    }

    /// Enters a tenant.
    ///
    /// # Errors
    /// If there is a tenant of that name.
    pub fn add_tenant(&mut self, tenant: Tenant) -> Result<TenantId, GmgError> {
        let id = TenantId(self.state.tenants().len() as u32);
        self.apply(Intent::AddTenant(Arc::new(tenant))).map(|_| id)
    }

    /// Enters a model of `tenant` with the container that holds it.
    ///
    /// # Errors
    /// If a device is unknown, taken, or has no room for the weights.
    pub fn add_model(&mut self, tenant: TenantId, model: Model, container: Container) -> Result<ModelId, GmgError> {
        let id = ModelId(self.state.models().len() as u32);
        self.apply(Intent::AddModel { tenant, model: Arc::new(model), container: Arc::new(container) }).map(|_| id)
    }

    /// Enters a request.
    ///
    /// # Errors
    /// If the tenant is unknown.
    pub fn submit_request(&mut self, request: NewRequest) -> Result<RequestId, GmgError> {
        let id = self.state.next_request_id();
        self.apply(Intent::Submit(request)).map(|_| id)
    }

    /// Enters a job.
    ///
    /// # Errors
    /// If the model is unknown or a symbol of its template has no value.
    pub fn submit(&mut self, job: JobSpec) -> Result<JobId, GmgError> {
        let id = self.state.next_job();
        self.apply(Intent::SubmitJob(Arc::new(job))).map(|_| id)
    }

    /// The id that the next request gets.
    pub fn next_request_id(&self) -> RequestId {
        self.state.next_request_id()
    }
}

impl Effect {
    /// The job that was entered, if one was.
    pub fn job(&self) -> Option<JobId> {
        match self {
            Self::Job(job) => Some(*job),
            _ => None,
        }
    }
}
