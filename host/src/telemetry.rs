//! The process's logs: their filter, their format, and the one subscriber, which writes to standard error.
//!
//! Spans and fields come from the code that does the work.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The reason why logs could not be started.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is invalid.
    #[error(
        "--log {filter:?} is not a filter: write a level (error, warn, info, debug, trace) or a list such as info,oarlock_kube=debug"
    )]
    ParseFilter {
        /// The given filter.
        filter: String,
        /// The error in it.
        #[source]
        cause: tracing_subscriber::filter::ParseError,
    },
    /// The filter contains a word that is no level. The filter would take it for a module's name, and show nothing
    /// else.
    #[error(
        "--log {filter:?}: {word:?} is no level: use error, warn, info, debug, trace or off, or a list such as info,oarlock_kube=debug"
    )]
    UnknownLevel {
        /// The given filter.
        filter: String,
        /// The word.
        word: String,
    },
    /// Another subscriber was installed before.
    #[error("logging was already started in this process")]
    Install(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Starts logs on standard error.
///
/// # Errors
///
/// If the filter is invalid, or if logs were started before.
pub fn start(filter: &str, format: LogFormat) -> Result<(), TelemetryError> {
    if let Some(word) = filter.split(',').map(str::trim).find(|word| !is_directive(word)) {
        return Err(TelemetryError::UnknownLevel { filter: filter.to_owned(), word: word.to_owned() });
    }
    let parsed =
        EnvFilter::try_new(filter).map_err(|cause| TelemetryError::ParseFilter { filter: filter.to_owned(), cause })?;
    // A line that cannot be written is lost. Reporting it on the closed standard error would panic.
    let lines =
        tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr).log_internal_errors(false);
    let installed = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init(),
    };
    installed.map_err(TelemetryError::Install)
}

/// Returns true for a level, and for a directive that names its level or a span.
fn is_directive(word: &str) -> bool {
    let levels = ["error", "warn", "info", "debug", "trace", "off"];
    word.contains(['=', '[']) || levels.iter().any(|level| word.eq_ignore_ascii_case(level))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_read_is_shown_with_what_one_looks_like() {
        let refused = start("info,=,=", LogFormat::Text).unwrap_err().to_string();
        assert!(refused.contains("info,=,=") && refused.contains("oarlock_kube=debug"), "{refused}");
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_and_not_taken_for_a_module() {
        for (filter, word) in [("warning", "warning"), ("info,banana", "banana"), ("", "")] {
            let refused = start(filter, LogFormat::Text).unwrap_err().to_string();
            assert!(refused.contains(&format!("{word:?} is no level")) && refused.contains("debug"), "{refused}");
        }
        assert!(["WARN", "off", "oarlock_kube=debug", "[round]=trace"].into_iter().all(is_directive));
    }
}
