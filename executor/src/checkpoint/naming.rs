//! Which tensors of a file make up a weight of a template.

use std::fmt::Debug;

/// A tensor of a file whose rows are rows of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name in the file.
    pub tensor: String,
    /// The order of its rows.
    pub order: RowOrder,
    /// Which matrix of a tensor with three dimensions, counted along the outermost; none of one with fewer.
    pub matrix: Option<usize>,
}

/// How the rows of a stored tensor are to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// One after the other.
    AsStored,
    /// Elements that are rotated together lie side by side in the file, as llama.cpp has them; here
    /// they are half a head apart.
    PairedHeads {
        /// Heads of the tensor.
        heads: usize,
    },
}

impl RowOrder {
    /// Which row of the file is row `row` of `rows`; none if the rows do not make whole heads.
    pub(super) fn stored_row(self, row: usize, rows: usize) -> Option<usize> {
        match self {
            Self::AsStored => Some(row),
            Self::PairedHeads { heads } => {
                let head_dim = rows.checked_div(heads).filter(|dim| dim * heads == rows && dim % 2 == 0 && *dim > 0)?;
                let (head, element, half) = (row / head_dim, row % head_dim, head_dim / 2);
                Some(head * head_dim + 2 * (element % half) + element / half)
            }
        }
    }
}

/// The names of a family of checkpoints.
pub trait Naming: Debug + Send + Sync {
    /// The tensors whose rows, one tensor after the other, are the weight of this name in the
    /// template; none if there is no such weight. Of a weight with a matrix for each expert, each is asked for by
    /// itself: see [`Shard::name`](crate::model::Shard::name).
    fn parts(&self, weight: &str) -> Option<Vec<Part>>;
}

/// Decoders of the Llama family in GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgufLlama {
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
}

/// Decoders of the Qwen family in GGUF files: the names of [`GgufLlama`], with the rows of heads in the order in which
/// they are rotated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GgufQwen;

/// Decoders of the Llama family, and Qwen's, as the transformers library saves them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HfLlama;

/// Encoders of the BERT family as the transformers library saves them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HfBert {
    /// What comes before every name, such as `bert.` in models with a head for some task.
    pub prefix: &'static str,
}

/// The names of the experts of a mixture, around those of everything else of its decoder.
///
/// ```
/// use slicescheduler_executor::checkpoint::{ExpertNames, HfLlama, Naming, WithExperts};
///
/// let mixtral = WithExperts { rest: HfLlama, names: ExpertNames::HfMixtral };
/// let parts = mixtral.parts("layers.3.mlp.down.weight.7").unwrap_or_default();
/// assert_eq!(parts[0].tensor, "model.layers.3.block_sparse_moe.experts.7.w2.weight");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithExperts<N> {
    /// The names of everything else.
    pub rest: N,
    /// Those of routers and experts.
    pub names: ExpertNames,
}

/// How files call the routers and experts of a mixture, here of the first layer and of its first expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExpertNames {
    /// GGUF: `blk.0.ffn_gate_inp.weight`, and all experts of a layer in `blk.0.ffn_gate_exps.weight`.
    Gguf,
    /// GGUF as it was before experts came into one tensor: `blk.0.ffn_gate.0.weight`.
    GgufApart,
    /// Mixtral in the transformers library: `model.layers.0.block_sparse_moe.experts.0.w1.weight`.
    HfMixtral,
    /// Qwen 3 in the transformers library: `model.layers.0.mlp.experts.0.gate_proj.weight`.
    HfQwen,
}

impl ExpertNames {
    fn router(self, layer: u32) -> String {
        match self {
            Self::Gguf | Self::GgufApart => format!("blk.{layer}.ffn_gate_inp.weight"),
            Self::HfMixtral => format!("model.layers.{layer}.block_sparse_moe.gate.weight"),
            Self::HfQwen => format!("model.layers.{layer}.mlp.gate.weight"),
        }
    }

    /// `part` is 0 for the gate, 1 for what it gates, 2 for the way back.
    fn part(self, layer: u32, expert: usize, part: usize) -> Part {
        let of_gguf = ["ffn_gate", "ffn_up", "ffn_down"][part];
        match self {
            Self::Gguf => Part { matrix: Some(expert), ..plain(format!("blk.{layer}.{of_gguf}_exps.weight")) },
            Self::GgufApart => plain(format!("blk.{layer}.{of_gguf}.{expert}.weight")),
            Self::HfMixtral => {
                let name = ["w1", "w3", "w2"][part];
                plain(format!("model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}.weight"))
            }
            Self::HfQwen => {
                let name = ["gate_proj", "up_proj", "down_proj"][part];
                plain(format!("model.layers.{layer}.mlp.experts.{expert}.{name}.weight"))
            }
        }
    }
}

impl<N: Naming> Naming for WithExperts<N> {
    fn parts(&self, weight: &str) -> Option<Vec<Part>> {
        let of_experts = |weight: &str| {
            let (layer, name) = weight.strip_prefix("layers.")?.split_once('.')?;
            let layer = layer.parse().ok()?;
            if name == "mlp.router.weight" {
                return Some(vec![plain(self.names.router(layer))]);
            }
            let (name, expert) = name.rsplit_once(".weight.")?;
            let expert: usize = expert.parse().ok()?;
            let part = |part| self.names.part(layer, expert, part);
            match name {
                "mlp.gate_up" => Some(vec![part(0), part(1)]),
                "mlp.down" => Some(vec![part(2)]),
                _ => None,
            }
        };
        of_experts(weight).or_else(|| self.rest.parts(weight))
    }
}

