//! The world of CPU lanes under a graph that is driven by hand.
//!
//! Differential: the tokens of a request against those of the same request run alone. Oracle: a
//! plain decoder in double precision.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail by them, in its helpers too"
)]

mod allocations;
mod commands;
mod faults;
mod gate;
mod golden;
mod kept;
#[cfg(all(feature = "conformance", feature = "tcp", feature = "shared-memory"))]
mod links;
mod memory;
mod mixture;
mod rig;
mod tokens;
mod weights;
