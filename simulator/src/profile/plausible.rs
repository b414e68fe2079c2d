//! What durations a device cannot have.
//!
//! A wrong unit or a file of another device shows in durations that no device of this kind can
//! reach: more arithmetic per second than its peak, more bytes per second than its memory or its
//! links move. A table whose best sample is far below what the device can do is refused as well:
//! its durations are a thousand times too long.

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::dtype::DType;

use super::device::{Collective, Measure};
use super::error::{Place, ProfileError};

/// Data sheets round, and clocks boost: a peak may be exceeded by this much.
const TOLERANCE: f64 = 1.05;
/// The share of a device's peaks that the best sample of a table reaches at the least...
const LEAST: f64 = 0.01;
/// ...if there is a sample that would take this long at the peaks.
const LONG_NANOS: f64 = 100_000.0;

/// The work of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Work {
    /// Arithmetic, and the type whose peak it runs at.
    pub(crate) flops: f64,
    pub(crate) unit: DType,
    /// Memory traffic if every byte is moved once.
    pub(crate) bytes: f64,
    /// Bytes that go through the links to other devices.
    pub(crate) link: f64,
}

impl Measure {
    /// The work of the operator at `point`, one coordinate per axis of [`axes`](Self::axes);
    /// [`None`] if it is not known, as for iterations of a model.
    pub(crate) fn work(&self, point: &[f64]) -> Option<Work> {
        let none = Work { flops: 0.0, unit: DType::F32, bytes: 0.0, link: 0.0 };
        let bytes_of = |dtype: DType| dtype.bits() / 8.0;
        Some(match (self, point) {
            (Self::MatMul { weight, .. }, &[m, n, k]) => {
                // Activations have the type of the weight or a wider one; outputs have two bytes.
                let bytes = (n * k + m * k) * bytes_of(*weight) + m * n * 2.0;
                Work { flops: 2.0 * m * n * k, unit: *weight, bytes, ..none }
            }
            (Self::Prefill(shape), &[batch, length, heads, kv_heads]) => {
                let head_dim = f64::from(shape.head_dim);
                let pairs = batch * attended(length, 0.0, shape.window);
                let bytes = batch * length * head_dim * (2.0 * heads + 2.0 * kv_heads) * 2.0;
                Work { flops: 4.0 * heads * head_dim * pairs, unit: DType::BF16, bytes, ..none }
            }
            (Self::Chunk(shape), &[length, cached, heads, kv_heads]) => {
                let head_dim = f64::from(shape.head_dim);
                let pairs = attended(length, cached, shape.window);
                let kv = (length + cached) * 2.0 * kv_heads * bytes_of(shape.kv);
                let bytes = head_dim * (length * 2.0 * heads * 2.0 + kv);
                Work { flops: 4.0 * heads * head_dim * pairs, unit: DType::BF16, bytes, ..none }
            }
            (Self::Decode(shape), &[batch, context, heads, kv_heads]) => {
                let head_dim = f64::from(shape.head_dim);
                let context = if shape.window > 0 { context.min(f64::from(shape.window)) } else { context };
                let kv = batch * context * 2.0 * kv_heads * bytes_of(shape.kv);
                let bytes = head_dim * (batch * 2.0 * heads * 2.0 + kv);
                Work { flops: 4.0 * batch * context * heads * head_dim, unit: DType::BF16, bytes, ..none }
            }
            (Self::Elementwise(_), &[bytes]) => Work { bytes, ..none },
            (Self::Collective { kind, ranks, .. }, &[bytes]) => {
                // Every rank receives what it does not have. In-switch reduction sends a sum once.
                let ranks = f64::from(*ranks);
                let link = match kind {
                    Collective::SendRecv => bytes,
                    _ => bytes * (ranks - 1.0) / ranks,
                };
                Work { link, ..none }
            }
            _ => return None,
        })
    }
}

/// The pairs of `length` new tokens after `cached` ones and the tokens that they attend to.
pub(crate) fn attended(length: f64, cached: f64, window: u32) -> f64 {
    let all = |length: f64| length * (length + 1.0) * 0.5;
    let end = length + cached;
    let window = f64::from(window);
    // Tokens beyond the window attend to `window` tokens each.
    let upto = |end: f64| if window > 0.0 && end > window { all(window) + (end - window) * window } else { all(end) };
    upto(end) - upto(cached)
}

/// What is known about the samples of one table so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// The longest that a sample would take at the device's peaks.
    longest: f64,
    /// The best share of the peaks.
    best: f64,
}

