//! Continuous batching: which tokens of which requests the next iteration of a replica computes.
//!
//! The rules are those of vLLM V1: running sequences first, in the order of their arrival, then
//! waiting ones; a prompt is computed in chunks within the iteration's token budget; a sequence
//! holds KV blocks for what it has computed; when blocks run out, the youngest running sequence is
//! preempted, loses its blocks, and is recomputed later, before everybody else who waits. A prompt
//! whose beginning lies in the replica's [prefix cache](prefix_cache) is computed from there on. With
//! [`BatchOptions::ahead`] an iteration is formed before the one before it has ended: rows count as
//! computed once they are in flight, and tokens as pending until they come.
//!
//! Pure logic: no clock, no thread, no memory of its own. The same code serves for real and is
//! unrolled by forecasts ([`ReplicaForecast`] is its [`Continuation`]).
//!
//! What must stay true: a request is in exactly one of waiting and the running lists; the rows of
//! an iteration are a subsequence of the replica's running list; blocks that a sequence holds are
//! `ceil(computed / block tokens)` or more, never less than its computed tokens need.
//!
//! | module | what it holds |
//! |---|---|
//! | [`options`] | how a tenant batches, with vLLM's values; padding to captured sizes |
//! | [`prefix_cache`] | which blocks of a pool hold the beginning of which prompt |
//! | iteration | the rule itself |
//! | replica, tenant | sequences of a replica; the queue of a tenant |
//! | undisturbed | stretches of decoding as one |
//! | forecast | the same rule as a [`Continuation`] |
//!
//! [`Continuation`]: slicescheduler_gmg::plan::Continuation

mod forecast;
mod iteration;
pub mod options;
pub mod prefix_cache;
mod replica;
mod sequence;
mod tenant;
mod undisturbed;

pub use forecast::ReplicaForecast;
pub(crate) use iteration::late_prefix;
pub use iteration::{Iteration, plan_iteration};
pub use options::{BatchOptions, CaptureSizes, OptionsError};
pub use prefix_cache::{PrefixCache, Prefixes};
pub use replica::ReplicaState;
pub use sequence::{BlockHashes, Completed, Sequence};
pub use tenant::Batcher;
