//! Predicts real serving runs and prints how far off the predictions are.
//!
//! ```text
//! cargo run --release --bin fidelity -- --data DIR
//! cargo run --release --bin fidelity -- --profile DIR --run DIR [--prefix FILE] [--shape FILE]
//! ```
//!
//! `--data` finds every run below a folder, the profile of its model and device, and the hashes of its prompts' blocks.
//! What cannot be predicted or read is listed with its file and the reason behind all that can, and the program fails.
//! The files are those of LLMServingSim (its `bench` and `profiler`). The figures are written to
//! `target/targets/fidelity.json` too, below `$CARGO_TARGET_DIR` if that is set.

#![forbid(unsafe_code)]

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use serde_json::{Value, json};
use slicescheduler::fidelity::cases::{self, Found};
use slicescheduler::fidelity::{
    Case, Comparison, FidelityError, Metric, PrefixBlocks, Run, Statistics, compare, predict,
};
use slicescheduler::report::write_whole;
use slicescheduler_examples::{Failure, output};

#[derive(Parser)]
#[command(
    name = "fidelity",
    about = "Predicts real serving runs and prints how far off the predictions are",
    after_help = "Give --data DIR, or --run DIR with --profile DIR. The errors are also written to \
                  target/targets/fidelity.json, in $CARGO_TARGET_DIR instead of target if that is set."
)]
struct Arguments {
    /// A folder with runs and profiles anywhere below it
    #[arg(long, value_name = "DIR", conflicts_with_all = ["run", "profile", "prefix", "shape"])]
    data: Option<PathBuf>,
    /// The folder of one run: meta.json, requests.jsonl
    #[arg(long, value_name = "DIR", requires = "profile")]
    run: Option<PathBuf>,
    /// The folder of the run's profile: meta.yaml, tp1
    #[arg(long, value_name = "DIR", requires = "run")]
    profile: Option<PathBuf>,
    /// The hashes of the blocks of the run's prompts
    #[arg(long, value_name = "FILE", requires = "run")]
    prefix: Option<PathBuf>,
    /// The Hugging Face config.json of the run's model, if its shape is not a known one
    #[arg(long, value_name = "FILE", requires = "run")]
    shape: Option<PathBuf>,
    /// Where the comparison is written as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            output::complain(format_args!("fidelity: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// True if every run was predicted, and everything found was readable.
fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let found = match (&arguments.data, &arguments.run, &arguments.profile) {
        (Some(data), ..) => cases::find(data)?,
        (None, Some(at), Some(profile)) => {
            let mut run = Run::read(at)?;
            if let Some(file) = &arguments.prefix {
                PrefixBlocks::read(file)?.describe(&mut run)?;
            }
            let case = Case::read(run, profile, arguments.shape.as_deref());
            Found { cases: vec![(at.clone(), case)], unreadable: Vec::new() }
        }
        _ => {
            let what = "expected --data DIR, or --run DIR with --profile DIR";
            Arguments::command().error(ErrorKind::MissingRequiredArgument, what).exit()
        }
    };
    let mut left_out: Vec<String> = found.unreadable.iter().map(FidelityError::to_string).collect();
    let (mut comparisons, runs) = (Vec::new(), found.cases.len());
    let mut printed = Ok(());
    for (at, case) in found.cases {
        let predicted = case.and_then(|case| {
            let prediction = predict(&case.run, case.profile, &case.shape)?;
            Ok(compare(&case.run, &prediction))
        });
        match predicted {
            Ok(comparison) => {
                // What cannot be printed is written to files all the same.
                printed = printed.and_then(|()| output::print(render(&comparison)));
                comparisons.push(comparison);
            }
            Err(error) => left_out.push(format!("run {}: {error}", at.display())),
        }
    }
    if let (0, Some(data)) = (runs, &arguments.data) {
        left_out.push(format!("no runs (meta.json, requests.jsonl) below {}", data.display()));
    }
    if let Some(file) = &arguments.json {
        let text = format!("{:#}\n", serde_json::to_value(&comparisons)?);
        write_whole(file, |to| to.write_all(text.as_bytes()))
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    write_targets(&comparisons)?;
    if !left_out.is_empty() {
        let predicted = comparisons.len();
        output::complain(format_args!("fidelity: {predicted} of {runs} runs predicted; not used:"));
        left_out.iter().for_each(|why| output::complain(format_args!("  {why}")));
    }
    output::unless_closed(printed)?;
    Ok(left_out.is_empty())
}

fn render(comparison: &Comparison) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = render_to(comparison, &mut text);
    text
}

