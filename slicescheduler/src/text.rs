//! Texts to tokens and back.
//!
//! A [`Tokenizer`] comes from the file of a model: a GGUF file has its vocabulary, its merges and its
//! chat template inside; others have a `tokenizer.json` beside the weights. The work is that of the
//! `tokenizers` and `minijinja` crates.

#[cfg(feature = "gguf")]
mod gguf;

use std::fmt;
use std::path::Path;

use minijinja::{Environment, Value, context};
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
    #[error("the file has no tokenizer that can be used")]
    Metadata(#[from] GgufError),
    /// A merge of its file is not two tokens.
    #[cfg(feature = "gguf")]
    #[error("merge {index} of the tokenizer is {found:?}: expected two tokens with a space between them")]
    Merge {
        /// Which merge, from 0.
        index: usize,
        /// What the file has.
        found: String,
    },
    /// It is of a kind that is not supported.
    #[error("the tokenizer is {found:?}; supported are {supported}")]
    Kind {
        /// What the file says.
        found: String,
        /// What would be right.
        supported: &'static str,
    },
    /// The `tokenizers` crate refused.
    #[error("the tokenizer failed")]
    Tokenizer(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The chat template cannot be filled in.
    #[error("the chat template cannot be filled in")]
    Template(#[from] minijinja::Error),
    /// There is no chat template.
    #[error("the model has no chat template; give it a plain prompt")]
    NoTemplate,
}

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
    chat_template: Option<String>,
}

impl Tokenizer {
    /// The tokenizer of a `tokenizer.json`.
    ///
    /// # Errors
    /// When the file cannot be read, or is no tokenizer.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TextError> {
        let mut inner = tokenizers::Tokenizer::from_file(path).map_err(TextError::Tokenizer)?;
        // Texts are cut to a model's context by those who know it, and batches have no padding here.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(TextError::Tokenizer)?;
        Ok(Self { inner, chat_template: None })
    }

    /// The tokens of a text, special ones where the text spells them.
    ///
    /// # Errors
    /// When the tokenizer cannot take the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        Ok(self.inner.encode_fast(text, false).map_err(TextError::Tokenizer)?.get_ids().to_vec())
    }

    /// The tokens of a text with those around it that the model was trained with, such as the `[CLS]`
    /// and `[SEP]` of encoders.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_framed(&self, text: &str) -> Result<Vec<u32>, TextError> {
        Ok(self.inner.encode_fast(text, true).map_err(TextError::Tokenizer)?.get_ids().to_vec())
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// When the tokenizer cannot take them.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        self.inner.decode(tokens, true).map_err(TextError::Tokenizer)
    }

    /// The text of tokens that come one after the other; `step` gives what is complete.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream(self.inner.decode_stream(true))
    }

    /// The prompt of a chat in which the model is to speak next, by the model's template.
    ///
    /// # Errors
    /// When there is no template, or it cannot be filled in.
    pub fn chat(&self, messages: &[Message]) -> Result<String, TextError> {
        let template = self.chat_template.as_deref().ok_or(TextError::NoTemplate)?;
        let message = |it: &Message| context! { role => it.role.as_str(), content => it.content.as_str() };
        let messages: Vec<Value> = messages.iter().map(message).collect();
        let chat = context! { messages, add_generation_prompt => true };
        Ok(Environment::new().render_str(template, chat)?)
    }
}

/// The text of an answer as it comes; see [`Tokenizer::stream`].
pub struct TextStream<'a>(
    DecodeStream<'a, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>,
);

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
        self.0.step(token).map_err(TextError::Tokenizer)
    }
}
