//! A tenant with its model and its tokenizer.

use std::path::{Path, PathBuf};

use slicescheduler::gmg::units::Nanos;
use slicescheduler::text::Tokenizer;
use slicescheduler::{Llama, Model, Tenant};

use super::arguments::Wish;
use crate::Failure;

const SMOLLM2: &str = "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
/// What latency-sensitive tenants are promised: a first token within a second, ten per second after it.
const TTFT: Nanos = Nanos::secs(1);
const TPOT: Nanos = Nanos::ms(100);

pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) model_name: String,
    pub(crate) best_effort: bool,
    pub(crate) tokenizer: Option<Tokenizer>,
    /// `None` for the tiny model.
    file: Option<PathBuf>,
}

impl Served {
    pub(crate) fn load(wish: &Wish, models: &Path) -> Result<Self, Failure> {
        let file = match wish.model.as_str() {
            "tiny" => None,
            "smollm2" => Some(models.join(SMOLLM2)),
            path if path.ends_with(".gguf") => Some(PathBuf::from(path)),
            other => {
                return Err(format!(
                    "tenant {:?}: no model {other:?}; known are smollm2, tiny and paths to .gguf files",
                    wish.name
                )
                .into());
            }
        };
        if let Some(file) = file.as_ref().filter(|file| !file.exists()) {
            let hint = "run scripts/fetch-models, or say where the models are with --models";
            return Err(format!("tenant {:?}: {} is not there; {hint}", wish.name, file.display()).into());
        }
        let tokenizer = file.as_ref().map(Tokenizer::from_gguf).transpose()?;
        let (name, model_name) = (wish.name.clone(), wish.model.clone());
        Ok(Self { name, model_name, best_effort: wish.best_effort, tokenizer, file })
    }

    pub(crate) fn model(&self) -> Result<Box<dyn Model>, Failure> {
        Ok(match &self.file {
            Some(file) => Box::new(Llama::from_gguf(file)?),
            None => Box::new(Llama::tiny(1)),
        })
    }

    pub(crate) fn tenant(&self) -> Tenant {
        if self.best_effort {
            Tenant::best_effort(&self.name)
        } else {
            Tenant::latency_sensitive(&self.name).ttft(TTFT).tpot(TPOT)
        }
    }
}
