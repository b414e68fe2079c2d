//! Answers, token by token.

use std::fmt;
use std::iter::FusedIterator;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use slicescheduler_gmg::id::RequestId;

use crate::driver::RequestError;
use crate::serve::Token;
use crate::serve::waiting::Waiting;

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
pub struct Answer(pub(super) Waiting<Token>);

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("request", &self.request()).finish_non_exhaustive()
    }
}

impl Answer {
    /// The request's name in the graph, for observers; [`None`] before the loop has seen it.
    pub fn request(&self) -> Option<RequestId> {
        self.0.request()
    }

    /// The next token if it is there.
    pub fn try_next(&mut self) -> Poll<Option<Result<Token, RequestError>>> {
        self.0.mailbox().try_next()
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
        self.0.next()
    }
}

impl FusedIterator for Answer {}

/// An answer as a [`Stream`]; see [`Answer::stream`].
#[derive(Debug)]
pub struct TokenStream(Answer);

impl Stream for TokenStream {
    type Item = Result<Token, RequestError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.0.mailbox().poll(context)
    }
}
