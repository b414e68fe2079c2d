//! Replays over a simulated world, watched by a witness that shares no code with what it watches.
//!
//! Differential: two runs that differ in the future only, or in nothing. Oracle: the
//! [`Witness`](witness::Witness) checks every command and every event against the rules that the
//! project promises.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail by them, in its helpers too"
)]

mod accounted;
mod answers;
mod baselines;
mod determinism;
mod faults;
mod future;
mod groups;
mod guests;
mod lending;
mod predictor;
mod prefixes;
mod rig;
mod rules;
mod traces;
mod witness;
