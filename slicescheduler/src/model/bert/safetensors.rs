//! A BERT-family encoder from a folder as the transformers library saves it.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use slicescheduler_executor::checkpoint::{CheckpointWeights, HfBert, SafetensorsFile, TensorFile};
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::templates::EncoderSpec;

use crate::model::{Bert, ModelError, figures, folder};

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
        let Some(prefix) = PREFIXES.into_iter().find(|prefix| words(prefix).is_some()) else {
            return Err(refused("the file does not have a table of words".to_owned()));
        };
        // Templates have an entry per layer: what the configuration says is believed once they are there.
        let of_layers = format!("{prefix}encoder.layer.");
        let layers = figures::layers("num_hidden_layers", config.num_hidden_layers, file.tensor_names(), &of_layers);
        let layers = layers.map_err(|reason| refused(folder::in_config(reason)))?;
        let deepest = file.tensor(&format!("{of_layers}{}.output.dense.weight", layers - 1));
        let Some(dtype) = deepest.map(|tensor| tensor.dtype) else {
            return Err(refused(format!("its layer {} is not that of an encoder", layers - 1)));
        };
        let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
        if heads == 0 || !hidden.is_multiple_of(u64::from(heads)) {
            let reason =
                format!("\"hidden_size\" is {hidden}; a multiple of {heads} \"num_attention_heads\" is wanted");
            return Err(refused(folder::in_config(reason)));
        }
        let mut spec = EncoderSpec::tiny().with_dtype(dtype);
        spec.activation_dtype = DType::F32;
        spec.name = folder::name(folder).into();
        spec.layers = layers;
        spec.hidden = hidden;
        spec.heads = heads;
        spec.intermediate = config.intermediate_size;
        spec.vocab = config.vocab_size;
        spec.positions = config.max_position_embeddings;
        spec.types = config.type_vocab_size;
        let epsilon = figures::epsilon("layer_norm_eps", config.layer_norm_eps);
        spec.norm_epsilon = epsilon.map_err(|reason| refused(folder::in_config(reason)))?;
        Ok(Self::from_spec(spec, CheckpointWeights::new(Arc::new(file), HfBert { prefix })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    /// Two layers of which a word table and a matrix each are there, which is what is looked at first.
    fn weights() -> Vec<u8> {
        let names = ["embeddings.word_embeddings", "encoder.layer.0.output.dense", "encoder.layer.1.output.dense"];
        let entry = |(at, name): (usize, &&str)| {
            format!(r#""{name}.weight":{{"dtype":"F32","shape":[1,1],"data_offsets":[{},{}]}}"#, at * 4, at * 4 + 4)
        };
        let header = format!("{{{}}}", names.iter().enumerate().map(entry).collect::<Vec<_>>().join(","));
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 12]].concat()
    }

    const CONFIG: &str = r#"{"model_type":"bert","num_hidden_layers":2,"hidden_size":384,"num_attention_heads":12,
        "intermediate_size":1536,"vocab_size":100,"type_vocab_size":2,"max_position_embeddings":512,
        "layer_norm_eps":1e-12}"#;

    #[test]
    fn figures_that_can_not_be_are_refused_with_file_and_key() {
        let folder = std::env::temp_dir().join(format!("slicescheduler-bert-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("model.safetensors"), weights()).unwrap();
        let read = |config: String| {
            std::fs::write(folder.join("config.json"), config).unwrap();
            Bert::from_safetensors(&folder)
        };
        assert_eq!(read(CONFIG.to_owned()).unwrap().max_context(), 512);
        for (right, wrong, reason) in [
            (r#"layers":2"#, r#"layers":1"#, r#""num_hidden_layers" is 1; it has weights of 2 layers"#),
            (r#"layers":2"#, r#"layers":0"#, r#""num_hidden_layers" is 0; it has weights of 2 layers"#),
            (
                r#"layers":2"#,
                r#"layers":4000000000"#,
                r#""num_hidden_layers" is 4000000000; it has weights of 2 layers"#,
            ),
            (r#"eps":1e-12"#, r#"eps":-1"#, r#""layer_norm_eps" is -1; at least 0 and less than 1 is wanted"#),
            (r#"eps":1e-12"#, r#"eps":1e39"#, r#""layer_norm_eps" is inf; at least 0 and less than 1 is wanted"#),
            (
                r#"size":384"#,
                r#"size":385"#,
                r#""hidden_size" is 385; a multiple of 12 "num_attention_heads" is wanted"#,
            ),
            (r#"heads":12"#, r#"heads":0"#, r#""hidden_size" is 384; a multiple of 0 "num_attention_heads" is wanted"#),
        ] {
            let refused = read(CONFIG.replace(right, wrong)).unwrap_err().to_string();
            assert_eq!(refused, format!("{} cannot be run: its config.json says that {reason}", folder.display()));
        }
        // No number in JSON.
        assert!(read(CONFIG.replace("1e-12", "NaN")).unwrap_err().to_string().contains("config.json"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
