//! The clients of ServeGen: how fast each one sends, window by window, over days.
//!
//! ServeGen (Xiang et al., "ServeGen: Workload Characterization and Generation of Large Language Model
//! Serving in Production", 2025) describes a production workload as the sum of its clients. Its archives
//! (tar, compressed with xz) hold a file `chunk-N-trace.csv` for client `N`, without a header, whose rows are
//! windows of equal length:
//!
//! ```text
//! 1800,6.406666666666666,27.16446022347345,Weibull,0.2483511088634224,0.018165661464844593
//! time s, requests per s, coefficient of variation, gaps between requests: Gamma, Weibull or nothing, shape, scale
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lzma_rust2::XzReader;

use super::error::{WorkloadError, shortened};
use super::lines::Lines;

/// What a client's archive may unpack to at most, in bytes: a hundred times those that were published.
const LONGEST_ARCHIVE: u64 = 1 << 30;

/// Windows of a client at most: 190 years of those that were published.
const MOST_WINDOWS: usize = 10_000_000;

const LONGEST_LINE: usize = 4096;
const ROW: &str = "time,rate,cv,pattern,shape,scale such as 1800,6.4,27.2,Weibull,0.248,0.018";

/// The gaps between the requests of a window, but for their mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gaps {
    /// Those of a Poisson process. Windows with too few requests to fit anything are read as such.
    Exponential,
    /// A Gamma distribution of this shape.
    Gamma(f64),
    /// A Weibull distribution of this shape.
    Weibull(f64),
}

/// What a client does for one window of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientWindow {
    /// Requests per second; not negative.
    pub rate: f64,
    /// How they are spread.
    pub gaps: Gaps,
}

/// The windows of one client, in order.
pub type ClientWindows = Arc<[ClientWindow]>;

/// A client in an archive on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFile {
    /// The archive.
    pub path: PathBuf,
    /// The client's number.
    pub client: u32,
}

impl ClientFile {
    /// Reads the client's windows. Unpacks the archive up to them.
    ///
    /// # Errors
    /// If there is no such archive or client, or a row is damaged.
    pub fn windows(&self) -> Result<ClientWindows, WorkloadError> {
        let opened =
            File::open(&self.path).map_err(|source| WorkloadError::Open { file: self.path.clone(), source })?;
        from_archive(BufReader::new(opened), &self.path, self.client)
    }
}

/// The windows of `client` in the archive that `input` holds; `file` is its name in messages.
///
/// # Errors
/// As [`ClientFile::windows`].
pub fn from_archive(input: impl Read, file: &Path, client: u32) -> Result<ClientWindows, WorkloadError> {
    let damaged = |source| WorkloadError::Read { file: file.to_owned(), line: 0, source };
    let unpacked = XzReader::new(input, true).take(LONGEST_ARCHIVE);
    let mut archive = tar::Archive::new(unpacked);
    let wanted = format!("chunk-{client}-trace.csv");
    for entry in archive.entries().map_err(damaged)? {
        let entry = entry.map_err(damaged)?;
        let path = entry.path().map_err(damaged)?.into_owned();
        if path.file_name().is_some_and(|name| name.to_str() == Some(wanted.as_str())) {
            return from_rows(BufReader::new(entry), &file.join(path));
        }
    }
    Err(WorkloadError::NoClient { file: file.to_owned(), client })
}

/// The windows that the rows of `input` describe; `file` is their name in messages.
///
/// # Errors
/// If a row is damaged, or there is none.
pub fn from_rows(input: impl BufRead, file: &Path) -> Result<ClientWindows, WorkloadError> {
    let mut lines = Lines::new(input, file.to_owned(), LONGEST_LINE);
    let mut windows = Vec::new();
    let mut last = f64::NEG_INFINITY;
    while lines.advance()? {
        let row = Row { lines: &lines };
        let fields: Vec<&str> = std::str::from_utf8(lines.line()).map_err(|_| row.error())?.trim().split(',').collect();
        let &[time, rate, _, pattern, shape, _] = fields.as_slice() else { return Err(row.error()) };
        let time = row.number("time", time, 0.0..=1e12)?;
        if time <= last || windows.len() == MOST_WINDOWS {
            return Err(row.value("time", &time.to_string(), "a time after that of the row above"));
        }
        last = time;
        let rate = row.number("rate", rate, 0.0..=1e9)?;
        let gaps = match pattern.trim() {
            "" => Gaps::Exponential,
            "Gamma" => Gaps::Gamma(row.number("shape", shape, SHAPES)?),
            "Weibull" => Gaps::Weibull(row.number("shape", shape, SHAPES)?),
            other => return Err(row.value("pattern", other, "Gamma, Weibull or nothing")),
        };
        windows.push(ClientWindow { rate, gaps });
    }
    if windows.is_empty() {
        return Err(WorkloadError::Empty { file: file.to_owned() });
    }
    Ok(windows.into())
}

/// Shapes whose moments can be computed with.
const SHAPES: std::ops::RangeInclusive<f64> = 0.01..=1e4;

struct Row<'a, R> {
    lines: &'a Lines<R>,
}

impl<R: BufRead> Row<'_, R> {
    fn number(
        &self,
        column: &'static str,
        text: &str,
        range: std::ops::RangeInclusive<f64>,
    ) -> Result<f64, WorkloadError> {
        let number = text.trim().parse::<f64>().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| self.value(column, text, &format!("a number from {} to {}", range.start(), range.end())))
    }

    fn value(&self, column: &'static str, value: &str, expected: &str) -> WorkloadError {
        WorkloadError::Value {
            file: self.lines.file().into(),
            line: self.lines.number(),
            column,
            value: shortened(value.as_bytes()),
            expected: expected.into(),
        }
    }

    fn error(&self) -> WorkloadError {
        WorkloadError::Record {
            file: self.lines.file().into(),
            line: self.lines.number(),
            found: format!("{:?}", shortened(self.lines.line())),
            expected: ROW,
        }
    }
}
