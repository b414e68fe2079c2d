//! Mixtures of experts.

#[cfg(feature = "gguf")]
mod gguf;
#[cfg(feature = "safetensors")]
mod safetensors;
#[cfg(all(test, feature = "gguf", feature = "safetensors"))]
mod tests;

use std::sync::Arc;

use slicescheduler_executor::model::{CpuModel, SeededWeights, WeightSource};
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::templates::{self, MoeSpec};
use slicescheduler_gmg::units::Bytes;

use crate::model::{Model, ModelError};

/// A decoder whose feed-forward networks are mixtures of experts, all of them on one device: its configuration, and
/// where its weights come from.
///
/// ```
/// use slicescheduler::{MixtureOfExperts, Request, SliceScheduler, Tenant};
///
/// let slices = SliceScheduler::builder().tenant(Tenant::best_effort("batch"), MixtureOfExperts::tiny(7)).build()?;
/// let answer = slices.submit("batch", Request::prompt_tokens(&[72, 105]).max_tokens(4))?;
/// assert_eq!(answer.collect::<Result<Vec<_>, _>>()?.len(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MixtureOfExperts {
    spec: MoeSpec,
    weights: Box<dyn WeightSource>,
    end_of_sequence: Option<u32>,
}

impl MixtureOfExperts {
    /// A model of two layers and four experts with random weights: no download, and the same seed gives the same
    /// model. It answers nonsense, in no time.
    pub fn tiny(seed: u64) -> Self {
        Self::from_spec(MoeSpec::tiny(), SeededWeights::new(seed))
    }

    /// A model of any size. The CPU backend wants activations and a KV cache of `F32`, which
    /// [`MoeSpec::with_dtype`] gives `F32` and quantized models.
    pub fn from_spec(spec: MoeSpec, weights: impl WeightSource + 'static) -> Self {
        Self { spec, weights: Box::new(weights), end_of_sequence: None }
    }

    /// Ends answers with this token, unless a request names another.
    #[must_use]
    pub fn ending_with(mut self, token: u32) -> Self {
        self.end_of_sequence = Some(token);
        self
    }

    /// Its configuration.
    pub fn spec(&self) -> &MoeSpec {
        &self.spec
    }
}

impl Model for MixtureOfExperts {
    fn name(&self) -> &str {
        self.spec.name()
    }

    fn template(&self) -> Result<Arc<OpGraph>, ModelError> {
        Ok(Arc::new(templates::moe(&self.spec)?))
    }

    fn kv_bytes_per_token(&self) -> Bytes {
        self.spec.kv_bytes_per_token()
    }

    fn max_context(&self) -> u32 {
        self.spec.base.max_context
    }

    fn vocabulary(&self) -> u32 {
        u32::try_from(self.spec.base.vocab).unwrap_or(u32::MAX)
    }

    fn end_of_sequence(&self) -> Option<u32> {
        self.end_of_sequence
    }

    fn on_cpu(&self, template: Arc<OpGraph>) -> Result<CpuModel, ModelError> {
        Ok(CpuModel::mixture_of_experts(&self.spec, template, &*self.weights)?)
    }
}
