//! Formats OpsJobs for output.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use oarlock_view::{JobView, TargetRows, Watched as _, job_document, job_text, text_table};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::server::Server;
use crate::commands::jobs::watch::{NOT_KNOWN, WatchOutput};
use crate::commands::jobs::{now, print_line};

/// The time between two requests for a followed job.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The number of failed requests in a row that the command tolerates.
const PATIENCE: u32 = 60;

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ShowFormat {
    /// One document; docs/watching.md lists the fields.
    Json,
    /// One document in YAML.
    Yaml,
    /// A table with more columns; for one job, all of its nodes.
    Wide,
}

impl ShowFormat {
    /// Returns the matching format of a watch.
    pub(super) fn of_watch(self) -> Option<WatchOutput> {
        (self == Self::Json).then_some(WatchOutput::Json)
    }
}

/// Returns a JSON document in the requested format.
fn written(json: &str, output: ShowFormat) -> anyhow::Result<String> {
    if output != ShowFormat::Yaml {
        return Ok(json.to_owned());
    }
    let value: Value = serde_json::from_str(json).context("cannot read the answer")?;
    serde_saphyr::to_string(&value).context("cannot write the answer as YAML")
}

pub(super) fn shown_job(job: &JobView, output: Option<ShowFormat>) -> anyhow::Result<String> {
    match output {
        Some(output @ (ShowFormat::Json | ShowFormat::Yaml)) => {
            written(&job_document(job, now()).context("cannot write the job as JSON")?, output)
        }
        Some(ShowFormat::Wide) => Ok(job_text(job, TargetRows::All, now())),
        None => Ok(job_text(job, TargetRows::First, now())),
    }
}

/// Formats jobs in the form of the REST API's list.
pub(super) fn shown_list(jobs: &[Value], output: Option<ShowFormat>) -> anyhow::Result<String> {
    if let Some(output @ (ShowFormat::Json | ShowFormat::Yaml)) = output {
        return written(&(serde_json::to_string_pretty(&json!({ "items": jobs }))? + "\n"), output);
    }
    if jobs.is_empty() {
        return Ok("No OpsJobs found.\n".to_owned());
    }
    let mut columns = vec![
        ("ID", "jobId"),
        ("TYPE", "type"),
        ("PHASE", "phase"),
        ("WORKSPACE", "workspaceId"),
        ("USER", "userName"),
        ("CREATED", "creationTime"),
    ];
    if output == Some(ShowFormat::Wide) {
        columns.extend([("STARTED", "startTime"), ("ENDED", "endTime"), ("NAME", "jobName")]);
    }
    let header: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
    let row = |job: &Value| {
        let cell = |(_, field): &(&str, &str)| job.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        columns.iter().map(cell).collect()
    };
    Ok(text_table(&header, jobs.iter().map(row)))
}

/// Formats the answer to a dry run.
pub(super) fn rehearsal(answer: &Value, output: Option<ShowFormat>) -> anyhow::Result<String> {
    if let Some(output @ (ShowFormat::Json | ShowFormat::Yaml)) = output {
        return written(&(serde_json::to_string_pretty(answer)? + "\n"), output);
    }
    let list = |field: &str| answer.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    let own = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let count = list("targets").len();
    let mut text = format!("{count} {}, in this order; nothing was made.\n", if count == 1 { "node" } else { "nodes" });
    for target in list("targets") {
        text += &format!("  {}\n", own(&target, "name"));
    }
    for skipped in list("skipped") {
        text += &format!("  left out: {} {}\n", own(&skipped, "node"), own(&skipped, "reason"));
    }
    Ok(text)
}

/// Follows a job of a server to its end. Prints a line for each change.
pub(super) async fn follow_polled(server: &Server, id: &str, output: Option<WatchOutput>) -> anyhow::Result<ExitCode> {
    let mut shown: Option<JobView> = None;
    let mut failed = 0;
    loop {
        let view = match server.job(id).await {
            Ok(job) => JobView::of_ops(&job, None),
            Err(error) if shown.is_none() || failed >= PATIENCE => return Err(error),
            Err(_) => {
                failed += 1;
                sleep(ASK_EVERY).await;
                continue;
            }
        };
        failed = 0;
        for change in view.changes(shown.as_ref()) {
            let line = match output {
                Some(WatchOutput::Json) => view.change_line(&change, now()).context("cannot write a change as JSON")?,
                _ => view.change_text(&change, now()),
            };
            if !print_line(&line)? {
                return Ok(ExitCode::from(NOT_KNOWN));
            }
        }
        if view.has_ended() {
            return Ok(if view.has_succeeded() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        shown = Some(view);
        sleep(ASK_EVERY).await;
    }
}
