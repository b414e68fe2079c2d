//! What programs do where nobody reads their standard output, or it is full.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail by it")]

use std::fs::{self, File};
use std::io::pipe;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A fresh folder of one test.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("standard_output").join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn run(program: &str, arguments: &[&str], out: impl Into<Stdio>) -> Output {
    // The figures of `evaluate` go to a folder of the build's.
    let targets = folder(Path::new(program).file_name().unwrap().to_str().unwrap());
    let mut command = Command::new(program);
    command.args(arguments).env("CARGO_TARGET_DIR", targets).stdout(out).output().unwrap()
}

/// A pipe that nobody reads.
fn closed() -> Stdio {
    let (_, write) = pipe().unwrap();
    write.into()
}

#[test]
fn replay_writes_its_files_and_ends_well_where_nobody_reads() {
    let out = folder("closed");
    let arguments = ["--duration", "35s", "--policy", "static", "--explain", "1", "--out", out.to_str().unwrap()];
    let output = run(env!("CARGO_BIN_EXE_replay"), &arguments, closed());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""));
    for file in ["summary.json", "report.html", "timeline.json"] {
        assert!(out.join(file).is_file(), "{file}");
    }
}

#[test]
fn a_summary_that_breaks_its_promise_is_refused_whether_anybody_reads_or_not() {
    let out = folder("promise");
    let arguments = ["--duration", "35s", "--policy", "static", "--out", out.to_str().unwrap()];
    assert!(run(env!("CARGO_BIN_EXE_replay"), &arguments, Stdio::null()).status.success());
    let summary = out.join("summary.json");
    let output = run(env!("CARGO_BIN_EXE_check-summary"), &[summary.to_str().unwrap()], closed());
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(1), &b""[..]), "slice-fill was not run");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error_that_names_standard_output_after_files_are_written() {
    let out = folder("full");
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let out = out.to_str().unwrap();
    let replay = ["--duration", "35s", "--policy", "static", "--out", out];
    let graph = ["export", "--template", "tiny", "--to", "dot", "--out", "-"];
    let programs: [(&str, &[&str]); 2] =
        [(env!("CARGO_BIN_EXE_replay"), &replay), (env!("CARGO_BIN_EXE_graph"), &graph)];
    for (program, arguments) in programs {
        let output = run(program, arguments, full());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{program}: {errors}");
        assert!(errors.starts_with("error: standard output: cannot be written: "), "{program}: {errors}");
        assert_eq!(errors.lines().count(), 1, "every cause once: {errors}");
    }
    assert!(Path::new(out).join("summary.json").is_file());
    // Standard error may be full too.
    let mut silent = Command::new(env!("CARGO_BIN_EXE_replay"));
    let status = silent.args(["--scenario", "/nowhere.toml"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
#[cfg(feature = "models")]
fn serve_ends_well_where_nobody_reads() {
    let asked = ["--tenant", "a=tiny", "--duration", "1s"];
    let output = run(env!("CARGO_BIN_EXE_serve"), &asked, closed());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), errors.contains("panicked")), (Some(0), false), "{errors}");
}
