//! The file of grants.
//!
//! The file lies beside the plugin directory, never in it: a user who may drop a plugin may not grant it anything. One
//! invalid document makes the whole file invalid.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oarlock_core::plugin::grant::{Grant, GrantError};
use serde_json::Value;
use thiserror::Error;

use crate::load::stamp::{SETTLE, Settling, Stamp};

/// The largest file of grants.
const MAX_BYTES: u64 = 16 << 20;
/// Time after which a file that is away or empty counts as meant: it would revoke every grant.
const SETTLE_EMPTY: Duration = Duration::from_secs(1);

/// The grants could not be read.
#[derive(Debug, Error)]
pub enum GrantsError {
    /// The file could not be read.
    #[error("failed to read the grants from {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It is not text.
    #[error("the grants are not UTF-8; save the file as text")]
    NotText,
    /// It is not YAML.
    #[error("the grants are not YAML; separate documents by a line `---`")]
    Yaml {
        /// The cause.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// A document is not a grant.
    #[error("document {number} of the grants is invalid")]
    Document {
        /// Its number, from 1.
        number: usize,
        /// The cause.
        #[source]
        source: GrantError,
    },
    /// Two documents are about one plugin.
    #[error("there are two grants for plugin {name}; put them into one document")]
    Twice {
        /// Name of the plugin.
        name: String,
    },
    /// The file lies in the plugin directory.
    #[error(
        "the grants {path} lie in the plugin directory; move the file out of it, because users who may drop plugins there must not be able to grant them anything"
    )]
    Inside {
        /// The file.
        path: PathBuf,
    },
}

/// Parses the YAML documents of a file of grants.
pub fn parse_grants(yaml: &str) -> Result<Vec<Grant>, GrantsError> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(yaml).map_err(|source| GrantsError::Yaml { source: Box::new(source) })?;
    let mut grants: Vec<Grant> = Vec::new();
    for (at, document) in documents.iter().enumerate().filter(|(_, document)| !document.is_null()) {
        let grant = Grant::parse(document).map_err(|source| GrantsError::Document { number: at + 1, source })?;
        if grants.iter().any(|earlier| earlier.name == grant.name) {
            return Err(GrantsError::Twice { name: grant.name });
        }
        grants.push(grant);
    }
    Ok(grants)
}

/// The file of grants, as last read.
pub(crate) struct GrantsFile {
    path: PathBuf,
    /// The state that was read last, itself `None` where there was no file.
    read: Option<Option<Stamp>>,
    settling: Settling,
    /// The last failure to read it, so that each is told once.
    unreadable: Option<String>,
}

/// The result of a look at the file of grants.
pub(crate) enum GrantsLook {
    /// It says what it said before.
    Unchanged,
    /// It is away, or is being written; the previous grants stay in force.
    Unsettled,
    /// It says something else.
    Changed(Result<Vec<Grant>, GrantsError>),
}

impl GrantsFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, read: None, settling: Settling::default(), unreadable: None }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Looks at the file, which is whole if it came by rename. A file that is not there grants nothing.
    pub(crate) fn look(&mut self, renamed: bool) -> GrantsLook {
        match self.changed(renamed) {
            Ok(look) => {
                self.unreadable = None;
                look
            }
            Err(source) => {
                // Once it can be read again, it is news whatever it says.
                self.read = None;
                let (text, path) = (source.to_string(), self.path.clone());
                if self.unreadable.replace(text.clone()) == Some(text) {
                    return GrantsLook::Unchanged;
                }
                GrantsLook::Changed(Err(GrantsError::Read { path, source }))
            }
        }
    }

    fn changed(&mut self, renamed: bool) -> io::Result<GrantsLook> {
        let metadata = match std::fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            found => Some(found?),
        };
        let stamp = metadata.as_ref().map(Stamp::of);
        if self.read == Some(stamp) {
            self.settling = Settling::default();
            return Ok(GrantsLook::Unchanged);
        }
        let is_empty = metadata.as_ref().is_none_or(|metadata| metadata.len() == 0);
        let wait = if is_empty { SETTLE_EMPTY } else { SETTLE };
        if !renamed && !self.settling.is_over(metadata.as_ref(), wait) {
            return Ok(GrantsLook::Unsettled);
        }
        let bytes = match stamp {
            None => Vec::new(),
            Some(stamp) => match stamp.read(&self.path, MAX_BYTES)? {
                Some(bytes) => bytes,
                None => return Ok(GrantsLook::Unsettled),
            },
        };
        self.read = Some(stamp);
        let yaml = String::from_utf8(bytes).map_err(|_| GrantsError::NotText);
        Ok(GrantsLook::Changed(yaml.and_then(|yaml| parse_grants(&yaml))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "apiVersion: oarlock.dev/v1alpha1\nkind: ActionPlugin\nmetadata: {name: replace}\nspec:\n  \
                       anyVersion: true\n  namespaces: [\"*\"]\n  writes: [{verb: evict, apiVersion: v1, kind: Pod}]\n";

    #[test]
    fn several_documents_are_several_grants() {
        let two = ONE.replace("replace", "restart");
        let grants = parse_grants(&format!("---\n{ONE}---\n{two}")).unwrap();
        assert_eq!(grants.iter().map(|grant| grant.name.as_str()).collect::<Vec<_>>(), ["replace", "restart"]);
        assert!(grants[0].any_version && grants[0].allows_namespace("x"));
    }

    #[test]
    fn an_empty_file_grants_nothing() {
        assert!(parse_grants("").unwrap().is_empty());
        assert!(parse_grants("# nothing yet\n").unwrap().is_empty());
    }

    #[test]
    fn an_invalid_document_is_named() {
        assert!(matches!(
            parse_grants(&format!("{ONE}---\nkind: Pod\n")),
            Err(GrantsError::Document { number: 2, .. })
        ));
        assert!(matches!(parse_grants(&format!("{ONE}---\n{ONE}")), Err(GrantsError::Twice { .. })));
        assert!(matches!(parse_grants("a: [1"), Err(GrantsError::Yaml { .. })));
    }
}
