//! A BERT-family encoder from a folder as the transformers library saves it.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use slicescheduler_executor::checkpoint::{CheckpointWeights, HfBert, SafetensorsFile, TensorFile};
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::templates::EncoderSpec;

use crate::model::{Bert, ModelError, folder};

/// Models with a head for some task have the encoder under this name.
const PREFIXES: [&str; 2] = ["", "bert."];

/// What is needed of `config.json`.
#[derive(Debug, Deserialize)]
struct Config {
    model_type: String,
    num_hidden_layers: u32,
    hidden_size: u64,
    num_attention_heads: u32,
    intermediate_size: u64,
    vocab_size: u64,
    type_vocab_size: u64,
    max_position_embeddings: u64,
    layer_norm_eps: f32,
    hidden_act: Option<String>,
    position_embedding_type: Option<String>,
}

impl Config {
    /// What cannot be run here, if there is something.
    fn obstacle(&self) -> Option<String> {
        let wanted = [
            ("model type", Some(&self.model_type), "bert"),
            ("activation", self.hidden_act.as_ref(), "gelu"),
            ("kind of positions", self.position_embedding_type.as_ref(), "absolute"),
        ];
        let (what, found, right) = wanted
            .into_iter()
            .find_map(|(what, found, right)| Some((what, found.filter(|it| *it != right)?, right)))?;
        Some(format!("its {what} is {found:?}; {right:?} is supported"))
    }
}

impl Bert {
    /// A model from a folder with `config.json` and `model.safetensors`, as the transformers library
    /// saves models of type `bert`; weights are F32, F16 or BF16. The file is mapped, and read when
    /// the model is built for a backend.
    ///
    /// The vector of a text is the mean of its tokens' scaled to length 1, as Sentence-BERT has it
    /// (Reimers & Gurevych 2019), unless [`pooled_by`](Self::pooled_by) says otherwise: what a model was
    /// trained for is not in these files.
    ///
    /// # Errors
    /// When a file cannot be read, or is of a model that cannot be run here.
    pub fn from_safetensors(folder: impl AsRef<Path>) -> Result<Self, ModelError> {
        let folder = folder.as_ref();
        let config: Config = folder::json(&folder.join("config.json"))?;
        let file = SafetensorsFile::open(&folder.join("model.safetensors"))?;
        let refused = |reason: String| ModelError::Unsupported { path: folder.to_owned(), reason };
        if let Some(obstacle) = config.obstacle() {
            return Err(refused(obstacle));
        }
        let words = |prefix: &&str| file.tensor(&format!("{prefix}embeddings.word_embeddings.weight"));
        let prefix = PREFIXES.into_iter().find(|prefix| words(prefix).is_some());
        // Templates have an entry per layer: what the configuration says is believed once they are there.
        let deepest = prefix.zip(config.num_hidden_layers.checked_sub(1)).and_then(|(prefix, layer)| {
            let tensor = file.tensor(&format!("{prefix}encoder.layer.{layer}.output.dense.weight"))?;
            Some((prefix, tensor.dtype))
        });
        let Some((prefix, dtype)) = deepest else {
            return Err(refused(format!("the file does not have {} layers and a table", config.num_hidden_layers)));
        };
        let mut spec = EncoderSpec::tiny().with_dtype(dtype);
        spec.activation_dtype = DType::F32;
        spec.name = folder::name(folder).into();
        spec.layers = config.num_hidden_layers;
        spec.hidden = config.hidden_size;
        spec.heads = config.num_attention_heads;
        spec.intermediate = config.intermediate_size;
        spec.vocab = config.vocab_size;
        spec.positions = config.max_position_embeddings;
        spec.types = config.type_vocab_size;
        spec.norm_epsilon = config.layer_norm_eps;
        Ok(Self::from_spec(spec, CheckpointWeights::new(Arc::new(file), HfBert { prefix })))
    }
}
