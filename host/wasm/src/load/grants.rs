//! The file of grants.
//!
//! Takes YAML documents; yields grants. The file lies beside the plugin directory, never in it: who may drop a plugin
//! may not grant it anything. May not guess: one document that is not understood refuses the file.

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
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// It is not YAML.
    #[error("the grants are not YAML; separate documents by a line `---`")]
    Yaml {
        /// What is wrong.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// A document is not a grant.
    #[error("document {number} of the grants is refused")]
    Document {
        /// Its number, from 1.
        number: usize,
        /// What is wrong.
        #[source]
        source: GrantError,
    },
    /// Two documents are about one plugin.
    #[error("there are two grants for plugin {name}; put them into one document")]
    Twice {
        /// Name of the plugin.
        name: String,
    },
    /// The file lies where plugins are dropped.
    #[error(
        "the grants {path} lie in the plugin directory; put them beside it, for who may drop a plugin may not grant it anything"
    )]
    Inside {
        /// The file.
        path: PathBuf,
    },
}

/// The grants that YAML documents state.
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

/// The grants of a file; none where there is no file.
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
    fn a_document_that_is_not_understood_is_named() {
        assert!(matches!(
            parse_grants(&format!("{ONE}---\nkind: Pod\n")),
            Err(GrantsError::Document { number: 2, .. })
        ));
        assert!(matches!(parse_grants(&format!("{ONE}---\n{ONE}")), Err(GrantsError::Twice { .. })));
        assert!(matches!(parse_grants("a: [1"), Err(GrantsError::Yaml { .. })));
    }
}
