//! What can be wrong with a scenario.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What can be wrong with a scenario. The message names the file, the place in it, the value and
/// what would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// The file can not be read.
    #[error("{}: can not be read: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The text is not TOML, or its keys and types are not those of a scenario.
    #[error("{at}: {message}")]
    Syntax {
        /// Where.
        at: Location,
        /// What is wrong and what was expected.
        message: String,
    },
    /// A value that does not fit the rest of the scenario.
    #[error("{at}: {key} is {value}: expected {expected}")]
    Value {
        /// Where.
        at: Location,
        /// The key, as a path from the top of the file.
        key: String,
        /// The value.
        value: String,
        /// What would be right.
        expected: String,
    },
    /// A value set from outside the file that is not one the scenario can have.
    #[error("{name} is {value}: expected {expected}")]
    Setting {
        /// What was to be set.
        name: &'static str,
        /// The value.
        value: String,
        /// What would be right.
        expected: String,
    },
    /// A trace that is in neither place where it is looked for.
    #[error("{at}: {key} is {trace:?}: no such file: looked for {} (get it from {})", Tried(tried), source_of(trace))]
    MissingTrace {
        /// Where.
        at: Location,
        /// The key, as a path from the top of the file.
        key: String,
        /// The trace as the scenario names it.
        trace: PathBuf,
        /// The paths that were tried.
        tried: Vec<PathBuf>,
    },
}

/// A place in a scenario file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file.
    pub file: PathBuf,
    /// Line and column, both from 1, where known. Columns count characters.
    pub position: Option<(u32, u32)>,
}

impl Location {
    /// The file as a whole.
    pub fn file(file: &Path) -> Self {
        Self { file: file.into(), position: None }
    }

    /// Byte `offset` of `text`, the content of `file`.
    pub(super) fn at(file: &Path, text: &str, offset: usize) -> Self {
        let mut offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &text[..offset];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self { file: file.into(), position: Some((number(line), number(column))) }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        match self.position {
            Some((line, column)) => write!(f, ":{line}:{column}"),
            None => Ok(()),
        }
    }
}

struct Tried<'a>(&'a [PathBuf]);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, path) in self.0.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { " and " }, path.display())?;
        }
        Ok(())
    }
}

fn source_of(trace: &Path) -> &'static str {
    let name = trace.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    if name.contains("azure") {
        "github.com/Azure/AzurePublicDataset, folder data"
    } else if name.contains("mooncake") {
        "github.com/kvcache-ai/Mooncake, folder FAST25-release/traces"
    } else {
        "its publisher, or name the folder that holds it with --data DIR"
    }
}
