//! A tenant with its model and its tokenizer.

use std::path::{Path, PathBuf};

use slicescheduler::gmg::units::Nanos;
use slicescheduler::text::{Message, Tokenizer};
use slicescheduler::{Bert, Llama, MixtureOfExperts, Model, Tenant};

use super::arguments::Wish;
use crate::Failure;

const SMOLLM2: &str = "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const MINILM: &str = "minilm";
/// What latency-sensitive tenants are promised: a first token within a second, ten per second after it.
const TTFT: Nanos = Nanos::secs(1);
const TPOT: Nanos = Nanos::ms(100);

/// Where a model comes from.
enum Source {
    Tiny,
    TinyMixture,
    Decoder(PathBuf),
    Encoder(PathBuf),
}

pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) model_name: String,
    pub(crate) best_effort: bool,
    /// Only the tiny models have none.
    pub(crate) tokenizer: Option<Tokenizer>,
    source: Source,
}

impl Served {
    pub(crate) fn load(wish: &Wish, models: &Path) -> Result<Self, Failure> {
        let source = match wish.model.as_str() {
            "tiny" => Source::Tiny,
            "tiny-moe" => Source::TinyMixture,
            "smollm2" => Source::Decoder(models.join(SMOLLM2)),
            "minilm" => Source::Encoder(models.join(MINILM)),
            path if path.ends_with(".gguf") => Source::Decoder(PathBuf::from(path)),
            path if Path::new(path).join("config.json").exists() => Source::Encoder(PathBuf::from(path)),
            other => {
                return Err(format!(
                    "tenant {:?}: no model {other:?}; known are smollm2, minilm, tiny, tiny-moe, paths to .gguf files and to folders \
                     of encoders",
                    wish.name
                )
                .into());
            }
        };
        let tokenizer = match &source {
            Source::Tiny | Source::TinyMixture => None,
            Source::Decoder(path) | Source::Encoder(path) if !path.exists() => {
                let hint = "run scripts/fetch-models, or say where the models are with --models";
                return Err(format!("tenant {:?}: {} is not there; {hint}", wish.name, path.display()).into());
            }
            Source::Decoder(file) => Some(Tokenizer::from_gguf(file)?),
            Source::Encoder(folder) => Some(Tokenizer::from_file(folder.join("tokenizer.json"))?),
        };
        let (name, model_name) = (wish.name.clone(), wish.model.clone());
        Ok(Self { name, model_name, best_effort: wish.best_effort, tokenizer, source })
    }

    pub(crate) fn model(&self) -> Result<Box<dyn Model>, Failure> {
        Ok(match &self.source {
            Source::Tiny => Box::new(Llama::tiny(1)),
            Source::TinyMixture => Box::new(MixtureOfExperts::tiny(1)),
            Source::Decoder(file) => Box::new(Llama::from_gguf(file)?),
            Source::Encoder(folder) => Box::new(Bert::from_safetensors(folder)?),
        })
    }

    /// True if it answers with vectors.
    pub(crate) fn is_encoder(&self) -> bool {
        matches!(self.source, Source::Encoder(_))
    }

    /// The tokens to ask it with.
    pub(crate) fn prompt(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let tokenizer = self.tokenizer.as_ref();
        let tokenizer =
            tokenizer.ok_or_else(|| format!("model {:?} has no tokenizer, which a text needs", self.model_name))?;
        if self.is_encoder() {
            return Ok(tokenizer.encode_framed(text)?);
        }
        Ok(tokenizer.encode(&tokenizer.chat(&[Message::user(text)])?)?)
    }

    pub(crate) fn tenant(&self) -> Tenant {
        if self.best_effort {
            Tenant::best_effort(&self.name)
        } else {
            Tenant::latency_sensitive(&self.name).ttft(TTFT).tpot(TPOT)
        }
    }
}
