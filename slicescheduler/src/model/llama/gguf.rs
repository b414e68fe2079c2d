//! A Llama-family decoder from a GGUF file, and what mixtures of experts share with it.

use std::path::Path;
use std::sync::Arc;

use slicescheduler_executor::checkpoint::{CheckpointWeights, GgufError, GgufFile, GgufLlama, GgufValue, TensorFile};
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::templates::DenseSpec;

use crate::model::{Llama, ModelError, figures};

impl Llama {
    /// A model from a GGUF file whose architecture is `llama`, with weights of F32, F16, BF16, Q8_0,
    /// Q4_0 or Q4_1. The file is mapped, and read when the model is built for a backend. Answers end
    /// with the file's end-of-sequence token.
    ///
    /// Weights stay as they are in the file. If the matrices of a file are of several types, all but
    /// the embedding table become F32, which is exact.
    ///
    /// # Errors
    /// When the file cannot be read, or is of a model that cannot be run here.
    pub fn from_gguf(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let file = GgufFile::open(path)?;
        let refused = |reason: Reason| ModelError::Unsupported { path: path.to_owned(), reason: reason.0 };
        let spec = of_llama(&file, path).map_err(refused)?;
        let naming = GgufLlama { heads: spec.heads as usize, kv_heads: spec.kv_heads as usize };
        let end = end_of_sequence(&file, spec.vocab).map_err(refused)?;
        let model = Self::from_spec(spec, CheckpointWeights::new(Arc::new(file), naming));
        Ok(Self { end_of_sequence: end, ..model })
    }
}

/// Why a file's model is not one that can be run.
pub(in crate::model) struct Reason(pub(in crate::model) String);

impl From<GgufError> for Reason {
    fn from(error: GgufError) -> Self {
        Self(error.to_string())
    }
}

impl From<String> for Reason {
    fn from(reason: String) -> Self {
        Self(reason)
    }
}

fn of_llama(file: &GgufFile, path: &Path) -> Result<DenseSpec, Reason> {
    let architecture = file.text("general.architecture")?;
    if architecture != "llama" {
        return Err(Reason(format!("its architecture is {architecture:?}; \"llama\" is supported")));
    }
    if file.number("llama.expert_count").is_ok_and(|count| count > 0) {
        return Err(Reason("it is a mixture of experts; MixtureOfExperts::from_gguf reads it".to_owned()));
    }
    spec(file, path, architecture, "feed_forward_length")
}

/// The token that ends answers, if the file says one.
pub(in crate::model) fn end_of_sequence(file: &GgufFile, vocabulary: u64) -> Result<Option<u32>, Reason> {
    const KEY: &str = "tokenizer.ggml.eos_token_id";
    match file.value(KEY) {
        None => Ok(None),
        Some(_) => Ok(Some(figures::token(KEY, file.number(KEY)?, vocabulary)?)),
    }
}

/// The configuration of a decoder of an architecture that is known here, of which `width` says how wide a feed-forward
/// network is.
pub(in crate::model) fn spec(
    file: &GgufFile,
    path: &Path,
    architecture: &str,
    width: &str,
) -> Result<DenseSpec, Reason> {
    let key = |name: &str| format!("{architecture}.{name}");
    let scaling = key("rope.scaling.type");
    if file.value(&scaling).is_some_and(|value| value != GgufValue::Text("none")) {
        return Err(Reason(format!("it has {scaling:?}, which is not supported")));
    }
    if file.tensor_names().any(|name| name == "rope_freqs.weight" || name.ends_with(".bias")) {
        return Err(Reason("it has biases or scaled rotations, which are not supported".to_owned()));
    }
    let small = |name: &str| -> Result<u32, Reason> {
        let value = file.number(&key(name))?;
        u32::try_from(value).map_err(|_| Reason(format!("{:?} is {value}, which is too large", key(name))))
    };
    let or = |name: &str, default: u32| if file.value(&key(name)).is_some() { small(name) } else { Ok(default) };

    let (layers, hidden, heads) =
        (small("block_count")?, file.number(&key("embedding_length"))?, small("attention.head_count")?);
    let head_dim = match hidden.checked_div(u64::from(heads)).and_then(|dim| u32::try_from(dim).ok()) {
        Some(dim) => or("attention.key_length", dim)?,
        None => return Err(Reason(format!("it has {heads} heads for {hidden} elements"))),
    };
    if or("rope.dimension_count", head_dim)? != head_dim {
        return Err(Reason("only a part of each head is rotated, which is not supported".to_owned()));
    }
    // Templates have an entry per layer: what a file says is believed once the layers are there.
    let layers = figures::layers(&key("block_count"), layers, file.tensor_names(), "blk.")?;
    if file.tensor(&format!("blk.{}.attn_norm.weight", layers - 1)).is_none() {
        return Err(Reason(format!("its layer {} is not that of a decoder", layers - 1)));
    }
    let Some(table) = file.tensor("token_embd.weight") else {
        return Err(Reason("it has no embedding table of a supported type".to_owned()));
    };
    let (theta, epsilon) = (key("rope.freq_base"), key("attention.layer_norm_rms_epsilon"));
    let name = file.text("general.name").map(str::to_owned);
    let name = name.ok().or_else(|| Some(path.file_stem()?.to_str()?.to_owned()));
    let mut spec = DenseSpec::tiny().with_dtype(matrix_dtype(file));
    spec.name = name.unwrap_or_else(|| "llama".to_owned()).into();
    spec.layers = layers;
    spec.hidden = hidden;
    spec.heads = heads;
    spec.kv_heads = or("attention.head_count_kv", heads)?;
    spec.head_dim = head_dim;
    spec.intermediate = file.number(&key(width))?;
    spec.vocab = table.shape.first().map_or(0, |&rows| rows as u64);
    spec.embedding_dtype = table.dtype;
    spec.activation_dtype = DType::F32;
    spec.kv_dtype = DType::F32;
    spec.tied_embeddings = !file.tensor_names().any(|name| name == "output.weight");
    let base = if file.value(&theta).is_some() { file.float(&theta)? as f32 } else { 10_000.0 };
    spec.rope_theta = figures::theta(&theta, base)?;
    spec.norm_epsilon = figures::epsilon(&epsilon, file.float(&epsilon)? as f32)?;
    spec.max_context = figures::context(&key("context_length"), small("context_length")?)?;
    Ok(spec)
}

/// The type of all matrices besides the embedding table and the routers, or the one that holds any of them exactly.
fn matrix_dtype(file: &GgufFile) -> DType {
    let apart = |name: &&str| *name == "token_embd.weight" || name.ends_with("ffn_gate_inp.weight");
    let tensors = file.tensor_names().filter(|name| !apart(name)).filter_map(|name| file.tensor(name));
    let mut dtypes = tensors.filter(|tensor| tensor.shape.len() >= 2).map(|tensor| tensor.dtype);
    let first = dtypes.next().unwrap_or(DType::F32);
    if dtypes.all(|dtype| dtype == first) { first } else { DType::F32 }
}
