//! Which tensors of a file make up a weight of a template.

use std::fmt::Debug;

/// A tensor of a file whose rows are rows of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name in the file.
    pub tensor: String,
    /// The order of its rows.
    pub order: RowOrder,
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
    /// template; none if there is no such weight.
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

/// Decoders of the Llama family as the transformers library saves them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HfLlama;

/// Encoders of the BERT family as the transformers library saves them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HfBert {
    /// What comes before every name, such as `bert.` in models with a head for some task.
    pub prefix: &'static str,
}

fn plain(tensor: impl Into<String>) -> Part {
    Part { tensor: tensor.into(), order: RowOrder::AsStored }
}

/// A weight of a repeated block: its repetition, and its name in it.
fn in_layer(weight: &str) -> Option<(u32, &str)> {
    let (layer, name) = weight.strip_prefix("layers.")?.split_once('.')?;
    Some((layer.parse().ok()?, name.strip_suffix(".weight")?))
}

impl Naming for GgufLlama {
    fn parts(&self, weight: &str) -> Option<Vec<Part>> {
        let Some((layer, name)) = in_layer(weight) else {
            return Some(vec![plain(match weight {
                "embed.weight" => "token_embd.weight",
                "norm.weight" => "output_norm.weight",
                "lm_head.weight" => "output.weight",
                _ => return None,
            })]);
        };
        let stored = |name: &str| format!("blk.{layer}.{name}.weight");
        let rotated = |name, heads| Part { tensor: stored(name), order: RowOrder::PairedHeads { heads } };
        Some(match name {
            "attn.norm" => vec![plain(stored("attn_norm"))],
            "attn.qkv" => {
                vec![rotated("attn_q", self.heads), rotated("attn_k", self.kv_heads), plain(stored("attn_v"))]
            }
            "attn.o" => vec![plain(stored("attn_output"))],
            "mlp.norm" => vec![plain(stored("ffn_norm"))],
            "mlp.gate_up" => vec![plain(stored("ffn_gate")), plain(stored("ffn_up"))],
            "mlp.down" => vec![plain(stored("ffn_down"))],
            _ => return None,
        })
    }
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
