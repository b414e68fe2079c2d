//! slicescheduler
pub mod scenario;
pub mod workload;
