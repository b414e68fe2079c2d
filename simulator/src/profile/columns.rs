//! The columns of a file, whatever its format.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::error::{Place, ProfileError};

/// The most bytes that a profile file may have.
pub const MAX_BYTES: u64 = 64 << 20;
/// The most rows that a profile file may have.
pub const MAX_ROWS: usize = 1 << 20;
/// The most columns that a profile file may have.
pub const MAX_COLUMNS: usize = 256;

/// No duration of a profile is as long, in nanoseconds: eleven days.
const LONGEST_NANOS: f64 = 1e15;

/// A file as columns of text or numbers. Memory is bounded by [`MAX_BYTES`] of text, or by
/// [`MAX_ROWS`] and [`MAX_COLUMNS`].
#[derive(Clone, Debug)]
pub struct Columns {
    file: Arc<str>,
    names: Vec<Box<str>>,
    data: Data,
    rows: usize,
}

#[derive(Clone, Debug)]
enum Data {
    /// The cells of all rows one after another, by their ends in the text; and the lines of the
    /// rows.
    Text { text: String, ends: Vec<usize>, lines: Vec<usize> },
    /// By column.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    Typed(Vec<Column>),
}

/// A column of a typed file.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "parquet"), allow(dead_code))]
pub(super) enum Column {
    /// Text, as codes of a dictionary.
    Text { values: Vec<Box<str>>, codes: Vec<u32> },
    /// Numbers; NaN where there is none.
    Numbers(Vec<f64>),
}

/// A cell.
enum Cell<'a> {
    Text(&'a str),
    Number(f64),
}

impl Columns {
    /// Reads a CSV file whose first line holds the names of its columns.
    ///
    /// # Errors
    /// If the file cannot be read, is too large, or has rows of different lengths.
    pub fn read_csv(path: &Path) -> Result<Self, ProfileError> {
        let (file, bytes) = read(path)?;
        Self::from_csv(&file, &bytes)
    }

    /// The columns of the CSV text `bytes`; `file` is its name in errors.
    ///
    /// # Errors
    /// As [`read_csv`](Self::read_csv).
    pub fn from_csv(file: &str, bytes: &[u8]) -> Result<Self, ProfileError> {
        let file: Arc<str> = file.into();
        let malformed = |error: csv::Error| ProfileError::Malformed {
            file: Arc::clone(&file),
            row: error.position().map_or(0, |position| position.line() as usize),
            what: match error.kind() {
                csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                    format!("{len} cells: expected {expected_len}, as in the first row")
                }
                csv::ErrorKind::Utf8 { .. } => "not UTF-8: expected text".into(),
                other => format!("not CSV: {other:?}"),
            },
        };
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).trim(csv::Trim::All).from_reader(bytes);
        let headers = reader.headers().map_err(malformed)?.clone();
        if headers.len() > MAX_COLUMNS {
            let (found, limit) = (headers.len() as u64, MAX_COLUMNS as u64);
            return Err(ProfileError::TooLarge { file, what: "columns", found, limit });
        }
        let names: Vec<Box<str>> = headers.iter().map(Into::into).collect();
        let (mut text, mut ends, mut lines) = (String::new(), Vec::new(), Vec::new());
        let mut record = csv::StringRecord::new();
        while reader.read_record(&mut record).map_err(malformed)? {
            if lines.len() == MAX_ROWS {
                let (found, limit) = (lines.len() as u64 + 1, MAX_ROWS as u64);
                return Err(ProfileError::TooLarge { file, what: "rows", found, limit });
            }
            lines.push(record.position().map_or(0, |position| position.line() as usize));
            for cell in &record {
                text.push_str(cell);
                ends.push(text.len());
            }
        }
        let rows = lines.len();
        Ok(Self { file, names, data: Data::Text { text, ends, lines }, rows })
    }

    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    pub(super) fn typed(file: Arc<str>, names: Vec<Box<str>>, columns: Vec<Column>, rows: usize) -> Self {
        Self { file, names, data: Data::Typed(columns), rows }
    }

    /// The name of the file.
    pub fn file(&self) -> &Arc<str> {
        &self.file
    }

    /// The names of the columns.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// True if there is a column called `name`.
    pub fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// The column called `name`.
    ///
    /// # Errors
    /// If there is none.
    pub fn column(&self, name: &str) -> Result<ColumnView<'_>, ProfileError> {
        let index = self.names().position(|known| known == name);
        let index = index.ok_or_else(|| ProfileError::MissingColumn {
            file: Arc::clone(&self.file),
            column: name.into(),
            found: self.names.join(", "),
        })?;
        Ok(ColumnView { columns: self, index })
    }

    /// Where row `row` of column `column` is in the file.
    pub fn place(&self, row: usize, column: &str) -> Place {
        let row = match &self.data {
            Data::Text { lines, .. } => lines.get(row).copied().unwrap_or(0),
            Data::Typed(_) => row + 1,
        };
        Place { file: Arc::clone(&self.file), row, column: column.into() }
    }

    fn cell(&self, row: usize, column: usize) -> Cell<'_> {
        match &self.data {
            Data::Text { text, ends, .. } => {
                let index = row * self.names.len() + column;
                let start = index.checked_sub(1).map_or(0, |before| ends[before]);
                Cell::Text(&text[start..ends[index]])
            }
            Data::Typed(columns) => match &columns[column] {
                Column::Text { values, codes } => Cell::Text(&values[codes[row] as usize]),
                Column::Numbers(numbers) => Cell::Number(numbers[row]),
            },
        }
    }
}

/// One column.
#[derive(Clone, Copy, Debug)]
pub struct ColumnView<'a> {
    columns: &'a Columns,
    index: usize,
}