fn plain(tensor: impl Into<String>) -> Part {
    Part { tensor: tensor.into(), order: RowOrder::AsStored, matrix: None }
}

/// A weight of a repeated block: its repetition, and its name in it.
fn in_layer(weight: &str) -> Option<(u32, &str)> {
    let (layer, name) = weight.strip_prefix("layers.")?.split_once('.')?;
    Some((layer.parse().ok()?, name.strip_suffix(".weight")?))
}

impl Naming for GgufLlama {
    fn parts(&self, weight: &str) -> Option<Vec<Part>> {
        let heads = |heads| RowOrder::PairedHeads { heads };
        gguf(weight, heads(self.heads), heads(self.kv_heads))
    }
}

impl Naming for GgufQwen {
    fn parts(&self, weight: &str) -> Option<Vec<Part>> {
        gguf(weight, RowOrder::AsStored, RowOrder::AsStored)
    }
}

/// The tensors of a decoder in GGUF files, with the order of the rows of queries and keys.
fn gguf(weight: &str, queries: RowOrder, keys: RowOrder) -> Option<Vec<Part>> {
    let Some((layer, name)) = in_layer(weight) else {
        return Some(vec![plain(match weight {
            "embed.weight" => "token_embd.weight",
            "norm.weight" => "output_norm.weight",
            "lm_head.weight" => "output.weight",
            _ => return None,
        })]);
    };
    let stored = |name: &str| plain(format!("blk.{layer}.{name}.weight"));
    let rotated = |name, order| Part { order, ..stored(name) };
    Some(match name {
        "attn.norm" => vec![stored("attn_norm")],
        "attn.qkv" => vec![rotated("attn_q", queries), rotated("attn_k", keys), stored("attn_v")],
        "attn.q_norm" => vec![stored("attn_q_norm")],
        "attn.k_norm" => vec![stored("attn_k_norm")],
        "attn.o" => vec![stored("attn_output")],
        "mlp.norm" => vec![stored("ffn_norm")],
        "mlp.gate_up" => vec![stored("ffn_gate"), stored("ffn_up")],
        "mlp.down" => vec![stored("ffn_down")],
        _ => return None,
    })
}

impl Naming for HfLlama {
    fn parts(&self, weight: &str) -> Option<Vec<Part>> {
        let Some((layer, name)) = in_layer(weight) else {
            return Some(vec![plain(match weight {
                "embed.weight" => "model.embed_tokens.weight",
                "norm.weight" => "model.norm.weight",
                "lm_head.weight" => "lm_head.weight",
                _ => return None,
            })]);
        };
        let parts: &[&str] = match name {
            "attn.norm" => &["input_layernorm"],
            "attn.qkv" => &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            "attn.q_norm" => &["self_attn.q_norm"],
            "attn.k_norm" => &["self_attn.k_norm"],
            "attn.o" => &["self_attn.o_proj"],
            "mlp.norm" => &["post_attention_layernorm"],
            "mlp.gate_up" => &["mlp.gate_proj", "mlp.up_proj"],
            "mlp.down" => &["mlp.down_proj"],
            _ => return None,
        };
        Some(parts.iter().map(|part| plain(format!("model.layers.{layer}.{part}.weight"))).collect())
    }
}

impl Naming for HfBert {
    fn parts(&self, weight: &str) -> Option<Vec<Part>> {
        let (name, kind) = weight.rsplit_once('.')?;
        let stored = |name: &str, kind: &str| plain(format!("{}{name}.{kind}", self.prefix));
        let norm = |name: &str| vec![stored(&format!("{name}.LayerNorm"), kind)];
        let Some((layer, name)) = name.strip_prefix("layers.").and_then(|name| name.split_once('.')) else {
            return Some(match name {
                "embed.words" => vec![stored("embeddings.word_embeddings", kind)],
                "embed.positions" => vec![stored("embeddings.position_embeddings", kind)],
                "embed.types" => vec![stored("embeddings.token_type_embeddings", kind)],
                "embed.norm" => norm("embeddings"),
                "pooler" => vec![stored("pooler.dense", kind)],
                _ => return None,
            });
        };
        let in_layer = |name: &str| format!("encoder.layer.{layer}.{name}");
        Some(match name {
            "attn.qkv" => {
                ["query", "key", "value"].map(|part| stored(&in_layer(&format!("attention.self.{part}")), kind)).into()
            }
            "attn.o" => vec![stored(&in_layer("attention.output.dense"), kind)],
            "attn.norm" => norm(&in_layer("attention.output")),
            "mlp.up" => vec![stored(&in_layer("intermediate.dense"), kind)],
            "mlp.down" => vec![stored(&in_layer("output.dense"), kind)],
            "mlp.norm" => norm(&in_layer("output")),
            _ => return None,
        })
    }
}
