//! The generator against the traces that it imitates: how uneven arrivals are at four time scales,
//! and how many seconds are empty.
//!
//! Golden values are measured on the traces of AzurePublicDataset; where the files are at hand
//! (`$SLICESCHEDULER_DATA`, or `shared/data` beside the workspace), they are measured again here.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

use slicescheduler::workload::{Generator, Preset, TraceFile, TraceFormat};
use slicescheduler_gmg::units::Nanos;

const SCALES: [Nanos; 4] = [Nanos::ms(100), Nanos::secs(1), Nanos::secs(10), Nanos::secs(60)];
const HOUR: Nanos = Nanos::secs(3600);
const SEEDS: std::ops::Range<u64> = 1..21;

/// What is compared.
struct Figures {
    /// Variance over mean of the counts in bins of each of [`SCALES`].
    dispersion: [f64; 4],
    /// The share of 1-s bins without an arrival.
    empty_seconds: f64,
    /// Arrivals per second.
    rate: f64,
}

fn figures(times: &[Nanos], length: Nanos) -> Figures {
    let counts = |bin: Nanos| {
        let mut counts = vec![0_u32; (length.0 / bin.0) as usize];
        for at in times {
            if let Some(count) = counts.get_mut((at.0 / bin.0) as usize) {
                *count += 1;
            }
        }
        counts
    };
    let dispersion = SCALES.map(|bin| {
        let counts = counts(bin);
        let bins = counts.len() as f64;
        let mean = counts.iter().sum::<u32>() as f64 / bins;
        let squares: f64 = counts.iter().map(|&count| (f64::from(count) - mean).powi(2)).sum();
        squares / (bins - 1.0) / mean
    });
    let seconds = counts(Nanos::secs(1));
    let empty = seconds.iter().filter(|&&count| count == 0).count();
    Figures {
        dispersion,
        empty_seconds: empty as f64 / seconds.len() as f64,
        rate: times.len() as f64 / length.as_secs_f64(),
    }
}

fn generated(preset: Preset, seed: u64) -> Figures {
    let times: Vec<Nanos> = Generator::new(preset, seed).map(|record| record.at).take_while(|at| *at < HOUR).collect();
    figures(&times, HOUR)
}

fn assert_close(what: &str, value: f64, golden: f64, tolerance: f64) {
    assert!((value / golden - 1.0).abs() <= tolerance, "{what} is {value:.3}: expected {golden} within {tolerance}");
}

/// The mean over seeds, each an hour, is close to the trace; so are most single hours.
fn check(preset: Preset, golden: Figures) {
    let hours: Vec<Figures> = SEEDS.map(|seed| generated(preset, seed)).collect();
    let mean = |figure: &dyn Fn(&Figures) -> f64| hours.iter().map(figure).sum::<f64>() / hours.len() as f64;
    for (index, scale) in SCALES.iter().enumerate() {
        let what = format!("{}: dispersion at {scale}", preset.name());
        let expected = golden.dispersion[index];
        assert_close(&what, mean(&|hour| hour.dispersion[index]), expected, 0.15);
        let near = hours.iter().filter(|hour| (hour.dispersion[index] / expected - 1.0).abs() <= 0.3).count();
        println!(
            "{what}: {:.2}, trace {expected}, {near} of {} hours within 30 %",
            mean(&|h| h.dispersion[index]),
            hours.len()
        );
        assert!(near * 10 >= hours.len() * 8, "{what}: only {near} of {} hours within 30 %", hours.len());
    }
    println!("{}: empty seconds {:.3}, rate {:.3}", preset.name(), mean(&|h| h.empty_seconds), mean(&|h| h.rate));
    assert_close("rate", mean(&|hour| hour.rate), golden.rate, 0.03);
    for hour in &hours {
        assert!((hour.empty_seconds - golden.empty_seconds).abs() <= 0.05, "empty seconds {}", hour.empty_seconds);
    }
}

#[test]
fn generated_code_arrivals_are_as_uneven_as_the_trace_at_four_scales() {
    check(
        Preset::AzureCode,
        Figures { dispersion: [2.54, 13.2, 71.9, 167.0], empty_seconds: 0.73, rate: 8819.0 / 3436.0 },
    );
}

