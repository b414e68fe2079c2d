//! What the executor fills and reads of a model's tensors.

use std::fmt;

use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::graph::{OpGraph, Role};
use slicescheduler_gmg::id::TensorId;
use slicescheduler_gmg::semantics::OpKind;

use crate::error::{ExecutorError, Result};

/// How a model reads, and what it answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelKind {
    /// Reads a prompt in parts, and goes on token by token.
    Decoder,
    /// Reads a text as a whole, and answers with one vector. It has no KV cache.
    Encoder,
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Decoder => "decoder",
            Self::Encoder => "encoder",
        })
    }
}

/// What an input is filled with, known by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// Per row: its token.
    TokenIds,
    /// Per row: its position.
    Positions,
    /// Rows that give an output token.
    LogitRows,
    /// Per row: its type, which is the first.
    TokenTypes,
    /// Per sequence: its rows.
    Lengths,
    /// Per sequence: its first row.
    FirstRows,
}

impl Input {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "token_ids" => Self::TokenIds,
            "positions" => Self::Positions,
            "logit_rows" => Self::LogitRows,
            "token_types" => Self::TokenTypes,
            "lengths" => Self::Lengths,
            "first_rows" => Self::FirstRows,
            _ => return None,
        })
    }
}

/// What the last operator leaves for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// The next token of each sequence that emits.
    Tokens(TensorId),
    /// A vector of each sequence.
    Embeddings(TensorId),
}

/// The inputs that the executor fills, and the output that it reads.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    pub(crate) inputs: Box<[(TensorId, Input)]>,
    pub(crate) output: Output,
}

impl Ports {
    /// Those of a decoder, or of an encoder.
    pub(crate) fn of(template: &OpGraph) -> Result<Self> {
        let find = |name: &str, role: Role, dtype: DType| {
            let found = template.find_tensor(name).and_then(|id| template.tensor(id));
            let found = found.filter(|view| view.tensor.role == role && view.tensor.dtype == dtype);
            found
                .map(|view| view.id)
                .ok_or_else(|| not_a_model(template, format!("it has no {role} {name:?} of {dtype}")))
        };
        let (output, needed): (_, &[&str]) = match find("embeddings", Role::Output, DType::F32) {
            Ok(embeddings) => (Output::Embeddings(embeddings), &["token_ids", "positions", "lengths"]),
            Err(_) => {
                (Output::Tokens(find("next_ids", Role::Output, DType::U32)?), &["token_ids", "positions", "logit_rows"])
            }
        };
        for name in needed {
            find(name, Role::Input, DType::U32)?;
        }
        let inputs = template.tensors().filter(|view| view.tensor.role == Role::Input).map(|view| {
            let name = view.name().to_string();
            let known = Input::of(&name).filter(|_| view.tensor.dtype == DType::U32);
            known
                .map(|input| (view.id, input))
                .ok_or_else(|| not_a_model(template, format!("nothing fills its input {name:?}")))
        });
        Ok(Self { inputs: inputs.collect::<Result<_>>()?, output })
    }

    pub(crate) fn kind(&self) -> ModelKind {
        match self.output {
            Output::Tokens(_) => ModelKind::Decoder,
            Output::Embeddings(_) => ModelKind::Encoder,
        }
    }
}

/// The heads of the cache and their size, the same in all layers; none of an encoder, which has no cache.
pub(crate) fn kv_shape(template: &OpGraph, ports: &Ports) -> Result<(usize, usize)> {
    let mut shape = None;
    for op in template.ops() {
        if let OpKind::Rotary { kv_heads, head_dim, .. } = *op.kind() {
            let found = (kv_heads as usize, head_dim as usize);
            if *shape.get_or_insert(found) != found {
                return Err(not_a_model(template, format!("the cache of {} is unlike the first layer's", op.name())));
            }
        }
    }
    match (ports.kind(), shape) {
        (ModelKind::Decoder, Some(shape)) => Ok(shape),
        (ModelKind::Encoder, None) => Ok((0, 0)),
        (ModelKind::Decoder, None) => Err(not_a_model(template, "it has no rotary operator".to_owned())),
        (ModelKind::Encoder, Some(_)) => Err(not_a_model(template, "an encoder has no cache".to_owned())),
    }
}

fn not_a_model(template: &OpGraph, reason: String) -> ExecutorError {
    ExecutorError::NotAModel { template: template.name().to_owned(), reason }
}
