//! Requests in, tokens and vectors out.
//!
//! [`SliceScheduler`] owns a [driver](crate::driver) over CPU lanes. Requests are checked where they
//! are submitted, on any thread, and go to the loop through a bounded inbox, which wakes it if it
//! waits for the world. Tokens come back with the event that reports them, before anything else is
//! decided; vectors at the end of that pass. Every request that is taken ends: with its answer, or with a typed error.

mod answer;
mod clock;
mod embedding;
mod error;
mod inbox;
mod mailbox;
mod request;
mod service;
mod status;
mod stepped;
mod waiting;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, bounded};
use slicescheduler_executor::cpu_world::CpuWorld;
use slicescheduler_executor::lane::ThreadSpawner;
use slicescheduler_gmg::id::TenantId;
use slicescheduler_gmg::plan::Clock;
use slicescheduler_gmg::units::Nanos;

use crate::builder::Builder;
use crate::driver::RequestError;
use crate::model::ModelKind;
use inbox::{Inbox, Message, Submission};
use mailbox::{Mailbox, Recipient};
use stepped::Stepped;
use waiting::Waiting;

pub use answer::{Answer, TokenStream};
pub use clock::SystemClock;
pub use embedding::{Embedding, PendingEmbedding};
pub use error::ServeError;
pub use request::{Request, Token};
pub(crate) use service::{Service, TokenWorld};
pub use status::{DeviceStatus, Status, TenantStatus};

/// What requests of a tenant are held to.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) name: Arc<str>,
    pub(crate) id: TenantId,
    pub(crate) model: Arc<str>,
    pub(crate) kind: ModelKind,
    pub(crate) vocabulary: u32,
    /// Most tokens of prompt and answer together; of the prompt alone, where the answer is a vector.
    pub(crate) context: u64,
    pub(crate) end_of_sequence: Option<u32>,
}

/// Who makes the passes.
enum Passes {
    /// A thread, which drops the other end when it is gone.
    Thread(Receiver<()>),
    /// Whoever waits.
    Stepped(Arc<Stepped>),
}

/// Many models on few devices: requests of tenants in, tokens and vectors out.
///
/// Dropping it ends the loop: operators that run go to their end, requests that have not ended end
/// with [`RequestError::ShutDown`], and its threads have nothing left to do when the drop returns.
/// Wait for the answers before, if they matter.
pub struct SliceScheduler {
    tenants: Vec<Served>,
    inbox: Arc<Inbox>,
    clock: Arc<dyn Clock>,
    passes: Passes,
}

impl fmt::Debug for SliceScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SliceScheduler").field("tenants", &self.tenants).finish_non_exhaustive()
    }
}

