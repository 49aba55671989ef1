//! Grants for the one component that is there, in place of any that has its name: whoever may put a file into the plugin
//! directory is granted nothing by that.

use oarlock_core::plugin::grant::Grant;
use serde_json::Value;
use thiserror::Error;

/// A grant cannot be pinned.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PinError {
    /// There is no grant for the plugin.
    #[error("no grant is for plugin `{plugin}`: append what `oarlock plugin grant` prints for its file")]
    Missing {
        /// Name of the plugin.
        plugin: String,
    },
    /// The text of the grant has no line to replace.
    #[error(
        "the grant of `{plugin}` has neither `anyVersion: true` nor a `digest` on a line of its own: write \
         `digest: {digest}` into its `spec`"
    )]
    Line {
        /// Name of the plugin.
        plugin: String,
        /// The digest of its file.
        digest: String,
    },
}

/// The text of a grants file in which the grant of `plugin` is for the component of `digest` alone. All other lines, comments
/// too, stay as they are.
///
/// # Errors
/// If there is no such grant, or it is written so that its line is not found.
pub fn pinned(grants: &str, plugin: &str, digest: &str) -> Result<String, PinError> {
    let mut found = false;
    let mut documents = Vec::new();
    for document in documents_of(grants) {
        if !is_for(&document, plugin) {
            documents.push(document);
            continue;
        }
        found = true;
        let text = with_digest(&document, digest);
        // It is read as the host will read it: a line in a text of several lines is none.
        let holds = |text: &String| {
            let value: Option<Value> = serde_saphyr::from_str(text).ok();
            let grant = value.and_then(|value| Grant::parse(&value).ok());
            grant.is_some_and(|grant| !grant.any_version && grant.digest.as_deref() == Some(digest))
        };
        let missing = || PinError::Line { plugin: plugin.to_owned(), digest: digest.to_owned() };
        documents.push(text.filter(holds).ok_or_else(missing)?);
    }
    if found { Ok(documents.concat()) } else { Err(PinError::Missing { plugin: plugin.to_owned() }) }
}

/// The documents, each with the line `---` that begins it.
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

/// The document with the digest in place of its first line that says for which components it is.
fn with_digest(document: &str, digest: &str) -> Option<String> {
    let says = |line: &str| {
        let line = line.trim_start();
        line.starts_with("digest:")
            || line.strip_prefix("anyVersion:").is_some_and(|value| value.trim_start().starts_with("true"))
    };
    let mut lines: Vec<String> = document.split_inclusive('\n').map(str::to_owned).collect();
    let line = lines.iter_mut().find(|line| says(line))?;
    let indent: String = line.chars().take_while(|letter| *letter == ' ').collect();
    *line = format!("{indent}digest: {digest}\n");
    Some(lines.concat())
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
}
