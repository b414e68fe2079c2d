//! What durations a device cannot have.
//!
//! A wrong unit or a file of another device shows in durations that no device of this kind can
//! reach: more arithmetic per second than its peak, more bytes per second than its memory, its cache or
//! its links move, or no time at all. A sample that takes a thousand times what it would at the peaks is
//! refused as well, and so is a table whose best sample is far below what the device can do.

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

/// A last-level cache moves bytes at most this much faster than the memory behind it.
const CACHE: f64 = 16.0;
/// A kernel of a GPU takes this long at the least, whatever it does.
pub(super) const KERNEL_NANOS: f64 = 100.0;
/// An operator of any device takes this long at the least: a few cycles.
pub(super) const CYCLES_NANOS: f64 = 1.0;
/// A sample takes at most this many times what it would at the peaks...
const SLOWEST: f64 = 1000.0;
/// ...with the time of a launch.
const LAUNCH_NANOS: f64 = 10_000.0;
/// Links are not slower than this, in bytes per second, except by that factor.
const SLOW_LINK: f64 = 1e9;
/// Operators of which the work is not known do not take longer: ten seconds.
const LONGEST_OPERATOR: f64 = 1e10;
/// Iterations of models of which the size is not known do not take longer: a thousand seconds.
const LONGEST_ITERATION: f64 = 1e12;

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

/// The parameters of a model whose name ends with their number, such as `llama2-70b`. A name that counts
/// experts, or the parameters that a token takes, has no such end.
fn parameters(model: &str) -> Option<f64> {
    let billions = model.rsplit('-').next()?.strip_suffix(['b', 'B'])?;
    let is_number = billions.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    billions.parse::<f64>().ok().filter(|billions| is_number && *billions > 0.0).map(|billions| billions * 1e9)
}

/// What an iteration cannot do without: its weights are read, of four bits at the least. Its arithmetic is
/// no bound from below, because published files count prompts that were cut short.
fn iteration(model: &str, tensor_parallel: u32) -> Option<Work> {
    let share = parameters(model)? / f64::from(tensor_parallel.max(1));
    Some(Work { flops: 0.0, unit: DType::F32, bytes: share * 0.5, link: 0.0 })
}

/// Refuses a duration below `shortest`, or one that is no number.
pub(super) fn check_shortest(nanos: f64, shortest: f64, place: &Place) -> Result<(), ProfileError> {
    if nanos >= shortest {
        return Ok(());
    }
    Err(ProfileError::Implausible {
        place: place.clone(),
        nanos,
        found: "from start to end".into(),
        expected: format!("at least {shortest} ns, which anything takes"),
    })
}

/// Refuses a duration of unknown work above `longest`.
fn check_longest(nanos: f64, longest: f64, place: &Place) -> Result<(), ProfileError> {
    if nanos <= longest {
        return Ok(());
    }
    Err(ProfileError::Implausible {
        place: place.clone(),
        nanos,
        found: "from start to end".into(),
        expected: format!("at most {:.0} s", longest / 1e9),
    })
}

/// Refuses a duration of an operator of which the work is not known.
pub(super) fn check_unknown(nanos: f64, place: &Place) -> Result<(), ProfileError> {
    check_longest(nanos, LONGEST_OPERATOR, place)
}

/// Refuses a duration in which `device` cannot do `work`; gives what it takes at the peaks, in nanoseconds.
pub(super) fn check_fastest(work: &Work, nanos: f64, device: &DeviceSpec, place: &Place) -> Result<f64, ProfileError> {
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
    let traffic = work.bytes / seconds;
    if traffic > bandwidth * CACHE {
        return Err(impossible("its traffic from the cache", traffic, 1e9, "GB/s", bandwidth * CACHE));
    }
    let links = device.nvlink.get() as f64;
    let through = work.link / seconds;
    if links > 0.0 && through > links * TOLERANCE {
        return Err(impossible("its messages", through, 1e9, "GB/s", links));
    }
    let over_links = if links > 0.0 { work.link / links } else { 0.0 };
    Ok((work.flops / peak).max(work.bytes / bandwidth).max(over_links) * 1e9)
}

/// Refuses a duration that is out of all proportion to `ideal`, what it is at the device's peaks, and to the
/// message that it sends.
pub(super) fn check_slowest(work: &Work, nanos: f64, ideal: f64, place: &Place) -> Result<(), ProfileError> {
    let ideal = ideal.max(work.link / SLOW_LINK * 1e9) + LAUNCH_NANOS;
    // A device without arithmetic or memory has no ideal to be judged by.
    if nanos <= ideal * SLOWEST || ideal.is_nan() {
        return Ok(());
    }
    Err(ProfileError::Implausible {
        place: place.clone(),
        nanos,
        found: format!("is {:.0} times the {ideal:.0} ns of a launch and the device's peaks", nanos / ideal),
        expected: format!("at most {SLOWEST} times"),
    })
}

