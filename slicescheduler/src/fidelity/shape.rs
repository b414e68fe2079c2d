//! Published shapes of models.

use std::path::Path;

use serde::Deserialize;

use super::FidelityError;
use crate::simulator::profile::llmservingsim::LayerShape;

/// Experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub count: u32,
    /// How many a token takes.
    pub per_token: u32,
}

/// The shape of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// Layers.
    pub layers: u32,
    /// Width.
    pub hidden: u32,
    /// Attention heads.
    pub heads: u32,
    /// Key-value heads.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Width of the feed-forward part, or of one expert.
    pub intermediate: u32,
    /// Tokens of the vocabulary.
    pub vocabulary: u32,
    /// True if the embedding is also the output matrix.
    pub tied: bool,
    /// Experts; [`None`] for a dense model.
    pub experts: Option<Experts>,
}

/// Layers, hidden, heads, key-value heads, width of a head, intermediate, vocabulary, tied, experts, per token.
type Row = (&'static str, [u32; 7], bool, [u32; 2]);

/// From the `config.json` that the models' publishers put beside the weights.
const KNOWN: [Row; 18] = [
    ("llama-3.1-8b", [32, 4096, 32, 8, 128, 14336, 128_256], false, [0, 0]),
    ("meta-llama-3-8b", [32, 4096, 32, 8, 128, 14336, 128_256], false, [0, 0]),
    ("llama-3.1-70b", [80, 8192, 64, 8, 128, 28672, 128_256], false, [0, 0]),
    ("llama-3.3-70b", [80, 8192, 64, 8, 128, 28672, 128_256], false, [0, 0]),
    ("llama-3.2-1b", [16, 2048, 32, 8, 64, 8192, 128_256], true, [0, 0]),
    ("llama-3.2-3b", [28, 3072, 24, 8, 128, 8192, 128_256], true, [0, 0]),
    ("mistral-7b", [32, 4096, 32, 8, 128, 14336, 32768], false, [0, 0]),
    ("mixtral-8x7b", [32, 4096, 32, 8, 128, 14336, 32000], false, [8, 2]),
    ("mixtral-8x22b", [56, 6144, 48, 8, 128, 16384, 32768], false, [8, 2]),
    ("phi-3.5-moe", [32, 4096, 32, 8, 128, 6400, 32064], false, [16, 2]),
    ("qwen3-0.6b", [28, 1024, 16, 8, 128, 3072, 151_936], true, [0, 0]),
    ("qwen3-1.7b", [28, 2048, 16, 8, 128, 6144, 151_936], true, [0, 0]),
    ("qwen3-4b", [36, 2560, 32, 8, 128, 9728, 151_936], true, [0, 0]),
    ("qwen3-8b", [36, 4096, 32, 8, 128, 12288, 151_936], false, [0, 0]),
    ("qwen3-14b", [40, 5120, 40, 8, 128, 17408, 151_936], false, [0, 0]),
    ("qwen3-32b", [64, 5120, 64, 8, 128, 25600, 151_936], false, [0, 0]),
    ("qwen3-30b-a3b", [48, 2048, 32, 4, 128, 768, 151_936], false, [128, 8]),
    ("qwen3-235b-a22b", [94, 4096, 64, 4, 128, 1536, 151_936], false, [128, 8]),
];

#[derive(Deserialize)]
struct HuggingFace {
    num_hidden_layers: u32,
    hidden_size: u32,
    num_attention_heads: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    intermediate_size: u32,
    moe_intermediate_size: Option<u32>,
    vocab_size: u32,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(alias = "num_local_experts")]
    num_experts: Option<u32>,
    num_experts_per_tok: Option<u32>,
}

impl ModelShape {
    /// The shape of `model`, an organisation's name before a slash set aside and suffixes such as `-Instruct` ignored;
    /// [`None`] if it is not in the table.
    pub fn of(model: &str) -> Option<Self> {
        let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
        let whole = |rest: &str| rest.is_empty() || rest.starts_with('-');
        let fits = |known: &str| name.strip_prefix(known).is_some_and(whole);
        let longest = KNOWN.iter().filter(|(known, ..)| fits(known)).max_by_key(|(known, ..)| known.len());
        let &(_, [layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary], tied, [count, per_token]) =
            longest?;
        let experts = (count > 0).then_some(Experts { count, per_token });
        Some(Self { layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary, tied, experts })
    }

