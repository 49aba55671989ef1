//! The files for Prometheus and Grafana are valid, and each alert has a page that says what to do.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use oarlock_scenarios::monitoring::promtool;
use serde_json::Value;

/// Returns the name and the content of each dashboard.
pub(crate) fn dashboards() -> anyhow::Result<Vec<(String, Value)>> {
    let mut dashboards = Vec::new();
    for entry in std::fs::read_dir(promtool::in_repository("deploy/dashboards"))? {
        let path = entry?.path();
        let name = path.file_name().context("a file has a name")?.to_string_lossy().into_owned();
        let content = serde_json::from_str(&std::fs::read_to_string(&path)?);
        dashboards.push((name.clone(), content.with_context(|| name)?));
    }
    ensure!(!dashboards.is_empty(), "there are no dashboards");
    Ok(dashboards)
}

/// Returns each expression of a dashboard.
pub(crate) fn expressions(dashboard: &Value) -> Vec<String> {
    match dashboard {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| match value.as_str().filter(|_| name == "expr") {
                Some(text) => vec![text.to_owned()],
                None => expressions(value),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(expressions).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_rules_are_valid() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(promtool::rules())?;
    promtool::succeeded(&promtool::run(&["check", "rules", "--lint=all", "--lint-fatal"], &text)?)
}

#[test]
fn every_expression_of_a_dashboard_is_valid() -> anyhow::Result<()> {
    let mut rules = Vec::new();
    for (name, dashboard) in dashboards()? {
        for (number, expression) in expressions(&dashboard).into_iter().enumerate() {
            let expression = expression.replace("$__rate_interval", "5m").replace("$job", ".*");
            ensure!(!expression.contains('$'), "{name}: an unknown variable: {expression}");
            let record = format!("{}:{number}", name.trim_end_matches(".json").replace('-', "_"));
            rules.push(serde_json::json!({"record": record, "expr": expression}));
        }
    }
    let file = serde_json::json!({"groups": [{"name": "dashboards", "rules": rules}]});
    promtool::succeeded(&promtool::run(&["check", "rules", "--lint=none"], &file.to_string())?)
}

#[test]
fn dashboards_have_their_own_uids_and_ask_for_their_data_source() -> anyhow::Result<()> {
    let mut uids = BTreeSet::new();
    for (name, dashboard) in dashboards()? {
        let uid = dashboard.get("uid").and_then(Value::as_str).unwrap_or_default();
        ensure!(format!("{uid}.json") == name && uids.insert(uid.to_owned()), "{name} has the uid {uid}");
        let variables = dashboard.pointer("/templating/list").and_then(Value::as_array).into_iter().flatten();
        let mut sources = variables.filter(|variable| variable.get("type").is_some_and(|kind| kind == "datasource"));
        ensure!(sources.next().is_some(), "{name} has no variable for the data source");
        let panels = dashboard.get("panels").and_then(Value::as_array).context("a dashboard has panels")?;
        for panel in panels.iter().filter(|panel| panel.get("type").is_none_or(|kind| kind != "row")) {
            let source = panel.pointer("/datasource/uid");
            ensure!(source.is_some_and(|uid| uid == "${datasource}"), "{name}: {panel}");
            ensure!(panel.get("description").is_some_and(|words| words != ""), "{name}: {panel}");
        }
    }
    Ok(())
}

#[test]
fn each_alert_has_its_section_of_the_page_and_each_section_an_alert() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(promtool::rules())?;
    let page = std::fs::read_to_string(promtool::in_repository("docs/alerts.md"))?;
    let alerts: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    ensure!(alerts == sections, "the alerts are {alerts:?}, and the sections are {sections:?}");
    for alert in &alerts {
        let anchor = format!("/alerts.html#{}\n", alert.to_lowercase());
        ensure!(text.contains(&anchor), "{alert} has no runbook_url that ends with {anchor}");
    }
    for field in ["summary", "description", "runbook_url"] {
        let lines = text.lines().filter(|line| line.trim().starts_with(&format!("{field}: "))).count();
        ensure!(lines == alerts.len(), "{lines} alerts have a {field}");
    }
    let severities = text.lines().filter(|line| line.trim().starts_with("labels: {severity: ")).count();
    ensure!(severities == alerts.len(), "{severities} alerts have a severity");
    Ok(())
}

#[test]
fn each_alert_fires_in_the_trouble_of_a_test() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(promtool::rules())?;
    let tests = ["alerts/troubles.rs", "alerts/processes.rs", "rest/alerts.rs"];
    let tests = tests.map(|file| promtool::in_repository("tests/scenarios/tests").join(file));
    let tests = tests.iter().map(std::fs::read_to_string).collect::<Result<Vec<_>, _>>()?.concat();
    let alerts = text.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let without: Vec<&str> = alerts.filter(|alert| !tests.contains(&format!("\"{alert}\""))).collect();
    ensure!(without.is_empty(), "no test causes the trouble of {without:?}");
    Ok(())
}
