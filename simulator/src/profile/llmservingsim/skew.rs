//! Decodes of unequal length.
//!
//! The tables of attention hold batches whose decodes are equally long. In a real batch the longest decode goes
//! on after the others have ended, and a sequence cannot use the whole device: it reads at most one token of
//! context per *lag*. With `k(x)` decodes longer than `x` tokens, and `R` tokens per nanosecond read by the whole
//! batch, position `x` takes `max(lag, k(x)/R)`, of which `k(x)/R` is in the table already. So unequal lengths cost
//!
//! ```text
//! sum over the j longest, longest first, of max(0, lag - j/R) * (length[j] - length[j + 1])
//! ```
//!
//! The lag comes from the profile's batches with few long decodes, per size of the batch and of the chunk beside
//! it. Kernels of the FlashAttention family split a sequence over several units when a batch of decodes is too small to
//! fill the device (less than 0.8 of two blocks per multiprocessor); then nothing lags.

use std::collections::BTreeMap;
use std::path::Path;

use super::{AttentionTables, Judge, Load, nanos, number, refuse};
use crate::profile::{Columns, ProfileError, TableError};

/// Chunks beside decodes up to which lags are taken together: none, small, middle; larger ones are the last class.
const CHUNKS: [f64; 3] = [0.0, 256.0, 1024.0];
/// Contexts below this are mostly overhead.
const SHORTEST: f64 = 256.0;
/// Share of two blocks per multiprocessor from which on FlashAttention does not split sequences.
const FILLED: f64 = 0.8 * 2.0;

/// Nanoseconds per token of context that one sequence cannot go below, by decodes in the batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lag {
    /// Ascending by decodes.
    knots: Vec<(f64, f64)>,
}

impl Lag {
    /// The lag of a batch of `decodes`, on a line over their logarithm between knots of at least `from`
    /// decodes.
    fn read(&self, decodes: f64, from: f64) -> f64 {
        let knots = &self.knots[self.knots.partition_point(|&(knot, _)| knot < from)..];
        let above = knots.partition_point(|&(knot, _)| knot < decodes);
        match (above.checked_sub(1).and_then(|below| knots.get(below)), knots.get(above)) {
            (Some(&(a, below)), Some(&(b, above))) => below + (above - below) * ratio_between(a, decodes, b),
            (Some(&(_, lag)), None) | (None, Some(&(_, lag))) => lag,
            (None, None) => 0.0,
        }
    }
}

/// Where `x` lies between `a` and `b` on a scale of doublings: their logarithms by the series of atanh, which
/// needs no platform mathematics.
fn ratio_between(a: f64, x: f64, b: f64) -> f64 {
    log(x / a) / log(b / a)
}

/// The natural logarithm of `x >= 1`.
fn log(x: f64) -> f64 {
    let mut x = x;
    let mut halvings = 0.0;
    while x > 1.5 {
        x *= 0.5;
        halvings += 1.0;
    }
    let z = (x - 1.0) / (x + 1.0);
    let (mut term, mut sum) = (z, 0.0);
    for odd in (1..24).step_by(2) {
        sum += term / f64::from(odd);
        term *= z * z;
    }
    2.0 * sum + halvings * std::f64::consts::LN_2
}

/// What unequal lengths cost.
#[derive(Clone, Debug, PartialEq)]
pub struct SkewTable {
    /// By class of the chunk.
    lags: [Lag; CHUNKS.len() + 1],
    /// How often the times of the file contain those of the attention table.
    repeats: f64,
}

struct Case {
    class: usize,
    decodes: f64,
    long: f64,
    load: Load,
    longer_by: f64,
    mean: f64,
    skewed: f64,
}

