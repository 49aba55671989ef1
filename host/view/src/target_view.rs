//! One target of a job as it is shown, and what of it needs eyes.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{TargetDetail, TargetError};
use serde_json::Value;

use crate::shown_progress::ShownProgress;

/// Extras that a row leaves out: they are the host's own notes.
const NOTES_OF_THE_HOST: [&str; 5] = ["ClaimedUID", "EvictedAt", "Node", "Owner", "Released"];

/// One target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetView {
    /// Its place in the job's list, from 0.
    pub index: usize,
    /// Its name; empty where only the record knows it and cannot be read.
    pub name: String,
    /// Its progress.
    pub progress: ShownProgress,
    /// The attempt, from 1.
    pub attempt: i32,
    /// Time of its start.
    pub started: Option<Timestamp>,
    /// Time of its end.
    pub ended: Option<Timestamp>,
    /// End of the wait before the next attempt.
    pub next_attempt: Option<Timestamp>,
    /// The reason why it failed or waits.
    pub error: Option<TargetError>,
    /// Extras of the plugin and of the host.
    pub extra: BTreeMap<String, String>,
}

impl TargetView {
    /// A target of which no detail is known.
    pub(crate) fn unexplained(index: usize, name: &str, progress: ShownProgress) -> Self {
        Self { index, name: name.to_owned(), progress, attempt: 1, ..Self::default() }
    }

    /// A target from its stored detail, and from what the ranges of its job say: the more advanced of the two is right.
    pub(crate) fn new(index: usize, detail: &TargetDetail, ranges: Option<ShownProgress>) -> Self {
        let stored = ShownProgress::read(detail.progress.as_deref());
        let progress = ranges.map_or(stored, |ranges| stored.or_more_advanced(ranges));
        // The obstacle of a target that has ended since is over.
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

    /// True if it has not ended and something is in its way.
    pub fn is_blocked(&self) -> bool {
        !self.progress.is_terminal() && self.error.is_some()
    }

    /// True if it is what a person looks for first: blocked, in flight or failed.
    pub fn needs_eyes(&self) -> bool {
        self.rank() < 3
    }

    /// Its place among the targets of a table: what needs eyes first, and what has succeeded last.
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

    /// Its state in a word or two, for people.
    pub fn state(&self) -> &'static str {
        match self.progress {
            _ if self.next_attempt.is_some() => "Retrying",
            _ if self.is_blocked() => "Blocked",
            ShownProgress::Processing => "In flight",
            other => other.word(),
        }
    }

    /// The time since which it is in flight, or which it took.
    pub(crate) fn span(&self, now: Timestamp) -> Option<String> {
        match self.progress {
            ShownProgress::Pending => None,
            progress if progress.is_terminal() => crate::span_text::between(self.started, self.ended),
            _ => crate::span_text::between(self.started, Some(now)),
        }
    }

    /// Everything else that is known of it, in a line: attempt, error, and the extras that say something to people.
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

    /// The extras that say something to people, in words.
    fn shown_extras(&self) -> impl Iterator<Item = String> {
        let shown = self.extra.iter().filter(|(key, _)| !NOTES_OF_THE_HOST.contains(&key.as_str()));
        shown.map(|(key, value)| match key.as_str() {
            "NewPod" => format!("new pod {value}"),
            "Plan" => format!("plan: {value}"),
            "Drain" => drain_in_words(value),
            _ => match key.strip_prefix("Task/") {
                Some(name) => format!("task {name}{}", task_in_words(value)),
                None => format!("{key} {value}"),
            },
        })
    }

    /// True if a person would see that `now` is not as this one was.
    pub(crate) fn differs_from(&self, now: &Self) -> bool {
        (self.progress, self.attempt, self.next_attempt) != (now.progress, now.attempt, now.next_attempt)
            || self.error != now.error
            || now.shown_extras().next().is_some() && self.shown_extras().ne(now.shown_extras())
    }

    /// Its name, or its place in the list where the name is not known.
    pub fn label(&self) -> String {
        if self.name.is_empty() { format!("#{}", self.index) } else { self.name.clone() }
    }
}

/// The drain of a node, from the JSON that the host stores: how far it is, and how many pods do not go.
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

/// The state of a task, from the JSON that the host stores, and why it waits or failed.
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
