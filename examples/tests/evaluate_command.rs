//! The program `evaluate` from outside: what it refuses, what it writes, and that an interruption does
//! not show.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use slicescheduler::evaluate::Suite;

const SUITE: &str = r#"
seeds = [1, 2]

[[experiments]]
name = "small"
group = "workload"
scenario = "two"
rates = [1.0, 2.0]
policies = ["static", "slice-fill"]
capacity = { least = 1.0, most = 2.0 }

[[experiments]]
name = "noise"
group = "ablation"
scenario = "two"
policies = ["slice-fill"]
variants = [{ name = "none", operator_noise_percent = 0, iteration_noise_percent = 0 }]

[[unsupported]]
what = "magic"
why = "there is none"
"#;

const SCENARIO: &str = r#"
duration = "3s"
policies = ["static"]

[cluster]
nodes = [{ devices = 2, kind = "h100-sxm" }]

[[tenants]]
name = "chat"
class = "latency-sensitive"
model = "llama3-8b"
slo = { ttft = "400ms", tpot = "40ms" }
container = { devices = [0] }
workload = { trace = "trace.csv", format = "azure", stand_in = "azure-conv" }

[[tenants]]
name = "batch"
class = "best-effort"
model = "llama3-8b"
container = { devices = [1] }
workload = { backlog = "azure-conv", window = 8 }
"#;

/// An empty folder with a suite and its scenario.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("evaluate").join(name);
    fs::remove_dir_all(&folder).ok();
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("suite.toml"), SUITE).unwrap();
    fs::write(folder.join("two.toml"), SCENARIO).unwrap();
    folder
}

fn command(folder: &Path, out: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evaluate"));
    command.env("CARGO_TARGET_DIR", folder.join("target"));
    command.arg("--suite").arg(folder.join("suite.toml")).arg("--out").arg(folder.join(out)).args(more);
    command
}

fn accepted(folder: &Path, out: &str, more: &[&str]) -> String {
    let Output { status, stdout, stderr } = command(folder, out, more).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// The exit status for arguments that make no sense.
const USAGE: i32 = 2;
/// The exit status for whatever else is wrong.
const FAILURE: i32 = 1;

/// The exit status and what is said.
fn refused(folder: &Path, more: &[&str]) -> (i32, String) {
    let Output { status, stderr, .. } = command(folder, "out", more).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stderr).unwrap())
}

fn results(folder: &Path, out: &str) -> Vec<u8> {
    fs::read(folder.join(out).join("results.json")).unwrap()
}

#[test]
fn files_and_tables_say_what_ran_and_what_did_not() {
    let folder = folder("whole");
    let printed = accepted(&folder, "out", &["--jobs", "2"]);
    for part in
        ["simulated", "small, rate 2", "slice-fill", "capacity", "targets", "magic", "there is none", "trace.csv"]
    {
        assert!(printed.contains(part), "no {part} in {printed}");
    }
    let value: Value = serde_json::from_slice(&results(&folder, "out")).unwrap();
    assert_eq!(
        (value["points"].as_array().unwrap().len(), &value["stand_ins"]),
        (3, &serde_json::json!(["trace.csv"]))
    );
    let first = &value["points"][0]["policies"][1];
    assert_eq!((&first["policy"], first["over_static"]["tokens"]["samples"].as_u64()), (&"slice-fill".into(), Some(2)));
    assert!(value["capacities"][0]["policies"][0]["tried"].as_array().unwrap().len() >= 2);
    let page = fs::read_to_string(folder.join("out/report.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg") && page.trim_end().ends_with("</html>"));
    for external in ["src=", "<link", "@import", "url(", "https://", "<script"] {
        assert!(!page.contains(external), "the page has {external}");
    }
    let targets: Value =
        serde_json::from_slice(&fs::read(folder.join("target/targets/scheduler.json")).unwrap()).unwrap();
    assert!(targets.as_array().unwrap().iter().any(|row| row["name"] == "memory violations, in all runs"));
}