impl<'a> ColumnView<'a> {
    /// Its name.
    pub fn name(&self) -> &'a str {
        &self.columns.names[self.index]
    }

    /// An error about row `row`: what was expected instead of what is there.
    pub fn refuse(&self, row: usize, expected: impl Into<String>) -> ProfileError {
        let found = match self.columns.cell(row, self.index) {
            Cell::Text(text) => text.chars().take(60).collect(),
            Cell::Number(number) => number.to_string(),
        };
        ProfileError::Value { place: self.place(row), found, expected: expected.into() }
    }

    /// Where row `row` is.
    pub fn place(&self, row: usize) -> Place {
        self.columns.place(row, self.name())
    }

    /// The text of row `row`.
    ///
    /// # Errors
    /// If there is a number.
    pub fn text(&self, row: usize) -> Result<&'a str, ProfileError> {
        match self.columns.cell(row, self.index) {
            Cell::Text(text) => Ok(text),
            Cell::Number(_) => Err(self.refuse(row, "text")),
        }
    }

    /// The number of row `row`; [`None`] where the cell is empty.
    ///
    /// # Errors
    /// If there is something else than a finite number.
    pub fn optional(&self, row: usize) -> Result<Option<f64>, ProfileError> {
        let number = match self.columns.cell(row, self.index) {
            Cell::Text("") => return Ok(None),
            Cell::Text(text) => text.parse().ok(),
            Cell::Number(number) if number.is_nan() => return Ok(None),
            Cell::Number(number) => Some(number),
        };
        let number = number.filter(|number: &f64| number.is_finite());
        number.map(Some).ok_or_else(|| self.refuse(row, "a finite number"))
    }

    /// The number of row `row`.
    ///
    /// # Errors
    /// If there is no finite number.
    pub fn number(&self, row: usize) -> Result<f64, ProfileError> {
        self.optional(row)?.ok_or_else(|| self.refuse(row, "a finite number"))
    }

    /// The time of row `row` in nanoseconds, of a column that counts units of `unit` nanoseconds.
    ///
    /// # Errors
    /// If there is no number above zero, or more than [`LONGEST_NANOS`].
    pub(super) fn nanos(&self, row: usize, unit: f64) -> Result<f64, ProfileError> {
        let nanos = self.number(row).ok().map(|time| time * unit);
        let nanos = nanos.filter(|nanos| *nanos > 0.0 && *nanos < LONGEST_NANOS);
        nanos.ok_or_else(|| self.refuse(row, format!("a time above zero and below {:e}", LONGEST_NANOS / unit)))
    }

    /// The whole number of row `row`, at least `least` and at most 2^48.
    ///
    /// # Errors
    /// If there is no such number.
    pub fn whole(&self, row: usize, least: u64) -> Result<u64, ProfileError> {
        const MOST: u64 = 1 << 48;
        let number = self.number(row).ok().filter(|number| number.fract() == 0.0);
        let number = number.filter(|&number| number >= least as f64 && number <= MOST as f64);
        number
            .map(|number| number as u64)
            .ok_or_else(|| self.refuse(row, format!("a whole number from {least} to {MOST}")))
    }

    /// [`whole`](Self::whole), at least 1, for numbers of heads and the like.
    ///
    /// # Errors
    /// If there is no number from 1 to 2^32 - 1.
    pub fn count(&self, row: usize) -> Result<u32, ProfileError> {
        let whole = self.whole(row, 1).ok().and_then(|whole| u32::try_from(whole).ok());
        whole.ok_or_else(|| self.refuse(row, "a whole number from 1 to 4294967295"))
    }
}

/// The name and the bytes of a file that is not too large.
pub(super) fn read(path: &Path) -> Result<(Arc<str>, Vec<u8>), ProfileError> {
    let file: Arc<str> = path.display().to_string().into();
    let io = |source| ProfileError::Io { file: Arc::clone(&file), source };
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(io)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_BYTES {
        let found = bytes.len() as u64;
        return Err(ProfileError::TooLarge { file, what: "bytes or more", found, limit: MAX_BYTES });
    }
    Ok((file, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(text: &str) -> Result<Columns, ProfileError> {
        Columns::from_csv("x.csv", text.as_bytes())
    }

    #[test]
    fn cells_are_found_by_name_and_row() {
        let columns = columns("# a comment\na, b\n1,x\n\n2.5,\n").unwrap();
        assert_eq!(columns.rows(), 2);
        let (a, b) = (columns.column("a").unwrap(), columns.column("b").unwrap());
        assert_eq!((a.number(1).unwrap(), b.text(0).unwrap(), b.optional(1).unwrap()), (2.5, "x", None));
        assert_eq!(
            a.whole(1, 0).unwrap_err().to_string(),
            "x.csv, row 4, column \"a\": \"2.5\": expected a whole number from 0 to 281474976710656"
        );
    }

    #[test]
    fn errors_name_the_file_the_row_and_the_column() {
        let error = columns("a,b\n1,2\n3\n").unwrap_err().to_string();
        assert_eq!(error, "x.csv, row 3: 1 cells: expected 2, as in the first row");
        let error = columns("a,b\n1,2\n").unwrap().column("c").unwrap_err().to_string();
        assert_eq!(error, "x.csv: no column \"c\": expected it among a, b");
        let error = columns("a\n-\n").unwrap().column("a").unwrap().number(0).unwrap_err().to_string();
        assert_eq!(error, "x.csv, row 2, column \"a\": \"-\": expected a finite number");
        assert!(Columns::from_csv("x.csv", b"a\n\xff\n").is_err());
    }
}
