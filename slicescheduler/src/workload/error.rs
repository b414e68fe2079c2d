//! What can be wrong with a trace.

use std::io;
use std::path::PathBuf;

/// What can be wrong with a trace. The message names file, line, column, the value found and what
/// would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// The file can not be opened.
    #[error("{}: can not be opened: {source}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file can not be read on.
    #[error("{}:{line}: can not be read: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The line that was being read, from 1.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// A line is longer than any record of the format.
    #[error("{}:{line}: longer than {limit} bytes: expected one record per line", file.display())]
    LongLine {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The longest line that is read, in bytes.
        limit: usize,
    },
    /// A column that every record needs is not in the header.
    #[error("{}:{line}: no column {column} in the header {header:?}: expected {expected}", file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// The line of the header, from 1.
        line: u64,
        /// The column that is missing.
        column: &'static str,
        /// The header that was found, shortened.
        header: String,
        /// The header of the format.
        expected: &'static str,
    },
    /// The line is no record.
    #[error("{}:{line}: {found}: expected {expected}", file.display())]
    Record {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        found: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A value is out of range, or is not of its column's type.
    #[error("{}:{line}: {column} is {value:?}: expected {expected}", file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The column, as the format calls it.
        column: &'static str,
        /// The value that was found, shortened.
        value: String,
        /// What would be right.
        expected: String,
    },
    /// An archive has no such client.
    #[error("{}: no chunk-{client}-trace.csv in it: expected that of a client", file.display())]
    NoClient {
        /// The archive.
        file: PathBuf,
        /// The client.
        client: u32,
    },
    /// The file has no record.
    #[error("{}: no records: expected at least one", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
}

/// `bytes` as text for a message: at most 64 characters, undecodable bytes replaced.
pub(crate) fn shortened(bytes: &[u8]) -> String {
    const LONGEST: usize = 64;
    let head = &bytes[..bytes.len().min(4 * LONGEST)];
    let text = String::from_utf8_lossy(head);
    let mut short: String = text.chars().take(LONGEST).collect();
    if short.len() < bytes.len() && (text.chars().nth(LONGEST).is_some() || head.len() < bytes.len()) {
        short.push_str("...");
    }
    short
}