impl SkewTable {
    pub(super) fn read(file: &Path, attention: &AttentionTables, judge: &Judge<'_>) -> Result<Self, ProfileError> {
        let columns = Columns::read_csv(file)?;
        let column = |name| columns.column(name);
        let (n, nb, pc, kp) = (column("n")?, column("nb")?, column("pc")?, column("kp")?);
        let (short, long, mean) = (column("kvs")?, column("kv_big")?, column("kv_mean")?);
        let (t_mean, t_skew) = (column("t_mean_us")?, column("t_skew_us")?);
        let mut cases = Vec::new();
        for row in 0..columns.rows() {
            let value = |column| number(column, row);
            let (decodes, few) = (value(n)?, value(nb)?);
            let (short, long) = (value(short)?, value(long)?);
            let load = Load { chunk: value(pc)?, behind: value(kp)?, decodes, length: value(mean)? };
            let case = Case {
                class: class(load.chunk),
                decodes,
                long: few,
                load,
                longer_by: long - short,
                mean: nanos(t_mean, row)?,
                skewed: nanos(t_skew, row)?,
            };
            for (time, nanos) in [(t_mean, case.mean), (t_skew, case.skewed)] {
                judge.attention([load.chunk, load.behind, decodes, load.length], nanos, &time.place(row))?;
            }
            let few_are_long = few > 0.0 && (few * 8.0 <= decodes || few <= 1.0 && decodes >= 2.0);
            if few_are_long && short >= SHORTEST && long > short {
                cases.push(case);
            }
        }
        if cases.is_empty() {
            return Err(refuse(&columns, "rows with few long decodes", TableError::Empty));
        }
        Ok(Self::fit(&cases, attention))
    }

    fn fit(cases: &[Case], attention: &AttentionTables) -> Self {
        let repeats = median(cases.iter().map(|case| case.mean / attention.read_at(case.load)).collect());
        let mut samples: [BTreeMap<u64, Vec<f64>>; CHUNKS.len() + 1] = Default::default();
        for case in cases {
            let mean = case.mean / repeats;
            let rate = case.decodes * case.load.length / attention.decode_part(case.load, mean);
            let excess = case.skewed / repeats - mean;
            let lag = excess / case.longer_by + case.long / rate;
            samples[case.class].entry(case.decodes as u64).or_default().push(lag);
        }
        let lags = samples.map(|by_decodes| Lag {
            knots: by_decodes.into_iter().map(|(decodes, lags)| (decodes as f64, median(lags).max(0.0))).collect(),
        });
        Self { lags, repeats }
    }

    /// How often the times of the file contain those of the attention table: the iterations of its
    /// measurement.
    pub fn repeats(&self) -> f64 {
        self.repeats
    }

    /// What the `lengths` of the decodes, the longest first, cost beside `nanos`, the time of `load` with
    /// equal lengths. `units` is what FlashAttention counts when it decides about splitting: multiprocessors per
    /// key-value head of the rank, if known. O(lengths).
    pub fn excess(
        &self,
        attention: &AttentionTables,
        load: Load,
        nanos: f64,
        lengths: &[u32],
        units: Option<f64>,
    ) -> f64 {
        let class = class(load.chunk);
        let filled_from = if class == 0 { units.map_or(0.0, |units| FILLED * units) } else { 0.0 };
        if load.decodes < filled_from {
            return 0.0;
        }
        let lag = self.lags[class].read(load.decodes, filled_from);
        let rate = load.decodes * load.length / attention.decode_part(load, nanos);
        let mut excess = 0.0;
        for (longest, pair) in (1u32..).zip(lengths.windows(2)) {
            let left = lag - f64::from(longest) / rate;
            if left <= 0.0 {
                break;
            }
            excess += left * f64::from(pair[0].saturating_sub(pair[1]));
        }
        excess
    }
}

fn class(chunk: f64) -> usize {
    CHUNKS.iter().position(|&largest| chunk <= largest).unwrap_or(CHUNKS.len())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) * 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_those_of_mathematics() {
        for x in [1.0, 1.2, 1.5, 2.0, 3.0, 47.0, 1e6] {
            let exact: f64 = f64::ln(x);
            assert!((log(x) - exact).abs() < 1e-12, "{x}: {} {exact}", log(x));
        }
    }

    #[test]
    fn lags_lie_on_a_line_over_doublings() {
        let lag = Lag { knots: vec![(16.0, 0.0), (64.0, 20.0), (256.0, 10.0)] };
        assert_eq!(lag.read(8.0, 0.0), 0.0);
        assert!((lag.read(32.0, 0.0) - 10.0).abs() < 1e-9);
        assert!((lag.read(128.0, 0.0) - 15.0).abs() < 1e-9);
        assert_eq!(lag.read(1000.0, 0.0), 10.0);
        assert_eq!(lag.read(32.0, 30.0), 20.0, "knots below the threshold do not count");
        assert_eq!(Lag::default().read(3.0, 0.0), 0.0);
    }
}
