//! Why a profile file is refused.

use std::fmt;
use std::sync::Arc;

use super::table::TableError;

/// Where in a file something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: Arc<str>,
    /// The line of a text file, the number of the record of a binary one; both count from 1.
    pub row: usize,
    /// The column.
    pub column: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, row {}, column \"{}\"", self.file, self.row, self.column)
    }
}

/// A number in as few digits as it needs: with an exponent where there would be many zeros.
struct Short(f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number) = self;
        if (1e-3..1e16).contains(&number.abs()) { write!(f, "{number}") } else { write!(f, "{number:e}") }
    }
}

/// Why a profile file is refused. Every message says what would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: Arc<str>,
        /// Why.
        source: std::io::Error,
    },
    /// The file is larger than any profile.
    #[error("{file}: {found} {what}: expected at most {limit}")]
    TooLarge {
        /// The file.
        file: Arc<str>,
        /// Bytes, rows or the like.
        what: &'static str,
        /// How many there are.
        found: u64,
        /// How many there may be.
        limit: u64,
    },
    /// The file is not of its format.
    #[error("{file}, row {row}: {what}")]
    Malformed {
        /// The file.
        file: Arc<str>,
        /// The row, from 1; 0 if it is the file as a whole.
        row: usize,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// A column is missing.
    #[error("{file}: no column \"{column}\": expected it among {found}")]
    MissingColumn {
        /// The file.
        file: Arc<str>,
        /// The column.
        column: String,
        /// The columns that there are.
        found: String,
    },
    /// A value is not what it should be.
    #[error("{place}: \"{found}\": expected {expected}")]
    Value {
        /// Where.
        place: Place,
        /// The value.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// A duration that the device cannot have.
    #[error("{place}: {nanos} ns {found}: expected {expected}; is the unit right, and the device?", nanos = Short(*nanos))]
    Implausible {
        /// Where.
        place: Place,
        /// The duration.
        nanos: f64,
        /// What it would mean.
        found: String,
        /// What the device can do.
        expected: String,
    },
    /// The samples of a file do not make a table.
    #[error("{file}: table \"{table}\": {source}")]
    Table {
        /// The file.
        file: Arc<str>,
        /// The table.
        table: String,
        /// Why.
        source: TableError,
    },
    /// A file without a single row of use.
    #[error("{file}: no rows: expected {expected}")]
    Empty {
        /// The file.
        file: Arc<str>,
        /// What would be of use.
        expected: String,
    },
    /// Kernels that the model of an iteration would miss.
    #[error("{file}: kernels of this kind are not part of the step model: expected none of them")]
    Unsupported {
        /// The file.
        file: Arc<str>,
    },
    /// An operator of the model is not in the profile.
    #[error("{folder}: no times of {operator}: expected them among {found}")]
    MissingOperator {
        /// The folder of the profile.
        folder: Arc<str>,
        /// The operator.
        operator: String,
        /// What there is.
        found: String,
    },
}