#[test]
fn an_evaluation_that_was_killed_goes_on_and_gives_the_same_file() {
    let folder = folder("killed");
    accepted(&folder, "whole", &["--jobs", "1"]);
    let runs = folder.join("parts/runs");
    let kept = || fs::read_dir(&runs).map_or(0, |files| files.count());
    let mut child = command(&folder, "parts", &["--jobs", "1"]).stdout(std::process::Stdio::null()).spawn().unwrap();
    while kept() < 2 && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    child.kill().ok();
    child.wait().unwrap();
    // A result that was cut short, as by a full disk.
    let damaged = fs::read_dir(&runs).unwrap().next().unwrap().unwrap().path();
    fs::write(&damaged, "{\"schema\":1,").unwrap();
    accepted(&folder, "parts", &["--jobs", "2"]);
    assert!(results(&folder, "whole") == results(&folder, "parts"));
    let again = accepted(&folder, "parts", &[]);
    assert!(again.contains("\n0 runs made"), "{again}");
}

#[test]
fn files_are_written_where_nobody_reads_what_is_printed() {
    let folder = folder("unread");
    let (_, closed) = std::io::pipe().unwrap();
    let Output { status, stderr, .. } = command(&folder, "out", &["--only", "noise"]).stdout(closed).output().unwrap();
    assert_eq!((status.code(), String::from_utf8(stderr).unwrap().as_str()), (Some(0), ""));
    for file in ["out/results.json", "out/report.html", "target/targets/scheduler.json"] {
        assert!(folder.join(file).is_file(), "{file}");
    }
}

#[test]
fn what_cannot_be_evaluated_is_refused_with_its_name() {
    let folder = folder("refused");
    let says = |status: i32, more: &[&str], parts: &[&str]| {
        let (found, refusal) = refused(&folder, more);
        assert!(found == status && parts.iter().all(|part| refusal.contains(part)), "{found}: {refusal}");
    };
    says(FAILURE, &["--data", "/nowhere"], &["/nowhere: is not a folder"]);
    says(USAGE, &["--only", "medium"], &["there is no experiment \"medium\""]);
    says(USAGE, &["--jobs", "0"], &["0"]);
    fs::write(folder.join("two.toml"), SCENARIO.replace("h100-sxm", "h101")).unwrap();
    says(FAILURE, &[], &["two.toml:6:", "h101"]);
    fs::write(folder.join("two.toml"), SCENARIO).unwrap();
    let slow = "slow = [{ device = 2, percent = 50, from_s = 0, until_s = 1 }]";
    fs::write(folder.join("suite.toml"), SUITE.replace("operator_noise_percent = 0", slow)).unwrap();
    says(FAILURE, &[], &["error: noise, none: slow has device 2: expected device numbers from 0 to 1"]);
    fs::write(folder.join("suite.toml"), SUITE).unwrap();
    fs::remove_file(folder.join("two.toml")).unwrap();
    says(FAILURE, &[], &["two.toml: cannot be read"]);
    fs::write(folder.join("suite.toml"), SUITE.replace("rates", "speeds")).unwrap();
    says(FAILURE, &[], &["unknown field `speeds`"]);
    fs::remove_dir_all(folder.join("out")).unwrap();
    fs::write(folder.join("out"), "a file").unwrap();
    fs::write(folder.join("suite.toml"), SUITE).unwrap();
    says(FAILURE, &[], &["out"]);
}

/// The suites that come with the program.
fn suites() -> [Suite; 2] {
    ["quick", "full"].map(|name| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("scenarios/evaluate/{name}.toml"));
        Suite::parse(&fs::read_to_string(&file).unwrap(), &file).unwrap()
    })
}

#[test]
fn every_scenario_of_the_suites_comes_with_the_program() {
    let program = include_str!("../src/bin/evaluate.rs");
    for suite in suites() {
        let named = suite.experiments.iter().map(|experiment| &experiment.scenario);
        let named = named.chain(suite.small_cases.iter().map(|case| &case.scenario));
        for scenario in named.chain(suite.tuning.iter().flat_map(|tuning| &tuning.scenarios)) {
            assert!(program.contains(&format!("    {scenario:?},\n")), "{scenario} is missing");
        }
    }
}

/// Searches of capacities and of settings come on top.
#[test]
fn the_points_of_the_full_suite_take_at_most_six_hundred_runs() {
    let [_, full] = suites();
    let runs = full.experiments.iter().map(|experiment| {
        let seeds = experiment.seeds_of(&full.seeds).len();
        seeds * experiment.rates.len() * experiment.variants.len() * experiment.policies().len()
    });
    assert!(runs.sum::<usize>() <= 600);
}
