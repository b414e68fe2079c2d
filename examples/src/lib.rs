//! What the programs have in common.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use slicescheduler_gmg::plan::Clock;
use slicescheduler_gmg::units::Nanos;

/// Why a program could not do what it was asked.
pub type Failure = Box<dyn std::error::Error>;

/// The exit status of a program that ended with `outcome`; a failure is told on standard error, with
/// what lies behind it, and gives 2.
pub fn conclude(outcome: Result<(), Failure>) -> ExitCode {
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    eprintln!("error: {failure}");
    let mut source = failure.source();
    while let Some(cause) = source {
        eprintln!("  because: {cause}");
        source = cause.source();
    }
    ExitCode::from(2)
}

/// The machine's monotonic clock, from zero.
#[derive(Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// A clock that is at zero now.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Stopwatch {
    fn now(&self) -> Nanos {
        self.0.elapsed().into()
    }
}
