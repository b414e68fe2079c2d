//! Texts to tokens and back.
//!
//! A [`Tokenizer`] comes from the file of a model: a GGUF file has its vocabulary, its merges and its
//! chat template inside; others have a `tokenizer.json` beside the weights. The work is that of the
//! `tokenizers` and `minijinja` crates.

#[cfg(feature = "gguf")]
mod gguf;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use minijinja::{Environment, ErrorKind, Value, context};
use tokenizers::tokenizer::DecodeStream;
use tokenizers::{DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

#[cfg(feature = "gguf")]
use slicescheduler_executor::checkpoint::{CheckpointError, GgufError};

/// Why a tokenizer cannot be made, or cannot do as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// Its file cannot be read.
    #[cfg(feature = "gguf")]
    #[error(transparent)]
    File(#[from] CheckpointError),
    /// Its file lacks something.
    #[cfg(feature = "gguf")]
    #[error("{} has no tokenizer that can be used", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// What it lacks.
        #[source]
        source: GgufError,
    },
    /// A merge of its file is not two tokens.
    #[cfg(feature = "gguf")]
    #[error("merge {index} of the tokenizer in {} is {found:?}: expected two tokens with a space between them", path.display())]
    Merge {
        /// The file.
        path: PathBuf,
        /// Which merge, from 0.
        index: usize,
        /// What the file has.
        found: String,
    },
    /// It is of a kind that is not supported.
    #[error("the tokenizer in {} is {found:?}; supported are {supported}", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// What the file says.
        found: String,
        /// What would be right.
        supported: &'static str,
    },
    /// The `tokenizers` crate refused.
    #[error("the tokenizer of {} failed", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The chat template cannot be filled in.
    #[error("the chat template in {} cannot be filled in", path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: minijinja::Error,
    },
    /// The chat template does not end, or makes a text without end.
    #[error(
        "the chat template in {} does more than {most} steps, of which each can make {STEP_BYTES} bytes of text; a chat of \
         this length takes fewer",
        path.display()
    )]
    EndlessTemplate {
        /// The file.
        path: PathBuf,
        /// Steps that it may do.
        most: u64,
    },
    /// There is no chat template.
    #[error("{} has no chat template; give it a plain prompt", path.display())]
    NoTemplate {
        /// The file.
        path: PathBuf,
    },
}

/// Steps of a chat template: instructions, and text that is made, in the output or on the way to it, of which
/// `minijinja` lets each step make so many bytes. Those of real models take some hundreds per message.
const STEPS: u64 = 1 << 20;
const STEPS_OF_MESSAGE: u64 = 1 << 12;
const STEP_BYTES: u64 = 64;

/// What somebody says in a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who: `system`, `user` or `assistant`.
    pub role: String,
    /// What.
    pub content: String,
}

impl Message {
    /// What the user says.
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: "user".to_owned(), content: content.into() }
    }
}

/// Makes tokens of texts, and texts of tokens.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Its file.
    path: Arc<Path>,
    chat_template: Option<String>,
}

