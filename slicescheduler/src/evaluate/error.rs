//! Why an evaluation stopped.

use std::io;
use std::path::PathBuf;

use crate::evaluate::OutcomeError;
use crate::replay::ReplayError;
use crate::scenario::ScenarioError;

/// Why an evaluation stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// A file cannot be read.
    #[error("{}: cannot be read: {source}", file.display())]
    Read {
        /// Which.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("{}: cannot be written: {source}", file.display())]
    Write {
        /// Which.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A suite is not one.
    #[error("{}: {message}", file.display())]
    Suite {
        /// Its file.
        file: PathBuf,
        /// What is wrong and what would be right.
        message: String,
    },
    /// A scenario of a suite is not one.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A scenario cannot be run in the way that a suite asks for.
    #[error("{run}: {message}")]
    Conditions {
        /// The experiment and its variant.
        run: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// A run could not be made.
    #[error("{run}: {source}")]
    Run {
        /// Which.
        run: String,
        /// Why.
        source: Box<ReplayError>,
    },
    /// A small case cannot be searched or run.
    #[error("{case}: {source}")]
    Oracle {
        /// Which.
        case: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A run gave a result that cannot be kept.
    #[error("{}: {source}", file.display())]
    Outcome {
        /// Where it was to be kept.
        file: PathBuf,
        /// What is wrong with it.
        source: OutcomeError,
    },
}
