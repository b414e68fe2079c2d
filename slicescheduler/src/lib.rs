//! slicescheduler
