//! simulator

#![forbid(unsafe_code)]

pub mod cost;
