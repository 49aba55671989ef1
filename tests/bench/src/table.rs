//! Figures as tables for people. Takes the JSON of a bench; yields text.

use comfy_table::{Table, presets};
use serde_json::Value;

/// Figures of the operations bench, in the order in which they are shown.
const OPERATIONS: [&str; 11] = [
    "verdict",
    "seconds",
    "targetsPerSecond",
    "writesPerTargetBesidesStatus",
    "statusWrites",
    "recordWrites",
    "conflictsPercent",
    "hostCpuMillisecondsPerTarget",
    "peakRssMib",
    "eventToActionP99Milliseconds",
    "writesInTenIdleSeconds",
];

/// The table of one operations bench: a column for each mode, with its bare client beside it.
pub(crate) fn operations(figures: &Value) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    let runs: Vec<&Value> = figures.get("runs").and_then(Value::as_array).into_iter().flatten().collect();
    let mut head = vec![format!(
        "{} targets on {}",
        text(runs.first().and_then(|run| run.get("targets"))),
        text(figures.get("on"))
    )];
    for run in &runs {
        let mode = text(run.get("mode"));
        head.extend([mode.clone(), format!("{mode}, bare client")]);
    }
    table.set_header(head);
    for figure in OPERATIONS {
        let mut row = vec![figure.to_owned()];
        for run in &runs {
            row.extend(["host", "bare"].map(|who| text(run.get(who).and_then(|side| side.get(figure)))));
        }
        table.add_row(row);
    }
    let mut row = vec!["rate, host to bare".to_owned()];
    for run in &runs {
        row.extend([text(run.get("rateHostToBare")), String::new()]);
    }
    table.add_row(row);
    table.to_string()
}

/// The table of the plugins bench: a row for each way of calling.
pub(crate) fn plugins(figures: &Value) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    let bytes = text(figures.get("componentBytes"));
    table.set_header([
        format!("operate of Replace ({bytes} bytes)"),
        "p50 µs".into(),
        "p99 µs".into(),
        "p99.9 µs".into(),
    ]);
    for row in figures.get("operate").and_then(Value::as_array).into_iter().flatten() {
        for instances in ["fresh", "warm"] {
            let of = |name: &str| text(row.get(instances).and_then(|times| times.get(name)));
            let pod = format!("{instances} instance, pod of {} bytes", text(row.get("podBytes")));
            table.add_row([pod, of("p50Microseconds"), of("p99Microseconds"), of("p999Microseconds")]);
        }
    }
    table.to_string()
}

fn text(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}
