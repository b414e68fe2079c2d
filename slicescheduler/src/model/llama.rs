//! Decoders of the Llama family.

#[cfg(feature = "gguf")]
pub(super) mod gguf;
#[cfg(feature = "safetensors")]
pub(super) mod safetensors;

use std::sync::Arc;

use slicescheduler_executor::model::{CpuModel, SeededWeights, WeightSource};
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::templates::{self, DenseSpec};
use slicescheduler_gmg::units::Bytes;

use crate::model::{Model, ModelError};

/// A decoder of the Llama family: its configuration, and where its weights come from.
#[derive(Debug)]
pub struct Llama {
    spec: DenseSpec,
    weights: Box<dyn WeightSource>,
    end_of_sequence: Option<u32>,
}

impl Llama {
    /// A model of two layers with random weights: no download, and the same seed gives the same
    /// model. It answers nonsense, in no time.
    pub fn tiny(seed: u64) -> Self {
        Self::from_spec(DenseSpec::tiny(), SeededWeights::new(seed))
    }

    /// A model of any size. The CPU backend wants activations and a KV cache of `F32`, which
    /// [`DenseSpec::with_dtype`] gives `F32` and quantized models.
    pub fn from_spec(spec: DenseSpec, weights: impl WeightSource + 'static) -> Self {
        Self { spec, weights: Box::new(weights), end_of_sequence: None }
    }

    /// Ends answers with this token, unless a request names another.
    #[must_use]
    pub fn ending_with(mut self, token: u32) -> Self {
        self.end_of_sequence = Some(token);
        self
    }

    /// Holds matrices as `dtype` on a device, whatever they are in their file: widened exactly, or
    /// rounded.
    #[must_use]
    pub fn weights_as(mut self, dtype: DType) -> Self {
        self.spec.dtype = dtype;
        self.spec.embedding_dtype = dtype;
        self
    }

    /// Its configuration.
    pub fn spec(&self) -> &DenseSpec {
        &self.spec
    }
}

impl Model for Llama {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn template(&self) -> Result<Arc<OpGraph>, ModelError> {
        Ok(Arc::new(templates::dense(&self.spec)?))
    }

    fn kv_bytes_per_token(&self) -> Bytes {
        self.spec.kv_bytes_per_token()
    }

    fn max_context(&self) -> u32 {
        self.spec.max_context
    }

    fn vocabulary(&self) -> u32 {
        u32::try_from(self.spec.vocab).unwrap_or(u32::MAX)
    }

    fn end_of_sequence(&self) -> Option<u32> {
        self.end_of_sequence
    }

    fn on_cpu(&self, template: Arc<OpGraph>) -> Result<CpuModel, ModelError> {
        Ok(CpuModel::decoder(&self.spec, template, &*self.weights)?)
    }
}
