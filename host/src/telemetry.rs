//! The process's logs and traces: their filters, their formats, and the one subscriber. Logs go to standard error.
//!
//! Spans and fields come from the code that does the work.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use opentelemetry_sdk::trace::SdkTracer;
use tracing::level_filters::LevelFilter;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt, registry};

use crate::traces::SPANS;

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

/// Starts logs on standard error, and traces of rounds if there is a tracer.
///
/// # Errors
///
/// If the filter is invalid, or if logs were started before.
pub fn start(filter: &str, format: LogFormat, tracer: Option<SdkTracer>) -> Result<(), TelemetryError> {
    if let Some(word) = filter.split(',').map(str::trim).find(|word| !is_directive(word)) {
        return Err(TelemetryError::UnknownLevel { filter: filter.to_owned(), word: word.to_owned() });
    }
    let parsed =
        EnvFilter::try_new(filter).map_err(|cause| TelemetryError::ParseFilter { filter: filter.to_owned(), cause })?;
    subscriber(parsed, format, tracer).try_init().map_err(|error| TelemetryError::Install(Box::new(error)))
}

/// Returns the subscriber that writes log lines, and makes traces if there is a tracer.
fn subscriber(filter: EnvFilter, format: LogFormat, tracer: Option<SdkTracer>) -> impl Subscriber + Send + Sync {
    // Log lines name the round, and not its part. Without a tracer, this filter also disables the span of each part.
    let no_parts = filter_fn(|span| !is_part_of_round(span)).with_max_level_hint(LevelFilter::TRACE);
    let filter = filter.and(no_parts);
    // A line that cannot be written is lost. Reporting it on the closed standard error would panic.
    let lines = fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).with_filter(filter).boxed(),
        LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(true).with_span_list(false).with_filter(filter).boxed()
        }
    };
    let traces = tracer.map(|tracer| {
        let layer = tracing_opentelemetry::layer().with_tracer(tracer).with_tracked_inactivity(false);
        let layer = layer.with_location(false).with_threads(false).with_target(false).with_level(false);
        layer.with_filter(filter_fn(|span| span.is_span() && span.target() == SPANS)).boxed()
    });
    // A layer without a filter, such as `None`, would enable the spans that all others disable.
    registry().with(std::iter::once(lines).chain(traces).collect::<Vec<_>>())
}

/// Returns true for the span of a part of a round.
fn is_part_of_round(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target() == SPANS && *metadata.level() == tracing::Level::TRACE
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
        let refused = start("info,=,=", LogFormat::Text, None).unwrap_err().to_string();
        assert!(refused.contains("info,=,=") && refused.contains("oarlock_kube=debug"), "{refused}");
    }

    /// Returns whether the spans of a round and of a part of it are enabled.
    fn enabled(filter: &str, tracer: Option<SdkTracer>) -> [bool; 2] {
        tracing::subscriber::with_default(subscriber(EnvFilter::new(filter), LogFormat::Text, tracer), || {
            let round = tracing::info_span!(target: SPANS, "round");
            let part = tracing::trace_span!(target: SPANS, parent: &round, "observe");
            [!round.is_disabled(), !part.is_disabled()]
        })
    }

    #[test]
    fn the_span_of_a_part_costs_nothing_without_a_collector_and_exists_with_one() {
        assert_eq!(enabled("info", None), [true, false]);
        assert_eq!(enabled("trace", None), [true, false]);
        assert_eq!(enabled("off", None), [false, false]);
        let provider = opentelemetry_sdk::trace::SdkTracerProvider::builder().build();
        let tracer = opentelemetry::trace::TracerProvider::tracer(&provider, "test");
        assert_eq!(enabled("off", Some(tracer)), [true, true]);
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_and_not_taken_for_a_module() {
        for (filter, word) in [("warning", "warning"), ("info,banana", "banana"), ("", "")] {
            let refused = start(filter, LogFormat::Text, None).unwrap_err().to_string();
            assert!(refused.contains(&format!("{word:?} is no level")) && refused.contains("debug"), "{refused}");
        }
        assert!(["WARN", "off", "oarlock_kube=debug", "[round]=trace"].into_iter().all(is_directive));
    }
}
