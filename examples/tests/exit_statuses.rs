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
