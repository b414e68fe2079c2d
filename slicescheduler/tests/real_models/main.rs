//! Real models from files. They are fetched by `scripts/fetch-models`, found at
//! `$SLICESCHEDULER_MODELS` or else in `target/models`; without them these tests say so and do
//! nothing, unless `$CI` is set.

#![cfg(all(feature = "gguf", feature = "safetensors", feature = "tokenizers"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail by them, in its helpers too"
)]

mod minilm;
mod smollm2;

use std::path::{Path, PathBuf};

/// A file of the models, if they are there.
fn model(file: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("SLICESCHEDULER_MODELS").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/models"));
    let path = folder.join(file);
    if path.exists() {
        return Some(path);
    }
    let path = path.display();
    assert!(std::env::var_os("CI").is_none(), "{path} is not there; run scripts/fetch-models");
    eprintln!("skipped: {path} is not there; run scripts/fetch-models");
    None
}
