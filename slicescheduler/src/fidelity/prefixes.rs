//! What the prompts of runs begin with.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::run::{HASHED_TOKENS, again, for_each_line, json};
use super::{FidelityError, Run};

/// The hashes of the blocks of prompts, of a file: one JSON object per line with `request_id`, `input_toks` and
/// `block_hashes`, one chained 64-bit hash (hexadecimal) per 16 tokens, gzipped or not.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefixBlocks {
    file: PathBuf,
    prompts: HashMap<String, Prompt>,
}

#[derive(Clone, Debug, PartialEq)]
struct Prompt {
    line: u64,
    tokens: u32,
    hashes: Arc<[u64]>,
}

#[derive(Deserialize)]
struct HashLine {
    request_id: String,
    input_toks: u32,
    block_hashes: Vec<String>,
}

impl PrefixBlocks {
    /// Reads `file`.
    ///
    /// # Errors
    /// If it cannot be read or is not as described, or a request is there twice.
    pub fn read(file: &Path) -> Result<Self, FidelityError> {
        let mut prompts: HashMap<String, Prompt> = HashMap::new();
        let raw = File::open(file).map_err(|source| FidelityError::Io { file: file.into(), source })?;
        let gzipped = file.extension().is_some_and(|extension| extension == "gz");
        let reader: Box<dyn Read> = if gzipped { Box::new(flate2::read::GzDecoder::new(raw)) } else { Box::new(raw) };
        for_each_line(file, reader, |line, bytes| {
            let HashLine { request_id, input_toks: tokens, block_hashes } = json(file, line, bytes)?;
            let hashes = block_hashes.iter().map(|hash| u64::from_str_radix(hash, 16));
            let hashes = hashes.collect::<Result<Arc<[u64]>, _>>().map_err(|error| FidelityError::Record {
                file: file.into(),
                line,
                what: format!("a block hash: {error}; expected 16 hexadecimal digits"),
            })?;
            if hashes.len() > (tokens / HASHED_TOKENS) as usize {
                let what = format!("{} hashes for {tokens} tokens: expected one per 16", hashes.len());
                return Err(FidelityError::Record { file: file.into(), line, what });
            }
            match prompts.entry(request_id) {
                Entry::Occupied(known) => Err(again(file, line, known.key(), known.get().line)),
                Entry::Vacant(free) => {
                    free.insert(Prompt { line, tokens, hashes });
                    Ok(())
                }
            }
        })?;
        Ok(Self { file: file.into(), prompts })
    }

    /// Tells the requests of `run` what the blocks of their prompts hold.
    ///
    /// # Errors
    /// If these are other prompts than those of the run, which is unchanged then: another length of a prompt, or none of
    /// its requests.
    pub fn describe(&self, run: &mut Run) -> Result<(), FidelityError> {
        let wrong = |line, what| Err(FidelityError::Record { file: self.file.clone(), line, what });
        let known = |id: &str| self.prompts.get(id);
        let mut found = 0;
        for request in &run.requests {
            let Some(Prompt { line, tokens, .. }) = known(&request.id) else { continue };
            if *tokens != request.prompt {
                let what = format!("a prompt of {tokens} tokens: {} in the run has {}", request.id, request.prompt);
                return wrong(*line, what);
            }
            found += 1;
        }
        if found == 0 {
            return wrong(1, "none of the run's requests: expected the same request_id".to_owned());
        }
        for request in &mut run.requests {
            if let Some(prompt) = known(&request.id) {
                request.hashes = Some(Arc::clone(&prompt.hashes));
            }
        }
        Ok(())
    }
}
