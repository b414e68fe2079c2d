//! The programs `fidelity` and `tables` as they are called: what they ask for, and what they say when they cannot go on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs `program` in `folder`, without a target folder of its own.
fn call(program: &str, folder: &Path, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).current_dir(folder).env_remove("CARGO_TARGET_DIR").output().unwrap()
}

fn empty(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fidelity-commands").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const FIDELITY: &str = env!("CARGO_BIN_EXE_fidelity");
const TABLES: &str = env!("CARGO_BIN_EXE_tables");

#[test]
fn help_says_what_a_program_does_and_what_it_writes() {
    let folder = empty("help");
    for (program, about, written) in [
        (FIDELITY, "Predicts real serving runs", "targets/fidelity.json"),
        (TABLES, "Prints the errors of the tables", "targets/fidelity-tables.json"),
    ] {
        let help = text(&call(program, &folder, &["--help"]).stdout);
        assert!(help.starts_with(about) && help.contains(written), "{help}");
    }
}

#[test]
fn both_ways_to_name_a_run_are_asked_for() {
    let output = call(FIDELITY, &empty("none"), &[]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("expected --data DIR, or --run DIR with --profile DIR"), "{error}");
    assert!(error.contains("Usage: fidelity "), "{error}");
}

#[test]
fn a_folder_without_profiles_is_named() {
    let folder = empty("profiles");
    let within = folder.join("profiles");
    let error = |data: &Path| text(&call(TABLES, &folder, &["--data", data.to_str().unwrap()]).stderr);
    assert!(error(&folder).contains(&format!("no profiles in {}: expected aiconfigurator/", folder.display())));
    std::fs::create_dir_all(within.join("vidur")).unwrap();
    std::fs::write(within.join("vidur/vidur_net_h100_dgx_send_recv.csv"), "nothing\n").unwrap();
    for data in [&folder, &within] {
        let error = error(data);
        assert!(error.starts_with("tables: ") && error.contains("dgx_send_recv.csv: no column"), "{error}");
    }
}

/// A file lies where the folder for the figures should be.
#[test]
fn a_file_that_cannot_be_written_is_named() {
    let data = std::env::var_os("SLICESCHEDULER_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"), PathBuf::from);
    if !data.join("vllm-runs").is_dir() {
        assert!(std::env::var_os("CI").is_none(), "no vllm-runs in {}: set SLICESCHEDULER_DATA", data.display());
        eprintln!("skipped: no vllm-runs in {}", data.display());
        return;
    }
    let data = data.canonicalize().unwrap();
    let folder = empty("unwritable");
    std::fs::write(folder.join("target"), "").unwrap();
    let run = data.join("vllm-runs/RTXPRO6000-Llama-3.1-8B");
    let profile = data.join("profiles/llmservingsim/RTXPRO6000/Llama-3.1-8B");
    let arguments = ["--run", run.to_str().unwrap(), "--profile", profile.to_str().unwrap()];
    let output = call(FIDELITY, &folder, &arguments);
    let error = text(&output.stderr);
    assert!(!output.status.success() && text(&output.stdout).contains("last token after"), "{error}");
    let file = Path::new("target").join("targets").join("fidelity.json");
    assert!(error.contains(&format!("cannot be written to {}: ", file.display())), "{error}");
}

/// Nothing but a profile and a run that are no such thing: both are named, with the reason.
#[test]
fn what_cannot_be_used_is_listed() {
    let folder = empty("left-out");
    for (name, file) in [("profile", "meta.yaml"), ("run", "meta.json"), ("run", "requests.jsonl")] {
        std::fs::create_dir_all(folder.join(name).join("tp1")).unwrap();
        std::fs::write(folder.join(name).join(file), "[").unwrap();
    }
    let output = call(FIDELITY, &folder, &["--data", folder.to_str().unwrap()]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<_> = error.lines().collect();
    let [first, profile, run] = lines[..] else { panic!("{error}") };
    assert_eq!(first, "fidelity: 0 of 1 runs predicted; not used:");
    assert!(profile.contains("profile/meta.yaml"), "{error}");
    let folder = folder.join("run");
    assert!(run.starts_with(&format!("  run {}: ", folder.display())) && run.contains("meta.json, line 1"), "{error}");
}

/// A folder whose path is longer than a system call takes: nobody can read it, whoever he is.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_cannot_be_read_is_listed_and_ends_no_search() {
    let mut data = empty("unreadable");
    while data.as_os_str().len() < 3850 {
        data.push("d".repeat(200));
    }
    std::fs::create_dir_all(data.join("run")).unwrap();
    for file in ["meta.json", "requests.jsonl"] {
        std::fs::write(data.join("run").join(file), "[").unwrap();
    }
    // A path of 4,096 bytes is too long, so the folder is made from within the one that it is in.
    let deep = "a".repeat(250);
    assert!(Command::new("mkdir").arg(&deep).current_dir(&data).status().unwrap().success());
    let output = call(FIDELITY, &empty("unreadable-target"), &["--data", data.to_str().unwrap()]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let lines: Vec<_> = error.lines().collect();
    let [first, folder, run] = lines[..] else { panic!("{error}") };
    assert_eq!(first, "fidelity: 0 of 1 runs predicted; not used:");
    assert!(folder.contains(&format!("/{deep}: ")), "{folder}");
    assert!(run.contains("/run: ") && run.contains("meta.json, line 1"), "{run}");
}
