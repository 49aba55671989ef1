//! A view of one target of a job, and whether it needs attention.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{TargetDetail, TargetError};
use serde_json::Value;

use crate::shown_progress::ShownProgress;
use crate::span_text::rfc_3339;

/// Extras that a row omits, because they are internal notes of the host.
const NOTES_OF_THE_HOST: [&str; 5] = ["ClaimedUID", "EvictedAt", "Node", "Owner", "Released"];

/// A view of one target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetView {
    /// The index of the target in the job's list, from 0.
    pub index: usize,
    /// The name of the target. It is empty if only an unreadable record has the name.
    pub name: String,
    /// The progress of the target.
    pub progress: ShownProgress,
    /// The number of the attempt, from 1.
    pub attempt: i32,
    /// The start time of the target.
    pub started: Option<Timestamp>,
    /// The end time of the target.
    pub ended: Option<Timestamp>,
    /// The end of the wait before the next attempt.
    pub next_attempt: Option<Timestamp>,
    /// The reason why the target failed or waits.
    pub error: Option<TargetError>,
    /// The extras of the plugin and of the host.
    pub extra: BTreeMap<String, String>,
}

impl TargetView {
    /// Returns a target without known details.
    pub(crate) fn unexplained(index: usize, name: &str, progress: ShownProgress) -> Self {
        Self { index, name: name.to_owned(), progress, attempt: 1, ..Self::default() }
    }

    /// Returns a target from its stored detail and from the ranges of its job. The more advanced of the two is right.
    pub(crate) fn new(index: usize, detail: &TargetDetail, ranges: Option<ShownProgress>) -> Self {
        let stored = ShownProgress::read(detail.progress.as_deref());
        let progress = ranges.map_or(stored, |ranges| stored.or_more_advanced(ranges));
        // The obstacle of a target that has ended meanwhile is over.
        let is_over = progress.is_terminal() && !stored.is_terminal() || progress == ShownProgress::Succeeded;
        let time = |text: &Option<String>| text.as_deref().and_then(|text| text.parse().ok());
        Self {
            index,
            name: detail.name.clone(),
            progress,
            attempt: detail.attempt.unwrap_or(1).max(1),
            started: time(&detail.start_time),
            ended: time(&detail.end_time),
            next_attempt: time(&detail.next_attempt_time).filter(|_| !progress.is_terminal()),
            error: detail.error.clone().filter(|error| !is_over && !error.reason.is_empty()),
            extra: detail.extra_info.clone().unwrap_or_default(),
        }
    }

    /// Returns true if the target has not ended and something blocks it.
    pub fn is_blocked(&self) -> bool {
        !self.progress.is_terminal() && self.error.is_some()
    }

    /// Returns true if the target needs attention: it is blocked, in flight or failed.
    pub fn needs_eyes(&self) -> bool {
        self.rank() < 3
    }

    /// Returns the rank of the target in a table. Targets that need attention come first, and targets that succeeded come last.
    pub(crate) fn rank(&self) -> u8 {
        match self.progress {
            _ if self.is_blocked() => 0,
            ShownProgress::Processing => 1,
            ShownProgress::Failed => 2,
            ShownProgress::Unknown => 3,
            ShownProgress::Pending => 4,
            ShownProgress::Succeeded => 5,
        }
    }

    /// Returns the state of the target in a word or two, for people.
    pub fn state(&self) -> &'static str {
        match self.progress {
            _ if self.next_attempt.is_some() => "Retrying",
            _ if self.is_blocked() => "Blocked",
            ShownProgress::Processing => "In flight",
            other => other.word(),
        }
    }

    /// Returns the time for which the target is in flight, or its duration.
    pub(crate) fn span(&self, now: Timestamp) -> Option<String> {
        match self.progress {
            ShownProgress::Pending => None,
            progress if progress.is_terminal() => crate::span_text::between(self.started, self.ended),
            _ => crate::span_text::between(self.started, Some(now)),
        }
    }

    /// Returns the other details of the target in a line: attempt, error, and extras for people.
    pub fn detail(&self, now: Timestamp) -> String {
        let mut parts = Vec::new();
        if self.attempt > 1 {
            parts.push(format!("attempt {}", self.attempt));
        }
        if let Some(next) = self.next_attempt.filter(|next| *next > now) {
            parts.push(format!("next in {}", crate::span_text::span(next.duration_since(now))));
        }
        if let Some(TargetError { reason, message }) = &self.error {
            parts.push(if message.is_empty() { reason.clone() } else { format!("{reason}: {message}") });
        }
        parts.extend(self.shown_extras());
        parts.join("; ")
    }

    /// Returns the extras for people, in words, such as `new pod web-7` or `task check Done`.
    pub fn shown_extras(&self) -> impl Iterator<Item = String> {
        let shown = self.extra.iter().filter(|(key, _)| !NOTES_OF_THE_HOST.contains(&key.as_str()));
        shown.map(|(key, value)| extra_in_words(key, value).unwrap_or_else(|| format!("{key} {value}")))
    }

    /// Returns those extras of which this version knows the meaning, in words.
    pub fn extras_in_words(&self) -> impl Iterator<Item = String> {
        self.extra.iter().filter_map(|(key, value)| extra_in_words(key, value))
    }

    /// Returns true if the shown data of `now` differs from the shown data of this target.
    pub(crate) fn differs_from(&self, now: &Self) -> bool {
        (self.progress, self.attempt, self.next_attempt) != (now.progress, now.attempt, now.next_attempt)
            || self.error != now.error
            || now.shown_extras().next().is_some() && self.shown_extras().ne(now.shown_extras())
    }

    /// Returns the name of the target, or its index if the name is unknown.
    pub fn label(&self) -> String {
        if self.name.is_empty() { format!("#{}", self.index) } else { self.name.clone() }
    }
}

/// Describes an extra of the host or of a shipped plugin. Returns `None` for another one.
fn extra_in_words(key: &str, value: &str) -> Option<String> {
    Some(match key {
        "NewPod" => format!("new pod {value}"),
        "Plan" => format!("plan: {value}"),
        "Drain" => drain_in_words(value),
        "DrainSince" => {
            let since = Timestamp::from_millisecond(value.parse().ok()?).ok()?;
            format!("the drain began at {}", rfc_3339(since))
        }
        _ => format!("task {}{}", key.strip_prefix("Task/")?, task_in_words(value)),
    })
}

/// Describes the drain of a node from the JSON that the host stores: its state, and the number of pods that do not go.
fn drain_in_words(stored: &str) -> String {
    let drain: Value = serde_json::from_str(stored).unwrap_or_default();
    if drain.get("state").is_some_and(|state| state == "Drained") {
        return "drained".to_owned();
    }
    let named = drain.get("blocked").and_then(Value::as_array).map_or(0, Vec::len) as u64;
    match named.saturating_add(drain.get("more").and_then(Value::as_u64).unwrap_or(0)) {
        0 => "draining".to_owned(),
        1 => "draining, 1 pod stays".to_owned(),
        count => format!("draining, {count} pods stay"),
    }
}

/// Describes the state of a task from the JSON that the host stores, with the reason why it waits or failed.
fn task_in_words(stored: &str) -> String {
    let task: Value = serde_json::from_str(stored).unwrap_or_default();
    let text = |field: &str| task.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let code = task.get("exitCode").and_then(Value::as_i64).filter(|code| *code != 0);
    let parts = [
        text("state").map(|state| format!(" {state}")),
        code.map(|code| format!(" (exit code {code})")),
        text("message").map(|message| format!(": {message}")),
    ];
    parts.into_iter().flatten().collect()
}
