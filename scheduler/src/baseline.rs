//! Policies to compare with, each from its published rule, on the same substrate: the same graph, batching,
//! admission and lanes as [`SliceFill`](crate::SliceFill).
//!
//! Every baseline has a stable name, defaults, and a few [`Parameter`]s that a tuner may set, each with a grid
//! of sensible values:
//!
//! ```
//! use slicescheduler_scheduler::baseline::{self, BASELINES};
//!
//! let round_robin = baseline::find("round-robin").unwrap();
//! let policy = round_robin.build([("quantum_ms", 50)])?;
//! assert_eq!(policy.name(), "round-robin");
//! for baseline in BASELINES {
//!     let trials: usize = baseline.parameters.iter().map(|parameter| parameter.grid.len()).product();
//!     println!("{}: {} ({trials} settings)", baseline.name, baseline.rule);
//! }
//! # Ok::<(), slicescheduler_scheduler::baseline::SettingError>(())
//! ```
//!
//! What they share: a device runs one iteration at a time on one lane; an iteration is formed by the rules of
//! [`batching`](crate::batching), so within a tenant requests are served first come, first served;
//! sequences stay where their KV cache is, and are recomputed when they lose it. Where a rule needs something
//! else, the text of its type says what is missing.

mod aegaeon;
mod alpaserve;
mod candidates;
mod clockwork;
mod conserve;
mod container_loaning;
mod forecasts;
mod harvest;
mod hygen;
mod idle_priority;
mod join_shortest_queue;
mod muxserve;
mod orion;
mod placement;
mod queues;
mod registry;
#[cfg(test)]
mod rig;
mod room;
mod round_robin;
mod static_containers;
mod switching;
mod turns;

pub use aegaeon::Aegaeon;
pub use alpaserve::AlpaServe;
pub use clockwork::Clockwork;
pub use conserve::ConServe;
pub use container_loaning::ContainerLoaning;
pub use hygen::HyGen;
pub use idle_priority::IdlePriority;
pub use join_shortest_queue::JoinShortestQueue;
pub use muxserve::MuxServe;
pub use orion::Orion;
pub use registry::{Baseline, Parameter, SettingError, Settings};
pub use round_robin::RoundRobin;
pub use static_containers::StaticContainers;

pub(crate) use placement::{add_best_effort, fits, owners_and_best_effort};

/// All baselines, the simplest first.
pub const BASELINES: &[Baseline] = &[
    static_containers::ENTRY,
    idle_priority::ENTRY,
    round_robin::ENTRY,
    join_shortest_queue::ENTRY,
    orion::ENTRY,
    conserve::ENTRY,
    hygen::ENTRY,
    clockwork::ENTRY,
    muxserve::ENTRY,
    aegaeon::ENTRY,
    alpaserve::ENTRY,
    container_loaning::ENTRY,
];

/// The baseline of this name.
pub fn find(name: &str) -> Option<&'static Baseline> {
    BASELINES.iter().find(|baseline| baseline.name == name)
}
