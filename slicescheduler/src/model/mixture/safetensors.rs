//! A mixture of experts from a folder as the transformers library saves it.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use slicescheduler_executor::checkpoint::{CheckpointWeights, ExpertNames, HfLlama, SafetensorsFile, WithExperts};
use slicescheduler_gmg::templates::MoeSpec;

use crate::model::folder;
use crate::model::llama::safetensors::{Config, spec};
use crate::model::{MixtureOfExperts, ModelError};

/// What is needed of `config.json` besides what dense decoders have.
#[derive(Debug, Deserialize)]
struct Experts {
    num_local_experts: Option<u32>,
    num_experts: Option<u32>,
    num_experts_per_tok: Option<u32>,
    moe_intermediate_size: Option<u64>,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<u32>,
    #[serde(default)]
    mlp_only_layers: Vec<u32>,
    sliding_window: Option<u32>,
    use_sliding_window: Option<bool>,
}

impl MixtureOfExperts {
    /// A model from a folder with `config.json` and `model.safetensors`, as the transformers library saves models of type
    /// `mixtral` or `qwen3_moe`; weights are F32, F16 or BF16. The file is mapped, and read when the model is built
    /// for a backend. Answers end with the first end-of-sequence token of the configuration.
    ///
    /// # Errors
    /// When a file cannot be read, or is of a model that cannot be run here: with layers without experts, with weights
    /// of the chosen experts that do not sum to one, or with a sliding window.
    pub fn from_safetensors(folder: impl AsRef<Path>) -> Result<Self, ModelError> {
        let folder = folder.as_ref();
        let path = folder.join("config.json");
        let (config, of_experts): (Config, Experts) = (folder::json(&path)?, folder::json(&path)?);
        let file = SafetensorsFile::open(&folder.join("model.safetensors"))?;
        let refused = |reason: String| ModelError::Unsupported { path: folder.to_owned(), reason };
        let (names, qwen) = match &*config.model_type {
            "mixtral" => (ExpertNames::HfMixtral, false),
            "qwen3_moe" => (ExpertNames::HfQwen, true),
            other => {
                let reason = format!("its model type is {other:?}; \"mixtral\" and \"qwen3_moe\" are supported");
                return Err(refused(reason));
            }
        };
        let sparse = of_experts.decoder_sparse_step.unwrap_or(1) == 1 && of_experts.mlp_only_layers.is_empty();
        let normed = !qwen || of_experts.norm_topk_prob == Some(true);
        let windowed = of_experts.sliding_window.is_some() && of_experts.use_sliding_window != Some(false);
        if !sparse || !normed || windowed {
            let reason = "it has layers without experts, weights that do not sum to one, or a sliding window";
            return Err(refused(reason.to_owned()));
        }
        let count = if qwen { of_experts.num_experts } else { of_experts.num_local_experts };
        let (Some(experts), Some(top)) = (count, of_experts.num_experts_per_tok) else {
            return Err(refused("its configuration does not say how many experts there are".to_owned()));
        };
        if top == 0 || top > experts {
            return Err(refused(format!("of {experts} experts {top} are chosen")));
        }
        let deepest = |layer| match names {
            ExpertNames::HfMixtral => format!("model.layers.{layer}.block_sparse_moe.experts.0.w2.weight"),
            _ => format!("model.layers.{layer}.mlp.experts.0.down_proj.weight"),
        };
        let mut base = spec(folder, &config, &file, deepest).map_err(refused)?;
        base.qk_norm = qwen;
        base.intermediate = of_experts.moe_intermediate_size.filter(|_| qwen).unwrap_or(base.intermediate);
        let end_of_sequence = config.end_of_sequence().map_err(refused)?;
        let weights = CheckpointWeights::new(Arc::new(file), WithExperts { rest: HfLlama, names });
        let mut spec = MoeSpec::tiny();
        (spec.base, spec.experts, spec.top) = (base, experts, top);
        let model = Self::from_spec(spec, weights);
        Ok(Self { end_of_sequence, ..model })
    }
}
