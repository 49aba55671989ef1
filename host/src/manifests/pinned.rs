//! Pins grants to one component. Without a pin, a user who may put a file into the plugin directory gets the grant of
//! any name.

use oarlock_core::plugin::grant::Grant;
use serde_json::Value;
use thiserror::Error;

/// The reason why a grant cannot be pinned.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PinError {
    /// No grant is for the plugin.
    #[error("no grant is for plugin `{plugin}`: append what `oarlock plugin grant` prints for its file")]
    Missing {
        /// The name of the plugin.
        plugin: String,
    },
    /// The text of the grant has no single line that names its components.
    #[error(
        "the grant of `{plugin}` does not say on one line of its own, `anyVersion: true` or `digest`, for which components it \
         is: write `digest: {digest}` into its `spec` instead"
    )]
    Line {
        /// The name of the plugin.
        plugin: String,
        /// The digest of the plugin's file.
        digest: String,
    },
}

/// Returns the text of a grants file in which the grant of `plugin` is only for the component of `digest`. All other
/// lines and comments stay.
///
/// # Errors
/// If there is no such grant, or if the line to replace is not found.
pub fn pinned(grants: &str, plugin: &str, digest: &str) -> Result<String, PinError> {
    let mut found = false;
    let mut documents = Vec::new();
    for document in documents_of(grants) {
        if !is_for(&document, plugin) {
            documents.push(document);
            continue;
        }
        found = true;
        let missing = || PinError::Line { plugin: plugin.to_owned(), digest: digest.to_owned() };
        documents.push(with_digest(&document, digest).ok_or_else(missing)?);
    }
    if found { Ok(documents.concat()) } else { Err(PinError::Missing { plugin: plugin.to_owned() }) }
}

/// Returns the documents, each with its first line `---`.
fn documents_of(grants: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in grants.split_inclusive('\n') {
        if line.trim_end() == "---" {
            documents.push(String::new());
        }
        if let Some(last) = documents.last_mut() {
            last.push_str(line);
        }
    }
    documents
}

fn is_for(document: &str, plugin: &str) -> bool {
    let value: Option<Value> = serde_saphyr::from_str(document).ok();
    value.is_some_and(|value| value.pointer("/metadata/name").and_then(Value::as_str) == Some(plugin))
}

/// Returns the document with the digest in place of the line that names its components.
///
/// A `digest` in `config`, or a line of a longer text, looks the same. So each result is parsed as the host would parse
/// it, and compared with the expected value.
fn with_digest(document: &str, digest: &str) -> Option<String> {
    let expected = said(document, digest)?;
    let lines: Vec<&str> = document.split_inclusive('\n').collect();
    let pinned = |at: usize| {
        let mut lines = lines.clone();
        let line = lines.get_mut(at).filter(|line| may_name_components(line))?;
        let indent: String = line.chars().take_while(|letter| *letter == ' ').collect();
        let own = format!("{indent}digest: {digest}\n");
        *line = &own;
        Some(lines.concat())
    };
    let mut all = (0..lines.len()).filter_map(pinned);
    all.find(|text| read(text).is_some_and(|found| is_pinned(&found, digest) && without_any_version(found) == expected))
}

fn may_name_components(line: &str) -> bool {
    let line = line.trim_start();
    let any_version = line.strip_prefix("anyVersion:").is_some_and(|value| value.trim_start().starts_with("true"));
    line.starts_with("digest:") || any_version
}

fn read(document: &str) -> Option<Value> {
    serde_saphyr::from_str(document).ok()
}

/// Returns the expected value of the pinned document: only the components differ.
fn said(document: &str, digest: &str) -> Option<Value> {
    let mut value = without_any_version(read(document)?);
    value.get_mut("spec")?.as_object_mut()?.insert("digest".to_owned(), digest.into());
    Some(value)
}

fn without_any_version(mut document: Value) -> Value {
    let spec = document.get_mut("spec").and_then(Value::as_object_mut);
    let _was_there = spec.and_then(|spec| spec.remove("anyVersion"));
    document
}

fn is_pinned(document: &Value, digest: &str) -> bool {
    Grant::parse(document).is_ok_and(|grant| !grant.any_version && grant.digest.as_deref() == Some(digest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::SHIPPED_GRANTS;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn the_shipped_grant_is_for_one_file_and_else_as_it_was() {
        let text = pinned(SHIPPED_GRANTS, "replace", DIGEST).unwrap();
        assert_eq!(text, SHIPPED_GRANTS.replace("anyVersion: true", &format!("digest: {DIGEST}")));
        let again = DIGEST.replace("0123", "4567");
        assert_eq!(pinned(&text, "replace", &again).unwrap(), text.replace(DIGEST, &again));
    }

    #[test]
    fn only_the_grant_of_that_plugin_is_pinned() {
        let other = SHIPPED_GRANTS.replace("name: replace", "name: other");
        let text = pinned(&format!("{other}---\n{SHIPPED_GRANTS}"), "replace", DIGEST).unwrap();
        assert!(text.starts_with(&other) && text.matches(DIGEST).count() == 1, "{text}");
        assert_eq!(pinned(&other, "replace", DIGEST).unwrap_err(), PinError::Missing { plugin: "replace".to_owned() });
    }

    #[test]
    fn a_grant_in_another_form_is_not_guessed_at() {
        let flow =
            "apiVersion: oarlock.dev/v1alpha1\nkind: ActionPlugin\nmetadata: {name: x}\nspec: {anyVersion: true}\n";
        let refused = pinned(flow, "x", DIGEST).unwrap_err().to_string();
        assert!(refused.contains(&format!("write `digest: {DIGEST}`")), "{refused}");
    }

    #[test]
    fn a_digest_of_something_else_stays_as_it_was() {
        let other = DIGEST.replace("0123", "89ab");
        let grant = |own: &str| {
            format!(
                "apiVersion: oarlock.dev/v1alpha1\nkind: ActionPlugin\nmetadata:\n  annotations:\n    digest: {other}\n  \
                 name: x\nspec:\n  config:\n    digest: {other}\n    text: |\n      digest: none\n      anyVersion: true\n  {own}\n  \
                 namespaces: [\"*\"]\n"
            )
        };
        // The grant may already be pinned to this file.
        for own in ["anyVersion: true", &format!("digest: {other}"), &format!("digest: {DIGEST}")] {
            let text = pinned(&grant(own), "x", DIGEST).unwrap();
            assert_eq!(text, grant(&format!("digest: {DIGEST}")), "{own}");
        }
        let both = grant(&format!("digest: {other}\n  anyVersion: true"));
        assert!(matches!(pinned(&both, "x", DIGEST), Err(PinError::Line { .. })));
    }
}
