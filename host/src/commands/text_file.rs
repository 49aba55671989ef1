//! Reads documents from a file or from standard input.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use oarlock_core::plugin::grant::Grant;
use serde_json::Value;

/// The largest accepted file, in bytes. The API server accepts less.
const MOST_BYTES: u64 = 4 << 20;

/// Returns the name of the file for errors; `-` is standard input.
pub(super) fn shown(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

/// Reads the text of a file; `-` is standard input.
///
/// # Errors
///
/// If the file cannot be read, is not UTF-8, or is larger than [`MOST_BYTES`].
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

/// Parses the documents of a text as kubectl does, without empty ones.
///
/// # Errors
///
/// If the text is neither YAML nor JSON.
pub(super) fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    let options = serde_saphyr::options! { strict_booleans: true };
    let mut documents: Vec<Value> =
        serde_saphyr::from_multiple_with_options(text, options).context("it is no YAML and no JSON")?;
    documents.retain(|document| !document.is_null());
    Ok(documents)
}

/// Reads a file of grants. A missing file is an error, because the user named it.
pub(super) fn read_grants(path: &Path) -> anyhow::Result<(String, Vec<Grant>)> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the grants {}", path.display()))?;
    let grants =
        oarlock_wasm::parse_grants(&text).with_context(|| format!("cannot use the grants {}", path.display()))?;
    Ok((text, grants))
}
