//! simulator

#![forbid(unsafe_code)]

pub mod cost;
pub mod world;
pub mod engine;
