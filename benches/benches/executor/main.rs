//! What executing costs: the graph runner by itself, and a decoder on a CPU lane beside the same kernels
//! called directly. One module for each group of rows; its first lines describe the workload.
//!
//! `cargo bench -p slicescheduler-benches --bench executor [-- GROUP...]` writes `target/targets/executor.json`
//! when it runs all groups. The decoder is SmolLM2-135M if `target/models` has it (`scripts/fetch-models`,
//! or `SLICESCHEDULER_MODELS`), else one of the same shape with random weights; which one, is printed.
//! Side-by-side runs with other runners and with candle are programs of their own (`peers/`, `candle/`).

mod decoder;
mod instructions;
mod overhead;
mod recall;
mod rig;
mod runner;

use slicescheduler_benches::{Group, run_groups};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Counts what the runner keeps per task.
#[global_allocator]
static ALLOCATED: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

const GROUPS: [Group; 4] = [
    ("runner", runner::rows),
    ("overhead", overhead::rows),
    ("recall", recall::rows),
    ("instructions", instructions::rows),
];

fn main() -> Outcome<()> {
    run_groups("executor", &GROUPS)
}
