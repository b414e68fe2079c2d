//! Makes it happen: runs planned operators with real kernels.
//!
//! What a plan says is decided elsewhere; this crate obeys. [`CpuWorld`](cpu_world::CpuWorld) takes
//! the graph's commands: launches go to lanes with their right of way, weights to the slots that the
//! graph reserved, tokens come back with the events. All memory is allocated once and used at planned
//! offsets; no thread is started that the host did not allow, and no clock is read that it did not
//! give.
//!
//! One prompt through a tiny random decoder on one CPU lane:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Instant;
//!
//! use slicescheduler_executor::cpu_world::{CpuWorld, CpuWorldOptions};
//! use slicescheduler_executor::lane::StdThreads;
//! use slicescheduler_executor::model::{CpuModel, SeededWeights};
//! use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
//! use slicescheduler_gmg::delta::NewRequest;
//! use slicescheduler_gmg::id::{DeviceId, LaneId};
//! use slicescheduler_gmg::job::{JobSpec, KvGrowth, Row};
//! use slicescheduler_gmg::plan::{Action, Clock, Plan, Rank, Work, World};
//! use slicescheduler_gmg::shape::Binding;
//! use slicescheduler_gmg::templates::{DenseSpec, dense};
//! use slicescheduler_gmg::units::{Bandwidth, Bytes, FlopRate, Nanos};
//! use slicescheduler_gmg::{Container, Gmg, Model, Tenant};
//!
//! #[derive(Debug)]
//! struct SinceStart(Instant);
//!
//! impl Clock for SinceStart {
//!     fn now(&self) -> Nanos {
//!         self.0.elapsed().into()
//!     }
//! }
//!
//! let cpu = DeviceSpec::cpu(1, Bytes::mib(64), Bandwidth::gb_per_s(10), FlopRate::gflops(50));
//! let mut gmg = Gmg::new(Cluster::builder().node("host", |node| node.devices(1, cpu)).build()?);
//! let tenant = gmg.add_tenant(Tenant::best_effort("demo"))?;
//! let spec = DenseSpec::tiny();
//! let template = Arc::new(dense(&spec)?);
//! let decoder = CpuModel::decoder(&spec, template.clone(), &SeededWeights::new(7))?;
//! let model = gmg.add_model(tenant, Model::new("tiny", template), Container::replicas([0]))?;
//! let clock = Arc::new(SinceStart(Instant::now()));
//! let mut world = CpuWorld::new(gmg.view(), vec![(model, decoder)], clock, &StdThreads, CpuWorldOptions::default())?;
//!
//! let prompt = [72, 101, 108, 108, 111];
//! let request = gmg.submit_request(NewRequest { tenant, arrival: Nanos::ZERO, prompt: 5, max_output: 3 })?;
//! world.prompt(request, &prompt, 3, None)?;
//! let mut computed = 0;
//! while world.tokens(request).len() < 3 {
//!     let tokens = 5 + world.tokens(request).len() as u32 - computed;
//!     let mut dims = Binding::new();
//!     dims.add_chunk(u64::from(tokens), u64::from(computed), true);
//!     let blocks = u32::from(computed == 0); // One block holds 16 tokens.
//!     let iteration = JobSpec {
//!         rows: vec![Row { request, position: computed, tokens, emits: true }],
//!         growth: vec![KvGrowth { request, blocks }],
//!         ..JobSpec::of(model).bind(dims)
//!     };
//!     let work = Work::New(Box::new(iteration));
//!     let run = Action::Run { work, lane: LaneId::new(DeviceId(0), 0), rank: Rank::OwnerBestEffort };
//!     let accepted = gmg.accept(Plan { actions: [run].into_iter().collect(), ..Plan::nothing(gmg.version()) });
//!     for command in &accepted.commands {
//!         world.enqueue(command, gmg.view())?;
//!     }
//!     let mut events = Vec::new();
//!     world.poll(Nanos::MAX, &mut events)?;
//!     for event in events {
//!         gmg.apply(event)?;
//!     }
//!     computed += tokens;
//! }
//! println!("{:?}", world.tokens(request));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`cpu_world`] | the world of CPU lanes |
//! | [`backend`], [`transport`] | the seams to kinds of devices and ways between them, within a process and between two |
//! | [`model`] | a decoder, a mixture of experts or an encoder with its packed weights, and where weights come from |
//! | [`checkpoint`] | weights in files (features `gguf`, `safetensors`) |
//! | [`registry`], [`kernels`] | which kernel runs an operator; the CPU kernels, whose bits do not depend on batching |
//! | [`lane`] | worker-owned queues, in order, recallable between operators and between parts of one |
//! | [`arena`] | memory that is allocated once and handed out at planned offsets |
//! | [`runner`] | a runner for operator graphs that are run again and again |
//! | [`fault`] | faults on purpose |
//! | `conformance` | suites for implementations of the seams (feature `conformance`) |

pub mod arena;
pub mod backend;
pub mod checkpoint;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod cpu_world;
pub mod error;
pub mod fault;
pub mod kernels;
pub mod lane;
pub mod model;
pub mod registry;
pub mod runner;
mod sync;
pub mod transport;

pub use error::{ExecutorError, Result};
