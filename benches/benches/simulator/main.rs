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

use slicescheduler_benches::{Group, run_groups};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The groups of rows, in the order in which they run.
const GROUPS: [Group; 6] = [
    ("bind", bind::rows),
    ("queue", queue::rows),
    ("full", full::rows),
    ("what-if", what_if::rows),
    ("unrolled", unrolled::rows),
    ("scale", scale::rows),
];

fn main() -> Outcome<()> {
    run_groups("simulator", &GROUPS)
}
