//! Operator graphs of common model families, without weights.
//!
//! Each takes a specification with the numbers of a checkpoint's configuration and gives the graph
//! of one iteration over a batch, in the standard symbols of [`shape`](crate::shape).
//!
//! A specification can be cut into shards; the graph is then that of one rank, with
//! [`Collective`](crate::semantics::Collective)s where it exchanges data with the others. Which jobs
//! the others are is said by the [gang](crate::gang) of each job.
//!
//! | cut | from whole to shard | exchanges |
//! |---|---|---|
//! | [`DenseSpec::tensor_parallel`], [`MoeSpec::tensor_parallel`] | heads, feed-forward columns, vocabulary | an all-reduce after the embedding and after each half of a layer, an all-gather of the logits (Shoeybi et al. 2019) |
//! | [`DenseSpec::pipeline`], [`MoeSpec::pipeline`] | layers | a send at the end of each stage, a receive at the start of the next |
//! | [`MoeSpec::expert_parallel`] | experts; every rank serves requests of its own | an all-to-all before and after the experts (Lepikhin et al. 2020) |

mod decoder;
mod dense;
mod encoder;
mod moe;
#[cfg(test)]
mod sharding_tests;

pub use dense::{DenseSpec, Shard, dense};
pub use encoder::{EncoderSpec, Pooling, encoder};
pub use moe::{MoeSpec, moe};

use crate::graph::GraphError;
use crate::units::Bytes;

/// More layers than any model has; what goes through a model layer by layer ends in no time.
const MOST_LAYERS: u64 = 1 << 14;

/// More bytes than any device has: 1 PiB.
const MOST_WEIGHTS: u64 = 1 << 50;

/// Refuses the first number that is outside of its range: what it counts, the number, the least, the most.
fn within(graph: &str, numbers: &[(&'static str, u64, u64, u64)]) -> Result<(), GraphError> {
    match numbers.iter().find(|(_, found, least, most)| !(least..=most).contains(&found)) {
        Some(&(what, found, least, most)) => {
            Err(GraphError::Specification { graph: graph.to_owned(), what, found, least, most })
        }
        None => Ok(()),
    }
}

/// Refuses weights that no device can hold, before a graph is built of them.
fn check_weights(graph: &str, weights: Bytes) -> Result<(), GraphError> {
    within(graph, &[("bytes of weights on one rank", weights.get(), 0, MOST_WEIGHTS)])
}
