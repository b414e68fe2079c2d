//! Parquet files as columns.
//!
//! Flat files of text, whole numbers and floats, in any number of row groups. What a damaged file
//! makes of the decoder is contained: sizes are checked before anything is reserved for them, rows
//! are counted while they are read, and a panic of the decoder becomes an error (unless the
//! program aborts on panics). A page's own header can still claim up to 2 GiB, of which only what
//! its data really expands to is touched.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;

use super::columns::{Column, Columns, MAX_BYTES, MAX_COLUMNS, MAX_ROWS, read};
use super::error::ProfileError;

/// Rows that are decoded at once.
const BATCH: usize = 8192;

/// Reads a flat Parquet file.
///
/// # Errors
/// If the file cannot be read, is too large, damaged, nested, or has columns of other types.
pub fn read_parquet(path: &Path) -> Result<Columns, ProfileError> {
    let (file, bytes) = read(path)?;
    from_parquet(&file, bytes)
}

/// The columns of a Parquet file in memory; `file` is its name in errors.
///
/// # Errors
/// As [`read_parquet`].
pub fn from_parquet(file: &str, bytes: Vec<u8>) -> Result<Columns, ProfileError> {
    let file: Arc<str> = file.into();
    let decoded = catch_unwind(AssertUnwindSafe(|| decode(&file, bytes)));
    let malformed = |what| ProfileError::Malformed { file: Arc::clone(&file), row: 0, what };
    decoded.unwrap_or_else(|_| Err(malformed("not a Parquet file, or a damaged one: its decoder panicked".into())))
}

fn decode(file: &Arc<str>, bytes: Vec<u8>) -> Result<Columns, ProfileError> {
    let malformed = |error: ParquetError| ProfileError::Malformed {
        file: Arc::clone(file),
        row: 0,
        what: format!("not a Parquet file, or a damaged one: {error}"),
    };
    let too_large = |what, found, limit| ProfileError::TooLarge { file: Arc::clone(file), what, found, limit };
    let reader = SerializedFileReader::new(Bytes::from(bytes)).map_err(malformed)?;
    let metadata = reader.metadata();
    let schema = metadata.file_metadata().schema_descr();
    if schema.num_columns() > MAX_COLUMNS {
        return Err(too_large("columns", schema.num_columns() as u64, MAX_COLUMNS as u64));
    }
    let rows = u64::try_from(metadata.file_metadata().num_rows()).unwrap_or(u64::MAX);
    if rows > MAX_ROWS as u64 {
        return Err(too_large("rows", rows, MAX_ROWS as u64));
    }
    let chunks = metadata.row_groups().iter().flat_map(|group| group.columns());
    let expanded = chunks.fold(0, |sum: u64, chunk| sum.saturating_add(chunk.uncompressed_size().unsigned_abs()));
    if expanded > 4 * MAX_BYTES {
        return Err(too_large("bytes, uncompressed", expanded, 4 * MAX_BYTES));
    }
    let rows = rows as usize;
    let mut names = Vec::with_capacity(schema.num_columns());
    let mut columns = Vec::with_capacity(schema.num_columns());
    for (index, description) in schema.columns().iter().enumerate() {
        let name = description.path().string();
        if description.max_rep_level() > 0 || description.max_def_level() > 1 {
            let what = format!("column \"{name}\" is nested: expected a flat table");
            return Err(ProfileError::Malformed { file: Arc::clone(file), row: 0, what });
        }
        let mut sink = Sink { rows, optional: description.max_def_level() == 1, column: None };
        for group in 0..metadata.num_row_groups() {
            let group = reader.get_row_group(group).map_err(malformed)?;
            sink.take(group.get_column_reader(index).map_err(malformed)?).map_err(malformed)?;
        }
        let column = sink.finish().ok_or_else(|| ProfileError::Malformed {
            file: Arc::clone(file),
            row: 0,
            what: format!("column \"{name}\" has other than {rows} values"),
        })?;
        names.push(name.into());
        columns.push(column);
    }
    Ok(Columns::typed(Arc::clone(file), names, columns, rows))
}

