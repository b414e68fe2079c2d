//! Answers, token by token.

use std::fmt;
use std::iter::FusedIterator;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use slicescheduler_gmg::id::RequestId;

use crate::driver::RequestError;
use crate::serve::Token;
use crate::serve::inbox::{Inbox, Message};
use crate::serve::mailbox::Mailbox;
use crate::serve::stepped::Stepped;

/// The answer to a request, as it is computed: an iterator that waits for each token, or a
/// [`stream`](Self::stream) that does not.
///
/// After the last token comes the end; a request that ends without its answer gives an error
/// instead, once. Tokens wait here as long as nobody takes them, as many as the request allows, and
/// the loop never waits for whoever takes them. Of a [stepped](crate::Builder::build_stepped)
/// scheduler, the iterator makes the passes that it waits for.
///
/// Dropping it cancels the request: one that waits is withdrawn at once, one that runs goes at the
/// end of its iteration, and its memory with it.
pub struct Answer {
    mailbox: Arc<Mailbox>,
    inbox: Arc<Inbox>,
    /// Whose passes to make while waiting.
    stepped: Option<Arc<Stepped>>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("request", &self.request()).finish_non_exhaustive()
    }
}

impl Answer {
    pub(super) fn new(mailbox: Arc<Mailbox>, inbox: Arc<Inbox>, stepped: Option<Arc<Stepped>>) -> Self {
        Self { mailbox, inbox, stepped }
    }

    /// The request's name in the graph, for observers; [`None`] before the loop has seen it.
    pub fn request(&self) -> Option<RequestId> {
        self.mailbox.request.get().copied()
    }

    /// The next token if it is there.
    pub fn try_next(&mut self) -> Poll<Option<Result<Token, RequestError>>> {
        self.mailbox.try_next()
    }

    /// The answer as a stream for any executor. It registers the task that polls it and needs no
    /// runtime. Of a stepped scheduler, somebody has to make the passes meanwhile.
    pub fn stream(self) -> TokenStream {
        TokenStream(self)
    }
}

impl Iterator for Answer {
    type Item = Result<Token, RequestError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(stepped) = &self.stepped else { return self.mailbox.wait() };
        loop {
            match self.mailbox.try_next() {
                Poll::Ready(next) => return next,
                Poll::Pending => stepped.pass_for(&self.mailbox),
            }
        }
    }
}

impl FusedIterator for Answer {}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.mailbox.abandon() {
            // A loop that has ended has no use for it.
            let _ = self.inbox.tell(Message::Cancel(self.mailbox.clone()));
        }
    }
}

/// An answer as a [`Stream`]; see [`Answer::stream`].
#[derive(Debug)]
pub struct TokenStream(Answer);

impl Stream for TokenStream {
    type Item = Result<Token, RequestError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.mailbox.poll(context)
    }
}
