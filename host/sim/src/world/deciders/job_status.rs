//! The status of a Job, and accessors for its spec and conditions.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::job::JobView;

/// The outcome of a settled Job, known before its pods have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) succeeded: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Verdict {
    pub(crate) fn new(succeeded: bool, reason: &str, message: impl Into<String>) -> Self {
        Self { succeeded, reason: reason.to_owned(), message: message.into() }
    }

    /// Returns the conditions that report the outcome: while pods still exist, and after that.
    fn types(&self) -> (&'static str, &'static str) {
        if self.succeeded { ("SuccessCriteriaMet", "Complete") } else { ("FailureTarget", "Failed") }
    }
}

/// The numbers of pods after the steps of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodCounts {
    pub(crate) active: usize,
    pub(crate) ready: usize,
    pub(crate) terminating: usize,
}

/// Returns the spec of a Job.
pub(crate) fn spec(job: &Job) -> JobSpec {
    job.spec.clone().unwrap_or_default()
}

pub(crate) fn completions(job: &Job) -> Option<i32> {
    job.spec.as_ref()?.completions
}

pub(crate) fn is_indexed(job: &Job) -> bool {
    job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref()) == Some("Indexed")
}

pub(crate) fn is_suspended(job: &Job) -> bool {
    job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true))
}

fn conditions(job: &Job) -> &[JobCondition] {
    job.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

fn holds<'a>(all: &'a [JobCondition], kind: &str) -> Option<&'a JobCondition> {
    all.iter().find(|one| one.type_ == kind && one.status == "True")
}

/// Returns the time at which a Job became Complete or Failed.
pub(crate) fn finished_at(job: &Job) -> Option<Timestamp> {
    let ended = ["Complete", "Failed"].into_iter().find_map(|kind| holds(conditions(job), kind))?;
    ended.last_transition_time.as_ref().map(|time| time.0)
}

/// Returns the outcome that the Job's conditions report.
pub(crate) fn stored_verdict(job: &Job) -> Option<Verdict> {
    let of = |kind: &str, succeeded: bool| {
        let told = holds(conditions(job), kind)?;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Some(Verdict { succeeded, reason: text(&told.reason), message: text(&told.message) })
    };
    of("SuccessCriteriaMet", true).or_else(|| of("FailureTarget", false))
}

/// Returns the start time of a Job. A suspended Job keeps it until it is resumed, which sets a new one.
pub(crate) fn start_time(view: &JobView<'_>) -> Option<Time> {
    let stored = view.job.status.as_ref().and_then(|status| status.start_time.clone());
    let suspended = is_suspended(view.job);
    let resumes = !suspended && holds(conditions(view.job), "Suspended").is_some();
    let now = Time(Timestamp::from_second(view.now.as_second()).unwrap_or(view.now));
    if resumes { Some(now) } else { stored.or_else(|| (!suspended).then_some(now)) }
}

/// Returns the desired status of a Job. Null fields are absent.
pub(crate) fn status(view: &JobView<'_>, verdict: Option<&Verdict>, counts: PodCounts) -> Value {
    let job = view.job;
    let now = Time(Timestamp::from_second(view.now.as_second()).unwrap_or(view.now));
    let mut all = conditions(job).to_vec();
    let mut completed = job.status.as_ref().and_then(|status| status.completion_time.clone());
    match verdict {
        Some(verdict) => {
            let (first, then) = verdict.types();
            let is_told = holds(&all, first).is_some();
            let kind = if is_told && counts.active + counts.terminating == 0 { then } else { first };
            if kind == "Complete" {
                completed = Some(now.clone());
            }
            set(&mut all, (kind, "True"), (&verdict.reason, &verdict.message), &now);
        }
        None if is_suspended(job) => set(&mut all, ("Suspended", "True"), ("JobSuspended", "Job suspended"), &now),
        None if all.iter().any(|one| one.type_ == "Suspended") => {
            set(&mut all, ("Suspended", "False"), ("JobResumed", "Job resumed"), &now);
        }
        None => {}
    }
    let indexes = is_indexed(job).then(|| text_of(view.tally.indexes()));
    json!({
        "active": counts.active,
        "ready": counts.ready,
        "terminating": counts.terminating,
        "succeeded": view.tally.succeeded(job),
        "failed": view.tally.failed(),
        "completedIndexes": indexes,
        "startTime": start_time(view),
        "completionTime": completed,
        "uncountedTerminatedPods": {},
        "conditions": all,
    })
}

/// Sets a condition, unless it already has this status.
fn set(all: &mut Vec<JobCondition>, (kind, status): (&str, &str), (reason, message): (&str, &str), now: &Time) {
    if all.iter().any(|one| one.type_ == kind && one.status == status) {
        return;
    }
    all.retain(|one| one.type_ != kind);
    all.push(JobCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(now.clone()),
        last_transition_time: Some(now.clone()),
    });
}

/// Subtracts the pods that could not be created from the status.
pub(crate) fn without(mut status: Value, unmade: usize) -> Value {
    let active = status.get("active").and_then(Value::as_u64).unwrap_or(0);
    if let (Some(fields), true) = (status.as_object_mut(), unmade > 0) {
        fields.insert("active".to_owned(), json!(active.saturating_sub(unmade as u64)));
    }
    status
}

/// Returns true if the stored status already contains this status. Empty and absent fields are equal.
pub(crate) fn says(stored: &Value, wanted: &Value) -> bool {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) => false,
    };
    let same = |(field, value): (&String, &Value)| {
        let known = stored.get(field).unwrap_or(&Value::Null);
        known == value || is_empty(known) && is_empty(value)
    };
    wanted.as_object().is_none_or(|fields| fields.iter().all(same))
}

/// Parses indexes below a limit from a text such as `1,3-5`.
pub(crate) fn indexes_of(text: &str, limit: i32) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<i32>(), last.trim().parse::<i32>()) {
            found.extend(first.max(0)..=last.min(limit.saturating_sub(1)));
        }
    }
    found
}

/// Formats indexes as a text such as `1,3-5`.
pub(crate) fn text_of(indexes: &BTreeSet<i32>) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for &index in indexes {
        match runs.last_mut() {
            Some(run) if run.1 + 1 == index => run.1 = index,
            _ => runs.push((index, index)),
        }
    }
    let one = |(first, last): &(i32, i32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    runs.iter().map(one).collect::<Vec<_>>().join(",")
}
