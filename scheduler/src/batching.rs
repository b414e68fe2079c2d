//! Continuous batching: which tokens of which requests the next iteration of a replica computes.
//!
//! The rules are those of vLLM V1: running sequences first, in the order of their arrival, then
//! waiting ones; a prompt is computed in chunks within the iteration's token budget; a sequence
//! holds KV blocks for what it has computed; when blocks run out, the youngest running sequence is
//! preempted, loses its blocks, and is recomputed later.
//!
//! Pure logic: no clock, no thread, no memory of its own. The same code serves for real and is
//! unrolled by forecasts ([`ReplicaForecast`] is its [`Continuation`]).
//!
//! What must stay true: a request is in exactly one of waiting and the running lists; the rows of
//! an iteration are a subsequence of the replica's running list; blocks that a sequence holds are
//! `ceil(computed / block tokens)` or more, never less than its computed tokens need.
//!
//! [`Continuation`]: slicescheduler_gmg::plan::Continuation

mod forecast;
mod iteration;
mod sequence;
mod tenant;

pub use forecast::ReplicaForecast;
pub(crate) use iteration::late_prefix;
pub use iteration::{Iteration, plan_iteration};
pub use sequence::{Completed, Sequence};
pub use tenant::{Batcher, ReplicaState};

/// How a tenant's replicas batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchOptions {
    /// Most tokens that one iteration computes.
    pub token_budget: u32,
    /// Most sequences that run at a time on one replica.
    pub max_sequences: u32,
    /// Tokens that one KV block holds.
    pub block_tokens: u32,
    /// Blocks that must stay free per running sequence when a waiting one is admitted. Spares
    /// preemptions when answers grow; vLLM's own rule is zero.
    pub growth_reserve: u32,
    /// Requests that are visible to batching at a time; the rest of a backlog waits outside.
    pub window: u32,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self { token_budget: 2048, max_sequences: 256, block_tokens: 16, growth_reserve: 3, window: u32::MAX }
    }
}
