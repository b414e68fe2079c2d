//! What can go wrong with a loop as a whole, and with one request.

use std::sync::Arc;

use slicescheduler_gmg::GmgError;
use slicescheduler_gmg::id::{RequestId, Version};
use slicescheduler_gmg::plan::{Failure, WhatIfError, WorldError};
use slicescheduler_scheduler::PlanError;
use slicescheduler_scheduler::admission::Refusal;

/// Why the loop cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// One batcher per tenant is needed.
    #[error(
        "there are {batchers} batchers for {tenants} tenants; there has to be one per tenant, in the order of their ids"
    )]
    Batching {
        /// How many were given.
        batchers: usize,
        /// How many tenants the graph has.
        tenants: usize,
    },
    /// The forecast is not of this graph.
    #[error("the forecast has seen {forecast}, the graph is at {graph}")]
    Stale {
        /// What the forecast has seen.
        forecast: Version,
        /// What the graph is at.
        graph: Version,
    },
    /// Batching found blocks in a pool that the graph does not find.
    #[error("{request} was to begin with {planned} blocks of its device's prefix cache, which are not all there")]
    Prefix {
        /// Whose prompt.
        request: RequestId,
        /// How many were found.
        planned: u32,
    },
    /// The graph refused what the loop needs.
    #[error(transparent)]
    Gmg(#[from] GmgError),
    /// The forecast lost track.
    #[error(transparent)]
    WhatIf(#[from] WhatIfError),
    /// The policy broke its contract. Only debug builds look.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The world is broken.
    #[error(transparent)]
    World(#[from] WorldError),
}

/// Why a request ended without its answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Longer than the KV cache of any of the tenant's devices.
    #[error("{tokens} tokens need {blocks} KV blocks, the largest of the tenant's devices has {most}")]
    TooLong {
        /// Tokens of prompt and answer so far.
        tokens: u32,
        /// Blocks that they need.
        blocks: u32,
        /// Blocks that there are.
        most: u32,
    },
    /// The work failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The policy refused it.
    #[error("rejected: {reason}")]
    Rejected {
        /// Why.
        reason: &'static str,
    },
    /// Admission refused it on arrival.
    #[error("not admitted: {0}")]
    NotAdmitted(#[from] Refusal),
    /// Whoever asked does not want the answer any more.
    #[error("cancelled by whoever asked")]
    Cancelled,
    /// Its tenant has no device left.
    #[error("every device of its tenant's container is lost")]
    NoDevice,
    /// Nothing runs, and the policy starts nothing.
    #[error("policy {policy} starts nothing although nothing runs; it may reserve more memory than there is")]
    Starved {
        /// The policy.
        policy: &'static str,
    },
    /// The loop ended, as it was told to.
    #[error("the scheduler was shut down before the answer was complete")]
    ShutDown,
    /// The loop ended because it could not go on.
    #[error("the scheduler stopped: {reason}")]
    Stopped {
        /// Why.
        reason: Arc<str>,
    },
}
