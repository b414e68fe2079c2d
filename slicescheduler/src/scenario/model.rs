//! Models by name.

use std::borrow::Cow;

use slicescheduler_gmg::graph::{GraphError, OpGraph};
use slicescheduler_gmg::templates::{self, DenseSpec, MoeSpec};
use slicescheduler_gmg::units::Bytes;

/// The model that a tenant serves.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelSpec {
    /// A dense decoder.
    Dense(DenseSpec),
    /// A mixture of experts.
    Moe(MoeSpec),
}

impl ModelSpec {
    /// Its name.
    pub fn name(&self) -> &Cow<'static, str> {
        match self {
            Self::Dense(spec) => &spec.name,
            Self::Moe(spec) => spec.name(),
        }
    }

    /// One rank's part of it, where it is spread over `ranks` devices by heads and columns.
    #[must_use]
    pub fn sharded(&self, ranks: u32) -> Self {
        match self {
            Self::Dense(spec) => Self::Dense(spec.clone().tensor_parallel(ranks)),
            Self::Moe(spec) => Self::Moe(spec.clone().tensor_parallel(ranks)),
        }
    }

    /// The graph of one iteration.
    ///
    /// # Errors
    /// If its dimensions make no graph.
    pub fn template(&self) -> Result<OpGraph, GraphError> {
        match self {
            Self::Dense(spec) => templates::dense(spec),
            Self::Moe(spec) => templates::moe(spec),
        }
    }

    /// Bytes of a token in the KV cache.
    pub fn kv_bytes_per_token(&self) -> Bytes {
        match self {
            Self::Dense(spec) => spec.kv_bytes_per_token(),
            Self::Moe(spec) => spec.kv_bytes_per_token(),
        }
    }

    /// The dense decoder that it is, if it is one.
    pub fn dense(&self) -> Option<&DenseSpec> {
        match self {
            Self::Dense(spec) => Some(spec),
            Self::Moe(_) => None,
        }
    }
}

impl From<DenseSpec> for ModelSpec {
    fn from(spec: DenseSpec) -> Self {
        Self::Dense(spec)
    }
}

impl From<MoeSpec> for ModelSpec {
    fn from(spec: MoeSpec) -> Self {
        Self::Moe(spec)
    }
}

/// The names that [`named_model`] knows.
pub const MODELS: &[&str] = &[
    "llama2-7b",
    "llama2-13b",
    "llama3-8b",
    "llama3-70b",
    "codellama-34b",
    "yi-34b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "smollm2-135m",
    "tiny",
    "tiny-moe",
];

/// The dimensions of a published model, or of `tiny` and `tiny-moe`, the seeded random decoders that need no
/// download.
pub fn named_model(name: &str) -> Option<ModelSpec> {
    Some(match name {
        "llama2-7b" => DenseSpec::llama2_7b().into(),
        "llama2-13b" => DenseSpec::llama2_13b().into(),
        "llama3-8b" => DenseSpec::llama3_8b().into(),
        "llama3-70b" => DenseSpec::llama3_70b().into(),
        "codellama-34b" => DenseSpec::codellama_34b().into(),
        "yi-34b" => DenseSpec::yi_34b().into(),
        "mixtral-8x7b" => MoeSpec::mixtral_8x7b().into(),
        "qwen3-30b-a3b" => MoeSpec::qwen3_30b_a3b().into(),
        "smollm2-135m" => DenseSpec::smollm2_135m().into(),
        "tiny" => DenseSpec::tiny().into(),
        "tiny-moe" => MoeSpec::tiny().into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_name_is_a_model_of_that_name() {
        for name in MODELS {
            assert_eq!(named_model(name).map(|model| model.name().to_string()).as_deref(), Some(*name));
        }
        assert_eq!(named_model("llama"), None);
    }
}
