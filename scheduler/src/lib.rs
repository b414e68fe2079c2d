//! What should happen: batching, and policies that decide which iteration runs where.
//!
//! [`batching`] says what a tenant wants to run next; a [`Policy`](policy::Policy) says where and
//! when. [`SliceFill`] is the policy of this project; the twelve rules of [`baseline`] are
//! what it is compared with. A policy reads the graph and asks a
//! [`WhatIf`](slicescheduler_gmg::plan::WhatIf); it never sees the world, a clock or the future.
//!
//! ```
//! use slicescheduler_gmg::id::{DeviceId, ModelId, RequestId, TenantId};
//! use slicescheduler_gmg::plan::BatchLimits;
//! use slicescheduler_gmg::units::Nanos;
//! use slicescheduler_scheduler::batching::{BatchOptions, Batcher, Sequence};
//!
//! let mut batcher = Batcher::new(TenantId(0), BatchOptions::default());
//! let replica = batcher.add_replica(ModelId(0), DeviceId(0));
//! batcher.enter(Sequence::new(RequestId(0), Nanos::ZERO, None, 3000, 100));
//! let limits = BatchLimits { tokens: 2048, sequences: 256, new_blocks: 1000, keep_free: 0, not_due_before: Nanos::ZERO };
//! let job = batcher.form(replica.index, limits, &mut Vec::new()).unwrap();
//! assert_eq!(job.rows[0].tokens, 2048, "the first chunk of the prompt");
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`admission`] | which requests are taken in, under any policy |
//! | [`baseline`] | what [`SliceFill`] is compared with: published rules, by name, with what can be tuned about them |
//! | [`batching`] | continuous batching by the rules of vLLM V1 |
//! | [`demand`] | the policy's view of batching; a host's own batching implements it |
//! | [`explain`] | what a policy considered, and why it decided as it did |
//! | [`policy`] | the seam: events in, plans out |

#![forbid(unsafe_code)]

pub mod admission;
pub mod baseline;
pub mod batching;
mod check;
pub mod demand;
pub mod explain;
mod placing;
pub mod policy;
mod slice_fill;

pub use baseline::{IdlePriority, StaticContainers};
pub use check::{PlanError, PlanFault, check_plan};
pub use slice_fill::{LendingAccount, SliceFill, SliceFillOptions};