/// One column on its way from all row groups.
struct Sink {
    /// The rows that the file says it has.
    rows: usize,
    optional: bool,
    column: Option<Building>,
}

enum Building {
    Text { values: Vec<Box<str>>, known: HashMap<Box<str>, u32>, codes: Vec<u32> },
    Numbers(Vec<f64>),
}

impl Sink {
    fn take(&mut self, reader: ColumnReader) -> Result<(), ParquetError> {
        match reader {
            ColumnReader::Int32ColumnReader(reader) => self.numbers(reader, |value| f64::from(*value)),
            ColumnReader::Int64ColumnReader(reader) => self.numbers(reader, |value| *value as f64),
            ColumnReader::FloatColumnReader(reader) => self.numbers(reader, |value| f64::from(*value)),
            ColumnReader::DoubleColumnReader(reader) => self.numbers(reader, |value| *value),
            ColumnReader::BoolColumnReader(reader) => self.numbers(reader, |value| f64::from(u8::from(*value))),
            ColumnReader::ByteArrayColumnReader(reader) => self.text(reader),
            _ => Err(ParquetError::General("a column of neither text nor numbers".into())),
        }
    }

    fn numbers<T: DataType>(
        &mut self,
        reader: ColumnReaderImpl<T>,
        number: impl Fn(&T::T) -> f64,
    ) -> Result<(), ParquetError> {
        let empty = || Building::Numbers(Vec::with_capacity(self.rows));
        let Building::Numbers(numbers) = self.column.get_or_insert_with(empty) else {
            return Err(ParquetError::General("a column of different types".into()));
        };
        drain(reader, self.optional, self.rows, |value| {
            numbers.push(value.map_or(f64::NAN, &number));
            Ok(numbers.len())
        })
    }

    fn text<T: DataType<T = ByteArray>>(&mut self, reader: ColumnReaderImpl<T>) -> Result<(), ParquetError> {
        let empty = || Building::Text { values: Vec::new(), known: HashMap::new(), codes: Vec::new() };
        let Building::Text { values, known, codes } = self.column.get_or_insert_with(empty) else {
            return Err(ParquetError::General("a column of different types".into()));
        };
        drain(reader, self.optional, self.rows, |value| {
            let value = value.map_or(Ok(""), ByteArray::as_utf8)?;
            let code = known.get(value).copied().unwrap_or_else(|| {
                values.push(value.into());
                let code = values.len() as u32 - 1;
                known.insert(value.into(), code);
                code
            });
            codes.push(code);
            Ok(codes.len())
        })
    }

    /// The column, if it has as many values as the file has rows.
    fn finish(self) -> Option<Column> {
        let column = match self.column {
            Some(Building::Numbers(numbers)) => Column::Numbers(numbers),
            Some(Building::Text { values, codes, .. }) => Column::Text { values, codes },
            None => Column::Numbers(Vec::new()),
        };
        let len = match &column {
            Column::Numbers(numbers) => numbers.len(),
            Column::Text { codes, .. } => codes.len(),
        };
        (len == self.rows).then_some(column)
    }
}

/// Gives every value of `reader` to `push`, which says how many there are then; `None` is a
/// missing one.
fn drain<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    optional: bool,
    most: usize,
    mut push: impl FnMut(Option<&T::T>) -> Result<usize, ParquetError>,
) -> Result<(), ParquetError> {
    let (mut values, mut levels) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
    loop {
        values.clear();
        levels.clear();
        let (records, found, _) = reader.read_records(BATCH, optional.then_some(&mut levels), None, &mut values)?;
        if records == 0 {
            return Ok(());
        }
        let mut rest = values.iter().take(found);
        for record in 0..records {
            let present = !optional || levels.get(record).is_some_and(|level| *level == 1);
            let value = if present { rest.next() } else { None };
            if present && value.is_none() {
                return Err(ParquetError::General("fewer values than rows".into()));
            }
            if push(value)? > most {
                return Err(ParquetError::General(format!("more values than its {most} rows")));
            }
        }
    }
}
