//! A Llama-family decoder from a folder as the transformers library saves it, and what mixtures of experts share with it.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use slicescheduler_executor::checkpoint::{CheckpointWeights, HfLlama, SafetensorsFile, TensorFile};
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::templates::DenseSpec;

use crate::model::folder::{self, OneOrMany};
use crate::model::{Llama, ModelError};

/// What is needed of `config.json`.
#[derive(Debug, Deserialize)]
pub(in crate::model) struct Config {
    pub(in crate::model) model_type: String,
    num_hidden_layers: u32,
    hidden_size: u64,
    num_attention_heads: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    intermediate_size: u64,
    vocab_size: u64,
    #[serde(default)]
    tie_word_embeddings: bool,
    rope_theta: Option<f32>,
    rope_scaling: Option<serde_json::Value>,
    rms_norm_eps: f32,
    max_position_embeddings: u32,
    hidden_act: Option<String>,
    pub(in crate::model) eos_token_id: Option<OneOrMany>,
}

impl Llama {
    /// A model from a folder with `config.json` and `model.safetensors`, as the transformers library
    /// saves models of type `llama`; weights are F32, F16 or BF16. The file is mapped, and read when
    /// the model is built for a backend. Answers end with the first end-of-sequence token of the
    /// configuration.
    ///
    /// # Errors
    /// When a file cannot be read, or is of a model that cannot be run here.
    pub fn from_safetensors(folder: impl AsRef<Path>) -> Result<Self, ModelError> {
        let folder = folder.as_ref();
        let config: Config = folder::json(&folder.join("config.json"))?;
        let path = folder.join("model.safetensors");
        let file = SafetensorsFile::open(&path)?;
        let refused = |reason: String| ModelError::Unsupported { path: folder.to_owned(), reason };
        if config.model_type != "llama" {
            return Err(refused(format!("its model type is {:?}; \"llama\" is supported", config.model_type)));
        }
        let deepest = |layer| format!("model.layers.{layer}.mlp.down_proj.weight");
        let spec = spec(folder, &config, &file, deepest).map_err(refused)?;
        let model = Self::from_spec(spec, CheckpointWeights::new(Arc::new(file), HfLlama));
        Ok(Self { end_of_sequence: config.eos_token_id.and_then(OneOrMany::first), ..model })
    }
}

/// The configuration of a decoder, of which `deepest` names a matrix of a layer.
pub(in crate::model) fn spec(
    folder: &Path,
    config: &Config,
    file: &SafetensorsFile,
    deepest: impl Fn(u32) -> String,
) -> Result<DenseSpec, String> {
    if config.rope_scaling.is_some() || config.hidden_act.as_deref().is_some_and(|name| name != "silu") {
        return Err("it has scaled rotations or another activation than SiLU".to_owned());
    }
    if file.tensor_names().any(|name| name.ends_with(".bias")) {
        return Err("it has biases, which are not supported".to_owned());
    }
    let layer = config.num_hidden_layers.checked_sub(1);
    let deepest = layer.and_then(|layer| file.tensor(&deepest(layer)));
    let (Some(deepest), Some(table)) = (deepest, file.tensor("model.embed_tokens.weight")) else {
        return Err(format!("the file does not have {} layers and a table", config.num_hidden_layers));
    };
    let mut spec = DenseSpec::tiny().with_dtype(deepest.dtype);
    spec.embedding_dtype = table.dtype;
    spec.activation_dtype = DType::F32;
    spec.kv_dtype = DType::F32;
    spec.name = folder::name(folder).into();
    spec.layers = config.num_hidden_layers;
    spec.hidden = config.hidden_size;
    spec.heads = config.num_attention_heads;
    spec.kv_heads = config.num_key_value_heads.unwrap_or(spec.heads);
    let share = config.hidden_size.checked_div(u64::from(spec.heads)).and_then(|dim| u32::try_from(dim).ok());
    spec.head_dim = config.head_dim.or(share).unwrap_or(0);
    spec.intermediate = config.intermediate_size;
    spec.vocab = config.vocab_size;
    spec.tied_embeddings = config.tie_word_embeddings;
    spec.rope_theta = config.rope_theta.unwrap_or(10_000.0);
    spec.norm_epsilon = config.rms_norm_eps;
    spec.max_context = config.max_position_embeddings;
    Ok(spec)
}
