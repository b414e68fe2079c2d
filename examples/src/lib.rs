//! What the programs have in common.

#![forbid(unsafe_code)]

use std::fmt;
use std::process::ExitCode;
use std::time::Instant;

use slicescheduler_gmg::plan::Clock;
use slicescheduler_gmg::units::Nanos;

/// Why a program could not do what it was asked.
pub type Failure = Box<dyn std::error::Error>;

/// Arguments that make no sense, in contrast to files that are missing or broken.
#[derive(Debug)]
pub struct WrongUsage(Failure);

impl WrongUsage {
    /// Says that `failure` comes from the arguments alone.
    pub fn of(failure: impl Into<Failure>) -> Self {
        Self(failure.into())
    }
}

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for WrongUsage {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// The exit status of a program that ended with `outcome`: 2 for [`WrongUsage`], as where an argument cannot be parsed,
/// 1 for every other failure. A failure is told on standard error, with what lies behind it.
pub fn conclude(outcome: Result<(), Failure>) -> ExitCode {
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    eprintln!("error: {failure}");
    let mut source = failure.source();
    while let Some(cause) = source {
        eprintln!("  because: {cause}");
        source = cause.source();
    }
    if failure.is::<WrongUsage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
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
