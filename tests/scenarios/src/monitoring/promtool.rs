//! Runs promtool on the rules, and on series.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, ensure};

use super::timeline::Timeline;

static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// Returns the path of a file of this repository.
pub fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Returns the path of the alerts.
pub fn rules() -> PathBuf {
    in_repository("deploy/alerts/oarlock.yaml")
}

/// Writes a file for promtool, runs promtool with these arguments and the file, and removes the file.
///
/// # Errors
/// If promtool cannot be built, or the file cannot be written.
pub fn run(arguments: &[&str], text: &str) -> anyhow::Result<Output> {
    let promtool = controlplane::promtool(&|line| eprintln!("promtool: {line}"))?;
    let number = NUMBER.fetch_add(1, Ordering::SeqCst);
    let file = std::env::temp_dir().join(format!("oarlock-alerts-{}-{number}.yaml", std::process::id()));
    std::fs::write(&file, text)?;
    let output = Command::new(promtool).args(arguments).arg(&file).output().context("promtool does not run");
    std::fs::remove_file(&file)?;
    output
}

/// Fails with the output of promtool unless promtool succeeded.
///
/// # Errors
/// If promtool failed.
pub fn succeeded(output: &Output) -> anyhow::Result<()> {
    let words = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    ensure!(output.status.success(), "promtool ended with {}:\n{}", output.status, words.concat());
    Ok(())
}

/// Checks that exactly these alerts fire at any minute of the timeline.
///
/// # Errors
/// If another alert fires, or if one of these does not. The error has the output of promtool.
pub fn fires(timeline: &Timeline, alerts: &[&str]) -> anyhow::Result<()> {
    let end = timeline.end();
    let samples: String =
        alerts.iter().map(|alert| format!("    - {{labels: '{{alertname=\"{alert}\"}}', value: 1}}\n")).collect();
    let samples = if samples.is_empty() { " []".to_owned() } else { format!("\n{samples}") };
    let test = format!(
        "rule_files: ['{rules}']
evaluation_interval: 1m
tests:
- interval: 1m
  input_series:
{series}  promql_expr_test:
  - expr: group by (alertname) (count_over_time(ALERTS{{alertstate=\"firing\"}}[{window}m]))
    eval_time: {end}m
    exp_samples:{samples}
",
        rules = rules().canonicalize()?.display(),
        series = timeline.input_series(),
        window = end + 1,
    );
    succeeded(&run(&["test", "rules"], &test)?)
}
