//! Jobs as JSON for scripts. The field names are stable, and docs/watching.md lists them.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{PluginBinding, TargetError};
use serde::Serialize;

use crate::changes::ViewChange;
use crate::job_view::{JobView, Notice};
use crate::ops_view::ShownOutput;
use crate::outlook::Outlook;
use crate::shown_progress::{ShownCounts, ShownProgress};
use crate::shown_text::is_unprintable;
use crate::span_text::rfc_3339;
use crate::target_view::TargetView;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JobFields<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    action: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    plugin: Option<&'a PluginBinding>,
    progress: ShownProgress,
    counts: ShownCounts,
    #[serde(skip_serializing_if = "Option::is_none")]
    creation_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_per_minute: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notices: &'a Vec<Notice>,
    deleting: bool,
    dry_run: bool,
    detail_complete: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outputs: &'a Vec<ShownOutput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    targets: Option<Vec<TargetFields<'a>>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TargetFields<'a> {
    index: usize,
    name: &'a str,
    progress: ShownProgress,
    blocked: bool,
    attempt: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a TargetError>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra_info: &'a BTreeMap<String, String>,
}

#[derive(Serialize)]
struct JobChangeFields<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    time: String,
    namespace: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<JobFields<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<TargetFields<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

#[derive(Serialize)]
struct ListFields<'a> {
    items: Vec<JobFields<'a>>,
}

/// Returns the document of one job with all of its targets.
///
/// # Errors
///
/// If a number has no form in JSON.
pub fn job_document(job: &JobView, now: Timestamp) -> serde_json::Result<String> {
    let targets = job.targets().iter().map(target_fields).collect();
    pretty(&JobFields { targets: Some(targets), ..job_fields(job, now) })
}

/// Returns the document of several jobs: `items`, without their targets.
///
/// # Errors
///
/// If a number has no form in JSON.
pub fn jobs_document(jobs: &[JobView], now: Timestamp) -> serde_json::Result<String> {
    pretty(&ListFields { items: jobs.iter().map(|job| job_fields(job, now)).collect() })
}

/// Returns the line for one change of `job`, without a line break.
///
/// # Errors
///
/// If a number has no form in JSON.
pub fn change_line(change: &ViewChange, job: &JobView, now: Timestamp) -> serde_json::Result<String> {
    let (kind, of_job, of_target, message) = match change {
        ViewChange::Job => ("job", Some(job_fields(job, now)), None, None),
        ViewChange::Target(index) => ("target", None, job.targets().get(*index).map(target_fields), None),
        ViewChange::Disconnected(cause) => ("disconnected", None, None, Some(cause.as_str())),
        ViewChange::Connected => ("connected", None, None, None),
        ViewChange::Deleted => ("deleted", None, None, None),
    };
    let time = rfc_3339(now);
    let (namespace, name) = (job.namespace.as_str(), job.name.as_str());
    let fields = JobChangeFields { kind, time, namespace, name, job: of_job, target: of_target, message };
    Ok(printable(&serde_json::to_string(&fields)?))
}

fn job_fields(job: &JobView, now: Timestamp) -> JobFields<'_> {
    let outlook = Outlook::new(job, now);
    JobFields {
        namespace: &job.namespace,
        name: &job.name,
        uid: &job.uid,
        action: &job.action,
        plugin: job.plugin.as_ref(),
        progress: job.progress,
        counts: job.counts,
        creation_time: job.created.map(rfc_3339),
        start_time: job.started.map(rfc_3339),
        end_time: job.ended.map(rfc_3339),
        rate_per_minute: outlook.per_minute.map(|rate| (rate * 10.0).round() / 10.0),
        remaining_seconds: outlook.remaining.map(|span| span.as_secs()),
        waits_for: job.waits_for.as_deref(),
        notices: &job.notices,
        deleting: job.is_deleting,
        dry_run: job.dry_run,
        detail_complete: job.missing_detail().is_none(),
        outputs: &job.outputs,
        targets: None,
    }
}

fn target_fields(target: &TargetView) -> TargetFields<'_> {
    TargetFields {
        index: target.index,
        name: &target.name,
        progress: target.progress,
        blocked: target.is_blocked(),
        attempt: target.attempt,
        start_time: target.started.map(rfc_3339),
        end_time: target.ended.map(rfc_3339),
        next_attempt_time: target.next_attempt.map(rfc_3339),
        error: target.error.as_ref(),
        extra_info: &target.extra,
    }
}

pub(crate) fn pretty(fields: &impl Serialize) -> serde_json::Result<String> {
    Ok(printable(&(serde_json::to_string_pretty(fields)? + "\n")))
}

/// Escapes the characters of a JSON text that a terminal acts on. They occur only in strings, where an escape has the same meaning.
pub(crate) fn printable(json: &str) -> String {
    let mut clean = String::with_capacity(json.len());
    for c in json.chars() {
        if is_unprintable(c) && c != '\n' {
            clean.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            clean.push(c);
        }
    }
    clean
}
