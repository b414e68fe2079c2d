//! A request that violated its service level, and what delayed it.

use std::fmt;

use slicescheduler_gmg::units::Nanos;
use slicescheduler_scheduler::explain::Explanation;

/// A request that violated its service level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateRequest {
    /// Index of its tenant.
    pub tenant: usize,
    /// When it arrived.
    pub arrival: Nanos,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the answer.
    pub produced: u32,
    /// Tokens of the answer that came after their due time.
    pub late: u32,
    /// When the first token came.
    pub first_token: Nanos,
    /// When it was due.
    pub first_due: Nanos,
    /// What it waited for; [`None`] if the decisions of that time are forgotten.
    pub because: Option<Explanation>,
}

impl LateRequest {
    /// How bad it was: how late the first token came, then the share of late tokens in parts per million.
    pub(crate) fn severity(&self) -> (Nanos, u64) {
        (self.first_token - self.first_due, u64::from(self.late) * 1_000_000 / u64::from(self.produced.max(1)))
    }
}

impl fmt::Display for LateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arrival, prompt, produced, late, first_token, first_due, .. } = *self;
        write!(f, "arrived at {arrival}, prompt of {prompt} tokens; first token after {}", first_token - arrival)?;
        if first_token > first_due {
            write!(f, ", {} late", first_token - first_due)?;
        }
        writeln!(f, "; {late} of {produced} tokens late")?;
        match &self.because {
            Some(because) => write!(f, "{because}"),
            None => writeln!(f, "  what it waited for is forgotten"),
        }
    }
}
