//! Attention: a chunk of prompts beside decodes.

use std::path::Path;

use super::{Judge, nanos, number, refuse};
use crate::profile::{Axis, Columns, ProfileError, Reading, Table};

/// What the attention of an iteration computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Tokens of prompts.
    pub chunk: f64,
    /// Tokens before them, as if they were one prompt.
    pub behind: f64,
    /// Decodes.
    pub decodes: f64,
    /// Their mean length.
    pub length: f64,
}

/// Times of attention: chunks alone, decodes alone, and both in one kernel call.
#[derive(Clone, Debug)]
pub struct AttentionTables {
    /// By chunk and tokens before it.
    prefill: Table,
    /// By decodes and their length.
    decode: Table,
    /// By chunk, tokens before it, decodes and their length.
    mixed: Table,
}

impl AttentionTables {
    pub(super) fn read(file: &Path, judge: &Judge<'_>) -> Result<Self, ProfileError> {
        let columns = Columns::read_csv(file)?;
        let names = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"];
        let [chunk, behind, decodes, length] = names.map(|name| columns.column(name));
        let coordinates = [chunk?, behind?, decodes?, length?];
        let time = columns.column("time_us")?;
        let two = |x, y| Table::builder([Axis::linear(x), Axis::linear(y)]);
        let mut prefill = two(names[0], names[1]);
        let mut decode = two(names[2], names[3]);
        let mut mixed = Table::builder(names.map(Axis::linear));
        for row in 0..columns.rows() {
            let mut point = [0.0; 4];
            for (value, column) in point.iter_mut().zip(coordinates) {
                *value = number(column, row)?;
            }
            let nanos = nanos(time, row)?;
            judge.attention(point, nanos, &time.place(row))?;
            let [chunk, behind, decodes, length] = point;
            let sampled = match (chunk > 0.0, decodes > 0.0) {
                (true, false) => prefill.sample(&[chunk, behind], nanos),
                (false, true) => decode.sample(&[decodes, length], nanos),
                (true, true) => mixed.sample(&point, nanos),
                (false, false) => return Err(coordinates[0].refuse(row, "a chunk or decodes above 0")),
            };
            sampled.map_err(|source| refuse(&columns, "a row", source))?;
        }
        Ok(Self {
            prefill: prefill.build().map_err(|source| refuse(&columns, "rows without decodes", source))?,
            decode: decode.build().map_err(|source| refuse(&columns, "rows without a chunk", source))?,
            mixed: mixed.build().map_err(|source| refuse(&columns, "rows with both", source))?,
        })
    }

    /// The time of `load`, in nanoseconds, with decodes of equal length.
    pub fn read_at(&self, load: Load) -> f64 {
        self.reading_at(load).map_or(0.0, |reading| reading.nanos)
    }

    /// The time of `load` with decodes of equal length, and how it came about; [`None`] if there is nothing to do.
    pub fn reading_at(&self, load: Load) -> Option<Reading> {
        let Load { chunk, behind, decodes, length } = load;
        match (chunk > 0.0, decodes > 0.0) {
            (true, false) => Some(self.prefill.read(&[chunk, behind])),
            (false, true) => Some(self.decode.read(&[decodes, length])),
            (true, true) => Some(self.mixed.read(&[chunk, behind, decodes, length])),
            (false, false) => None,
        }
    }

    /// What the decodes of `load` take of `nanos`, the time of the whole: at least a twentieth.
    pub(super) fn decode_part(&self, load: Load, nanos: f64) -> f64 {
        let alone = self.read_at(Load { decodes: 0.0, length: 0.0, ..load });
        (nanos - alone).max(nanos * 0.05)
    }
}
