//! The facade as a host uses it, on CPU lanes with tiny models.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

mod answers;
mod building;
mod embeddings;
mod endings;
mod prefixes;
mod refusals;
mod rig;
