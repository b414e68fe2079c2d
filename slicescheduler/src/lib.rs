//! slicescheduler
pub mod driver;
pub mod replay;
pub mod report;
pub mod scenario;
pub mod setup;
pub mod workload;
