//! The Global Mapping Graph: one typed, versioned graph of everything that matters for serving
//! many models on few accelerators.
//!
//! It has four layers. *Resources*: [`Cluster`](cluster::Cluster), devices, links, routes.
//! *Models*: [`OpGraph`](graph::OpGraph), an immutable operator template with symbolic shapes.
//! *Mapping*: tenants, containers, where weights and KV sequences lie, which lane an operator is
//! placed on. *Execution*: requests, jobs, and the state of every operator.
//!
//! [`Gmg`] is the live graph and has one owner. Changes are [`Delta`]s: intents, which can be
//! refused, and observations, which cannot. [`Gmg::publish`] gives a [`Snapshot`] that other
//! threads read; [`Snapshot::branch`] gives a private [`Branch`] to try things on.
//!
//! ```
//! use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
//! use slicescheduler_gmg::job::JobSpec;
//! use slicescheduler_gmg::shape::{Binding, CONTEXT, PAIRS, SEQUENCES, TOKENS};
//! use slicescheduler_gmg::templates::{self, DenseSpec};
//! use slicescheduler_gmg::{Container, Gmg, GmgView, Model, Tenant};
//!
//! let cluster = Cluster::builder().node("a", |node| node.devices(2, DeviceSpec::h100_sxm())).build()?;
//! let mut gmg = Gmg::new(cluster);
//! let chat = gmg.add_tenant(Tenant::latency_sensitive("chat"))?;
//! let template = templates::dense(&DenseSpec::llama3_8b())?;
//! let model = gmg.add_model(chat, Model::new("llama3-8b", template.into()), Container::replicas([0]))?;
//! let dims = Binding::default().bind(TOKENS, 512).bind(SEQUENCES, 1).bind(CONTEXT, 512).bind(PAIRS, 131_328);
//! let job = gmg.submit(JobSpec::of(model).bind(dims))?;
//! assert_eq!(gmg.view().job(job).map(|job| job.progress()), Some(0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`units`], [`id`], [`dtype`], [`shape`] | quantities, names, element types, symbolic dimensions |
//! | [`cluster`] | devices, links, routes |
//! | [`semantics`], [`graph`], [`templates`] | what operators do, operator graphs, ready-made models |
//! | [`tenant`], [`request`], [`job`], [`gang`] | who asks, what for, and what runs for it, on one rank or several |
//! | [`delta`], [`plan`] | every change; intent, forecast and the ports between the crates |
//! | [`view`], [`snapshot`] | reading, publishing, branching |
//! | [`memory`] | what lies where on a device, KV blocks that sequences share, what can be had back and when |
//! | [`content`], `wire` (feature `serde`) | a version as one number; deltas as bytes and as JSON; versions as bytes |
//! | [`live_graph`] | petgraph's algorithms on the live graph |
//! | [`import`], [`export`] | other people's formats |

#![forbid(unsafe_code)]

mod accept;
mod apply;
#[cfg(feature = "chakra")]
mod chakra;
pub mod cluster;
pub mod content;
pub mod delta;
pub mod dtype;
pub mod error;
pub mod export;
pub mod gang;
mod gmg;
pub mod graph;
pub mod id;
pub mod id_map;
pub mod import;
pub mod job;
pub mod live_graph;
pub mod memory;
pub mod plan;
pub mod request;
pub mod semantics;
pub mod shape;
pub mod snapshot;
mod state;
mod sync;
pub mod templates;
pub mod tenant;
pub mod units;
pub mod view;
#[cfg(feature = "serde")]
pub mod wire;

pub use delta::{Applied, Delta, Divergence, Durability, Effect, Intent};
pub use error::GmgError;
pub use gmg::Gmg;
pub use snapshot::{Branch, Snapshot};
pub use state::State;
pub use tenant::{Container, Model, Tenant};
pub use view::{GmgView, View};
