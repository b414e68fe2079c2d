//! Measured durations: tables of them, and readers of the files that they come in.
//!
//! A [`Table`] holds durations over one to five axes, such as the `m`, `n` and `k` of a matrix
//! product. It answers for every point: at a sample with the sample, between samples by linear
//! interpolation, beyond them by a stated extrapolation; and it says which of these it was.
//!
//! ```
//! use slicescheduler_simulator::cost::Confidence;
//! use slicescheduler_simulator::profile::{Axis, Table};
//!
//! let mut table = Table::builder([Axis::linear("batch"), Axis::quadratic("length")]);
//! for (batch, length, us) in [(1, 512, 20.0), (2, 512, 30.0), (1, 1024, 40.0), (2, 1024, 70.0)] {
//!     table.sample(&[f64::from(batch), f64::from(length)], us * 1e3)?;
//! }
//! let table = table.build()?;
//! let middle = table.read(&[1.5, 512.0]);
//! assert_eq!((middle.nanos, middle.confidence), (25_000.0, Confidence::Interpolated));
//! # Ok::<(), slicescheduler_simulator::profile::TableError>(())
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`device`] | all tables of one kind of device, by what they measure |
//! | [`own`] | the project's own format, read and written: for measurements of your own |
//! | [`vidur`], [`splitwise`], `aiconfigurator` (feature `parquet`) | readers of published profiles |
//! | [`columns`], [`error`] | files as columns; why a file is refused, durations that no device can have included |
//! | [`axis`] | where a value lies among the measured ones, and how durations grow beyond them |
//! | [`llmservingsim`] | profiles of LLMServingSim, and the time that they give an iteration of vLLM |
//! | [`table`] | samples on a lattice, read and sliced |
//! | [`completion`] | what a cell that was not measured would hold; the error of leaving one out |

#[cfg(feature = "parquet")]
pub mod aiconfigurator;
pub mod axis;
pub mod columns;
pub mod completion;
pub mod device;
pub mod error;
pub mod llmservingsim;
pub mod own;
#[cfg(feature = "parquet")]
pub mod parquet_file;
mod plausible;
pub mod splitwise;
pub mod table;
pub mod vidur;

pub use axis::{Axis, Growth};
pub use columns::Columns;
pub use completion::ErrorSummary;
pub use device::{AttentionShape, Collective, DeviceProfile, Measure, Scaling};
pub use error::{Place, ProfileError};
pub use table::{Reading, Table, TableBuilder, TableError};
