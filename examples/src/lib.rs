//! What the programs have in common.

#![forbid(unsafe_code)]

use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

pub use slicescheduler_benches::output;
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
/// 1 for every other failure. A failure is told on standard error, with what lies behind it. That whoever reads standard
/// output has read enough is none.
pub fn conclude(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if output::is_closed(&*failure) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(told(&*failure));
            if failure.is::<WrongUsage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// What is said of a failure: its message, and on a line each what lies behind it and is not said yet.
fn told(failure: &(dyn std::error::Error + 'static)) -> String {
    let mut text = format!("error: {failure}");
    let mut source = failure.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}\n  because: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// The folder with the traces that scenarios name, if one is named.
///
/// # Errors
/// If it is no folder.
pub fn traces_folder(data: Option<&Path>) -> Result<Option<&Path>, Failure> {
    match data.filter(|data| !data.is_dir()) {
        Some(data) => Err(format!("{}: is not a folder; --data takes the one with the traces", data.display()).into()),
        None => Ok(data),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An error with a message of its own and another behind it.
    #[derive(Debug)]
    struct Told(&'static str, Option<Box<Self>>);

    impl fmt::Display for Told {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Told {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(self.1.as_deref()?)
        }
    }

    #[test]
    fn every_cause_is_told_once() {
        let chain =
            |first, second, third| told(&Told(first, Some(Box::new(Told(second, Some(Box::new(Told(third, None))))))));
        assert_eq!(chain("x: no such file", "no such file", "no such file"), "error: x: no such file");
        assert_eq!(
            chain("the run failed", "x: no such file", "no such file"),
            "error: the run failed\n  because: x: no such file"
        );
    }
}
