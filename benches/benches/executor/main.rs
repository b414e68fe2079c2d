//! What executing costs: the graph runner by itself, and a decoder on a CPU lane beside the same kernels
//! called directly. One module for each group of rows; its first lines describe the workload.
//!
//! `cargo bench -p slicescheduler-benches --bench executor [-- GROUP...]` writes `target/targets/executor.json`
//! when it runs all groups. The decoder is SmolLM2-135M if `target/models` has it (`scripts/fetch-models`,
//! or `SLICESCHEDULER_MODELS`), else one of the same shape with random weights; which one, is printed.
//! Side-by-side runs with other runners and with candle are programs of their own (`peers/`, `candle/`).

mod decoder;
mod overhead;
mod recall;
mod rig;
mod runner;

use slicescheduler_benches::{Target, print_and_write};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Counts what the runner keeps per task.
#[global_allocator]
static ALLOCATED: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

/// Measures the rows of a group.
type Rows = fn() -> Outcome<Vec<Target>>;

const GROUPS: [(&str, Rows); 3] = [("runner", runner::rows), ("overhead", overhead::rows), ("recall", recall::rows)];

fn main() -> Outcome<()> {
    let chosen: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let mut targets = Vec::new();
    for (name, rows) in GROUPS {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            targets.extend(rows()?);
        }
    }
    if chosen.is_empty() {
        print_and_write("executor", &targets)?;
    } else {
        targets.iter().for_each(|target| println!("{target}"));
    }
    Ok(())
}
