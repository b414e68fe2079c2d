//! Why a request is not taken.

use std::sync::Arc;

use crate::driver::{DriverError, RequestError};
use crate::model::ModelKind;

/// Why a request was not taken, or a scheduler did not do as told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Nobody has this name.
    #[error("there is no tenant {tenant:?}; known are {}", known.join(", "))]
    NoSuchTenant {
        /// Who was asked for.
        tenant: String,
        /// Who there is.
        known: Vec<String>,
    },
    /// Its model answers in another way.
    #[error(
        "tenant {tenant:?}: model {model} is {} {kind}; ask it by `{}`",
        if *kind == ModelKind::Encoder { "an" } else { "a" },
        if *kind == ModelKind::Encoder { "embed" } else { "submit" }
    )]
    OtherKind {
        /// Whose request.
        tenant: Arc<str>,
        /// Its model.
        model: Arc<str>,
        /// What the model is.
        kind: ModelKind,
    },
    /// Nothing to go on from.
    #[error("tenant {tenant:?}: the prompt has no tokens; it needs at least one")]
    EmptyPrompt {
        /// Whose request.
        tenant: Arc<str>,
    },
    /// Nothing to produce.
    #[error("tenant {tenant:?}: an answer of at most 0 tokens was asked for; at least 1 is needed")]
    NothingWanted {
        /// Whose request.
        tenant: Arc<str>,
    },
    /// A token that the model does not know.
    #[error("tenant {tenant:?}: token {position} of the prompt is {token}, model {model} knows 0 to {}", vocabulary.saturating_sub(1))]
    OutOfVocabulary {
        /// Whose request.
        tenant: Arc<str>,
        /// Its model.
        model: Arc<str>,
        /// Where in the prompt, from 0.
        position: usize,
        /// The token.
        token: u32,
        /// Tokens that the model knows.
        vocabulary: u32,
    },
    /// Longer than the model's context, or than a device can hold.
    #[error(
        "tenant {tenant:?}: {prompt} tokens of prompt and up to {max_tokens} of answer are {}, model {model} has room \
         for {context} here",
        *prompt as u64 + u64::from(*max_tokens)
    )]
    TooLong {
        /// Whose request.
        tenant: Arc<str>,
        /// Its model.
        model: Arc<str>,
        /// Tokens of the prompt.
        prompt: usize,
        /// Most tokens of the answer.
        max_tokens: u32,
        /// Tokens that would fit together.
        context: u64,
    },
    /// As many requests as allowed are under way.
    #[error("{limit} requests are under way already, which is the limit; try again when one has ended")]
    Overloaded {
        /// The limit.
        limit: usize,
    },
    /// The scheduler has ended.
    #[error(transparent)]
    Ended(RequestError),
    /// The scheduler has a thread that makes the passes.
    #[error("this scheduler makes its passes on a thread of its own; build it with `build_stepped` to make them")]
    HasThread,
    /// The loop cannot go on.
    #[error(transparent)]
    Driver(#[from] DriverError),
}
