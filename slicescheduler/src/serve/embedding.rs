//! Answers of encoders: one vector.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use slicescheduler_gmg::id::RequestId;
use slicescheduler_gmg::units::Nanos;

use crate::driver::RequestError;
use crate::serve::mailbox::Next;
use crate::serve::waiting::Waiting;

/// What an encoder makes of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// As many numbers as the model is wide. Its bits depend on the tokens alone, not on what was
    /// computed with them.
    pub vector: Arc<[f32]>,
    /// When it was computed, by the scheduler's clock.
    pub at: Nanos,
}

/// An [`Embedding`] that is on its way: [`wait`](Self::wait) for it, or await it as a [`Future`] on any
/// executor, which needs no runtime.
///
/// Of a [stepped](crate::Builder::build_stepped) scheduler, `wait` makes the passes that it waits for;
/// who awaits the future has to see to it that somebody makes them.
///
/// Dropping it cancels the request: one that waits is withdrawn at once, one that runs goes at the
/// end of its iteration, and its memory with it.
#[must_use = "dropping it cancels the request"]
pub struct PendingEmbedding(pub(super) Waiting<Embedding>);

impl fmt::Debug for PendingEmbedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingEmbedding").field("request", &self.request()).finish_non_exhaustive()
    }
}

impl PendingEmbedding {
    /// The request's name in the graph, for observers; [`None`] before the loop has seen it.
    pub fn request(&self) -> Option<RequestId> {
        self.0.request()
    }

    /// Waits for it.
    ///
    /// # Errors
    /// When the request ended without it.
    pub fn wait(self) -> Result<Embedding, RequestError> {
        outcome(self.0.next())
    }

    /// What became of it, or itself if it is not there yet.
    ///
    /// # Errors
    /// Itself, to be asked again.
    pub fn try_wait(self) -> Result<Result<Embedding, RequestError>, Self> {
        match self.0.mailbox().try_next() {
            Poll::Ready(next) => Ok(outcome(next)),
            Poll::Pending => Err(self),
        }
    }
}

impl Future for PendingEmbedding {
    type Output = Result<Embedding, RequestError>;

    /// After it was ready once, an error: the embedding has been taken.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.mailbox().poll(context).map(outcome)
    }
}

fn outcome(next: Next<Embedding>) -> Result<Embedding, RequestError> {
    next.unwrap_or_else(|| Err(RequestError::Stopped { reason: "the embedding has been taken already".into() }))
}
