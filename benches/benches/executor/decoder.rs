//! The decoder of all measurements.

use std::path::PathBuf;
use std::sync::Arc;

use slicescheduler_executor::checkpoint::{CheckpointWeights, GgufFile, GgufLlama, TensorFile};
use slicescheduler_executor::model::{CpuModel, SeededWeights};
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::templates::{DenseSpec, dense};

use crate::Outcome;

/// The configuration of SmolLM2-135M, with a context that is enough here, and its packed weights.
pub(crate) fn decoder() -> Outcome<(DenseSpec, CpuModel)> {
    let mut spec = DenseSpec::smollm2_135m().with_dtype(DType::Q4_1);
    spec.max_context = 2048;
    let folder = match std::env::var_os("SLICESCHEDULER_MODELS") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/models"),
    };
    let file = folder.join("smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
    if !file.exists() {
        println!("random weights of the shape of SmolLM2-135M, Q4_1 (scripts/fetch-models brings the real ones)");
        let template = Arc::new(dense(&spec)?);
        let model = CpuModel::decoder(&spec, template, &SeededWeights::new(1))?;
        return Ok((spec, model));
    }
    println!("SmolLM2-135M-Instruct, Q4_1");
    let file = GgufFile::open(&file)?;
    let table = file.tensor("token_embd.weight").ok_or("the file has no embedding table")?;
    spec.embedding_dtype = table.dtype;
    let naming = GgufLlama { heads: spec.heads as usize, kv_heads: spec.kv_heads as usize };
    let template = Arc::new(dense(&spec)?);
    let model = CpuModel::decoder(&spec, template, &CheckpointWeights::new(Arc::new(file), naming))?;
    Ok((spec, model))
}
