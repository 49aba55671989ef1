//! The file of grants.
//!
//! The file lies beside the plugin directory, never in it: a user who may drop a plugin may not grant it anything. One
//! invalid document makes the whole file invalid.

use std::io;
use std::path::{Path, PathBuf};

use oarlock_core::plugin::grant::{Grant, GrantError};
use serde_json::Value;
use thiserror::Error;

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

/// Reads the grants of a file. A missing file grants nothing.
pub(crate) fn read_grants(path: &Path) -> Result<Vec<Grant>, GrantsError> {
    match std::fs::read_to_string(path) {
        Ok(yaml) => parse_grants(&yaml),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(GrantsError::Read { path: path.to_owned(), source }),
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
