//! The data that the page's script draws, as JSON: whole numbers only, cut and binned to a bounded
//! size.
//!
//! Per run: `spans`, one flat list per device of (start after the last one's, duration, tenant * 8 +
//! flags, operators, tokens), times in microseconds and the first start relative to the detail
//! window; `use`, one flat list per device of (owner, guest) shares in thousandths; `memory`, one
//! flat list per device of (time in milliseconds, bytes by kind in units of `unit`).

use std::io::{self, Write};

use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::units::Nanos;

use super::text::{Quoted, Tenants};
use crate::report::{MemorySample, RunRecord, SecondUse, Span, SpanKind};

/// The most spans in a page.
pub(super) const MAX_SPANS: usize = 100_000;
/// The most devices of a run that are drawn.
pub(super) const MAX_DEVICES: usize = 64;
/// The most bins over time, per device; fewer where many devices are drawn.
const MAX_BINS: usize = 600;
/// The most bins of all devices and runs.
const ALL_BINS: usize = 40_000;

const DECODE: u64 = 1;
const GUEST: u64 = 2;
const RECALLED: u64 = 4;

/// How much of the runs is drawn.
pub(super) struct Extent {
    /// Spans that start at this time or later are left out.
    end: Nanos,
    /// True if spans are left out.
    pub(super) cut: bool,
    /// Bins over time, per device.
    bins: usize,
}

impl Extent {
    /// One extent for all runs, so that they can be compared. O(spans).
    pub(super) fn of(runs: &[RunRecord]) -> Self {
        let share = MAX_SPANS / runs.len().max(1);
        let mut end = Nanos::MAX;
        for run in runs {
            let mut starts: Vec<Nanos> =
                run.spans.iter().filter(|span| is_drawn(run, span.device)).map(|span| span.start).collect();
            if starts.len() > share {
                end = end.min(*starts.select_nth_unstable(share).1);
            }
        }
        let drawn: usize = runs.iter().map(|run| run.devices.len().min(MAX_DEVICES)).sum();
        Self { end, cut: end < Nanos::MAX, bins: (ALL_BINS / drawn.max(1)).clamp(16, MAX_BINS) }
    }
}

fn is_drawn(run: &RunRecord, device: u32) -> bool {
    (device as usize) < run.devices.len().min(MAX_DEVICES)
}

/// Writes the data of `runs`.
pub(super) fn write(
    out: &mut impl Write,
    runs: &[RunRecord],
    tenants: &Tenants<'_>,
    extent: &Extent,
) -> io::Result<()> {
    out.write_all(b"{\"tenants\":")?;
    list(out, &tenants.names, |out, name| write!(out, "{}", Quoted(name)))?;
    out.write_all(b",\"kinds\":")?;
    list(out, ByteKind::ALL, |out, kind| write!(out, "{}", Quoted(kind.name())))?;
    out.write_all(b",\"runs\":")?;
    list(out, runs, |out, run| write_run(out, run, tenants, extent))?;
    out.write_all(b"}")
}

fn write_run(out: &mut impl Write, run: &RunRecord, tenants: &Tenants<'_>, extent: &Extent) -> io::Result<()> {
    let local: Vec<usize> = run.tenants.iter().map(|tenant| tenants.index(&tenant.name).unwrap_or_default()).collect();
    let devices = &run.devices[..run.devices.len().min(MAX_DEVICES)];
    let (from, to) = (run.detail.0, run.detail.1.min(extent.end).max(run.detail.0));
    write!(out, "\n{{\"name\":{},\"detail\":[{},{}]", Quoted(&run.summary.name), micros(from), micros(to))?;
    out.write_all(b",\"devices\":")?;
    list(out, devices, |out, device| {
        let owner = device.owner.and_then(|owner| local.get(owner)).map_or(-1, |&owner| owner as i64);
        write!(out, "{{\"name\":{},\"owner\":{owner}}}", Quoted(&device.name))
    })?;

    let mut spans: Vec<Vec<&Span>> = vec![Vec::new(); devices.len()];
    for span in run.spans.iter().filter(|span| span.start < extent.end) {
        if let Some(spans) = spans.get_mut(span.device as usize) {
            spans.push(span);
        }
    }
    out.write_all(b",\"spans\":")?;
    list(out, spans, |out, mut spans| {
        spans.sort_by_key(|span| span.start);
        write_spans(out, &spans, &local, from)
    })?;

    let seconds = run.seconds.iter().take(devices.len()).map(Vec::len).max().unwrap_or(0);
    let width = seconds.div_ceil(extent.bins).max(1);
    write!(out, ",\"bin\":{width},\"seconds\":{seconds},\"use\":")?;
    list(out, run.seconds.iter().take(devices.len()), |out, seconds| {
        let shares = seconds.chunks(width).flat_map(shares);
        list(out, shares, |out, share| write!(out, "{share}"))
    })?;

    let samples = peaks(&run.memory, devices.len(), extent.bins);
    let largest =
        samples.iter().flatten().map(|sample| total(sample)).chain(devices.iter().map(|device| device.usable)).max();
    let unit = largest.unwrap_or(0).div_ceil(100_000).max(1);
    write!(out, ",\"unit\":{unit},\"usable\":")?;
    list(out, devices, |out, device| write!(out, "{}", device.usable / unit))?;
    out.write_all(b",\"memory\":")?;
    list(out, samples, |out, samples| {
        list(out, samples, |out, sample| {
            write!(out, "{}", sample.at.get() / 1_000_000)?;
            sample.bytes.iter().try_for_each(|bytes| write!(out, ",{}", bytes / unit))
        })
    })?;
    out.write_all(b"}")
}

