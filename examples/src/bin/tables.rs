//! How well tables of measured operators predict what they leave out.
//!
//! `tables --data DIR` reads the published profiles in `DIR/profiles`, or in `DIR` itself, and prints for every
//! table the error of estimating each of its samples from the others (leave-one-out), and that of
//! reading half-way between the values of each axis alone. The first is what a hole in a table
//! costs, the second what dims between the measured ones cost; both are of whole operators, not
//! of iterations, whose errors partly cancel. Then it fits a roofline to the tables of each device
//! and judges it on the other devices: the error of what is estimated for unseen hardware.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use slicescheduler_benches::{Target, lines};
use slicescheduler_examples::output;
use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_simulator::cost::{Profile, fit};
use slicescheduler_simulator::profile::{
    DeviceProfile, ErrorSummary, Measure, ProfileError, aiconfigurator, splitwise, vidur,
};

/// Prints the errors of the tables of measured operators.
#[derive(Parser)]
#[command(after_help = "The figures are also written to targets/fidelity-tables.json in the build's target folder, \
                        $CARGO_TARGET_DIR if that is set.")]
struct Options {
    /// The folder of the published data: its folder `profiles`, or itself, holds `aiconfigurator`, `vidur` or
    /// `splitwise_sim_perf_model.csv`.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

/// A profile and where it comes from.
struct Source {
    name: String,
    profile: DeviceProfile,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let within = options.data.join("profiles");
    let folder = if within.is_dir() { within } else { options.data };
    let sources = match read_all(&folder) {
        Ok(sources) if sources.is_empty() => {
            output::complain(format_args!(
                "tables: no profiles in {}: expected aiconfigurator/h100_sxm or h200_sxm, vidur/vidur_*.csv or \
                 splitwise_sim_perf_model.csv",
                folder.display()
            ));
            return ExitCode::FAILURE;
        }
        Ok(sources) => sources,
        Err(error) => {
            output::complain(format_args!("tables: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let (mut families, mut text) = (Families::default(), String::new());
    // Writing to a String cannot fail.
    let _ = sources.iter().try_for_each(|source| put_source(source, &mut families, &mut text));
    let _ = put_rooflines(&sources, &mut text);
    let targets = families.targets();
    let written = slicescheduler_benches::write("fidelity-tables", &targets);
    let printed = output::unless_closed(output::print(format_args!("{text}\n{}", lines(&targets))));
    match written.and(printed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(format_args!("tables: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn read_all(profiles: &Path) -> Result<Vec<Source>, ProfileError> {
    let mut sources = Vec::new();
    for (folder, device) in [("h100_sxm", DeviceSpec::h100_sxm()), ("h200_sxm", DeviceSpec::h200_sxm())] {
        let path = profiles.join("aiconfigurator").join(folder);
        if path.exists() {
            let profile = aiconfigurator::read_folder(&path, &device)?;
            sources.push(Source { name: format!("aiconfigurator {folder}"), profile });
        }
    }
    type Reader = fn(&Path, &DeviceSpec) -> Result<DeviceProfile, ProfileError>;
    let files: [(&str, Reader, DeviceSpec); 4] = [
        ("vidur_h100_Llama-2-7b_mlp.csv", vidur::read_mlp, DeviceSpec::h100_sxm()),
        ("vidur_a100_Llama-2-70b_tp2_attention.csv", vidur::read_attention, DeviceSpec::a100_sxm_80()),
        ("vidur_net_h100_dgx_all_reduce.csv", vidur::read_network, DeviceSpec::h100_sxm()),
        ("vidur_net_h100_dgx_send_recv.csv", vidur::read_network, DeviceSpec::h100_sxm()),
    ];
    for (file, read, device) in files {
        let path = profiles.join("vidur").join(file);
        if path.exists() {
            sources.push(Source { name: file.trim_end_matches(".csv").into(), profile: read(&path, &device)? });
        }
    }
    let path = profiles.join("splitwise_sim_perf_model.csv");
    if path.exists() {
        let profiles = splitwise::read(&path, splitwise::known_device)?;
        sources
            .extend(profiles.into_iter().map(|(name, profile)| Source { name: format!("splitwise {name}"), profile }));
    }
    Ok(sources)
}

fn put_source(source: &Source, families: &mut Families, text: &mut String) -> fmt::Result {
    writeln!(text, "\n{} ({})", source.name, source.profile.device().name)?;
    writeln!(
        text,
        "  {:<46} {:>7} {:>7} | leave one out: {:>6} {:>6} {:>6} | between",
        "table", "samples", "judged", "mean", "median", "p90"
    )?;
    for (measure, table) in source.profile.tables() {
        let signed = table.leave_one_out();
        let errors = ErrorSummary::of(signed.iter().copied());
        let percent = |share: f64| format!("{:.2}%", share * 100.0);
        let axes = table.axes().iter().enumerate().map(|(index, axis)| {
            let between = ErrorSummary::of(table.between_knots(index));
            if between.count == 0 { String::new() } else { format!("{} {} ", axis.name(), percent(between.mean)) }
        });
        writeln!(
            text,
            "  {:<46} {:>7} {:>7} | {:>21} {:>6} {:>6} | {}",
            measure.to_string(),
            table.samples(),
            errors.count,
            percent(errors.mean),
            percent(errors.median),
            percent(errors.p90),
            axes.collect::<String>()
        )?;
        families.add(measure, &signed);
    }
    Ok(())
}

/// Fits a roofline to the tables of each device and judges it on all.
fn put_rooflines(sources: &[Source], text: &mut String) -> fmt::Result {
    let mut devices: BTreeMap<&str, Vec<&DeviceProfile>> = BTreeMap::new();
    for source in sources {
        devices.entry(&source.profile.device().name).or_default().push(&source.profile);
    }
    writeln!(text, "\nrooflines fitted to one device, mean error on each")?;
    for (name, profiles) in &devices {
        let fitted = fit(profiles.iter().copied(), Profile::GPU);
        for (family, own) in &fitted.errors {
            let efficiency = fitted.profile.family(*family);
            write!(
                text,
                "  {name:<12} {:<10} compute {:.2}, bandwidth {:.2}, latency {:>5.1} us | fit {:>5.1}%",
                format!("{family:?}"),
                efficiency.compute,
                efficiency.bandwidth,
                efficiency.latency.get() as f64 / 1e3,
                own.mean * 100.0
            )?;
            for source in sources.iter().filter(|source| source.profile.device().name != *name) {
                let judged = fitted.profile.judge(&source.profile);
                if let Some((_, errors)) = judged.iter().find(|(of, _)| of == family) {
                    write!(text, ", {} {:.1}%", source.name, errors.mean * 100.0)?;
                }
            }
            writeln!(text)?;
        }
    }
    Ok(())
}

/// Errors of all tables of a kind together.
#[derive(Default)]
struct Families {
    matmul: Vec<f64>,
    prefill: Vec<f64>,
    decode: Vec<f64>,
}

impl Families {
    fn add(&mut self, measure: &Measure, errors: &[f64]) {
        let family = match measure {
            Measure::MatMul { .. } => &mut self.matmul,
            Measure::Prefill(_) | Measure::Chunk(_) => &mut self.prefill,
            Measure::Decode(_) => &mut self.decode,
            _ => return,
        };
        family.extend_from_slice(errors);
    }

    fn targets(&self) -> Vec<Target> {
        let percent = |errors: &[f64]| ErrorSummary::of(errors.iter().copied()).mean * 100.0;
        [
            ("tables: leave-one-out error of matrix products, mean", &self.matmul, 3.0),
            ("tables: leave-one-out error of prefill attention, mean", &self.prefill, 3.0),
            ("tables: leave-one-out error of decode attention, mean", &self.decode, 3.0),
        ]
        .into_iter()
        .filter(|(_, errors, _)| !errors.is_empty())
        .map(|(name, errors, bound)| Target::at_most(name, percent(errors), "%", bound))
        .collect()
    }
}
