//! Formats the JSON figures of a bench as tables for people.

use comfy_table::{Table, presets};
use serde_json::Value;

/// The note below figures of the in-memory API.
const SIM: &str = "On sim there are no ratios to a bare client: API server, world and proxy are one process there, and it decides how \
fast either contender is.";

/// Returns the tables of one operations bench, one for each mode. Columns are host and bare client, or calm and killed, if both
/// exist.
pub(crate) fn operations(figures: &Value) -> String {
    let runs = figures.get("runs").and_then(Value::as_array).into_iter().flatten();
    let on = text(figures.get("on"));
    let mut tables: Vec<String> =
        runs.flat_map(|run| [Some(mode(run, &on)), goals(run)]).flatten().map(|table| table.to_string()).collect();
    if on == "sim" {
        tables.push(SIM.to_owned());
    }
    tables.push(text(figures.get("notes")));
    tables.join("\n\n")
}

/// Returns the table of the policies of pods: CPU milliseconds without and with the policies, and the ratio.
pub(crate) fn policies(figures: &Value) -> String {
    let of = |column: &str, what: &str| cell(figures.pointer(&format!("/spread/{column}/{what}")));
    let mut table = empty();
    table.set_header(["CPU ms per request", "without", "with", "ratio"]);
    for what in ["create", "status", "patch", "delete", "write"] {
        table.add_row([what.to_owned(), of("without", what), of("with", what), of("ratios", what)]);
    }
    format!("{table}\n\n{}", text(figures.get("notes")))
}

fn mode(run: &Value, on: &str) -> Table {
    let spread = run.get("spread");
    let of = |who: &str| spread.and_then(|spread| spread.get(who));
    let rounds = run.get("rounds").and_then(Value::as_array).map_or(0, Vec::len);
    let rounds = if rounds == 1 { "1 round".to_owned() } else { format!("{rounds} rounds") };
    let head = format!("{}: {} targets on {on}, {rounds}", text(run.get("mode")), text(run.get("targets")));
    let columns: Vec<(&str, Option<&Value>)> = ["host", "bare", "ratios", "calm", "killed"]
        .into_iter()
        .map(|who| (if who == "ratios" { "host to bare" } else { who }, of(who)))
        .filter(|(_, found)| found.is_some_and(Value::is_object))
        .collect();
    let mut table = empty();
    table.set_header([head].into_iter().chain(columns.iter().map(|(name, _)| (*name).to_owned())));
    for path in rows(&columns) {
        let cell = |found: &Option<&Value>| cell(found.and_then(|figures| figures.pointer(&path)));
        let name = path.trim_start_matches('/').replace("~1", "/").replacen("writes/", "  ", 1);
        table.add_row([name].into_iter().chain(columns.iter().map(|(_, found)| cell(found))));
    }
    table
}

/// Returns the goals of a run beside the reached figures, if the run has goals.
fn goals(run: &Value) -> Option<Table> {
    let rows = run.get("goals").and_then(Value::as_array)?;
    let mut table = empty();
    table.set_header([&format!("{}: goals", text(run.get("mode"))), "goal", "reached"]);
    for row in rows {
        table.add_row([text(row.get("name")), text(row.get("goal")), cell(row.get("reached"))]);
    }
    Some(table)
}

fn empty() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table
}

/// Returns JSON pointers of the figures of all columns: first the first column's, then those that only others have.
fn rows(columns: &[(&str, Option<&Value>)]) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for path in columns.iter().flat_map(|(_, figures)| paths(*figures)) {
        if !rows.contains(&path) {
            rows.push(path);
        }
    }
    rows
}

/// Returns JSON pointers of the figures in their order. Groups of figures come last.
fn paths(figures: Option<&Value>) -> Vec<String> {
    let (mut single, mut grouped) = (Vec::new(), Vec::new());
    for (name, value) in figures.and_then(Value::as_object).into_iter().flatten() {
        match value.as_object().filter(|fields| !fields.contains_key("median")) {
            Some(group) => grouped.extend(group.keys().map(|inner| format!("/{name}/{}", inner.replace('/', "~1")))),
            None => single.push(format!("/{name}")),
        }
    }
    single.extend(grouped);
    single
}

/// Returns a figure as text: its median, and its minimum and maximum if they differ.
fn cell(figure: Option<&Value>) -> String {
    let Some(median) = figure.and_then(|figure| figure.get("median")) else { return text(figure) };
    let of = |name: &str| figure.and_then(|figure| figure.get(name));
    if of("min") == of("max") {
        return text(Some(median));
    }
    format!("{} ({}..{})", text(Some(median)), text(of("min")), text(of("max")))
}

/// Returns the table of the plugins bench, with a row for each kind of call.
pub(crate) fn plugins(figures: &Value) -> String {
    let mut table = empty();
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
        Some(Value::Null) | None => "-".to_owned(),
        Some(Value::Number(number)) => number.as_f64().map_or_else(|| number.to_string(), |number| number.to_string()),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figure_of_one_round_is_shown_alone() {
        assert_eq!(cell(Some(&json!({"min": 2.0, "median": 2.0, "max": 2.0}))), "2");
        assert_eq!(cell(Some(&json!({"min": 1.0, "median": 2.0, "max": 3.5}))), "2 (1..3.5)");
        assert_eq!(cell(Some(&Value::Null)), "-");
    }

    #[test]
    fn writes_of_a_kind_stand_below_the_figures() {
        let spread = json!({"min": 1.0, "median": 1.0, "max": 1.0});
        let side = json!({"writes": {"create pods/eviction 201": spread}, "seconds": spread});
        let run = json!({"mode": "evict", "targets": 1, "rounds": [0], "spread": {"host": side, "bare": side}});
        let text = operations(&json!({"on": "sim", "runs": [run]}));
        let rows: Vec<&str> = text.lines().take(4).collect();
        assert!(rows[2].contains("seconds") && rows[3].contains("create pods/eviction 201"), "{text}");
        assert!(!text.contains("host to bare |") && text.contains("no ratios"), "{text}");
    }

    #[test]
    fn figure_that_only_one_column_has_is_a_row_all_the_same() {
        let of = |value: f64| json!({"min": value, "median": value, "max": value});
        let (calm, killed) = (json!({"seconds": of(1.0)}), json!({"seconds": of(2.0), "kills": of(7.0)}));
        let run = json!({"mode": "reboot", "targets": 1, "rounds": [0], "spread": {"calm": calm, "killed": killed}});
        let text = operations(&json!({"on": "real", "runs": [run]}));
        let rows: Vec<&str> = text.lines().skip(2).take(2).collect();
        let cells = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        assert_eq!(cells(rows[0])[1..4], ["seconds", "1", "2"]);
        assert_eq!(cells(rows[1])[1..4], ["kills", "-", "7"]);
    }

    #[test]
    fn goal_stands_beside_what_was_reached() {
        let reached = json!({"min": 1.0, "median": 1.1, "max": 1.2});
        let run = json!({"mode": "evict", "goals": [{"name": "time", "goal": "at most 1.15", "reached": reached}]});
        let text = operations(&json!({"on": "real", "runs": [run]}));
        assert!(text.contains("| time         | at most 1.15 | 1.1 (1..1.2) |"), "{text}");
    }
}