fn render_to(comparison: &Comparison, text: &mut String) -> fmt::Result {
    writeln!(text, "{}: {} on {}", comparison.run, comparison.model, comparison.device)?;
    writeln!(text, "  {:<6}{:>10}{:>12}{:>12}{:>9}", "", "", "real s", "predicted s", "error %")?;
    for compared in &comparison.metrics {
        let rows = Statistics::NAMES.iter().zip(compared.real.values()).zip(compared.predicted.values());
        for (((name, real), predicted), error) in rows.zip(compared.errors()) {
            let metric = if *name == "mean" { compared.metric.name() } else { "" };
            writeln!(text, "  {metric:<6}{name:>10}{real:>12.4}{predicted:>12.4}{error:>+9.2}")?;
        }
    }
    let Comparison { end: [real, predicted], steps, decode_steps, preemptions, reused_tokens, .. } = comparison;
    writeln!(text, "  last token after {real:.2} s, predicted {predicted:.2} s")?;
    writeln!(
        text,
        "  predicted: {steps} iterations ({decode_steps} of them without prompts), {preemptions} preemptions, \
         {reused_tokens} tokens from the prefix cache"
    )?;
    if let Some(load) = &comparison.load {
        let kv = load.kv.map_or("not recorded".into(), |kv| format!("{kv:.2} points"));
        writeln!(
            text,
            "  mean absolute error over time: running {:.2}, waiting {:.2}, KV share {kv}",
            load.running, load.waiting
        )?;
    }
    if let Some(coverage) = &comparison.coverage {
        let percent = |share: f64| share * 100.0;
        writeln!(
            text,
            "  predicted time: {:.1} % at samples, {:.1} % between, {:.1} % beyond them (by up to {} %), {:.1} % modelled",
            percent(coverage.measured),
            percent(coverage.interpolated),
            percent(coverage.extrapolated),
            coverage.farthest_percent,
            percent(coverage.modelled)
        )?;
    }
    comparison.notes.iter().try_for_each(|note| writeln!(text, "  {note}"))?;
    writeln!(text)
}

/// The bounds on the errors of a metric, in percent; [`None`] where there is none.
fn bound(metric: Metric, statistic: &str) -> Option<f64> {
    match (metric, statistic) {
        (Metric::Ttft, "mean") => Some(5.0),
        (_, "mean") => Some(2.0),
        (_, "p90") => Some(5.0),
        (_, "p99") => Some(8.0),
        _ => None,
    }
}

fn write_targets(comparisons: &[Comparison]) -> Result<(), Failure> {
    let mut rows: Vec<Value> = Vec::new();
    for comparison in comparisons {
        for compared in &comparison.metrics {
            for (name, error) in Statistics::NAMES.into_iter().zip(compared.errors()) {
                let Some(bound) = bound(compared.metric, name) else { continue };
                rows.push(json!({
                    "name": format!("{}: {} {name}, error against the real run", comparison.run, compared.metric.name()),
                    "value": error.abs(),
                    "unit": "%",
                    "bound": bound,
                    "better": "lower",
                    "peer": null,
                    "met": error.abs() <= bound,
                    "measured": false,
                    "threads": 1,
                }));
            }
        }
    }
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let folder = folder.join("targets");
    let file = folder.join("fidelity.json");
    let text = format!("{:#}\n", Value::from(rows));
    let written =
        std::fs::create_dir_all(&folder).and_then(|()| write_whole(&file, |to| to.write_all(text.as_bytes())));
    written.map(drop).map_err(|error| format!("the errors cannot be written to {}: {error}", file.display()).into())
}
