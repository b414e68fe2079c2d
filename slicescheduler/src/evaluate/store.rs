//! Results on disk, one file for each run, so that an evaluation that was interrupted goes on.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::evaluate::EvaluateError;
use crate::evaluate::outcome::{LONGEST, Outcome, OutcomeError};
use crate::report::write_whole;

/// A folder of results by key.
///
/// A result is in the folder whole or not at all: it is written beside its place and moved there. A
/// file that is not the result of its key is as good as absent, and is written anew.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// The results in `folder`, which is made where there is none.
    ///
    /// # Errors
    /// If there can be no such folder.
    pub fn open(folder: &Path) -> Result<Self, EvaluateError> {
        std::fs::create_dir_all(folder).map_err(|source| EvaluateError::Write { file: folder.to_owned(), source })?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// The result of `key`, if it is there; what is wrong with its file, if it is damaged.
    ///
    /// # Errors
    /// If there is a file that cannot be read.
    pub fn get(&self, key: &str) -> Result<Option<Result<Outcome, OutcomeError>>, EvaluateError> {
        let file = self.file(key);
        let mut text = Vec::new();
        match std::fs::File::open(&file).and_then(|open| open.take(LONGEST).read_to_end(&mut text)) {
            Ok(_) => Ok(Some(Outcome::parse(&String::from_utf8_lossy(&text), key))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(EvaluateError::Read { file, source }),
        }
    }

    /// Keeps a result, and gives it as it will be read.
    ///
    /// # Errors
    /// If it cannot be written, or could not be read again.
    pub fn put(&self, outcome: &Outcome) -> Result<Outcome, EvaluateError> {
        let file = self.file(&outcome.key);
        let damaged = |source| EvaluateError::Outcome { file: file.clone(), source };
        let text = serde_json::to_string(outcome).map_err(|error| damaged(error.into()))?;
        let kept = Outcome::parse(&text, &outcome.key).map_err(damaged)?;
        let written = write_whole(&file, |to| to.write_all(text.as_bytes()));
        written.map(|_| kept).map_err(|source| EvaluateError::Write { file, source })
    }

    fn file(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.json"))
    }
}
