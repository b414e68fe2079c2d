//! Sets every policy beside every other on many workloads, and says what each reached.
//!
//! ```text
//! cargo run --release --bin evaluate -- --quick
//! cargo run --release --bin evaluate -- --full --data DIR --out out
//! cargo run --release --bin evaluate -- --quick --only azure-4
//! ```
//!
//! Results of single runs are kept in the folder `runs` of `--out`, so an evaluation that was interrupted
//! goes on where it was. Beside them: `results.json` (everything that was simulated, the same on every
//! machine), `measured.json` (what decisions and runs cost here), `report.html` and `report.md`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{ArgGroup, Parser};
use indicatif::{ProgressBar, ProgressStyle};
use slicescheduler::evaluate::{
    Case, EvaluateError, Folder, Inputs, Outcome, Row, Runner, Scenarios, Store, Suite, Watcher, evaluate, fingerprint,
    page, table,
};
use slicescheduler::report::write_whole;
use slicescheduler_benches::{Better, Target, lines};
use slicescheduler_examples::{Failure, Stopwatch, WrongUsage, conclude, output, traces_folder};

/// Evaluate scheduling policies on many workloads.
#[derive(Debug, Parser)]
#[command(version)]
#[command(group(ArgGroup::new("what").args(["quick", "full", "suite"]).required(true)))]
#[command(after_help = "The figures are also written to targets/scheduler.json in the build's target folder, \
                        $CARGO_TARGET_DIR if that is set.")]
struct Arguments {
    /// The short suite: minutes on two cores.
    #[arg(long)]
    quick: bool,
    /// The whole suite: about an hour on two cores.
    #[arg(long)]
    full: bool,
    /// A suite of your own; its scenarios lie beside it.
    #[arg(long, value_name = "FILE")]
    suite: Option<PathBuf>,
    /// Run one experiment, or one group of them: workload, regime or ablation.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Folder with the traces that scenarios name; generators stand in for those that are missing.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Folder for results.
    #[arg(long, value_name = "DIR", default_value = "target/evaluate")]
    out: PathBuf,
    /// Runs at a time; as many as there are cores if absent.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
}

fn main() -> ExitCode {
    conclude(run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let data = traces_folder(arguments.data.as_deref())?;
    let (name, file, text, scenarios) = suite(arguments)?;
    let mut suite = Suite::parse(&text, &file)?;
    if let Some(only) = &arguments.only {
        suite.keep_only(only, &file).map_err(WrongUsage::of)?;
    }
    let watcher = Bar::new();
    let store = Store::open(&arguments.out.join("runs"))?;
    let build = format!("{:032x}", fingerprint(&std::env::current_exe()?)?);
    let mut runner = Runner::new(store, build, &watcher);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    runner.threads = arguments.jobs.map_or(cores, usize::from);
    runner.stopwatch = Some(Arc::new(Stopwatch::start()));
    let inputs = Inputs { name: &name, suite: &suite, scenarios: &*scenarios, data };
    let (evaluation, measured) = evaluate(&inputs, &runner)?;
    watcher.0.finish_and_clear();

    let mut html = Vec::new();
    page::write(&evaluation, &measured, &mut html)?;
    let write = |name: &str, bytes: &[u8]| {
        let file = arguments.out.join(name);
        let written = write_whole(&file, |to| to.write_all(bytes));
        written.map_err(|source| EvaluateError::Write { file, source })
    };
    write("results.json", &serde_json::to_vec_pretty(&evaluation)?)?;
    write("measured.json", &serde_json::to_vec_pretty(&measured)?)?;
    write("report.html", &html)?;
    write("report.md", table::render(&evaluation, &measured, true).as_bytes())?;
    let rows: Vec<Target> = evaluation.targets.iter().map(|row| target(row, runner.threads)).collect();
    slicescheduler_benches::write("scheduler", &rows)?;
    let (made, kept) = runner.counts();
    output::print(format_args!(
        "{}{}\n{made} runs made, {kept} results kept; {}\n",
        table::render(&evaluation, &measured, false),
        lines(&rows),
        arguments.out.join("report.html").display()
    ))?;
    Ok(())
}

/// A name, the file, its text, and where its scenarios are.
type Found = (String, PathBuf, String, Box<dyn Scenarios>);

fn suite(arguments: &Arguments) -> Result<Found, Failure> {
    let embedded = |name: &str, text: &str| (name.to_owned(), PathBuf::from(format!("{name}.toml")), text.to_owned());
    let (name, file, text) = match &arguments.suite {
        None if arguments.full => embedded("full", include_str!("../../scenarios/evaluate/full.toml")),
        None => embedded("quick", include_str!("../../scenarios/evaluate/quick.toml")),
        Some(file) => {
            let text =
                std::fs::read_to_string(file).map_err(|source| EvaluateError::Read { file: file.clone(), source })?;
            let name = file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
            let folder = Folder(file.parent().unwrap_or(Path::new("")).to_owned());
            return Ok((name, file.clone(), text, Box::new(folder)));
        }
    };
    Ok((name, file, text, Box::new(Embedded)))
}

/// The scenario files that came with the program.
struct Embedded;

macro_rules! files {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../scenarios/evaluate/", $name, ".toml")))),+]
    };
}

const SCENARIOS: &[(&str, &str)] = files![
    "azure-4",
    "azure-8",
    "azure-16",
    "devices-32",
    "event-storm",
    "experts",
    "heterogeneous",
    "mixed-58-42",
    "models",
    "mooncake",
    "reclaim-storm",
    "saturated",
    "servegen",
    "sixteen-models",
    "small",
    "tensor-parallel",
    "two-13b",
];

impl Scenarios for Embedded {
    fn text(&self, name: &str) -> Result<(PathBuf, String), EvaluateError> {
        let file = PathBuf::from(format!("{name}.toml"));
        match SCENARIOS.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Ok((file, (*text).to_owned())),
            None => Err(EvaluateError::Read { file, source: std::io::ErrorKind::NotFound.into() }),
        }
    }
}

fn target(row: &Row, threads: usize) -> Target {
    Target {
        // Targets are named for the life of the program; there are a few dozen.
        name: row.name.clone().leak(),
        value: row.value,
        unit: row.unit.clone().leak(),
        bound: row.bound,
        better: if row.more_is_better { Better::Higher } else { Better::Lower },
        peer: None,
        measured: false,
        threads: threads as u32,
    }
}

/// Counts runs on a terminal; says elsewhere only what is wrong.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::no_length();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {pos} runs  {elapsed}  {msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }
}

impl Watcher for Bar {
    fn ran(&self, case: &Case, _outcome: &Outcome, _kept: bool) {
        self.0.set_message(case.label.clone());
        self.0.inc(1);
    }

    fn damaged(&self, case: &Case, why: &str) {
        let note = format!("note: the kept result of {} is damaged, it runs again: {why}", case.label);
        self.0.suspend(|| output::complain(note));
    }
}
