//! Folders of models as the transformers library saves them.

use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use slicescheduler_executor::checkpoint::CheckpointError;

use crate::model::ModelError;

/// A token, or several that mean the same.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

impl OneOrMany {
    pub(super) fn all(&self) -> &[u32] {
        match self {
            Self::One(token) => std::slice::from_ref(token),
            Self::Many(tokens) => tokens,
        }
    }
}

pub(super) fn json<T: DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    let text = std::fs::read(path).map_err(|source| CheckpointError::Io { path: path.to_owned(), source })?;
    let unsupported =
        |error: serde_json::Error| ModelError::Unsupported { path: path.to_owned(), reason: error.to_string() };
    serde_json::from_slice(&text).map_err(unsupported)
}

/// What is wrong with a figure, with the file that says it.
pub(super) fn in_config(reason: String) -> String {
    format!("its config.json says that {reason}")
}

/// The folder's name, for messages.
pub(super) fn name(folder: &Path) -> String {
    folder.file_name().and_then(|name| name.to_str()).unwrap_or("model").to_owned()
}
