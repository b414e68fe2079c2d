//! Replays a multi-tenant workload under several policies and reports what each reached.
//!
//! ```text
//! cargo run --release --bin replay
//! cargo run --release --bin replay -- --scenario examples/scenarios/azure.toml --data DIR --out out
//! cargo run --release --bin replay -- --device cpu
//! ```

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use slicescheduler::replay::{Progress, ReplayOptions, replay, replay_on_cpu};
use slicescheduler::report::{RunRecord, Summary, html, perfetto, table, write_whole};
use slicescheduler::scenario::{DeviceKind, Scenario, Tenant};
use slicescheduler_examples::{Failure, Stopwatch, WrongUsage, conclude, output, traces_folder};
use slicescheduler_gmg::plan::Clock;
use slicescheduler_gmg::units::Nanos;

/// Replay a multi-tenant inference workload under several scheduling policies.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Scenario file; the embedded one if absent.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Folder with the traces that the scenario names.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Policies to run, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    policy: Vec<String>,
    /// Seed of everything random.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,
    /// How long requests arrive, for instance 30m.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    duration: Option<String>,
    /// Factor on every arrival rate.
    #[arg(long, value_name = "FACTOR", allow_hyphen_values = true)]
    rate_scale: Option<f64>,
    /// Where the work runs.
    #[arg(long, value_enum, default_value_t = Device::Sim)]
    device: Device,
    /// Folder for summary.json, report.html and timeline.json.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print what delayed the N requests of each policy that violated their service level most.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "json", allow_negative_numbers = true)]
    explain: usize,
    /// Print the summary as JSON instead of the table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    /// A simulated cluster.
    Sim,
    /// Lanes of this machine, with a tiny decoder.
    Cpu,
}

fn main() -> ExitCode {
    conclude(run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let data = traces_folder(arguments.data.as_deref())?;
    let scenario = scenario(arguments, data)?;
    let name = arguments.scenario.as_ref().map_or_else(
        || "default workload".to_owned(),
        |path| path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
    );
    if let Some(out) = arguments.out.as_ref().filter(|out| out.exists() && !out.is_dir()) {
        return Err(format!("{}: is not a folder; --out takes one, or the name of a new one", out.display()).into());
    }
    if let Some(out) = &arguments.out {
        // Better now than after an hour.
        make_folder(out)?;
    }
    let clock: Arc<dyn Clock> = Arc::new(Stopwatch::start());
    let mut progress = Bar::default();
    let (summary, runs) = match arguments.device {
        Device::Sim => {
            let options =
                ReplayOptions { stopwatch: Some(clock), explain: arguments.explain, ..ReplayOptions::default() };
            replay(&scenario, &name, &options, &mut progress)?
        }
        Device::Cpu => {
            let tiny = |tenant: &Tenant| matches!(tenant.model.name().as_ref(), "tiny" | "tiny-moe");
            let at_home = scenario.cluster.nodes.iter().all(|node| node.kind == DeviceKind::Cpu);
            if !at_home || !scenario.tenants.iter().all(tiny) {
                output::complain(
                    "note: every model is replaced by a tiny decoder, every device by a lane of this machine",
                );
            }
            replay_on_cpu(&scenario, &name, &clock, arguments.explain, &mut progress)?
        }
    };
    progress.finish();
    let mut text =
        if arguments.json { serde_json::to_string_pretty(&summary)? + "\n" } else { table::render(&summary) };
    for run in &runs {
        for late in &run.late {
            let tenant = run.tenants.get(late.tenant).map_or("", |label| &label.name);
            text.push_str(&format!("\n{}, {tenant}: {late}\n", run.summary.name));
        }
    }
    // Each is of use without the other.
    let written = arguments.out.as_ref().map_or(Ok(()), |out| write_all(out, &summary, &runs));
    let printed = output::print(text);
    written?;
    Ok(printed?)
}

fn scenario(arguments: &Arguments, data: Option<&Path>) -> Result<Scenario, Failure> {
    let mut scenario = match (&arguments.scenario, arguments.device) {
        (Some(path), _) => Scenario::load(path, data)?,
        (None, Device::Sim) => Scenario::embedded()?,
        (None, Device::Cpu) => Scenario::embedded_cpu()?,
    };
    if let Some(seed) = arguments.seed {
        scenario.seed = seed;
    }
    if let Some(factor) = arguments.rate_scale {
        scenario.scale_rate(factor).map_err(WrongUsage::of)?;
    }
    if let Some(duration) = &arguments.duration {
        scenario.set_duration(duration).map_err(WrongUsage::of)?;
    }
    if !arguments.policy.is_empty() {
        scenario.set_policies(arguments.policy.iter().map(String::as_str)).map_err(WrongUsage::of)?;
    }
    Ok(scenario)
}

/// Makes a folder, unless there is one, and sees whether files can be written in it.
fn make_folder(out: &Path) -> Result<(), Failure> {
    let folder = |error| format!("{}: cannot be made a folder: {error}", out.display());
    std::fs::create_dir_all(out).map_err(folder)?;
    let trial = out.join(format!(".trial.{}.unfinished", std::process::id()));
    let written = std::fs::File::create_new(&trial).and_then(|_| std::fs::remove_file(&trial));
    written.map_err(|error| format!("{}: nothing can be written there: {error}", out.display()).into())
}

/// Writes every file whole or not at all.
fn write_all(out: &Path, summary: &Summary, runs: &[RunRecord]) -> Result<(), Failure> {
    let write = |name: &str, write: &dyn Fn(&mut BufWriter<File>) -> io::Result<()>| -> Result<(), Failure> {
        let path = out.join(name);
        let written = write_whole(&path, |file| write(file));
        written.map(drop).map_err(|error| format!("{}: cannot be written: {error}", path.display()).into())
    };
    write("summary.json", &|file| {
        serde_json::to_writer_pretty(&mut *file, summary)?;
        writeln!(file)
    })?;
    write("report.html", &|file| html::write(summary, runs, file))?;
    write("timeline.json", &|file| perfetto::write(runs, file))
}

/// A progress bar on a terminal, nothing elsewhere.
#[derive(Default)]
struct Bar {
    bar: Option<(String, ProgressBar)>,
}

impl Bar {
    fn finish(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish();
        }
    }
}

impl Progress for Bar {
    fn advance(&mut self, policy: &str, now: Nanos, end: Nanos) {
        if self.bar.as_ref().is_none_or(|(name, _)| name != policy) {
            self.finish();
            let bar = ProgressBar::new(end.get() / 1_000_000);
            if let Ok(style) = ProgressStyle::with_template("{prefix:14} {wide_bar} {percent:>3} %  {elapsed}") {
                bar.set_style(style);
            }
            bar.set_prefix(policy.to_owned());
            self.bar = Some((policy.to_owned(), bar));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_position(now.get() / 1_000_000);
        }
    }
}
