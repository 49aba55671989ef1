//! Rules and dashboards name only metrics that the host has. The page about alerts lists the metrics that neither uses.

use std::collections::BTreeSet;

use anyhow::ensure;
use oarlock_scenarios::monitoring::promtool;

use crate::files::{dashboards, expressions};

/// The suffixes of the series of a metric.
const SUFFIXES: [&str; 5] = ["_total", "_bucket", "_count", "_sum", "_info"];
/// The beginnings of the names of metrics.
const BEGINNINGS: [&str; 3] = ["oarlock_", "safe_opsjob_", "process_"];

/// Returns the name of a metric from the name of a series.
fn metric(series: &str) -> &str {
    SUFFIXES.iter().find_map(|suffix| series.strip_suffix(suffix)).unwrap_or(series)
}

/// Returns the metrics that a text names.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|part: char| !part.is_ascii_alphanumeric() && part != '_');
    let is_metric = |word: &&str| BEGINNINGS.iter().any(|beginning| word.starts_with(beginning));
    words.filter(is_metric).map(|word| metric(word).to_owned()).collect()
}

fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// Returns the metrics that the code registers. The names in the code are without their prefixes.
fn registered() -> anyhow::Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for file in [
        "metrics.rs",
        "metrics/at_scrape.rs",
        "metrics/flows.rs",
        "metrics/ops.rs",
        "metrics/plugins.rs",
        "metrics/process.rs",
        "metrics/rounds.rs",
        "metrics/traces.rs",
    ] {
        let text = std::fs::read_to_string(promtool::in_repository("host/src").join(file))?;
        // A call that registers a metric, or the row of a table of them, has the name as its first string.
        for call in ["registry.register(", "jobs.register(", "encode_descriptor(", "            (\"process_"] {
            for (place, _) in text.match_indices(call) {
                let rest = text.get(place..).unwrap_or_default();
                let Some(name) = rest.split('"').nth(1).filter(|name| is_name(name)) else { continue };
                let prefixes: &[&str] = match (file, call) {
                    ("metrics/flows.rs", _) => &["oarlock_jobflow_", "oarlock_daemonjob_"],
                    ("metrics/ops.rs", _) => &["safe_opsjob_"],
                    ("metrics/process.rs", _) => &[""],
                    (_, "jobs.register(") => &["oarlock_operationjob_"],
                    ("metrics/at_scrape.rs", _) if name == "writes" => {
                        &["oarlock_operationjob_", "oarlock_jobflow_", "oarlock_daemonjob_"]
                    }
                    _ => &["oarlock_"],
                };
                all.extend(prefixes.iter().map(|prefix| metric(&format!("{prefix}{name}")).to_owned()));
            }
        }
    }
    Ok(all)
}

/// Checks that the code registers the metrics of these series, so that the other checks know all metrics.
pub(crate) fn are_registered(series: &BTreeSet<String>) -> anyhow::Result<()> {
    let registered = registered()?;
    let unknown: Vec<_> = series.iter().filter(|series| !registered.contains(metric(series))).collect();
    ensure!(unknown.is_empty(), "this check does not find where the code registers {unknown:?}");
    Ok(())
}

/// Returns the metrics that rules and dashboards name.
fn used() -> anyhow::Result<BTreeSet<String>> {
    let mut used = named(&std::fs::read_to_string(promtool::rules())?);
    for (_, dashboard) in dashboards()? {
        expressions(&dashboard).iter().for_each(|expression| used.extend(named(expression)));
    }
    Ok(used)
}

#[test]
fn rules_and_dashboards_name_only_metrics_that_the_host_has() -> anyhow::Result<()> {
    let registered = registered()?;
    ensure!(registered.len() > 60, "most metrics are found: {registered:?}");
    let unknown: Vec<_> = used()?.difference(&registered).cloned().collect();
    ensure!(unknown.is_empty(), "no host has {unknown:?}");
    Ok(())
}

#[test]
fn the_page_lists_the_metrics_that_neither_alerts_nor_dashboards_use() -> anyhow::Result<()> {
    let page = std::fs::read_to_string(promtool::in_repository("docs/alerts.md"))?;
    let listed = page.split_once("## Metrics without").map(|(_, section)| named(section)).unwrap_or_default();
    let unused: BTreeSet<String> = registered()?.difference(&used()?).cloned().collect();
    ensure!(listed == unused, "the page lists {listed:?}, and {unused:?} are unused");
    Ok(())
}
