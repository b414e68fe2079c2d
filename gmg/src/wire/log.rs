//! Logs: deltas one after the other, each with its length and a checksum.

use xxhash_rust::xxh3::xxh3_64;

use super::{Templates, WireError, from_bytes, to_bytes};
use crate::delta::Delta;

/// Bytes before a record: its length in 4, its checksum in 8.
const HEADER: usize = 12;

/// Appends a delta to a log.
///
/// # Errors
/// As [`to_bytes`].
pub fn append(log: &mut Vec<u8>, delta: &Delta) -> Result<(), WireError> {
    let record = to_bytes(delta)?;
    let length = u32::try_from(record.len()).map_err(|_| postcard::Error::SerializeBufferFull)?;
    log.extend(length.to_le_bytes());
    log.extend(xxh3_64(&record).to_le_bytes());
    log.extend(record);
    Ok(())
}

/// Reads a log from its start. After an error it ends: what follows cannot be trusted.
#[derive(Debug)]
pub struct LogReader<'a, T: ?Sized> {
    log: &'a [u8],
    at: usize,
    templates: &'a T,
}

impl<'a, T: Templates + ?Sized> LogReader<'a, T> {
    /// A reader of `log`, whose models run these templates.
    pub fn new(log: &'a [u8], templates: &'a T) -> Self {
        Self { log, at: 0, templates }
    }

    /// How many bytes belong to the records read so far: where a log that was cut can be continued.
    pub fn position(&self) -> usize {
        self.at
    }

    fn record(&self) -> Result<(Delta, usize), WireError> {
        let at = self.at;
        let truncated = WireError::Truncated { at, len: self.log.len() };
        let rest = &self.log[at..];
        let Some((length, rest)) = rest.split_first_chunk::<4>() else { return Err(truncated) };
        let Some((checksum, rest)) = rest.split_first_chunk::<8>() else { return Err(truncated) };
        let length = u32::from_le_bytes(*length) as usize;
        let Some(record) = rest.get(..length) else { return Err(truncated) };
        if xxh3_64(record) != u64::from_le_bytes(*checksum) {
            return Err(WireError::Checksum { at });
        }
        Ok((from_bytes(record, self.templates)?, at + HEADER + length))
    }
}

impl<T: Templates + ?Sized> Iterator for LogReader<'_, T> {
    type Item = Result<Delta, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.log.len() {
            return None;
        }
        match self.record() {
            Ok((delta, next)) => {
                self.at = next;
                Some(Ok(delta))
            }
            Err(error) => {
                self.log = &self.log[..self.at];
                Some(Err(error))
            }
        }
    }
}
