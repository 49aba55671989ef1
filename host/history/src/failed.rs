//! The failures of the history.

use std::path::PathBuf;

use thiserror::Error;

/// The reason why the history has no answer.
#[derive(Clone, Debug, Error)]
pub enum HistoryFailed {
    /// The database does not answer, but may answer later.
    #[error("the history does not answer: {0}")]
    Down(String),
    /// The database refuses this statement, but accepts others.
    #[error("the history refuses this: {0}")]
    Refused(String),
    /// The tables are of a newer version.
    #[error(
        "the history was written by a newer version of Oarlock (its schema has version {found}, and this one knows {known}): start that version"
    )]
    Newer {
        /// The version of the tables.
        found: i64,
        /// The newest version that this process supports.
        known: i64,
    },
    /// The tables are of an older version, and this process may not change them.
    #[error(
        "the history has the tables of an older version of Oarlock (its schema has version {found}, and this one needs {known}): start a host of this version, which changes them"
    )]
    Older {
        /// The version of the tables, or 0 if there are none.
        found: i64,
        /// The version that this process needs.
        known: i64,
    },
    /// Another process has locked the file.
    #[error("another process has {}: one file has one host", .0.display())]
    Taken(PathBuf),
    /// The database cannot be used until an admin fixes the cause.
    #[error("{0}")]
    Unusable(String),
}

impl HistoryFailed {
    /// Returns true if the failure may pass without an admin.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Down(_) | Self::Older { .. })
    }
}

impl From<sqlx::Error> for HistoryFailed {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(|error| Some(error.code()?.into_owned()));
        match code.as_deref() {
            code if is_of_values(code) => Self::Refused(error.to_string()),
            Some(code) => match to_mend(code) {
                Some(mend) => Self::Unusable(format!("the history cannot be used: {error}; {mend}")),
                None => Self::Down(error.to_string()),
            },
            None => Self::Down(error.to_string()),
        }
    }
}

/// Returns the fix for error codes of PostgreSQL that only an admin can resolve.
fn to_mend(code: &str) -> Option<&'static str> {
    match code {
        "28P01" | "28000" => Some("give another user or password in its address"),
        "3D000" => Some("make that database, or name another one in its address"),
        "42501" => Some(
            "let its user make tables: GRANT ALL ON SCHEMA public, or make it the owner of the database; of a server, give it the role of docs/install.md",
        ),
        _ => None,
    }
}

/// Returns true for error codes about values: data exceptions, constraints and sizes, of PostgreSQL and of SQLite.
fn is_of_values(code: Option<&str>) -> bool {
    const SQLITE: [u32; 3] = [18, 19, 20];
    let of_sqlite = |code: &str| code.parse::<u32>().is_ok_and(|code| SQLITE.contains(&(code & 0xff)));
    code.is_some_and(|code| match code.len() {
        5 => ["22", "23", "54"].iter().any(|class| code.starts_with(class)),
        _ => of_sqlite(code),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_values_is_told_from_what_may_pass() {
        let refused = ["22021", "23505", "54000", "18", "1555", "20"];
        assert!(refused.iter().all(|code| is_of_values(Some(code))));
        let may_pass = ["57P01", "40001", "53300", "25006", "53100", "5", "13", "10", ""];
        assert!(may_pass.iter().all(|code| !is_of_values(Some(code))) && !is_of_values(None));
        assert!(may_pass.iter().all(|code| to_mend(code).is_none()));
    }
}
