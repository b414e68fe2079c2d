//! The Azure LLM inference trace: CSV with the columns `TIMESTAMP`, `ContextTokens` and
//! `GeneratedTokens` (AzurePublicDataset, 2023 and 2024 editions).

use std::io::BufRead;
use std::path::{Path, PathBuf};

use slicescheduler_gmg::units::Nanos;

use super::error::{WorkloadError, shortened};
use super::lines::Lines;
use super::{ArrivalRecord, MAX_TOKENS};

const LONGEST_LINE: usize = 4096;
const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";
const TIME: &str = "TIMESTAMP";
const PROMPT: &str = "ContextTokens";
const OUTPUT: &str = "GeneratedTokens";
const NANOS_PER_SECOND: i128 = 1_000_000_000;

/// Reads an Azure trace row by row. Columns are found by name and may stand in any order, beside
/// others. Times are counted from the first row.
///
/// The iterator ends after the first error. Memory: one line of at most 4 KiB.
#[derive(Debug)]
pub struct AzureReader<R> {
    lines: Lines<R>,
    columns: Option<Columns>,
    first: Option<i128>,
    last: i128,
    ended: bool,
}

#[derive(Clone, Copy, Debug)]
struct Columns {
    time: usize,
    prompt: usize,
    output: usize,
}

impl<R: BufRead> AzureReader<R> {
    /// Reads `input`, which messages call `file`.
    pub fn new(input: R, file: impl Into<PathBuf>) -> Self {
        let lines = Lines::new(input, file.into(), LONGEST_LINE);
        Self { lines, columns: None, first: None, last: i128::MIN, ended: false }
    }

    fn read(&mut self) -> Result<Option<ArrivalRecord>, WorkloadError> {
        let columns = match self.columns {
            Some(columns) => columns,
            None => {
                if !self.lines.advance()? {
                    return Err(WorkloadError::Empty { file: self.lines.file().into() });
                }
                *self.columns.insert(self.header()?)
            }
        };
        if !self.lines.advance()? {
            return match self.first {
                Some(_) => Ok(None),
                None => Err(WorkloadError::Empty { file: self.lines.file().into() }),
            };
        }
        let row = Row { file: self.lines.file(), line: self.lines.number(), bytes: self.lines.line() };
        let time = row.field(columns.time, TIME)?;
        let instant =
            parse_timestamp(time).ok_or_else(|| row.value(TIME, time, "a time like 2023-11-16 18:17:03.9799600"))?;
        if instant < self.last {
            return Err(row.value(TIME, time, "a time that is not before that of the row above"));
        }
        let prompt = row.tokens(columns.prompt, PROMPT)?;
        let output = row.tokens(columns.output, OUTPUT)?;
        let first = *self.first.get_or_insert(instant);
        self.last = instant;
        let at = Nanos(u64::try_from(instant - first).unwrap_or(u64::MAX));
        Ok(Some(ArrivalRecord { at, prompt, output, prefix: None }))
    }

    fn header(&self) -> Result<Columns, WorkloadError> {
        let row = Row { file: self.lines.file(), line: self.lines.number(), bytes: self.lines.line() };
        let find = |column: &'static str| {
            row.fields().position(|field| field == column.as_bytes()).ok_or_else(|| WorkloadError::Header {
                file: row.file.into(),
                line: row.line,
                column,
                header: shortened(row.bytes),
                expected: HEADER,
            })
        };
        Ok(Columns { time: find(TIME)?, prompt: find(PROMPT)?, output: find(OUTPUT)? })
    }
}

impl<R: BufRead> Iterator for AzureReader<R> {
    type Item = Result<ArrivalRecord, WorkloadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let record = self.read().transpose();
        self.ended = !matches!(record, Some(Ok(_)));
        record
    }
}

struct Row<'a> {
    file: &'a Path,
    line: u64,
    bytes: &'a [u8],
}

impl<'a> Row<'a> {
    fn fields(&self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.split(|&byte| byte == b',').map(|field| {
            let field = field.trim_ascii();
            field.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(field)
        })
    }

