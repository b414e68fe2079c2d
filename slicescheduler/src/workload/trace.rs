//! A trace on disk, replayed from any point of it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use flate2::bufread::MultiGzDecoder;
use slicescheduler_gmg::units::Nanos;

use super::error::WorkloadError;
use super::rng::Seed;
use super::{ArrivalRecord, ArrivalStream, AzureReader, MooncakeReader};

/// How files of gzip begin.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The formats that traces are read in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TraceFormat {
    /// [`AzureReader`].
    Azure,
    /// [`MooncakeReader`].
    Mooncake,
}

/// A trace on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFile {
    /// Where it is.
    pub path: PathBuf,
    /// How it is read.
    pub format: TraceFormat,
}

/// How far into a trace a replay starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shift {
    /// This much trace time; a span beyond the trace's length goes round.
    Span(Nanos),
    /// This share of the trace's length, in [0, 1). Anything else counts as 0.
    Fraction(f64),
}

impl Shift {
    /// From the first record.
    pub const NONE: Self = Self::Span(Nanos::ZERO);

    /// A seed as a shift: 0 leaves the trace as it is, every other seed starts it anywhere.
    pub fn seeded(seed: u64) -> Self {
        match seed {
            0 => Self::NONE,
            seed => Self::Fraction(Seed(seed).unit(0)),
        }
    }

    fn is_none(self) -> bool {
        self.within(Nanos::MAX).is_zero()
    }

    /// The shift as a share of a trace of this length, in [0, 1).
    pub fn share_of(self, length: Nanos) -> f64 {
        self.within(length).as_secs_f64() / length.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn within(self, length: Nanos) -> Nanos {
        match self {
            Self::Span(span) => Nanos(span.0.checked_rem(length.0).unwrap_or(0)),
            Self::Fraction(share) if (0.0..1.0).contains(&share) => Nanos((length.0 as f64 * share) as u64),
            Self::Fraction(_) => Nanos::ZERO,
        }
    }
}

impl TraceFile {
    /// The records from the start of the trace. A file that begins like gzip's is unpacked as it is read.
    ///
    /// # Errors
    /// [`WorkloadError::Open`]; the stream itself gives the other errors.
    pub fn records(&self) -> Result<ArrivalStream, WorkloadError> {
        let cannot = |source| WorkloadError::Open { file: self.path.clone(), source };
        let mut file = BufReader::new(File::open(&self.path).map_err(cannot)?);
        let packed = file.fill_buf().map_err(cannot)?.starts_with(&GZIP);
        let input: Box<dyn BufRead + Send> =
            if packed { Box::new(BufReader::new(MultiGzDecoder::new(file))) } else { Box::new(file) };
        Ok(match self.format {
            TraceFormat::Azure => Box::new(AzureReader::new(input, self.path.clone())),
            TraceFormat::Mooncake => Box::new(MooncakeReader::new(input, self.path.clone())),
        })
    }

    /// The time of the last record. Reads the whole file.
    ///
    /// # Errors
    /// The first one of the file.
    pub fn length(&self) -> Result<Nanos, WorkloadError> {
        self.records()?.try_fold(Nanos::ZERO, |_, record| Ok(record?.at))
    }

    /// The records from the sum of `shifts` to the end of the trace, then those from its start to
    /// there; times are counted from the shift. Every record appears once.
    ///
    /// Reads the file once more for the trace's length and once for its start when there is a
    /// shift; memory is that of the reader.
    ///
    /// # Errors
    /// [`WorkloadError::Open`], and with a shift the first error of the file.
    pub fn shifted(&self, shifts: &[Shift]) -> Result<ArrivalStream, WorkloadError> {
        if shifts.iter().all(|shift| shift.is_none()) {
            return self.records();
        }
        let length = self.length()?;
        let offset =
            shifts.iter().fold(Nanos::ZERO, |sum, shift| Shift::Span(sum + shift.within(length)).within(length));
        Ok(Box::new(ShiftedRecords { trace: self.clone(), records: self.records()?, length, offset, wrapped: false }))
    }
}

struct ShiftedRecords {
    trace: TraceFile,
    records: ArrivalStream,
    length: Nanos,
    offset: Nanos,
    wrapped: bool,
}

impl ShiftedRecords {
    fn read(&mut self) -> Result<Option<ArrivalRecord>, WorkloadError> {
        while !self.wrapped {
            match self.records.next().transpose()? {
                Some(record) if record.at < self.offset => {}
                Some(record) => return Ok(Some(ArrivalRecord { at: record.at - self.offset, ..record })),
                None => {
                    self.records = self.trace.records()?;
                    self.wrapped = true;
                }
            }
        }
        let record = self.records.next().transpose()?.filter(|record| record.at < self.offset);
        Ok(record.map(|record| ArrivalRecord { at: record.at + (self.length - self.offset), ..record }))
    }
}

impl Iterator for ShiftedRecords {
    type Item = Result<ArrivalRecord, WorkloadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}
