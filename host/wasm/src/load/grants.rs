//! Reads the file of grants.
//!
//! The file must lie outside the plugin directory, because a user who may write a plugin may not grant it anything. One invalid document
//! makes the whole file invalid.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oarlock_core::plugin::grant::{Grant, GrantError};
use serde_json::Value;
use thiserror::Error;

use crate::load::inspect::digest;
use crate::load::stamp::{SETTLE, Settling, Stamp};

/// The largest file of grants.
const MAX_BYTES: u64 = 16 << 20;
/// The time after which a missing or empty file counts as intended. Such a file revokes every grant.
const SETTLE_EMPTY: Duration = Duration::from_secs(1);

/// The reason why the grants cannot be read.
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
    /// The file is not text.
    #[error("the grants are not UTF-8; save the file as text")]
    NotText,
    /// The file is not YAML.
    #[error("the grants are not YAML; separate documents by a line `---`")]
    Yaml {
        /// The cause.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// A document is not a grant.
    #[error("document {number} of the grants is invalid")]
    Document {
        /// The number of the document. The first document has the number 1.
        number: usize,
        /// The cause.
        #[source]
        source: GrantError,
    },
    /// The grants do not have the digest in the configuration of the host.
    #[error(
        "the grants have the digest {found}, and this host takes those of {expected} alone; apply the Deployment and the grants that \
         `oarlock manifests` prints together"
    )]
    Digest {
        /// The digest in the configuration.
        expected: String,
        /// The digest of the file.
        found: String,
    },
    /// Two documents grant to one plugin.
    #[error("there are two grants for plugin {name}; put them into one document")]
    Twice {
        /// The name of the plugin.
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

/// The file of grants in its last observed state.
pub(crate) struct GrantsFile {
    path: PathBuf,
    /// The digest of the only accepted grants, or `None` to accept any grants.
    digest: Option<String>,
    /// The state at the last read. The inner `None` means that the file did not exist.
    read: Option<Option<Stamp>>,
    settling: Settling,
    /// The last failure to read the file, so that each failure is logged once.
    unreadable: Option<String>,
}

/// The result of a check of the file of grants.
pub(crate) enum GrantsLook {
    /// The content of the file has not changed.
    Unchanged,
    /// The file is missing or is being written. The previous grants stay in force.
    Unsettled,
    /// The content of the file has changed.
    Changed(Result<Vec<Grant>, GrantsError>),
}

impl GrantsFile {
    pub(crate) fn new(path: PathBuf, digest: Option<String>) -> Self {
        Self { path, digest, read: None, settling: Settling::default(), unreadable: None }
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks the file. A file that arrived by rename is complete. A missing file grants nothing.
    pub(crate) fn look(&mut self, renamed: bool) -> GrantsLook {
        match self.changed(renamed) {
            Ok(look) => {
                self.unreadable = None;
                look
            }
            Err(source) => {
                // The next successful read must count as a change, whatever the file contains.
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
        let known = yaml.and_then(|yaml| self.verified(yaml, stamp.is_some()));
        Ok(GrantsLook::Changed(known.and_then(|yaml| parse_grants(&yaml))))
    }

    /// Returns the text of a file if it has the configured digest. A missing file is not checked, because it grants nothing.
    fn verified(&self, yaml: String, is_there: bool) -> Result<String, GrantsError> {
        let Some(expected) = self.digest.as_ref().filter(|_| is_there) else { return Ok(yaml) };
        let found = grants_digest(&yaml);
        if found == *expected {
            return Ok(yaml);
        }
        Err(GrantsError::Digest { expected: expected.clone(), found })
    }
}

/// Returns the digest of grants. Blank lines at the end do not count, because a ConfigMap may drop them.
pub fn grants_digest(yaml: &str) -> String {
    digest(yaml.trim_end().as_bytes())
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
    fn grants_of_another_digest_than_the_host_was_told_are_refused() {
        let folder = std::env::temp_dir().join(format!("oarlock-grants-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("grants.yaml");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            match GrantsFile::new(path.clone(), Some(grants_digest(ONE))).look(true) {
                GrantsLook::Changed(read) => read.map(|grants| grants.len()),
                _ => panic!("it was not read"),
            }
        };
        assert_eq!(read(ONE).unwrap(), 1);
        assert_eq!(read(&format!("{ONE}\n\n")).unwrap(), 1);
        for other in [String::new(), ONE.replace("evict", "delete")] {
            let refused = read(&other).unwrap_err().to_string();
            assert!(refused.contains(&grants_digest(ONE)) && refused.contains(&grants_digest(&other)), "{refused}");
        }
        std::fs::remove_file(&path).unwrap();
        let gone = GrantsFile::new(path.clone(), Some(grants_digest(ONE))).look(true);
        assert!(matches!(gone, GrantsLook::Changed(Ok(grants)) if grants.is_empty()), "no file grants nothing");
        std::fs::remove_dir_all(&folder).unwrap();
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
