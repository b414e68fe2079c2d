//! Where requests come from: recorded traces and a seeded generator that arrives like them.
//!
//! Everything here is an iterator with bounded memory. A trace is never loaded as a whole, a
//! generator never ends by itself, and the same seed gives the same records bit for bit on every
//! machine (integer time, IEEE arithmetic and pure-Rust logarithms only).
//!
//! ```
//! use slicescheduler::workload::{Generator, Preset};
//! use slicescheduler_gmg::units::Nanos;
//!
//! let minute = Generator::new(Preset::AzureConv, 7).take_while(|r| r.at < Nanos::secs(60));
//! assert!(minute.map(|r| r.prompt).all(|tokens| tokens >= 1));
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`azure`] | the Azure LLM inference trace (CSV) |
//! | [`mooncake`] | the Mooncake trace (JSON lines, with prefix blocks) |
//! | [`servegen`], [`clients`] | the clients of ServeGen: their windows, and requests that arrive like theirs |
//! | [`trace`] | a trace on disk: its length, circular shifts |
//! | [`transform`] | rate and length scaling, drift of lengths, cutting |
//! | [`generator`] | arrivals of a doubly stochastic process, and a backlog without end |
//! | [`preset`] | the calibrated constants of the generator |
//! | [`rate`] | the random rate of the generator |
//! | [`rng`] | the random numbers of both |

pub mod azure;
pub mod clients;
mod error;
pub mod generator;
mod lines;
pub mod mooncake;
mod prefix;
pub mod preset;
pub mod rate;
pub mod rng;
pub mod servegen;
pub mod trace;
pub mod transform;

use slicescheduler_gmg::units::Nanos;

pub use azure::AzureReader;
pub use clients::{Client, ClientOptions};
pub use error::WorkloadError;
pub use generator::{Backlog, Generator};
pub use mooncake::MooncakeReader;
pub use prefix::PrefixBlocks;
pub use preset::Preset;
pub use servegen::ClientFile;
pub use trace::{Shift, TraceFile, TraceFormat};
pub use transform::{Drift, Lengths, Transform};

/// The largest token count that a record may carry. No served model has a context near it, so
/// anything above is a damaged file.
pub const MAX_TOKENS: u32 = 10_000_000;

/// One request as it arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrivalRecord {
    /// When it arrives, counted from the first record of its trace or the start of its generator.
    pub at: Nanos,
    /// Prompt length in tokens, from 1 to [`MAX_TOKENS`].
    pub prompt: u32,
    /// Tokens that will be generated, from 1 to [`MAX_TOKENS`]. Known to the world only; a policy
    /// never sees it before the request ends.
    pub output: u32,
    /// What of the prompt other requests share, where the trace says so.
    pub prefix: Option<PrefixBlocks>,
}

/// Records in arrival order; the first error ends the stream.
pub type ArrivalStream = Box<dyn Iterator<Item = Result<ArrivalRecord, WorkloadError>> + Send>;
