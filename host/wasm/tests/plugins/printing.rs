//! The output of a plugin appears in the host's log.

use oarlock_core::plugin::visit::{Answer, Call};
use oarlock_support::logged::Logged;
use serde_json::json;
use tracing::Level;

use crate::components::{serving, visit};

/// Returns the lines that the host logs while the hostile plugin does this.
async fn lines_of(deed: &str) -> (Vec<String>, Answer) {
    let logged = Logged::begin("plugin", Level::TRACE);
    let (plugins, info) = serving("hostile").await;
    let parameters = json!({"do": format!("{deed}-in-operate")});
    let answer =
        plugins.wave(&info.digest).unwrap().call(visit("Hostile", Call::OperateThenProgress, parameters)).await;
    (logged.with(""), answer)
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
    // The time limit may stop the call. The output until then is bounded.
    assert!(matches!(answer, Answer::Reported { .. } | Answer::Trapped(_)), "{answer:?}");
    let bytes: usize = lines.iter().map(String::len).sum();
    assert!(lines.first().is_some_and(|line| line.contains("line 0")), "{:?}", lines.first());
    assert!(
        bytes < 64 << 10 && lines.last().is_some_and(|line| line.contains("dropped")),
        "{bytes} {:?}",
        lines.last()
    );
}