    /// The shape in a Hugging Face `config.json`.
    ///
    /// # Errors
    /// If the file cannot be read or does not describe a decoder.
    pub fn read(file: &Path) -> Result<Self, FidelityError> {
        let text = std::fs::read(file).map_err(|source| FidelityError::Io { file: file.into(), source })?;
        let json =
            |source: serde_json::Error| FidelityError::Json { file: file.into(), line: source.line() as u64, source };
        let config: HuggingFace = serde_json::from_slice(&text).map_err(json)?;
        let heads = config.num_attention_heads.max(1);
        Ok(Self {
            layers: config.num_hidden_layers,
            hidden: config.hidden_size,
            heads,
            kv_heads: config.num_key_value_heads.unwrap_or(heads),
            head_dim: config.head_dim.unwrap_or(config.hidden_size / heads),
            intermediate: config.moe_intermediate_size.unwrap_or(config.intermediate_size),
            vocabulary: config.vocab_size,
            tied: config.tie_word_embeddings,
            experts: config
                .num_experts
                .filter(|&count| count > 0)
                .map(|count| Experts { count, per_token: config.num_experts_per_tok.unwrap_or(1) }),
        })
    }

    /// What one of its layers computes.
    pub fn layer(&self) -> LayerShape {
        let Self { hidden, heads, kv_heads, head_dim, intermediate, vocabulary, .. } = *self;
        let has_experts = self.experts.is_some();
        LayerShape { hidden, heads, kv_heads, head_dim, intermediate, has_experts, vocabulary }
    }

    /// Bytes of the weights of one of `ranks` tensor-parallel ranks, at `bytes` per weight. Experts are spread over
    /// `expert_ranks`, or like everything else if that is 1.
    pub fn weight_bytes(&self, ranks: u32, expert_ranks: u32, bytes: u64) -> u64 {
        let [hidden, heads, kv_heads, head_dim] =
            [self.hidden, self.heads, self.kv_heads, self.head_dim].map(u64::from);
        let attention = hidden * head_dim * (2 * heads + 2 * kv_heads);
        let ranks = u64::from(ranks.max(1));
        let dense = 3 * hidden * u64::from(self.intermediate) / ranks;
        let feed_forward = match self.experts {
            Some(experts) if expert_ranks > 1 => {
                let all = 3 * hidden * u64::from(self.intermediate) * u64::from(experts.count);
                all / u64::from(expert_ranks) + hidden * u64::from(experts.count)
            }
            Some(experts) => (dense + hidden) * u64::from(experts.count),
            None => dense,
        };
        let tables = u64::from(self.vocabulary) * hidden * if self.tied { 1 } else { 2 } / ranks;
        let norms = u64::from(self.layers) * 2 * hidden + hidden;
        (u64::from(self.layers) * (attention / ranks + feed_forward) + tables + norms) * bytes
    }

    /// Bytes that a rank of `ranks` keeps per token, at `bytes` per number.
    pub fn kv_bytes_per_token(&self, ranks: u32, bytes: u64) -> u64 {
        let heads = u64::from((self.kv_heads / ranks.max(1)).max(1));
        2 * u64::from(self.layers) * heads * u64::from(self.head_dim) * bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8,030,261,248 parameters, as published; 128 KiB of keys and values per token.
    #[test]
    fn llama_8b_has_its_published_size() {
        let shape = ModelShape::of("meta-llama/Llama-3.1-8B-Instruct").unwrap();
        assert_eq!(shape.weight_bytes(1, 1, 2), 8_030_261_248 * 2);
        assert_eq!(shape.kv_bytes_per_token(1, 2), 128 * 1024);
        assert_eq!(shape.kv_bytes_per_token(2, 2), 64 * 1024);
    }

    /// 30.5 billion parameters, as published.
    #[test]
    fn experts_count_as_often_as_there_are() {
        let shape = ModelShape::of("Qwen/Qwen3-30B-A3B-Instruct-2507").unwrap();
        let billions = |expert_ranks| shape.weight_bytes(1, expert_ranks, 1) as f64 / 1e9;
        assert!((billions(1) - 30.53).abs() < 0.02, "{}", billions(1));
        assert!((billions(2) - 16.04).abs() < 0.02, "half of 29.0 billion in experts stays: {}", billions(2));
    }

    #[test]
    fn a_name_fits_as_a_whole() {
        assert!(ModelShape::of("Qwen/Qwen3-32B").is_some());
        assert_eq!(ModelShape::of("Qwen/Qwen3-32B2"), None);
        assert_eq!(ModelShape::of("unknown"), None);
    }
}
