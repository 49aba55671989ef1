//! The place of the history: a file or a database server.

use std::fmt;
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use url::Url;

/// The characters that have another meaning in the path of a URL.
const SPECIAL: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'?').add(b'#').add(b'"').add(b'<').add(b'>');

/// The URL parameters that are allowed.
const KEYS: [&str; 8] =
    ["sslmode", "sslrootcert", "sslcert", "sslkey", "application_name", "options", "statement-cache-capacity", "host"];

/// The place of the history.
#[derive(Clone, PartialEq, Eq)]
pub enum HistoryPlace {
    /// A SQLite file.
    File(PathBuf),
    /// A database of a PostgreSQL server.
    Server(Url),
}

impl HistoryPlace {
    /// Reads `postgres://USER:PASSWORD@HOST/DATABASE` or `sqlite:PATH`.
    ///
    /// # Errors
    /// If the text is no such address. The error says what to write, and shows no part of the text that may be a password.
    pub fn read(text: &str) -> Result<Self, String> {
        let usage = || "write postgres://USER:PASSWORD@HOST/DATABASE or sqlite:PATH".to_owned();
        if let Some(path) = text.strip_prefix("sqlite:") {
            return if path.is_empty() { Err(usage()) } else { Ok(Self::File(path.into())) };
        }
        const ENCODE: &str = "in a password, write / ? # @ : and % as %2F %3F %23 %40 %3A and %25";
        let url = Url::parse(text).map_err(|error| format!("{}; it is no address: {error}; {ENCODE}", usage()))?;
        // The text after an unencoded password would be shown as a database name.
        let behind = [url.path(), url.query().unwrap_or_default(), url.fragment().unwrap_or_default()];
        if behind.iter().any(|text| text.contains('@')) {
            return Err(format!("{}; an @ stands behind its host: {ENCODE}", usage()));
        }
        let names_database = url.has_host() && url.path().len() > 1;
        // The driver would log unknown parameters with their values.
        if let Some((key, _)) = url.query_pairs().find(|(key, _)| !KEYS.contains(&key.as_ref())) {
            return Err(format!("the parameter {key} is none of {}", KEYS.join(", ")));
        }
        match url.scheme() {
            "postgres" | "postgresql" if names_database => Ok(Self::Server(url)),
            _ => Err(usage()),
        }
    }

    /// Returns the place of the history in the folder of a host.
    pub fn in_folder(folder: &Path) -> Self {
        Self::File(folder.join("history.db"))
    }

    /// Returns the URL for the driver. A guest does not create the file.
    pub(crate) fn address(&self, is_guest: bool) -> String {
        match self {
            Self::Server(url) => url.to_string(),
            Self::File(path) => {
                let path = path.to_string_lossy();
                let mode = if is_guest { "rw" } else { "rwc" };
                format!("sqlite:{}?mode={mode}", utf8_percent_encode(&path, SPECIAL))
            }
        }
    }
}

/// Shows the place without the password.
impl fmt::Display for HistoryPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Server(url) => {
                let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
                write!(f, "postgres://{}{port}{}", url.host_str().unwrap_or_default(), url.path())
            }
        }
    }
}

/// Shows the place without the password.
impl fmt::Debug for HistoryPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_file_or_a_database_and_shows_no_password() {
        assert_eq!(HistoryPlace::read("sqlite:/data/a b.db").unwrap(), HistoryPlace::File("/data/a b.db".into()));
        let server = HistoryPlace::read("postgres://u:hidden@db:5433/oarlock?sslmode=require").unwrap();
        assert_eq!(server.to_string(), "postgres://db:5433/oarlock");
        assert!(!format!("{server:?}").contains("hidden"));
        for wrong in ["", "sqlite:", "mysql://a/b", "postgres://db", "postgres:///x", "db"] {
            let refused = HistoryPlace::read(wrong).expect_err(wrong);
            assert!(refused.contains("postgres://USER"), "{wrong}: {refused}");
        }
        let hidden = HistoryPlace::read("mysql://u:hidden@h/d").unwrap_err();
        assert!(!hidden.contains("hidden"), "{hidden}");
        for unencoded in ["ab/hidden", "/hidden", "12/hidden", "ab?hidden", "12?hidden", "1#hidden", "?a=1#hidden"] {
            let refused = HistoryPlace::read(&format!("postgres://u:{unencoded}@db/d")).expect_err(unencoded);
            assert!(refused.contains("%2F") && !refused.contains("hidden"), "{unencoded}: {refused}");
        }
    }

    #[test]
    fn a_parameter_that_nobody_knows_is_named_without_its_value() {
        let refused = HistoryPlace::read("postgres://u:p@h/d?sslpassword=hidden").unwrap_err();
        assert!(refused.contains("sslpassword") && !refused.contains("hidden"), "{refused}");
    }

    #[test]
    fn a_path_is_one_whatever_it_contains() {
        let address = HistoryPlace::File("/a b/50%/c?d#e".into()).address(false);
        assert_eq!(address, "sqlite:/a%20b/50%25/c%3Fd%23e?mode=rwc");
    }
}