fn write_spans(out: &mut impl Write, spans: &[&Span], local: &[usize], from: Nanos) -> io::Result<()> {
    let mut last = i128::from(micros(from));
    list(out, spans, |out, span| {
        let start = micros(span.start);
        let after = i128::from(start) - last;
        last = i128::from(start);
        let tenant = local.get(span.tenant as usize).copied().unwrap_or_default() as u64;
        let mut code = tenant * 8;
        code |= if span.kind == SpanKind::Decode { DECODE } else { 0 };
        code |= if span.guest { GUEST } else { 0 };
        code |= if span.recalled { RECALLED } else { 0 };
        let duration = micros(span.finish - span.start);
        write!(out, "{after},{duration},{code},{},{}", span.operators, span.tokens)
    })
}

/// The shares of the owner and of guests in a few seconds, in thousandths.
fn shares(seconds: &[SecondUse]) -> [u64; 2] {
    let total = |part: fn(&SecondUse) -> u32| {
        let used: u64 = seconds.iter().map(|second| u64::from(part(second))).sum();
        used / (1_000 * seconds.len() as u64).max(1)
    };
    [total(|second| second.owner_us), total(|second| second.guest_us)]
}

/// Per device, the sample with the most bytes in each of `bins` parts of the run, and the last one.
fn peaks(samples: &[MemorySample], devices: usize, bins: usize) -> Vec<Vec<&MemorySample>> {
    let end = samples.iter().map(|sample| sample.at.get()).max().unwrap_or(0);
    let width = end / bins as u64 + 1;
    let mut kept: Vec<Vec<&MemorySample>> = vec![Vec::new(); devices];
    let mut last: Vec<Option<&MemorySample>> = vec![None; devices];
    for sample in samples {
        let device = sample.device as usize;
        if device >= devices {
            continue;
        }
        last[device] = Some(sample);
        match kept[device].last_mut() {
            Some(top) if top.at.get() / width == sample.at.get() / width => {
                if total(sample) > total(top) {
                    *top = sample;
                }
            }
            _ => kept[device].push(sample),
        }
    }
    for (kept, last) in kept.iter_mut().zip(last) {
        if let Some(last) = last.filter(|last| kept.last().is_some_and(|top| top.at < last.at)) {
            kept.push(last);
        }
    }
    kept
}

fn total(sample: &MemorySample) -> u64 {
    sample.bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

fn micros(at: Nanos) -> u64 {
    at.get() / 1_000
}

fn list<W: Write, T>(
    out: &mut W,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut W, T) -> io::Result<()>,
) -> io::Result<()> {
    out.write_all(b"[")?;
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        write(out, item)?;
    }
    out.write_all(b"]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: u64, device: u32, bytes: u64) -> MemorySample {
        MemorySample { at: Nanos::ms(at), device, bytes: [bytes, 0, 0, 0, 0] }
    }

    #[test]
    fn binning_memory_keeps_the_peak_and_the_end() {
        let samples: Vec<_> = (0..1_000).map(|at| sample(at, 0, if at == 617 { 99 } else { at % 7 })).collect();
        let kept = peaks(&samples, 1, 10);
        assert!(kept[0].len() <= 12);
        assert!(kept[0].contains(&&samples[617]));
        assert_eq!(kept[0].last(), Some(&&samples[999]));
        assert!(kept[0].is_sorted_by_key(|sample| sample.at));
    }

    #[test]
    fn shares_are_means_over_the_seconds_of_a_bin() {
        let second = |owner_us, guest_us| SecondUse { owner_us, guest_us };
        assert_eq!(shares(&[second(1_000_000, 0), second(500_000, 250_000)]), [750, 125]);
        assert_eq!(shares(&[]), [0, 0]);
    }
}
