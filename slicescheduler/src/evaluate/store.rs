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
    /// If there is a file that cannot be read, or something that is no file.
    pub fn get(&self, key: &str) -> Result<Option<Result<Outcome, OutcomeError>>, EvaluateError> {
        let file = self.file(key);
        let mut text = Vec::new();
        // Opening a pipe waits for somebody who writes to it.
        let opened = std::fs::metadata(&file).and_then(|found| match found.is_file() {
            true => std::fs::File::open(&file),
            false => Err(std::io::Error::other("it is no file: remove it, or take another folder")),
        });
        match opened.and_then(|open| open.take(LONGEST).read_to_end(&mut text)) {
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

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_the_place_of_a_result_is_refused_and_not_waited_for() {
        let folder = std::env::temp_dir().join(format!("slicescheduler-store-{}", std::process::id()));
        let store = Store::open(&folder).unwrap();
        assert!(store.get("absent").unwrap().is_none());
        let made = std::process::Command::new("mkfifo").arg(folder.join("pipe.json")).status().unwrap();
        assert!(made.success());
        std::fs::create_dir_all(folder.join("folder.json")).unwrap();
        for key in ["pipe", "folder"] {
            let refusal = store.get(key).unwrap_err().to_string();
            assert!(
                refusal.ends_with(".json: cannot be read: it is no file: remove it, or take another folder"),
                "{refusal}"
            );
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