#[test]
fn generated_conv_arrivals_are_as_uneven_as_the_trace_at_four_scales() {
    check(
        Preset::AzureConv,
        Figures { dispersion: [1.06, 1.39, 3.87, 16.4], empty_seconds: 0.01, rate: 19366.0 / 3502.0 },
    );
}

#[test]
fn ten_minutes_of_any_seed_carry_a_load_near_the_mean() {
    let length = Nanos::secs(600);
    let rates: Vec<f64> = SEEDS
        .map(|seed| {
            let records = Generator::new(Preset::AzureCode, seed).take_while(|record| record.at < length);
            records.count() as f64 / length.as_secs_f64()
        })
        .collect();
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / (rates.len() - 1) as f64;
    assert_close("rate", mean, 2.567, 0.1);
    assert!(variance.sqrt() / mean < 0.25, "coefficient of variation {}", variance.sqrt() / mean);
}

/// The folder with the published traces. Without one the test is skipped, except on CI.
fn traces() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let data = std::env::var_os("SLICESCHEDULER_DATA").map_or_else(|| root.join("../shared/data"), PathBuf::from);
    let traces = data.join("traces");
    if traces.is_dir() {
        return Some(traces);
    }
    assert!(std::env::var_os("CI").is_none(), "no traces in {}", data.display());
    println!("skipped: no traces in {} (set SLICESCHEDULER_DATA)", data.display());
    None
}

#[test]
fn the_published_traces_have_the_figures_that_the_generator_is_held_to() {
    let Some(traces) = traces() else { return };
    for (preset, name, requests) in [
        (Preset::AzureCode, "AzureLLMInferenceTrace_code.csv", 8_819),
        (Preset::AzureConv, "AzureLLMInferenceTrace_conv.csv", 19_366),
    ] {
        let file = TraceFile { path: traces.join(name), format: TraceFormat::Azure };
        let records: Vec<_> = file.records().unwrap().map(Result::unwrap).collect();
        assert_eq!(records.len(), requests);
        let times: Vec<Nanos> = records.iter().map(|record| record.at).collect();
        let trace = figures(&times, file.length().unwrap());
        let hours: Vec<Figures> = SEEDS.map(|seed| generated(preset, seed)).collect();
        let mean = |figure: &dyn Fn(&Figures) -> f64| hours.iter().map(figure).sum::<f64>() / hours.len() as f64;
        for (index, scale) in SCALES.iter().enumerate() {
            let what = format!("{name}: dispersion at {scale}");
            assert_close(&what, mean(&|hour| hour.dispersion[index]), trace.dispersion[index], 0.3);
        }
        assert_close("rate", mean(&|hour| hour.rate), trace.rate, 0.05);
        assert!((mean(&|hour| hour.empty_seconds) - trace.empty_seconds).abs() <= 0.03);

        let lengths = preset.lengths();
        let mean_of =
            |tokens: &dyn Fn(usize) -> u32| (0..requests).map(|n| f64::from(tokens(n))).sum::<f64>() / requests as f64;
        assert_close("prompt", lengths.prompt.mean(), mean_of(&|n| records[n].prompt), 0.02);
        assert_close("output", lengths.output.mean(), mean_of(&|n| records[n].output), 0.02);
    }
}

#[test]
fn the_published_mooncake_trace_is_read_whole() {
    let Some(traces) = traces() else { return };
    let path = traces.join("mooncake_conversation_trace.jsonl");
    let file = TraceFile { path, format: TraceFormat::Mooncake };
    let records: Vec<_> = file.records().unwrap().map(Result::unwrap).collect();
    assert_eq!(records.len(), 12_031);
    assert_eq!(file.length().unwrap(), Nanos::ms(3_536_999));
    let blocks = |n: usize| records[n].prefix.as_ref().unwrap().blocks.len();
    assert!((0..records.len()).all(|n| blocks(n) as u32 == records[n].prompt.div_ceil(512)));
}