    fn field(&self, index: usize, column: &'static str) -> Result<&'a [u8], WorkloadError> {
        self.fields().nth(index).ok_or_else(|| WorkloadError::Record {
            file: self.file.into(),
            line: self.line,
            found: format!("no {column} in {:?}", shortened(self.bytes)),
            expected: HEADER,
        })
    }

    fn tokens(&self, index: usize, column: &'static str) -> Result<u32, WorkloadError> {
        let field = self.field(index, column)?;
        std::str::from_utf8(field)
            .ok()
            .and_then(|text| text.parse::<u32>().ok())
            .filter(|tokens| (1..=MAX_TOKENS).contains(tokens))
            .ok_or_else(|| self.value(column, field, &format!("a whole number from 1 to {MAX_TOKENS}")))
    }

    fn value(&self, column: &'static str, value: &[u8], expected: &str) -> WorkloadError {
        WorkloadError::Value {
            file: self.file.into(),
            line: self.line,
            column,
            value: shortened(value),
            expected: expected.into(),
        }
    }
}

/// Nanoseconds since 1970 of `YYYY-MM-DD HH:MM:SS[.fraction][offset]`, where the fraction has one
/// to nine digits and the offset is `Z` or `+HH:MM`. Leap seconds count as the second after.
fn parse_timestamp(text: &[u8]) -> Option<i128> {
    let (date, rest) = text.split_at_checked(10)?;
    let (separator, rest) = rest.split_at_checked(1)?;
    if date[4] != b'-' || date[7] != b'-' || !matches!(separator, b" " | b"T") {
        return None;
    }
    let year = i128::from(digits(&date[..4])?);
    let month = i128::from(in_range(digits(&date[5..7])?, 1, 12)?);
    let day = i128::from(in_range(digits(&date[8..])?, 1, days_in_month(year, month))?);
    let (clock, rest) = rest.split_at_checked(8)?;
    let second = seconds_of_day(clock)?;
    let (nanos, offset) = match rest.strip_prefix(b".") {
        None => (0, rest),
        Some(rest) => {
            let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if !(1..=9).contains(&length) {
                return None;
            }
            (i128::from(digits(&rest[..length])?) * 10_i128.pow(9 - length as u32), &rest[length..])
        }
    };
    let seconds = days_since_1970(year, month, day) * 86_400 + i128::from(second) - offset_seconds(offset)?;
    Some(seconds * NANOS_PER_SECOND + nanos)
}

fn seconds_of_day(clock: &[u8]) -> Option<u32> {
    if clock[2] != b':' || clock[5] != b':' {
        return None;
    }
    let hour = in_range(digits(&clock[..2])?, 0, 23)?;
    let minute = in_range(digits(&clock[3..5])?, 0, 59)?;
    let second = in_range(digits(&clock[6..])?, 0, 60)?;
    Some(hour * 3600 + minute * 60 + second)
}

fn offset_seconds(offset: &[u8]) -> Option<i128> {
    let (sign, clock) = match offset {
        b"" | b"Z" => return Some(0),
        [b'+', clock @ ..] => (1, clock),
        [b'-', clock @ ..] => (-1, clock),
        _ => return None,
    };
    if clock.len() != 5 || clock[2] != b':' {
        return None;
    }
    let hour = in_range(digits(&clock[..2])?, 0, 23)?;
    let minute = in_range(digits(&clock[3..])?, 0, 59)?;
    Some(sign * i128::from(hour * 3600 + minute * 60))
}

fn digits(text: &[u8]) -> Option<u32> {
    text.iter().try_fold(0, |number: u32, byte| {
        let digit = byte.is_ascii_digit().then(|| u32::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

fn in_range(number: u32, low: u32, high: u32) -> Option<u32> {
    (low..=high).contains(&number).then_some(number)
}

fn days_in_month(year: i128, month: i128) -> u32 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 in the proleptic Gregorian calendar. Counting years from March puts the
/// leap day last, so that month lengths before it do not depend on the year.
fn days_since_1970(year: i128, month: i128, day: i128) -> i128 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<i128> {
        parse_timestamp(text.as_bytes()).map(|nanos| nanos / NANOS_PER_SECOND)
    }

    // Golden values from `date -u -d ... +%s`.
    #[test]
    fn timestamps_are_seconds_since_1970() {
        assert_eq!(seconds("1970-01-01 00:00:00"), Some(0));
        assert_eq!(seconds("2023-11-16 18:17:03"), Some(1_700_158_623));
        assert_eq!(seconds("2024-02-29 23:59:59"), Some(1_709_251_199));
        assert_eq!(seconds("2024-03-01T00:00:00Z"), Some(1_709_251_200));
        assert_eq!(seconds("2024-05-10 02:00:00+02:00"), Some(1_715_299_200));
        assert_eq!(parse_timestamp(b"1970-01-01 00:00:00.0000001"), Some(100));
        assert_eq!(parse_timestamp(b"1970-01-01 00:00:00.123456789"), Some(123_456_789));
    }

    #[test]
    fn impossible_timestamps_are_refused() {
        for text in [
            "",
            "2023-11-16",
            "2023-13-16 18:17:03",
            "2023-02-29 18:17:03",
            "2023-11-16 24:17:03",
            "2023-11-16 18:17:61",
            "2023-11-16 18:17:03.",
            "2023-11-16 18:17:03.1234567890",
            "2023-11-16 18:17:03 tomorrow",
            "2023-11-16 18:17:03+2:00",
            "+023-11-16 18:17:03",
        ] {
            assert_eq!(parse_timestamp(text.as_bytes()), None, "{text}");
        }
    }
}