impl SliceScheduler {
    /// What a scheduler is made of. Tenants with their models are all that has to be said.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn start(
        service: Service<CpuWorld>,
        tenants: Vec<Served>,
        threads: &dyn ThreadSpawner,
    ) -> io::Result<Self> {
        let (inbox, clock) = (service.inbox().clone(), service.clock().clone());
        let (alive, exited) = bounded::<()>(0);
        let body = move || {
            // Goes last, after the service with its lanes, also when a pass panics.
            let _alive = alive;
            service.run();
        };
        threads.spawn("slicescheduler".to_owned(), Box::new(body))?;
        Ok(Self { tenants, inbox, clock, passes: Passes::Thread(exited) })
    }

    pub(crate) fn stepped(service: Service<CpuWorld>, tenants: Vec<Served>) -> Self {
        let (inbox, clock) = (service.inbox().clone(), service.clock().clone());
        Self { tenants, inbox, clock, passes: Passes::Stepped(Arc::new(Stepped::new(service))) }
    }

    /// Asks `tenant`, whose model is a decoder, for an answer. Returns at once.
    ///
    /// # Errors
    /// If nobody has this name, the request cannot be answered by the tenant's model, as many
    /// requests as allowed are under way, or the loop has ended.
    pub fn submit(&self, tenant: &str, request: Request) -> Result<Answer, ServeError> {
        let served = self.served(tenant, ModelKind::Decoder)?;
        if request.max_tokens == 0 {
            return Err(ServeError::NothingWanted { tenant: served.name.clone() });
        }
        served.check(&request.prompt, request.max_tokens)?;
        let request = Request { stop_at: request.stop_at.or(served.end_of_sequence), ..request };
        self.ask(served, request, Recipient::Tokens).map(Answer)
    }

    /// Asks `tenant`, whose model is an encoder, for the vector of a text. Returns at once.
    ///
    /// `tokens` are those of the whole text with what the model was trained to find around it, such as
    /// `[CLS]` and `[SEP]`.
    ///
    /// ```
    /// use slicescheduler::{Bert, SliceScheduler, Tenant};
    ///
    /// let slices = SliceScheduler::builder().tenant(Tenant::latency_sensitive("embed"), Bert::tiny(7)).build()?;
    /// let [one, other] = [slices.embed("embed", &[1, 20, 21, 2])?, slices.embed("embed", &[1, 22, 2])?];
    /// let (one, other) = (one.wait()?.vector, other.wait()?.vector);
    /// // Both have length 1, so this is the cosine of the angle between them.
    /// let alike: f32 = one.iter().zip(&*other).map(|(x, y)| x * y).sum();
    /// assert!(alike <= 1.001 && one.len() == other.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`submit`](Self::submit). A text is read at once, so it may have no more tokens than an
    /// iteration of the [batching](Builder::batching).
    pub fn embed(&self, tenant: &str, tokens: &[u32]) -> Result<PendingEmbedding, ServeError> {
        let served = self.served(tenant, ModelKind::Encoder)?;
        served.check(tokens, 0)?;
        self.ask(served, Request::prompt_tokens(tokens).max_tokens(1), Recipient::Embedding).map(PendingEmbedding)
    }

    /// What is known of a tenant, if its model is of this kind.
    fn served(&self, tenant: &str, kind: ModelKind) -> Result<&Served, ServeError> {
        let served = self.tenants.iter().find(|served| *served.name == *tenant);
        let Some(served) = served else {
            let known = self.tenants.iter().map(|served| format!("{:?}", served.name)).collect();
            return Err(ServeError::NoSuchTenant { tenant: tenant.to_owned(), known });
        };
        if served.kind != kind {
            let (tenant, model) = (served.name.clone(), served.model.clone());
            return Err(ServeError::OtherKind { tenant, model, kind: served.kind });
        }
        Ok(served)
    }

    fn ask<T>(
        &self,
        served: &Served,
        request: Request,
        recipient: fn(Arc<Mailbox<T>>) -> Recipient,
    ) -> Result<Waiting<T>, ServeError> {
        let mailbox = Arc::new(Mailbox::default());
        let (arrival, recipient) = (self.clock.now(), recipient(mailbox.clone()));
        self.inbox.submit(Submission { tenant: served.id, arrival, request, recipient })?;
        let stepped = match &self.passes {
            Passes::Stepped(stepped) => Some(stepped.clone()),
            Passes::Thread(_) => None,
        };
        Ok(Waiting::new(mailbox, self.inbox.clone(), stepped))
    }

    /// Makes a pass of a [stepped](Builder::build_stepped) scheduler: takes what was submitted and
    /// cancelled, waits `timeout` at most for something to happen, and decides what follows from it.
    ///
    /// # Errors
    /// If the scheduler has a thread for it, or the loop has ended or cannot go on.
    pub fn step(&self, timeout: Duration) -> Result<(), ServeError> {
        match &self.passes {
            Passes::Thread(_) => Err(ServeError::HasThread),
            Passes::Stepped(stepped) => stepped.step(timeout.into()),
        }
    }

    /// How it is doing between two passes.
    ///
    /// # Errors
    /// If the loop has ended.
    pub fn status(&self) -> Result<Status, ServeError> {
        match &self.passes {
            Passes::Stepped(stepped) => stepped.status(),
            Passes::Thread(_) => {
                let (to, from) = bounded(1);
                self.inbox.tell(Message::Report(to)).map_err(ServeError::Ended)?;
                let ended = || ServeError::Ended(self.inbox.closed().unwrap_or(RequestError::ShutDown));
                from.recv().map_err(|_| ended())
            }
        }
    }

    /// The time of its clock.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }
}

impl Drop for SliceScheduler {
    fn drop(&mut self) {
        match &self.passes {
            Passes::Stepped(stepped) => stepped.end(),
            Passes::Thread(exited) => {
                self.inbox.ask_to_close();
                // Nothing is ever sent: this returns when the thread drops its end.
                let _ = exited.recv();
            }
        }
    }
}

impl Served {
    fn check(&self, prompt: &[u32], max_tokens: u32) -> Result<(), ServeError> {
        let tenant = || self.name.clone();
        if prompt.is_empty() {
            return Err(ServeError::EmptyPrompt { tenant: tenant() });
        }
        let unknown = prompt.iter().position(|&token| token >= self.vocabulary);
        if let Some(position) = unknown {
            return Err(ServeError::OutOfVocabulary {
                tenant: tenant(),
                model: self.model.clone(),
                position,
                token: prompt[position],
                vocabulary: self.vocabulary,
            });
        }
        let prompt = prompt.len();
        if prompt as u64 + u64::from(max_tokens) > self.context {
            let (model, context) = (self.model.clone(), self.context);
            return Err(ServeError::TooLong { tenant: tenant(), model, prompt, max_tokens, context });
        }
        Ok(())
    }
}
