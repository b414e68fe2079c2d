//! The Mooncake trace: one JSON object per line with `timestamp` (milliseconds), `input_length`,
//! `output_length` and `hash_ids` (one per 512 tokens of the prompt; equal ids are equal blocks).

use std::io::BufRead;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;
use slicescheduler_gmg::units::Nanos;

use super::error::{WorkloadError, shortened};
use super::lines::Lines;
use super::{ArrivalRecord, MAX_TOKENS, PrefixBlocks};

/// Tokens in a block of `hash_ids`.
pub const BLOCK_TOKENS: u32 = 512;

const LONGEST_LINE: usize = 1 << 20;
const RECORD: &str = r#"{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}"#;
/// 2^53 ns, about 104 days: the longest trace whose milliseconds are exact in a float.
const LONGEST_MS: f64 = 9.007e9;

/// Reads a Mooncake trace line by line. Other keys are ignored; `hash_ids` may be absent. Times
/// are counted from the first record.
///
/// The iterator ends after the first error. Memory: one line of at most 1 MiB and what it holds.
#[derive(Debug)]
pub struct MooncakeReader<R> {
    lines: Lines<R>,
    first: Option<f64>,
    last: f64,
    ended: bool,
}

#[derive(Deserialize)]
struct Line {
    timestamp: Value,
    input_length: Value,
    output_length: Value,
    #[serde(default)]
    hash_ids: Option<Vec<u64>>,
}

impl<R: BufRead> MooncakeReader<R> {
    /// Reads `input`, which messages call `file`.
    pub fn new(input: R, file: impl Into<PathBuf>) -> Self {
        Self { lines: Lines::new(input, file.into(), LONGEST_LINE), first: None, last: 0.0, ended: false }
    }

    fn read(&mut self) -> Result<Option<ArrivalRecord>, WorkloadError> {
        if !self.lines.advance()? {
            return match self.first {
                Some(_) => Ok(None),
                None => Err(WorkloadError::Empty { file: self.lines.file().into() }),
            };
        }
        let line: Line = serde_json::from_slice(self.lines.line()).map_err(|error| WorkloadError::Record {
            file: self.lines.file().into(),
            line: self.lines.number(),
            found: format!("{error} in {:?}", shortened(self.lines.line())),
            expected: RECORD,
        })?;
        let ms = line
            .timestamp
            .as_f64()
            .filter(|ms| (0.0..=LONGEST_MS).contains(ms))
            .ok_or_else(|| self.value("timestamp", &line.timestamp, "milliseconds from 0 to 9007000000"))?;
        if ms < self.last {
            return Err(self.value("timestamp", &line.timestamp, "a time that is not before that of the line above"));
        }
        let prompt = self.tokens("input_length", &line.input_length)?;
        let output = self.tokens("output_length", &line.output_length)?;
        let prefix = line.hash_ids.map(|blocks| self.prefix(blocks, prompt)).transpose()?;
        let first = *self.first.get_or_insert(ms);
        self.last = ms;
        Ok(Some(ArrivalRecord { at: Nanos::from_secs_f64((ms - first) / 1e3), prompt, output, prefix }))
    }

    fn tokens(&self, column: &'static str, value: &Value) -> Result<u32, WorkloadError> {
        value
            .as_u64()
            .and_then(|tokens| u32::try_from(tokens).ok())
            .filter(|tokens| (1..=MAX_TOKENS).contains(tokens))
            .ok_or_else(|| self.value(column, value, &format!("a whole number from 1 to {MAX_TOKENS}")))
    }

    fn prefix(&self, blocks: Vec<u64>, prompt: u32) -> Result<PrefixBlocks, WorkloadError> {
        let most = prompt.div_ceil(BLOCK_TOKENS);
        if blocks.len() > most as usize {
            let found = Value::from(format!("{} blocks", blocks.len()));
            return Err(self.value("hash_ids", &found, &format!("at most {most} for a prompt of {prompt} tokens")));
        }
        Ok(PrefixBlocks { block_tokens: BLOCK_TOKENS, blocks: blocks.into() })
    }

    fn value(&self, column: &'static str, value: &Value, expected: &str) -> WorkloadError {
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        WorkloadError::Value {
            file: self.lines.file().into(),
            line: self.lines.number(),
            column,
            value: shortened(text.as_bytes()),
            expected: expected.into(),
        }
    }
}

impl<R: BufRead> Iterator for MooncakeReader<R> {
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
