//! Tests of the repository itself: the order of its folders, its texts, its references and its dependencies.

mod pages;

use std::path::PathBuf;

pub use pages::{Block, blocks};

/// Returns the root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root.pop();
    root
}
