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
