//! Documents from a file or from standard input.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::Value;

/// Largest file: more than the API server takes.
const MOST_BYTES: u64 = 4 << 20;

/// What errors call the file; `-` is standard input.
pub(super) fn shown(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

/// The text of a file; `-` is standard input.
///
/// # Errors
///
/// Fails if it cannot be read, is not UTF-8, or is larger than any cluster takes.
pub(super) fn text_of(path: &Path) -> anyhow::Result<String> {
    let reader: Box<dyn std::io::Read> = match path == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(path)?),
    };
    let mut text = String::new();
    reader.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        bail!("it has more than {} MiB, which no cluster takes", MOST_BYTES >> 20);
    }
    Ok(text)
}

/// The documents of a text, read as kubectl does, without empty ones.
///
/// # Errors
///
/// Fails if it is neither YAML nor JSON.
pub(super) fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    let options = serde_saphyr::options! { strict_booleans: true };
    let mut documents: Vec<Value> =
        serde_saphyr::from_multiple_with_options(text, options).context("it is no YAML and no JSON")?;
    documents.retain(|document| !document.is_null());
    Ok(documents)
}
