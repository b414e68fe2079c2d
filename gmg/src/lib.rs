//! gmg
pub mod id;
pub mod units;
