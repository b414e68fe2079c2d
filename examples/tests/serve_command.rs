//! What `serve` refuses before it begins, and that it ends.

#![cfg(feature = "models")]
#![allow(clippy::unwrap_used, reason = "a test may fail by it")]

use std::process::{Command, Output};

fn serve(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_serve")).args(["--tenant", "a=tiny"]).args(arguments).output().unwrap()
}

fn refused(arguments: &[&str], status: i32, reason: &str) {
    let output = serve(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{errors}");
    assert!(errors.contains(reason) && !errors.contains("panicked"), "{errors}");
}

#[test]
fn loads_that_are_none_are_refused() {
    for rate in ["1e-300", "0", "-1", "NaN", "inf", "1e5"] {
        refused(&[&format!("--load={rate}")], 2, "expected 0.000001 to 10000");
    }
}

#[test]
fn the_slowest_load_ends_with_its_time() {
    let output = serve(&["--load", "1e-6", "--burst", "1000", "--duration", "0.2"]);
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("measured"), "{errors}");
}

#[test]
fn answers_are_counted_as_they_come() {
    let output = serve(&["--load", "50", "--duration", "1", "--max-tokens", "4"]);
    let said = String::from_utf8_lossy(&output.stdout);
    let row = said.lines().find(|line| line.starts_with("a ")).unwrap();
    let figures: Vec<&str> = row.split_whitespace().collect();
    let [answered, unfinished, refused, tokens] = [1, 2, 3, 4].map(|at| figures[at].parse::<u32>().unwrap());
    assert!(answered > 0 && (unfinished, refused, tokens) == (0, 0, answered * 4), "{said}");
}

/// 256 devices of a tebibyte each, and more than can be counted.
#[cfg(target_os = "linux")]
#[test]
fn devices_that_no_machine_has_memory_for_are_refused() {
    for mib in ["1048576", "18446744073709551615"] {
        refused(&["--devices", "256", "--memory-mib", mib], 1, "256 devices of");
    }
}
