//! Makes it happen: runs planned operators with real kernels.
//!
//! What a plan says is decided elsewhere; this crate obeys. It has the memory ([`arena`], allocated
//! once, handed out at planned offsets), the queues ([`lane`], worker-owned, in order, recallable
//! at operator boundaries), the arithmetic ([`kernels`], a Llama-family decoder whose bits do not
//! depend on batching) and a runner for operator graphs that are run again and again ([`runner`]).
//! No thread is started that the host did not allow, no clock is read that it did not give.
//!
//! A lane that runs two operators over its own arena:
//!
//! ```
//! use std::sync::Arc;
//!
//! use crossbeam::channel::unbounded;
//! use slicescheduler_executor::arena::{Arena, Region};
//! use slicescheduler_executor::kernels::{Output, OwnedPanels, matmul, rms_norm};
//! use slicescheduler_executor::lane::{Entry, Lane, Outcome, Program, Rank, StdThreads};
//! use slicescheduler_executor::ExecutorError;
//! use slicescheduler_gmg::id::{DeviceId, LaneId};
//! use slicescheduler_gmg::units::{Bytes, Nanos};
//!
//! const X: Region = Region::of::<f32>(Bytes(0), 8);
//! const NORMED: Region = Region::of::<f32>(Bytes(64), 8);
//! const Y: Region = Region::of::<f32>(Bytes(128), 2);
//!
//! struct Projection {
//!     arena: Arena,
//!     gain: Vec<f32>,
//!     weights: OwnedPanels,
//! }
//!
//! impl Program for Projection {
//!     fn len(&self) -> u32 {
//!         2
//!     }
//!
//!     fn step(&mut self, op: u32) -> Result<(), ExecutorError> {
//!         let mut operands = self.arena.operands();
//!         match op {
//!             0 => rms_norm(operands.read(X)?, &self.gain, 1e-5, operands.write(NORMED)?),
//!             _ => matmul(operands.read(NORMED)?, 1, self.weights.view(), Output::Overwrite, operands.write(Y)?),
//!         }
//!     }
//! }
//!
//! # fn main() -> Result<(), ExecutorError> {
//! let (sender, events) = unbounded();
//! let clock = Arc::new(|| Nanos::ZERO);
//! let lane = Lane::start(LaneId::new(DeviceId(0), 0), &StdThreads, clock, sender)?;
//! let program = Box::new(Projection {
//!     arena: Arena::new(Bytes(256))?,
//!     gain: vec![1.0; 8],
//!     weights: OwnedPanels::pack(&[0.5; 16], 2, 8)?,
//! });
//! lane.enqueue(Entry { program, ops: None, rank: Rank(0), tag: 0 })?;
//! assert!(events.iter().take(1).all(|event| matches!(event.outcome, Outcome::Finished)));
//! # Ok(())
//! # }
//! ```

pub mod arena;
pub mod backend;
pub mod cpu_world;
pub mod error;
pub mod kernels;
pub mod lane;
pub mod model;
pub mod registry;
pub mod runner;
pub mod transport;

pub use error::{ExecutorError, Result};
