//! Captures the log lines of a test.

use std::fmt::{Debug, Write as _};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::callsite::rebuild_interest_cache;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Level, Metadata, Subscriber};

/// Captures lines as `LEVEL message field=value` until it is dropped.
pub struct Logged {
    lines: Lines,
    _guard: DefaultGuard,
}

impl Logged {
    /// Begins to capture the lines of this thread, for this target and the targets below it, up to this level.
    #[must_use]
    pub fn begin(target: &'static str, most: Level) -> Self {
        let lines = Lines { target, most, kept: Arc::default() };
        let _guard = set_default(lines.clone());
        // Another thread may have reached a log line first and cached that no subscriber wants it.
        rebuild_interest_cache();
        Self { lines, _guard }
    }

    /// Returns the captured lines that contain this text.
    #[must_use]
    pub fn with(&self, text: &str) -> Vec<String> {
        self.lines.kept.lock().iter().filter(|line| line.contains(text)).cloned().collect()
    }
}

#[derive(Clone)]
struct Lines {
    target: &'static str,
    most: Level,
    kept: Arc<Mutex<Vec<String>>>,
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.0.insert_str(0, &format!("{value:?}")),
            name => drop(write!(self.0, " {name}={value:?}")),
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let below = metadata.target().strip_prefix(self.target);
        *metadata.level() <= self.most && below.is_some_and(|below| below.is_empty() || below.starts_with("::"))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.kept.lock().push(format!("{} {}", event.metadata().level(), line.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
