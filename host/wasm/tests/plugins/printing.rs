//! What a plugin prints reaches the host's log.

use std::fmt::{Debug, Write};
use std::sync::Arc;

use oarlock_core::plugin::visit::{Answer, Call};
use parking_lot::Mutex;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::components::{serving, visit};

/// Keeps the lines of plugins, as `LEVEL message field=value`.
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
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if event.metadata().target() == "plugin" {
            let mut line = Line(String::new());
            event.record(&mut line);
            self.0.lock().push(format!("{} {}", event.metadata().level(), line.0));
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What the host logs while the hostile plugin does this.
async fn lines_of(deed: &str) -> (Vec<String>, Answer) {
    let lines = Lines::default();
    let logged = tracing::subscriber::set_default(lines.clone());
    let (plugins, info) = serving("hostile").await;
    let parameters = json!({"do": format!("{deed}-in-operate")});
    let answer =
        plugins.wave(&info.digest).unwrap().call(visit("Hostile", Call::OperateThenProgress, parameters)).await;
    drop(logged);
    let lines = lines.0.lock().clone();
    (lines, answer)
}

#[tokio::test]
async fn lines_that_a_plugin_prints_are_log_lines_of_its_target() {
    let (lines, answer) = lines_of("print").await;
    assert!(matches!(answer, Answer::Reported { .. }), "{answer:?}");
    let starts = ["INFO said aloud on web", "INFO and  [2Jonce more", "WARN said in anger"];
    assert_eq!(lines.len(), starts.len(), "{lines:?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(
            line.starts_with(start) && line.contains("plugin=\"hostile\"") && line.contains("on=\"web\""),
            "{line}"
        );
    }
}

#[tokio::test]
async fn a_flood_of_prints_is_cut_and_costs_no_more_than_its_lines() {
    let (lines, answer) = lines_of("print-flood").await;
    // It may be stopped for its time; what it printed until then is bounded.
    assert!(matches!(answer, Answer::Reported { .. } | Answer::Trapped(_)), "{answer:?}");
    let bytes: usize = lines.iter().map(String::len).sum();
    assert!(lines.first().is_some_and(|line| line.contains("line 0")), "{:?}", lines.first());
    assert!(
        bytes < 64 << 10 && lines.last().is_some_and(|line| line.contains("dropped")),
        "{bytes} {:?}",
        lines.last()
    );
}
