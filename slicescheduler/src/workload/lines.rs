//! Lines of a file, one at a time, of bounded length.

use std::io::{BufRead, ErrorKind};
use std::path::{Path, PathBuf};

use super::error::WorkloadError;

/// Reads lines into one buffer that never grows beyond the limit, whatever the input is.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    input: R,
    file: PathBuf,
    number: u64,
    limit: usize,
    buffer: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// Lines of `input`, called `file` in messages, of at most `limit` bytes each.
    pub(crate) fn new(input: R, file: PathBuf, limit: usize) -> Self {
        Self { input, file, number: 0, limit, buffer: Vec::new() }
    }

    /// The file's name in messages.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// The number of the line last read, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The line last read, without its end and without a byte order mark.
    pub(crate) fn line(&self) -> &[u8] {
        &self.buffer
    }

    /// Reads the next line that is not blank. Returns false at the end of the input.
    ///
    /// # Errors
    /// [`WorkloadError::Read`] and [`WorkloadError::LongLine`].
    pub(crate) fn advance(&mut self) -> Result<bool, WorkloadError> {
        loop {
            if !self.read_line()? {
                return Ok(false);
            }
            if self.number == 1 && self.buffer.starts_with(b"\xEF\xBB\xBF") {
                self.buffer.drain(..3);
            }
            if !self.buffer.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn read_line(&mut self) -> Result<bool, WorkloadError> {
        self.buffer.clear();
        self.number += 1;
        loop {
            let available = match self.input.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(source) => {
                    return Err(WorkloadError::Read { file: self.file.clone(), line: self.number, source });
                }
            };
            if available.is_empty() {
                return Ok(!self.buffer.is_empty());
            }
            let end = available.iter().position(|&byte| byte == b'\n');
            let part = &available[..end.unwrap_or(available.len())];
            if self.buffer.len() + part.len() > self.limit {
                return Err(WorkloadError::LongLine { file: self.file.clone(), line: self.number, limit: self.limit });
            }
            self.buffer.extend_from_slice(part);
            let consumed = part.len() + usize::from(end.is_some());
            self.input.consume(consumed);
            if end.is_some() {
                if self.buffer.last() == Some(&b'\r') {
                    self.buffer.pop();
                }
                return Ok(true);
            }
        }
    }
}
