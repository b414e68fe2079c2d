//! Every program ends with 2 if its arguments make no sense, and with 1 if anything else is wrong.

#![allow(clippy::unwrap_used, reason = "a test may fail by it")]

use std::process::Command;

/// A program, arguments that make no sense, and arguments that name what is not there.
const PROGRAMS: &[(Option<&str>, &[&str], &[&str])] = &[
    (Some(env!("CARGO_BIN_EXE_replay")), &["--policy", "none"], &["--scenario", "/nowhere.toml"]),
    (Some(env!("CARGO_BIN_EXE_evaluate")), &["--quick", "--only", "none"], &["--suite", "/nowhere.toml"]),
    (Some(env!("CARGO_BIN_EXE_check-summary")), &[], &["/nowhere.json"]),
    (Some(env!("CARGO_BIN_EXE_fidelity")), &[], &["--data", "/nowhere"]),
    (Some(env!("CARGO_BIN_EXE_tables")), &["--frobnicate"], &["--data", "/nowhere"]),
    (Some(env!("CARGO_BIN_EXE_graph")), &[], &["import", "/nowhere.et"]),
    // Not there without the feature `models`.
    (option_env!("CARGO_BIN_EXE_serve"), &[], &["--tenant", "chat=/nowhere.gguf"]),
];

/// Options that take numbers, none of which is negative.
const NUMBERS: &[(Option<&str>, &[&str], &[&str])] = &[
    (Some(env!("CARGO_BIN_EXE_replay")), &[], &["--seed", "--explain"]),
    (Some(env!("CARGO_BIN_EXE_evaluate")), &["--quick"], &["--jobs"]),
    (
        Some(env!("CARGO_BIN_EXE_graph")),
        &["import", "x"],
        &[
            "--top",
            "--max-ops",
            "--max-edges",
            "--max-record-bytes",
            "--max-bytes",
            "--max-name-bytes",
            "--max-duration",
        ],
    ),
    (
        Some(env!("CARGO_BIN_EXE_graph")),
        &["export", "--template", "tiny", "--to", "dot", "--out", "x"],
        &["--tokens", "--cached", "--tensor-parallel"],
    ),
    (
        option_env!("CARGO_BIN_EXE_serve"),
        &["--tenant", "a=tiny"],
        &["--load", "--burst", "--duration", "--max-tokens", "--devices", "--memory-mib", "--seed"],
    ),
];

#[test]
fn a_negative_number_is_refused_as_the_value_of_its_option() {
    for (program, beside, options) in NUMBERS {
        let Some(program) = program else { continue };
        for option in *options {
            let output = Command::new(program).args(*beside).args([option, "-1"]).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            let expected = format!("invalid value '-1' for '{option} <");
            assert!(output.status.code() == Some(2) && errors.contains(&expected), "{program} {option}: {errors}");
        }
    }
}

#[test]
fn wrong_arguments_are_told_from_everything_else() {
    for (program, senseless, absent) in PROGRAMS {
        let Some(program) = program else { continue };
        for (status, arguments) in [(2, senseless), (1, absent)] {
            let output = Command::new(program).args(*arguments).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(status), "{program} {arguments:?}: {errors}");
            assert!(!errors.is_empty(), "{program} {arguments:?} says why");
        }
    }
}
