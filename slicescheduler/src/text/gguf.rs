//! The tokenizer inside a GGUF file.

use std::path::Path;

use slicescheduler_executor::checkpoint::GgufFile;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{AddedToken, PreTokenizerWrapper};

use crate::text::{TextError, Tokenizer};

impl Tokenizer {
    /// The tokenizer inside a GGUF file: byte-level pairs (`gpt2`) cut up as SmolLM and GPT-2 do.
    ///
    /// # Errors
    /// When the file cannot be read, or has another kind of tokenizer.
    pub fn from_gguf(path: impl AsRef<Path>) -> Result<Self, TextError> {
        /// Kinds of tokens in GGUF: what is never part of a text, and what is found whole in one.
        const CONTROL: u64 = 3;
        const USER_DEFINED: u64 = 4;
        let path = path.as_ref();
        let file = GgufFile::open(path)?;
        let lacks = |source| TextError::Metadata { path: path.to_owned(), source };
        let failed = |source| TextError::Tokenizer { path: path.to_owned(), source };
        let model = file.text("tokenizer.ggml.model").map_err(lacks)?;
        let cut = file.text("tokenizer.ggml.pre").unwrap_or("gpt-2");
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        match (model, cut) {
            ("gpt2", "smollm") => steps.push(Digits::new(true).into()),
            ("gpt2", "gpt-2" | "default") => {}
            _ => {
                let found = format!("{model}, cut as {cut}");
                let supported = "\"gpt2, cut as smollm\" and \"gpt2, cut as gpt-2\"";
                return Err(TextError::Kind { path: path.to_owned(), found, supported });
            }
        }
        let bytes = ByteLevel::new(false, false, true);
        steps.push(bytes.into());
        let tokens = file.texts("tokenizer.ggml.tokens").map_err(lacks)?;
        let vocabulary: Vocab = tokens.iter().zip(0..).map(|(&token, id)| (token.to_owned(), id)).collect();
        let merges = file.texts("tokenizer.ggml.merges").map_err(lacks)?;
        let merges: Merges = merges
            .iter()
            .enumerate()
            .map(|(index, merge)| match merge.split_once(' ') {
                Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
                None => Err(TextError::Merge { path: path.to_owned(), index, found: (*merge).to_owned() }),
            })
            .collect::<Result<_, _>>()?;
        let model = BPE::builder().vocab_and_merges(vocabulary, merges).build().map_err(failed)?;
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
        Ok(Self { inner, path: path.into(), chat_template })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    /// A GGUF file of version 3 without tensors: text is type 8, an array type 9.
    fn file(merges: &[&str]) -> Vec<u8> {
        let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &4u64.to_le_bytes()].concat();
        for (key, value) in [("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "gpt-2")] {
            bytes.extend([text(key), 8u32.to_le_bytes().to_vec(), text(value)].concat());
        }
        for (key, values) in [("tokenizer.ggml.tokens", &["a", "b", "ab"][..]), ("tokenizer.ggml.merges", merges)] {
            bytes.extend([text(key), 9u32.to_le_bytes().to_vec(), 8u32.to_le_bytes().to_vec()].concat());
            bytes.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| bytes.extend(text(value)));
        }
        bytes
    }

    fn tokenizer(merges: &[&str]) -> Result<Tokenizer, TextError> {
        let name = format!("slicescheduler-merges-{}-{}", std::process::id(), merges.len());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, file(merges)).unwrap();
        let tokenizer = Tokenizer::from_gguf(&path);
        std::fs::remove_file(path).unwrap();
        tokenizer
    }

    #[test]
    fn merges_are_applied() {
        assert_eq!(tokenizer(&["a b"]).unwrap().encode("abba").unwrap(), [2, 1, 0]);
        assert_eq!(tokenizer(&[]).unwrap().encode("abba").unwrap(), [0, 1, 1, 0]);
    }

    #[test]
    fn a_merge_of_one_token_is_refused() {
        let error = tokenizer(&["a b", "ab"]).unwrap_err();
        assert!(matches!(&error, TextError::Merge { index: 1, found, .. } if found == "ab"), "{error}");
        let said = error.to_string();
        assert!(said.starts_with("merge 1 of the tokenizer in ") && said.contains("slicescheduler-merges"), "{said}");
        // A merge whose result is no token.
        let said = tokenizer(&["b b"]).unwrap_err().to_string();
        assert!(said.starts_with("the tokenizer of ") && said.contains("slicescheduler-merges"), "{said}");
    }
}