impl Limits {
    /// Refuses a sample that is faster than `device`.
    pub(super) fn check(
        &mut self,
        measure: &Measure,
        point: &[f64],
        nanos: f64,
        device: &DeviceSpec,
        place: &Place,
    ) -> Result<(), ProfileError> {
        let Some(work) = measure.work(point) else { return Ok(()) };
        let impossible = |what: &str, found: f64, scale: f64, unit: &str, peak: f64| ProfileError::Implausible {
            place: place.clone(),
            nanos,
            found: format!("for {what} would be {:.0} {unit}", found / scale),
            expected: format!("at most the {:.0} {unit} of {}", peak / scale, device.name),
        };
        let seconds = nanos / 1e9;
        let peak = device.rate(work.unit).get() as f64;
        let rate = work.flops / seconds;
        if rate > peak * TOLERANCE {
            return Err(impossible("its arithmetic", rate, 1e12, "TFLOP/s", peak));
        }
        // What the last-level cache holds need not move.
        let bandwidth = device.bandwidth.get() as f64;
        let traffic = (work.bytes - device.l2.get() as f64) / seconds;
        if traffic > bandwidth * TOLERANCE {
            return Err(impossible("its memory traffic", traffic, 1e9, "GB/s", bandwidth));
        }
        let links = device.nvlink.get() as f64;
        let through = work.link / seconds;
        if links > 0.0 && through > links * TOLERANCE {
            return Err(impossible("its messages", through, 1e9, "GB/s", links));
        }
        let over_links = if links > 0.0 { work.link / links } else { 0.0 };
        let ideal = (work.flops / peak).max(work.bytes / bandwidth).max(over_links) * 1e9;
        self.longest = self.longest.max(ideal);
        self.best = self.best.max(ideal / nanos);
        Ok(())
    }

    /// Refuses a table that is slower by far than the device.
    pub(super) fn check_all(&self, measure: &Measure, place: &Place) -> Result<(), ProfileError> {
        if self.longest < LONG_NANOS || self.best >= LEAST {
            return Ok(());
        }
        Err(ProfileError::Implausible {
            place: place.clone(),
            nanos: self.longest / self.best.max(f64::MIN_POSITIVE),
            found: format!(
                "or so for the longest sample of \"{measure}\" is {:.2} % of the device's peaks",
                self.best * 100.0
            ),
            expected: format!("at least {:.0} % somewhere in the table", LEAST * 100.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::device::{AttentionShape, Scaling};

    #[test]
    fn the_pairs_of_attention_are_counted_by_token() {
        for (length, cached, window) in [(5u32, 0u32, 0u32), (5, 3, 0), (5, 3, 4), (5, 9, 4), (7, 0, 3)] {
            let each = (cached + 1..=cached + length).map(|at| if window > 0 { at.min(window) } else { at });
            let pairs = attended(f64::from(length), f64::from(cached), window);
            assert_eq!(pairs, f64::from(each.sum::<u32>()), "{length} after {cached}, window {window}");
        }
    }

    #[test]
    fn nothing_is_faster_than_the_device() {
        let place = Place { file: "gemm.csv".into(), row: 3, column: "time_us".into() };
        let device = DeviceSpec::h100_sxm();
        let check =
            |measure: &Measure, point: &[f64], nanos| Limits::default().check(measure, point, nanos, &device, &place);
        let matmul = Measure::MatMul { weight: DType::BF16, scaling: Scaling::Whole };
        // 2 * 8192^3 = 1.1e12 operations are 1.11 ms at 989 TFLOP/s.
        assert!(check(&matmul, &[8192.0; 3], 1.2e6).is_ok());
        let error = check(&matmul, &[8192.0; 3], 1.2e3).unwrap_err().to_string();
        assert!(error.starts_with("gemm.csv, row 3, column \"time_us\": 1200 ns for its arithmetic would be 916260 TFLOP/s: expected at most the 989 TFLOP/s"), "{error}");
        // 256 * 8192 * 2 * 8 * 128 * 2 bytes = 8.6 GB are 2.6 ms at 3.35 TB/s.
        let decode = Measure::Decode(AttentionShape { head_dim: 128, kv: DType::BF16, window: 0 });
        assert!(check(&decode, &[256.0, 8192.0, 32.0, 8.0], 2.9e6).is_ok());
        assert!(check(&decode, &[256.0, 8192.0, 32.0, 8.0], 2.0e6).is_err());
        let reduce = Measure::Collective { kind: Collective::AllReduce, ranks: 2, across_nodes: false };
        assert!(check(&reduce, &[1e9], 1.2e6).is_ok());
        assert!(check(&reduce, &[1e9], 1.0e6).is_err());
    }

    #[test]
    fn a_table_that_is_a_thousand_times_too_slow_is_refused() {
        let place = Place { file: "gemm.csv".into(), row: 3, column: "time_us".into() };
        let matmul = Measure::MatMul { weight: DType::BF16, scaling: Scaling::Whole };
        let mut limits = Limits::default();
        limits.check(&matmul, &[8192.0; 3], 1.2e9, &DeviceSpec::h100_sxm(), &place).unwrap();
        assert!(limits.check_all(&matmul, &place).unwrap_err().to_string().contains("0.09 % of the device's peaks"));
        limits.check(&matmul, &[8192.0; 3], 1.2e6, &DeviceSpec::h100_sxm(), &place).unwrap();
        assert!(limits.check_all(&matmul, &place).is_ok());
    }
}
