//! Operator graphs of common model families, without weights.
//!
//! Each takes a specification with the numbers of a checkpoint's configuration and gives the graph
//! of one iteration over a batch, in the standard symbols of [`shape`](crate::shape).

mod dense;

pub use dense::{DenseSpec, dense};
