//! Differential: trials on schedules against a computation from scratch by another rule: values are
//! raised until nothing changes any more.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod engine;
mod model;
mod properties;
mod rules;
