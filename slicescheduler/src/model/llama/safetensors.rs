//! A Llama-family decoder from a folder as the transformers library saves it, and what mixtures of experts share with it.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use slicescheduler_executor::checkpoint::{CheckpointWeights, HfLlama, SafetensorsFile, TensorFile};
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::templates::DenseSpec;

use crate::model::folder::{self, OneOrMany};
use crate::model::{Llama, ModelError, figures};

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
    eos_token_id: Option<OneOrMany>,
}

impl Config {
    /// The first token that ends answers, if there is one.
    pub(in crate::model) fn end_of_sequence(&self) -> Result<Option<u32>, String> {
        let tokens = self.eos_token_id.as_ref().map_or(&[][..], OneOrMany::all);
        let checked = tokens.iter().map(|&token| figures::token("eos_token_id", token.into(), self.vocab_size));
        Ok(checked.collect::<Result<Vec<_>, _>>().map_err(folder::in_config)?.first().copied())
    }
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
        let end_of_sequence = config.end_of_sequence().map_err(refused)?;
        let model = Self::from_spec(spec, CheckpointWeights::new(Arc::new(file), HfLlama));
        Ok(Self { end_of_sequence, ..model })
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
    // Templates have an entry per layer: what the configuration says is believed once they are there.
    let layers = figures::layers("num_hidden_layers", config.num_hidden_layers, file.tensor_names(), "model.layers.");
    let layers = layers.map_err(folder::in_config)?;
    let deepest = file.tensor(&deepest(layers - 1));
    let (Some(deepest), Some(table)) = (deepest, file.tensor("model.embed_tokens.weight")) else {
        return Err(format!("the file does not have {layers} such layers and a table"));
    };
    let mut spec = DenseSpec::tiny().with_dtype(deepest.dtype);
    spec.embedding_dtype = table.dtype;
    spec.activation_dtype = DType::F32;
    spec.kv_dtype = DType::F32;
    spec.name = folder::name(folder).into();
    spec.layers = layers;
    spec.hidden = config.hidden_size;
    spec.heads = config.num_attention_heads;
    spec.kv_heads = config.num_key_value_heads.unwrap_or(spec.heads);
    let share = config.hidden_size.checked_div(u64::from(spec.heads)).and_then(|dim| u32::try_from(dim).ok());
    spec.head_dim = config.head_dim.or(share).unwrap_or(0);
    spec.intermediate = config.intermediate_size;
    spec.vocab = config.vocab_size;
    spec.tied_embeddings = config.tie_word_embeddings;
    spec.rope_theta = figures::theta("rope_theta", config.rope_theta.unwrap_or(10_000.0)).map_err(folder::in_config)?;
    spec.norm_epsilon = figures::epsilon("rms_norm_eps", config.rms_norm_eps).map_err(folder::in_config)?;
    let context = figures::context("max_position_embeddings", config.max_position_embeddings);
    spec.max_context = context.map_err(folder::in_config)?;
    Ok(spec)
}
