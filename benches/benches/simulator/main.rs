//! What simulating costs. One module for each group of rows; its first lines describe the workload.
//!
//! `cargo bench -p slicescheduler-benches --bench simulator` runs all groups and writes
//! `target/targets/simulator.json`; with names of groups (`-- queue full`) it runs only those and
//! writes nothing. Times are minima over repetitions of processor time: what else runs on the machine only
//! adds.

mod bind;
mod full;
mod queue;
mod scale;
mod support;
mod unrolled;
mod what_if;

use slicescheduler_benches::{Target, print_and_write};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Measures the rows of a group.
type Rows = fn() -> Outcome<Vec<Target>>;

/// The groups of rows, in the order in which they run.
const GROUPS: [(&str, Rows); 6] = [
    ("bind", bind::rows),
    ("queue", queue::rows),
    ("full", full::rows),
    ("what-if", what_if::rows),
    ("unrolled", unrolled::rows),
    ("scale", scale::rows),
];

fn main() -> Outcome<()> {
    let chosen: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let mut targets = Vec::new();
    for (name, rows) in GROUPS {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            targets.extend(rows()?);
        }
    }
    if chosen.is_empty() {
        print_and_write("simulator", &targets)?;
    } else {
        targets.iter().for_each(|target| println!("{target}"));
    }
    Ok(())
}
