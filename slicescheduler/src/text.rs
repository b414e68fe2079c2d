//! Texts to tokens and back.
//!
//! A [`Tokenizer`] comes from the file of a model: a GGUF file has its vocabulary, its merges and its
//! chat template inside; others have a `tokenizer.json` beside the weights. The work is that of the
//! `tokenizers` and `minijinja` crates.

use std::fmt;
use std::path::Path;

use minijinja::{Environment, Value, context};
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::tokenizer::DecodeStream;
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
};

#[cfg(feature = "gguf")]
use slicescheduler_executor::checkpoint::{CheckpointError, GgufError, GgufFile};

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
    /// The tokenizer inside a GGUF file: byte-level pairs (`gpt2`) cut up as SmolLM and GPT-2 do.
    ///
    /// # Errors
    /// When the file cannot be read, or has another kind of tokenizer.
    #[cfg(feature = "gguf")]
    pub fn from_gguf(path: impl AsRef<Path>) -> Result<Self, TextError> {
        /// Kinds of tokens in GGUF: what is never part of a text, and what is found whole in one.
        const CONTROL: u64 = 3;
        const USER_DEFINED: u64 = 4;
        let file = GgufFile::open(path.as_ref())?;
        let model = file.text("tokenizer.ggml.model")?;
        let cut = file.text("tokenizer.ggml.pre").unwrap_or("gpt-2");
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        match (model, cut) {
            ("gpt2", "smollm") => steps.push(Digits::new(true).into()),
            ("gpt2", "gpt-2" | "default") => {}
            _ => {
                let found = format!("{model}, cut as {cut}");
                return Err(TextError::Kind { found, supported: "\"gpt2, cut as smollm\" and \"gpt2, cut as gpt-2\"" });
            }
        }
        let bytes = ByteLevel::new(false, false, true);
        steps.push(bytes.into());
        let tokens = file.texts("tokenizer.ggml.tokens")?;
        let vocabulary: Vocab = tokens.iter().zip(0..).map(|(&token, id)| (token.to_owned(), id)).collect();
        let merges = file.texts("tokenizer.ggml.merges")?;
        let merges: Merges = merges
            .iter()
            .filter_map(|merge| merge.split_once(' '))
            .map(|(left, right)| (left.to_owned(), right.to_owned()))
            .collect();
        let model = BPE::builder().vocab_and_merges(vocabulary, merges).build().map_err(TextError::Tokenizer)?;
        let mut inner = tokenizers::Tokenizer::new(model);
        inner.with_pre_tokenizer(Some(Sequence::new(steps)));
        inner.with_decoder(Some(bytes));
        let kinds = file.numbers("tokenizer.ggml.token_type").unwrap_or_default();
        let of_kind = |wanted: u64| tokens.iter().zip(&kinds).filter(move |(_, kind)| **kind == wanted);
        let special: Vec<_> = of_kind(CONTROL).map(|(&token, _)| AddedToken::from(token, true)).collect();
        let whole: Vec<_> = of_kind(USER_DEFINED).map(|(&token, _)| AddedToken::from(token, false)).collect();
        inner.add_special_tokens(&special);
        inner.add_tokens(&whole);
        let chat_template = file.text("tokenizer.chat_template").ok().map(str::to_owned);
        Ok(Self { inner, chat_template })
    }

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
