//! Serve many models on few accelerators: operators of one tenant run in the idle slices of
//! another's devices, without breaking the other's memory or service level.
//!
//! This is the facade of a family of crates. An engine author who wants it done builds a
//! [`SliceScheduler`] from tenants and their models and gets token streams and embeddings; the crates below are for
//! those who keep their own loop, models or kernels: [`gmg`] (the graph that everything is said in),
//! [`simulator`] (what will happen), [`scheduler`] (what should happen) and [`executor`] (make it
//! happen).
//!
//! Two tenants on two CPU lanes, each with a device of its own and a tiny random model. `batch` also
//! runs on the device of `chat` while that is idle, and gives way at the next operator:
//!
//! ```
//! use slicescheduler::gmg::units::Nanos;
//! use slicescheduler::{Llama, Request, SliceScheduler, Tenant, Token};
//!
//! let slices = SliceScheduler::builder()
//!     .devices(2)
//!     .tenant(Tenant::latency_sensitive("chat").ttft(Nanos::ms(400)).tpot(Nanos::ms(60)), Llama::tiny(1))
//!     .tenant(Tenant::best_effort("batch"), Llama::tiny(2))
//!     .build()?;
//! let prompt = [72, 101, 108, 108, 111];
//! let jobs = (0..4).map(|_| slices.submit("batch", Request::prompt_tokens(&prompt).max_tokens(20)));
//! let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
//! for token in slices.submit("chat", Request::prompt_tokens(&prompt).max_tokens(8))? {
//!     print!("{} ", token?);
//! }
//! let answers: Vec<Vec<Token>> = jobs.into_iter().map(Iterator::collect).collect::<Result<_, _>>()?;
//! let ids = |answer: &[Token]| answer.iter().map(|token| token.id).collect::<Vec<_>>();
//! assert!(answers.iter().all(|answer| ids(answer) == ids(&answers[0]) && answer.len() == 20));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Tokens do not depend on how work was sliced: they are those of an undisturbed run, bit for bit.
//!
//! | module | what it holds |
//! |---|---|
//! | [`builder`] | what a scheduler is made of: devices, tenants, models, policy, clock, threads |
//! | [`model`] | what a host implements to bring a model; decoders of the Llama family, mixtures of experts, encoders of the BERT family |
//! | [`serve`] | requests in, tokens and vectors out |
//! | `text` | texts to tokens and back (feature `tokenizers`) |
//! | [`learned`] | how long operators take here, learned from what runs; predictions beside measurements |
//! | [`driver`] | the loop that owns the graph, over any world |
//! | `replay` | traces in, figures out: the same loop over a simulated or the real world (feature `replay`) |
//! | `scenario`, `workload`, `setup` | what a replay is of: its description, its requests, its graph (feature `replay`) |
//! | `alone` | how long requests take alone, and service levels relative to that (feature `replay`) |
//! | `report` | what a replay says: summary, table, HTML, Perfetto timeline (feature `replay`) |
//! | `bound` | what no policy can exceed: an oracle for small cases (feature `replay`), a linear program for large ones (feature `bound`) |
//! | `evaluate` | many replays, and what they say together (feature `evaluate`) |
//! | `fidelity` | predictions of real serving runs, against what was measured (feature `fidelity`) |

#![forbid(unsafe_code)]

#[cfg(feature = "replay")]
pub mod alone;
mod assembly;
#[cfg(feature = "replay")]
pub mod bound;
pub mod builder;
pub mod driver;
#[cfg(feature = "evaluate")]
pub mod evaluate;
#[cfg(feature = "fidelity")]
pub mod fidelity;
pub mod learned;
pub mod model;
#[cfg(feature = "replay")]
pub mod replay;
#[cfg(feature = "replay")]
pub mod report;
#[cfg(feature = "replay")]
pub mod scenario;
pub mod serve;
#[cfg(feature = "replay")]
pub mod setup;
#[cfg(feature = "tokenizers")]
pub mod text;
#[cfg(feature = "replay")]
pub mod workload;

pub use slicescheduler_executor as executor;
pub use slicescheduler_gmg as gmg;
pub use slicescheduler_scheduler as scheduler;
pub use slicescheduler_simulator as simulator;

pub use builder::{BuildError, Builder};
pub use driver::RequestError;
pub use executor::kernels::Sampling;
pub use gmg::tenant::Tenant;
pub use model::{Bert, Llama, MixtureOfExperts, Model, ModelError, ModelKind};
pub use serve::{
    Answer, Embedding, PendingEmbedding, Request, ServeError, SliceScheduler, SystemClock, Token, TokenStream,
};