impl Tokenizer {
    /// The tokenizer of a `tokenizer.json`.
    ///
    /// # Errors
    /// When the file cannot be read, or is no tokenizer.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TextError> {
        let path = path.as_ref();
        let failed = |source| TextError::Tokenizer { path: path.to_owned(), source };
        let mut inner = tokenizers::Tokenizer::from_file(path).map_err(failed)?;
        // Texts are cut to a model's context by those who know it, and batches have no padding here.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(failed)?;
        Ok(Self { inner, path: path.into(), chat_template: None })
    }

    fn failed(&self, source: Box<dyn std::error::Error + Send + Sync>) -> TextError {
        TextError::Tokenizer { path: self.path.to_path_buf(), source }
    }

    /// The tokens of a text, special ones where the text spells them.
    ///
    /// # Errors
    /// When the tokenizer cannot take the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        Ok(self.inner.encode_fast(text, false).map_err(|error| self.failed(error))?.get_ids().to_vec())
    }

    /// The tokens of a text with those around it that the model was trained with, such as the `[CLS]`
    /// and `[SEP]` of encoders.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_framed(&self, text: &str) -> Result<Vec<u32>, TextError> {
        Ok(self.inner.encode_fast(text, true).map_err(|error| self.failed(error))?.get_ids().to_vec())
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// When the tokenizer cannot take them.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        self.inner.decode(tokens, true).map_err(|error| self.failed(error))
    }

    /// The text of tokens that come one after the other; `step` gives what is complete.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { inner: self.inner.decode_stream(true), of: self }
    }

    /// The prompt of a chat in which the model is to speak next, by the model's template.
    ///
    /// # Errors
    /// When there is no template, or it cannot be filled in. Templates are programs that come with files: one that
    /// does not end, or makes a text without end, is stopped after about a million steps or 64 MiB.
    /// Steps within one filter are not counted: a list that was put together with itself sixty times has 2^60 items,
    /// which `length` counts one by one. Do not take templates from people who mean harm.
    pub fn chat(&self, messages: &[Message]) -> Result<String, TextError> {
        let path = || self.path.to_path_buf();
        let Some(template) = self.chat_template.as_deref() else {
            return Err(TextError::NoTemplate { path: path() });
        };
        let bytes: usize = messages.iter().map(|it| it.role.len() + it.content.len()).sum();
        let most = STEPS + STEPS_OF_MESSAGE * messages.len() as u64 + bytes as u64;
        let message = |it: &Message| context! { role => it.role.as_str(), content => it.content.as_str() };
        let messages: Vec<Value> = messages.iter().map(message).collect();
        let chat = context! { messages, add_generation_prompt => true };
        let mut environment = Environment::new();
        environment.set_fuel(Some(most));
        environment.render_str(template, chat).map_err(|source| match source.kind() {
            ErrorKind::OutOfFuel => TextError::EndlessTemplate { path: path(), most },
            _ => TextError::Template { path: path(), source },
        })
    }
}

/// The text of an answer as it comes; see [`Tokenizer::stream`].
pub struct TextStream<'a> {
    inner: DecodeStream<'a, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>,
    of: &'a Tokenizer,
}

impl fmt::Debug for TextStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextStream").finish_non_exhaustive()
    }
}

impl TextStream<'_> {
    /// The text that `token` completes: none while it ends within a character.
    ///
    /// # Errors
    /// When the tokenizer cannot take the token.
    pub fn step(&mut self, token: u32) -> Result<Option<String>, TextError> {
        self.inner.step(token).map_err(|error| self.of.failed(error))
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::models::bpe::BPE;

    use super::*;

    fn chat(template: &str, content: &str) -> Result<String, TextError> {
        let inner = tokenizers::Tokenizer::new(BPE::default());
        let tokenizer = Tokenizer { inner, path: Path::new("a.gguf").into(), chat_template: Some(template.to_owned()) };
        tokenizer.chat(&[Message::user(content)])
    }

    #[test]
    fn a_template_that_does_not_end_is_stopped_and_named() {
        let endless = [
            // 10^12 letters, and none in as many steps.
            "{% for i in range(10000) %}{% for j in range(10000) %}{% for k in range(10000) %}x{% endfor %}{% endfor %}{% endfor %}",
            "{% for i in range(10000) %}{% for j in range(10000) %}{% for k in range(10000) %}{% endfor %}{% endfor %}{% endfor %}",
            // 10 * 2^60 letters in sixty steps, and products.
            "{% set ns = namespace(s='xxxxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
            "{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}",
            "{% for i in range(100000) %}{{ messages[0].content|replace('a', 'bbbbbbbbbbbbbbbb')|upper }}{% endfor %}",
        ];
        for template in endless {
            let refused = chat(template, &"a".repeat(1000)).unwrap_err();
            assert!(matches!(refused, TextError::EndlessTemplate { .. }), "{template}: {refused:?}");
            assert!(refused.to_string().starts_with("the chat template in a.gguf does more than 105"), "{refused}");
        }
        let broken = chat("{% for %}", "").unwrap_err();
        assert_eq!(broken.to_string(), "the chat template in a.gguf cannot be filled in");
    }

    #[test]
    fn a_long_chat_is_no_endless_one() {
        let template =
            "{% for message in messages %}{{ message.role|upper + ': ' + message.content|trim }}\n{% endfor %}";
        let content = "word ".repeat(1 << 20);
        assert_eq!(chat(template, &content).unwrap(), format!("USER: {}\n", content.trim()));
    }
}
