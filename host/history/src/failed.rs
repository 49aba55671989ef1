//! Why the history has no answer.

use std::path::PathBuf;

use thiserror::Error;

/// Why the history has no answer.
#[derive(Clone, Debug, Error)]
pub enum HistoryFailed {
    /// It may answer later.
    #[error("the history does not answer: {0}")]
    Down(String),
    /// Its tables are those of a newer version.
    #[error(
        "the history was written by a newer version of Oarlock (its schema has version {found}, and this one knows {known}): start that version"
    )]
    Newer {
        /// The version that it has.
        found: i64,
        /// The newest that is known here.
        known: i64,
    },
    /// Another process has the file.
    #[error("another process has {}: one file has one host", .0.display())]
    Taken(PathBuf),
    /// It cannot be used as it is.
    #[error("{0}")]
    Unusable(String),
}

impl HistoryFailed {
    /// True where it may pass by itself.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Down(_))
    }
}

impl From<sqlx::Error> for HistoryFailed {
    fn from(error: sqlx::Error) -> Self {
        Self::Down(error.to_string())
    }
}
