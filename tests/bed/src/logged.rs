//! The lines that the port logs in a test.

use std::fmt::{Debug, Write as _};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the lines from level info on, as `LEVEL message field=value`, until it is dropped.
pub(crate) struct Logged {
    lines: Lines,
    _guard: DefaultGuard,
}

impl Logged {
    /// From now on, in this thread.
    pub(crate) fn begin() -> Self {
        let lines = Lines::default();
        let _guard = set_default(lines.clone());
        Self { lines, _guard }
    }

    /// The lines that contain this text.
    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        self.lines.0.lock().iter().filter(|line| line.contains(text)).cloned().collect()
    }
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.0.insert_str(0, &format!("{value:?}")),
            name => write!(self.0, " {name}={value:?}").unwrap(),
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("oarlock_kube")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().push(format!("{} {}", event.metadata().level(), line.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
