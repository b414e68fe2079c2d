//! How many KV blocks an engine has.
//!
//! vLLM gives the cache what is left of its share of the device's memory after the weights, the largest activations
//! of a trial iteration, and what libraries hold outside of its allocator. The first two follow from shapes:
//!
//! - activations: an iteration of the full token budget, whose widest moment is the feed-forward part: both halves of
//!   its first product and their product, beside four times the width;
//! - sampling at the largest batch: logits in single precision, and what sorting them for top-k and top-p takes: the
//!   sorted values, their indices in 64 bits, and probabilities.
//!
//! Libraries are taken as 300 MiB, and 600 MiB more per further rank for communication buffers. One block is set aside
//! by vLLM as a placeholder; [`KvBlocks::blocks`] counts it.

use super::{DeviceFacts, FidelityError, ModelShape, Run};

const LIBRARIES: u64 = 300 << 20;
const COMMUNICATION: u64 = 600 << 20;

/// The KV cache of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvBlocks {
    /// Blocks, with the placeholder.
    pub blocks: u32,
    /// Blocks by the engine's rules, whatever it wrote down, if the memory of the device is known.
    pub derived: Option<u32>,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Where the number comes from.
    pub how: String,
}

impl KvBlocks {
    /// Blocks that sequences can hold.
    pub fn usable(&self) -> u32 {
        self.blocks.saturating_sub(1)
    }
}

/// The KV cache of `run`: what the engine wrote down, else derived from the device's memory.
///
/// # Errors
/// If neither is known.
pub fn derive(run: &Run, shape: &ModelShape, device: Option<&DeviceFacts>) -> Result<KvBlocks, FidelityError> {
    let block_tokens = run.block_tokens().max(1);
    let memory = run.device_memory().or(device.map(|device| device.memory));
    let derived = memory.map(|memory| from_memory(run, shape, memory, block_tokens));
    match (run.kv_blocks(), derived) {
        (Some(blocks), derived) => {
            let how = match derived {
                Some(derived) => format!("written down by the engine (derived: {derived})"),
                None => "written down by the engine".into(),
            };
            Ok(KvBlocks { blocks, derived, block_tokens, how })
        }
        (None, Some(blocks)) => {
            let how = format!(
                "derived from {:.2} GiB of device memory at {:.2}: less weights, activations and libraries",
                memory.unwrap_or_default() as f64 / f64::from(1u32 << 30),
                run.memory_share(),
            );
            Ok(KvBlocks { blocks, derived, block_tokens, how })
        }
        (None, None) => Err(FidelityError::Unknown {
            what: "the number of KV blocks",
            run: run.folder.clone(),
            remedy: "state kv_cache.num_gpu_blocks or hardware.device_total_memory_bytes in meta.json",
        }),
    }
}

fn from_memory(run: &Run, shape: &ModelShape, memory: u64, block_tokens: u32) -> u32 {
    let parallel = run.parallel();
    let ranks = parallel.tensor;
    let settings = run.scheduler();
    let tokens = u64::from(settings.max_num_batched_tokens.unwrap_or(2048));
    let sequences = u64::from(settings.max_num_seqs.unwrap_or(256));
    let wide = match shape.experts {
        Some(experts) => u64::from(shape.intermediate) * u64::from(experts.per_token),
        None => u64::from(shape.intermediate),
    };
    let activations = tokens * (4 * u64::from(shape.hidden) + 3 * wide / u64::from(ranks)) * 2;
    let sampling = sequences * u64::from(shape.vocabulary) * (4 + 4 + 8 + 4);
    let others = LIBRARIES + COMMUNICATION * u64::from(ranks * parallel.data - 1);
    let share = (memory as f64 * run.memory_share()) as u64;
    let cache =
        share.saturating_sub(shape.weight_bytes(ranks, parallel.expert_ranks(), 2) + activations + sampling + others);
    let block = shape.kv_bytes_per_token(ranks, run.kv_bytes()) * u64::from(block_tokens);
    u32::try_from(cache / block.max(1)).unwrap_or(u32::MAX)
}
