//! What is said on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use slicescheduler::Builder;
use slicescheduler::scheduler::{IdlePriority, SliceFill, SliceFillOptions, StaticContainers};

/// Serve real models to several tenants on the cores of this machine.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Arguments {
    /// A tenant and its model: NAME=MODEL or NAME=MODEL,best-effort. A model is `smollm2` or `minilm` (see
    /// --models), `tiny` or `tiny-moe` (random, no download), or a path to a .gguf file or to the folder of an encoder. Give it
    /// once per tenant; each gets a device.
    #[arg(long = "tenant", value_name = "NAME=MODEL", required = true, value_parser = wish)]
    pub(crate) tenants: Vec<Wish>,
    /// Folder that scripts/fetch-models fills.
    #[arg(long, value_name = "DIR", default_value = "target/models")]
    pub(crate) models: PathBuf,
    /// Who decides what runs where.
    #[arg(long, value_enum, default_value_t = PolicyName::SliceFill)]
    pub(crate) policy: PolicyName,
    /// Requests per second of each latency-sensitive tenant.
    #[arg(long, value_name = "RATE", default_value_t = 0.5, allow_negative_numbers = true, value_parser = rate)]
    pub(crate) load: f64,
    /// Requests that arrive together; bursts are rarer by as much.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) burst: u32,
    /// Requests that each best-effort tenant has under way.
    #[arg(long, value_name = "N", default_value_t = 16, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) backlog: u32,
    /// How long requests arrive, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", allow_hyphen_values = true, value_parser = seconds)]
    pub(crate) duration: Duration,
    /// Run the load twice, first with containers apart, and compare tokens and answers.
    #[arg(long, conflicts_with = "prompt")]
    pub(crate) compare: bool,
    /// Ask the first tenant this, print its answer, and end.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Tokens of an answer at most.
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    /// Lanes, 256 at most; one per tenant if absent.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) devices: Option<u32>,
    /// Memory of each device, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 512, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) memory_mib: u64,
    /// Let prompts that begin alike share KV blocks.
    #[arg(long)]
    pub(crate) prefix_caching: bool,
    /// Seed of arrivals and prompts.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) seed: u64,
}

/// A tenant as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) name: String,
    pub(crate) model: String,
    pub(crate) best_effort: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyName {
    SliceFill,
    IdlePriority,
    Static,
}

impl PolicyName {
    pub(crate) fn apply(self, builder: Builder) -> Builder {
        match self {
            Self::SliceFill => builder.policy(SliceFill::new(SliceFillOptions::default())),
            Self::IdlePriority => builder.policy(IdlePriority::default()),
            Self::Static => builder.policy(StaticContainers::default()),
        }
    }
}

fn wish(text: &str) -> Result<Wish, String> {
    let wanted = "expected NAME=MODEL or NAME=MODEL,best-effort";
    let (name, model) = text.split_once('=').ok_or(wanted)?;
    let (model, best_effort) = match model.split_once(',') {
        None => (model, false),
        Some((model, "best-effort")) => (model, true),
        Some((_, other)) => return Err(format!("{other:?} is no class; {wanted}")),
    };
    if name.is_empty() || model.is_empty() {
        return Err(wanted.to_owned());
    }
    Ok(Wish { name: name.to_owned(), model: model.to_owned(), best_effort })
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    // Less than one in a million seconds is no load.
    if (1e-6..=1e4).contains(&rate) { Ok(rate) } else { Err("expected 0.000001 to 10000".to_owned()) }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 =
        text.trim_end_matches('s').parse().map_err(|_| "expected seconds, such as 10 or 2.5s".to_owned())?;
    let possible = number.is_finite() && number > 0.0 && number <= 86_400.0;
    if possible { Ok(Duration::from_secs_f64(number)) } else { Err("expected more than 0, a day at most".to_owned()) }
}
