//! Encoders of the BERT family.

#[cfg(feature = "safetensors")]
mod safetensors;

use std::sync::Arc;

use slicescheduler_executor::model::{CpuModel, SeededWeights, WeightSource};
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::templates::{self, EncoderSpec, Pooling};
use slicescheduler_gmg::units::Bytes;

use crate::model::{Model, ModelError};

/// An encoder of the BERT family: its configuration, and where its weights come from.
///
/// It is asked by [`embed`](crate::SliceScheduler::embed).
#[derive(Debug)]
pub struct Bert {
    spec: EncoderSpec,
    weights: Box<dyn WeightSource>,
}

impl Bert {
    /// A model of two layers with random weights: no download, and the same seed gives the same
    /// model.
    pub fn tiny(seed: u64) -> Self {
        Self::from_spec(EncoderSpec::tiny(), SeededWeights::new(seed))
    }

    /// A model of any size. The CPU backend wants activations of `F32`, which
    /// [`EncoderSpec::with_dtype`] gives `F32` and quantized models.
    pub fn from_spec(spec: EncoderSpec, weights: impl WeightSource + 'static) -> Self {
        Self { spec, weights: Box::new(weights) }
    }

    /// Makes the vector of a text in this way.
    #[must_use]
    pub fn pooled_by(mut self, pooling: Pooling) -> Self {
        self.spec.pooling = pooling;
        self
    }

    /// Its configuration.
    pub fn spec(&self) -> &EncoderSpec {
        &self.spec
    }
}

impl Model for Bert {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn template(&self) -> Result<Arc<OpGraph>, ModelError> {
        Ok(Arc::new(templates::encoder(&self.spec)?))
    }

    fn kv_bytes_per_token(&self) -> Bytes {
        Bytes::ZERO
    }

    fn max_context(&self) -> u32 {
        u32::try_from(self.spec.positions).unwrap_or(u32::MAX)
    }

    fn vocabulary(&self) -> u32 {
        u32::try_from(self.spec.vocab).unwrap_or(u32::MAX)
    }

    fn on_cpu(&self, template: Arc<OpGraph>) -> Result<CpuModel, ModelError> {
        Ok(CpuModel::encoder(&self.spec, template, &*self.weights)?)
    }
}
