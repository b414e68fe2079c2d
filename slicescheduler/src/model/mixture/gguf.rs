//! A mixture of experts from a GGUF file.

use std::path::Path;
use std::sync::Arc;

use slicescheduler_executor::checkpoint::{
    CheckpointWeights, ExpertNames, GgufFile, GgufLlama, GgufQwen, TensorFile, WithExperts,
};
use slicescheduler_executor::model::WeightSource;
use slicescheduler_gmg::templates::MoeSpec;

use crate::model::llama::gguf::{Reason, end_of_sequence, spec};
use crate::model::{MixtureOfExperts, ModelError};

impl MixtureOfExperts {
    /// A model from a GGUF file whose architecture is `llama` with experts (Mixtral) or `qwen3moe`, with weights of F32,
    /// F16, BF16, Q8_0, Q4_0 or Q4_1. The file is mapped, and read when the model is built for a backend. Answers
    /// end with the file's end-of-sequence token. The experts of a layer are in one tensor or each in its own.
    ///
    /// Weights stay as they are in the file. If the matrices of a file besides the routers are of several types, all but
    /// the embedding table become F32, which is exact.
    ///
    /// # Errors
    /// When the file cannot be read, or is of a model that cannot be run here: with experts that all tokens share, with
    /// layers without experts, or with weights of experts that are no softmax.
    pub fn from_gguf(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let file = GgufFile::open(path)?;
        Self::read(file, path)
            .map_err(|reason: Reason| ModelError::Unsupported { path: path.to_owned(), reason: reason.0 })
    }

    fn read(file: GgufFile, path: &Path) -> Result<Self, Reason> {
        let architecture = file.text("general.architecture")?.to_owned();
        let (width, qwen) = match &*architecture {
            "llama" => ("feed_forward_length", false),
            "qwen3moe" => ("expert_feed_forward_length", true),
            other => {
                let reason = format!("its architecture is {other:?}; \"llama\" and \"qwen3moe\" are supported");
                return Err(Reason(reason));
            }
        };
        let key = |name: &str| format!("{architecture}.{name}");
        let count = |name: &str| -> Result<u32, Reason> {
            let value = file.number(&key(name))?;
            u32::try_from(value).map_err(|_| Reason(format!("{:?} is {value}, which is too large", key(name))))
        };
        // A softmax (1) over those that were chosen, times one.
        let gating = file.number(&key("expert_gating_func")).is_ok_and(|function| function > 1);
        let scaled = file.float(&key("expert_weights_scale")).is_ok_and(|scale| scale != 1.0 && scale != 0.0);
        if gating || scaled {
            return Err(Reason("its experts are weighted by something else than a softmax".to_owned()));
        }
        if file.tensor_names().any(|name| name.ends_with("_shexp.weight")) {
            return Err(Reason("it has experts that all tokens share, which are not supported".to_owned()));
        }
        let mut base = spec(&file, path, &architecture, width)?;
        base.qk_norm = qwen;
        let (experts, top) = (count("expert_count")?, count("expert_used_count")?);
        let of_layer = |layer| file.tensor(&format!("blk.{layer}.ffn_gate_inp.weight"));
        let routers = (0..base.layers).all(|layer| of_layer(layer).is_some());
        if !routers || experts == 0 || top == 0 || top > experts {
            let layers = base.layers;
            return Err(Reason(format!(
                "of {layers} layers not each has {experts} experts, of which {top} are chosen"
            )));
        }
        let names = match file.tensor("blk.0.ffn_down_exps.weight") {
            Some(_) => ExpertNames::Gguf,
            None => ExpertNames::GgufApart,
        };
        let (heads, kv_heads) = (base.heads as usize, base.kv_heads as usize);
        let end = end_of_sequence(&file, base.vocab)?;
        let file = Arc::new(file);
        let weights: Box<dyn WeightSource> = if qwen {
            Box::new(CheckpointWeights::new(file, WithExperts { rest: GgufQwen, names }))
        } else {
            Box::new(CheckpointWeights::new(file, WithExperts { rest: GgufLlama { heads, kv_heads }, names }))
        };
        let mut spec = MoeSpec::tiny();
        (spec.base, spec.experts, spec.top) = (base, experts, top);
        Ok(Self { spec, weights, end_of_sequence: end })
    }
}