/// What is known about the samples of one table so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The longest that a sample would take at the device's peaks.
    longest: f64,
    /// The best share of the peaks.
    best: f64,
    /// The shortest duration that can be, in nanoseconds.
    shortest: f64,
}

impl Limits {
    /// Limits of samples that take at least `shortest` nanoseconds.
    pub(super) fn new(shortest: f64) -> Self {
        Self { longest: 0.0, best: 0.0, shortest }
    }

    /// Refuses a sample that is faster than `device`, or slower by far.
    pub(super) fn check(
        &mut self,
        measure: &Measure,
        point: &[f64],
        nanos: f64,
        device: &DeviceSpec,
        place: &Place,
    ) -> Result<(), ProfileError> {
        check_shortest(nanos, self.shortest, place)?;
        if let Measure::Iteration { model, tensor_parallel, .. } = measure {
            if let Some(work) = iteration(model, *tensor_parallel) {
                check_fastest(&work, nanos, device, place)?;
            }
            return check_longest(nanos, LONGEST_ITERATION, place);
        }
        let Some(work) = measure.work(point) else { return check_unknown(nanos, place) };
        let ideal = check_fastest(&work, nanos, device, place)?;
        check_slowest(&work, nanos, ideal, place)?;
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
        let check = |measure: &Measure, point: &[f64], nanos| {
            Limits::new(KERNEL_NANOS).check(measure, point, nanos, &device, &place)
        };
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

    /// A launch of 10 us and 1 us of copying at 3.35 TB/s may take 11 ms; 70 billion weights of half a byte on two devices
    /// are 17.5 GB each, which 3.35 TB/s move in 5.2 ms.
    #[test]
    fn small_operators_and_iterations_have_bounds_too() {
        let place = Place { file: "own.csv".into(), row: 3, column: "time_us".into() };
        let check = |measure: &Measure, point: &[f64], nanos| {
            Limits::new(KERNEL_NANOS).check(measure, point, nanos, &DeviceSpec::h100_sxm(), &place)
        };
        let norm = Measure::Elementwise("rms_norm".into());
        assert!(check(&norm, &[3.35e6], 10.9e6).is_ok() && check(&norm, &[3.35e6], 11.1e6).is_err());
        assert!(check(&norm, &[3.35e6], 63.0).is_err() && check(&norm, &[8.0], 99.0).is_err());
        let error = check(&norm, &[8.0], 1e-297).unwrap_err().to_string();
        assert!(error.contains(": 1e-297 ns from start to end: expected at least 100 ns"), "{error}");
        let tokens = |model: &str| Measure::Iteration { model: model.into(), tensor_parallel: 2, prompt: false };
        let iterate = |model, nanos| check(&tokens(model), &[1.0, 512.0], nanos).is_ok();
        assert!(iterate("llama2-70b", 5.3e6) && !iterate("llama2-70b", 4.9e6) && !iterate("llama2-70b", 1.1e12));
        assert!(iterate("qwen3-30b-a3b", 1e5) && iterate("mixtral-8x22b", 1e5) && !iterate("mixtral-8x22b", 99.0));
    }

    #[test]
    fn a_table_that_is_a_thousand_times_too_slow_is_refused() {
        let place = Place { file: "gemm.csv".into(), row: 3, column: "time_us".into() };
        let matmul = Measure::MatMul { weight: DType::BF16, scaling: Scaling::Whole };
        let mut limits = Limits::new(KERNEL_NANOS);
        let error = limits.check(&matmul, &[8192.0; 3], 1.2e9, &DeviceSpec::h100_sxm(), &place).unwrap_err();
        assert!(error.to_string().contains("is 1070 times the 1121"), "{error}");
        limits.check(&matmul, &[8192.0; 3], 1.11e9, &DeviceSpec::h100_sxm(), &place).unwrap();
        assert!(limits.check_all(&matmul, &place).unwrap_err().to_string().contains("0.10 % of the device's peaks"));
        limits.check(&matmul, &[8192.0; 3], 1.2e6, &DeviceSpec::h100_sxm(), &place).unwrap();
        assert!(limits.check_all(&matmul, &place).is_ok());
    }
}
